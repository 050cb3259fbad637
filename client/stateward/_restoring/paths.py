"""Which paths a tree may have, and which of them a restore never writes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from stateward._workspace.objects import DIRECTORY, Entry, WrongObject, is_name
from stateward.errors import Corrupt
from stateward.v1 import workspace_pb2 as workspace

WORK: Final = b".stateward-restore"
"""The directory of the journal below the root; names of temporary files begin with it, too. No snapshot has them."""

Listing = dict[bytes, Entry]


def listing(nodes: Iterable[workspace.TreeNode], below: bytes = b"") -> Listing:
    """Returns the entries of a tree by their paths. Raises Corrupt if a path could lead out of the root, or if it has
    no parent: names are those of somebody's files, and a listing may be wrong. `below` is the directory that was
    listed; empty = the root."""
    found: Listing = {}
    for node in nodes:
        check(node.path)
        parent, _, name = node.path.rpartition(b"/")
        if name != node.entry.name or node.path in found:
            raise wrong(node.path, "it is listed under another name, or twice")
        if parent != below and (parent not in found or found[parent].kind != DIRECTORY):
            raise wrong(node.path, "its parent is no directory of the tree")
        try:
            found[node.path] = Entry.of(node.entry)
        except WrongObject as error:
            raise wrong(node.path, f"its entry {error}") from None
    return found


def check(path: bytes) -> None:
    """Raises Corrupt unless each part is a name: 1 to 255 bytes without zero bytes, not "." and not ".."."""
    for name in path.split(b"/"):
        if not is_name(name):
            raise wrong(path, f"{name[:300]!r} is no name")


def wrong(path: bytes, why: str) -> Corrupt:
    """Returns the error for a path that no tree may have."""
    return Corrupt(f"the tree has the path {path[:300]!r}, and {why}; nothing was written")


def protected(path: bytes, *, has_git: bool = False) -> bytes:
    """Returns the part of a path that a restore does not write; empty = it may write all. That is `.git` in any
    spelling, unless `has_git`, and the restore's own files, with what is in them."""
    names = path.split(b"/")
    for number, name in enumerate(names, 1):
        if name.startswith(WORK) or (not has_git and name.lower() == b".git"):
            return b"/".join(names[:number])
    return b""


def ancestors(path: bytes) -> Iterable[bytes]:
    """Returns the directories above a path, the nearest first, without the root."""
    while b"/" in path:
        path = path.rpartition(b"/")[0]
        yield path


def in_order(path: bytes) -> list[bytes]:
    """The key that sorts paths as ReadTree does: parents first, then names by their bytes."""
    return path.split(b"/")


def shown(path: bytes) -> str:
    """Returns a path for a message."""
    return path.decode("utf-8", "backslashreplace") or "."
