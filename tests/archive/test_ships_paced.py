"""The danger: on a store with one write a second of each object, each waiting caller occupies a worker, or none of them
is served before the budget of writes allows it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from tests.daemon.process import eventually

from stateward_sidecar.archive.objects.holds import Options
from stateward_sidecar.archive.ship.schedule import Schedule
from stateward_sidecar.clock import Clock

THREAD = 7


class Ships:
    """The real schedule, with ships that only note when they began."""

    def __init__(self, every_s: float, options: Options) -> None:
        self.began: list[float] = []
        self._lock = threading.Lock()
        state: Any = SimpleNamespace(
            options=options, context=SimpleNamespace(clock=Clock()), wire=SimpleNamespace(rewrites_every_s=every_s),
            holds={}, waiters=SimpleNamespace(is_waiting=lambda number: False), trim=lambda: None,
        )  # fmt: skip
        lanes: Any = SimpleNamespace(ship=lambda name, run, number: run(number))
        self.schedule = Schedule(state, lanes, self._note)

    def _note(self, number: int) -> None:
        with self._lock:
            self.began.append(time.monotonic())


@contextmanager
def ships(every_s: float, options: Options) -> Iterator[Ships]:
    made = Ships(every_s, options)
    made.schedule.start()
    try:
        yield made
    finally:
        made.schedule.close()


def test_callers_share_the_next_ship() -> None:
    """The first caller's ship begins at once. Callers that come within the pause get one ship, after the pause."""
    with ships(1.5, Options(url="", owner_id="")) as some:
        some.schedule.now(THREAD)
        assert len(some.began) == 1
        for _ in range(5):
            some.schedule.now(THREAD)
        assert len(some.began) == 1 or time.monotonic() - some.began[0] > 1.4
        eventually(lambda: len(some.began) > 1)
        assert some.began[1] - some.began[0] > 1.4
        assert len(some.began) == 2


def test_a_caller_does_not_wait_for_the_budget() -> None:
    """A ship that a caller waits for begins after the pause, although no write is left in the budget."""
    with ships(0.2, Options(url="", owner_id="", puts_per_s=0.5, lease_s=4000)) as some:
        some.schedule.now(THREAD)
        some.schedule.now(THREAD)
        eventually(lambda: len(some.began) == 2, 30)


def test_a_caller_behind_others_that_have_no_budget() -> None:
    """A ship that waits for the budget, for more than an hour here, does not keep the schedule asleep beyond the time
    at which a caller's ship is due."""
    with ships(2.0, Options(url="", owner_id="", puts_per_s=0.0002, lease_s=40000)) as some:
        some.schedule.now(THREAD)
        some.schedule.add(THREAD + 1, at_once=True)
        some.schedule.now(THREAD)
        some.schedule.add(THREAD + 2, at_once=True)
        eventually(lambda: len(some.began) == 2, 30)


def test_an_urgent_ship_that_has_begun_is_urgent_no_more() -> None:
    """Later ships of the same thread wait for the budget again, if no caller waits for them."""
    with ships(0.2, Options(url="", owner_id="")) as some:
        some.schedule.close()  # its thread has ended: this test takes its place
        some.schedule._is_closed = False
        some.schedule.now(THREAD)
        some.schedule.now(THREAD)
        assert some.schedule._urgent == {THREAD}
        eventually(lambda: some.schedule._takes_head_at(THREAD) <= some.schedule._now())
        some.schedule.now(THREAD)
        assert some.schedule._urgent == set()


def test_a_store_without_the_limit() -> None:
    """Each caller's ship begins at once."""
    with ships(0.0, Options(url="", owner_id="")) as some:
        for count in range(1, 4):
            some.schedule.now(THREAD)
            assert len(some.began) == count
