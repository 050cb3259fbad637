"""Reads objects of workspaces: from the journal's entries, and from packs.

An object is checked against its digest each time. If the pack is in the archive only, HistoryElsewhere names it. A
reader keeps the last lists and pieces of packs that it opened, because objects that were written together are read
together. It is used by one thread at a time. """

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

import lmdb

from stateward_sidecar.codec.blob import SEGMENT_BYTES
from stateward_sidecar.codec.objects import IS_DIRECTORY, Placed, unpack_object
from stateward_sidecar.errors import BlobNotFound, Corrupt
from stateward_sidecar.store.blobs.blobread import BlobReader, elsewhere, note_read
from stateward_sidecar.store.blobs.blobrows import get_blob, list_blobs
from stateward_sidecar.store.journal import replay
from stateward_sidecar.store.kinds.objects import OpenBatch, Place, find_place, object_key, read_batch
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.thread import Identity, Thread, ThreadDraft

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
# A list has at most some thousand objects, and a piece 1 MiB.
BATCHES_MAX, READERS_MAX, PIECES_MAX = 16, 16, 4


def missing_object(identity: Identity, digest: bytes) -> BlobNotFound:
    """Returns the error for an object that the thread does not have."""
    return BlobNotFound(
        f"thread {identity.name!r} has no object {digest.hex()}: it was not written, or it was removed because no "
        "retained version names it", thread=identity.name, sha256=digest.hex(),
    )  # fmt: skip


class ObjectReader:
    """Reads objects of one thread."""

    def __init__(self, context: Context, thread: Thread | ThreadDraft) -> None:
        self.identity = thread.identity
        self._context = context
        self._thread = thread if isinstance(thread, Thread) else thread.thread
        self._floor = thread.floor_sequence
        self._batches: OrderedDict[int, OpenBatch] = OrderedDict()
        self._readers: OrderedDict[bytes, BlobReader] = OrderedDict()
        self._pieces: OrderedDict[tuple[bytes, int], bytes] = OrderedDict()

    def find(self, txn: lmdb.Transaction, digest: bytes, *, is_directory: bool) -> Place | None:
        """Returns where an object is; None if the thread does not have it. Raises HistoryElsewhere if only the archive
        can tell, and Corrupt."""
        key = object_key(self.identity, digest, is_directory=is_directory)
        place = find_place(txn, key)
        if place is None and self._floor:
            raise replay.history_elsewhere(self.identity)
        if place is not None:  # whoever is told that it is there may name it
            self._context.trees.ask(self.identity.number, key)
        return place

    def read(self, txn: lmdb.Transaction, digest: bytes, *, is_directory: bool) -> bytes:
        """Returns the bytes of an object. Raises BlobNotFound, HistoryElsewhere, Corrupt."""
        place = self.find(txn, digest, is_directory=is_directory)
        if place is None:
            raise missing_object(self.identity, digest)
        placed, batch = self.look_up(txn, place, digest, is_directory=is_directory)
        return self.open(txn, batch, placed)

    def look_up(
        self, txn: lmdb.Transaction, place: Place, digest: bytes, *, is_directory: bool
    ) -> tuple[Placed, OpenBatch]:
        """Returns what the entry says of an object. Raises Corrupt if the row leads to another one."""
        batch = self.batch(txn, place.sequence)
        placed = batch.placed[place.at] if place.at < len(batch.placed) else None
        if placed is None or placed.digest != digest or bool(placed.form & IS_DIRECTORY) is not is_directory:
            raise Corrupt(f"the row of object {digest.hex()} leads to another one", self.identity.name)
        return placed, batch

    def batch(self, txn: lmdb.Transaction, sequence: int) -> OpenBatch:
        """Returns the objects of an entry. Raises Corrupt."""
        return _kept(
            self._batches, sequence, BATCHES_MAX,
            lambda: read_batch(txn, self.identity, sequence, self._context.cache),
        )  # fmt: skip

    def open(self, txn: lmdb.Transaction, batch: OpenBatch, placed: Placed) -> bytes:
        """Returns the bytes of an object of a batch. Raises HistoryElsewhere, Corrupt."""
        try:
            return unpack_object(placed.form, self.packed(txn, batch, placed), placed.size_bytes, placed.digest)
        except Corrupt as error:
            raise error.locate(self.identity.name) from None

    def packed(self, txn: lmdb.Transaction, batch: OpenBatch, placed: Placed) -> bytes:
        """Returns them as they are kept. Raises the same."""
        if not batch.body.pack:
            return batch.data[placed.start : placed.stop]
        pack, parts, at = batch.body.pack, list[bytes](), placed.start
        while at < placed.stop:
            index, skipped = divmod(at, SEGMENT_BYTES)
            part = self._piece(txn, pack, index)[skipped : skipped + placed.stop - at]
            if not part:
                raise Corrupt("a pack ends before an object that it should have", self.identity.name)
            parts.append(part)
            at += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _piece(self, txn: lmdb.Transaction, pack: bytes, index: int) -> bytes:
        def read() -> bytes:
            reader = _kept(self._readers, pack, READERS_MAX, lambda: self._reader(txn, pack))
            if index * SEGMENT_BYTES >= reader.record.size_bytes:
                raise Corrupt("a pack ends before an object that it should have", self.identity.name)
            return reader.segment(index)

        return _kept(self._pieces, (pack, index), PIECES_MAX, read)

    def _reader(self, txn: lmdb.Transaction, pack: bytes) -> BlobReader:
        try:
            record = get_blob(txn, self.identity, pack).record
        except BlobNotFound:
            raise Corrupt(f"pack {pack.hex()} is missing", self.identity.name) from None
        return BlobReader(self._context, self._thread, record)

    def has_all_packs(self, txn: lmdb.Transaction) -> bool:
        """Whether no pack of the thread is in the archive only."""
        files, identity = self._context.blob_files, self.identity
        if self._context.archive is None:
            return True
        packs = (row.record for row in list_blobs(txn, identity) if row.record.is_pack)
        return all(files.is_here(identity.uid, each.blob_id) for each in packs)

    def require(self, txn: lmdb.Transaction, places: Iterable[Place]) -> None:
        """Raises HistoryElsewhere, which names all packs of these objects that are in the archive only."""
        context, identity = self._context, self.identity
        if context.archive is None:
            return
        sequences, missing = sorted({each.sequence for each in places}), list[bytes]()
        for pack in dict.fromkeys(self.batch(txn, sequence).body.pack for sequence in sequences):
            if not pack:
                continue
            record = get_blob(txn, identity, pack).record
            note_read(context, identity, record)
            if not context.blob_files.is_here(identity.uid, record.blob_id):
                missing.append(record.sha256)
        if missing:
            raise elsewhere(self._thread, *missing)


def _kept(cache: OrderedDict[K, V], key: K, count: int, make: Callable[[], V]) -> V:
    """Returns what a small cache has, or makes it."""
    found = cache.get(key)
    if found is None:
        found = cache[key] = make()
        if len(cache) > count:
            cache.popitem(last=False)
    else:
        cache.move_to_end(key)
    return found


def missing_bits(is_missing: Sequence[bool]) -> bytes:
    """Returns one bit for each, as FindMissingResponse has them."""
    bits = bytearray((len(is_missing) + 7) // 8)
    for index, each in enumerate(is_missing):
        if each:
            bits[index >> 3] |= 1 << (index & 7)
    return bytes(bits)
