"""When to try again."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from stateward.errors import NotOwner, StatewardError

FIRST_RETRY_DELAY_S = 0.05
MAX_RETRY_DELAY_S = 1.0
ALIVE_MARGIN_S = 2.0
"""An owner is alive if the time at which its thread is free moves by more than this; less may be a slow answer."""


class Retry:
    """Decides how long to wait before what failed is tried again, for at most `patience_s()` seconds altogether."""

    def __init__(self, patience_s: Callable[[], float], clock: Callable[[], float] = time.monotonic) -> None:
        self._patience_s = patience_s
        self._clock = clock
        self.reset()

    def reset(self) -> None:
        """Starts anew, after a success."""
        self._first_failure: float | None = None
        self._delay_s = FIRST_RETRY_DELAY_S

    def delay_after(self, error: StatewardError) -> float | None:
        """Seconds to wait before the next attempt; None = give up."""
        now = self._clock()
        if self._first_failure is None:
            self._first_failure = now
        left_s = self._first_failure + self._patience_s() - now
        if not error.retryable or left_s <= 0:
            return None
        # Jitter, so that the agents of one machine do not all come back at the same instant.
        told = error.retry_delay
        delay_s = told.total_seconds() if told else self._delay_s * random.uniform(0.5, 1.0)  # noqa: S311
        self._delay_s = min(self._delay_s * 2, MAX_RETRY_DELAY_S)
        return min(delay_s, left_s)


class UntilFree:
    """Decides how long to wait for a thread that another sidecar holds: until it is free, if that sidecar stays idle,
    and for at most `patience_s()` seconds altogether."""

    def __init__(self, patience_s: Callable[[], float], clock: Callable[[], float] = time.monotonic) -> None:
        self._patience_s = patience_s
        self._clock = clock
        self._end: float | None = None
        self._free_at = float("inf")

    def delay_after(self, error: NotOwner) -> float | None:
        """Seconds to wait before the next attempt; None = give up, as the owner is alive, or idle for too short."""
        now = self._clock()
        if self._end is None:
            self._end = now + self._patience_s()
        if error.free_in is None:  # an orphan, or a copy of which nobody can say when it is free
            return None
        free_in_s = error.free_in.total_seconds()
        free_at = now + free_in_s
        if free_at > min(self._end, self._free_at + ALIVE_MARGIN_S):
            return None
        self._free_at = min(self._free_at, free_at)
        return min(max(free_in_s, FIRST_RETRY_DELAY_S), MAX_RETRY_DELAY_S)
