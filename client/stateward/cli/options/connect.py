"""Options that commands share, and the client they lead to."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stateward.cli.show.output import CommandError
from stateward.errors import ThreadNotFound, ThreadsUnreadable

if TYPE_CHECKING:
    from stateward import Client

SESSION_KEY_MIN, SESSION_KEY_MAX = 16, 64
# A person waits; an agent's client has more patience.
READY_TIMEOUT_S = 3.0
# Somebody who presses Tab waits for less, and a shell that hangs is worse than one that completes nothing.
COMPLETION_TIMEOUT_S = 0.5
COMPLETIONS_MAX = 200
# What a client of all namespaces has in place of one, for commands that look after a whole store or archive.
EVERY_NAMESPACE = ""


@dataclass(frozen=True)
class Globals:
    """What was given before the name of the command."""

    target: str | None
    namespace: str | None
    may_start: bool = True
    session_key_file: str | None = None


def connect(
    context: typer.Context,
    target: str | None,
    namespace: str | None,
    *,
    fallback: str = "default",
    retry_timeout_s: float = 30.0,
    finds: bool = True,
) -> Client:
    """Returns a client for the given options. Options after the command's name override those before it. `fallback` is
    the namespace if no option names one. Without a target it is a client of the daemon that `stateward.open()` uses,
    which is started if need be; `finds=False` starts nothing, and takes the place where the daemon would be."""
    from stateward import Client  # noqa: PLC0415  costs most of a start, and `--help` needs none
    from stateward.opening.commands import find_target, reach  # noqa: PLC0415

    given: Globals = context.obj
    chosen = namespace or given.namespace or fallback
    where = target or given.target or os.environ.get("STATEWARD_TARGET")
    options: dict[str, Any] = {"connect_timeout": READY_TIMEOUT_S, "retry_timeout": retry_timeout_s}
    try:
        if where or not finds:
            client = Client(where or find_target(), namespace=chosen, **options)
        else:
            client = reach(namespace=chosen, start=given.may_start, **options)
    except ValueError as error:
        raise CommandError(f"{'--target' if target or given.target else 'STATEWARD_TARGET'}: {error}") from None
    session = client._session
    if session.settings.keeper is None:
        session.settings = replace(session.settings, waits_for_socket=False)
    if given.session_key_file:
        client._session = session.holding(read_session_key(given.session_key_file))
    return client


def read_session_key(file: str) -> bytes:
    """Returns the session key of held threads in a file: 32 to 128 hex digits."""
    path = Path(file)
    try:
        is_exposed = path.stat().st_mode & stat.S_IRWXO and stat.S_ISREG(path.stat().st_mode)
        text = path.read_text(encoding="ascii").strip()
        key = bytes.fromhex(text)
    except OSError as error:
        raise CommandError(f"cannot read the session key in {file}: {error.strerror}") from None
    except ValueError:
        raise CommandError(f"{file} is no session key: it must have 32 to 128 hex digits") from None
    if not SESSION_KEY_MIN <= len(key) <= SESSION_KEY_MAX:
        raise CommandError(f"{file} is no session key: it has {len(text)} hex digits instead of 32 to 128")
    if is_exposed:
        raise CommandError(f"every user of this machine may use the session key in {file}; run: chmod o= {file}")
    return key


@contextmanager
def archived_names() -> Iterator[None]:
    """Adds a hint to ThreadNotFound, in commands for threads that may be only in the archive."""
    try:
        yield
    except ThreadNotFound as error:
        raise CommandError(f"{error.message}; `stateward archive list` lists what the archive has") from None


def complete_thread(ctx: typer.Context, incomplete: str) -> list[str]:
    """Returns names of threads that begin with the typed text. Returns nothing if no daemon answers at once."""
    try:
        from stateward import Client  # noqa: PLC0415
        from stateward.opening.commands import find_target  # noqa: PLC0415

        options: dict[str, Any] = {}
        chain: list[Any] = [ctx]
        while (parent := chain[-1].parent) is not None:  # a command may stand in a group
            chain.append(parent)
        for context in reversed(chain):
            options |= {name: value for name, value in context.params.items() if value}
        with Client(
            options.get("target") or os.environ.get("STATEWARD_TARGET") or find_target(),
            namespace=options.get("namespace") or "default",
            connect_timeout=COMPLETION_TIMEOUT_S,
            call_timeout=COMPLETION_TIMEOUT_S,
            retry_timeout=COMPLETION_TIMEOUT_S,
        ) as client:
            found, names = client.threads(name_prefix=incomplete, page_size=COMPLETIONS_MAX), list[str]()
            with suppress(ThreadsUnreadable):  # the others are completed
                for info in islice(found, COMPLETIONS_MAX):
                    names.append(info.name)  # what came before the error counts
    except Exception:  # noqa: BLE001  a stack trace would appear in the middle of the command line
        return []
    return sorted(name for name in names if shlex.quote(name) == name)  # the others would not arrive as they are


def filled(given: str | None) -> str | None:
    """Refuses an empty value. It often is a variable of a script that is not set, and would mean the default: another
    namespace, or another daemon."""
    if given == "":
        raise typer.BadParameter("it is empty; leave it out for the default")
    return given


TargetOption = Annotated[
    str | None,
    typer.Option(
        "--target", metavar="URL", callback=filled, help="Where the daemon listens: unix:///path or host:port."
    ),
]
NamespaceOption = Annotated[
    str | None,
    typer.Option(
        "--namespace", "-n", metavar="NAME", callback=filled, help="Namespace of the threads; default: default."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
ThreadArgument = Annotated[
    str, typer.Argument(metavar="THREAD", help="Name of the thread.", autocompletion=complete_thread)
]
OneThreadArgument = Annotated[
    str | None, typer.Argument(metavar="THREAD", help="Only this thread; default: all.", autocompletion=complete_thread)
]
BranchOption = Annotated[str, typer.Option("--branch", "-b", metavar="NAME", help="Branch of the thread.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
