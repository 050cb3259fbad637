"""When terms end: those of leases, and those of claims on effects.

Only this process knows the ends of terms, on the boot-time clock, which never jumps. A lease or claim that was granted
before a restart or on another machine begins its full term when it is first asked for. So nobody loses a right too
early.
"""

from __future__ import annotations

from collections import OrderedDict

from stateward_sidecar.clock import Clock

# With more leases and claims than this, the oldest are forgotten, and begin their full term again.
KEPT_MAX = 100_000
Key = tuple[int, bytes]
LEASE = b""  # the second part of a key: empty for the lease of the thread, else the row of an effect


class Terms:
    """The ends of terms, by thread number and row."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ends: OrderedDict[Key, tuple[int, float]] = OrderedDict()  # token, end

    def begin(self, key: Key, token: int, term_us: int) -> None:
        """Begins a term of ``term_us`` microseconds now."""
        self._ends[key] = token, self._clock.boottime() + term_us / 1e6
        self._ends.move_to_end(key)
        while len(self._ends) > KEPT_MAX:
            self._ends.popitem(last=False)

    def begin_again(self, key: Key, token: int, term_us: int) -> None:
        """Begins a term now, if it is still that of the token."""
        if self._ends.get(key, (0, 0.0))[0] == token:
            self.begin(key, token, term_us)

    def remaining_s(self, key: Key, token: int, term_us: int) -> float:
        """Returns the seconds that are left of a term; 0 = it is over. An unknown term begins now."""
        known = self._ends.get(key)
        if known is None or known[0] != token:
            self.begin(key, token, term_us)
            return term_us / 1e6
        return max(known[1] - self._clock.boottime(), 0.0)

    def end_of(self, key: Key, token: int) -> float | None:
        """Returns when a term ends, on the boot-time clock; None if nobody has asked for it in this process."""
        known = self._ends.get(key)
        return known[1] if known is not None and known[0] == token else None

    def forget(self, key: Key) -> None:
        """Forgets a term, because the lease was given back or the effect is over."""
        self._ends.pop(key, None)
