"""Adding one entry to a thread's journal, with the index rows every kind of entry implies. Runs in the writer.

A verb builds the entry's content outside, then, in its write: takes the thread's draft, calls ``append``, writes its
own rows, and finishes with ``commit_entry``, which writes the head and leaves the draft in the batch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import lmdb

from stateward.storage.v1.head_pb2 import ThreadHead
from stateward.storage.v1.journal_pb2 import EntryHeader, EntryKind
from stateward.v1.checkpoint_pb2 import STATUS_RUNNING
from stateward_sidecar.codec import parts
from stateward_sidecar.codec.entry import INLINE_EDITS_MAX, pack
from stateward_sidecar.codec.entry import Draft as Content
from stateward_sidecar.codec.seal import DIGEST_BYTES
from stateward_sidecar.errors import StatewardError
from stateward_sidecar.storage import layout
from stateward_sidecar.storage.writer import Batch
from stateward_sidecar.store.context import Context
from stateward_sidecar.store.identity import Identity
from stateward_sidecar.store.requests import request_key
from stateward_sidecar.store.thread import Draft, write_head

SECOND_US = 1_000_000
_NO_DIGEST = b"\0" * DIGEST_BYTES


@dataclass(slots=True)
class Appended:
    """An entry that was put, and the head that goes with it."""

    header: EntryHeader
    head: ThreadHead
    stored_bytes: int


def append(
    context: Context,
    txn: lmdb.Transaction,
    draft: Draft,
    kind: EntryKind,
    content: Content,
    *,
    version: int = 0,
    parent_version: int = 0,
    request_hash: bytes = b"",
    request_row: bytes = b"",
    time_us: int = 0,
    is_hidden: bool = False,
) -> Appended:
    """Seals and puts an entry after the newest one, and brings sequence, times and sizes of the head up to date.

    ``request_row``: the key of its request id, where the caller has it. A hidden entry gets no place among all entries
    of the store: its thread is not to be seen yet.
    """
    draft.check_writable()  # no verb may forget it: an entry of a copy would be in no history and no orphan
    identity, head = draft.identity, draft.next_head()
    keys = identity.keys
    head.epoch = max(head.epoch, draft.thread.epoch)
    head.tip_sequence += 1
    sequence = head.tip_sequence
    head.update_time_us = max(time_us or context.clock.now_us(), head.update_time_us)
    header = EntryHeader(
        kind=kind, epoch=head.epoch, sequence=sequence, version=version, parent_version=parent_version,
        create_time_us=head.update_time_us, previous_digest=head.tip_digest,
    )  # fmt: skip
    pieces_bytes = _put_pieces(txn, draft, header, content)
    record = pack(identity.cipher, identity.uid, header, content)
    if not txn.put(keys.entry(sequence), record, overwrite=False):
        # What is in memory is older than the journal. That must not happen, and must never cost an entry if it does.
        raise StatewardError(f"journal entry {sequence} exists already", uid=identity.uid.hex(), sequence=sequence)
    head.tip_digest = header.digest
    stored_bytes = len(record) + pieces_bytes
    head.stored_bytes += stored_bytes
    if request_hash:
        row = request_row or request_key(identity, request_hash)
        txn.put(row, layout.pack_request(sequence, head.update_time_us // SECOND_US))
    if not is_hidden:
        put_feed(txn, identity.number, sequence)
    return Appended(header, head, stored_bytes)


def commit_entry(
    context: Context, txn: lmdb.Transaction, batch: Batch, draft: Draft, entry: Appended, row_sums: dict[bytes, int]
) -> None:
    """Writes the head and makes draft and counters follow the commit. The last step of a write: nothing fails later."""
    write_head(txn, draft.identity, entry.head)
    index_time(txn, draft.identity, draft.head if entry.header.sequence > 1 else None, entry.head)
    counters, is_save = context.counters, bool(entry.header.version)
    hooks, thread = context.archive, draft.thread
    # Also while the archive is switched off: it may come back.
    is_archived = hooks is not None or context.had_archive
    if is_archived and not thread.in_outbox:
        txn.put(layout.outbox_key(thread.identity.number), layout.PRESENT)
    # Others of the batch share the draft: it changes when all rows are put, for a full map may refuse any of them.
    draft.head = entry.head
    draft.row_sums.update(row_sums)

    def count() -> None:
        counters.entries += 1
        counters.saves += is_save
        counters.entry_bytes += entry.stored_bytes
        thread.in_outbox = is_archived
        if hooks is not None:
            hooks.on_entry(thread, entry.stored_bytes)

    batch.after_commit.append(count)


def label_keys(identity: Identity, header: EntryHeader, labels: Mapping[str, str]) -> list[bytes]:
    """The rows by which lists across threads find an entry by its labels."""
    namespace = identity.namespace_keys
    return [
        layout.label_key(
            namespace.tag, namespace.names.label(key, value), header.create_time_us, identity.number, header.sequence
        )
        for key, value in labels.items()
    ]


def index_expiry(txn: lmdb.Transaction, number: int, old: ThreadHead, new: ThreadHead) -> None:
    """Keeps the row by which the sweep finds a thread to expire."""
    before, after = expire_second(old), expire_second(new)
    if before != after:
        if before:
            txn.delete(layout.expiry_key(before, number))
        if after:
            txn.put(layout.expiry_key(after, number), layout.PRESENT)


def expire_second(head: ThreadHead) -> int:
    """When the thread expires, seconds since 1970, rounded up; 0 = never."""
    if not head.options.HasField("ttl"):
        return 0
    ttl_us = head.options.ttl.ToMicroseconds()
    return -(-((head.save_time_us or head.create_time_us) + ttl_us) // SECOND_US)


def put_feed(txn: lmdb.Transaction, number: int, sequence: int) -> None:
    """Gives an entry its place among all entries of the store."""
    txn.put(layout.feed_key(next_place(txn)), layout.pack_feed(number, sequence), append=True)


def put_whole_feed(txn: lmdb.Transaction, number: int, last_sequence: int) -> None:
    """The same for all entries of a thread that gets its name in this transaction.

    In one transaction, however many they are: a watch passes over a place whose thread has no name yet, and never comes
    back to it. So they are put in one call, half a microsecond each; one by one they take six times that.
    """
    place = next_place(txn) - 1
    every = range(1, last_sequence + 1)
    feed = ((layout.feed_key(place + sequence), layout.pack_feed(number, sequence)) for sequence in every)
    with txn.cursor() as cursor:
        cursor.putmulti(feed, append=True)


def next_place(txn: lmdb.Transaction) -> int:
    """The place of the next entry among all entries of the store; table W is the last one, and its newest row stays.

    Read from the transaction: a place that a failed batch took must not reach a watch, for it is given out again.
    """
    cursor = txn.cursor()
    if cursor.last() and bytes(cursor.key()[:1]) == b"W":
        return layout.tail_number(cursor.key()) + 1
    return 1


def index_time(txn: lmdb.Transaction, identity: Identity, before: ThreadHead | None, after: ThreadHead) -> None:
    """Keeps the thread's places in the lists of its namespace: of all threads, and of those of its status.

    ``before``: the head as it was; None where the thread has no places yet.
    """
    # By the second: a thread that saves a thousand times a second moves in the lists once.
    if before is not None and _second_and_status(before) == _second_and_status(after):
        return
    old = list_keys(identity, before) if before is not None else ()
    new = list_keys(identity, after)
    for key in old:
        if key not in new:
            txn.delete(key)
    for key in new:
        if key not in old:
            txn.put(key, layout.PRESENT)


def list_keys(identity: Identity, head: ThreadHead) -> tuple[bytes, bytes]:
    """The rows by which lists find a thread: by time, and by status and time."""
    second, status = _second_and_status(head)
    namespace, number = identity.namespace_keys, identity.number
    return (
        layout.updated_key(namespace.tag, second, number),
        layout.status_key(namespace.tag, namespace.names.status(status), second, number),
    )


def _second_and_status(head: ThreadHead) -> tuple[int, int]:
    return head.update_time_us // SECOND_US, head.status or STATUS_RUNNING


def _put_pieces(txn: lmdb.Transaction, draft: Draft, header: EntryHeader, content: Content) -> int:
    """Puts edits that are too large for one row. Returns their sealed bytes."""
    if len(content.packed_edits) <= INLINE_EDITS_MAX:
        return 0
    identity = draft.identity
    header.parts_id = int.from_bytes(os.urandom(8), "big") or 1
    pieces = parts.Content(content.edit_compression, content.packed_edits, len(content.edits))
    place = layout.u64(header.parts_id)
    for index in range(len(pieces.pieces)):
        row = parts.seal_piece(identity.cipher, parts.EDITS_MAGIC, pieces, index, _NO_DIGEST, identity.uid, place)
        txn.put(identity.keys.edits_piece(header.parts_id, index), row)
        header.edit_stored_bytes += len(row)
    return header.edit_stored_bytes
