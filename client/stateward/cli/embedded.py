"""A daemon for one command: on an empty temporary directory, with an archive, for when none runs here that has it."""

from __future__ import annotations

import importlib.util
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stateward.cli.connect import READY_TIMEOUT_S, Globals, connect
from stateward.cli.output import CommandError

if TYPE_CHECKING:
    from stateward import Client

NEEDED = ("stateward_sidecar", "lmdb", "zstandard", "cryptography")

ArchiveOption = Annotated[
    str | None,
    typer.Option(
        "--archive",
        metavar="URL",
        help="Work on this archive, which must exist, with a daemon of its own; none need run here.",
    ),
]
KeyFileOption = Annotated[
    Path | None,
    typer.Option("--key-file", metavar="FILE", envvar="STATEWARD_KEY_FILE", help="The archive's key; with --archive."),
]


@contextmanager
def reach(
    context: typer.Context,
    target: str | None,
    namespace: str | None,
    archive: str | None,
    key_file: Path | None,
    *,
    fallback: str = "default",
) -> Iterator[Client]:
    """A client of the daemon here or, with an archive, of one that lives as long as the client."""
    if archive is None:
        with connect(context, target, namespace, fallback=fallback) as client:
            yield client
        return
    if target is not None:
        raise typer.BadParameter("it starts a daemon of its own; leave --target out", param_hint="--archive")
    given: Globals = context.obj
    from stateward import Client  # noqa: PLC0415  costs most of a start

    with (
        run_embedded(archive, key_file) as place,
        Client(place, namespace=namespace or given.namespace or fallback, connect_timeout=READY_TIMEOUT_S) as client,
    ):
        yield client


@contextmanager
def run_embedded(archive: str, key_file: Path | None) -> Iterator[str]:
    """Runs such a daemon; gives its target. It is stopped gracefully, which gives up every thread that it took.

    A URL with a mistake in it is refused: what only looks and answers makes no archive.
    """
    missing = next((name for name in NEEDED if importlib.util.find_spec(name) is None), "")
    if missing:
        raise CommandError(
            f"--archive starts a daemon, whose package {missing} is not installed; run: pip install "
            "'stateward[sidecar,cli]'"
        )
    if key_file is None:
        raise CommandError("--archive needs --key-file: the archive can be read with its key only")
    if not key_file.is_file():
        raise CommandError(f"--key-file {key_file}: there is no such file")
    from stateward.testing import run_daemon  # noqa: PLC0415  after it is known that there is one

    if "://" not in archive:
        archive = Path(archive).expanduser().absolute().as_uri()
    # Nobody else's name: a sidecar may take what one of its own name holds. And no setting meant for the daemon here.
    owner_id = f"command-{secrets.token_hex(4)}"
    for name in [name for name in os.environ if name.startswith("STATEWARD_")]:
        del os.environ[name]
    try:
        with run_daemon(key_file=key_file, archive=archive, archive_must_exist=True, owner_id=owner_id) as daemon:
            try:
                yield daemon.target
            finally:
                if daemon.stop():
                    raise CommandError(f"the daemon for {archive} did not end well: {_last_line(daemon.stderr)}")
    except RuntimeError as error:
        raise CommandError(f"the daemon for {archive} does not start: {_last_line(str(error))}") from None


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "it said nothing"
