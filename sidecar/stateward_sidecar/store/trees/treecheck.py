"""Checks that a thread has a whole tree, and that the tree says the truth about what is in it.

What the newest known tree has at the same place is not looked at again. So a check costs what has changed, and one of a
tree that is known costs nothing (``TreeMemory``). Each directory is read once, wherever it is. Nothing here calls
itself, so no depth exhausts the stack. """

from __future__ import annotations

import time
from collections.abc import Mapping

import lmdb

from stateward.v1.workspace_pb2 import TREE_ENTRY_KIND_DIRECTORY, TreeDirectory, TreeEntry, TreeRef
from stateward_sidecar.codec.objects import FILES_MAX, Totals, chunks_of, parse_directory, totals_of
from stateward_sidecar.errors import BlobNotFound, InvalidField
from stateward_sidecar.store.trees.objectread import ObjectReader

DEPTH_MAX = 256
# An object of a request: whether it is a directory, and its digest.
Named = tuple[bool, bytes]


class TreeChecker:
    """Checks trees of one thread. ``reader``: None if there is no thread yet. ``fresh``: objects that come along.

    ``field``: what the errors name.
    """

    def __init__(
        self, txn: lmdb.Transaction, reader: ObjectReader | None, fresh: Mapping[Named, bytes], field: str = "workspace"
    ) -> None:
        self._txn = txn
        self._reader = reader
        self._fresh = fresh
        self._field = field
        self._totals: dict[bytes, Totals] = {}
        self._chunks: dict[bytes, int] = {}

    def check(self, tree: TreeRef, base: bytes = b"") -> None:
        """Raises InvalidField, HistoryElsewhere or Corrupt unless all objects of a tree are there. ``base``: a tree
        that is known to be whole; empty = none."""
        waiting: list[tuple[bytes, Totals | None, bytes, int]] = [(tree.digest, None, base, 0)]
        while waiting:
            digest, said, before, depth = waiting.pop()
            found = self._totals.get(digest)
            if found is None:
                if depth > DEPTH_MAX:
                    raise InvalidField(self._field, f"has more than {DEPTH_MAX} directories in each other")
                time.sleep(0)  # a first tree takes a second: the event loop has its turn after each directory
                directory = self._read(digest)
                found = self._totals[digest] = totals_of(directory)
                known = self._known(before)
                for entry in directory.entries:
                    same = known.get(entry.name)
                    if same is not None and same == entry:
                        continue
                    for chunk, size_bytes in chunks_of(entry):
                        self._check_chunk(chunk, size_bytes)
                    if entry.kind == TREE_ENTRY_KIND_DIRECTORY:
                        old = same.digest if same is not None and same.kind == TREE_ENTRY_KIND_DIRECTORY else b""
                        counts = Totals(entry.files, entry.directories, entry.size_bytes)
                        waiting.append((entry.digest, counts, old, depth + 1))
            if said is not None and said != found:
                raise InvalidField(self._field, f"says of directory {digest.hex()} that it has {said}; it has {found}")
        root = self._totals[tree.digest]
        if (root.files, root.size_bytes) != (tree.files, tree.size_bytes):
            raise InvalidField(
                self._field, f"says {tree.files} files and {tree.size_bytes} bytes; the tree has {root.files} and "
                f"{root.size_bytes}",
            )  # fmt: skip
        if root.files + root.directories > FILES_MAX:
            raise InvalidField(self._field, f"has more than {FILES_MAX} files and directories")

    def _known(self, digest: bytes) -> dict[bytes, TreeEntry]:
        if not digest or self._reader is None:
            return {}
        try:
            data = self._reader.read(self._txn, digest, is_directory=True)
        except BlobNotFound:
            return {}
        return {entry.name: entry for entry in parse_directory(data).entries}

    def _read(self, digest: bytes) -> TreeDirectory:
        data = self._fresh.get((True, digest))
        if data is None:
            try:
                data = self._reader.read(self._txn, digest, is_directory=True) if self._reader is not None else None
            except BlobNotFound:
                data = None
        if data is None:
            raise self._missing("directory", digest)
        return parse_directory(data)

    def _check_chunk(self, digest: bytes, said: int) -> None:
        found = self._chunks.get(digest)
        if found is None:
            found = self._chunks[digest] = self._size_of_chunk(digest)
        if found != said:
            raise InvalidField(self._field, f"says of chunk {digest.hex()} that it has {said} bytes; it has {found}")

    def _size_of_chunk(self, digest: bytes) -> int:
        if (data := self._fresh.get((False, digest))) is not None:
            return len(data)
        place = self._reader.find(self._txn, digest, is_directory=False) if self._reader is not None else None
        if place is None or self._reader is None:
            raise self._missing("chunk", digest)
        placed, _ = self._reader.look_up(self._txn, place, digest, is_directory=False)
        return placed.size_bytes

    def _missing(self, what: str, digest: bytes) -> InvalidField:
        return InvalidField(
            self._field, f"has {what} {digest.hex()}, which the thread does not have: write it with WriteObjects, or "
            "send it in `objects`",
        )  # fmt: skip
