"""Clocks that tests move."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stateward_sidecar.clock import Clock


class MovedClock(Clock):
    """The machine's clock, and as much later as a test says."""

    ahead_s = 0.0  # so much time has passed
    off_s = 0.0  # the wall clock was set, and no time has passed

    def now_us(self) -> int:
        return super().now_us() + int((self.ahead_s + self.off_s) * 1e6)

    def boottime(self) -> float:
        return super().boottime() + self.ahead_s


@dataclass(slots=True, eq=False)
class Beat:
    """What a process does again and again while time passes, although a call of it waits for the bucket."""

    strike: Callable[[], None]
    every_s: float
    due_s: float
    runs: bool = False


class FakeClock(Clock):
    """Time that stands still until somebody moves it. All machines age alike; their wall clocks may be wrong."""

    def __init__(self) -> None:
        self.beats: list[Beat] = []
        self.now_s = 1_000_000.0
        self.skew_s = 0.0
        self.newest_us = 0  # that any clock of this time ever showed

    def now_us(self) -> int:
        return int((self.now_s + self.skew_s + 1.7e9) * 1e6)

    def monotonic(self) -> float:
        return self.now_s

    def boottime(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        """Waiting costs nothing. What is due meanwhile happens at its time."""
        end = self.now_s + seconds
        while due := [beat for beat in self.beats if beat.due_s <= end and not beat.runs]:
            first = min(due, key=lambda beat: beat.due_s)
            self.now_s = max(self.now_s, first.due_s)
            first.runs = True
            first.strike()
            first.runs, first.due_s = False, self.now_s + first.every_s
        self.now_s = max(self.now_s, end)


class SkewedClock(FakeClock):
    """One machine's clock: the common time, with a wall clock of its own."""

    def __init__(self, common: FakeClock) -> None:
        super().__init__()
        self._common = common
        self.slept_s = 0.0  # how long this machine was asleep; everybody else was awake
        self.newest_us = 0  # that anybody was ever told

    def now_us(self) -> int:
        now_us = self._common.now_us() + int(self.skew_s * 1e6)
        self.newest_us = max(self.newest_us, now_us)
        self._common.newest_us = max(self._common.newest_us, now_us)
        return now_us

    def monotonic(self) -> float:
        return self._common.now_s - self.slept_s

    def boottime(self) -> float:
        return self._common.now_s
