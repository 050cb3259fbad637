"""Time that continues while the machine sleeps, for what others do meanwhile."""

from __future__ import annotations

import time

# macOS has no CLOCK_BOOTTIME. Its CLOCK_MONOTONIC continues during sleep; that of Linux does not.
_AWAKE_AND_ASLEEP: int | None = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


def boottime() -> float:
    """Seconds that never go back, and continue while the machine sleeps. Leases and claims end by them."""
    return time.monotonic() if _AWAKE_AND_ASLEEP is None else time.clock_gettime(_AWAKE_AND_ASLEEP)
