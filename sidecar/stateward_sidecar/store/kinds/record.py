"""Records, and their rows.

The row of a record says what it is, and which entry has its value.

Row ``K`` is put in the transaction of the record's entry, under a keyed hash of the key. An entry leaves a record as it
is from then on, so the newest entry of a key decides, in whatever order entries are read. A row whose entry is at or
below the floor (``Pruned.records``) counts for nothing. Only an old copy has such rows, and every record that is left
has a newer entry.
"""

from __future__ import annotations

from collections.abc import Iterator

import lmdb
from google.protobuf.message import DecodeError

from stateward.storage.v1.head_pb2 import RecordRow, ThreadHead
from stateward.storage.v1.journal_pb2 import ENTRY_KIND_RECORDS, EntryMetadata, RecordBatch, RecordFacts
from stateward.v1.record_pb2 import StoredRecord
from stateward.v1.state_pb2 import Value
from stateward.v1.thread_service_pb2 import JournalEvent
from stateward_sidecar.codec.entry import Entry, stored_bytes
from stateward_sidecar.errors import Corrupt
from stateward_sidecar.storage import layout
from stateward_sidecar.store.journal import replay
from stateward_sidecar.store.journal.kind import Kind, Watched
from stateward_sidecar.store.thread.ranges import Pruned, Ranges
from stateward_sidecar.store.thread.recordorder import Item
from stateward_sidecar.store.thread.table import Table
from stateward_sidecar.store.thread.thread import Identity, Thread, ThreadDraft, add_to_sum, rows
from stateward_sidecar.store.thread.times import SECOND_US

SUM_BYTES = 16


def record_key(identity: Identity, key: str) -> bytes:
    """Returns the row key of a record."""
    return identity.keys.record(identity.hash_id(b"record", key))


RECORD_ROWS = Table(b"K", RecordRow, "a record", lambda identity, row: record_key(identity, row.facts.key))


def record_floor(thread: ThreadDraft | Thread) -> int:
    """Returns the sequence up to which entries of records count for nothing."""
    return thread.pruned.records.last


def has_records(head: ThreadHead) -> bool:
    """Returns whether the thread ever had a record."""
    return bool(head.record_sum)


def check_here(thread: ThreadDraft | Thread) -> None:
    """Raises HistoryElsewhere if entries of records may be in the archive only, VersionPruned if they went."""
    if thread.archive is not None and thread.archive.records_gone:
        raise replay.gone_with_thread(thread, "records")
    if thread.floor_sequence > record_floor(thread) and thread.head.record_entry_bytes:
        raise replay.history_elsewhere(thread.identity)


def is_checked(thread: ThreadDraft | Thread) -> bool:
    """Returns whether the rows were compared with the sum in the head, or the thread never had a record."""
    loaded = thread.thread if isinstance(thread, ThreadDraft) else thread
    return loaded.records_checked or not has_records(thread.head)


def find_record(txn: lmdb.Transaction, thread: ThreadDraft | Thread, row_key: bytes) -> RecordRow | None:
    """Returns the row of a record, which may have expired; None if there is none. Raises Corrupt, HistoryElsewhere."""
    check_here(thread)
    if not is_checked(thread):
        check_sum(txn, thread)
    return live_row(txn, thread, row_key)


def live_row(txn: lmdb.Transaction, thread: ThreadDraft | Thread, row_key: bytes) -> RecordRow | None:
    """Returns the row of a record that counts; None if there is none. Looks at nothing else. Raises Corrupt."""
    row = RECORD_ROWS.find(txn, thread.identity, row_key)
    return row if row is not None and row.sequence > record_floor(thread) else None


def all_records(txn: lmdb.Transaction, thread: ThreadDraft | Thread) -> Iterator[tuple[bytes, RecordRow]]:
    """Yields row key and row of all records that count. Raises Corrupt or HistoryElsewhere."""
    check_here(thread)
    yield from records_after(txn, thread, b"")


def records_after(
    txn: lmdb.Transaction, thread: ThreadDraft | Thread, after: bytes
) -> Iterator[tuple[bytes, RecordRow]]:
    """Yields the records behind a row key (empty = all) with their row keys. Raises Corrupt.

    ``thread``: as the transaction shows it (``Threads.seen``), else a record that is moved meanwhile may be missing.
    """
    floor = record_floor(thread)
    for key, row in RECORD_ROWS.rows(txn, thread.identity, after=after):
        if row.sequence > floor:
            yield key, row


def check_sum(txn: lmdb.Transaction, thread: ThreadDraft | Thread) -> None:
    """Compares the rows with the sum in the head, once for each thread in memory. Raises Corrupt, HistoryElsewhere.

    A row that was lost or rolled back would let a compare-and-swap succeed that must fail.
    """
    check_here(thread)
    mark_checked(thread, sum_records(txn, thread))


def sum_records(txn: lmdb.Transaction, thread: ThreadDraft | Thread) -> int:
    """Returns the sum of the rows. Raises Corrupt."""
    total, identity = 0, thread.identity
    for key, row in records_after(txn, thread, b""):
        total ^= RECORD_ROWS.part(identity, key, row)
    return total


def are_records_whole(txn: lmdb.Transaction, thread: Thread) -> bool:
    """Returns whether the rows have the sum in the head. Raises Corrupt if a row cannot be read."""
    return sum_records(txn, thread) == int.from_bytes(thread.head.record_sum, "big")


def compare_sum(thread: ThreadDraft | Thread, total: int) -> None:
    """Raises Corrupt if the rows have another sum than the head says."""
    if total != int.from_bytes(thread.head.record_sum, "big"):
        name = thread.identity.name
        raise Corrupt("the row of a record is missing, foreign or older than the thread's head", name)


def mark_checked(thread: ThreadDraft | Thread, total: int) -> None:
    """Notes that the rows have this sum. Raises Corrupt if the head has another one."""
    compare_sum(thread, total)
    (thread.thread if isinstance(thread, ThreadDraft) else thread).records_checked = True


def put_record(
    txn: lmdb.Transaction, identity: Identity, head: ThreadHead, row_key: bytes, old: RecordRow | None, row: RecordRow
) -> None:
    """Puts the row of a record, and counts it in the head."""
    change = RECORD_ROWS.put_counted(txn, identity, row_key, row) ^ RECORD_ROWS.part(identity, row_key, old)
    head.record_sum = add_to_sum(head.record_sum, change)
    if old is not None:
        _count(head, old, -1)
    _count(head, row, 1)
    _move_expiry(txn, identity, head, row_key, old, row)


def drop_record(txn: lmdb.Transaction, identity: Identity, head: ThreadHead, row_key: bytes, old: RecordRow) -> None:
    """Removes the row of a record, and subtracts it from the head."""
    head.record_sum = add_to_sum(head.record_sum, RECORD_ROWS.part(identity, row_key, old))
    _count(head, old, -1)
    txn.delete(row_key)
    _move_expiry(txn, identity, head, row_key, old, None)


def _count(head: ThreadHead, row: RecordRow, sign: int) -> None:
    head.records += sign
    head.record_bytes += sign * facts_bytes(row.facts)
    head.record_stored_bytes += sign * row.stored_bytes


def facts_bytes(facts: RecordFacts) -> int:
    """Returns the bytes of a record's key and value."""
    return len(facts.key.encode()) + facts.value_bytes


# -- expiry -------------------------------------------------------------------------------------------------------


def is_expired(record: RecordFacts | Item, now_us: int) -> bool:
    """Returns whether a record counts as missing."""
    return 0 < record.expire_time_us <= now_us


def _expiry_key(identity: Identity, row_key: bytes, row: RecordRow | None) -> bytes | None:
    if row is None or not row.facts.expire_time_us:
        return None
    second = -(-row.facts.expire_time_us // SECOND_US)
    return identity.keys.record_expiry(second, layout.record_hash(row_key))


def _move_expiry(
    txn: lmdb.Transaction, identity: Identity, head: ThreadHead, row_key: bytes,
    old: RecordRow | None, new: RecordRow | None,
) -> None:  # fmt: skip
    before, after = _expiry_key(identity, row_key, old), _expiry_key(identity, row_key, new)
    if before == after:
        return
    if before is not None:
        txn.delete(before)
    if after is not None:
        txn.put(after, layout.PRESENT)
        second = layout.record_expiry_second(after)
        if not 0 < head.record_expire_second <= second:
            head.record_expire_second = second


def index_expiry(txn: lmdb.Transaction, number: int, before: int, after: int) -> None:
    """Moves the row by which the sweep finds a thread whose records may have expired. 0 = no row."""
    if before != after:
        if before:
            txn.delete(layout.records_expiry_key(before, number))
        if after:
            txn.put(layout.records_expiry_key(after, number), layout.PRESENT)


# -- entries ------------------------------------------------------------------------------------------------------


def open_batch(identity: Identity, entry: Entry) -> RecordBatch:
    """Returns what an entry says about records. Raises Corrupt."""
    try:
        if not entry.header.edit_bytes:  # nothing else authenticates the header
            entry.open_metadata_bytes(identity.cipher, identity.uid)
            return RecordBatch()
        return RecordBatch.FromString(entry.open_edits(identity.cipher, identity.uid))
    except Corrupt as error:
        raise error.locate(identity.name) from None
    except DecodeError:
        raise Corrupt("an entry of records cannot be read", identity.name) from None


def read_value(txn: lmdb.Transaction, identity: Identity, row: RecordRow) -> Value:
    """Returns the value of a record. Raises Corrupt."""
    entry = replay.read_entry(txn, identity, value_sequence(row))
    for change in open_batch(identity, entry).changes:
        if change.facts.key == row.facts.key and change.HasField("value"):
            return change.value
    raise Corrupt("the entry of a record has no value for it", identity.name)


def value_sequence(row: RecordRow) -> int:
    """Returns the sequence of the entry that has the value."""
    return int(row.facts.value_sequence or row.sequence)


def index_batch(txn: lmdb.Transaction, identity: Identity, entry: Entry) -> None:
    """Puts the rows for an entry from the archive, unless there are newer ones. The head counts them already.

    Entries may come in any order, so a deletion leaves a row until all history is here (``forget_gone``).
    """
    sequence, batch = entry.header.sequence, open_batch(identity, entry)
    shares = share_out(stored_bytes(entry), [change.ByteSize() for change in batch.changes])
    for change, share in zip(batch.changes, shares, strict=True):
        facts, row_key = change.facts, record_key(identity, change.facts.key)
        old = _newest(txn, identity, row_key)
        if old is None or old[0] < sequence:
            row = RecordRow(facts=facts, sequence=sequence, stored_bytes=share)
            if not change.HasField("value"):  # its share is that of the entry with its value
                row.stored_bytes = facts.value_stored_bytes
            _replace(txn, identity, row_key, old[1] if old else None, row)
    for key in batch.deleted:
        row_key = record_key(identity, key)
        old = _newest(txn, identity, row_key)
        if old is None or old[0] < sequence:
            _replace(txn, identity, row_key, old[1] if old else None, None)
            txn.put(identity.keys.gone_record(layout.record_hash(row_key)), layout.u64(sequence))


def _newest(txn: lmdb.Transaction, identity: Identity, row_key: bytes) -> tuple[int, RecordRow | None] | None:
    """Returns the sequence of the newest known entry about a record, and its row unless it was deleted."""
    row = RECORD_ROWS.find(txn, identity, row_key)
    if row is not None:
        return row.sequence, row
    gone = txn.get(identity.keys.gone_record(layout.record_hash(row_key)))
    return (layout.leading_number(gone), None) if gone is not None else None


def _replace(
    txn: lmdb.Transaction, identity: Identity, row_key: bytes, old: RecordRow | None, new: RecordRow | None
) -> None:
    before, after = _expiry_key(identity, row_key, old), _expiry_key(identity, row_key, new)
    if before is not None:
        txn.delete(before)
    if after is not None:
        txn.put(after, layout.PRESENT)
    if new is None:
        txn.delete(row_key)
        return
    RECORD_ROWS.put(txn, identity, row_key, new)
    txn.delete(identity.keys.gone_record(layout.record_hash(row_key)))


def forget_gone(txn: lmdb.Transaction, identity: Identity) -> None:
    """Removes the rows of deleted records: all history is here, so nothing older can come."""
    for key in [key for key, _ in rows(txn, identity.keys.all_of(b"U"))]:
        txn.delete(key)


def share_out(entry_bytes: int, sizes: list[int]) -> list[int]:
    """Divides the stored bytes of an entry among its records, by their sizes."""
    total = sum(sizes) or 1
    return [entry_bytes * size // total for size in sizes]


# -- views --------------------------------------------------------------------------------------------------------


def view_record(facts: RecordFacts, value: Value | None = None) -> StoredRecord:
    """The contract's message for a record."""
    view = StoredRecord(
        key=facts.key, attributes=facts.attributes, revision=facts.revision, value_bytes=facts.value_bytes
    )
    if value is not None:
        view.value.CopyFrom(value)
    view.create_time.FromMicroseconds(facts.create_time_us)
    view.update_time.FromMicroseconds(facts.update_time_us)
    if facts.ttl_us:
        view.ttl.FromMicroseconds(facts.ttl_us)
        view.expire_time.FromMicroseconds(facts.expire_time_us)
    return view


def verify_records(txn: lmdb.Transaction, thread: Thread) -> Iterator[Corrupt]:
    """Compares all rows with the sum in the head, and each row with the entries that it names. Yields the damage."""
    identity = thread.identity
    is_gone = thread.archive is not None and thread.archive.records_gone
    if is_gone or not has_records(thread.head) or thread.floor_sequence > record_floor(thread):
        return  # a copy without all entries is not read either
    try:
        check_sum(txn, thread)
    except Corrupt as error:
        yield error.locate(identity.name)
        return
    second = thread.head.record_expire_second
    if second and txn.get(layout.records_expiry_key(second, identity.number)) is None:
        yield Corrupt("the row of the expiry of the thread's records is missing", identity.name)
    opened = 0, RecordBatch()
    for row_key, row in sorted(all_records(txn, thread), key=lambda item: item[1].sequence):
        try:
            expiry_key = _expiry_key(identity, row_key, row)
            if expiry_key is not None and txn.get(expiry_key) is None:
                raise Corrupt("the row of a record's expiry is missing", identity.name)
            if opened[0] != row.sequence:
                entry = replay.read_entry(txn, identity, row.sequence)
                opened = row.sequence, open_batch(identity, entry)
            if not any(change.facts == row.facts for change in opened[1].changes):
                raise Corrupt("the row of a record differs from its journal entry", identity.name)
            if row.facts.value_sequence:
                read_value(txn, identity, row)
        except Corrupt as error:
            yield error.locate(identity.name)


class RecordKind(Kind):
    """Records that were written, refreshed, deleted, or moved to a newer entry."""

    number = ENTRY_KIND_RECORDS

    def removed(self, pruned: Pruned) -> Ranges:
        """Those up to the floor."""
        return pruned.records

    def tell(self, watched: Watched, event: JournalEvent) -> bool:
        """Which ones, to a watch that asks for them; nothing of an entry that changed none, or that counts for nothing
        any more."""
        thread, entry = watched.thread, watched.entry
        if not watched.include_records or entry.is_husk or entry.header.sequence in thread.pruned.records:
            return False
        found = open_batch(thread.identity, entry)
        written = [change.facts for change in found.changes if change.HasField("value")]
        is_moved = found.moved or not entry.header.edit_bytes  # without records if none is left
        if not (written or found.deleted or is_moved):  # a refresh
            return False
        for facts in written:
            facts.ClearField("attributes")
            event.records_changed.written.append(view_record(facts))
        event.records_changed.deleted.extend(found.deleted)
        event.records_changed.expired, event.records_changed.moved = found.expired, is_moved
        return True

    def index(
        self, txn: lmdb.Transaction, draft: ThreadDraft, entry: Entry, metadata: EntryMetadata, *, is_whole: bool
    ) -> None:
        """The rows of the records."""
        if is_whole:
            index_batch(txn, draft.identity, entry)

    def verify(self, txn: lmdb.Transaction, thread: Thread) -> Iterator[Corrupt]:
        """All rows, and their sum in the head."""
        return verify_records(txn, thread)


RECORDS = RecordKind()
