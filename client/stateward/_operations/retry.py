"""When to try again."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from stateward.errors import NotOwner, StatewardError, Unauthenticated

FIRST_RETRY_DELAY_S = 0.05
MAX_RETRY_DELAY_S = 1.0
ALIVE_MARGIN_S = 2.0
"""An owner is alive if the time at which its thread becomes free moves by more than this; less may be a slow answer."""


class Backoff:
    """Pauses that double up to a limit, until the patience is over. They have jitter, so that callers who wait for the
    same thing do not all return at once."""

    def __init__(
        self,
        first_s: float,
        max_s: float,
        patience_s: float = float("inf"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._delay_s, self._max_s, self._clock = first_s, max_s, clock
        self._start = clock()
        self.patience_s = patience_s

    def left_s(self) -> float:
        """Seconds that are left; 0 = the patience is over."""
        return max(self._start + self.patience_s - self._clock(), 0)

    def next_s(self) -> float | None:
        """Returns the next pause; None = the patience is over."""
        left_s = self.left_s()
        if not left_s:
            return None
        delay_s = self._delay_s * random.uniform(0.5, 1.0)  # noqa: S311  spreads, hides nothing
        self._delay_s = min(self._delay_s * 2, self._max_s)
        return min(delay_s, left_s)


def never() -> bool:
    """There is no other token."""
    return False


class Retry:
    """Decides how long to wait before a failed call is repeated, for at most `patience_s()` seconds altogether.

    `renew` reads the token again, and says whether it may be another one. A call whose token is not valid is repeated
    once then: the token may have ended, or may have been replaced, since it was sent."""

    def __init__(self, patience_s: Callable[[], float], renew: Callable[[], bool] = never) -> None:
        self._patience_s, self._renew = patience_s, renew
        self._backoff: Backoff | None = None
        self._has_renewed = False

    def reset(self) -> None:
        """Starts anew, after a success."""
        self._backoff, self._has_renewed = None, False

    def delay_after(self, error: StatewardError) -> float | None:
        """Seconds to wait before the next attempt; None = give up."""
        if isinstance(error, Unauthenticated) and not self._has_renewed and self._renew():
            self._has_renewed = True
            return 0.0
        if self._backoff is None:
            self._backoff = Backoff(FIRST_RETRY_DELAY_S, MAX_RETRY_DELAY_S)
        self._backoff.patience_s = self._patience_s()  # which changes when the daemon answers for the first time
        delay_s = self._backoff.next_s() if error.retryable else None
        if delay_s is None or not error.retry_delay:
            return delay_s
        return min(error.retry_delay.total_seconds(), self._backoff.left_s())


def race_backoff() -> Backoff:
    """Pauses for writers that collided, so that they do not collide again."""
    return Backoff(0.02, 1.0)


class UntilFree:
    """Decides how long to wait for a thread that another sidecar owns: until it is free, if that sidecar stays idle,
    and for at most `patience_s()` seconds altogether."""

    def __init__(self, patience_s: Callable[[], float], clock: Callable[[], float] = time.monotonic) -> None:
        self._patience_s = patience_s
        self._clock = clock
        self._end: float | None = None
        self._free_at = float("inf")

    def delay_after(self, error: NotOwner) -> float | None:
        """Seconds to wait before the next attempt; None = give up: the owner is alive, or the wait is too long."""
        now = self._clock()
        if self._end is None:
            self._end = now + self._patience_s()
        if error.free_in is None:  # an orphan, or a copy that never says when it is free
            return None
        free_in_s = error.free_in.total_seconds()
        free_at = now + free_in_s
        if free_at > min(self._end, self._free_at + ALIVE_MARGIN_S):
            return None
        self._free_at = min(self._free_at, free_at)
        return min(max(free_in_s, FIRST_RETRY_DELAY_S), MAX_RETRY_DELAY_S)
