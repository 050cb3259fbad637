"""Time as a component, so that tests can move it."""

from __future__ import annotations

import time

# macOS has no CLOCK_BOOTTIME. Its CLOCK_MONOTONIC continues during sleep; that of Linux does not.
_AWAKE_AND_ASLEEP: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock:
    """The machine's clocks."""

    def now_us(self) -> int:
        """Wall clock, microseconds since 1970. May jump."""
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        """Seconds that never go back. On Linux they stand still while the machine sleeps, so they measure only what
        this process does by itself, such as one request."""
        return time.monotonic()

    def boottime(self) -> float:
        """Seconds that never go back, and continue while the machine sleeps. For all that others do meanwhile: leases,
        the age of what was read, expiry."""
        return time.clock_gettime(_AWAKE_AND_ASLEEP)
