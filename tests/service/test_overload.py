"""The danger: one agent's burst of calls holds up all other agents until the whole burst is worked off."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from tests.daemon.inside import WAIT_S, daemon_inside
from tests.soak.hostile import append

from stateward.v1.checkpoint_service_pb2 import BatchSaveRequest, HydrateRequest, SaveRequest
from stateward.v1.thread_service_pb2 import ListThreadsRequest
from stateward_sidecar import app
from stateward_sidecar.service.admission import order
from stateward_sidecar.service.admission.order import (
    FREE_CALLS,
    GROUP_WRITES,
    QUIET_TURNS,
    READS_AT_WORK,
    Flow,
    Line,
    Turns,
    flow_of,
)


class Waiting:
    """A line in which each place has a name."""

    def __init__(self) -> None:
        self.line = Line()
        self.names: dict[asyncio.Future[None], str] = {}

    def add(self, flow: str, name: str) -> asyncio.Future[None]:
        place = asyncio.get_running_loop().create_future()
        self.names[place] = name
        self.line.add(("", flow), place)
        return place

    def take(self, count: int = 1) -> str:
        return " ".join(self.names[place] for place in (self.line.take() for _ in range(count)) if place is not None)


async def test_turns_go_to_the_newest_thread_and_to_the_one_that_waits_longest() -> None:
    waiting = Waiting()
    for name in ("a1", "a2", "b1", "b2", "c1", "c2", "d1"):
        waiting.add(name[0], name)
    assert waiting.take(9) == "d1 a1 c1 b1 a2 c2 b2"
    assert not waiting.line


async def test_a_caller_with_one_call_at_a_time_is_always_next() -> None:
    waiting = Waiting()
    for number in range(1000):
        waiting.add(f"burst-{number % 100}", "burst")
    waiting.take(100)
    for _ in range(100):
        waiting.add("mine", "mine")
        waiting.add("burst-7", "burst")  # the burst goes on
        assert "mine" in waiting.take(2)


async def test_whoever_waits_gets_a_turn_although_new_threads_keep_coming() -> None:
    waiting = Waiting()
    for number in range(50):
        waiting.add(f"old-{number}", "old")
    served = []
    for number in range(100):
        waiting.add(f"new-{number}", "new")
        served.append(waiting.take())
    assert served.count("old") == 50


async def test_a_call_that_was_cancelled_has_left_the_line() -> None:
    waiting = Waiting()
    places = {name: waiting.add(name[0], name) for name in ("a1", "a2", "b1", "c1")}
    for name in ("a1", "c1"):
        places[name].cancel()
    assert waiting.take(5) == "b1 a2"
    assert waiting.line.take() is None


def test_a_flow_is_a_thread_or_else_a_method() -> None:
    assert flow_of(SaveRequest(namespace="n", thread="t"), "Save") == ("n", "t")
    assert flow_of(HydrateRequest(namespace="n", thread="t"), "Hydrate") == ("n", "t")
    assert flow_of(BatchSaveRequest(saves=[SaveRequest(thread="t"), SaveRequest(thread="u")]), "BatchSave") == ("", "t")
    assert flow_of(ListThreadsRequest(namespace="n"), "ListThreads") == ("n", "ListThreads")


async def begin(turns: Turns, flow: Flow, *, is_write: bool) -> None:
    """Begins a call as the daemon does."""
    if not turns.passes(is_write=is_write):
        await turns.wait_in_line(flow, is_write=is_write)


class Daemon:
    """Turns whose commits end when they are told to. Keeps who has begun."""

    def __init__(self) -> None:
        self.turns = Turns(asyncio.get_running_loop())
        self.begun: list[str] = []
        self._tasks: list[asyncio.Task[None]] = []

    def call(self, thread: str, *, is_write: bool = True) -> asyncio.Task[None]:
        async def run(flow: Flow) -> None:
            await begin(self.turns, flow, is_write=is_write)
            self.begun.append(thread)
            if is_write:
                self.turns.begin_commit()

        self._tasks.append(asyncio.create_task(run(("", thread))))
        return self._tasks[-1]

    async def fill(self, count: int = FREE_CALLS) -> None:
        for _ in range(count):
            self.call("burst")
        await asyncio.sleep(0)
        self.begun.clear()

    def commit(self, count: int) -> None:
        for _ in range(count):
            self.turns.end_commit()

    async def settle(self) -> list[str]:
        await asyncio.gather(*self._tasks)
        return self.begun


async def test_calls_begin_at_once_while_there_is_no_burst() -> None:
    daemon = Daemon()
    for _ in range(FREE_CALLS):
        waiting = begin(daemon.turns, ("", "t"), is_write=True)
        with_no_turn_of_the_loop(waiting)
        daemon.turns.begin_commit()
    await asyncio.sleep(0.001)
    with_no_turn_of_the_loop(begin(daemon.turns, ("", "t"), is_write=False))


async def test_after_many_calls_in_a_row_the_next_one_shows_whether_more_are_coming(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(order, "ROW_S", WAIT_S)  # a busy machine may take a while between two of them
    daemon = Daemon()
    for is_write in (True, False):
        for _ in range(FREE_CALLS):
            with_no_turn_of_the_loop(begin(daemon.turns, ("", "t"), is_write=is_write))
        waits = [daemon.call("t", is_write=is_write) for _ in range(FREE_CALLS)]
        await asyncio.sleep(0)
        assert daemon.begun == []
        await (waits[0] if is_write else asyncio.gather(*waits))
        assert daemon.begun == ["t"] * FREE_CALLS  # these were all
        daemon.begun.clear()


async def test_a_loop_that_stood_still_ends_no_row() -> None:
    """It could not look for calls, so gRPC may keep a burst back. When it looks and none comes, the row ends."""
    daemon = Daemon()
    for number in range(FREE_CALLS):
        daemon.turns.begin_call(is_open=False)
        with_no_turn_of_the_loop(begin(daemon.turns, ("", "t"), is_write=True))
        if number % 16 == 0:
            stand_still()
    daemon.turns.begin_call(is_open=False)
    call = daemon.call("t", is_write=True)
    await asyncio.sleep(0)
    assert daemon.turns.waiting == (0, 1)
    await call
    for _ in range(2):
        for _ in range(FREE_CALLS):
            daemon.turns.begin_call(is_open=False)
            with_no_turn_of_the_loop(begin(daemon.turns, ("", "t"), is_write=False))
        for _ in range(int(WAIT_S / order.ROW_S)):
            if not daemon.turns._is_row:
                break
            await asyncio.sleep(order.ROW_S)


def stand_still() -> None:
    time.sleep(2 * order.ROW_S)


def with_no_turn_of_the_loop(waiting: object) -> None:
    assert asyncio.iscoroutine(waiting)
    try:
        waiting.send(None)
    except StopIteration:
        return
    raise AssertionError("it waited")


async def test_a_read_does_not_wait_for_writes() -> None:
    daemon = Daemon()
    await daemon.fill()
    for _ in range(100):
        daemon.call("burst")
    await daemon.call("reader", is_write=False)
    assert len(daemon.begun) < 10


async def test_a_small_group_begins_when_commits_end(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(
        loop, "time", partial(float, loop.time())
    )  # a commit that takes no time: the group does not grow
    daemon = Daemon()
    await daemon.fill()
    for _ in range(100):
        daemon.call("burst")
    daemon.call("mine")
    await asyncio.sleep(0)
    for group in range(1, 6):
        daemon.commit(FREE_CALLS if group == 1 else GROUP_WRITES)
        for _ in range(10 * GROUP_WRITES):
            await asyncio.sleep(0)
        assert daemon.begun == ["mine", *["burst"] * (GROUP_WRITES * group - 1)]


async def test_a_commit_that_hangs_holds_no_call_back_for_ever() -> None:
    daemon = Daemon()
    await daemon.fill()
    for number in range(20):
        daemon.call(f"{number}")
    async with asyncio.timeout(10):
        assert len(await daemon.settle()) == 20


async def test_calls_one_after_the_other_are_no_burst() -> None:
    """Each comes after the last answer, as those of a client that is alone. With a pause of some turns in between, none
    of them waits, however many there are."""
    daemon = Daemon()
    for _ in range(5 * FREE_CALLS):
        daemon.turns.begin_call()
        with_no_turn_of_the_loop(begin(daemon.turns, ("", "t"), is_write=False))
        daemon.turns.end_call()
        for _ in range(QUIET_TURNS + 2):
            await asyncio.sleep(0)


async def test_answers_to_a_burst_are_no_pause() -> None:
    """A call that comes some turns later ends no row, and neither does one whose neighbours are still served."""
    for is_served in (True, False):
        daemon = Daemon()
        if is_served:
            daemon.turns.begin_call()
        for _ in range(FREE_CALLS):
            daemon.turns.begin_call()
            with_no_turn_of_the_loop(begin(daemon.turns, ("", "t"), is_write=False))
            daemon.turns.end_call()
            for _ in range(QUIET_TURNS if is_served else QUIET_TURNS - 2):
                await asyncio.sleep(0)
        daemon.turns.begin_call()
        daemon.call("t", is_write=False)
        await asyncio.sleep(0)
        assert daemon.turns.waiting == (1, 0)
        await daemon.settle()


def test_a_reader_that_is_alone_never_stands_in_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads as fast as it can, one read after the other."""
    waited: list[Flow] = []

    class Kept(Turns):
        async def wait_in_line(self, flow: Flow, *, is_write: bool) -> None:
            waited.append(flow)
            await super().wait_in_line(flow, is_write=is_write)

    monkeypatch.setattr(app, "Turns", Kept)
    with daemon_inside(tmp_path) as daemon:
        daemon.wire.save(append("t", "0"))
        for _ in range(300):
            daemon.wire.checkpoints.Hydrate(HydrateRequest(thread="t"), timeout=WAIT_S)
    assert len(waited) < 30  # 236 without the look for a pause; none with it, also beside busy processes


async def test_a_group_grows_during_a_long_commit_although_calls_keep_coming(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    now_s = loop.time()
    monkeypatch.setattr(loop, "time", lambda: now_s)
    daemon = Daemon()
    await daemon.fill()
    for _ in range(100):
        daemon.call("burst")
    for _ in range(100):
        daemon.turns.begin_call(is_open=False)
        for _ in range(2 * QUIET_TURNS):
            await asyncio.sleep(0)
        now_s += 0.001
    assert len(daemon.begun) > 10  # 50, or 25 where the clock rounds; without growth none


async def test_calls_that_leave_hold_up_nobody() -> None:
    daemon = Daemon()
    await daemon.fill()
    leaving = [daemon.call(f"leaving-{number}") for number in range(20)]
    staying = daemon.call("staying")
    await asyncio.sleep(0)
    for call in leaving:
        call.cancel()
    await staying
    assert daemon.begun == ["staying"]


def test_saves_of_a_daemon_begin_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []
    made: list[Turns] = []

    class Kept(Turns):
        def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
            super().__init__(loop)
            made.append(self)

        async def wait_in_line(self, flow: Flow, *, is_write: bool) -> None:
            await super().wait_in_line(flow, is_write=is_write)
            begun.append(flow[1])

    monkeypatch.setattr(app, "Turns", Kept)
    with daemon_inside(tmp_path) as daemon:
        saves = daemon.wire.checkpoints
        with monkeypatch.context() as nobody_begins:
            nobody_begins.setattr(order, "FREE_CALLS", 0)
            nobody_begins.setattr(order, "QUIET_TURNS", 1 << 30)
            nobody_begins.setattr(order, "ARRIVING_TURNS", 1 << 30)
            calls = [saves.Save.future(append("burst", f"{number}"), timeout=WAIT_S) for number in range(50)]
            await_waiting(made[0], 50)
            calls.append(saves.Save.future(append("mine", "0"), timeout=WAIT_S))
            await_waiting(made[0], 51)
        for call in calls:
            call.result(WAIT_S)
    assert len(begun) == 51
    assert begun.index("mine") <= 2


def await_waiting(turns: Turns, count: int) -> None:
    line = turns._writes
    end = time.monotonic() + WAIT_S
    while sum(map(len, line._flows.values())) < count:
        assert time.monotonic() < end
        time.sleep(0.01)


async def test_reads_of_a_burst_wait_in_line_and_not_for_a_worker() -> None:
    """While so many reads are at work, no other of a burst begins; a write does, and a read when one of them ends."""
    daemon = Daemon()
    with ExitStack() as stack:
        busy = [stack.enter_context(ExitStack()) for _ in range(READS_AT_WORK)]
        for each in busy:
            each.enter_context(daemon.turns.reading())
        for _ in range(3 * FREE_CALLS):
            daemon.call("lists", is_write=False)
        for _ in range(20 * QUIET_TURNS):
            await asyncio.sleep(0)
        begun = len(daemon.begun)
        assert begun == FREE_CALLS  # those that came before it was a burst
        await daemon.call("writer")
        assert len(daemon.begun) == begun + 1
        busy[0].close()
        while len(daemon.begun) == begun + 1:  # noqa: ASYNC110  (turns of the loop are what it counts)
            await asyncio.sleep(0)
        assert daemon.begun[-1] == "lists"
    await daemon.settle()


async def test_more_reads_come_in_than_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each read that ends brings its client's next one. If one began for each that came, calls of others would
    stay in gRPC's queue behind a thousand of them.
    """
    loop = asyncio.get_running_loop()
    now_s = loop.time()
    monkeypatch.setattr(loop, "time", lambda: now_s)
    daemon = Daemon()
    kept_back = 20 * FREE_CALLS
    for _ in range(kept_back):
        daemon.turns.begin_call(is_open=False)
        daemon.call("burst", is_write=False)
        for _ in range(3 * QUIET_TURNS):  # on a busy processor, gRPC needs longer than the daemon looks for calls
            await asyncio.sleep(0)
    assert FREE_CALLS < len(daemon.begun) <= (kept_back + FREE_CALLS) / 2
    now_s += order.ROW_S
    await daemon.settle()
