"""What a disk has cleared of a thread, and what the bucket may therefore still have too much.

The next HEAD takes it, and gives it back if it does not land, or if an object could not be read. Thread-safe: clearing
adds to it at any time, and the ship that takes it must miss nothing.
"""

from __future__ import annotations

import threading

from stateward_sidecar.store.thread.ranges import Pruned


class Owed:
    """Of one thread. Unknown sets are None: they may hold anything that was ever pruned."""

    def __init__(self, *, is_known: bool) -> None:
        """``is_known``: HEAD has followed all that this disk has cleared so far."""
        self._lock = threading.Lock()
        self._now: Pruned | None = Pruned() if is_known else None
        self._later: Pruned | None = Pruned()
        self._is_due = not is_known

    @property
    def is_due(self) -> bool:
        """Whether a ship is needed, also if no entry is new."""
        return self._is_due

    def add(self, cleared: Pruned) -> None:
        """Adds what was cleared."""
        with self._lock:
            self._now = _joined(self._now, cleared)
            self._is_due = True

    def take(self) -> Taken:
        """Takes everything for a HEAD that is being made."""
        with self._lock:
            taken = Taken(self, self._now, self._later, is_due=self._is_due)
            self._now, self._later, self._is_due = Pruned(), Pruned(), False
        return taken

    def give_back(self, now: Pruned | None, later: Pruned | None, *, is_due: bool) -> None:
        """Puts back what a HEAD did not settle."""
        with self._lock:
            self._now, self._later = _joined(self._now, now), _joined(self._later, later)
            self._is_due |= is_due


class Taken:
    """What one HEAD may settle. Unless it says so, the rest waits until more is cleared."""

    def __init__(self, owed: Owed, now: Pruned | None, later: Pruned | None, *, is_due: bool) -> None:
        self._owed = owed
        self._now, self._later = now, later
        self.is_due = is_due
        self._left, self._is_left_due, self._is_left_now = self.all, False, False

    @property
    def is_quiet(self) -> bool:
        """True if nothing was cleared since the last HEAD."""
        return self._now is not None and self._now.is_empty

    @property
    def all(self) -> Pruned | None:
        """What was cleared since the last HEAD, and what waited for it."""
        return _joined(self._now, self._later)

    def settle(self) -> None:
        """Says that the HEAD that is made leads to nothing of it."""
        self._left = Pruned()

    def settle_here(self) -> None:
        """Says the same, but the next HEAD may name a pack that was made before it was cleared."""
        self._is_left_now = True

    def put_off(self) -> None:
        """Says that another ship is needed for it."""
        self._is_left_due = self._is_left_now = True

    def failed(self) -> None:
        """The HEAD did not land."""
        self._owed.give_back(self._now, self._later, is_due=self.is_due)

    def landed(self) -> None:
        """The HEAD landed."""
        now, later = (self._left, Pruned()) if self._is_left_now else (Pruned(), self._left)
        self._owed.give_back(now, later, is_due=self._is_left_due)


def _joined(one: Pruned | None, other: Pruned | None) -> Pruned | None:
    return one.merged(other) if one is not None and other is not None else None
