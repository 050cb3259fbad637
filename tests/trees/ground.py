"""Directories of tests as listings and chunks, and the restores of them without a daemon."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from tests.trees.yard import Link, Made, file_entry

from stateward._restoring import running
from stateward._restoring.journal import Journal
from stateward._restoring.paths import WORK, Listing, listing
from stateward._restoring.planning import Comparison, compare
from stateward._restoring.stepping import Done
from stateward.v1.workspace_pb2 import (
    TREE_ENTRY_KIND_DIRECTORY,
    TREE_ENTRY_KIND_SYMLINK,
    TreeEntry,
    TreeNode,
)


@dataclass
class Listed:
    """The files of a directory."""

    entries: Listing = field(default_factory=dict)
    chunks: dict[bytes, bytes] = field(default_factory=dict)


def listed(root: Path) -> Listed:
    """What a snapshot would hold of a directory: all files, directories and symlinks but those of a restore."""
    nodes, made = list[TreeNode](), Made()

    def walk(place: bytes, path: bytes) -> None:
        for name in sorted(os.listdir(place)):  # noqa: PTH208  names of any bytes
            if name.startswith(WORK):
                continue
            file = Path(os.fsdecode(place + b"/" + name))
            found, below = file.lstat(), path + name
            if stat.S_ISDIR(found.st_mode):
                entry = TreeEntry(name=name, kind=TREE_ENTRY_KIND_DIRECTORY, digest=bytes(32))  # nobody reads it
                nodes.append(TreeNode(path=below, entry=entry))
                walk(place + b"/" + name, below + b"/")
            elif stat.S_ISLNK(found.st_mode):
                target = os.fsencode(file.readlink())
                entry = TreeEntry(name=name, kind=TREE_ENTRY_KIND_SYMLINK, target=target, mtime_ns=found.st_mtime_ns)
                nodes.append(TreeNode(path=below, entry=entry))
            elif stat.S_ISREG(found.st_mode):
                entry = file_entry(made, name, file.read_bytes(), executable=bool(found.st_mode & stat.S_IXUSR))
                entry.mtime_ns = found.st_mtime_ns
                nodes.append(TreeNode(path=below, entry=entry))

    walk(os.fsencode(root), b"")
    return Listed(listing(nodes), made.chunks)


def lay(root: Path, tree: Mapping[bytes, Any], *, time_ns: int = 1_700_000_000_123_456_789) -> Path:
    """Writes a tree as files of one time."""
    root.mkdir(exist_ok=True, parents=True)
    for name, content in tree.items():
        path = root / os.fsdecode(name)
        if isinstance(content, Link):
            path.symlink_to(os.fsdecode(content.target))
        elif isinstance(content, bytes):
            path.write_bytes(content)
        else:
            lay(path, content, time_ns=time_ns)
            continue
        os.utime(path, ns=(time_ns, time_ns), follow_symlinks=False)
    return root


def facts(root: Path, *, inodes: bool = False) -> dict[bytes, tuple[Any, ...]]:
    """What `lstat` and the bytes say of everything in a directory. Directories have only their modes."""
    found = dict[bytes, tuple[Any, ...]]()
    base = os.fsencode(root)
    for place, directories, names in os.walk(base):
        for name in directories + names:
            raw = place + b"/" + name
            path = Path(os.fsdecode(raw))
            seen, content = path.lstat(), b""
            if stat.S_ISLNK(seen.st_mode):
                content = os.fsencode(path.readlink())
            elif stat.S_ISREG(seen.st_mode):
                content = sha256(path.read_bytes()).digest()
            time_ns = 0 if stat.S_ISDIR(seen.st_mode) else seen.st_mtime_ns
            size_bytes = 0 if stat.S_ISDIR(seen.st_mode) else seen.st_size
            found[raw[len(base) + 1 :]] = (seen.st_mode, size_bytes, time_ns, content, seen.st_ino * inodes)
    return found


def drive(work: running.Work, chunks: Mapping[bytes, bytes]) -> Done:
    """Carries out a restore."""
    try:
        wanted = next(work)
        while True:
            wanted = work.send([chunks[each.digest] for each in wanted])
    except StopIteration as stop:
        done: Done = stop.value
        return done


def prepared(root: Path, compared: Comparison) -> Journal:
    """The journal of a restore."""
    return Journal({"thread": "t"}, running.look(os.fsencode(root), compared.changes))


def restored(root: Path, wanted: Listed, **left_out: Any) -> Done:
    """Plans a restore, and does it."""
    compared = compare(listed(root).entries, wanted.entries, **left_out)
    return drive(running.restore(os.fsencode(root), prepared(root, compared)), wanted.chunks)
