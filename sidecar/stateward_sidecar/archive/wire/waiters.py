"""Calls that wait until an entry is archived."""

from __future__ import annotations

import threading
from collections import defaultdict
from concurrent.futures import Future

from stateward_sidecar.errors import StatewardError


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
