"""Pauses before something is tried again: one for each key, and each twice as long as the last."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from stateward_sidecar.clock import Clock

K = TypeVar("K", bound=Hashable)


class Pauses(Generic[K]):
    """Pauses by key, kept in memory only: a new process tries everything at once."""

    def __init__(self, clock: Clock, min_s: float, max_s: float) -> None:
        self._clock = clock
        self._min_s = min_s
        self._max_s = max_s
        self._until: dict[K, tuple[float, float]] = {}  # end of the pause, and its length

    def is_over(self, key: K) -> bool:
        """Returns whether the pause of a key is over, or there is none."""
        return self._clock.boottime() >= self._until.get(key, (0.0, 0.0))[0]

    def begin(self, key: K) -> None:
        """Begins a pause: the shortest one, or one that is twice as long as the last."""
        last_s = self._until.get(key, (0.0, 0.0))[1]
        length_s = min(max(2 * last_s, self._min_s), self._max_s)
        self._until[key] = self._clock.boottime() + length_s, length_s

    def keep(self, is_wanted: Callable[[K], bool]) -> None:
        """Forgets the pauses of all keys for which ``is_wanted`` returns False."""
        self._until = {key: until for key, until in self._until.items() if is_wanted(key)}
