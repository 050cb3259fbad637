"""The danger: an asyncio client that leaves a connection open on every event loop, or that serves one loop only."""

import asyncio
import gc
import threading
from pathlib import Path

import pytest

from stateward import AsyncClient


def sockets() -> int:
    """How many sockets this process has open."""
    gc.collect()
    return sum("socket:" in str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.is_symlink())


async def append(client: AsyncClient, times: int = 1) -> None:
    for _ in range(times):
        await client.thread("t").append("log", 1)


@pytest.fixture
def client(server, name):
    return AsyncClient(server.target, namespace=name)  # made outside of any loop


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts sockets as Linux shows them")
def test_a_loop_takes_its_connection_along(client):
    """Forty event loops one after another leave no more than one connection, and `close` leaves none."""
    asyncio.run(append(client))
    before = sockets()  # with those that gRPC wakes event loops by
    for _ in range(39):
        asyncio.run(append(client))
    assert sockets() <= before + 1
    asyncio.run(client.close())
    assert sockets() <= before
    with pytest.raises(RuntimeError, match="closed"):
        asyncio.run(append(client))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts sockets as Linux shows them")
def test_a_loop_that_was_never_shut_down(client):
    """Connections of loops that were only closed go with the next loop; `close` also ends that of an idle loop."""
    asyncio.run(append(client))
    before = sockets()
    for _ in range(5):
        loop = asyncio.new_event_loop()
        loop.run_until_complete(append(client))
        loop.close()
    asyncio.run(append(client))
    assert sockets() <= before + 1
    idle = asyncio.new_event_loop()
    idle.run_until_complete(append(client))
    asyncio.run(client.close())
    idle.close()
    assert sockets() <= before


def test_two_loops_at_once(client):
    """Two threads, each with an event loop of its own, share a client, and nothing is lost."""
    failures = []

    def work() -> None:
        try:
            asyncio.run(append(client, 50))
        except Exception as failure:  # noqa: BLE001  looked at below
            failures.append(failure)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(asyncio.run(client.thread("t").hydrate()).logs["log"]) == 100


def test_close_ends_streams_of_other_loops(client):
    """A watch on the loop of another thread ends when the client is closed."""
    began, ended = threading.Event(), threading.Event()

    async def watch() -> None:
        async with client.watch() as stream:
            began.set()
            async for _ in stream:
                pass
        ended.set()

    thread = threading.Thread(target=asyncio.run, args=(watch(),))
    thread.start()
    assert began.wait(10)
    asyncio.run(client.close())
    assert ended.wait(10)
    thread.join()


def test_a_generator_saves_while_its_loop_ends(client):
    """A save in the `finally` of a generator that the loop closes is made: the connection does not end before it."""
    kept = []

    async def steps():
        try:
            yield 1
        finally:
            await append(client)
            await asyncio.sleep(0.01)
            await append(client)

    async def main() -> None:
        kept.append(steps())
        await anext(kept[0])
        await append(client)

    asyncio.run(main())
    assert len(asyncio.run(client.thread("t").hydrate()).logs["log"]) == 3


def test_close_while_a_writer_waits_on_an_idle_loop(real_daemon, name):
    """A wait for an answer was cancelled, and its event loop is idle since: `close` on another loop does not wait."""
    if isinstance(real_daemon, str):
        pytest.skip(real_daemon)
    client = AsyncClient(real_daemon.target, namespace=name)
    idle = asyncio.new_event_loop()

    async def leave():
        writer = await client.thread("t").writer().__aenter__()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(writer._call.take(None), 0.05)
        return writer

    async def close():
        await asyncio.wait_for(client.close(), 8)

    writer = idle.run_until_complete(leave())
    asyncio.run(close())
    idle.run_until_complete(asyncio.wait([writer._call._reading]))
    idle.close()
