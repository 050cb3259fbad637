"""A lock for each name: one call at a time."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

from stateward_sidecar.errors import QueueFull


class NameLock:
    """Locks by key. An unlocked key takes no memory."""

    def __init__(self) -> None:
        self._taken: set[Hashable] = set()
        self._changed = threading.Condition()

    @contextmanager
    def of(self, key: Hashable, wait_s: float | None = None) -> Iterator[None]:
        """Holds the lock of a key during the block. Must not be nested.

        Raises QueueFull if the lock is not free after ``wait_s`` seconds. Without ``wait_s`` it waits for ever.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: key not in self._taken, wait_s):
                raise QueueFull("another call works on the same thread; try again")
            self._taken.add(key)
        try:
            yield
        finally:
            self.free(key)

    def take(self, key: Hashable) -> bool:
        """Takes the lock of a key without waiting; returns whether it was free. Any thread may ``free`` it."""
        with self._changed:
            is_free = key not in self._taken
            self._taken.add(key)
            return is_free

    def free(self, key: Hashable) -> None:
        """Releases the lock of a key."""
        with self._changed:
            self._taken.discard(key)
            self._changed.notify_all()
