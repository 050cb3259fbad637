"""Work on threads of agents, on few threads of the machine: what belongs to one name goes one after the other.

Whoever changes how this sidecar stands to a thread holds the lock of its name (``locks``), perhaps while a request to
the bucket hangs. The next task of that name waits here in a queue of its own and not on a worker: any number of calls
for one name occupies one worker, and all others go on.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from stateward_sidecar.errors import ShuttingDown

T = TypeVar("T")
# One set for calls, and as many for ships: writes that hang must not keep readers from asking.
WORKERS = 16


@dataclass(slots=True, eq=False)
class _Task:
    pool: Executor
    future: Future[Any]
    verb: Callable[..., Any]
    arguments: tuple[Any, ...]

    def run(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return  # the caller has gone
        try:
            result = self.verb(*self.arguments)
        except BaseException as error:  # noqa: BLE001  (raised where it is waited for)
            self.future.set_exception(error)
        else:
            self.future.set_result(result)


class Lanes:
    """Runs tasks. A task must not wait for another one of its name."""

    def __init__(self) -> None:
        self.calls = ThreadPoolExecutor(WORKERS, thread_name_prefix="archive")
        self.ships = ThreadPoolExecutor(WORKERS, thread_name_prefix="ship")
        self._guard = threading.Lock()
        # Of the names that a worker is at, or is about to be: what comes after it.
        self._waiting: dict[Hashable, deque[_Task]] = {}

    def call(self, name: Hashable, verb: Callable[..., T], *arguments: Any) -> Future[T]:
        """Runs what somebody waits for. Raises ShuttingDown."""
        return self._submit(name, _Task(self.calls, Future(), verb, arguments))

    def ship(self, name: Hashable, verb: Callable[..., T], *arguments: Any) -> Future[T]:
        """Runs what archives a thread. Raises ShuttingDown."""
        return self._submit(name, _Task(self.ships, Future(), verb, arguments))

    def close(self, *, wait: bool) -> None:
        """Takes nothing more; what has not begun is cancelled."""
        for pool in (self.calls, self.ships):
            pool.shutdown(wait=wait, cancel_futures=True)
        with self._guard:
            left = [task for tasks in self._waiting.values() for task in tasks]
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
        try:
            task.pool.submit(self._work, name, task)
        except RuntimeError:
            with self._guard:
                left = self._waiting.pop(name, ())
            for each in (task, *left):
                if each.future.set_running_or_notify_cancel():
                    each.future.set_exception(ShuttingDown("the daemon is stopping; nothing was written"))

    def _work(self, name: Hashable, task: _Task) -> None:
        task.run()
        with self._guard:
            waiting = self._waiting[name]
            if not waiting:
                del self._waiting[name]
                return
            following = waiting.popleft()
        self._start(name, following)  # behind what others wait for
