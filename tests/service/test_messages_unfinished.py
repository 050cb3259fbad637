"""The danger: messages that never come whole take memory that no share counts; or calls are refused for nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from stateward_sidecar.service.admission import memory as module
from stateward_sidecar.service.admission.memory import FREED_BYTES, Unfinished, own_bytes

LIMIT = 100 * FREED_BYTES


class Memory:
    """What the process has, as the test says."""

    def __init__(self) -> None:
        self.bytes, self.looks = 0, 0

    def measure(self) -> int:
        self.looks += 1
        return self.bytes


class Calls:
    """Calls that wait for a message for ever."""

    def __init__(self, unfinished: Unfinished) -> None:
        self._unfinished = unfinished
        self.refused: list[str] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def begin(self, name: str, *, is_stream: bool) -> None:
        begun = asyncio.Event()

        async def wait() -> None:
            waiting = self._unfinished.begin(is_stream=is_stream)
            begun.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if waiting.is_refused:
                    self.refused.append(name)
                raise
            finally:
                self._unfinished.end(waiting)

        self.tasks.append(asyncio.ensure_future(wait()))
        await begun.wait()

    async def until(self, count: int) -> None:
        await until(lambda: len(self.refused) >= count)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not is_so():  # noqa: ASYNC110  (nothing tells of it)
            await asyncio.sleep(0.005)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.005)
    monkeypatch.setattr(module, "REFUSED_FROM_S", 0.0)


async def test_nobody_is_refused_while_memory_is_as_it_should_be() -> None:
    """Writers may be idle for days."""
    memory = Memory()
    unfinished = Unfinished(LIMIT, memory.measure)
    calls = Calls(unfinished)
    memory.bytes = LIMIT
    await calls.begin("writer", is_stream=True)
    await until(lambda: memory.looks >= 20)
    assert calls.refused == []
    for task in calls.tasks:
        task.cancel()


async def test_single_messages_are_refused_before_streams() -> None:
    """A client that is well sends its only message with the call. Of the streams, the newest half goes first."""
    memory = Memory()
    unfinished = Unfinished(LIMIT, memory.measure)
    calls = Calls(unfinished)
    for number in range(4):
        await calls.begin(f"stream {number}", is_stream=True)
    await calls.begin("single", is_stream=False)
    memory.bytes = 2 * LIMIT
    await calls.until(1)
    assert calls.refused == ["single"]
    memory.bytes -= 2 * FREED_BYTES
    await calls.until(3)
    assert sorted(calls.refused[1:]) == ["stream 2", "stream 3"]
    memory.bytes = 0
    for task in calls.tasks:
        task.cancel()


async def test_refusals_that_free_nothing_become_rare() -> None:
    """If the memory is somebody else's, idle streams are not refused ten times a second."""
    memory = Memory()
    unfinished = Unfinished(LIMIT, memory.measure)
    memory.bytes = 2 * LIMIT
    calls = Calls(unfinished)
    pauses = []
    for number in range(5):
        await calls.begin(f"{number}", is_stream=True)
        await calls.until(number + 1)
        pauses.append(unfinished._pause_s)
    assert pauses == sorted(pauses)
    assert pauses[-1] >= 8 * pauses[0]


async def test_nothing_is_looked_at_while_no_call_waits() -> None:
    """An idle daemon does not wake up."""
    memory = Memory()
    unfinished = Unfinished(LIMIT, memory.measure)
    waiting = unfinished.begin(is_stream=True)
    unfinished.end(waiting)
    await until(lambda: unfinished._timer is None)
    assert memory.looks <= 1


def test_the_memory_of_this_process_is_known() -> None:
    """The system says it, or the bound is off."""
    assert own_bytes() == 0 or own_bytes() > 1 << 20
