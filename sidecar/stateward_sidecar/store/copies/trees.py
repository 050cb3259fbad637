"""Objects of trees in copies: which of them a fork takes, and what an export and an import have of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import lmdb

from stateward.storage.v1.journal_pb2 import BlobRecord, EntryMetadata, ObjectsBody
from stateward.v1.workspace_pb2 import (
    TREE_ENTRY_KIND_DIRECTORY,
    TREE_OBJECT_KIND_CHUNK,
    TREE_OBJECT_KIND_DIRECTORY,
    TreeObject,
    TreeObjects,
    TreeRef,
)
from stateward_sidecar.codec.entry import draft as draft_content
from stateward_sidecar.codec.objects import IS_DIRECTORY, chunks_of, parse_directory
from stateward_sidecar.errors import Corrupt
from stateward_sidecar.store.blobs.blobrows import get_blob
from stateward_sidecar.store.copies.hidden import Hidden
from stateward_sidecar.store.kinds.objects import object_rows, read_list
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.thread import Thread
from stateward_sidecar.store.trees.incoming import open_objects
from stateward_sidecar.store.trees.objectread import ObjectReader
from stateward_sidecar.store.trees.packs import Listed, PackBuilder
from stateward_sidecar.store.trees.treecheck import TreeChecker

# A part of a backup has about so many bytes of objects.
PART_BYTES = 256 << 10


def lists_of_tree(txn: lmdb.Transaction, context: Context, source: Thread, tree: TreeRef) -> list[int]:
    """Returns the sequences of the entries that list the objects of a tree. Raises HistoryElsewhere, Corrupt."""
    reader, found, seen = ObjectReader(context, source), set[int](), set[bytes]()
    waiting = [tree.digest]
    while waiting:
        digest = waiting.pop()
        if digest in seen:
            continue
        seen.add(digest)
        found.add(_sequence(txn, reader, digest, is_directory=True))
        for entry in parse_directory(reader.read(txn, digest, is_directory=True)).entries:
            if entry.kind == TREE_ENTRY_KIND_DIRECTORY:
                waiting.append(entry.digest)
            found.update(_sequence(txn, reader, chunk, is_directory=False) for chunk, _ in chunks_of(entry))
    return sorted(found)


def _sequence(txn: lmdb.Transaction, reader: ObjectReader, digest: bytes, *, is_directory: bool) -> int:
    place = reader.find(txn, digest, is_directory=is_directory)
    if place is None:
        raise Corrupt(f"a tree lacks object {digest.hex()}", reader.identity.name)
    return place.sequence


def all_lists(txn: lmdb.Transaction, source: Thread) -> list[int]:
    """Returns the sequences of all entries that have an object which is found by its row."""
    return sorted({place.sequence for _, place in object_rows(txn, source.identity)})


def read_listed(
    txn: lmdb.Transaction, context: Context, source: Thread, sequence: int
) -> tuple[ObjectsBody, bytes, BlobRecord | None]:
    """Returns both parts of an entry, and the pack that it is about. Raises Corrupt, BlobNotFound."""
    body, content = read_list(txn, source.identity, sequence, context.cache)
    return body, content, get_blob(txn, source.identity, body.pack).record if body.pack else None


def export_objects(
    context: Context, thread: Thread, sequence: int, names: Mapping[int, object]
) -> Iterator[TreeObjects]:
    """Yields the objects of an entry at some places, in parts. Raises Corrupt, HistoryElsewhere."""
    reader, part, size_bytes = ObjectReader(context, thread), TreeObjects(), 0
    for index in sorted(names):
        with context.engine.read() as txn:
            batch = reader.batch(txn, sequence)
            placed = batch.placed[index]
            data = reader.open(txn, batch, placed)
        kind = TREE_OBJECT_KIND_DIRECTORY if placed.form & IS_DIRECTORY else TREE_OBJECT_KIND_CHUNK
        part.objects.append(TreeObject(kind=kind, digest=placed.digest, data=data))
        size_bytes += len(data) + 64
        if size_bytes > PART_BYTES:
            yield part
            part, size_bytes = TreeObjects(), 0
    if part.objects:
        yield part


class IncomingObjects:
    """Receives objects of trees, and makes packs of them."""

    def __init__(self, context: Context, hidden: Hidden) -> None:
        self._context = context
        self._hidden = hidden
        self._builders = {kind: PackBuilder(context, hidden.draft.identity) for kind in (True, False)}
        self._known: set[tuple[bool, bytes]] = set()
        self._whole = b""  # the last tree that was found whole

    @property
    def count(self) -> int:
        """How many objects came."""
        return len(self._known)

    def add(self, part: TreeObjects) -> None:
        """Takes objects. Raises InvalidField, DiskFull, QuotaExceeded."""
        for name, data in open_objects(part.objects, "parts.objects.objects").items():
            if name in self._known:
                continue
            self._known.add(name)
            is_directory, digest = name
            self._put(self._builders[is_directory].add(digest, data, is_directory=is_directory))
            self._hidden.take(sum(builder.stored_bytes for builder in self._builders.values()))

    def finish(self) -> None:
        """Completes the packs."""
        for builder in self._builders.values():
            self._put(builder.finish())

    def _put(self, made: Listed | None) -> None:
        if made is None or made.pack is None:
            return
        hidden, time_us = self._hidden, self._hidden.draft.head.update_time_us
        hidden.put(hidden.blob(made.pack, draft_content(EntryMetadata(blob=made.pack)), time_us))
        hidden.put(*hidden.objects(made.content(), made.stored_bytes, time_us=time_us))

    def check(self, tree: TreeRef) -> None:
        """Raises InvalidField unless all objects of a tree came."""
        if tree.digest == self._whole:
            return
        with self._context.engine.read() as txn:
            reader = ObjectReader(self._context, self._hidden.draft)
            TreeChecker(txn, reader, {}, "parts.version.checkpoint.workspace").check(tree, self._whole)
        self._whole = tree.digest

    def discard(self) -> None:
        """Removes the files of packs that are not complete."""
        for builder in self._builders.values():
            builder.discard()
