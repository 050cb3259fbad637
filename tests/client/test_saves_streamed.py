"""The danger: calls of one asyncio client that share a stream are lost with it, mixed up, or keep it open for ever."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest

from stateward import AsyncClient, Checkpoint, Effect
from stateward.errors import DeadlineExceeded, InvalidRequest
from stateward.testing import Daemon, run_daemon

pytestmark = pytest.mark.usefixtures("over_grpc")


@pytest.fixture
def over_grpc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames have no such stream."""
    monkeypatch.setenv("STATEWARD_WIRE", "grpc")


def stream_of(client: AsyncClient) -> Any:
    """The open stream of calls; None = there is none."""
    connection = client._session.connection
    wire = connection.over_grpc() if connection is not None else None
    return wire._calls if wire is not None and wire._calls and wire._calls.is_open else None


async def append(client: AsyncClient, thread: str, *entries: int) -> list[int]:
    """Appends entries at once. Returns the versions that they made."""
    made = await asyncio.gather(*(client.thread(thread).append("log", entry) for entry in entries))
    return [each.version for each in made]


async def test_many_calls_at_once_take_a_stream_and_one_does_not(real_daemon: Daemon, name: str) -> None:
    """Each gets its own answer. The stream ends soon after its last call, and with it its task."""
    async with AsyncClient(real_daemon.target, namespace=name) as client:
        assert await append(client, "t", 0) == [1]
        assert stream_of(client) is None
        tasks = len(asyncio.all_tasks())
        versions = await append(client, "t", *range(1, 100))
        assert stream_of(client) is not None
        state = await client.thread("t").hydrate()
        by_version = dict(zip(versions, range(1, 100), strict=True))
        assert [by_version[version] for version in range(2, 101)] == state.logs["log"][1:]
        for _ in range(500):
            if len(asyncio.all_tasks()) == tasks:
                break
            await asyncio.sleep(0.02)
        assert len(asyncio.all_tasks()) == tasks
        assert stream_of(client) is None
        assert len(await append(client, "t", *range(10))) == 10  # on a new stream


async def test_a_killed_daemon_applies_each_call_once(name: str) -> None:
    """Calls that were on the stream when the daemon was killed are made again, under their request ids."""
    with run_daemon() as daemon:
        async with AsyncClient(daemon.target, retry_timeout=60) as client:
            await client.server_info()  # else the first call may find no daemon, which is an error at once
            rounds = []
            for first in range(0, 300, 100):
                calls = asyncio.ensure_future(append(client, name, *range(first, first + 100)))
                await asyncio.sleep(0.01 * (1 + first // 100))
                await asyncio.to_thread(daemon.kill)
                await asyncio.to_thread(daemon.start)
                rounds += await calls
            assert sorted(rounds) == list(range(1, 301))
            assert sorted((await client.thread(name).hydrate()).logs["log"]) == list(range(300))


async def test_a_cancelled_call_takes_no_other_along(real_daemon: Daemon, name: str) -> None:
    """The others of its message are answered; so are calls after it."""
    async with AsyncClient(real_daemon.target, namespace=name) as client:
        calls = [asyncio.ensure_future(append(client, f"t{n}", 1)) for n in range(60)]
        await asyncio.sleep(0)
        for call in calls[::2]:
            call.cancel()
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert found[1::2] == [[1]] * 30
        assert all(isinstance(each, asyncio.CancelledError) for each in found[::2])
        assert await append(client, "t1", 2) == [2]


async def test_a_stopped_daemon_is_given_up_at_the_deadline(name: str) -> None:
    """A call on a stream has a deadline as any other, and the calls after it find the daemon when it goes on."""
    with run_daemon() as daemon:
        async with AsyncClient(daemon.target, call_timeout=3, retry_timeout=0.1) as client:
            assert len(await append(client, name, *range(10))) == 10
            os.kill(daemon.pid, signal.SIGSTOP)
            try:
                found = await asyncio.gather(
                    *(client.thread(name).append("log", n) for n in range(10)), return_exceptions=True
                )
            finally:
                os.kill(daemon.pid, signal.SIGCONT)
            assert {type(each) for each in found} == {DeadlineExceeded}
            async with AsyncClient(daemon.target) as other:
                assert len(await append(other, name, *range(10))) == 10


async def test_closing_waits_for_the_calls_under_way(real_daemon: Daemon, name: str) -> None:
    """As a call by itself may end, so may one on a stream."""
    client = AsyncClient(real_daemon.target, namespace=name)
    calls = asyncio.ensure_future(append(client, "t", *range(50)))
    for _ in range(10):
        await asyncio.sleep(0)  # until all are under way
    assert stream_of(client) is not None
    await client.close()
    assert sorted(await calls) == list(range(1, 51))


@pytest.mark.parametrize("size", [60_000, 70_000])
async def test_values_around_the_limit_of_a_stream(real_daemon: Daemon, name: str, size: int) -> None:
    """Large calls go by themselves, between small ones."""
    async with AsyncClient(real_daemon.target, namespace=name) as client:
        texts = ["x" * size + str(n) for n in range(20)]
        await asyncio.gather(*(client.thread("t").append("log", text) for text in texts))
        assert sorted((await client.thread("t").hydrate()).logs["log"]) == sorted(texts)


async def test_calls_that_were_given_up_leave_nothing(name: str) -> None:
    """While a daemon hangs, the stream keeps no call that nobody waits for."""
    with run_daemon() as daemon:
        async with AsyncClient(daemon.target, call_timeout=3, retry_timeout=0.1) as client:
            assert len(await append(client, name, *range(10))) == 10
            stream = stream_of(client)
            os.kill(daemon.pid, signal.SIGSTOP)
            try:
                texts = (client.thread(name).append("log", "x" * 50_000) for _ in range(200))
                found = await asyncio.gather(*texts, return_exceptions=True)
                assert {type(each) for each in found} == {DeadlineExceeded}
                assert stream._writing is not None, "the daemon takes nothing, so the client still writes"
                assert not stream._outbox
                assert not stream._waiting
            finally:
                os.kill(daemon.pid, signal.SIGCONT)


async def test_a_wrong_call_fails_alone(real_daemon: Daemon, name: str) -> None:
    """One call has more effects than a message may have. The sixty saves beside it are answered."""
    async with AsyncClient(real_daemon.target, namespace=name) as client:
        effects = [Effect(f"{n}", 1, anchor="a") for n in range(1001)]
        saves = [client.thread(f"t{n}").append("log", "x" * 3000) for n in range(60)]
        wrong, *made = await asyncio.gather(client.thread("t").effects.put(effects), *saves, return_exceptions=True)
        assert isinstance(wrong, InvalidRequest)
        assert {each.version if isinstance(each, Checkpoint) else each for each in made} == {1}


async def test_calls_of_a_stream_that_ends_with_an_error_are_made_again(real_daemon: Daemon, name: str) -> None:
    """The error is about the stream, so no call gets it: each is made again by itself, and applied once."""
    async with AsyncClient(real_daemon.target, namespace=name) as client:
        assert len(await append(client, "t", *range(10))) == 10
        stream = stream_of(client)
        stream._last_number = -100  # the daemon takes only rising numbers, and ends the stream
        assert len(await append(client, "t", *range(10, 30))) == 20
        assert not stream.is_open
        assert sorted((await client.thread("t").hydrate()).logs["log"]) == list(range(30))
