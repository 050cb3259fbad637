"""The danger: of two writers that race one loses its update, or a cancelled save leaves a state that cannot be saved
again."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from stateward import AsyncClient, Client
from stateward.errors import VersionMismatch


def count(state):
    state.slots["n"] = state.slots.get("n", 0) + 1
    state.logs["l"].append(state.version)


def test_threads_share_a_client(server):
    """Four threads that update through one client lose nothing."""
    with Client(server.target, namespace="threads") as client:

        def work(_):
            for _ in range(5):
                client.thread("t").update(count, attempts=50)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))
        state = client.thread("t").hydrate()
    assert (state.slots["n"], list(state.logs["l"])) == (20, list(range(20)))


async def test_tasks_share_a_client(server):
    """Four tasks that update through one client lose nothing."""
    async with AsyncClient(server.target, namespace="tasks") as client:

        async def work():
            for _ in range(5):
                await client.thread("t").update(count, attempts=50)

        await asyncio.gather(*(work() for _ in range(4)))
        state = await client.thread("t").hydrate()
    assert (state.slots["n"], list(state.logs["l"])) == (20, list(range(20)))


async def test_cancelled_save(fake):
    """A save that is cancelled can be made again with its state."""
    async with AsyncClient(fake.target) as client:
        thread = client.thread("t")
        state = await thread.hydrate()
        state.slots["a"] = 1
        fake.store.fail_before = 10**6
        task = asyncio.create_task(thread.save(state))
        await asyncio.sleep(0.1)
        with pytest.raises(RuntimeError, match="being saved"):
            await thread.save(state)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        fake.store.fail_before = 0
        assert (await thread.save(state)).version == 1


async def test_edits_while_a_save_is_under_way(fake):
    """What is appended and set meanwhile is in the next save; what would change the ground of this one is refused."""
    async with AsyncClient(fake.target) as client:
        thread = client.thread("t")
        state = await thread.hydrate()
        state.logs["l"].extend(["a", "b"])
        state.slots["x"] = state.slots["y"] = 1
        await thread.save(state)
        state.slots["x"] = 2
        del state.slots["y"]
        fake.store.fail_before = 1
        task = asyncio.create_task(thread.save(state))
        await asyncio.sleep(0)
        assert state.saving
        state.logs["l"].append("c")
        state.slots["x"] = state.slots["y"] = 3
        for refused in (
            lambda: state.logs["l"].trim(keep_last=1),
            state.logs["l"].pop,
            lambda: state.logs["l"].__setitem__(0, "A"),
            lambda: state.logs.__delitem__("l"),
            lambda: state.slots.__delitem__("x"),
        ):
            with pytest.raises(RuntimeError, match="being saved"):
                refused()
        await task
        saved = await thread.hydrate()
        assert (dict(saved.slots), list(saved.logs["l"])) == ({"x": 2}, ["a", "b"])
        await thread.save(state)
        saved = await thread.hydrate()
        assert (dict(saved.slots), list(saved.logs["l"])) == ({"x": 3, "y": 3}, ["a", "b", "c"])


async def test_waiting_for_an_event_can_time_out(server):
    """A wait that was given up and taken up again loses no event and gives none twice."""
    async with AsyncClient(server.target, namespace="timeout") as client:
        thread = client.thread("t")
        await thread.append("l", 0)
        async with client.watch() as events:
            for number in range(1, 4):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(events), 0.05)
                await thread.append("l", number)
                assert (await asyncio.wait_for(anext(events), 5)).checkpoint.version == number + 1


async def test_watch_ends_with_its_task(server):
    """A task that waits for events can be cancelled, and the client closed."""
    async with AsyncClient(server.target, namespace="cancel") as client, client.watch() as events:
        task = asyncio.create_task(anext(events))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def test_a_client_serves_one_loop_after_another(fake):
    """A client that outlives an event loop opens a new channel in the next one."""
    client = AsyncClient(fake.target)
    for number in range(1, 3):
        assert asyncio.run(client.thread("t").append("l", number)).version == number


def test_update_gives_up(fake_client):
    """After its attempts, update raises the last mismatch."""

    def interfere(state):
        state.slots["a"] = 1
        state.checkpoint = None  # as if it had been read before everything else

    fake_client.thread("t").append("l", 1)
    with pytest.raises(VersionMismatch):
        fake_client.thread("t").update(interfere, attempts=2)
