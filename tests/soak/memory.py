"""How much memory the daemon has of its own, and whether that grows."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

SETTLES_S = 300.0  # what it needs by then it may need
GROWTH_BYTES_MAX = 64 << 20


class Memory:
    """Samples of all the daemon's processes. Pages of the map are not counted: the kernel takes them back."""

    def __init__(self) -> None:
        self._samples: list[tuple[float, int, int]] = []  # time, pid, bytes

    @property
    def last_bytes(self) -> int:
        return self._samples[-1][2] if self._samples else 0

    def sample(self, pid: int) -> None:
        """Looks now."""
        with suppress(OSError, StopIteration):
            status = Path(f"/proc/{pid}/status").read_text()
            kilobytes = next(line for line in status.splitlines() if line.startswith("RssAnon")).split()[1]
            self._samples.append((time.monotonic(), pid, int(kilobytes) << 10))

    def growth(self) -> tuple[int, float]:
        """Bytes by which the last process grew after it had settled, and its age in seconds."""
        mine = [sample for sample in self._samples if sample[1] == self._samples[-1][1]]
        if not mine:
            return 0, 0.0
        age_s = mine[-1][0] - mine[0][0]
        settled = next(size for when, _, size in mine if when - mine[0][0] >= min(SETTLES_S, age_s / 2))
        return mine[-1][2] - settled, age_s
