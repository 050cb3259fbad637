"""`stateward keys`: key files for the daemon: 32 random bytes as 64 hex digits, as sidecar/FORMAT.md has it.

Wrapped key files are made by a program of the daemon, which has the packages of the key management services.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from stateward._version import install_command
from stateward.cli.options.catalog import CONTEXT
from stateward.cli.options.connect import JsonOption
from stateward.cli.show.output import CommandError, print_json, say

KEY_BYTES = 32
TOOL = "stateward_sidecar.keytool"
TOOL_S = 120.0
WithOption = Annotated[
    str | None,
    typer.Option(
        "--with", metavar="SERVICE:KEY", help="Wrap the key: awskms:ARN or awskms:alias/NAME, or vault:MOUNT/NAME."
    ),
]
ArchiveOption = Annotated[
    str | None,
    typer.Option("--archive", metavar="URL", help="The archive that the wrapped key opens, if there is one already."),
]
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
      stateward keys new /etc/stateward/wrapped.key --with awskms:alias/agents
      stateward-sidecar --key awskms:/etc/stateward/wrapped.key
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    if context.invoked_subcommand is None:
        print(context.get_help())


@keys.command(short_help="Make a new key file that only you can read.")
def new(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where the key is written; must not exist.")],
    service: WithOption = None,
    archive: ArchiveOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a new key file that only you can read, for `stateward-sidecar --key-file`.

    Needs no daemon. Keep a copy in another place: without the key the data are lost. Keep it secret: with the key,
    anybody who has the data can read them.

    With `--with`, a key management service wraps the key, and only the service can open the file. The key itself is
    nowhere else, so who loses the service's key, or the right to use it, loses the data.

    \b
    Examples:
      stateward keys new data.key
      stateward keys new wrapped.key --with awskms:alias/agents
      stateward keys new wrapped.key --with vault:transit/agents
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    if service is not None:
        _tell_wrapped(_wrap(None, file, service, archive), as_json=as_json)
        return
    if archive is not None:
        raise CommandError("--archive is for a wrapped key file; give --with, too, or leave it out")
    key = os.urandom(KEY_BYTES)
    write_key_file(file, key)
    fingerprint = hashlib.sha256(FINGERPRINT_PREFIX + key).hexdigest()[:16]
    if as_json:
        print_json({"file": str(file), "key_id": fingerprint})
        return
    say(f"{file} holds a new key, readable by you only; its fingerprint is {fingerprint}")
    say("Keep a copy of it elsewhere: without it the data are lost.")


@keys.command(short_help="Wrap the key of a key file with a key management service.")
def wrap(
    key_file: Annotated[Path, typer.Argument(metavar="KEY", help="The key file, plain or wrapped.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The wrapped key file; must not exist.")],
    service: WithOption = None,
    archive: ArchiveOption = None,
    as_json: JsonOption = False,
) -> None:
    """Wrap the key of a key file with a key of AWS KMS or Vault. The data keep their key, and nothing is rewritten.

    Needs no daemon. If the data have an archive, give its URL: the service binds the wrapped key to it, and the daemon
    takes it for no other archive. A wrapped KEY is opened by its service and wrapped anew, for the same archive.

    \b
    Examples:
      stateward keys wrap data.key wrapped.key --with awskms:alias/agents --archive s3://bucket/agents
      stateward keys wrap wrapped.key moved.key --with vault:transit/agents
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    if service is None:
        raise CommandError("--with is missing: it names the service and its key, such as awskms:alias/agents")
    _tell_wrapped(_wrap(key_file, file, service, archive), as_json=as_json)


def _wrap(key_file: Path | None, file: Path, service: str, archive: str | None) -> dict[str, Any]:
    if importlib.util.find_spec("stateward_sidecar") is None or importlib.util.find_spec("cryptography") is None:
        raise CommandError(f"--with needs the daemon's packages; run: {install_command('sidecar')}")
    if archive is not None and "://" not in archive:
        archive = Path(archive).expanduser().absolute().as_uri()
    order = {
        "with": service, "file": str(file), "from": str(key_file) if key_file else "", "archive": archive or "",
        "archive_id": "",
    }  # fmt: skip
    try:
        done = subprocess.run(  # noqa: S603  this package's own program
            [sys.executable, "-m", TOOL], input=json.dumps(order), capture_output=True, text=True, timeout=TOOL_S,
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CommandError(f"cannot wrap the key: {type(error).__name__}") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise CommandError(lines[-1].removeprefix("stateward keys: ") if lines else "cannot wrap the key")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _tell_wrapped(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    say(f"{found['file']} holds the key {found['key_id']}, wrapped by {found['provider']} with {found['key']}")
    say(f"It is for the archive {found['archive_id']}. Start the daemon with --key {found['provider']}:{found['file']}")


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
