"""Gives all threads up: when the process ends, and when its machine is drained.

Archives and detaches each thread, the most recently written first, and retries failures until the time is over. Uses
workers of its own: each may wait long while the bucket is away, and the archive's workers must stay free for readers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from stateward.v1.thread_pb2 import THREAD_ACCESS_ORPHAN, THREAD_ACCESS_REMOTE
from stateward_sidecar.archive.objects.desk import Desk, Hold
from stateward_sidecar.archive.ship.ship import Shipper
from stateward_sidecar.errors import StatewardError
from stateward_sidecar.storage import layout
from stateward_sidecar.store.thread.thread import rows

WORKERS = 16
# Pause between two tries.
RETRY_S = 0.2


class Leaver:
    """Archives and detaches all threads. ``take_up`` attaches and ships a dirty thread that is not held."""

    def __init__(self, desk: Desk, shipper: Shipper, take_up: Callable[[int], None]) -> None:
        self._desk = desk
        self._shipper = shipper
        self._take_up = take_up

    def leave(
        self,
        grace_s: float,
        is_over: Callable[[], bool] = lambda: False,
        on_given: Callable[[], None] = lambda: None,
    ) -> tuple[int, int]:
        """Returns how many threads were given up, and how many are still dirty. Calls ``on_given`` for each given up.

        Starts nothing after ``grace_s`` or once ``is_over()``. Ships that began earlier may still wait for the bucket.
        """
        clock = self._desk.context.clock
        end = clock.monotonic() + grace_s

        def is_late() -> bool:
            return clock.monotonic() >= end or is_over()

        def give_up(number: int) -> tuple[int, bool, bool]:
            return number, *((False, False) if is_late() else self._give_up(number))

        given, done = 0, set[int]()
        with ThreadPoolExecutor(WORKERS, thread_name_prefix="leave") as pool:
            while numbers := [number for number in self._here() if number not in done]:
                for number, is_given, is_done in pool.map(give_up, numbers):
                    if is_given:
                        given += 1
                        on_given()
                    if is_done:
                        done.add(number)
                if is_late():
                    break
                if not done.issuperset(numbers):
                    time.sleep(max(min(RETRY_S, end - clock.monotonic()), 0.0))
        return given, self.count_dirty()

    def count_dirty(self) -> int:
        """Counts threads with entries that the archive lacks, and rolled back threads. Includes threads that nobody
        touched since the start."""
        desk = self._desk
        return len(self._dirty_elsewhere()) + sum(map(_is_dirty, list(desk.holds.values())))

    def _here(self) -> list[int]:
        holds = sorted(self._desk.holds.values(), key=lambda hold: -hold.thread.head.update_time_us)
        return [hold.number for hold in holds] + self._dirty_elsewhere()

    def _dirty_elsewhere(self) -> list[int]:
        """Returns threads with a row in the outbox that this process does not hold, left by earlier processes."""
        desk = self._desk
        found = []
        with desk.context.engine.read() as txn:
            for number in [layout.marked_thread(key) for key, _ in rows(txn, b"O")]:
                if number in desk.holds:
                    continue
                try:
                    thread = desk.store.threads.by_number(txn, number)
                except StatewardError:  # damaged: the archive may lack entries
                    found.append(number)
                    continue
                is_copy = thread is not None and thread.access in (THREAD_ACCESS_REMOTE, THREAD_ACCESS_ORPHAN)
                if thread is None or (is_copy and not thread.is_outdated):
                    continue
                if thread.head.tip_sequence > thread.archived_sequence:
                    found.append(number)
        return found

    def _give_up(self, number: int) -> tuple[bool, bool]:
        """Returns whether the thread was given up, and whether it needs no further try."""
        desk = self._desk
        try:
            if number not in desk.holds:
                self._take_up(number)
            hold = desk.holds.get(number)
            if hold is not None:
                self._shipper.ship(hold, detach=True)
        except StatewardError:
            return False, False
        left = desk.holds.get(number)
        return hold is not None and left is None, left is None or left.is_rolled_back or not _is_dirty(left)


def _is_dirty(hold: Hold) -> bool:
    return hold.is_rolled_back or hold.thread.head.tip_sequence > hold.head.tip_sequence
