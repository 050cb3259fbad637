"""What a restore changes, and what it did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["file", "directory", "symlink"]


@dataclass(frozen=True, slots=True)
class PathFacts:
    """What is known of a file, a directory or a symlink of a tree."""

    kind: Kind
    size_bytes: int
    """Of a file; 0 for others."""
    executable: bool
    mtime_ns: int
    """When a file or a symlink was changed, nanoseconds since 1970; 0 for a directory."""
    target: bytes
    """Where a symlink leads; empty for others."""


@dataclass(frozen=True, slots=True)
class PathChange:
    """A difference between two trees, or between the files of a directory and a tree."""

    path: bytes
    """The path from the root. Its names may be any bytes."""
    before: PathFacts | None
    """None = there is nothing."""
    after: PathFacts | None
    """None = there will be nothing."""

    @property
    def action(self) -> Literal["make", "replace", "delete"]:
        """What leads from one to the other."""
        return "make" if self.before is None else "delete" if self.after is None else "replace"

    def __str__(self) -> str:
        return f"{self.action} {self.path.decode(errors='backslashreplace')}"


@dataclass(frozen=True)
class Restored:
    """What a restore did."""

    made: int
    replaced: int
    deleted: int
    kept: tuple[bytes, ...]
    """Paths that stay as they are, because somebody changed them in the meantime, or put something into them."""
