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
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from stateward._version import install_command
from stateward.cli.options.catalog import CONTEXT
from stateward.cli.options.connect import JsonOption, TargetOption, ThreadArgument, connect, filled
from stateward.cli.options.connect import NamespaceOption as ConnectNamespaceOption
from stateward.cli.show.output import CommandError, clean, counted, note, print_json, say
from stateward.cli.show.ticker import Ticker

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
DataDirOption = Annotated[
    Path | None, typer.Option("--data-dir", metavar="DIR", help="Data without an archive; no daemon may run there.")
]
RootOption = Annotated[bool, typer.Option("--root", help="The root key inside the archive.")]
NamespaceOption = Annotated[
    str | None, typer.Option("--namespace", metavar="NAME", callback=filled, help="The key of this namespace.")
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
    archive: ArchiveOption = None,
    key: SourceOption = None,
    key_file: KeyFileOption = None,
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", metavar="NAME", callback=filled, help="Show the keys of this namespace, too."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show which keys open an archive, oldest first, and which sidecars were started with which of them.

    Needs no daemon, but one of the keys. A sidecar that was killed, or that stopped with something that was not
    archived, is shown until it starts again. Root keys and keys
    of namespaces have numbers: the highest is in use, and the others are shown until they are retired.

    \b
    Examples:
      stateward keys list --archive s3://bucket/agents --key-file data.key
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    place = {"archive": _archive(archive), "namespace": namespace or ""}
    _tell_keys(_ask(do="list", key=_source(key, key_file), **place), as_json=as_json)


@keys.command(short_help="Change a key: yours, the root key, or that of a namespace.")
def rotate(
    to: Annotated[
        str | None, typer.Option("--to", metavar="SOURCE", help="The new key: file:PATH, awskms:PATH and so on.")
    ] = None,
    root: RootOption = False,
    namespace: NamespaceOption = None,
    now: Annotated[
        bool, typer.Option("--now", help="With --namespace: seal all HEADs now, and not with their next ship.")
    ] = False,
    archive: ArchiveOption = None,
    data_dir: DataDirOption = None,
    key: SourceOption = None,
    key_file: KeyFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change a key. Nothing stops, and the command may be repeated if it was interrupted.

    `--to` lets another key of yours open an archive, too; nothing below the root key is written anew. Then restart each
    sidecar with the new key, when you like: until `stateward keys retire`, both keys open the data. Data without an
    archive (`--data-dir`) are opened by the new key alone from then on.

    `--root` makes a new root key, which wraps the keys of all namespaces from then on, and `--namespace` a new key of a
    namespace, which wraps the keys of its threads. Running sidecars follow by themselves. Then `stateward keys retire`
    removes the old one.

    \b
    Examples:
      stateward keys rotate --archive s3://bucket/agents --key-file old.key --to file:new.key
      stateward keys rotate --root --archive s3://bucket/agents --key-file data.key
      stateward keys rotate --namespace team-a --now --archive s3://bucket/agents --key-file data.key
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    if (archive is None) == (data_dir is None):
        raise CommandError("give --archive, or --data-dir for data without one")
    if [to is not None, root, namespace is not None].count(True) != 1:
        raise CommandError("say which key: --to SOURCE, --root, or --namespace NAME")
    if now and (namespace is None or archive is None):
        raise CommandError("--now is for --namespace with --archive")
    place = {"archive": "" if archive is None else _archive(archive), "data_dir": str(data_dir or "")}
    if to is None:
        what = {"what": "root" if root else "namespace", "namespace": namespace or "", "now": now}
        found = _ask(do="change", key=_source(key, key_file), **what, **place)
        if as_json:
            print_json(found)
        else:
            _tell_changed(found, "the archive" if root else f"the namespace {namespace}", is_shared=archive is not None)
        return
    found = _ask(do="rotate", key=_source(key, key_file), to=to, **place)
    if not as_json:
        how = "now opens" if found["is_new"] else "already opens"
        say(f"{found['key_id']} {how} {'the archive' if archive is not None else 'the data, alone'}")
        if archive is not None:
            say("Start each sidecar with it, and then retire the old key.")
    _tell_keys(found, as_json=as_json)


@keys.command(short_help="Take a key away that shall no longer open an archive.")
def retire(
    key_id: Annotated[
        str | None, typer.Argument(metavar="[KEY_ID]", help="A key of yours, as `stateward keys list` shows it.")
    ] = None,
    root: RootOption = False,
    namespace: NamespaceOption = None,
    archive: ArchiveOption = None,
    key: SourceOption = None,
    key_file: KeyFileOption = None,
    force: Annotated[
        bool, typer.Option("--force", help="Although sidecars may use it, because they are gone for good.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Take a key away that shall no longer open an archive. Give the key that stays with `--key-file` or `--key`.

    Refuses while a sidecar runs that was started with the old key, because its next start would fail, and after one
    stopped with something that was not archived, which perhaps only the old key opens. Old versions of objects below
    `_keys/`, which some buckets keep, still open with the old key.

    `--root` and `--namespace` remove the old root key, or the old key of a namespace, after whatever needs it was
    wrapped with the new one. They refuse for 20 minutes after the change, because sidecars may use the old one so long,
    and `--namespace` while it wraps the key of a thread that only its user can open.

    \b
    Examples:
      stateward keys retire 0123456789abcdef --archive s3://bucket/agents --key-file new.key
      stateward keys retire --root --archive s3://bucket/agents --key-file data.key
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    if [key_id is not None, root, namespace is not None].count(True) != 1:
        raise CommandError("say which key: KEY_ID, --root, or --namespace NAME")
    if key_id is None:
        what = {"what": "root" if root else "namespace", "namespace": namespace or "", "force": force}
        found = _ask(do="end", key=_source(key, key_file), archive=_archive(archive), **what)
        if as_json:
            print_json(found)
        else:
            say(f"only key {found['generation']} of {'the archive' if root else f'the namespace {namespace}'} is left")
            say(_counts(found))
        return
    found = _ask(do="retire", key=_source(key, key_file), archive=_archive(archive), key_id=key_id, force=force)
    if not as_json:
        say(f"{key_id} does not open the archive any more")
    _tell_keys(found, as_json=as_json)


@keys.command(short_help="Give a thread another data key, and destroy the old one.")
def rekey(
    context: typer.Context,
    thread: ThreadArgument,
    as_json: JsonOption = False,
    namespace: ConnectNamespaceOption = None,
    target: TargetOption = None,
) -> None:
    """Give a thread another data key, and destroy the old one. Needs the daemon; with an archive, one that may own it.

    All of the thread is sealed anew under another uid, and then the name leads to the new thread. Versions, branches,
    tags, records, effects, signals, blobs, leases and claims stay as they are; digests and the uid change. An agent
    that works on the thread waits meanwhile, and then reads it again. Blobs keep their own keys.

    \b
    Examples:
      stateward keys rekey booking-42
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    with connect(context, target, namespace) as client, Ticker("sealing anew"):
        done = client.rekey(thread)
    if as_json:
        print_json(asdict(done))
    else:
        sealed = counted(done.entries, "entry", "entries")
        say(f"{clean(thread)} has uid {done.uid} and another key; sealed anew: {sealed}")
        say(f"{done.old_uid} is deleted, and its key destroyed")


def _tell_changed(found: dict[str, Any], where: str, *, is_shared: bool) -> None:
    is_new = "is in use" if found["is_new"] else "is in use already, and its change is complete"
    say(f"key {found['generation']} of {where if is_shared else 'these data'} {is_new}")
    if not is_shared:
        return
    say(_counts(found))
    if found["held"]:
        say(f"{counted(found['held'], 'thread')} that only users can open will follow when their users come")
    say("Running sidecars follow by themselves. Retire the old key later.")


def _counts(found: dict[str, Any]) -> str:
    each = (("namespaces", "namespace", ""), ("keys", "key of a thread", "keys of threads"), ("heads", "HEAD", ""))
    done = [counted(found[name], one, many) for name, one, many in each if found[name]]
    return f"wrapped or sealed anew: {', '.join(done) or 'nothing'}"


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
    for kind, name in (("roots", "root key"), ("namespace_keys", "key of the namespace")):
        for each in found.get(kind, ()):
            added = f"since {each['add_time'][:19]}Z" if each["add_time"] else "since the beginning"
            say(f"{name} {each['generation']}  {added}")
    for each in found["sidecars"]:
        line = f"  {clean(each['owner_id'])}  {each['key_id']}  since {each['start_time'][:19]}Z"
        if each["stop_time"]:
            left = counted(each["unarchived_threads"], "thread")
            line += f", stopped {each['stop_time'][:19]}Z with {left} of which its disk alone has something"
        say(line)


def _wrap(key_file: Path | None, file: Path, service: str, archive: str | None) -> dict[str, Any]:
    place = "" if archive is None else _archive(archive)
    source = str(key_file) if key_file else ""
    return _ask(**{"do": "wrap", "with": service, "file": str(file), "from": source, "archive": place})


def _ask(**order: object) -> dict[str, Any]:
    """Lets the daemon's program carry out an order. Raises CommandError."""
    if importlib.util.find_spec("stateward_sidecar") is None or importlib.util.find_spec("cryptography") is None:
        raise CommandError(f"this needs the daemon's packages; run: {install_command('sidecar')}")
    try:
        done = _run(json.dumps(order))
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CommandError(f"the daemon's program does not end: {type(error).__name__}") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise CommandError(lines[-1].removeprefix("stateward keys: ") if lines else "the daemon's program failed")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _run(order: str) -> subprocess.CompletedProcess[str]:
    """Runs the daemon's program, and shows how far it has come. Lets it run as long as it says something."""
    command = [sys.executable, "-m", TOOL]
    pipe, said, answer = subprocess.PIPE, list[str](), list[str]()
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:  # noqa: S603  our own
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        reader = threading.Thread(target=lambda out: answer.append(out.read()), args=(process.stdout,))
        silence = threading.Timer(TOOL_S, process.kill)
        reader.start()
        silence.start()
        process.stdin.write(order)
        process.stdin.close()
        for line in process.stderr:
            silence.cancel()
            silence = threading.Timer(TOOL_S, process.kill)
            silence.start()
            if line.startswith("- "):
                note(line[2:].strip())
            else:
                said.append(line)
        reader.join()
        process.wait()
        silence.cancel()
    return subprocess.CompletedProcess(command, process.returncode, "".join(answer), "".join(said))


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
