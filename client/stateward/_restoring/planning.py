"""What a restore would change, and what it keeps. Nothing is read or written here."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from stateward._restoring.paths import Listing, ancestors, in_order, protected
from stateward._workspace.objects import DIRECTORY, FILE, SYMLINK, Entry


@dataclass(frozen=True, slots=True)
class Change:
    """What a restore does at one path."""

    path: bytes
    before: Entry | None
    """What is there; None = nothing."""
    after: Entry | None
    """What will be there; None = nothing."""

    @property
    def action(self) -> Literal["make", "replace", "delete"]:
        """What is done in one word."""
        return "make" if self.before is None else "delete" if self.after is None else "replace"

    @property
    def is_conflict(self) -> bool:
        """Whether a directory takes the place of something else, or the reverse."""
        return (
            self.before is not None
            and self.after is not None
            and (self.before.kind == DIRECTORY) != (self.after.kind == DIRECTORY)
        )

    def reversed(self) -> Change:
        """The change that goes back."""
        return Change(self.path, self.after, self.before)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The files that are there, compared with those of a tree."""

    changes: tuple[Change, ...]
    """In the order of their paths, parents first."""
    ignored: tuple[bytes, ...]
    """Kept: the rules leave these out. A directory stands for all below it."""
    unheld: tuple[bytes, ...]
    """Kept: no snapshot has these, such as sockets, or files that could not be read."""
    omitted: tuple[bytes, ...]
    """Paths of the tree that are not written: something that is kept is in their place, or they are a `.git`, which
    stands for all below it."""
    blocked: tuple[bytes, ...]
    """Directories that would have to give their place to a file, and hold something that is kept."""


def compare(
    now: Listing,
    wanted: Listing,
    ignored: Collection[bytes] = (),
    unheld: Collection[bytes] = (),
    *,
    has_git: bool = False,
) -> Comparison:
    """Returns what makes the files of `now` those of `wanted`. Nothing at or below `ignored` and `unheld` changes, nor
    in a `.git` unless `has_git`: that is for an empty directory alone."""
    kept = {*ignored, *unheld}
    holders = {above for path in kept for above in ancestors(path)}
    changes, omitted, blocked, hidden = list[Change](), list[bytes](), list[bytes](), set[bytes]()
    for path in sorted({*now, *wanted}, key=in_order):
        before, after = now.get(path), wanted.get(path)
        if are_equal(before, after):
            continue
        if top := protected(path, has_git=has_git):
            if after is not None and top not in hidden:
                hidden.add(top)
                omitted.append(top)
            continue
        if path in kept or any(above in kept for above in ancestors(path)):
            if after is not None:
                omitted.append(path)
            continue
        if path in holders:  # a directory that must stay, for what is in it
            if after is not None and after.kind != DIRECTORY:
                blocked.append(path)
            continue
        changes.append(Change(path, before, after))
    return Comparison(
        tuple(changes), tuple(sorted(ignored, key=in_order)), tuple(sorted(unheld, key=in_order)), tuple(omitted),
        tuple(blocked),
    )  # fmt: skip


def are_equal(one: Entry | None, other: Entry | None) -> bool:
    """Whether a restore has nothing to do between the two. Directories are compared by what is in them."""
    if one is None or other is None:
        return one is other
    return facts(one) == facts(other) and (one.kind == DIRECTORY or same_content(one, other))


def facts(entry: Entry) -> tuple[object, ...]:
    """What `lstat` tells of an entry: equal files have equal facts."""
    if entry.kind == FILE:
        return (FILE, entry.size_bytes, entry.mtime_ns, entry.executable)
    return (SYMLINK, entry.target, entry.mtime_ns) if entry.kind == SYMLINK else (DIRECTORY,)


def same_content(one: Entry, other: Entry) -> bool:
    """Whether two files have the same chunks, or two symlinks lead to the same place."""
    return one.chunks == other.chunks and one.target == other.target
