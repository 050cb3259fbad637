"""One lock for each thread name, made on demand."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager


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
