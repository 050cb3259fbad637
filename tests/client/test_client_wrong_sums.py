"""The danger: a sum that belongs to the increment of another writer, so that two agents have the same number."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from stateward import AsyncClient, Client
from stateward.errors import VersionPruned
from stateward.testing import Daemon, run_daemon


@pytest.fixture(scope="module")
def server() -> Iterator[Daemon]:
    """A daemon that may be killed."""
    with run_daemon() as daemon:
        yield daemon


async def test_each_increment_has_a_sum_of_its_own(server: Daemon, name: str) -> None:
    """The same of the asyncio client, in steps of many sizes: each sum lies its own step above another one."""
    async with AsyncClient(server.target) as client:
        board = client.board(name)
        deltas = [1, 5, 70] * 30
        sums = await asyncio.gather(*(board.increment("hits", delta) for delta in deltas))
    befores = [after - delta for after, delta in zip(sums, deltas, strict=True)]
    assert len(set(sums)) == len(deltas)
    assert sorted([*befores, sum(deltas)]) == sorted([0, *sums])


def test_a_retry_gets_the_old_sum(server: Daemon, name: str) -> None:
    """Whatever was added since, restarted or pruned: who lost the answer learns the sum right after its increment."""
    with Client(server.target) as client:
        thread = client.thread(name)
        assert thread.increment("hits", 3, request_id="lost") == 3
        assert thread.branch("side", at=1).save(thread.hydrate(at=1)).version == 2
        assert thread.increment("hits", 4) == 7
        server.kill()
        server.start()
        assert thread.increment("hits", 3, request_id="lost") == 3
        thread.prune(keep_latest_per_branch=1)
        thread.prune(versions=[1])
        with pytest.raises(VersionPruned):
            thread.hydrate(at=1)
        assert thread.increment("hits", 3, request_id="lost") == 3
        assert thread.hydrate().slots["hits"] == 7


def test_sums_while_a_writer_sends(server: Daemon, name: str) -> None:
    """Increments of the handle that has the writer go between its frames: the sums add up, and no frame is refused."""
    with Client(server.target) as client:
        thread = client.thread(name)
        state, sums = thread.hydrate(), []
        with thread.writer() as writer:
            for number in range(20):
                state.slots["step"] = number
                writer.send(state)
                writer.flush()
                sums.append(thread.increment("hits", number))
                state = writer.reset()
        assert sums == [sum(range(number + 1)) for number in range(20)]
        found = thread.hydrate()
        assert (found.version, found.slots["hits"], found.slots["step"]) == (40, 190, 19)
