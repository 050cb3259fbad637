"""Directories of an agent in tests: made, kept by a client, and compared with what the thread then has."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.trees.yard import TreeWire

from stateward import Client, Rules, Snapshot, Thread
from stateward.v1.workspace_pb2 import TREE_ENTRY_KIND_DIRECTORY, TREE_ENTRY_KIND_SYMLINK, TreeEntry

EVERYTHING = Rules(left_out=(), secrets=())


@contextmanager
def opened(target: str, name: str = "t") -> Iterator[Thread]:
    """A handle on a thread."""
    with Client(target) as client:
        yield client.thread(name)


def keep(thread: Thread, root: Path, rules: Rules = EVERYTHING, **options: Any) -> tuple[Snapshot, int]:
    """Takes a snapshot and saves it. Returns it, and the version."""
    taken = thread.workspace(root, rules).snapshot()
    state = thread.hydrate()
    saved = thread.save(state, workspace=taken, **options)
    assert saved.workspace == taken.tree
    return taken, saved.version


def on_disk(root: Path) -> dict[bytes, tuple[Any, ...]]:
    """What `lstat` and the bytes say of everything below a directory."""
    found: dict[bytes, tuple[Any, ...]] = {}
    top = os.fsencode(root)
    for place, directories, files in os.walk(top):
        for name in directories + files:
            path = place + b"/" + name
            facts, below = os.lstat(path), os.path.relpath(path, top)
            if stat.S_ISDIR(facts.st_mode):
                found[below] = ("d",)
            elif stat.S_ISLNK(facts.st_mode):
                found[below] = ("l", os.fsencode(Path(os.fsdecode(path)).readlink()), facts.st_mtime_ns)
            elif stat.S_ISREG(facts.st_mode):
                data = Path(os.fsdecode(path)).read_bytes()
                found[below] = ("f", data, facts.st_mtime_ns, bool(facts.st_mode & stat.S_IXUSR))
    return found


def in_thread(yard: TreeWire, version: int, thread: str = "t") -> dict[bytes, tuple[Any, ...]]:
    """The same of a version: read from the daemon by the page of the protocol, and not by the client."""
    listed = yard.listed(version, thread)
    chunks = {digest: b"" for _, entry in listed for digest in _digests(entry)}
    names = list(chunks)
    for at in range(0, len(names), 1000):
        part = names[at : at + 1000]
        chunks.update(zip(part, yard.fetch(chunks=part, thread=thread), strict=True))
    found: dict[bytes, tuple[Any, ...]] = {}
    for path, entry in listed:
        if entry.kind == TREE_ENTRY_KIND_DIRECTORY:
            found[path] = ("d",)
        elif entry.kind == TREE_ENTRY_KIND_SYMLINK:
            found[path] = ("l", entry.target, entry.mtime_ns)
        else:
            data = b"".join(chunks[digest] for digest in _digests(entry))
            assert len(data) == entry.size_bytes
            found[path] = ("f", data, entry.mtime_ns, entry.executable)
    return found


def _digests(entry: TreeEntry) -> list[bytes]:
    if entry.kind == TREE_ENTRY_KIND_DIRECTORY:
        return []
    return [entry.digest] if entry.digest else [each.digest for each in entry.chunks]


def age(root: Path, seconds: float = 60.0) -> None:
    """Makes what was done look as if it was done a while ago. The time of a change of an inode cannot be set, so the
    margin of the index is what tests of it shorten."""
    for path in [*root.rglob("*")]:
        facts = path.lstat()
        past = facts.st_mtime_ns - int(seconds * 1e9)
        os.utime(path, ns=(past, past), follow_symlinks=False)
