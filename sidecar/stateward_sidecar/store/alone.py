"""One at a time for each name: who comes second waits for the first."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

from stateward_sidecar.errors import QueueFull


class Alone:
    """Keeps nothing of a name that nobody uses."""

    def __init__(self) -> None:
        self._taken: set[Hashable] = set()
        self._changed = threading.Condition()

    @contextmanager
    def of(self, key: Hashable, wait_s: float | None = None) -> Iterator[None]:
        """Waits until nobody else has the key, and has it until the block ends. Must not be nested. Raises QueueFull
        after ``wait_s``."""
        with self._changed:
            if not self._changed.wait_for(lambda: key not in self._taken, wait_s):
                raise QueueFull("another call is at work on the same thread; try again")
            self._taken.add(key)
        try:
            yield
        finally:
            self.free(key)

    def take(self, key: Hashable) -> bool:
        """Has the key from now on, unless somebody else has it. ``free`` gives it back, on any thread."""
        with self._changed:
            is_free = key not in self._taken
            self._taken.add(key)
            return is_free

    def free(self, key: Hashable) -> None:
        """Gives a key back."""
        with self._changed:
            self._taken.discard(key)
            self._changed.notify_all()
