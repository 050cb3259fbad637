"""Who waits for whom: tasks on a few workers, a lock for each name, and calls that wait for the archive.

Runs the archive's tasks on a few workers. Tasks of one name run one after the other.

A task may hold the lock of its name (``Locks``) while a request to the bucket hangs. The next task of that name waits
in a queue and not on a worker. So any number of calls for one name occupies only one worker.

A ship that uploads for long steps aside: another ship begins in its place. Otherwise a few large uploads would hold up
the ships of all other threads for longer than a lease.

One lock for each thread name, made on demand.

Calls that wait until an entry is archived.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from stateward_sidecar.errors import ShuttingDown, StatewardError
from stateward_sidecar.spans import carried

T = TypeVar("T")
# Workers for calls, and as many for ships: ships that hang must not leave readers without workers.
WORKERS = 16
# Ships that may be under way although they have stepped aside, besides ``WORKERS`` others.
ASIDE_MAX = 48
_running = threading.local()


def step_aside() -> None:
    """Says that the ship that this thread runs takes long. Does nothing for other tasks."""
    aside: Callable[[], None] | None = getattr(_running, "step_aside", None)
    if aside is not None:
        aside()


@dataclass(slots=True, eq=False)
class _Task:
    pool: Executor
    future: Future[Any]
    verb: Callable[..., Any]
    arguments: tuple[Any, ...]

    def run(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return  # the caller cancelled it
        try:
            result = self.verb(*self.arguments)
        except BaseException as error:  # noqa: BLE001  (the future raises it)
            self.future.set_exception(error)
        else:
            self.future.set_result(result)


class Lanes:
    """Runs tasks. A task must not wait for another task of the same name."""

    def __init__(self) -> None:
        self.calls = ThreadPoolExecutor(WORKERS, thread_name_prefix="archive")
        self.ships = ThreadPoolExecutor(WORKERS + ASIDE_MAX, thread_name_prefix="ship")
        for pool in (self.calls, self.ships):  # each has a worker, also if the system refuses further threads
            pool.submit(lambda: None)
        self._is_closed = False
        self._guard = threading.Lock()
        self._ready: deque[tuple[Hashable, _Task]] = deque()  # ships that no worker has begun
        self._begun = self._aside = 0  # ships on workers; and how many of them have stepped aside
        # Later tasks of each name that has a running or submitted task.
        self._waiting: dict[Hashable, deque[_Task]] = {}

    def call(self, name: Hashable, verb: Callable[..., T], *arguments: Any) -> Future[T]:
        """Runs a task on the workers for calls. The future raises ShuttingDown if the lanes are closed."""
        return self._submit(name, _Task(self.calls, Future(), carried(verb), arguments))

    def ship(self, name: Hashable, verb: Callable[..., T], *arguments: Any) -> Future[T]:
        """Runs a task on the workers for ships. The future raises ShuttingDown if the lanes are closed."""
        return self._submit(name, _Task(self.ships, Future(), verb, arguments))

    def close(self, *, wait: bool) -> None:
        """Accepts no more tasks, and cancels tasks that have not begun. With ``wait``, waits for running ones."""
        self._is_closed = True
        for pool in (self.calls, self.ships):
            pool.shutdown(wait=wait, cancel_futures=True)
        with self._guard:
            left = [task for tasks in self._waiting.values() for task in tasks]
            left += [task for _, task in self._ready]
            self._ready.clear()
        for task in left:
            task.future.cancel()

    def _submit(self, name: Hashable, task: _Task) -> Future[Any]:
        with self._guard:
            waiting = self._waiting.get(name)
            if waiting is not None:
                waiting.append(task)
                return task.future
            self._waiting[name] = deque()
        self._start(name, task)
        return task.future

    def _start(self, name: Hashable, task: _Task) -> None:
        if task.pool is not self.ships:
            self._give(name, task, self._work)
            return
        with self._guard:
            self._ready.append((name, task))
        self._start_ships()

    def _start_ships(self) -> None:
        """Gives ready ships to workers, as many as may run."""
        while True:
            with self._guard:
                if not self._ready or self._begun - min(self._aside, ASIDE_MAX) >= WORKERS:
                    return
                name, task = self._ready.popleft()
                self._begun += 1
            self._give(name, task, self._work_ship)

    def _give(self, name: Hashable, task: _Task, work: Callable[[Hashable, _Task], None]) -> None:
        try:
            task.pool.submit(work, name, task)
        except RuntimeError:
            if not self._is_closed:
                return  # no further thread could be started, and a worker that is there takes the task
            with self._guard:
                left = self._waiting.pop(name, ())
            for each in (task, *left):
                if each.future.set_running_or_notify_cancel():
                    each.future.set_exception(ShuttingDown("the daemon is stopping; nothing was written"))

    def _work_ship(self, name: Hashable, task: _Task) -> None:
        is_aside = False

        def step_aside() -> None:
            nonlocal is_aside
            if not is_aside:
                is_aside = True
                with self._guard:
                    self._aside += 1
                self._start_ships()

        _running.step_aside = step_aside
        try:
            self._work(name, task)
        finally:
            _running.step_aside = None
            with self._guard:
                self._begun -= 1
                self._aside -= is_aside
            self._start_ships()

    def _work(self, name: Hashable, task: _Task) -> None:
        task.run()
        with self._guard:
            waiting = self._waiting[name]
            if not waiting:
                del self._waiting[name]
                return
            following = waiting.popleft()
        self._start(name, following)  # at the end of the pool's queue, behind tasks of other names


class Locks:
    """A worker holds the lock of a name while it changes a thread's hold or its archive row."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[Hashable, tuple[threading.RLock, int]] = {}

    @contextmanager
    def of(self, name: Hashable, *, waits: bool = True) -> Iterator[bool]:
        """Holds the lock of a name. The lock is reentrant.

        Yields True. Yields False if ``waits`` is False and another thread holds the lock.
        """
        with self._guard:
            lock, users = self._locks.get(name, (threading.RLock(), 0))
            self._locks[name] = lock, users + 1
        is_held = False
        try:
            is_held = lock.acquire(blocking=waits)
            yield is_held
        finally:
            if is_held:
                lock.release()
            with self._guard:
                lock, users = self._locks[name]
                if users == 1:
                    del self._locks[name]
                else:
                    self._locks[name] = lock, users - 1


class Waiters:
    """Futures by thread number. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[int, list[tuple[int, Future[None]]]] = defaultdict(list)

    def add(self, number: int, sequence: int) -> Future[None]:
        """Returns a future that is done once the entry is archived, or raises why it never will be."""
        future: Future[None] = Future()
        with self._lock:
            self._waiting[number].append((sequence, future))
        return future

    def drop(self, number: int, future: Future[None]) -> None:
        """Removes a future: nobody waits for it any more."""
        with self._lock:
            left = [item for item in self._waiting.get(number, ()) if item[1] is not future]
            self._keep(number, left)

    def is_waiting(self, number: int) -> bool:
        """Returns True if anybody waits for this thread."""
        return number in self._waiting

    def archived(self, number: int, sequence: int) -> None:
        """Completes the futures of entries up to ``sequence``: they are archived."""
        with self._lock:
            items = self._waiting.get(number)
            if not items:
                return
            ready = [future for wanted, future in items if wanted <= sequence]
            self._keep(number, [item for item in items if item[0] > sequence])
        for future in ready:
            if not future.done():
                future.set_result(None)

    def failed(self, number: int, error: StatewardError) -> None:
        """Fails all remaining futures of a thread: their entries will never be archived."""
        with self._lock:
            items = self._waiting.pop(number, [])
        for _, future in items:
            if not future.done():
                future.set_exception(error)

    def _keep(self, number: int, left: list[tuple[int, Future[None]]]) -> None:
        if left:
            self._waiting[number] = left
        else:
            self._waiting.pop(number, None)
