"""Sidecars on a real S3 server, each with a wire of its own that tests can cut, and clocks they can move."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.archive.rig import Fleet
from tests.bucket.weed import s3_environment

from stateward.testing import Daemon

PATCHED = Path(__file__).with_name("patched")
# Long enough for a request on a busy machine, short enough to be cut off often.
PATIENCE_S = 1.5


class Machines(Fleet):
    """A fleet whose daemons are started with environments of their own.

    ``via``: the URL of the S3 endpoint, a gate's as a rule. ``patience_s``: when a daemon gives up a request;
    ``clock``: a file with what its wall clock is off by.
    """

    def __init__(self, directory: Path, archive: str | None = None, **flags: str) -> None:
        super().__init__(directory, archive, **flags)
        self._environments: dict[Path, dict[str, str]] = {}

    def machine_on(
        self, owner: str, via: str | None = None, patience_s: float | None = PATIENCE_S, clock: Path | None = None,
        **flags: str,
    ) -> Daemon:  # fmt: skip
        """A sidecar on an empty disk."""
        environment = s3_environment(via) if via else {}
        if patience_s is not None:
            environment["ARCHIVE_FAULTS_PATIENCE_S"] = str(patience_s)
        if clock is not None:
            environment["ARCHIVE_FAULTS_CLOCK"] = str(clock)
        with started_with(environment):
            daemon = self.machine(owner, **flags)
        self._environments[daemon.socket] = environment
        return daemon

    def start(self, daemon: Daemon) -> None:
        """Starts one again, in its environment."""
        with started_with(self._environments[daemon.socket]):
            daemon.start()


@contextmanager
def started_with(environment: dict[str, str]) -> Iterator[None]:
    """Daemons that are started meanwhile have this in their environment, and the patches on their path."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        patch.setattr(sys, "path", [str(PATCHED), *sys.path])
        yield


@contextmanager
def machines_on(directory: Path, archive: str | None = None, **flags: Any) -> Iterator[Machines]:
    """Machines that are killed at the end."""
    made = Machines(directory, archive, **flags)
    try:
        yield made
    finally:
        made.close()


def new_archive() -> str:
    """A prefix of its own on the server."""
    return f"s3://stateward/{secrets.token_hex(8)}"


__all__ = ["PATIENCE_S", "Machines", "machines_on", "new_archive"]
