"""The danger: a client that does not read its answers fills the daemon's memory, or makes everybody else wait for
memory."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import pytest
from tests.daemon.inside import Inside, daemon_inside
from tests.service.rawhttp2 import DATA, RawConnection

from stateward.v1.checkpoint_service_pb2 import HydrateRequest, HydrateResponse, Projection, SaveRequest
from stateward.v1.state_pb2 import State, Value
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.errors import QueueFull
from stateward_sidecar.service.admission.memory import FREE_ANSWER_BYTES, Budget, Room, Share
from stateward_sidecar.service.admission.order import Turns
from stateward_sidecar.service.calls import method as method_module
from stateward_sidecar.service.calls.method import Method

MIB = 1 << 20
CONTENT = bytes(range(256)) * 24576  # 6 MiB


@pytest.fixture
def inside(tmp_path: Path) -> Iterator[Inside]:
    """Of so little memory that one unread answer leaves none for the next."""
    with daemon_inside(tmp_path, memory_limit="96MiB", sweep_interval="0") as running:
        running.wire.save(
            SaveRequest(
                thread="t", options=WriteOptions(expected_version=0), state=State(slots={"s": Value(data=CONTENT)})
            )
        )
        yield running


def test_an_unread_answer_makes_the_pages_of_others_small(inside: Inside) -> None:
    """Who reads gets the whole state all the same, and in one page again when the other has gone."""
    request = HydrateRequest(thread="t", max_bytes=8 * MIB)
    stalled = RawConnection(inside.settings.listen[0].removeprefix("unix://"))
    stalled.call("/stateward.v1.CheckpointService/Hydrate", request)
    assert DATA in stalled.frames(20, until=DATA)
    page: HydrateResponse = inside.wire.checkpoints.Hydrate(request, timeout=20)
    assert page.ByteSize() <= FREE_ANSWER_BYTES
    assert page.next_page_token
    stalled.close()
    answers = inside.parts.room.answers  # type: ignore[attr-defined]
    while answers.used_bytes:
        inside.wire.thread("default", "t")
    whole: HydrateResponse = inside.wire.checkpoints.Hydrate(request, timeout=20)
    assert whole.state.slots["s"].data == CONTENT
    assert not whole.next_page_token


def test_small_pages_are_the_whole_state(inside: Inside) -> None:
    """Pages that are smaller than asked for go on where the last one ended, without a gap."""
    answers = inside.parts.room.answers  # type: ignore[attr-defined]
    answers.used_bytes = answers.total_bytes
    slots = {"s": Value(data=CONTENT[:100_000])}
    inside.wire.save(SaveRequest(thread="u", options=WriteOptions(expected_version=0), state=State(slots=slots)))
    found = inside.wire.hydrate(HydrateRequest(thread="u", max_bytes=MIB))
    assert found.slots["s"].data == CONTENT[:100_000]


def test_an_answer_that_nobody_is_there_for_leaves_its_memory(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a large request asks for is worked on to its end, also where its client has gone; the answer is dropped."""
    reader, answers = inside.parts.store.reader, inside.parts.room.answers
    begun, has_gone, is_over, hydrate = threading.Event(), threading.Event(), threading.Event(), reader.hydrate

    def slowly(*arguments: Any) -> bytes:
        begun.set()
        assert has_gone.wait(10)
        try:
            return hydrate(*arguments)
        finally:
            is_over.set()

    monkeypatch.setattr(reader, "find_hot", lambda _: None)
    monkeypatch.setattr(reader, "hydrate", slowly)
    names = ["s", *(f"{number:0100}" for number in range(100))]  # more than is parsed without a share
    call = inside.wire.checkpoints.Hydrate.future(
        HydrateRequest(thread="t", max_bytes=8 * MIB, projection=Projection(slots=names))
    )
    assert begun.wait(10)
    assert answers.used_bytes
    call.cancel()
    for _ in range(5):  # so that the daemon hears of it
        inside.wire.thread("default", "t")
    has_gone.set()
    assert is_over.wait(10)
    until = time.monotonic() + 5
    while answers.used_bytes and time.monotonic() < until:
        inside.wire.thread("default", "t")
    assert answers.used_bytes == 0


async def test_shares_are_given_in_the_order_of_asking() -> None:
    """A small one does not overtake a large one, which would wait for ever."""
    budget = Budget(100)
    first, given = await budget.take(60), list[str]()

    async def ask(name: str, size_bytes: int) -> None:
        share = await budget.take(size_bytes)
        given.append(name)
        share.close()

    waiting = [asyncio.ensure_future(ask(name, size)) for name, size in (("large", 80), ("small", 10))]
    await asyncio.sleep(0)
    assert not budget.has_room(1)
    first.close()
    await asyncio.gather(*waiting)
    assert given == ["large", "small"]
    assert budget.used_bytes == 0


async def test_who_waits_too_long_hears_when_to_try_again() -> None:
    """QUEUE_FULL, and the place in the line is given up, so that the next one gets its share."""
    budget = Budget(100)
    first = await budget.take(60)
    with pytest.raises(QueueFull):
        await budget.take(50, wait_s=0.01)
    left = asyncio.ensure_future(budget.take(50))
    await asyncio.sleep(0)
    left.cancel()
    await asyncio.gather(left, return_exceptions=True)
    assert budget.has_room(40)
    first.close()
    assert budget.used_bytes == 0


async def test_more_than_there_is_goes_alone() -> None:
    """What is larger than the budget gets all of it when nobody has any: little memory refuses nothing for good."""
    budget = Budget(100)
    first = await budget.take(1)
    alone = asyncio.ensure_future(budget.take(1000))
    await asyncio.sleep(0)
    assert not alone.done()
    first.close()
    (await alone).close()
    assert budget.used_bytes == 0


def slow(budget: Budget, refused: list[str], name: str, size_bytes: int) -> Share:
    """A message of which a part came, and then nothing more."""
    share = budget.grant(0)

    def refuse() -> None:
        refused.append(name)
        asyncio.get_running_loop().call_soon(share.close)

    share.slow_down(size_bytes, refuse)
    return share


async def test_who_announces_and_does_not_send_lets_others_pass() -> None:
    """A place that is held for a message to come shrinks after a moment, and is not counted twice later."""
    budget = Budget(100)
    held = await budget.take(100)
    held.slow_down(20, lambda: None)
    assert budget.used_bytes == 20
    held.arrive()
    held.settle(30)
    held.slow_down(20, lambda: None)
    assert (budget.used_bytes, budget.slow) == (30, {})
    held.close()
    assert budget.used_bytes == 0


async def test_slow_messages_give_way_the_oldest_first() -> None:
    """They are counted, so that their number is bounded; and no more of them are refused than others need."""
    budget, refused = Budget(100), list[str]()
    shares = [slow(budget, refused, name, 30) for name in "abcd"]
    assert refused == ["a"]
    await asyncio.sleep(0)
    assert budget.used_bytes == 90
    (await budget.take(50)).close()
    assert refused == ["a", "b", "c"]
    (await budget.take(200)).close()
    assert refused == ["a", "b", "c", "d"]
    assert budget.used_bytes == 0
    shares[0].close()


async def test_slow_messages_are_not_refused_in_vain() -> None:
    """While others have so much that it would not help, nobody is refused; once it helps, who waits gets room."""
    budget, refused = Budget(100), list[str]()
    first, large = slow(budget, refused, "a", 20), await budget.take(80)
    waiting = asyncio.ensure_future(budget.take(90))
    await asyncio.sleep(0)
    assert refused == []
    large.close()
    assert refused == ["a"]
    (await waiting).close()
    assert budget.used_bytes == first.size_bytes == 0


async def test_a_slow_message_does_not_wait_for_its_own_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was counted of it while it came is given back before its work takes a share."""
    monkeypatch.setattr(method_module, "RECEIVING_S", 0.01)
    data = SaveRequest(thread="t", state=State(slots={"s": Value(data=bytes(60 << 10))})).SerializeToString()
    room = Room(Budget(3 * MIB // 2), Budget(MIB), ThreadPoolExecutor(1))
    method = Method(
        "Save", SaveRequest, MIB, nullcontext(), room, Turns(asyncio.get_running_loop()),
        is_write=True, is_tight=False,
    )  # fmt: skip
    call = SlowCall(room.requests, data)
    async with asyncio.timeout(5):
        request, share = await method.read_only(cast(Any, call))
    assert request is not None
    assert share is not None
    assert call.used_bytes == MIB
    assert room.requests.used_bytes == share.size_bytes
    share.close()
    assert room.requests.used_bytes == 0


class SlowCall:
    """A call whose message takes longer than it may for nothing."""

    def __init__(self, budget: Budget, data: bytes) -> None:
        self._budget = budget
        self._data = data
        self.used_bytes = 0

    async def read(self) -> bytes:
        await asyncio.sleep(0.05)
        self.used_bytes = self._budget.used_bytes
        return self._data
