"""Adds an entry to a thread's journal, with the index rows that every entry needs. Runs in the writer.

A verb builds the content of the entry outside the writer. Its write then takes the thread's draft, calls ``append``,
writes its own rows, and ends with ``commit_entry``, which writes the head. Then it puts the draft into the batch.

Several entries in one write: all are put or none, beside other writes of the same batch.

The record of a deletion. It outlives the thread, whose key is destroyed, so it is under the namespace's key.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import lmdb

from stateward.storage.v1.head_pb2 import DeletionRecord, ThreadHead
from stateward.storage.v1.journal_pb2 import EntryHeader
from stateward.v1.checkpoint_pb2 import WORK_STATUS_RUNNING
from stateward.v1.thread_pb2 import ThreadOptions
from stateward_sidecar.codec import parts
from stateward_sidecar.codec.entry import INLINE_EDITS_MAX, EntryContent, pack
from stateward_sidecar.codec.seal import DIGEST_BYTES
from stateward_sidecar.errors import Corrupt, StatewardError
from stateward_sidecar.storage import layout
from stateward_sidecar.storage.namespacekeys import NamespaceKeys
from stateward_sidecar.storage.queue import Batch
from stateward_sidecar.store.journal.kind import Kind
from stateward_sidecar.store.journal.requests import put_request, request_key
from stateward_sidecar.store.thread import blocks
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.thread import Identity, ThreadDraft, write_head
from stateward_sidecar.store.thread.times import SECOND_US, expire_second, next_time_us

# Bytes of an entry, with its blob, that take so long to upload that entries before it must not wait for it.
LARGE_BYTES = 1 << 20
# With so many entries of tags, settings, leases, blobs and heads, a sweep says that they count for nothing.
LOOSE_MAX = 256
_NO_DIGEST = b"\0" * DIGEST_BYTES


@dataclass(slots=True)
class Appended:
    """An entry that was put, and the head that belongs to it."""

    header: EntryHeader
    head: ThreadHead
    stored_bytes: int


def append(
    context: Context,
    txn: lmdb.Transaction,
    draft: ThreadDraft,
    kind: Kind,
    content: EntryContent,
    *,
    version: int = 0,
    parent_version: int = 0,
    request_hash: bytes = b"",
    time_us: int = 0,
    is_hidden: bool = False,
    acked: Sequence[int] = (),
    whole: bool = False,
) -> Appended:
    """Seals and puts an entry after the newest one. Updates sequence, times and sizes in a copy of the head.

    ``is_hidden``: the entry gets no place in the feed of all entries, because its thread must not be seen yet.
    ``acked``: sequences of the signals that a version acknowledges. ``whole``: the state of the version is in its
    snapshot alone. Raises NotOwner if the thread is a copy or an orphan.
    """
    draft.check_writable()  # checked here for all verbs: an entry of a copy would be in no history and in no orphan
    identity, head = draft.identity, draft.next_head()
    keys = identity.keys
    head.epoch = max(head.epoch, draft.thread.epoch)
    # A time that is given belongs to other entries, which are in their order.
    given_us = max(time_us, head.update_time_us) if time_us else 0
    head.update_time_us = given_us or next_time_us(head, context.clock.now_us())
    head.tip_sequence += 1
    sequence = head.tip_sequence
    header = EntryHeader(
        kind=kind.number, epoch=head.epoch, sequence=sequence, version=version, parent_version=parent_version,
        create_time_us=head.update_time_us, previous_digest=head.tip_digest, acked_sequences=acked,
    )  # fmt: skip
    if whole:
        header.whole = True
    if kind.is_loose:
        head.loose_entries += 1
    is_large = len(content.packed_edits) > INLINE_EDITS_MAX
    pieces_bytes = _put_pieces(txn, draft, header, content) if is_large else 0
    record = pack(identity.cipher, identity.uid, header, content)
    try:
        is_new = blocks.put_entry(txn, keys, sequence, record, follows=sequence - 1 > draft.floor_sequence)
    except Corrupt as error:  # the block of the entry before is damaged, or older than the head
        raise error.locate(identity.name) from None
    if not is_new:
        # Memory is older than the journal. This must not happen; if it does, no entry is overwritten.
        raise StatewardError(f"journal entry {sequence} exists already", uid=identity.uid.hex(), sequence=sequence)
    head.tip_digest = header.digest
    stored_bytes = len(record) + pieces_bytes
    head.stored_bytes += stored_bytes
    if request_hash:
        row = request_key(identity, request_hash)
        if is_hidden or kind.may_repeat_id:  # a backup may repeat any id
            put_request(txn, row, sequence, head.update_time_us)
        else:
            txn.put(row, layout.pack_request(sequence, head.update_time_us // SECOND_US))
    if not is_hidden:
        put_feed(txn, identity.number, sequence)
    return Appended(header, head, stored_bytes)


def commit_entry(
    context: Context,
    txn: lmdb.Transaction,
    batch: Batch,
    draft: ThreadDraft,
    entry: Appended,
    row_sums: dict[bytes, int],
    *,
    is_bounded: bool = False,
) -> None:
    """Writes the head, updates the draft, and counts the entry after the commit.

    This is the last step of a write. Nothing may fail after it. ``is_bounded``: raises QuotaExceeded if the namespace
    may not take so many bytes more.
    """
    if is_bounded:
        more_bytes = entry.head.stored_bytes - draft.head.stored_bytes
        context.usage.check_bytes(draft.identity.namespace, more_bytes, batch.drafts)
    if context.archive is not None and entry.head.stored_bytes - draft.head.stored_bytes >= LARGE_BYTES:
        context.archive.before_large(draft.identity)
    write_head(txn, draft.identity, entry.head)
    index_time(txn, draft.identity, draft.head if entry.header.sequence > 1 else None, entry.head)
    if entry.head.clock_steps != draft.head.clock_steps:  # the newest version may be older than its time says
        index_expiry(txn, draft.identity.number, draft.head, entry.head)
    counters, is_save = context.counters, bool(entry.header.version)
    hooks, thread = context.archive, draft.thread
    # The outbox is kept while the archive is switched off, because it may be switched on again.
    is_archived = hooks is not None or context.had_archive
    if is_archived and not thread.in_outbox:
        txn.put(layout.outbox_key(thread.identity.number), layout.PRESENT)
    # Other writes of the batch share the draft. It changes only after all rows are put: a full map may refuse any row.
    draft.head = entry.head
    draft.row_sums.update(row_sums)

    def count() -> None:
        if entry.head.loose_entries >= LOOSE_MAX:
            context.loose.add(draft.identity.number)
        counters.entries += 1
        counters.saves += is_save
        counters.entry_bytes += entry.stored_bytes
        counters.entry_plain_bytes += entry.header.metadata_bytes + entry.header.edit_bytes
        thread.in_outbox = is_archived
        if hooks is not None:
            hooks.on_entry(thread, entry.stored_bytes)

    batch.after_commit.append(count)


def label_keys(identity: Identity, header: EntryHeader, labels: Mapping[str, str]) -> list[bytes]:
    """Returns the keys of the index rows by which lists across threads find an entry by its labels."""
    namespace = identity.namespace_keys
    return [
        layout.label_key(
            namespace.tag, namespace.names.label(key, value), header.create_time_us, identity.number, header.sequence
        )
        for key, value in labels.items()
    ]


def index_expiry(txn: lmdb.Transaction, number: int, old: ThreadHead, new: ThreadHead) -> None:
    """Updates the index row by which the sweep finds expired threads."""
    if not (old.options.HasField("ttl") or new.options.HasField("ttl")):
        return
    before, after = expire_second(old), expire_second(new)
    if before != after:
        if before:
            txn.delete(layout.expiry_key(before, number))
        if after:
            txn.put(layout.expiry_key(after, number), layout.PRESENT)


def put_feed(txn: lmdb.Transaction, number: int, sequence: int, *, is_past: bool = False) -> None:
    """Gives an entry its place in the feed of all entries of the store. ``is_past``: it is no event."""
    txn.put(layout.feed_key(next_place(txn)), layout.pack_feed(number, sequence, is_past=is_past), append=True)


def put_whole_feed(txn: lmdb.Transaction, number: int, last_sequence: int) -> None:
    """Gives all entries of a thread their places in the feed. The thread gets its name in the same transaction.

    All places are put in one transaction, because a watch skips a place whose thread has no name yet and never returns
    to it. One ``putmulti`` call takes half a microsecond for each entry; single puts take six times as long.
    """
    place = next_place(txn) - 1
    every = range(1, last_sequence + 1)
    feed = ((layout.feed_key(place + sequence), layout.pack_feed(number, sequence)) for sequence in every)
    with txn.cursor() as cursor:
        cursor.putmulti(feed, append=True)


def next_place(txn: lmdb.Transaction) -> int:
    """Returns the next free place in the feed of all entries.

    The feed is table W, the last one in key order, and its newest row is never deleted. The place is read from the
    transaction and not kept in memory: a place that a failed batch took is given out again.
    """
    cursor = txn.cursor()
    newest = layout.feed_place(cursor.key()) if cursor.last() else 0
    return newest + 1


def index_time(txn: lmdb.Transaction, identity: Identity, before: ThreadHead | None, after: ThreadHead) -> None:
    """Updates the two list rows of a thread: among all threads of its namespace, and among those of its status.

    ``before``: the head before this write; None if the thread has no list rows yet.
    """
    # List rows count in seconds, so a thread with a thousand saves a second moves in the lists once a second.
    if before is not None:
        is_same_second = before.update_time_us // SECOND_US == after.update_time_us // SECOND_US
        if is_same_second and (before.status or WORK_STATUS_RUNNING) == (after.status or WORK_STATUS_RUNNING):
            return
    old = _time_keys(identity, before) if before is not None else ()
    new = _time_keys(identity, after)
    for key in old:
        if key not in new:
            txn.delete(key)
    for key in new:
        if key not in old:
            txn.put(key, layout.PRESENT)


def index_options(txn: lmdb.Transaction, identity: Identity, before: ThreadOptions, after: ThreadOptions) -> None:
    """Updates the rows that settings of a thread imply: the mark of its retention rule, and a row for each label."""
    if after.HasField("retention"):
        txn.put(layout.retention_key(identity.number), layout.PRESENT)
    elif before.HasField("retention"):
        txn.delete(layout.retention_key(identity.number))
    if before.labels or after.labels:
        new = labelled_keys(identity, after)
        for key in labelled_keys(identity, before) - new:
            txn.delete(key)
        for key in new:
            txn.put(key, layout.PRESENT)


def list_keys(identity: Identity, head: ThreadHead) -> set[bytes]:
    """Returns the keys of all rows by which lists find a thread: by time, by status and time, and by label."""
    return labelled_keys(identity, head.options).union(_time_keys(identity, head))


def labelled_keys(identity: Identity, options: ThreadOptions) -> set[bytes]:
    """Returns the keys of the rows by which lists find a thread by its labels."""
    namespace = identity.namespace_keys
    return {
        layout.labelled_key(layout.labelled_prefix(namespace.tag, namespace.names.thread_label(*pair)), identity.number)
        for pair in options.labels.items()
    }


def _time_keys(identity: Identity, head: ThreadHead) -> tuple[bytes, bytes]:
    namespace = identity.namespace_keys
    status_hash = namespace.names.status(head.status or WORK_STATUS_RUNNING)
    return layout.listed_keys(namespace.tag, status_hash, head.update_time_us // SECOND_US, identity.number)


def _put_pieces(txn: lmdb.Transaction, draft: ThreadDraft, header: EntryHeader, content: EntryContent) -> int:
    """Puts edits that are too large for one row as pieces. Returns their sealed size in bytes."""
    identity = draft.identity
    header.parts_id = int.from_bytes(os.urandom(8), "big") or 1
    pieces = parts.Content(content.edit_compression, content.packed_edits, len(content.edits))
    place = layout.u64(header.parts_id)
    for index in range(len(pieces.pieces)):
        row = parts.seal_piece(identity.cipher, parts.EDITS_MAGIC, pieces, index, _NO_DIGEST, identity.uid, place)
        txn.put(identity.keys.edits_piece(header.parts_id, index), row)
        header.edit_stored_bytes += len(row)
    return header.edit_stored_bytes


@contextmanager
def all_or_none(batch: Batch, draft: ThreadDraft) -> Iterator[None]:
    """If a later entry fails, restores draft and batch to what they were before the first entry.

    The write's child transaction drops the rows. Only for entries that change nothing but the draft's head, sums and
    signals.
    """
    key = (draft.identity.namespace, draft.identity.name)
    is_known, before = key in batch.drafts, batch.drafts.get(key)
    head, row_sums, callbacks = draft.head, draft.row_sums.copy(), len(batch.after_commit)
    signals = draft.signals.copy()
    record_changes = len(draft.record_changes)
    try:
        yield
    except BaseException:
        draft.head, draft.row_sums, draft.signals = head, row_sums, signals
        del batch.after_commit[callbacks:], draft.record_changes[record_changes:]
        batch.drafts.pop(key, None)
        if is_known:
            batch.drafts[key] = before
        raise


DELETION_MAGIC = b"SD"
LOCAL = "local"
"""The cause of a deletion of this disk's copy alone."""


def seal_deletion(namespace: NamespaceKeys, cursor: int, record: DeletionRecord) -> bytes:
    """Seals a deletion record."""
    return namespace.seal(DELETION_MAGIC, record.SerializeToString(), namespace.id, layout.u64(cursor))


def open_deletion(namespace: NamespaceKeys, cursor: int, row: bytes) -> DeletionRecord | None:
    """Opens the row of a deletion record; returns None if the thread was in another namespace."""
    owner, sealed = layout.unpack_deletion(row)
    if owner != namespace.id:
        return None
    return DeletionRecord.FromString(namespace.open(DELETION_MAGIC, sealed, namespace.id, layout.u64(cursor)))
