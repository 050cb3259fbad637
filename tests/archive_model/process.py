"""What a daemon's threads are in the machine: its writer, pools, wire and waits, all of them taking turns."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable
from concurrent.futures import Executor, Future
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from tests.archive_model.faults import APPLIED, DIES_AFTER, DIES_BEFORE, GATHERS, HELD, HELD_AFTER, MEANWHILE, Fault, Op
from tests.archive_model.turns import Death, Turns
from tests.daemon.clocks import FakeClock

from stateward_sidecar.errors import DiskFull, ShuttingDown
from stateward_sidecar.storage.engine import Engine
from stateward_sidecar.storage.queue import Write
from stateward_sidecar.storage.writer import Writer

T = TypeVar("T")


class DrivenWriter(Writer):
    """Commits on the thread of who writes first, where the plan lets it; who comes meanwhile waits for that one. What
    nobody waits for is committed when the machine says so."""

    def __init__(self, engine: Engine, on_fatal: Callable[[BaseException], None], turns: Turns, process: Any) -> None:
        super().__init__(engine, lambda _writes: None, on_fatal)
        self._turns = turns
        self._process = process
        self.put_off: list[Write] = []
        self._is_committing = False

    def start(self) -> None:
        """There is no thread to start."""

    def submit(self, write: Write, *, wait: bool = False) -> Write:
        if self._process.is_dead:
            raise Death
        if self._stopping:
            raise ShuttingDown("the daemon is stopping and takes no more writes")
        if write.background and not wait:
            self.put_off.append(write)
            return write
        if wait:
            write._done = threading.Event()
        call = self._turns.current
        fault = call.op.at_commit() if call is not None else None
        kind = fault.kind if fault is not None else ""
        self._before(fault)
        self._queue.add(write)
        if self._is_committing:
            if wait:  # in the same transaction, or in the next one
                self._turns.wait_until(lambda: write._done is not None and write._done.is_set())
        else:
            self._commit_queue(kind)
        if kind == DIES_AFTER:
            self._turns.die()
        if kind == HELD_AFTER:
            self._turns.hold()
        return write

    def _before(self, fault: Fault | None) -> None:
        if fault is None:
            return
        if fault.kind == MEANWHILE:
            self._process.meanwhile(fault.meanwhile)
        if fault.kind == HELD:
            self._turns.hold()
        if self._process.is_dead:
            raise Death  # meanwhile
        if fault.kind == DIES_BEFORE:
            self._turns.die()

    def tidy(self) -> None:
        """Commits what was put off, one after the other."""
        while self.put_off and not self._is_committing:
            self._queue.add(self.put_off.pop(0))
            self._commit_queue("")

    def _commit_queue(self, kind: str) -> None:
        """What the writer's thread does: all that waits, in as few transactions as it may be."""
        self._is_committing = True
        try:
            if kind == GATHERS:
                self._hold()
            while self.queued:
                self._commit_batch(self._queue.take(), kind)
                kind = ""
        finally:
            self._is_committing = False

    def _commit_batch(self, writes: list[Write], kind: str) -> None:
        self._txn = self._engine.env.begin(write=True, buffers=True)
        applied = self._run_all(writes)
        if kind == APPLIED:
            try:
                self._hold()
            except Death:
                self._txn.abort()
                raise
        others, self._turns.publishes = self._turns.publishes, True
        try:
            is_kept = self._commit(applied)
        finally:
            self._turns.publishes = others
        if not is_kept:
            for write in writes:
                write.error = DiskFull("the disk is full; nothing was written")
        if self.queued:
            self._process.look()  # what is committed next may take it away
        self._finish(writes)

    def _hold(self) -> None:
        """Others overtake."""
        self._turns.hold()
        if self._process.is_dead:
            raise Death


class Pool(Executor):
    """Each job is a call of its own, which runs at once. It belongs to the operation that set it going."""

    def __init__(self, turns: Turns, process: Any, name: str, op: Op) -> None:
        """``op``: of what no operation has set going."""
        self._turns = turns
        self._process = process
        self._name = name
        self._op = op

    def submit(self, call: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()

        def job() -> None:
            try:
                result = call(*args, **kwargs)
            except Exception as error:  # noqa: BLE001  (as an executor does it)
                future.set_exception(error)
            else:
                future.set_result(result)

        outer = self._turns.current
        op = outer.op if outer is not None else self._op
        self._turns.begin(f"{self._name} {getattr(call, '__name__', '')}", self._process, job, op)
        return future


class DrivenLanes:
    """What ``archive.lanes.Lanes`` is: what belongs to one name waits for the lock of the name."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def call(self, name: Hashable, verb: Callable[..., T], *arguments: Any) -> Future[T]:
        return self._pool.submit(verb, *arguments)

    ship = call

    def close(self, *, wait: bool) -> None:
        """There are no threads to end."""


class Waits:
    """What ``asyncio`` is to ``service.levels``: waits end when the future is done or when the machine moved time."""

    CancelledError = asyncio.CancelledError

    def __init__(self, turns: Turns, clock: FakeClock) -> None:
        self._turns = turns
        self._clock = clock
        self._ends_at: dict[int, float] = {}

    @asynccontextmanager
    async def timeout(self, seconds: float) -> AsyncIterator[None]:
        key = id(self._turns.current)
        self._ends_at[key] = self._clock.now_s + seconds
        try:
            yield
        finally:
            del self._ends_at[key]

    async def gather(self, *calls: Coroutine[Any, Any, T], return_exceptions: bool) -> list[T | BaseException]:
        """One after the other, each to its end. If the process dies in one, the others do not begin."""
        assert return_exceptions
        found = list[T | BaseException]()
        try:
            for call in calls:
                try:
                    found.append(await call)
                except Exception as error:  # noqa: BLE001  (as asked)
                    found.append(error)
        finally:
            for call in calls:
                call.close()
        return found

    def sleep(self, seconds: float) -> None:
        """Waiting costs nothing."""
        self._clock.sleep(seconds)

    async def wrap_future(self, future: Future[T]) -> T:
        ends_at = self._ends_at.get(id(self._turns.current), float("inf"))
        self._turns.wait_until(lambda: future.done() or self._clock.now_s >= ends_at)
        if not future.done():
            raise TimeoutError
        return future.result()
