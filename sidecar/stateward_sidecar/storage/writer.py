"""The only way to write: one at a time, group commit.

Which threads the last batches changed, so that a reader can tell damage from a commit that came in between.

A caller submits a ``Write``. The writer thread takes all writes that wait, runs each in a child transaction of ONE
transaction, and commits once: two syncs for the whole batch. If no write waits, a caller that has gathered a batch may
run it on its own thread (``apply``) and leave only the commit to the writer thread. LMDB requires that one thread
begins and ends a transaction, and accepts puts from any thread that holds it. So the writer thread begins each
transaction in advance, and no other thread waits for the disk. A write that fails changes nothing, and does not affect
the other writes of its batch. No write is answered before its commit has returned.

What a failure means:
* A write raises: its child transaction is dropped, and the other writes continue.
* The map or the disk is full at commit: LMDB has applied nothing. The writes of the batch are run again one by one.
* Any other error at commit: nobody knows whether the batch is durable. Every waiting write gets OUTCOME_UNKNOWN, no
  further write is acknowledged, and ``on_fatal`` ends the process. The next process starts from the file. An fsync is
  never retried.

Deadline and cancellation are checked once, when the writer thread takes the write. After that, it is made or it fails.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import lmdb

from stateward_sidecar.errors import (
    DeadlineExceeded,
    DiskFull,
    OutcomeUnknown,
    ShuttingDown,
    StatewardError,
    no_room,
)
from stateward_sidecar.measures import WriterMeasures
from stateward_sidecar.storage.engine import Engine, is_disk_full
from stateward_sidecar.storage.queue import Batch, Queue, Write
from stateward_sidecar.storage.recording import ChangedKeys, RecordedTransaction

T = TypeVar("T")
# For how many batches the changed threads are remembered.
KEPT = 256


class Changes:
    """Written by the writer thread, read by any thread. Counts batches: ``begun`` when the commit begins, ``over`` when
    memory shows the batch, or when it came to nothing."""

    def __init__(self) -> None:
        self.begun = self.over = 0
        self._changed: list[tuple[Any, ...]] = [()] * KEPT  # by number of the batch: the keys of its drafts

    def begin(self, keys: Iterable[tuple[str, str]]) -> None:
        """Says that a commit begins, which changes these threads, given by namespace and name."""
        self._changed[self.begun % KEPT] = tuple(keys)
        self.begun += 1

    def end(self) -> None:
        """Says that the commit is over."""
        self.over = self.begun

    def has_changed(self, thread: str | None, since: int) -> bool:
        """Whether a batch may have changed a thread of this name (None = any thread) since ``over`` was ``since``."""
        begun = self.begun
        changed = [self._changed[number % KEPT] for number in range(since, min(begun, since + KEPT))]
        # After so many batches, the writer may be overwriting the first of them before it counts the next one.
        if self.begun - since >= KEPT:
            return True
        # A batch without drafts may have changed anything.
        return any(thread is None or not keys or any(key[1] == thread for key in keys) for keys in changed)


# The open transaction is ended this long after the last write.
IDLE_S = 0.1


@dataclass(slots=True, eq=False)
class _Applied:
    """Writes that have run in a transaction whose commit is still to come."""

    writes: list[Write]
    taken: list[Write]  # those of them that were not too late
    batch: Batch = field(default_factory=Batch)
    is_empty: bool = True  # all of them failed
    error: BaseException | None = None  # of the batch as a whole


class Writer:
    """Runs the queue. Calls ``deliver`` with each finished batch, in order, on the writer thread."""

    def __init__(
        self, engine: Engine, deliver: Callable[[list[Write]], None], on_fatal: Callable[[BaseException], None]
    ) -> None:
        self._engine = engine
        self._deliver = deliver
        self._on_fatal = on_fatal
        self._condition = threading.Condition()
        self._queue = Queue()
        self._stopping = False
        self._failed: BaseException | None = None
        self.commits = 0
        # Whether the last commit found the disk full. The one who proves that there is room again may clear it.
        self.found_full = False
        # Set if metrics are on.
        self.measures: WriterMeasures | None = None
        # Set if traces are on.
        self.is_traced = False
        # Held from before a commit until memory agrees with the disk.
        self.publishing = threading.Lock()
        # Number of the commit that memory shows; 0 while memory takes over the next one.
        self.shown = engine.last_commit()
        self.changes = Changes()
        # The open transaction belongs to the thread that set ``_is_busy``; otherwise to the next thread that takes it.
        self._txn: lmdb.Transaction
        self._is_busy = True
        self.is_asleep = True
        """Whether no transaction is open, because no write came for a while."""
        self._applied: _Applied | None = None  # run on another thread; committed next
        self._ending: list[Write] = []  # being committed
        self._on_free: Callable[[], None] | None = None
        self._between: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        # Set while a compaction copies the file: what batches change meanwhile.
        self.changed: ChangedKeys | None = None
        self._thread = threading.Thread(target=self._loop, name="writer", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    @property
    def queued(self) -> int:
        """Writes that wait."""
        return len(self._queue)

    def submit(self, write: Write, *, wait: bool = False) -> Write:
        """Queues a write. Raises QueueFull or ShuttingDown; then the write was not queued."""
        if wait:
            write._done = threading.Event()
        with self._condition:
            if self._failed is not None or self._stopping:
                raise ShuttingDown("the daemon is stopping and accepts no more writes")
            self._queue.add(write)
            self._condition.notify()
        return write

    @property
    def is_free(self) -> bool:
        """Whether no write runs or waits at this moment."""
        return not self._is_busy and not self._queue.urgent and not self._stopping

    def call_when_free(self, call: Callable[[], None]) -> bool:
        """Calls ``call`` once, on any thread, as soon as no write runs or waits. Returns False if no more writes are
        accepted."""
        with self._condition:
            if self._failed is not None or self._stopping:
                return False
            if not self.is_free:
                self._on_free = call
                self.wake()
                return True
        call()
        return True

    def wake(self) -> None:
        """Says that a write will come soon, so that the writer thread begins a transaction."""
        if self.is_asleep:
            with self._condition:
                self.is_asleep = False
                self._condition.notify()

    def apply(self, writes: list[Write]) -> bool:
        """Runs writes as one batch on the calling thread, and leaves their commit to the writer thread.

        Returns False, and does nothing, if another write runs or waits.
        """
        with self._condition:
            if not self.is_free:
                return False
            self._is_busy = True
            if self._queue.background:
                writes = writes + self._queue.take_joining(writes)
        applied = self._run_all(writes)
        with self._condition:
            self._applied = applied
            self._condition.notify()
        return True

    def run_between(self, call: Callable[[], T]) -> T:
        """Runs ``call`` on the writer thread between two batches, while no transaction is open. Writes wait for it.
        Returns its result. Raises its error, or ShuttingDown. If the error is OutcomeUnknown, nothing is written any
        more."""
        done: Future[Any] = Future()
        with self._condition:
            if self._failed is not None or self._stopping:
                raise ShuttingDown("the daemon is stopping and accepts no more writes")
            self._between.append((call, done))
            self._condition.notify()
        result: T = done.result()
        return result

    def stop(self) -> None:
        """Accepts no more writes, finishes those that were accepted, and ends the thread."""
        with self._condition:
            self._stopping = True
            self._condition.notify()
        if self._thread.is_alive():
            self._thread.join()

    def _loop(self) -> None:
        try:
            while self._sleep():
                self._begin()
                while (applied := self._next()) is not None:
                    self._end(applied)
                    del applied  # else the loop keeps the batch alive while it waits for the next one
                self._txn.abort()
        except BaseException as error:  # noqa: BLE001  (after any error here, nothing may be acknowledged)
            self._fail(self._ending, error)
        for _, done in self._between:
            done.set_exception(ShuttingDown("the daemon is stopping and accepts no more writes"))

    def _begin(self) -> None:
        """Begins the next transaction, before the writes that will use it come."""
        self._txn = self._engine.env.begin(write=True, buffers=True)
        with self._condition:
            self._is_busy = False

    def _sleep(self) -> bool:
        """Waits until a write is about to come. Returns False if none will come any more.

        No transaction is open meanwhile, because a process that copies the file takes LMDB's lock for a moment.
        """
        while self._between:
            self._run_next_between()
        with self._condition:
            self.is_asleep = True
            while (
                self.is_asleep and self._on_free is None
                and not (self._queue or self._between or self._stopping)
            ):  # fmt: skip
                self._condition.wait()
            self.is_asleep = False
            return not self._stopping or bool(self._queue)

    def _run_next_between(self) -> None:
        call, done = self._between.popleft()
        try:
            done.set_result(call())
        except Exception as error:
            done.set_exception(error)
            if isinstance(error, OutcomeUnknown):
                raise

    def _next(self) -> _Applied | None:
        """Returns what to commit next; None if no write has come for a while, something runs between two batches, or no
        write will come any more."""
        if self._on_free is not None:
            self._tell_free()
        with self._condition:
            is_idle = False
            queue = self._queue
            while self._applied is None and (self._is_busy or not (queue.urgent or self._between)):
                # Background writes are committed alone if no batch came that they could join.
                if queue.background and not self._is_busy and (self._stopping or not queue.pause_s):
                    break
                if not (self._is_busy or queue.background) and (is_idle or self._stopping):
                    self._is_busy = True
                    return None
                pause_s = queue.pause_s if queue.background else IDLE_S
                is_idle = not self._condition.wait(None if self._is_busy else pause_s)
            applied, self._applied = self._applied, None
            if applied is not None:
                return applied
            self._is_busy = True
            if self._between:
                return None
            writes = queue.take()
        return self._run_all(writes)

    def _run_all(self, writes: list[Write]) -> _Applied:
        """Runs writes in the open transaction. An error of the batch as a whole is kept, and raised at its commit."""
        now = time.monotonic()
        taken = []
        if self.is_traced:
            _note_taken(writes)
        for write in writes:
            if write.cancelled or write.deadline <= now:
                write.error = DeadlineExceeded("the deadline passed while the write waited; nothing was written")
            else:
                taken.append(write)
        applied = _Applied(writes, taken)
        txn, batch = self._txn, applied.batch
        try:
            room = self._engine.room_bytes()
            for write in taken:
                write.error = None
                if write.size_bytes > room and not write.frees_space and not _is_retry(write, txn, batch):
                    write.error = no_room(write.size_bytes, room)
                    continue
                if self._run(txn, batch, write):
                    applied.is_empty = False
                    room -= write.size_bytes
        except BaseException as error:  # noqa: BLE001  (see above)
            applied.error = error
        return applied

    def _end(self, applied: _Applied) -> None:
        """Commits, begins the next transaction, and answers."""
        self._ending = applied.writes
        if not self._commit(applied):
            # The disk is full, but some writes of the batch may still fit: small ones, and those that free space.
            for write in applied.taken:
                write.result = None
                self._txn = self._engine.env.begin(write=True, buffers=True)
                if not self._commit(self._run_all([write])):
                    write.error = DiskFull("the disk is full; nothing was written")
        self._begin()
        self._finish(applied.writes)
        self._ending = []

    def _tell_free(self) -> None:
        """Tells whoever waits for it that no write runs or waits."""
        if not self.is_free:
            return
        with self._condition:
            call, self._on_free = self._on_free, None
        if call is not None:
            call()

    def _commit(self, applied: _Applied) -> bool:
        """Commits the open transaction. Returns False if the disk is full; then nothing of it was applied."""
        txn, batch = self._txn, applied.batch
        try:
            if applied.error is not None:
                raise applied.error
            if not applied.is_empty:
                for call in batch.before_commit:
                    call()
        except BaseException:
            txn.abort()
            _call(batch.after_abort)
            raise
        if applied.is_empty:
            txn.abort()
            _call(batch.after_abort)
            return True
        with self.publishing:
            self.changes.begin(batch.drafts)
            number = txn.id()
            began = time.perf_counter() if self.measures is not None else 0.0
            began_ns = time.time_ns() if self.is_traced else 0
            try:
                txn.commit()
            except lmdb.Error as error:
                if is_disk_full(error) or self._engine.is_cut_short(error):
                    _call(batch.after_abort)
                    self.changes.end()
                    self.found_full = True
                    return False
                raise
            self.shown = 0
            self.commits += 1
            self.found_full = False
            if self.measures is not None:
                self.measures.commits.add(time.perf_counter() - began)
                self.measures.batches.add(len(applied.taken))
            if self.is_traced:
                _note_committed(applied.taken, began_ns)
            for call in batch.after_commit:
                call()
            self.changes.end()
            self.shown = number
        return True

    def _run(self, parent: lmdb.Transaction, batch: Batch, write: Write) -> bool:
        child = self._engine.env.begin(write=True, parent=parent, buffers=True)
        try:
            changed = self.changed
            txn = child if changed is None else cast("lmdb.Transaction", RecordedTransaction(child, changed))
            write.result = write.run(txn, batch)
        except Exception as error:  # noqa: BLE001  (an error of one write concerns only that write)
            child.abort()
            full = not isinstance(error, StatewardError) and is_disk_full(error)
            write.error = DiskFull("the store is full; nothing was written") if full else error
            return False
        child.commit()
        return True

    def _finish(self, writes: list[Write]) -> None:
        self._deliver(writes)
        for write in writes:
            if write._done is not None:
                write._done.set()

    def _fail(self, batch: list[Write], error: BaseException) -> None:
        with self._condition:
            self._failed = error
            waiting = [*batch, *self._queue.clear()]
        for write in waiting:
            write.error = OutcomeUnknown("the disk failed during a commit; whether the write is durable is unknown")
        self._finish(waiting)
        self._on_fatal(error)


def _is_retry(write: Write, txn: lmdb.Transaction, batch: Batch) -> bool:
    try:
        return write.is_retry is not None and write.is_retry(txn, batch)
    except StatewardError:
        return True  # running the write raises the same error, and writes nothing


def _note_taken(writes: list[Write]) -> None:
    now_ns = time.time_ns()
    for write in writes:
        if write.times is not None:
            write.times.taken_ns = now_ns


def _note_committed(writes: list[Write], began_ns: int) -> None:
    now_ns = time.time_ns()
    for write in writes:
        if write.times is not None:
            write.times.committing_ns, write.times.committed_ns = began_ns, now_ns
            write.times.writes = len(writes)


def _call(callbacks: list[Callable[[], None]]) -> None:
    for callback in callbacks:
        callback()
