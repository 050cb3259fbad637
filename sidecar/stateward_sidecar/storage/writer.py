"""The only way to write: one at a time, group commit.

Whoever wants to write hands in a ``Write``. The writer's thread takes whatever waits, runs each in a child transaction
of ONE transaction, and commits once: two syncs for the whole batch. Where nobody waits, a caller that has gathered a
batch may run it on its own thread (``run_now``). A write that fails leaves nothing behind and takes nobody
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
)
from stateward_sidecar.storage.engine import Engine, is_disk_full

QUEUE_WRITES_MAX = 4096
QUEUE_BYTES_MAX = 256 << 20
BATCH_WRITES_MAX = 256
BATCH_BYTES_MAX = 16 << 20
# Batches of which is remembered what they changed.
CHANGES_KEPT = 256
# With slower disks the event loop must not wait for a commit.
COMMIT_NOW_S = 0.002


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


class Writer:
    """Runs the queue. ``deliver`` gets each finished batch, in order, on the thread that committed it."""

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
        # Batches whose commit has begun, and those that memory shows or that came to nothing.
        self.begun = self.over = 0
        self._changed: list[tuple[Any, ...]] = [()] * CHANGES_KEPT  # by number of the batch: the keys of its drafts
        self.commit_s = 0.0  # how long a commit takes, the newest ones weighing most
        # Who holds it may write: the thread below, or a caller that found nobody waiting.
        self._turn = threading.Lock()
        # The thread has a batch that is not committed: nothing that came later may go before it.
        self._has_taken = False
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
    def is_quick(self) -> bool:
        """Whether commits are so fast that the event loop may wait for one."""
        return self.commit_s <= COMMIT_NOW_S

    @property
    def is_free(self) -> bool:
        """Whether nobody writes or waits at this moment."""
        return not self._queue and not self._has_taken and not self._turn.locked()

    def run_now(self, writes: list[Write]) -> bool:
        """Runs writes as one batch on the calling thread if nobody else writes or waits; else False: nothing was done.

        The caller is the event loop: not where commits are slow.
        """
        is_closed = self._failed is not None or self._stopping
        if not self.is_free or is_closed or not self.is_quick or not self._turn.acquire(blocking=False):
            return False
        if self._queue or self._has_taken:  # came in between
            self._turn.release()
            return False
        try:
            self._commit(writes)
        except BaseException as error:  # noqa: BLE001  (as in the loop below)
            self._fail(writes, error)
        finally:
            self._turn.release()
        return True

    def stop(self) -> None:
        """Takes no more, finishes what was taken, and ends the thread."""
        with self._condition:
            self._stopping = True
            self._condition.notify()
        if self._thread.is_alive():
            self._thread.join()

    def _loop(self) -> None:
        while self._run_next():
            pass

    def _run_next(self) -> bool:
        """Takes a batch and commits it; False: it was the last. A function of its own: what waits holds no batch."""
        batch = self._take()
        if batch is None:
            return False
        with self._turn:
            try:
                if self._failed is not None:
                    raise self._failed
                self._commit(batch)
            except BaseException as error:  # noqa: BLE001  (whatever it is, nothing may be acknowledged after it)
                self._fail(batch, error)
                return False
            self._has_taken = False
        return True

    def _take(self) -> list[Write] | None:
        with self._condition:
            while not self._queue and not self._background:
                if self._stopping:
                    return None
                self._condition.wait()
            self._has_taken = True  # before the queue looks empty
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

    def _commit(self, writes: list[Write]) -> None:
        now = time.monotonic()
        taken = []
        for write in writes:
            if write.cancelled or write.deadline <= now:
                write.error = DeadlineExceeded("the deadline passed while the write waited; nothing was written")
            else:
                taken.append(write)
        if taken and not self._try_commit(taken):
            # A full disk in the middle of a batch: small or space-freeing writes may still fit.
            for write in taken:
                write.result = None
                if not self._try_commit([write]):
                    write.error = DiskFull("the disk is full; nothing was written")
        self._finish(writes)

    def _try_commit(self, writes: list[Write]) -> bool:
        """Runs and commits writes. False: the disk is full and nothing of them was applied."""
        batch = Batch()
        room = self._engine.room_bytes()
        txn = self._engine.env.begin(write=True, buffers=True)
        applied = 0
        try:
            for write in writes:
                write.error = None
                if write.size_bytes > room and not write.frees_space and not _is_retry(write, txn, batch):
                    write.error = DiskFull(f"about {write.size_bytes} bytes are needed and {max(room, 0)} are left")
                    continue
                if self._run(txn, batch, write):
                    applied += 1
                    room -= write.size_bytes
            if applied == 0:
                txn.abort()
                _call(batch.after_abort)
                return True
            _call(batch.before_commit)
        except BaseException:
            txn.abort()
            _call(batch.after_abort)
            raise
        begun = time.monotonic()
        with self.publishing:
            self._changed[self.begun % CHANGES_KEPT] = tuple(batch.drafts)
            self.begun += 1
            try:
                txn.commit()
            except lmdb.Error as error:
                if is_disk_full(error) or self._engine.is_cut_short(error):
                    _call(batch.after_abort)
                    self.over = self.begun
                    return False
                raise
            self.commits += 1
            self.commit_s += (time.monotonic() - begun - self.commit_s) / 8
            _call(batch.after_commit)
            self.over = self.begun
        return True

    def has_changed(self, thread: str | None, since: int) -> bool:
        """Whether a batch that was not ``over`` then may have changed a thread of this name (None: any thread)."""
        begun = self.begun
        changed = [self._changed[number % CHANGES_KEPT] for number in range(since, min(begun, since + CHANGES_KEPT))]
        if self.begun - since > CHANGES_KEPT:
            return True
        # A batch without drafts may have changed anything.
        return any(thread is None or not keys or any(key[1] == thread for key in keys) for keys in changed)

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
