"""Runs the archive's tasks on a few workers. Tasks of one name run one after the other.

A task may hold the lock of its name (``locks``) while a request to the bucket hangs. The next task of that name waits
in a queue and not on a worker. So any number of calls for one name occupies only one worker.

A ship that uploads for long steps aside: another ship begins in its place. Otherwise a few large uploads would hold up
the ships of all other threads for longer than a lease.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from stateward_sidecar.errors import ShuttingDown
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
