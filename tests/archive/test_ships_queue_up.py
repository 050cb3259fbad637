"""The danger: a few ships that take long hold up the ships of all other threads, and these threads seem abandoned."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from stateward_sidecar.archive.requests.waiting import ASIDE_MAX, WORKERS, Lanes, step_aside
from stateward_sidecar.errors import ShuttingDown


class Ships:
    """Ships that go on until the end of the test."""

    def __init__(self) -> None:
        self.lanes = Lanes()
        self.begun = threading.Semaphore(0)
        self.end = threading.Event()
        self._names = iter(range(1000))

    def begin(self, count: int, *, aside: bool) -> None:
        """Asks for so many ships, each of another thread."""

        def work() -> None:
            if aside:
                step_aside()
                step_aside()  # for each sign of life
            self.begun.release()
            self.end.wait(60)

        for _ in range(count):
            self.lanes.ship(next(self._names), work)

    def wait(self, count: int) -> None:
        """Waits until so many have begun."""
        assert all(self.begun.acquire(timeout=30) for _ in range(count)), "a ship has not begun"


@contextmanager
def ships() -> Iterator[Ships]:
    made = Ships()
    try:
        yield made
    finally:
        made.end.set()
        made.lanes.close(wait=True)


def test_ships_that_take_long_leave_their_places_to_others() -> None:
    """Twice as many long ships as workers are under way, and another thread is shipped."""
    with ships() as some:
        some.begin(2 * WORKERS, aside=True)
        some.wait(2 * WORKERS)
        assert some.lanes.ship("other", lambda: "shipped").result(30) == "shipped"


def test_ships_are_limited_all_the_same() -> None:
    """Without a long upload, no more ships are under way than there are workers; with one, there is a limit as well.
    All are shipped in the end."""
    with ships() as some:
        some.begin(ASIDE_MAX, aside=True)
        some.wait(ASIDE_MAX)
        some.begin(2 * WORKERS, aside=False)
        some.wait(WORKERS)
        assert some.lanes._begun == ASIDE_MAX + WORKERS
        some.end.set()
        some.wait(WORKERS)
        assert some.lanes.ship("other", lambda: "shipped").result(30) == "shipped"


def test_calls_do_not_step_aside() -> None:
    """A call that uploads, as a detach does, is counted among calls."""
    with ships() as some:
        some.lanes.call("job", step_aside).result(30)
        some.begin(WORKERS + 1, aside=False)
        some.wait(WORKERS)
        assert some.lanes._begun == WORKERS


def test_ships_that_have_not_begun_are_cancelled_at_the_end() -> None:
    """Nobody waits for ever for a ship that found no worker."""
    with ships() as some:
        some.begin(WORKERS, aside=False)
        some.wait(WORKERS)
        late = some.lanes.ship("late", lambda: None)
        some.end.set()
        some.lanes.close(wait=False)
        assert late.cancelled() or late.exception(30) is not None or late.result(30) is None


def test_a_system_without_threads_is_no_daemon_that_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """No further worker can be started: the tasks wait for one that is there, and none is answered in its place."""
    lanes = Lanes()

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        tasks = [run(number, lambda number=number: number) for number in range(20) for run in (lanes.call, lanes.ship)]
        assert [task.result(30) for task in tasks] == [number for number in range(20) for _ in range(2)]
    lanes.close(wait=True)
    with pytest.raises(ShuttingDown):
        lanes.ship("late", lambda: None).result(30)
