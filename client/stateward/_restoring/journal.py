"""The journal of a restore: a file below the root that a killed restore is finished by, or taken back.

It is written whole before the first change, and removed after the last one. It says what was at each path and what will
be, never how far the restore came: the files themselves tell that.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError

from stateward._restoring.paths import WORK, check, protected, shown
from stateward._restoring.planning import Change
from stateward._restoring.root import Root
from stateward._workspace.objects import Entry
from stateward.errors import Corrupt, RestoreUnfinished
from stateward.v1.workspace_pb2 import TreeEntry

FORMAT = 1
NAME, DRAFT = b"journal", b"journal.new"
JOURNAL_BYTES_MAX = 1 << 30


@dataclass(frozen=True, slots=True)
class Planned:
    """A change, and what was known of its place before."""

    change: Change
    mark: tuple[int, ...] | None
    """`Seen.mark` of what was there; None = nothing was there."""
    mode: int | None
    """The mode of the file that was there."""


@dataclass(frozen=True, slots=True)
class Journal:
    """What a restore does."""

    facts: dict[str, Any]
    """What the caller needs to go on, such as the thread and the version of the undo."""
    planned: tuple[Planned, ...]


@contextmanager
def locked(root: Root, *, new: bool) -> Iterator[int]:
    """Opens the directory of the journal, which only one process may do at a time. `new`: makes it.

    Raises RestoreUnfinished if another process restores now, and if `new` and a restore was not finished.
    """
    import fcntl  # noqa: PLC0415  Windows has none, and `Root` has refused it

    if new:
        with root.directory(b"") as fd, suppress(FileExistsError):
            os.mkdir(WORK, 0o700, dir_fd=fd)
    with root.directory(WORK) as fd:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise unfinished(root, "another process restores files there now") from None
        if new and is_there(root):
            raise unfinished(root, "a restore there was not finished: resume it, or take it back")
        yield fd


def is_there(root: Root) -> bool:
    """Whether a restore of the directory was begun and not finished."""
    return root.see(WORK + b"/" + NAME) is not None


def write(root: Root, directory: int, journal: Journal) -> None:
    """Writes the journal. After that the restore can be finished or taken back, whatever happens."""
    with suppress(FileNotFoundError):
        os.unlink(DRAFT, dir_fd=directory)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(DRAFT, flags, 0o600, dir_fd=directory), "w", encoding="ascii") as file:
        json.dump({"format": FORMAT, "changes": len(journal.planned), **journal.facts}, file)
        for each in journal.planned:
            file.write("\n")
            json.dump(_packed(each), file)
        file.flush()
        os.fsync(file.fileno())
    os.rename(DRAFT, NAME, src_dir_fd=directory, dst_dir_fd=directory)
    os.fsync(directory)
    root.sync([b""])


def read(directory: int) -> Journal:
    """Reads the journal. Raises Corrupt if it is damaged."""
    with os.fdopen(os.open(NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory), "rb") as file:
        text = file.read(JOURNAL_BYTES_MAX)
    try:
        head, *lines = text.decode("ascii").split("\n")
        facts = json.loads(head)
        if facts.pop("format") != FORMAT or facts.pop("changes") != len(lines):
            raise ValueError("it is cut off, or of another version")
        planned = tuple(_unpacked(json.loads(line), has_git=facts.get("has_git") is True) for line in lines)
    except (ValueError, KeyError, TypeError, AttributeError, DecodeError) as error:
        raise Corrupt(f"the journal of the restore is damaged: {error}; nothing was changed") from None
    return Journal(facts, planned)


def remove(root: Root, directory: int) -> None:
    """Removes the journal and its directory: the restore is over."""
    for name in (DRAFT, NAME):
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=directory)
    os.fsync(directory)
    root.remove_directory(WORK)
    root.sync([b""])


def unfinished(root: Root, why: str) -> RestoreUnfinished:
    """Returns the error for a directory in which a restore is not over."""
    return RestoreUnfinished(f"{shown(root.path)}: {why}", metadata={"root": shown(root.path)})


def _packed(each: Planned) -> list[Any]:
    change = each.change
    return [_text(change.path), _entry_text(change.before), _entry_text(change.after), each.mark, each.mode]


def _unpacked(found: list[Any], *, has_git: bool) -> Planned:
    path, before, after, mark, mode = found
    change = Change(base64.b64decode(path, validate=True), _entry(before), _entry(after))
    check(change.path)
    if protected(change.path, has_git=has_git):
        raise ValueError(f"it names {change.path!r}")
    return Planned(change, None if mark is None else tuple(map(int, mark)), None if mode is None else int(mode))


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _entry_text(entry: Entry | None) -> str | None:
    return None if entry is None else _text(entry.message().SerializeToString(deterministic=True))


def _entry(text: str | None) -> Entry | None:
    return None if text is None else Entry.of(TreeEntry.FromString(base64.b64decode(text, validate=True)))
