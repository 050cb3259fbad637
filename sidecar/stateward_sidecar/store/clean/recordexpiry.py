"""Deletes expired records, a bounded number in each step. Part of the sweep.

A record is hidden from the moment it expires (``recordrows.is_expired``), so a late sweep shows nobody an old record. A
store-wide row leads to the threads whose records may have expired, and rows of the thread to these records.
"""

from __future__ import annotations

from collections.abc import Callable

import lmdb

from stateward.storage.v1.head_pb2 import ThreadHead
from stateward_sidecar.errors import ShuttingDown, StatewardError
from stateward_sidecar.storage import layout
from stateward_sidecar.storage.queue import Batch, Write
from stateward_sidecar.store.clean.prune import is_whole
from stateward_sidecar.store.clean.recordmoves import RecordMover
from stateward_sidecar.store.items.recordentries import About, Changed, append_changes
from stateward_sidecar.store.journal.owning import is_still_ours
from stateward_sidecar.store.kinds.recordrows import index_expiry, is_expired, live_row
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.name_lock import NameLock
from stateward_sidecar.store.thread.thread import Thread, rows, write_head
from stateward_sidecar.store.thread.threads import Threads
from stateward_sidecar.store.thread.times import SECOND_US
from stateward_sidecar.telemetry import log_damage

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
