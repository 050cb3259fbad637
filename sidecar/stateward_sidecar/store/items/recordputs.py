"""Writes and deletes records: the verbs, and the entries that they append.

Appends entries of records: what they say in the second part, their rows, and what the head counts. In the writer.

A call may leave many records. Each entry costs a seal, a digest and a head, so records share entries, up to
``ENTRY_VALUES_BYTES`` in one. A larger value has an entry of its own, so a read of one record opens little beside it.

Writes and deletes records. Each verb returns a function for the writer.

Order of checks: request id → ownership and lease → expected revisions → limits. All changes of a call are put or none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import lmdb

from stateward.storage.v1.head_pb2 import RecordRow, ThreadHead
from stateward.storage.v1.journal_pb2 import (
    EntryMetadata,
    RecordBatch,
    RecordChange,
    RecordFacts,
    RecordsBody,
)
from stateward.v1.record_pb2 import RecordWrite
from stateward.v1.record_service_pb2 import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    PutRecordsRequest,
    PutRecordsResponse,
)
from stateward.v1.thread_pb2 import ThreadOptions
from stateward.v1.write_pb2 import Receipt
from stateward_sidecar.codec.entry import draft as draft_content
from stateward_sidecar.errors import QuotaExceeded, RecordConflict
from stateward_sidecar.storage.queue import Batch
from stateward_sidecar.store.journal import replay
from stateward_sidecar.store.journal.admitting import admit, find_draft, get_draft, next_token, other_creation
from stateward_sidecar.store.journal.journal import all_or_none, append, commit_entry
from stateward_sidecar.store.journal.opening import describe_creation, opened, settle_options
from stateward_sidecar.store.journal.requests import find_request, fingerprint, hash_request
from stateward_sidecar.store.journal.views import newest_receipt, receipt_of
from stateward_sidecar.store.kinds.record import (
    RECORDS,
    drop_record,
    facts_bytes,
    find_record,
    index_expiry,
    is_expired,
    put_record,
    record_key,
    share_out,
    value_sequence,
)
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.recordorder import OrderChange
from stateward_sidecar.store.thread.thread import ThreadDraft
from stateward_sidecar.store.thread.threads import Threads, not_found
from stateward_sidecar.store.thread.times import WRONG_US

ENTRY_VALUES_BYTES = 16 << 10


@dataclass(slots=True)
class Changed:
    """A record that an entry leaves in another way. ``change``: None = it is deleted."""

    key: str
    row_key: bytes
    old: RecordRow | None
    change: RecordChange | None = None

    @property
    def size_bytes(self) -> int:
        return self.change.ByteSize() if self.change is not None else len(self.key)


@dataclass(slots=True)
class About:
    """What else the entries of a call say. The facts of the request are in the last entry."""

    metadata: EntryMetadata = field(default_factory=EntryMetadata)
    create: ThreadOptions = field(default_factory=ThreadOptions)
    is_expired: bool = False  # the deleted records had expired
    is_moved: bool = False  # no record is changed
    # Called with the draft and the head before the last head is written; returns the row sums that changed.
    settle: Callable[[ThreadDraft, ThreadHead], dict[bytes, int]] | None = None


def divide(changes: Sequence[Changed]) -> list[list[Changed]]:
    """Divides changes among entries, in their order."""
    groups, size_bytes = list[list[Changed]](), ENTRY_VALUES_BYTES
    for each in changes:
        size_bytes += each.size_bytes
        if size_bytes > ENTRY_VALUES_BYTES or not groups:
            groups.append([])
            size_bytes = each.size_bytes
        groups[-1].append(each)
    return groups


def append_changes(
    context: Context, threads: Threads, txn: lmdb.Transaction, batch: Batch, draft: ThreadDraft,
    groups: Sequence[Sequence[Changed]], about: About,
) -> None:  # fmt: skip
    """Appends an entry for each group, with their rows. If there are several groups, the caller uses ``whole``."""
    for at, group in enumerate(groups, 1):
        _append(context, threads, txn, batch, draft, group, about, is_last=at == len(groups))


def _append(
    context: Context, threads: Threads, txn: lmdb.Transaction, batch: Batch, draft: ThreadDraft,
    group: Sequence[Changed], about: About, *, is_last: bool,
) -> None:  # fmt: skip
    identity, old_head = draft.identity, draft.head
    metadata = EntryMetadata()
    if is_last:
        metadata.CopyFrom(about.metadata)
    describe_creation(draft, metadata, about.create)
    content = draft_content(metadata, _batch_of(group, about).SerializeToString(deterministic=True) if group else b"")
    entry = append(context, txn, draft, RECORDS, content, request_hash=metadata.request_hash)
    head, sequence = entry.head, entry.header.sequence
    if sequence == 1:
        settle_options(txn, draft, old_head, head, about.create)
    if group:  # an entry that only raises the floor never goes, and does not count
        head.record_entry_bytes += entry.stored_bytes
    order = list[OrderChange]()
    for each, row in _rows_of(group, sequence, entry.stored_bytes):
        if row is not None:
            put_record(txn, identity, head, each.row_key, each.old, row)
            order.append(OrderChange.put(each.row_key, row))
        elif each.old is not None:
            drop_record(txn, identity, head, each.row_key, each.old)
            order.append(OrderChange.gone(each.key))
    sums = about.settle(draft, head) if is_last and about.settle is not None else {}
    index_expiry(txn, identity.number, old_head.record_expire_second, head.record_expire_second)
    is_bounded = not about.is_expired and not about.is_moved and any(each.change is not None for each in group)
    commit_entry(context, txn, batch, draft, entry, sums, is_bounded=is_bounded)
    threads.keep_draft(batch, draft)
    if not draft.record_changes:
        batch.after_commit.append(partial(_show, context, draft, old_head.record_sum))
    draft.record_changes.extend(order)


def _show(context: Context, draft: ThreadDraft, sum_before: bytes) -> None:
    """Takes over in the order what a batch changed. Called once for each batch: readers see no order in between."""
    number, sum_after = draft.identity.number, draft.head.record_sum
    context.cache.change_record_order(number, draft.record_changes, sum_before, sum_after)


def _batch_of(group: Sequence[Changed], about: About) -> RecordBatch:
    made = RecordBatch(expired=about.is_expired, moved=about.is_moved)
    for each in group:
        if each.change is not None:
            made.changes.append(each.change)
        else:
            made.deleted.append(each.key)
    return made


def _rows_of(group: Sequence[Changed], sequence: int, stored_bytes: int) -> Iterator[tuple[Changed, RecordRow | None]]:
    """Yields each change with its row. ``recordrows.index_batch`` makes the same rows of the entry."""
    kept = [each for each in group if each.change is not None]
    shares = iter(share_out(stored_bytes, [each.size_bytes for each in kept]))
    for each in group:
        if each.change is None:
            yield each, None
            continue
        row = RecordRow(facts=each.change.facts, sequence=sequence, stored_bytes=next(shares))
        if not each.change.HasField("value"):
            row.stored_bytes = row.facts.value_stored_bytes
        yield each, row


RECORDS_MAX, RECORD_BYTES_MAX = 100_000, 1 << 30
# A read refreshes a record only if at least this part of its TTL has passed since the last refresh.
REFRESH_SHARE = 10
# What a write is allowed to take besides its values: an entry, and the pages of a row.
ENTRY_BYTES, ROW_BYTES = 16384, 8192


def size_of(request: PutRecordsRequest, message_bytes: int) -> int:
    """Returns about how much space a write takes."""
    return ENTRY_BYTES + ROW_BYTES * len(request.writes) + message_bytes


@dataclass(frozen=True, slots=True)
class ToDelete:
    """What a DeleteRecords deletes, as it was read."""

    revisions: Mapping[str, int]  # by key
    has_more: bool  # more records have the prefix
    uid: str  # of the thread


class RecordPuts:
    """The verbs that write records."""

    def __init__(self, context: Context, threads: Threads) -> None:
        self._context = context
        self._threads = threads

    # -- put ------------------------------------------------------------------------------------------------------

    def put(self, request: PutRecordsRequest) -> Callable[[lmdb.Transaction, Batch], PutRecordsResponse]:
        """Returns the write of PutRecords. It raises RecordConflict and QuotaExceeded."""
        mark, request_hash = fingerprint(request), hash_request(request.options.request_id)

        def run(txn: lmdb.Transaction, batch: Batch) -> PutRecordsResponse:
            if not makes_records(request) and find_draft(self._threads, txn, batch, request) is None:
                return put_nothing(request)  # without a value there is nothing to make a thread for
            with opened(self._context, self._threads, txn, batch, request) as draft:
                found = find_request(txn, draft, request.options.request_id, mark)
                if found is not None:
                    body = replay.open_metadata(draft.identity, found).records
                    return _put_answer(receipt_of(txn, draft, found.header.sequence, replayed=True), body)
                admit(self._context, draft, request.options, needs_lease=True)
                changes = self._changes(txn, draft, request.writes)
                body = RecordsBody(
                    written=sum(each.change is not None for each in changes), deleted=self._count_deleted(changes)
                )
                if not changes:
                    return _put_answer(newest_receipt(draft), body)
                _check_limits(draft, changes)
                groups = divide(changes)
                body.revision = next_token(draft, len(groups)) if body.written else 0
                for each in changes:
                    if each.change is not None:
                        each.change.facts.revision = body.revision
                metadata = EntryMetadata(request_hash=request_hash, fingerprint=mark, records=body)
                with all_or_none(batch, draft):
                    about = About(metadata, request.options.create)
                    append_changes(self._context, self._threads, txn, batch, draft, groups, about)
                return _put_answer(newest_receipt(draft), body)

        return run

    def _changes(self, txn: lmdb.Transaction, draft: ThreadDraft, writes: Sequence[RecordWrite]) -> list[Changed]:
        """Returns what the writes change. Raises RecordConflict."""
        now_us, changes = self._context.clock.now_us(), list[Changed]()
        for index, write in enumerate(writes):
            row_key = record_key(draft.identity, write.key)
            row = find_record(txn, draft, row_key)
            live = row if row is not None and not is_expired(row.facts, now_us) else None
            if write.HasField("expected_revision"):
                _check_revision(draft.identity.name, index, write, live)
            kind = write.WhichOneof("change")
            if kind == "value":
                changes.append(Changed(write.key, row_key, row, _written(write, live, now_us)))
            elif kind == "delete" and row is not None:
                changes.append(Changed(write.key, row_key, row))
        return changes

    # -- delete ---------------------------------------------------------------------------------------------------

    def delete(
        self, request: DeleteRecordsRequest, read: ToDelete
    ) -> Callable[[lmdb.Transaction, Batch], DeleteRecordsResponse]:
        """Returns the write of DeleteRecords. It raises ThreadNotFound or UidMismatch if the thread that was read
        is gone.

        A record that was written since then stays, so the call never deletes a part of another call's put.
        """
        mark, request_hash = fingerprint(request), hash_request(request.options.request_id)

        def run(txn: lmdb.Transaction, batch: Batch) -> DeleteRecordsResponse:
            draft = get_draft(self._threads, txn, batch, request)
            found = find_request(txn, draft, request.options.request_id, mark)
            if found is not None:
                body = replay.open_metadata(draft.identity, found).records
                return _delete_answer(receipt_of(txn, draft, found.header.sequence, replayed=True), body)
            admit(self._context, draft, request.options, needs_lease=True)
            if draft.identity.uid_text != read.uid:  # its records may have the same keys and revisions
                raise other_creation(draft.identity, read.uid)
            rows = ((key, record_key(draft.identity, key)) for key in read.revisions)
            found_rows = ((key, row_key, find_record(txn, draft, row_key)) for key, row_key in rows)
            changes = [
                Changed(key, row_key, row) for key, row_key, row in found_rows
                if row is not None and row.facts.revision == read.revisions[key]
            ]  # fmt: skip
            body = RecordsBody(deleted=self._count_deleted(changes), has_more=read.has_more)
            if changes:
                metadata = EntryMetadata(request_hash=request_hash, fingerprint=mark, records=body)
                with all_or_none(batch, draft):
                    append_changes(self._context, self._threads, txn, batch, draft, divide(changes), About(metadata))
            return _delete_answer(newest_receipt(draft), body)

        return run

    def _count_deleted(self, changes: Sequence[Changed]) -> int:
        """Returns how many records are deleted. Those that had expired are removed, too, and do not count."""
        now_us = self._context.clock.now_us()
        return sum(each.change is None and not _has_expired(each.old, now_us) for each in changes)

    # -- refresh --------------------------------------------------------------------------------------------------

    def refresh(
        self, namespace: str, name: str, uid: str, keys: Sequence[str]
    ) -> Callable[[lmdb.Transaction, Batch], dict[str, int]]:
        """Returns the write that begins the TTL of records anew, if it is due and the thread still has the uid.

        The write returns the new times of expiry by key. It raises ThreadNotFound, UidMismatch or NotOwner.
        """

        def run(txn: lmdb.Transaction, batch: Batch) -> dict[str, int]:
            draft = self._threads.draft(txn, batch, namespace, name)
            if draft is None:
                raise not_found(namespace, name)
            if draft.identity.uid_text != uid:
                raise other_creation(draft.identity, uid)
            draft.check_writable()
            now_us, changes = self._context.clock.now_us(), list[Changed]()
            for key in keys:
                row_key = record_key(draft.identity, key)
                row = find_record(txn, draft, row_key)
                if row is None or not is_refresh_due(row.facts, now_us):
                    continue
                facts = RecordFacts()
                facts.CopyFrom(row.facts)
                facts.expire_time_us = now_us + facts.ttl_us
                facts.value_sequence, facts.value_stored_bytes = value_sequence(row), row.stored_bytes
                changes.append(Changed(key, row_key, row, RecordChange(facts=facts)))
            if changes:
                with all_or_none(batch, draft):
                    append_changes(self._context, self._threads, txn, batch, draft, divide(changes), About())
            return {each.key: each.change.facts.expire_time_us for each in changes if each.change is not None}

        return run


def is_refresh_due(facts: RecordFacts, now_us: int) -> bool:
    """Returns whether enough of a record's TTL has passed for a refresh to be worth a write."""
    if not facts.ttl_us or is_expired(facts, now_us):
        return False
    passed_us = now_us + facts.ttl_us - facts.expire_time_us
    # If the record was put in the future, a clock was wrong.
    return passed_us * REFRESH_SHARE >= facts.ttl_us or passed_us < -WRONG_US


def _has_expired(row: RecordRow | None, now_us: int) -> bool:
    return row is not None and is_expired(row.facts, now_us)


def makes_records(request: PutRecordsRequest) -> bool:
    """Returns whether a call writes a value, so that it may make the thread."""
    return any(write.HasField("value") for write in request.writes)


def put_nothing(request: PutRecordsRequest) -> PutRecordsResponse:
    """Returns the answer of a call without values on a thread that does not exist. Raises RecordConflict."""
    for index, write in enumerate(request.writes):
        if write.HasField("expected_revision"):
            _check_revision(request.thread, index, write, None)
    return PutRecordsResponse(receipt=Receipt())


def _written(write: RecordWrite, live: RecordRow | None, now_us: int) -> RecordChange:
    facts = RecordFacts(
        key=write.key, attributes=write.attributes, create_time_us=now_us, update_time_us=now_us,
        value_bytes=len(write.value.data),
    )  # fmt: skip
    if live is not None:
        facts.create_time_us = live.facts.create_time_us
    if write.HasField("ttl"):
        facts.ttl_us = write.ttl.ToMicroseconds()
        facts.expire_time_us = now_us + facts.ttl_us
    return RecordChange(facts=facts, value=write.value)


def _check_revision(thread: str, index: int, write: RecordWrite, live: RecordRow | None) -> None:
    current = live.facts.revision if live is not None else 0
    if write.expected_revision != current:
        has = f"has revision {current}" if current else "does not exist"
        raise RecordConflict(
            f"record {write.key!r} of thread {thread!r} {has}, and revision {write.expected_revision} was expected; "
            "nothing was written", thread=thread, key=write.key, write=index,
            current_revision=current, expected_revision=write.expected_revision,
        )  # fmt: skip


def _check_limits(draft: ThreadDraft, changes: Sequence[Changed]) -> None:
    head, name = draft.head, draft.identity.name
    count, size_bytes = head.records, head.record_bytes
    for each in changes:
        count += (each.change is not None) - (each.old is not None)
        size_bytes += facts_bytes(each.change.facts) if each.change is not None else 0
        size_bytes -= facts_bytes(each.old.facts) if each.old is not None else 0
    if count > max(RECORDS_MAX, head.records):
        raise QuotaExceeded(
            f"thread {name!r} would have {count} records, more than {RECORDS_MAX}; nothing was written",
            thread=name, records=count, limit=RECORDS_MAX,
        )  # fmt: skip
    if size_bytes > max(RECORD_BYTES_MAX, head.record_bytes):
        raise QuotaExceeded(
            f"the records of thread {name!r} would have {size_bytes} bytes, more than {RECORD_BYTES_MAX}; nothing was "
            "written", thread=name, size_bytes=size_bytes, limit_bytes=RECORD_BYTES_MAX,
        )  # fmt: skip


def _put_answer(receipt: Receipt, body: RecordsBody) -> PutRecordsResponse:
    return PutRecordsResponse(receipt=receipt, revision=body.revision, written=body.written, deleted=body.deleted)


def _delete_answer(receipt: Receipt, body: RecordsBody) -> DeleteRecordsResponse:
    return DeleteRecordsResponse(receipt=receipt, deleted=body.deleted, has_more=body.has_more)
