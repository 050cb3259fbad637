"""Appends entries of records: what they say in the second part, their rows, and what the head counts. In the writer.

A call may leave many records. Each entry costs a seal, a digest and a head, so records share entries, up to
``ENTRY_VALUES_BYTES`` in one. A larger value has an entry of its own, so a read of one record opens little beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import lmdb

from stateward.storage.v1.head_pb2 import RecordRow, ThreadHead
from stateward.storage.v1.journal_pb2 import (
    EntryMetadata,
    RecordBatch,
    RecordChange,
)
from stateward.v1.thread_pb2 import ThreadOptions
from stateward_sidecar.codec.entry import draft as draft_content
from stateward_sidecar.storage.queue import Batch
from stateward_sidecar.store.journal.journal import append, commit_entry
from stateward_sidecar.store.journal.opening import describe_creation, settle_options
from stateward_sidecar.store.kinds.record import RECORDS
from stateward_sidecar.store.kinds.recordrows import (
    drop_record,
    index_expiry,
    put_record,
    share_out,
)
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.recordorder import OrderChange
from stateward_sidecar.store.thread.thread import ThreadDraft
from stateward_sidecar.store.thread.threads import Threads

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
    commit_entry(context, txn, batch, draft, entry, sums)
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
