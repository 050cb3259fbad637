"""The danger: frames of writers' streams take memory that nobody counts, while calls wait for each other's."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.daemon.inside import WAIT_S, Inside, daemon_inside
from tests.daemon.wire import THREAD, sets
from tests.service.agents import Agent

from stateward.v1.thread_service_pb2 import GetThreadRequest
from stateward_sidecar.service.calls.exchange import Exchange, Frame
from stateward_sidecar.store.versions.save import SaveWrite

T = TypeVar("T")
LARGE = "x" * 300_000


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Inside]:
    with daemon_inside(tmp_path) as inside:
        yield inside


def on_loop(daemon: Inside, call: Callable[[], T]) -> T:
    """Budgets belong to the event loop."""
    done: Future[T] = Future()
    daemon.loop.call_soon_threadsafe(lambda: done.set_result(call()))
    return done.result(WAIT_S)


def test_a_large_frame_waits_for_memory(daemon: Inside) -> None:
    """It is taken when there is room, and holds up no small one of another stream; at the end all is given back."""
    budget = daemon.parts.room.requests
    stream, small = (Agent(daemon.wire, "default", name, name).open() for name in ("large", "small"))
    share = on_loop(daemon, lambda: budget.grant(budget.total_bytes))
    stream.send(diff=sets("slot", LARGE))
    end = time.monotonic() + WAIT_S
    while not on_loop(daemon, lambda: len(budget._waiting)):
        assert time.monotonic() < end, "the frame was taken although there was no memory"
        time.sleep(0.01)
    small.send()
    assert small.answers(1) == [1]
    on_loop(daemon, share.close)
    assert stream.answers(1) == [1]
    with daemon.parts.store.context.writer.publishing:  # nothing is committed meanwhile
        stream.send(diff=sets("slot", LARGE[1:]))
        while on_loop(daemon, lambda: budget.used_bytes) < len(LARGE):
            assert time.monotonic() < end, "the frame that is worked on takes no memory"
        time.sleep(0.2)
        assert on_loop(daemon, lambda: budget.used_bytes) > len(LARGE), "it has none any more, and is not written yet"
    assert stream.answers(1) == [2]
    for each in (stream, small):
        each.end()
    while on_loop(daemon, lambda: budget.used_bytes):
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_frame_whose_answer_nobody_reads_keeps_nothing_of_what_was_sent(
    daemon: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frames below the size that is counted, too: their saves are gone once they are committed, and not when they are
    answered."""
    frames = 40
    stream = Agent(daemon.wire, "default", "silent").open()

    async def never_read(self: Exchange[Any, Any], answer: Any) -> None:
        await asyncio.Event().wait()

    def alive(kind: type) -> int:
        gc.collect()
        return sum(isinstance(each, kind) for each in gc.get_objects())

    monkeypatch.setattr(Exchange, "write", never_read)
    monkeypatch.setattr(Frame, "is_done", property(lambda _: False))  # as if each came before the last was committed
    end = time.monotonic() + WAIT_S
    for number in range(frames):
        stream.send(diff=sets("slot", f"{number}" * 100))
    while daemon.wire.threads.GetThread(GetThreadRequest(thread=THREAD)).thread.version < frames:
        assert time.monotonic() < end, "the frames are not committed"
        time.sleep(0.01)
    while alive(SaveWrite) > 4:  # those of the newest frames may still be at work
        assert time.monotonic() < end, f"{alive(SaveWrite)} of {frames} saves are kept until somebody reads"
        time.sleep(0.05)
    stream.cut()
