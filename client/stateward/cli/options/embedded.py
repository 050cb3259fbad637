"""A daemon for one command, on an empty temporary directory, for an archive that no running daemon here uses."""

from __future__ import annotations

import importlib.util
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stateward._version import install_command
from stateward.cli.options.connect import READY_TIMEOUT_S, Globals, connect
from stateward.cli.show.output import CommandError

if TYPE_CHECKING:
    from stateward import Client

NEEDED = ("stateward_sidecar", "lmdb", "zstandard", "cryptography")

ArchiveOption = Annotated[
    str | None,
    typer.Option(
        "--archive",
        metavar="URL",
        help="Start a daemon for this command, with this archive, which must exist.",
    ),
]
KeyFileOption = Annotated[
    Path | None,
    typer.Option("--key-file", metavar="FILE", envvar="STATEWARD_KEY_FILE", help="Key of the archive; for --archive."),
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
    """Yields a client of the daemon here or, with an archive, of a daemon that is stopped after the client."""
    if archive is None:
        with connect(context, target, namespace, fallback=fallback) as client:
            yield client
        return
    if target is not None:
        raise typer.BadParameter("it starts its own daemon; leave --target out", param_hint="--archive")
    given: Globals = context.obj
    from stateward import Client  # noqa: PLC0415  costs most of a start

    with (
        run_embedded(archive, key_file) as place,
        Client(place, namespace=namespace or given.namespace or fallback, connect_timeout=READY_TIMEOUT_S) as client,
    ):
        yield client


@contextmanager
def run_embedded(archive: str, key_file: Path | None) -> Iterator[str]:
    """Runs such a daemon and yields its target. The daemon stops gracefully, and so releases every thread it took.

    Raises CommandError if the archive does not exist: this daemon creates none, so a mistyped URL is an error.
    """
    missing = next((name for name in NEEDED if importlib.util.find_spec(name) is None), "")
    if missing:
        raise CommandError(
            f"--archive starts a daemon, whose package {missing} is not installed; run: "
            f"{install_command('sidecar,cli')}"
        )
    if key_file is None:
        raise CommandError("--archive needs --key-file: the archive can be read only with its key")
    if not key_file.is_file():
        raise CommandError(f"--key-file {key_file}: there is no such file")
    from stateward.testing import run_daemon  # noqa: PLC0415  after it is known that there is one

    if "://" not in archive:
        archive = Path(archive).expanduser().absolute().as_uri()
    # The owner id is unique: a sidecar may take threads from an owner with its own id. The settings in the environment
    # are meant for another daemon.
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
