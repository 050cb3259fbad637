"""Deletes expired records, and keeps the journal of records small.

Keeps the journal of records small, as a log that is cleaned from its beginning.

When the entries of records have much more bytes than the records that are left, the oldest entries are read. The
records among them that have no newer entry are appended again, and the floor rises to the last entry that was read.
Below the floor no entry of records counts. ``clear.py`` clears them as it clears the values of deleted effects.

Each step is one small transaction: entry, rows, floor, and the row that lists what to clear. The entry with which it
begins is found outside the writer, because any number of saves may lie before it.

Deletes expired records, a bounded number in each step. Part of the sweep.

A record is hidden from the moment it expires (``record.is_expired``), so a late sweep shows nobody an old record. A
store-wide row leads to the threads whose records may have expired, and rows of the thread to these records.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import lmdb

from stateward.storage.v1.head_pb2 import ThreadHead
from stateward.storage.v1.journal_pb2 import (
    EntryMetadata,
    RecordChange,
    RecordFacts,
    RecordsBody,
)
from stateward_sidecar.codec.entry import stored_bytes, unpack
from stateward_sidecar.errors import ShuttingDown, StatewardError
from stateward_sidecar.storage import layout
from stateward_sidecar.storage.queue import Batch, Write
from stateward_sidecar.store.clean.lineage import read_uncleared, write_uncleared
from stateward_sidecar.store.clean.prune import Pruner, is_whole
from stateward_sidecar.store.items.recordputs import About, Changed, append_changes, divide
from stateward_sidecar.store.journal.opening import is_still_ours
from stateward_sidecar.store.kinds.record import (
    RECORDS,
    index_expiry,
    is_expired,
    live_row,
    open_batch,
    read_value,
    record_floor,
    record_key,
    value_sequence,
)
from stateward_sidecar.store.thread import blocks
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.ranges import Ranges
from stateward_sidecar.store.thread.thread import Thread, ThreadDraft, rows, write_head, write_row
from stateward_sidecar.store.thread.threads import NameLock, Threads
from stateward_sidecar.store.thread.times import SECOND_US
from stateward_sidecar.telemetry import failures, log_damage

# Entries may have this many bytes more than the records that are left have twice.
SLACK_BYTES = 256 << 10
# A read outside the writer passes over this many sequences.
FOUND_AT_ONCE = 1000
# A step ends after this many bytes of values, entries, or seconds, but not before its first entry.
STEP_BYTES, STEP_ENTRIES, STEP_S = 128 << 10, 1000, 0.003


def is_due(head: ThreadHead) -> bool:
    """Returns whether dead entries outweigh the live records enough to clean the journal."""
    slack = SLACK_BYTES if head.records else 0
    return bool(head.record_entry_bytes > 2 * head.record_stored_bytes + slack)


@dataclass(frozen=True, slots=True)
class _Begin:
    """The entry with which a step begins."""

    sequence: int
    digest: bytes


@dataclass(slots=True)
class _Step:
    """What one step read: records to append again, the last entry, and the bytes of all entries of records."""

    moved: list[Changed] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)
    last: int = 0
    value_bytes: int = 0
    entry_bytes: int = 0


class RecordMover:
    """Moves records, and raises the floor, on background workers."""

    def __init__(self, context: Context, threads: Threads, pruner: Pruner) -> None:
        self._context = context
        self._threads = threads
        self._pruner = pruner
        self._pending = set[int]()

    def consider(self, namespace: str, name: str) -> None:
        """Starts a move in the background if one is due. Call it after a change of records was committed."""
        thread = self._threads.cached(namespace, name)
        if thread is not None and is_due(thread.head):
            self.start(thread)

    def start(self, thread: Thread) -> None:
        """Starts a move in the background, unless one is under way. The next change or sweep starts what fails."""
        if thread.number in self._pending:
            return
        self._pending.add(thread.number)
        try:
            self._context.background.submit(self._run, thread)
        except RuntimeError:  # the daemon is stopping
            self._pending.discard(thread.number)

    def _run(self, thread: Thread) -> None:
        try:
            self.move(thread)
        except ShuttingDown:
            pass  # the next change or sweep after the start continues
        except StatewardError as error:
            log_damage("records are not moved", error, uid=thread.identity.uid_text)
        except Exception:  # noqa: BLE001  (nobody waits for this task, so the error is logged and counted)
            failures.note("records", uid=thread.identity.uid_text)
        finally:
            self._pending.discard(thread.number)

    def move(self, thread: Thread) -> None:
        """Moves records until no move is due, then clears the entries below the floor. Waits for the writer.

        It passes over the journal once. If a move is still due then, the head may count too many bytes: they are
        counted anew, or each change would move everything again.
        """
        namespace, name = thread.identity.namespace, thread.name
        with self._pruner.alone(namespace, name):
            end, last = self._tip(thread), 0
            while last < end and (moved := self.step(thread)):
                last = moved
            if last:
                self._pruner.clear_up(thread.number)
            if last and last >= end:
                self._recount(thread)

    def step(self, thread: Thread) -> int:
        """Makes one step of a move. Returns the last entry that it read; 0 = nothing was moved, and the next change
        begins again."""
        begin = self._find(thread)
        return self._write(self._step(thread, begin)) if begin is not None else 0

    def _write(self, run: Callable[[lmdb.Transaction, Batch], int]) -> int:
        # Not a background write: under load it might never run, and the journal would grow.
        return int(self._context.writer.submit(Write(run=run, is_alone=True, frees_space=True), wait=True).wait())

    def _tip(self, thread: Thread) -> int:
        with self._context.engine.read() as txn:
            live = self._threads.by_number(txn, thread.number)
            return live.head.tip_sequence if live is not None else 0

    def _recount(self, thread: Thread) -> None:
        """Counts the bytes of the entries that count, if a move is due right behind another one."""
        at = size_bytes = floor = 0
        while True:  # in short reads; only what comes meanwhile is counted in the writer
            with self._context.engine.read() as txn:
                live = self._threads.by_number(txn, thread.number)
                if live is None or not _may_move(live):
                    return
                floor = floor or record_floor(live)
                last, some = _count(txn, live, max(at, floor), FOUND_AT_ONCE)
                size_bytes += some
            if last == at:
                break
            at = last

        def run(txn: lmdb.Transaction, batch: Batch) -> int:
            draft = self._threads.draft(txn, batch, thread.identity.namespace, thread.name)
            if draft is None or draft.identity.number != thread.number or record_floor(draft) != floor:
                return 0
            head = draft.next_head()
            head.record_entry_bytes = size_bytes + _count(txn, draft, max(at, floor))[1]
            write_head(txn, draft.identity, head)
            draft.head = head
            self._threads.keep_draft(batch, draft)
            return 0

        self._write(run)

    def _find(self, thread: Thread) -> _Begin | None:
        """Returns the first entry of records that counts; None if there is nothing to move. Raises Corrupt."""
        namespace, name, last = thread.identity.namespace, thread.name, _Begin(0, b"")
        while True:
            with self._context.engine.read() as txn:
                live = self._threads.find(txn, namespace, name)
                if live is None or live.number != thread.number:
                    return None
                seen, before = self._threads.seen(txn, live), last
                if not _may_move(seen) or (last.sequence and not _is_there(txn, seen, last)):
                    return None
                for sequence, record in blocks.entries(txn, seen.identity.keys, _first(seen, last)):
                    header = unpack(record, sequence).header
                    last = _Begin(sequence, header.digest)
                    if header.kind == RECORDS.number:
                        return last
                    if sequence >= before.sequence + FOUND_AT_ONCE:
                        break
            if last == before:
                return None

    def _step(self, thread: Thread, begin: _Begin) -> Callable[[lmdb.Transaction, Batch], int]:
        """Returns the write of one step. The write returns the last entry that it read; 0 = it moved nothing."""

        def run(txn: lmdb.Transaction, batch: Batch) -> int:
            draft = self._threads.draft(txn, batch, thread.identity.namespace, thread.name)
            if draft is None or draft.identity.number != thread.number or not _may_move(draft):
                return 0
            if not _is_there(txn, draft, begin):
                return 0
            step = self._read(txn, draft, begin.sequence)
            self._append(txn, batch, draft, step)
            return step.last

        return run

    def _read(self, txn: lmdb.Transaction, draft: ThreadDraft, first: int) -> _Step:
        """Reads the oldest entries that count, from the first one of records on. Raises Corrupt."""
        step, until, count = _Step(), time.perf_counter() + STEP_S, 0
        for sequence, record in blocks.entries(txn, draft.identity.keys, first):
            is_over = step.value_bytes >= STEP_BYTES or count >= STEP_ENTRIES or time.perf_counter() > until
            if step.last and is_over:
                break
            entry, count = unpack(record, sequence), count + 1
            if entry.header.kind == RECORDS.number:
                found = open_batch(draft.identity, entry)
                for change in found.changes:
                    self._take(txn, draft, step, sequence, change)
                step.entry_bytes += stored_bytes(entry) if entry.header.edit_bytes else 0
                step.last = sequence
        return step

    def _take(
        self, txn: lmdb.Transaction, draft: ThreadDraft, step: _Step, sequence: int, change: RecordChange
    ) -> None:
        """Adds a record to those that are appended again, if the entry is its newest one or has its value."""
        identity, key = draft.identity, change.facts.key
        row_key = record_key(identity, key)
        row = live_row(txn, draft, row_key)
        if row is None or key in step.keys or sequence not in (row.sequence, value_sequence(row)):
            return
        is_here = value_sequence(row) == sequence and change.HasField("value")
        value = change.value if is_here else read_value(txn, identity, row)
        facts = RecordFacts()
        facts.CopyFrom(row.facts)
        facts.ClearField("value_sequence")
        facts.ClearField("value_stored_bytes")
        step.moved.append(Changed(key, row_key, row, RecordChange(facts=facts, value=value)))
        step.keys.add(key)
        step.value_bytes += facts.value_bytes

    def _append(self, txn: lmdb.Transaction, batch: Batch, draft: ThreadDraft, step: _Step) -> None:
        number = draft.identity.number
        new = Ranges([(record_floor(draft) + 1, step.last)])
        after = draft.pruned.with_records(Ranges([(1, step.last)]))

        def settle(draft: ThreadDraft, head: ThreadHead) -> dict[bytes, int]:
            head.record_entry_bytes = max(head.record_entry_bytes - step.entry_bytes, 0)
            return dict([write_row(txn, draft, head, draft.identity.keys.pruned(), after.to_message())])

        metadata = EntryMetadata(records=RecordsBody(floor_sequence=step.last))
        uncleared = read_uncleared(txn, number, draft.pruned)
        groups = divide(step.moved) or [[]]
        about = About(metadata, is_moved=True, settle=settle)
        append_changes(self._context, self._threads, txn, batch, draft, groups, about)
        write_uncleared(txn, number, uncleared.with_records(new))
        draft.pruned = after


def _may_move(thread: ThreadDraft | Thread) -> bool:
    """Returns whether a move is due, and all entries above the floor are here, so that none of them is passed over."""
    owned = thread.thread if isinstance(thread, ThreadDraft) else thread
    return is_due(thread.head) and is_whole(owned) and thread.floor_sequence <= record_floor(thread)


def _count(txn: lmdb.Transaction, thread: ThreadDraft | Thread, after: int, most: int = 0) -> tuple[int, int]:
    """Returns the last entry up to which bytes were counted, and their number. ``most``: so many sequences at once."""
    size_bytes, at = 0, after
    for sequence, record in blocks.entries(txn, thread.identity.keys, after + 1):
        at, entry = sequence, unpack(record, sequence)
        if entry.header.kind == RECORDS.number and entry.header.edit_bytes:
            size_bytes += stored_bytes(entry)
        if most and sequence > after + most:
            break
    return at, size_bytes


def _first(thread: Thread, last: _Begin) -> int:
    return max(record_floor(thread), last.sequence) + 1


def _is_there(txn: lmdb.Transaction, thread: ThreadDraft | Thread, found: _Begin) -> bool:
    """Returns whether an entry is still there, and above the floor. Raises Corrupt.

    The digest of an entry names those before it. So the same digest means the same history up to there.
    """
    record = blocks.get_entry(txn, thread.identity.keys, found.sequence)
    is_same = record is not None and unpack(record, found.sequence).header.digest == found.digest
    return is_same and found.sequence > record_floor(thread)


RECORDS_A_STEP, STEPS_A_ROUND, THREADS_A_ROUND = 100, 100, 20_000


class RecordExpirer:
    """Runs on a background worker, as a part of the sweep."""

    def __init__(self, context: Context, threads: Threads, mover: RecordMover) -> None:
        self._context = context
        self._threads = threads
        self._mover = mover
        self._alone = NameLock()  # those who need room wait for the one who makes it

    def sweep(self) -> None:
        """Deletes records that have expired, of threads that this sidecar may change."""
        now = self._context.clock.now_us() // SECOND_US
        with self._context.engine.read() as txn:
            found = list[int]()
            for key, _ in rows(txn, b"R"):
                second, number = layout.unpack_expiry(key)
                if second > now or len(found) >= THREADS_A_ROUND:
                    break
                found.append(number)
        for number in found:
            try:
                with self._context.engine.read() as txn:
                    thread = self._threads.by_number(txn, number)
                if thread is not None and is_whole(thread) and is_still_ours(self._context, thread):
                    self._expire(thread)
            except ShuttingDown:
                raise
            except StatewardError as error:
                log_damage("expired records are not deleted", error, number=number)

    def expire(self, namespace: str, name: str) -> None:
        """Deletes the expired records of one thread, because they take the place of others. Waits for the writer."""
        with self._alone.of((namespace, name)):
            with self._context.engine.read() as txn:
                thread = self._threads.find(txn, namespace, name)
            second = thread.head.record_expire_second if thread is not None else 0
            if thread is not None and 0 < second <= self._context.clock.now_us() // SECOND_US and is_whole(thread):
                self._expire(thread)

    def _expire(self, thread: Thread) -> None:
        for _ in range(STEPS_A_ROUND):
            # Not a background write: under load it might never run, and the scope would fill with expired records.
            write = Write(run=self._step(thread), frees_space=True, is_alone=True)
            if not self._context.writer.submit(write, wait=True).wait():
                break
        self._mover.consider(thread.identity.namespace, thread.name)

    def _step(self, thread: Thread) -> Callable[[lmdb.Transaction, Batch], bool]:
        """Returns the write of one step. The write returns whether there is more to do."""

        def run(txn: lmdb.Transaction, batch: Batch) -> bool:
            draft = self._threads.draft(txn, batch, thread.identity.namespace, thread.name)
            if draft is None or draft.identity.number != thread.number or not is_whole(draft.thread):
                return False
            now_us, changes, has_more = self._context.clock.now_us(), list[Changed](), False
            prefix = draft.identity.keys.all_of(b"Y")
            due = list[bytes]()
            for key, _ in rows(txn, prefix):
                if layout.record_expiry_second(key) * SECOND_US > now_us:
                    break
                has_more = len(due) >= RECORDS_A_STEP
                if has_more:
                    break
                due.append(key)
            for key in due:
                row_key = draft.identity.keys.record(layout.record_hash(key))
                row = live_row(txn, draft, row_key)
                if row is not None and is_expired(row.facts, now_us):
                    changes.append(Changed(row.facts.key, row_key, row))
                txn.delete(key)
            first = next(rows(txn, prefix), None)
            second = layout.record_expiry_second(first[0]) if first is not None else 0
            if changes:
                about = About(is_expired=True, settle=lambda _, head: _set_second(head, second))
                append_changes(self._context, self._threads, txn, batch, draft, [changes], about)
            elif second != draft.head.record_expire_second:
                head = draft.next_head()
                index_expiry(txn, draft.identity.number, head.record_expire_second, second)
                _set_second(head, second)
                write_head(txn, draft.identity, head)
                draft.head = head
                self._threads.keep_draft(batch, draft)
            return has_more

        return run


def _set_second(head: ThreadHead, second: int) -> dict[bytes, int]:
    head.record_expire_second = second
    return {}
