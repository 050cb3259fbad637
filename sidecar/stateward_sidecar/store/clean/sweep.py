"""The periodic sweep: deletes expired threads and records, applies retention rules, clears unused blobs and index rows.

One sweep looks at a bounded number of rows. Each change is a background write of its own, and the writer checks it
again. If the wall clock moves by more than an hour against the boot-time clock, nothing expires, is pruned or is
collected until the next start: a wrong clock must not delete threads.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any, Generic, TypeVar

import lmdb

from stateward.v1.thread_pb2 import THREAD_ACCESS_ORPHAN, THREAD_ACCESS_OWNED
from stateward_sidecar.clock import Clock
from stateward_sidecar.errors import Corrupt, ShuttingDown, StatewardError
from stateward_sidecar.storage import layout
from stateward_sidecar.storage.queue import Batch, Write
from stateward_sidecar.store.blobs.blobsweep import BlobSweeper
from stateward_sidecar.store.clean.delete import TTL, Deleter
from stateward_sidecar.store.clean.locked import LockedThread, find_locked
from stateward_sidecar.store.clean.objectsweep import ObjectSweeper
from stateward_sidecar.store.clean.prune import Pruner, is_whole
from stateward_sidecar.store.clean.recordcleaning import RecordExpirer
from stateward_sidecar.store.journal.journal import next_place
from stateward_sidecar.store.journal.opening import is_still_ours
from stateward_sidecar.store.thread import blocks
from stateward_sidecar.store.thread.context import ArchiveHooks, Context
from stateward_sidecar.store.thread.thread import Thread, head_uid, rows
from stateward_sidecar.store.thread.threads import Threads
from stateward_sidecar.store.thread.times import SECOND_US, has_expired
from stateward_sidecar.store.versions.snapshots import clear
from stateward_sidecar.telemetry import failures, log, log_damage
from stateward_sidecar.tracebacks import told

K = TypeVar("K", bound=Hashable)


class Pauses(Generic[K]):
    """Pauses by key, kept in memory only: a new process tries everything at once."""

    def __init__(self, clock: Clock, min_s: float, max_s: float) -> None:
        self._clock = clock
        self._min_s = min_s
        self._max_s = max_s
        self._until: dict[K, tuple[float, float]] = {}  # end of the pause, and its length

    def is_over(self, key: K) -> bool:
        """Returns whether the pause of a key is over, or there is none."""
        return self._clock.boottime() >= self._until.get(key, (0.0, 0.0))[0]

    def begin(self, key: K) -> None:
        """Begins a pause: the shortest one, or one that is twice as long as the last."""
        last_s = self._until.get(key, (0.0, 0.0))[1]
        length_s = min(max(2 * last_s, self._min_s), self._max_s)
        self._until[key] = self._clock.boottime() + length_s, length_s

    def keep(self, is_wanted: Callable[[K], bool]) -> None:
        """Forgets the pauses of all keys for which ``is_wanted`` returns False."""
        self._until = {key: until for key, until in self._until.items() if is_wanted(key)}


ROWS_MAX = 20_000
JUMP_S = 3600
DELETION_KEPT_S = 24 * 3600
# How often a thread is checked again if its oldest version is old enough, but stays for another reason.
AGED_LOOK_S = 3600
# Pauses between attempts to delete an expired thread in the archive, because each attempt reads its HEAD. While the
# bucket is away, the attempts pause for all threads together.
PAUSE_MIN_S, THREAD_PAUSE_MAX_S, BUCKET_PAUSE_MAX_S = 1.0, 3600.0, 300.0


def _place(thread: Thread) -> tuple[int, int]:
    return thread.head.tip_sequence, thread.archived_sequence


class Sweeper:
    """Runs on a worker thread, one sweep at a time."""

    def __init__(
        self, context: Context, threads: Threads, deleter: Deleter, pruner: Pruner, records: RecordExpirer
    ) -> None:
        self._context = context
        self._threads = threads
        self._deleter = deleter
        self._pruner = pruner
        self._records = records
        self._blobs = BlobSweeper(context, threads)
        self._objects = ObjectSweeper(context, threads, pruner)
        self._thread_pauses = Pauses[tuple[int, int]](context.clock, PAUSE_MIN_S, THREAD_PAUSE_MAX_S)
        self._bucket_pause = Pauses[None](context.clock, PAUSE_MIN_S, BUCKET_PAUSE_MAX_S)
        # For threads with a rule: their sequences when the rule was applied, and when the next version is old enough.
        self._looked_at: dict[int, tuple[tuple[int, int], int]] = {}
        self._feed_at = 0
        self._label_at = b"L"
        self._clock_offset_s = self._offset()
        self._is_suspended = False

    def sweep(self) -> None:
        """Runs one round. If one part fails, the other parts still run."""
        with suppress(ShuttingDown):
            self._do(self._context.engine.env.reader_check)
            self._do(self._watch_clock)
            if not self._is_suspended:
                self._do(self._expire)
                self._do(self._retain)
                self._do(self._clean)
                self._do(self._records.sweep)
                self._do(lambda: self._blobs.sweep(self._submit))
                self._do(lambda: self._objects.sweep(self._submit))
            self._do(lambda: clear(self._context))
            self._do(self._pruner.resume)
            self._do(self._clear_feed)
            self._do(self._clear_labels)

    def expire_records(self, namespace: str, name: str) -> None:
        """Deletes the expired records of one thread now, because they count for its limits. Waits for the writer."""
        self._watch_clock()
        if not self._is_suspended:
            self._records.expire(namespace, name)

    @staticmethod
    def _do(part: Callable[[], object]) -> None:
        try:
            part()
        except ShuttingDown:
            raise
        except StatewardError as error:
            log_damage("sweep failed", error)
        except Exception:  # noqa: BLE001  (the next round tries again)
            failures.note("sweep")

    def _offset(self) -> float:
        return self._context.clock.now_us() / SECOND_US - self._context.clock.boottime()

    def _watch_clock(self) -> None:
        if abs(self._offset() - self._clock_offset_s) > JUMP_S and not self._is_suspended:
            self._is_suspended = True
            log.error("the wall clock jumped by more than an hour: nothing expires until the daemon is restarted")

    def _expire(self) -> None:
        hooks = self._context.archive
        if hooks is not None and hooks.is_away() and not self._bucket_pause.is_over(None):
            return
        for number, second in self._due():
            if (locked := self._locked(number)) is not None:
                self._expire_locked(number, locked, second)
                continue
            if self._lives(number):
                self._thread_pauses.begin((second, number))
                continue
            if hooks is not None and not self._expire_archived(hooks, number, second):
                if hooks.is_away():  # the other threads would each wait for the bucket in vain
                    self._bucket_pause.begin(None)
                    return
                continue
            self._bucket_pause.keep(lambda _: False)
            self._submit(Write(run=self._deleter.expire(number, second), background=True, frees_space=True))

    def _locked(self, number: int) -> bytes | None:
        """Returns the uid of a thread if it is held and locked."""
        with self._context.engine.read() as txn:
            head = txn.get(layout.ThreadKeys(number).head)
            uid = head_uid(head) if head is not None else b""
        keystore = self._context.keystore
        return uid if uid in keystore.held_uids and not keystore.held.is_open(uid) else None

    def _expire_locked(self, number: int, uid: bytes, second: int) -> None:
        """Deletes a locked thread, whose row in the list of those that expire is the only sign of its time. Nobody
        opens it meanwhile."""
        context = self._context
        with context.keystore.held.ending(uid) as is_ours:
            found = find_locked(context, uid) if is_ours else None
            if found is None:
                return
            hooks = context.archive
            if hooks is not None and not self._expire_elsewhere(hooks, found, number, second):
                self._thread_pauses.begin((second, number))
                return
            self._submit(Write(run=self._deleter.delete_locked(found, TTL), background=True, frees_space=True))

    @staticmethod
    def _expire_elsewhere(hooks: ArchiveHooks, found: LockedThread, number: int, second: int) -> bool:
        name_hash = next(layout.name_hash(line.name_row) for line in found.lines if line.number == number)
        try:
            return hooks.expire_locked(found.namespace, name_hash, found.uid, second)
        except ShuttingDown:
            raise
        except StatewardError as error:
            log.warning(
                "cannot delete an expired thread; trying again later", uid=found.uid.hex(), error=told(error)
            )  # fmt: skip
            return False

    def _due(self) -> list[tuple[int, int]]:
        """Returns number and expiry second of the expired threads that may be tried now."""
        now = self._context.clock.now_us() // SECOND_US
        due: list[tuple[int, int]] = []
        with self._context.engine.read() as txn:
            self._thread_pauses.keep(lambda key: txn.get(layout.expiry_key(*key)) is not None)
            for key, _ in rows(txn, b"E"):
                second, number = layout.unpack_expiry(key)
                if second > now or len(due) >= ROWS_MAX:
                    break
                if self._thread_pauses.is_over((second, number)):
                    due.append((number, second))
        return due

    def _lives(self, number: int) -> bool:
        """Returns whether the row is too early, because the clock was behind when the thread was last saved."""
        with self._context.engine.read() as txn:
            thread = self._find(txn, number)
        return thread is not None and not has_expired(thread.head, self._context.clock.now_us())

    def _expire_archived(self, hooks: ArchiveHooks, number: int, second: int) -> bool:
        """Deletes a thread in the archive. Returns False if it must not be deleted, or the archive does not answer."""
        with self._context.engine.read() as txn:
            thread = self._find(txn, number)
        if thread is None:
            return True
        if thread.access == THREAD_ACCESS_ORPHAN:  # only a person may delete an orphan
            self._delete([layout.expiry_key(second, number)])
            return False
        is_gone = False
        try:
            is_gone = hooks.expire((thread.identity.namespace, thread.name), thread.identity.uid, second)
        except ShuttingDown:
            raise
        except StatewardError as error:
            log.warning(
                "cannot delete an expired thread; trying again later",
                uid=thread.identity.uid_text, error=told(error),
            )  # fmt: skip
        if not is_gone:
            # The row stays, also for a copy of a thread that another sidecar owns: the owner may give the thread up.
            self._thread_pauses.begin((second, number))
        return is_gone

    def _retain(self) -> None:
        with self._context.engine.read() as txn:
            numbers = [layout.marked_thread(key) for key, _ in rows(txn, b"K")]
        self._looked_at = {number: self._looked_at[number] for number in numbers if number in self._looked_at}
        for number in numbers:
            try:
                with self._context.engine.read() as txn:
                    thread = self._threads.head(txn, number)  # does not push hot threads out of memory
                    if thread is None or not self._may_apply(thread) or not self._may_be_due(thread):
                        continue
                    thread = self._threads.by_number(txn, number)
                if thread is not None and thread.access == THREAD_ACCESS_OWNED:
                    thread = self._own(thread)
                if thread is not None and thread.floor_sequence:
                    thread = self._complete(thread)
                if thread is not None and is_whole(thread):
                    self._apply_rule(thread)
            except ShuttingDown:
                raise
            except StatewardError as error:
                log_damage("cannot apply a retention rule", error, number=number)

    def _clean(self) -> None:
        """Cleans threads that have many entries of tags, settings, leases, blobs and heads."""
        for number in list(self._context.loose):
            self._context.loose.discard(number)
            try:
                with self._context.engine.read() as txn:
                    thread = self._threads.by_number(txn, number)
                if thread is not None and thread.access == THREAD_ACCESS_OWNED:
                    thread = self._own(thread)
                if thread is not None and thread.floor_sequence and self._may_apply(thread):
                    thread = self._complete(thread)
                if thread is not None and thread.access != THREAD_ACCESS_ORPHAN:
                    self._pruner.clean(thread.identity.namespace, thread.name)
            except ShuttingDown:
                raise
            except StatewardError as error:
                log_damage("entries of tags, settings, leases, blobs and heads are not cleared", error, number=number)

    def _may_apply(self, thread: Thread) -> bool:
        """Returns whether this sidecar may prune the thread, and has its history or can get it."""
        hooks = self._context.archive
        is_reachable = hooks is not None and thread.access == THREAD_ACCESS_OWNED and not hooks.is_away()
        return is_whole(thread) or (is_reachable and thread.floor_sequence > 0)

    def _own(self, thread: Thread) -> Thread | None:
        """Returns the thread as it is after HEAD was asked; None if it is not ours."""
        if not is_still_ours(self._context, thread):
            return None
        with self._context.engine.read() as txn:
            return self._threads.by_number(txn, thread.number)

    def _complete(self, thread: Thread) -> Thread | None:
        """Fetches the history that this disk lacks since it took the thread over. Returns the thread as it is then.

        If the archive lacks a part of it, it is asked again once something was written.
        """
        hooks = self._context.archive
        assert hooks is not None
        self._looked_at[thread.number] = _place(thread), 0
        hooks.complete((thread.identity.namespace, thread.name))
        with self._context.engine.read() as txn:
            return self._threads.by_number(txn, thread.number)

    def _may_be_due(self, thread: Thread) -> bool:
        """Returns whether something was written or archived since the last check, or a version became old enough."""
        place, due_us = self._looked_at.get(thread.number, ((0, 0), 0))
        is_old = 0 < due_us <= self._context.clock.now_us()
        return is_old or place != _place(thread)

    def _apply_rule(self, thread: Thread) -> None:
        # From before, as writes change the object: a version that is saved right after the rule is looked at again.
        place = _place(thread)
        self._pruner.retain(thread.identity.namespace, thread.name)
        rule, due_us = thread.head.options.retention, 0
        if rule.HasField("keep_for"):
            now_us = self._context.clock.now_us()
            due_us = self._pruner.chooser.ages_us(thread, rule)
            if 0 < due_us <= now_us:  # old enough, but kept for another reason
                due_us = now_us + AGED_LOOK_S * SECOND_US
        self._looked_at[thread.number] = place, due_us

    def _find(self, txn: lmdb.Transaction, number: int) -> Thread | None:
        try:
            return self._threads.by_number(txn, number)
        except StatewardError as error:
            log_damage("thread left out of a sweep", error)
            return None

    def _clear_feed(self) -> None:
        """Removes feed rows whose entry is gone, and old deletion records.

        The newest row always stays. A row beyond its thread's newest entry stays too: it proves that the thread was set
        back.
        """
        gone: list[bytes] = []
        tips: dict[int, int] = {}
        oldest_us = self._context.clock.now_us() - DELETION_KEPT_S * SECOND_US
        with self._context.engine.read() as txn:
            cursor, looked_at, newest = txn.cursor(), 0, next_place(txn) - 1
            found = cursor.set_range(layout.feed_key(self._feed_at))
            while found and bytes(cursor.key()[:1]) == b"W" and looked_at < ROWS_MAX:
                place = layout.tail_number(cursor.key())
                try:
                    number, sequence = layout.unpack_feed(cursor.value())
                except Corrupt:
                    number, sequence = 0, place
                if place < newest and not self._leads_somewhere(txn, number, sequence):
                    if number and number not in tips:
                        tips[number] = self._tip(txn, number)
                    if sequence <= tips.get(number, sequence):
                        gone.append(bytes(cursor.key()))
                looked_at += 1
                self._feed_at = place + 1
                found = cursor.next()
            if not found or looked_at < ROWS_MAX:
                self._feed_at = 0
            for key, value in rows(txn, b"D"):
                if layout.deletion_time_us(value) < oldest_us:
                    gone.append(key)
        self._delete(gone)

    def _tip(self, txn: lmdb.Transaction, number: int) -> int:
        """Returns the newest sequence of a thread: above all sequences if it was deleted, 0 if it cannot be read."""
        try:
            thread = self._threads.head(txn, number)
        except StatewardError:
            return 0  # keep its rows: they may help to examine the damage
        return thread.head.tip_sequence if thread is not None else layout.SEQUENCE_MAX

    def _leads_somewhere(self, txn: lmdb.Transaction, number: int, sequence: int) -> bool:
        if number == 0:
            return txn.get(layout.deletion_key(sequence)) is not None
        try:
            return blocks.has_entry(txn, layout.ThreadKeys(number), sequence)
        except Corrupt:
            return True  # it may help to examine the damage

    def _clear_labels(self) -> None:
        """Removes label rows whose entry is gone."""
        gone: list[bytes] = []
        with self._context.engine.read() as txn:
            cursor, looked_at = txn.cursor(), 0
            found = cursor.set_range(self._label_at)
            while found and bytes(cursor.key()[:1]) == b"L" and looked_at < ROWS_MAX:
                key = bytes(cursor.key())
                if not self._leads_somewhere(txn, *layout.unpack_label(key)):
                    gone.append(key)
                looked_at += 1
                self._label_at = key + b"\0"
                found = cursor.next()
            if not found or looked_at < ROWS_MAX:
                self._label_at = b"L"
        self._delete(gone)

    def _delete(self, keys: list[bytes]) -> None:
        def run(txn: lmdb.Transaction, batch: Batch) -> None:
            del batch
            for key in keys:
                txn.delete(key)

        if keys:
            self._submit(Write(run=run, background=True, frees_space=True))

    def _submit(self, write: Write) -> Any:
        try:
            return self._context.writer.submit(write, wait=True).wait()
        except ShuttingDown:
            raise
        except StatewardError as error:
            log_damage("a sweep's write failed", error)
            return None
