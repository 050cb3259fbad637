"""The danger: whether an idle owner was replaced is asked of a bucket that hangs, and every read hangs with it."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from stateward.v1.checkpoint_pb2 import DURABILITY_COMMITTED
from stateward_sidecar.errors import ThreadNotFound
from stateward_sidecar.service.calls import ownership as module
from stateward_sidecar.service.calls.ownership import Ownership


@pytest.fixture
def asked() -> list[Future[None]]:
    """What was asked of the archive, and not answered yet."""
    return []


@pytest.fixture
def ownership(asked: list[Future[None]], monkeypatch: pytest.MonkeyPatch) -> Ownership:
    """It holds every thread, and has not asked for it for long."""
    monkeypatch.setattr(module, "CHECK_WAIT_S", 0.05)

    def call(*_: object) -> Future[None]:
        asked.append(Future())
        return asked[-1]

    archive: Any = SimpleNamespace(
        holds=lambda *_: object(), is_fresh=lambda *_: False, know=None, lanes=SimpleNamespace(call=call)
    )
    nothing: Any = None
    return Ownership(nothing, archive, DURABILITY_COMMITTED)


async def read() -> str:
    return "what is here"


def test_a_bucket_that_hangs_delays_a_read_and_no_more(ownership: Ownership, asked: list[Future[None]]) -> None:
    """Reads of one thread ask together, and answer with what is here; a late answer counts for the next read."""

    async def run() -> None:
        async with asyncio.timeout(20):
            answers = await asyncio.gather(*(ownership.read("n", "t", read) for _ in range(5)))
        assert (answers, len(asked)) == (["what is here"] * 5, 1)
        module.CHECK_WAIT_S = 60
        async with asyncio.timeout(20):  # whoever comes later does not wait as long again
            await ownership.read("n", "t", read)
        assert len(asked) == 1
        asked[0].set_exception(ThreadNotFound("deleted meanwhile"))
        with pytest.raises(ThreadNotFound):
            await ownership.read("n", "t", read)
        module.CHECK_WAIT_S = 0.05
        await ownership.read("n", "t", read)
        assert len(asked) == 2

    asyncio.run(run())


def test_what_the_archive_says_in_time_counts(ownership: Ownership, asked: list[Future[None]]) -> None:
    """A thread that was deleted elsewhere is not read."""

    async def run() -> None:
        reading = asyncio.ensure_future(ownership.read("n", "t", read))
        for _ in range(3):  # turns of the loop until it asks
            await asyncio.sleep(0)
        asked[0].set_exception(ThreadNotFound("deleted meanwhile"))
        with pytest.raises(ThreadNotFound):
            await reading

    asyncio.run(run())
