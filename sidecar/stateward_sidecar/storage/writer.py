"""The only way to write: one at a time, group commit.

Whoever wants to write hands in a ``Write``. The writer's thread takes whatever waits, runs each in a child transaction
of ONE transaction, and commits once: two syncs for the whole batch. Where nobody waits, a caller that has gathered a
batch may run it on its own thread (``apply``), and only the commit is left to the writer's: LMDB begins and ends a
transaction on one thread, and takes puts from any that has been handed it. So the writer's thread begins each
transaction ahead, and nobody but it ever waits for the disk. A write that fails leaves nothing behind and takes nobody
with it. Nothing is answered before the commit returned.

What a failure means:
* an exception of a write: its child transaction is dropped, the others go on;
* the map or disk is full at commit: LMDB has applied nothing; the batch is run again one by one;
* anything else at commit: it is not known whether the batch is kept. Everybody waiting gets OUTCOME_UNKNOWN, no more
  is acknowledged, and ``on_fatal`` ends the process, which starts again from the file. An fsync is never retried.

Deadline and cancellation are looked at once, when the writer takes the write; from then on it happens or fails.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import lmdb

from stateward_sidecar.errors import (
    DeadlineExceeded,
    DiskFull,
    OutcomeUnknown,
    QueueFull,
    ShuttingDown,
    StatewardError,
    no_room,
)
from stateward_sidecar.storage.changes import Changes
from stateward_sidecar.storage.engine import Engine, is_disk_full

QUEUE_WRITES_MAX = 4096
QUEUE_BYTES_MAX = 256 << 20
BATCH_WRITES_MAX = 256
BATCH_BYTES_MAX = 16 << 20
# So long after the last write the open transaction is given back.
IDLE_S = 0.1


class Batch:
    """What the writes of one batch share. ``drafts`` holds, by whatever key they choose, what is to become visible
    with the commit; a later write of the batch sees what an earlier one left there."""

    def __init__(self) -> None:
        self.drafts: dict[Any, Any] = {}
        self.before_commit: list[Callable[[], None]] = []
        self.after_commit: list[Callable[[], None]] = []
        self.after_abort: list[Callable[[], None]] = []


@dataclass(slots=True, eq=False)
class Write:
    """One item of the queue."""

    # Checks, then puts, then leaves its draft in the batch. Raises StatewardError; must change nothing but ``txn``
    # before its last statement that can fail.
    run: Callable[[lmdb.Transaction, Batch], Any]
    size_bytes: int = 0
    deadline: float = float("inf")  # by time.monotonic()
    frees_space: bool = False  # deletions go on when the disk is full
    # Whether it was answered before, and so takes no room: a retry is answered on a full disk too.
    is_retry: Callable[[lmdb.Transaction, Batch], bool] | None = None
    background: bool = False  # waits until nobody else does
    is_alone: bool = False  # has a transaction of its own: it leaves drafts before it may fail
    cancelled: bool = False
    result: Any = None
    error: BaseException | None = None
    on_done: Callable[[Write], None] | None = None
    _done: threading.Event | None = field(default=None, repr=False)

    def wait(self) -> Any:
        """For callers that are not on an event loop: waits, returns the result or raises."""
        assert self._done is not None
        self._done.wait()
        if self.error is not None:
            raise self.error
        return self.result


@dataclass(slots=True, eq=False)
class _Applied:
    """Writes that were run in a transaction and wait for its commit."""

    writes: list[Write]
    taken: list[Write]  # of those, the ones that were not too late
    batch: Batch = field(default_factory=Batch)
    is_empty: bool = True  # every one failed
    error: BaseException | None = None  # of the whole


class Writer:
    """Runs the queue. ``deliver`` gets each finished batch, in order, on the writer's thread."""

    def __init__(
        self, engine: Engine, deliver: Callable[[list[Write]], None], on_fatal: Callable[[BaseException], None]
    ) -> None:
        self._engine = engine
        self._deliver = deliver
        self._on_fatal = on_fatal
        self._condition = threading.Condition()
        self._queue: deque[Write] = deque()
        self._background: deque[Write] = deque()
        self._queued_bytes = 0
        self._stopping = False
        self._failed: BaseException | None = None
        self.commits = 0
        # Held from before a commit until memory says the same as the disk.
        self.publishing = threading.Lock()
        self.changes = Changes()
        # The open transaction belongs to whoever is busy with it; else to whoever comes next.
        self._txn: lmdb.Transaction
        self._is_busy = True
        self._is_asleep = True
        self._applied: _Applied | None = None  # on another thread: the next to be committed
        self._ending: list[Write] = []  # being committed
        self._on_free: Callable[[], None] | None = None
        self._thread = threading.Thread(target=self._loop, name="writer", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    @property
    def queued(self) -> int:
        """Writes that wait."""
        return len(self._queue) + len(self._background)

    def submit(self, write: Write, *, wait: bool = False) -> Write:
        """Queues a write. Raises QueueFull or ShuttingDown, and then nothing was queued."""
        if wait:
            write._done = threading.Event()
        with self._condition:
            if self._failed is not None or self._stopping:
                raise ShuttingDown("the daemon is stopping and takes no more writes")
            if (
                not write.background
                and not write.frees_space
                and (len(self._queue) >= QUEUE_WRITES_MAX or self._queued_bytes + write.size_bytes > QUEUE_BYTES_MAX)
            ):
                raise QueueFull(
                    f"{len(self._queue)} writes with {self._queued_bytes} bytes wait already", queued=len(self._queue)
                )
            (self._background if write.background else self._queue).append(write)
            self._queued_bytes += write.size_bytes
            self._condition.notify()
        return write

    @property
    def is_free(self) -> bool:
        """Whether nobody writes or waits at this moment."""
        return not self._is_busy and not self._queue and not self._stopping

    def call_when_free(self, call: Callable[[], None]) -> bool:
        """Calls once, from any thread, as soon as nobody writes or waits. False: no more writes are taken."""
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
        """Somebody is about to write: a transaction is begun meanwhile."""
        if self._is_asleep:
            with self._condition:
                self._is_asleep = False
                self._condition.notify()

    def apply(self, writes: list[Write]) -> bool:
        """Runs writes as one batch on the calling thread, and leaves their commit to the writer's.

        False: somebody else writes or waits; nothing was done.
        """
        with self._condition:
            if not self.is_free:
                return False
            self._is_busy = True
        applied = self._run_all(writes)
        with self._condition:
            self._applied = applied
            self._condition.notify()
        return True

    def stop(self) -> None:
        """Takes no more, finishes what was taken, and ends the thread."""
        with self._condition:
            self._stopping = True
            self._condition.notify()
        if self._thread.is_alive():
            self._thread.join()

    def _loop(self) -> None:
        try:
            while self._sleep():
                self._begin()
                self._tell_free()
                while self._run_next():
                    pass
                self._txn.abort()
        except BaseException as error:  # noqa: BLE001  (whatever it is, nothing may be acknowledged after it)
            self._fail(self._ending, error)

    def _run_next(self) -> bool:
        """Commits what is next; False: nothing came. A function of its own: what waits holds no batch."""
        applied = self._next()
        if applied is None:
            return False
        self._ending = applied.writes
        self._end(applied)
        self._ending = []
        return True

    def _begin(self) -> None:
        """The next transaction, ahead of the writes that will use it."""
        self._txn = self._engine.env.begin(write=True, buffers=True)
        with self._condition:
            self._is_busy = False

    def _sleep(self) -> bool:
        """Waits until somebody is about to write. False: nobody will any more.

        No transaction is open meanwhile: who copies the file takes LMDB's lock for a moment.
        """
        with self._condition:
            self._is_asleep = True
            while self._is_asleep and self._on_free is None and not self.queued and not self._stopping:
                self._condition.wait()
            self._is_asleep = False
            return bool(self.queued) or not self._stopping

    def _next(self) -> _Applied | None:
        """What is to be committed next; None when nobody has written for a while, or will any more."""
        with self._condition:
            is_idle = False
            while self._applied is None and (self._is_busy or not self.queued):
                if not self._is_busy and (is_idle or self._stopping):
                    self._is_busy = True
                    return None
                is_idle = not self._condition.wait(None if self._is_busy else IDLE_S)
            applied, self._applied = self._applied, None
            if applied is not None:
                return applied
            self._is_busy = True
            writes = self._take()
        return self._run_all(writes)

    def _take(self) -> list[Write]:
        batch: list[Write] = []
        size = 0
        source = self._queue or self._background
        limit = BATCH_WRITES_MAX if source is self._queue else 1
        while source and len(batch) < limit and (not batch or size + source[0].size_bytes <= BATCH_BYTES_MAX):
            if source[0].is_alone and batch:
                break
            write = source.popleft()
            size += write.size_bytes
            batch.append(write)
            if write.is_alone:
                break
        self._queued_bytes -= size
        return batch

    def _run_all(self, writes: list[Write]) -> _Applied:
        """Runs writes in the open transaction. What goes wrong with the whole is raised where it would be committed."""
        now = time.monotonic()
        taken = []
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
        if not self._commit(applied):
            # A full disk in the middle of a batch: small or space-freeing writes may still fit.
            for write in applied.taken:
                write.result = None
                self._txn = self._engine.env.begin(write=True, buffers=True)
                if not self._commit(self._run_all([write])):
                    write.error = DiskFull("the disk is full; nothing was written")
        self._begin()
        self._finish(applied.writes)
        self._tell_free()

    def _tell_free(self) -> None:
        if self._on_free is None or not self.is_free:
            return
        with self._condition:
            call, self._on_free = self._on_free, None
        if call is not None:
            call()

    def _commit(self, applied: _Applied) -> bool:
        """Commits the open transaction. False: the disk is full and nothing of it was applied."""
        txn, batch = self._txn, applied.batch
        try:
            if applied.error is not None:
                raise applied.error
            if not applied.is_empty:
                _call(batch.before_commit)
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
            try:
                txn.commit()
            except lmdb.Error as error:
                if is_disk_full(error) or self._engine.is_cut_short(error):
                    _call(batch.after_abort)
                    self.changes.end()
                    return False
                raise
            self.commits += 1
            _call(batch.after_commit)
            self.changes.end()
        return True

    def _run(self, parent: lmdb.Transaction, batch: Batch, write: Write) -> bool:
        child = self._engine.env.begin(write=True, parent=parent, buffers=True)
        try:
            write.result = write.run(child, batch)
        except Exception as error:  # noqa: BLE001  (one write's fault is its own)
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
            waiting = [*batch, *self._queue, *self._background]
            self._queue.clear()
            self._background.clear()
        for write in waiting:
            write.error = OutcomeUnknown("the disk failed in the middle of a commit; it is not known what is kept")
        self._finish(waiting)
        self._on_fatal(error)


def _is_retry(write: Write, txn: lmdb.Transaction, batch: Batch) -> bool:
    try:
        return write.is_retry is not None and write.is_retry(txn, batch)
    except StatewardError:
        return True  # running it raises the same, and writes nothing


def _call(callbacks: list[Callable[[], None]]) -> None:
    for callback in callbacks:
        callback()
