"""`stateward keys`: key files for the daemon: 32 random bytes as 64 hex digits, as sidecar/FORMAT.md has it."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Annotated

import typer

from stateward.cli.options.catalog import CONTEXT
from stateward.cli.options.connect import JsonOption
from stateward.cli.show.output import CommandError, print_json, say

KEY_BYTES = 32
FINGERPRINT_PREFIX = b"stateward key fingerprint"

keys = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings=CONTEXT,
)


@keys.callback(invoke_without_command=True)
def about(context: typer.Context) -> None:
    """Make key files for the daemon.

    \b
    Examples:
      stateward keys new /etc/stateward/data.key
      stateward-sidecar --key-file /etc/stateward/data.key
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    if context.invoked_subcommand is None:
        print(context.get_help())


@keys.command(short_help="Make a new key file that only you can read.")
def new(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where the key is written; must not exist.")],
    as_json: JsonOption = False,
) -> None:
    """Make a new key file that only you can read, for `stateward-sidecar --key-file`.

    Needs no daemon. Keep a copy in another place: without the key the data are lost. Keep it secret: with the key,
    anybody who has the data can read them.

    \b
    Examples:
      stateward keys new data.key
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    key = os.urandom(KEY_BYTES)
    write_key_file(file, key)
    fingerprint = hashlib.sha256(FINGERPRINT_PREFIX + key).hexdigest()[:16]
    if as_json:
        print_json({"file": str(file), "key_id": fingerprint})
        return
    say(f"{file} holds a new key, readable by you only; its fingerprint is {fingerprint}")
    say("Keep a copy of it elsewhere: without it the data are lost.")


def write_key_file(path: Path, key: bytes) -> None:
    """Writes a key and syncs it. Never replaces a file: it may hold the only key to somebody's data."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise CommandError(f"{path} exists already, and may hold the key to data; give another name") from None
    except FileNotFoundError:
        raise CommandError(f"the directory {path.parent} does not exist; make it first") from None
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror}") from None
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(key.hex().encode() + b"\n")
            file.flush()
            os.fchmod(descriptor, 0o600)  # whatever the umask left of it
            os.fsync(descriptor)
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise CommandError(f"cannot write {path}: {error.strerror}") from None
