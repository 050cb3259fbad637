"""`stateward keys`: key files for the daemon: 32 random bytes as 64 hex digits, as sidecar/FORMAT.md has it.

All else is done by a program of the daemon, which has the packages of the key management services and of the buckets.
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
from stateward.cli.show.output import CommandError, clean, counted, print_json, say

KEY_BYTES = 32
TOOL = "stateward_sidecar.keytool"
TOOL_S = 120.0
SourceOption = Annotated[
    str | None,
    typer.Option("--key", metavar="SOURCE", envvar="STATEWARD_KEY", help="The key, as stateward-sidecar takes it."),
]
KeyFileOption = Annotated[
    Path | None,
    typer.Option("--key-file", metavar="FILE", envvar="STATEWARD_KEY_FILE", help="The key: short for --key file:FILE."),
]
WithOption = Annotated[
    str | None,
    typer.Option(
        "--with", metavar="SERVICE:KEY", help="Wrap the key: awskms:ARN or awskms:alias/NAME, or vault:MOUNT/NAME."
    ),
]
ArchiveOption = Annotated[
    str | None,
    typer.Option("--archive", metavar="URL", help="URL of the archive; a wrapped key opens no other one."),
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
    takes it for no other archive. A wrapped KEY is wrapped anew for the same archive. Within one service the key does
    not leave it, if the service allows that; else it is opened, and wrapped by the other one.

    \b
    Examples:
      stateward keys wrap data.key wrapped.key --with awskms:alias/agents --archive s3://bucket/agents
      stateward keys wrap wrapped.key moved.key --with vault:transit/agents
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    if service is None:
        raise CommandError("--with is missing: it names the service and its key, such as awskms:alias/agents")
    _tell_wrapped(_wrap(key_file, file, service, archive), as_json=as_json)


@keys.command("list", short_help="Show which keys open an archive, and who uses them.")
def list_keys(
    archive: ArchiveOption = None, key: SourceOption = None, key_file: KeyFileOption = None, as_json: JsonOption = False
) -> None:
    """Show which keys open an archive, oldest first, and which sidecars were started with which of them.

    Needs no daemon, but one of the keys. A sidecar that was killed is shown until it starts again.

    \b
    Examples:
      stateward keys list --archive s3://bucket/agents --key-file data.key
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    _tell_keys(_ask(do="list", key=_source(key, key_file), archive=_archive(archive)), as_json=as_json)


@keys.command(short_help="Let another key open an archive, too.")
def rotate(
    to: Annotated[str, typer.Option("--to", metavar="SOURCE", help="The new key: file:PATH, awskms:PATH and so on.")],
    archive: ArchiveOption = None,
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", metavar="DIR", help="Data without an archive; no daemon may run there.")
    ] = None,
    key: SourceOption = None,
    key_file: KeyFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let another key open an archive, too. Nothing stops, and nothing below the root key is written anew.

    Then restart each sidecar with the new key, when you like: until `stateward keys retire`, both keys open the data.
    The command may be repeated. Data without an archive (`--data-dir`) are opened by the new key alone from then on.

    \b
    Examples:
      stateward keys rotate --archive s3://bucket/agents --key-file old.key --to file:new.key
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    if (archive is None) == (data_dir is None):
        raise CommandError("give --archive, or --data-dir for data without one")
    place = {"archive": "" if archive is None else _archive(archive), "data_dir": str(data_dir or "")}
    found = _ask(do="rotate", key=_source(key, key_file), to=to, **place)
    if not as_json:
        how = "now opens" if found["is_new"] else "already opens"
        say(f"{found['key_id']} {how} {'the archive' if archive is not None else 'the data, alone'}")
        if archive is not None:
            say("Start each sidecar with it, and then retire the old key.")
    _tell_keys(found, as_json=as_json)


@keys.command(short_help="Take a key away that shall no longer open an archive.")
def retire(
    key_id: Annotated[str, typer.Argument(metavar="KEY_ID", help="As `stateward keys list` shows it.")],
    archive: ArchiveOption = None,
    key: SourceOption = None,
    key_file: KeyFileOption = None,
    force: Annotated[
        bool, typer.Option("--force", help="Although sidecars use it, because they are gone for good.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Take a key away that shall no longer open an archive. Give the key that stays with `--key-file` or `--key`.

    Refuses while a sidecar runs that was started with the old key: its next start would fail. Old versions of the
    object `_keys/root`, which some buckets keep, still open with the old key.

    \b
    Examples:
      stateward keys retire 0123456789abcdef --archive s3://bucket/agents --key-file new.key
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    found = _ask(do="retire", key=_source(key, key_file), archive=_archive(archive), key_id=key_id, force=force)
    if not as_json:
        say(f"{key_id} does not open the archive any more")
    _tell_keys(found, as_json=as_json)


def _source(key: str | None, key_file: Path | None) -> str:
    if (key is None) == (key_file is None):
        raise CommandError("give the key that opens the archive, with --key-file or --key")
    return key or f"file:{key_file}"


def _archive(url: str | None) -> str:
    if url is None:
        raise CommandError("--archive is missing: it says where the archive is")
    return url if "://" in url else Path(url).expanduser().absolute().as_uri()


def _tell_keys(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    for key_id in found["keys"]:
        count = sum(each["key_id"] == key_id for each in found["sidecars"])
        say(f"{key_id}  {counted(count, 'sidecar')}")
    for each in found["sidecars"]:
        say(f"  {clean(each['owner_id'])}  {each['key_id']}  since {each['start_time'][:19]}Z")


def _wrap(key_file: Path | None, file: Path, service: str, archive: str | None) -> dict[str, Any]:
    place = "" if archive is None else _archive(archive)
    source = str(key_file) if key_file else ""
    return _ask(**{"do": "wrap", "with": service, "file": str(file), "from": source, "archive": place})


def _ask(**order: object) -> dict[str, Any]:
    """Lets the daemon's program carry out an order. Raises CommandError."""
    if importlib.util.find_spec("stateward_sidecar") is None or importlib.util.find_spec("cryptography") is None:
        raise CommandError(f"this needs the daemon's packages; run: {install_command('sidecar')}")
    try:
        done = subprocess.run(  # noqa: S603  this package's own program
            [sys.executable, "-m", TOOL], input=json.dumps(order), capture_output=True, text=True, timeout=TOOL_S,
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CommandError(f"the daemon's program does not end: {type(error).__name__}") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise CommandError(lines[-1].removeprefix("stateward keys: ") if lines else "the daemon's program failed")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _tell_wrapped(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    say(f"{found['file']} holds the key {found['key_id']}, wrapped by {found['provider']} with {found['key']}")
    if found["rewrapped"]:
        say("The service wrapped it anew by itself: the key did not leave it.")
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
