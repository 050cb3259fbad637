"""What a type checker infers of both clients. Read by `make types`, and never run."""

from datetime import timedelta
from typing import assert_type

from stateward import (
    AsyncClient,
    AsyncTakenThread,
    AsyncThread,
    Checkpoint,
    Client,
    Handoff,
    LogEntry,
    Signal,
    State,
    TakenThread,
    Thread,
    ThreadInfo,
    ThreadOptions,
    Wake,
)


def blocking(client: Client) -> None:
    thread = client.thread("t")
    assert_type(thread, Thread)
    state = thread.hydrate()
    assert_type(state, State)
    assert_type(state.answer, Signal | None)
    assert_type(thread.answer(True), Signal)
    assert_type(thread.info(), ThreadInfo)
    assert_type(thread.save(state), Checkpoint)
    assert_type(thread.effects.run("k", lambda: 1), int)
    assert_type(thread.effects.cached("tool", {}, lambda: "x"), str)
    assert_type(thread.signals.list(), list[Signal])
    assert_type(thread.increment("n"), int)
    assert_type(thread.fork("other"), Thread)
    assert_type(next(thread.log("log").read()), LogEntry)
    assert_type(thread.log("log").replay(lambda total, _: total + 1, 0), int)
    assert_type(thread.apply(thread.diff(0), parent=0), Checkpoint)
    assert_type(next(client.threads()), ThreadInfo)
    taken = client.take_handoff(to="b")
    assert_type(taken, TakenThread | None)
    assert_type(client.take_handoff("t").handoff, Handoff)
    assert_type(next(client.watch_signals()), Wake)

    @thread.effects.wrap(lambda order: f"pay:{order}")
    def pay(order: int) -> str:
        return str(order)

    assert_type(pay(1), str)
    with thread.writer() as writer:
        assert_type(writer.send(state).result(), Checkpoint)


async def asynchronous(client: AsyncClient) -> None:
    thread = client.thread("t")
    assert_type(thread, AsyncThread)
    state = await thread.hydrate()
    assert_type(state, State)
    assert_type(state.answer, Signal | None)
    assert_type(await thread.answer(True), Signal)
    assert_type(await thread.info(), ThreadInfo)
    assert_type(await thread.save(state), Checkpoint)
    assert_type(await thread.effects.run("k", one), int)
    assert_type(await thread.effects.cached("tool", {}, lambda: "x"), str)
    assert_type(await thread.signals.list(), list[Signal])
    assert_type(await thread.increment("n"), int)
    assert_type(await thread.fork("other"), AsyncThread)
    assert_type(await anext(thread.log("log").read()), LogEntry)
    assert_type(await thread.log("log").replay(lambda total, _: total + 1, 0), int)
    assert_type(await thread.log("log").replay(added, 0), int)
    assert_type(await thread.apply(await thread.diff(0), parent=0), Checkpoint)
    assert_type(await anext(client.threads()), ThreadInfo)
    taken = await client.take_handoff(to="b")
    assert_type(taken, AsyncTakenThread | None)
    assert_type((await client.take_handoff("t")).handoff, Handoff)
    assert_type(await anext(client.watch_signals()), Wake)

    @thread.effects.wrap(lambda order: f"pay:{order}")
    async def pay(order: int) -> str:
        return str(order)

    assert_type(await pay(1), str)
    async with thread.writer() as writer:
        assert_type(await (await writer.send(state)).result(), Checkpoint)


async def one() -> int:
    return 1


def lengths_of_time() -> None:
    """Set with seconds or a timedelta, read as a timedelta."""
    assert_type(ThreadOptions(ttl=5).ttl, timedelta | None)
    assert_type(ThreadOptions(ttl=timedelta(days=1)).ttl, timedelta | None)


async def added(total: int, entry: int) -> int:
    return total + entry
