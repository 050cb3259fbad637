"""When what was given out ends: leases of threads, and claims on effects.

Ends are known to this process only, on a clock that never jumps. What was granted before a restart, or on another
machine, gets its full term again from the moment it is first asked for: nobody loses a right too early.
"""

from __future__ import annotations

from collections import OrderedDict

from stateward_sidecar.clock import Clock

# Of a store with more leases and claims at a time, the oldest begin their term anew.
KEPT_MAX = 100_000
Key = tuple[int, bytes]
LEASE = b""  # as the second part of a key: the lease of the thread; else the row of an effect


class Terms:
    """The ends of terms, by thread number and row."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ends: OrderedDict[Key, tuple[int, float]] = OrderedDict()  # token, end

    def begin(self, key: Key, token: int, term_us: int) -> None:
        """Begins a term now."""
        self._ends[key] = token, self._clock.boottime() + term_us / 1e6
        self._ends.move_to_end(key)
        while len(self._ends) > KEPT_MAX:
            self._ends.popitem(last=False)

    def remaining_s(self, key: Key, token: int, term_us: int) -> float:
        """Seconds that are left; 0 = it is over. One that is not known begins now."""
        known = self._ends.get(key)
        if known is None or known[0] != token:
            self.begin(key, token, term_us)
            return term_us / 1e6
        return max(known[1] - self._clock.boottime(), 0.0)

    def forget(self, key: Key) -> None:
        """It was given back, or is over."""
        self._ends.pop(key, None)
