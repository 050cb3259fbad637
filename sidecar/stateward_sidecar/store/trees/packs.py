"""Packs: sealed files that hold many objects.

A pack is a blob of the thread that no client sees, like a segment of a log (blobs/segments.py): 16 secret bytes, the
objects one after the other, each compressed by itself, and random bytes up to the next of a few sizes. So its size says
little about the sizes of files. An entry of the journal lists what is in it. Directories and chunks lie in packs of
their own: who lists a tree need not fetch its files.

The file is made durable first. Then one transaction puts the entry of the blob, the entry with the list, and all rows.
"""

from __future__ import annotations

import os
from collections.abc import Set as AbstractSet

import lmdb

from stateward.storage.v1.head_pb2 import BlobRow
from stateward.storage.v1.journal_pb2 import BlobRecord, EntryMetadata, ObjectsBody
from stateward_sidecar.codec.blob import SEGMENT_BYTES
from stateward_sidecar.codec.entry import EntryContent
from stateward_sidecar.codec.entry import draft as draft_content
from stateward_sidecar.codec.objects import (
    SALT_BYTES,
    ObjectList,
    PackedObject,
    pack_object,
    padded_bytes,
    place_batch,
)
from stateward_sidecar.errors import QuotaExceeded
from stateward_sidecar.measures import events
from stateward_sidecar.storage.queue import Batch
from stateward_sidecar.store.blobs.blobrows import put_blob
from stateward_sidecar.store.blobs.blobwrite import Sealing
from stateward_sidecar.store.journal.journal import append, commit_entry
from stateward_sidecar.store.kinds.blob import BLOB
from stateward_sidecar.store.kinds.objects import OBJECTS, Keyed, keys_of, move_rows, put_rows
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.thread import Identity, ThreadDraft

# A pack is full with so many bytes or objects. The list of its objects fits into an entry (INLINE_EDITS_MAX), and its
# rows are put in one transaction, for which other writes wait.
PACK_BYTES, PACK_OBJECTS_MAX = 8 << 20, 2048


class Listed:
    """Objects that share an entry: what the entry says of them. Safe to keep while the writer works."""

    def __init__(self, objects: ObjectList, pack: BlobRecord | None, data: bytes = b"") -> None:
        """``data``: the bytes of the objects, if they are in no pack."""
        self.count = len(objects)
        self.size_bytes, self.packed_bytes = objects.size_bytes, objects.packed_bytes
        self.pack = pack
        self._batch = objects.batch(data)
        self._placed = place_batch(self._batch, SALT_BYTES if pack is not None else 0)
        self._keyed: tuple[int, Keyed] = -1, []

    @property
    def stored_bytes(self) -> int:
        """What they take at rest."""
        return self.pack.stored_bytes if self.pack is not None else self.packed_bytes

    def metadata(self) -> EntryMetadata:
        """The first part of the entry."""
        body = ObjectsBody(
            pack=self.pack.sha256 if self.pack is not None else b"", count=self.count, size_bytes=self.size_bytes,
            packed_bytes=self.packed_bytes,
        )  # fmt: skip
        return EntryMetadata(objects=body)

    def content(self, metadata: EntryMetadata | None = None) -> EntryContent:
        """Both parts of the entry, compressed. ``metadata``: the first part, with more than that of ``metadata()``."""
        return draft_content(metadata or self.metadata(), self._batch.SerializeToString(deterministic=True))

    def put_rows(
        self, txn: lmdb.Transaction, identity: Identity, sequence: int, moved: AbstractSet[int] = frozenset()
    ) -> None:
        """Puts the rows of the objects. ``moved``: the objects come from these entries, and only those whose rows lead
        there get one."""
        keyed = self.make_keys(identity)
        if moved:
            move_rows(txn, sequence, keyed, moved)
        else:
            put_rows(txn, identity, sequence, keyed)

    def make_keys(self, identity: Identity) -> Keyed:
        """Returns the keys of the rows, made once: outside the writer, if possible."""
        number, keyed = self._keyed
        if number != identity.number:
            keyed = keys_of(identity, self._placed)
            self._keyed = identity.number, keyed
        return keyed


class PackBuilder:
    """Makes packs of objects as they come. Used by one thread at a time."""

    def __init__(self, context: Context, identity: Identity) -> None:
        self._context = context
        self._identity = identity
        self._sealing: Sealing | None = None
        self._objects = ObjectList()
        self._pending = bytearray()
        self._size_bytes = 0

    @property
    def stored_bytes(self) -> int:
        """How long the file of the next pack is so far."""
        return self._sealing.stored_bytes if self._sealing is not None else 0

    def add(self, digest: bytes, data: bytes, *, is_directory: bool) -> Listed | None:
        """Takes an object. Returns the pack that is full now, if one is: its file is durable. Raises DiskFull."""
        return self.take(pack_object(digest, data, is_directory=is_directory))

    def take(self, packed: PackedObject) -> Listed | None:
        """Does the same for an object that is compressed already."""
        if self._sealing is None:
            self._sealing = Sealing(self._context, self._identity, None)
            self._pending = bytearray(os.urandom(SALT_BYTES))
            self._size_bytes = SALT_BYTES
        self._objects.add(packed)
        self._take(packed.data)
        if self._size_bytes >= PACK_BYTES or len(self._objects) >= PACK_OBJECTS_MAX:
            return self.finish()
        return None

    def _take(self, data: bytes) -> None:
        assert self._sealing is not None
        self._size_bytes += len(data)
        self._pending += data
        while len(self._pending) >= SEGMENT_BYTES:
            self._sealing.add(bytes(self._pending[:SEGMENT_BYTES]))
            del self._pending[:SEGMENT_BYTES]

    def finish(self) -> Listed | None:
        """Completes the pack, and makes its file durable. Returns None if nothing is in it. Raises DiskFull, and
        FileNotFoundError if the thread was deleted meanwhile."""
        if self._sealing is None:
            return None
        self._take(os.urandom(padded_bytes(self._size_bytes) - self._size_bytes))
        if self._pending:
            self._sealing.add(bytes(self._pending))
        record = self._sealing.finish("")
        record.is_segment = record.is_pack = True
        record.preview = b""
        made = Listed(self._objects, record)
        made.make_keys(self._identity)
        self._sealing, self._objects, self._pending = None, ObjectList(), bytearray()
        return made

    def discard(self) -> None:
        """Removes the file of the pack that is not complete."""
        if self._sealing is not None:
            self._sealing.discard()
            self._sealing = None


def check_room(context: Context, taken: int, more: int, identity: Identity) -> None:
    """Raises QuotaExceeded if the trees of a thread would take more than they may."""
    most = context.limits.workspace_bytes
    if most and taken + more > most:
        events.limits["workspace_bytes"] += 1
        context.trees.full.add(identity.number)  # the next sweep drops trees
        raise QuotaExceeded(
            f"the trees of thread {identity.name!r} may take {most:,} bytes (--max-workspace-size) and take {taken:,}; "
            f"this would take {more:,} more. Prune versions: what no version names goes within two hours",
            limit="workspace_bytes", thread=identity.name, namespace=identity.namespace, maximum=most, used=taken,
        )  # fmt: skip


def put_listed(
    context: Context, txn: lmdb.Transaction, batch: Batch, draft: ThreadDraft, listed: Listed, content: EntryContent,
    *, time_us: int = 0, is_bounded: bool = False, moved: AbstractSet[int] = frozenset(),
) -> int:  # fmt: skip
    """Puts the entries and rows of objects, whose pack is durable. Returns the sequence of the entry that lists them.
    The caller keeps the draft. ``time_us``: see ``append``."""
    if is_bounded:
        check_room(context, draft.head.object_bytes, listed.stored_bytes, draft.identity)
    if (record := listed.pack) is not None:
        entry = append(context, txn, draft, BLOB, draft_content(EntryMetadata(blob=record)), time_us=time_us)
        entry.head.stored_bytes += record.stored_bytes
        sequence = entry.header.sequence
        row = BlobRow(
            record=record, sequence=sequence, write_time_us=context.clock.now_us(), write_sequence=sequence
        )
        put_blob(txn, draft.identity, row)
        commit_entry(context, txn, batch, draft, entry, {}, is_bounded=is_bounded)
    entry = append(context, txn, draft, OBJECTS, content, time_us=time_us)
    sequence = entry.header.sequence
    listed.put_rows(txn, draft.identity, sequence, moved)
    entry.head.object_bytes += listed.stored_bytes
    commit_entry(context, txn, batch, draft, entry, {}, is_bounded=is_bounded)
    return sequence
