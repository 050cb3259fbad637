"""The danger: a lone write waits for others that never come, or one of a group is never committed, and its caller waits
for ever."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import lmdb
import pytest

from stateward_sidecar.errors import InvalidField, ShuttingDown
from stateward_sidecar.service.calls.calls import PATIENCE_S, Gather
from stateward_sidecar.storage.engine import Engine
from stateward_sidecar.storage.queue import Batch, Write
from stateward_sidecar.storage.writer import Writer

WAIT_S = 10.0


class Gathering:
    """A gather on a real writer, inside a running loop."""

    def __init__(self, directory: Path) -> None:
        self.loop = asyncio.get_running_loop()
        self.engine = Engine(directory, 64 << 20)
        self.writer = Writer(self.engine, self._deliver, lambda error: None)
        self.gather = Gather(self.loop, self.writer)
        self.writer.start()
        self.threads: set[str] = set()
        self.steps: list[str] = []

    def _deliver(self, writes: list[Write]) -> None:
        for write in writes:
            if write.on_done is not None:
                self.loop.call_soon_threadsafe(write.on_done, write)

    async def put(self, key: bytes, error: Exception | None = None, refusal: Exception | None = None) -> Any:
        """One write; returns or raises what its caller gets. ``refusal`` is raised when it is prepared."""

        def prepare() -> None:
            self.threads.add(threading.current_thread().name)
            self.steps.append("prepare")
            if refusal is not None:
                raise refusal

        def run(txn: lmdb.Transaction, batch: Batch) -> bytes:
            self.threads.add(threading.current_thread().name)
            self.steps.append("run")
            txn.put(key, b"x")
            if error is not None:
                raise error
            return key

        done = self.loop.create_future()
        self.gather.add(Write(run=run, prepare=prepare, on_done=done.set_result))
        write = await asyncio.wait_for(done, WAIT_S)
        if write.error is not None:
            raise write.error
        return write.result


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Gathering]:
    made = Gathering(tmp_path)
    yield made
    made.writer.stop()
    made.engine.close()


async def test_those_who_come_together_share_commits(rig: Gathering) -> None:
    """Fifty at once take few commits, run on the loop; each gets its own answer, and an error is one caller's alone."""
    calls = [rig.put(b"%d" % number) for number in range(50)]
    bad = rig.put(b"bad", InvalidField("x", "is wrong"))
    *good, failed = await asyncio.gather(*calls, bad, return_exceptions=True)
    assert good == [b"%d" % number for number in range(50)]
    assert isinstance(failed, InvalidField)
    assert rig.writer.commits <= 3
    assert rig.threads == {threading.current_thread().name}
    with rig.engine.env.begin() as txn:
        assert txn.get(b"bad") is None


async def test_those_who_come_together_are_prepared_together(rig: Gathering) -> None:
    """All of a batch are prepared, each once, before the first of them runs; one that fails there never runs."""
    calls = [rig.put(b"%d" % number) for number in range(20)]
    bad = rig.put(b"bad", refusal=InvalidField("x", "is wrong"))
    *good, failed = await asyncio.gather(*calls, bad, return_exceptions=True)
    assert good == [b"%d" % number for number in range(20)]
    assert isinstance(failed, InvalidField)
    assert rig.steps == ["prepare"] * 21 + ["run"] * 20
    assert rig.threads == {threading.current_thread().name}


async def test_a_lone_one_waits_for_nobody(rig: Gathering) -> None:
    """While nothing else is to be done, a write is committed in far less time than the patience with company."""
    times = []
    for number in range(20):
        begun = rig.loop.time()
        await rig.put(b"%d" % number)
        times.append(rig.loop.time() - begun)
    assert min(times) < PATIENCE_S


async def test_endless_company_does_not_hold_a_write_up(rig: Gathering) -> None:
    """A loop that always has something else to do commits all the same, after the patience."""
    stop = False

    def spin() -> None:
        if not stop:
            rig.loop.call_soon(spin)

    spin()
    assert await rig.put(b"key") == b"key"
    stop = True


async def test_somebody_else_who_writes_is_waited_for(rig: Gathering) -> None:
    """While the writer's thread is in the middle of a long write, others queue behind it and are committed after."""
    begun, go_on = threading.Event(), threading.Event()

    def hold(txn: lmdb.Transaction, batch: Batch) -> None:
        begun.set()
        go_on.wait(WAIT_S)

    held = asyncio.create_task(asyncio.to_thread(lambda: rig.writer.submit(Write(run=hold), wait=True).wait()))
    await asyncio.to_thread(begun.wait, WAIT_S)
    rig.loop.call_later(5 * PATIENCE_S, go_on.set)
    assert await rig.put(b"key") == b"key"
    assert rig.steps == ["prepare", "run"]
    await held


async def test_a_stopped_writer_tells_everybody(rig: Gathering) -> None:
    """What was gathered and can no longer be taken is refused; no caller waits for ever."""
    calls = [asyncio.create_task(rig.put(b"%d" % number)) for number in range(3)]
    await asyncio.sleep(0)
    rig.writer.stop()
    for error in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(error, ShuttingDown)
