"""How a version is named on the command line: `12`, a tag, `tag:12` for a tag that looks like a number, `id:NAME` for
the checkpoint id that its writer gave it, `step:14` for the newest version of the agent's own step 14, or the name of a
branch for its newest version (`branch:NAME` where a tag has the same name)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from stateward.cli.show.output import CommandError
from stateward.errors import VersionNotFound
from stateward.models import CheckpointId

if TYPE_CHECKING:
    from stateward import Checkpoint, Thread, ThreadInfo

VERSION_DIGITS_MAX, DIGEST_DIGITS = 19, 32
EXPECTED = "--expected"
MAIN = "main"
PREFIXES = "step", "id", "tag", "branch"
FORMS = "12, a tag, step:14, id:CHECKPOINT_ID, or a branch"

AtOption = Annotated[
    str | None, typer.Option("--at", metavar="VERSION", help=f"A version: {FORMS}; default: the newest.")
]


def check_name(name: str) -> None:
    """Refuses a name for a tag or a branch that --at would read as something else. Raises typer.BadParameter. Programs
    can give such names all the same: `tag:NAME` and `branch:NAME` read them."""
    kind, separator, _ = name.partition(":")
    why = ""
    if not name:
        why = "it is empty"
    elif name.removeprefix("-").isdecimal():
        why = f"--at reads {name!r} as the number of a version"
    elif separator and kind in PREFIXES:
        why = f"--at reads {name!r} as a {kind}" if kind != "id" else f"--at reads {name!r} as a checkpoint id"
    elif ".." in name:
        why = f"`stateward diff` reads {name!r} as two versions"
    if why:
        raise typer.BadParameter(f"{why}; choose another name", param_hint="NAME")


def read_where(text: str, option: str = "--at", least: int = 1) -> int | str | CheckpointId:
    """Returns the version as `hydrate` and `checkpoints.get` take it. Raises CommandError if a number is not valid."""
    kind, separator, name = text.partition(":")
    if separator and kind in ("id", "tag"):
        if not name:
            raise CommandError(f"{option} {text} lacks the name after the colon; a version is {FORMS}")
        return CheckpointId(name) if kind == "id" else name
    if not text.removeprefix("-").isdecimal():
        if not text:
            raise CommandError(f"{option} is empty; a version is {FORMS}")
        return text
    if len(text) > VERSION_DIGITS_MAX or not least <= int(text) < 1 << 63:
        counted = "from 1" if least else "from 1, and 0 is the empty state"
        raise CommandError(f"{option} {text} is not a version; versions count {counted}")
    return int(text)


def find_version(thread: Thread, text: str | None, option: str = "--at", least: int = 1) -> int | None:
    """The number of a version; None = none was given, which means the newest. Asks the daemon about names only."""
    if text is None:
        return None
    text.encode()  # bytes that are no UTF-8 are refused before anything is asked
    kind, separator, name = text.partition(":")
    if separator and kind == "step":
        return _find_step(thread, name, option)
    if separator and kind == "branch":
        return _find_branch(thread, name, option)
    where = read_where(text, option, least)
    if where == text:  # a bare name
        info = thread.info()
        if text not in {each.name for each in info.tags} and text in {each.name for each in info.branches}:
            return _find_branch(thread, text, option)
    return where if isinstance(where, int) else thread.checkpoints.get(where).version


def find_checkpoint(thread: Thread, text: str | None, option: str = "--at") -> Checkpoint | None:
    """Returns the version with its digest, for what is then done with it: another version may get its number. None =
    none was given."""
    version = find_version(thread, text, option)
    return None if version is None else thread.checkpoints.get(version)


def find_expected(thread: Thread, text: str | None, least: int = 1) -> Checkpoint | int | None:
    """Returns what --expected names: the number that was given, or with a digest the version that has both. Raises
    CommandError if it has another digest. None = nothing was given."""
    if text is None:
        return None
    number, separator, digest = text.partition(":")
    where = read_where(number, EXPECTED, least)
    if not isinstance(where, int):
        raise CommandError(f"{EXPECTED} {text} is neither VERSION nor VERSION:DIGEST, such as 15 or 15:{'0a' * 16}")
    if not separator:
        return where
    if len(digest) != DIGEST_DIGITS or not set(digest.lower()) <= set("0123456789abcdef"):
        raise CommandError(f"{EXPECTED} {text}: a digest has {DIGEST_DIGITS} hexadecimal digits")
    found = thread.checkpoints.get(where)
    if found.digest.hex() != digest.lower():
        raise CommandError(
            f"{EXPECTED} {text}: version {where} of thread {thread.name!r} has the digest {found.digest.hex()}; "
            "nothing was changed, look again"
        )
    return found


@contextmanager
def looking_at(thread: Thread) -> Iterator[None]:
    """If a version is not found in a thread without versions, raises CommandError that says so."""
    try:
        yield
    except VersionNotFound:
        require_versions(thread.info())
        raise


def require_versions(info: ThreadInfo) -> None:
    """Raises CommandError for a thread that a record, an effect, a lease or a signal created, and that has no version
    yet."""
    if info.last_version:
        return
    lists = [f"`stateward records list {info.name}` lists its records"] if info.records else []
    if info.effects or not lists:
        lists.append("`stateward effects` lists what its tools did")
    raise CommandError(f"thread {info.name!r} has no version yet; {', '.join(lists)}")


def _find_step(thread: Thread, text: str, option: str) -> int:
    """The newest version of a step, on the handle's branch and what that was made from."""
    if not text.removeprefix("-").isdecimal():
        raise CommandError(f"{option} step:{text} is not a step; steps are whole numbers")
    with thread.history(newest_first=True, slots=[]) as line:
        for checkpoint, _, _ in line:
            if checkpoint.step == int(text):
                return checkpoint.version
    raise CommandError(f"{option}: no version of thread {thread.name!r} on this branch has step {text}")


def _find_branch(thread: Thread, name: str, option: str) -> int:
    branches = {each.name: each.version for each in thread.info().branches}
    if name not in branches:
        raise CommandError(f"{option}: thread {thread.name!r} has no branch {name!r}; it has: {', '.join(branches)}")
    return branches[name]
