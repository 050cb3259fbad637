"""Decides when threads are shipped, and gives all of them up at the end.

A thread is shipped at once if a caller waits or if it was idle; else an interval after its last ship, or earlier if it
has much to ship. If the store takes one write a second of each object, the next ship of a thread waits until then, also
for a caller; saves that come meanwhile share it. A budget of writes per second bounds the cost of many threads. Waiting
callers do not wait for it, and no ship waits for it longer than a quarter of a lease: HEAD is the only sign of life of
an owner that has work. Failed ships are retried after growing pauses with jitter. The archive rows of shipped threads
are written together, once a second. Nobody waits for these rows, because HEAD has the same facts after a crash.

Gives all threads up: when the process ends, and when its machine is drained.

Archives and detaches each thread, the most recently written first, and retries failures until the time is over. Uses
workers of its own: each may wait long while the bucket is away, and the archive's workers must stay free for readers.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import lmdb

from stateward.v1.thread_pb2 import THREAD_ACCESS_ORPHAN, THREAD_ACCESS_REMOTE
from stateward_sidecar.archive.objects.holds import ArchiveState, Hold, row_of_hold
from stateward_sidecar.archive.requests.waiting import Lanes
from stateward_sidecar.archive.ship.ship import Shipper
from stateward_sidecar.errors import ArchiveUnavailable, Locked, ShuttingDown, StatewardError
from stateward_sidecar.storage import layout
from stateward_sidecar.storage.queue import Batch, Write
from stateward_sidecar.store.thread.thread import rows, write_archive_row
from stateward_sidecar.telemetry import AGAIN_S, failures, guarded, log, log_damage
from stateward_sidecar.tracebacks import told

ROWS_EVERY_S = 1.0
PAUSE_MIN_S, PAUSE_MAX_S = 0.2, 30.0
FAR_S, SOON_S = 3600.0, 0.01


class Schedule:
    """Starts ships. ``ship`` ships one thread, by number."""

    def __init__(self, state: ArchiveState, lanes: Lanes, ship: Callable[[int], None]) -> None:
        self._state = state
        self._lanes = lanes
        self._ship = ship
        self._condition = threading.Condition()
        self._due: dict[int, float] = {}
        self._running: set[int] = set()
        self._again: set[int] = set()
        self._urgent: set[int] = set()  # due later, because the store does not take HEAD sooner; a caller waits
        self._failures: dict[int, int] = {}
        self._shipped: dict[int, float] = {}  # when last
        self._rows: set[int] = set()
        self._rows_at = 0.0
        self._tokens, self._tokens_at = state.options.puts_per_s, state.context.clock.boottime()
        self._wakes_at = 0.0
        self._is_closed = False
        self._thread = threading.Thread(target=self._loop, name="archive", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    @property
    def dirty(self) -> int:
        """Threads that wait to be shipped."""
        return len(self._due.keys() | self._running)

    def add(self, number: int, *, at_once: bool = False) -> None:
        """Schedules a ship of a thread. Cheap if one is due already."""
        if number in self._due and (not at_once or number in self._failures):  # more work does not shorten a pause
            return
        now = self._now()
        with self._condition:
            interval = self._state.options.ships_every_s
            due = now if at_once else max(now, self._shipped.get(number, now - interval) + interval)
            due = max(due, self._takes_head_at(number))
            if number in self._running:
                self._again.add(number)
            self._due[number] = min(self._due.get(number, due), due)
            if due < self._wakes_at:
                self._condition.notify()

    def now(self, number: int) -> None:
        """Ships a thread at once, because a caller waits. Bypasses the schedule's thread, and does not wait for the
        budget."""
        with self._condition:
            if number in self._running:
                self._again.add(number)
                return
            if self._is_closed:
                return
            due = self._takes_head_at(number)
            if due > self._now():
                self._urgent.add(number)
                self._due[number] = min(self._due.get(number, due), due)
                self._condition.notify()
                return
            self._due.pop(number, None)
            self._urgent.discard(number)
            self._running.add(number)
            self._spend(1)
        self._start(number)

    def close(self) -> None:
        """Starts nothing more, and writes the rows of shipped threads."""
        with self._condition:
            self._is_closed = True
            self._condition.notify()
        if self._thread.is_alive():
            self._thread.join()
        self.write_rows(wait=True)

    def _takes_head_at(self, number: int) -> float:
        """When the store takes the thread's HEAD again."""
        return self._shipped.get(number, float("-inf")) + self._state.wire.rewrites_every_s

    def _now(self) -> float:
        return self._state.context.clock.boottime()

    def _loop(self) -> None:
        while not self._is_closed:
            if not guarded("schedule", self._step):
                with self._condition:
                    if not self._is_closed:
                        self._condition.wait(AGAIN_S)

    def _step(self) -> None:
        """Starts what is due, or waits until something is; writes rows."""
        with self._condition:
            if self._is_closed:
                return
            now = self._now()
            started = self._take(now)
            if not started:
                self._wakes_at = self._next(now)
                if self._wakes_at > now:
                    self._condition.wait(self._wakes_at - now)
                self._wakes_at = 0.0
        for number in started:
            if not guarded("schedule", self._start, number):
                self._ended(number, failed=True)
        if self._rows and self._now() >= self._rows_at:
            self.write_rows()
            self._state.trim()

    def _take(self, now: float) -> list[int]:
        rate = self._state.options.puts_per_s
        self._tokens = min(rate, self._tokens + (now - self._tokens_at) * rate)
        self._tokens_at = now
        ready = sorted((due, number) for number, due in self._due.items() if due <= now and number not in self._running)
        started = []
        for due, number in ready:
            if self._tokens < 1 and due > now - self._state.options.waits_s and number not in self._urgent:
                continue
            self._spend(1)
            self._urgent.discard(number)
            del self._due[number]
            self._running.add(number)
            started.append(number)
        return started

    def _spend(self, writes: int) -> None:
        """Takes writes from the budget. Waiting callers may overdraw it, which holds up the others for a second."""
        self._tokens = max(self._tokens - writes, -self._state.options.puts_per_s)

    def _next(self, now: float) -> float:
        dues = [due for number, due in self._due.items() if number not in self._running]
        wakes = min(dues, default=now + FAR_S)
        if wakes <= now:  # the budget is used up
            has_budget_at = now + max(1 - self._tokens, 0.05) / self._state.options.puts_per_s
            wakes = min(has_budget_at, max(wakes + self._state.options.waits_s, now + SOON_S))
            # What becomes due meanwhile may be urgent, and then needs no budget.
            wakes = min([wakes, *(due for due in dues if due > now)])
        return min(wakes, self._rows_at) if self._rows else wakes

    def _start(self, number: int) -> None:
        hold = self._state.holds.get(number)
        self._lanes.ship(hold.name if hold is not None else number, self._run, number)

    def _run(self, number: int) -> None:
        failed = False
        try:
            self._ship(number)
        except ArchiveUnavailable as error:
            failed = True
            if self._failures.get(number, 0) == 0:
                log.warning("a thread could not be archived; trying again", number=number, error=told(error))
        except ShuttingDown:
            pass
        except StatewardError as error:
            failed = True
            log_damage("a thread could not be archived", error, number=number)
        except Exception:  # noqa: BLE001  (nobody waits for it; the log is where it is seen)
            failed = True
            failures.note("ship", number=number)
        self._ended(number, failed=failed)

    def _ended(self, number: int, *, failed: bool) -> None:
        now = self._now()
        again = False
        hold = self._state.holds.get(number)
        with self._condition:
            if hold is not None:
                puts, hold.puts = hold.puts, 0
                self._spend(puts)
            self._running.discard(number)
            self._shipped[number] = now
            if failed:
                count = self._failures[number] = self._failures.get(number, 0) + 1
                pause = min(PAUSE_MAX_S, PAUSE_MIN_S * 2 ** min(count, 10))
                self._due[number] = now + random.uniform(PAUSE_MIN_S, pause)  # noqa: S311  (no secret)
                self._again.discard(number)
            else:
                self._failures.pop(number, None)
                if not self._rows:
                    self._rows_at = now + ROWS_EVERY_S
                self._rows.add(number)
                if number in self._again:
                    self._again.discard(number)
                    again = self._state.waiters.is_waiting(number)
                    if not again:
                        self._due.setdefault(number, now + self._state.options.ships_every_s)
            if len(self._shipped) > 20_000:
                old = now - self._state.options.ships_every_s
                self._shipped = {key: at for key, at in self._shipped.items() if at > old}
            self._condition.notify()
        if again:
            self.now(number)

    def write_rows(self, *, wait: bool = False) -> None:
        """Writes the archive rows of the threads that were shipped since the last call."""
        with self._condition:
            numbers, self._rows = self._rows, set()
        holds = [hold for number in numbers if (hold := self._state.holds.get(number)) is not None]
        if not holds:
            return

        def run(txn: lmdb.Transaction, batch: Batch) -> None:
            for hold in holds:
                self._write_row(txn, batch, hold)

        try:
            write = self._state.context.writer.submit(Write(run=run, background=True, frees_space=True), wait=wait)
            if wait:
                write.wait()
        except StatewardError:
            return  # the next start reads HEAD

    def _write_row(self, txn: lmdb.Transaction, batch: Batch, hold: Hold) -> None:
        threads = self._state.store.threads
        draft = threads.draft(txn, batch, *hold.name)
        if draft is None or draft.identity.number != hold.number or self._state.holds.get(hold.number) is not hold:
            return
        if draft.thread.access == THREAD_ACCESS_REMOTE:
            return  # this row would let writes pass; the release or deletion under way writes the next row
        row = row_of_hold(hold, (draft.floor_sequence, draft.floor_version))
        archived = draft.thread.archived_sequence
        write_archive_row(txn, draft, row)
        if draft.head.tip_sequence <= archived and not hold.owed.is_due:
            thread = draft.thread
            txn.delete(layout.outbox_key(hold.number))

            def clear() -> None:
                thread.in_outbox = False

            batch.after_commit.append(clear)
        threads.keep_draft(batch, draft)


WORKERS = 16
# Pause between two tries.
RETRY_S = 0.2


class Leaver:
    """Archives and detaches all threads. ``take_up`` attaches and ships a dirty thread that is not held."""

    def __init__(self, state: ArchiveState, shipper: Shipper, take_up: Callable[[int], None]) -> None:
        self._state = state
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
        clock = self._state.context.clock
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

    def count_dirty(self, *, with_locked: bool = True) -> int:
        """Counts threads with entries that the archive lacks, and rolled back threads. Includes threads that nobody
        touched since the start, and locked ones unless they do not matter."""
        state = self._state
        return len(self._dirty_elsewhere(with_locked=with_locked)) + sum(map(is_dirty, list(state.holds.values())))

    def _here(self) -> list[int]:
        holds = sorted(self._state.holds.values(), key=lambda hold: -hold.thread.head.update_time_us)
        return [hold.number for hold in holds] + self._dirty_elsewhere(with_locked=False)

    def _dirty_elsewhere(self, *, with_locked: bool) -> list[int]:
        """Returns threads with a row in the outbox that this process does not hold, left by earlier processes. Nobody
        can ship locked ones."""
        state = self._state
        found = []
        with state.context.engine.read() as txn:
            for number in [layout.marked_thread(key) for key, _ in rows(txn, b"O")]:
                if number in state.holds:
                    continue
                try:
                    thread = state.store.threads.by_number(txn, number)
                except Locked:
                    found += [number] if with_locked else []
                    continue
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
        state = self._state
        try:
            if number not in state.holds:
                self._take_up(number)
            hold = state.holds.get(number)
            if hold is not None:
                self._shipper.ship(hold, detach=True)
        except StatewardError:
            return False, False
        left = state.holds.get(number)
        return hold is not None and left is None, left is None or left.is_rolled_back or not is_dirty(left)


def is_dirty(hold: Hold) -> bool:
    """Whether a thread has entries that the archive lacks, or is rolled back."""
    return hold.is_rolled_back or hold.thread.head.tip_sequence > hold.head.tip_sequence
