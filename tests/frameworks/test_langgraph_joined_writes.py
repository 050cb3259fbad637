"""The danger: what a task wrote is lost, or late, because it waits for the checkpoint with which it travels."""

from __future__ import annotations

import asyncio
import gc
import operator
import time
from collections.abc import Iterator
from typing import Annotated, Any, TypedDict

import grpc
import pytest

from stateward._operations.steps import Call, ThreadRef
from stateward.errors import ClaimLost, DeadlineExceeded, NotOwner, QueueFull, ServerUnavailable, StatewardError
from stateward.testing import Daemon, run_daemon
from stateward.v1.effect_pb2 import Effect

pytest.importorskip("langgraph.graph", reason="the extra langgraph is not installed")
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph

from stateward.langgraph import StatewardSaver, _joining

PLACE: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
WAIT_S = 20.0


class Said(TypedDict):
    """A conversation."""

    said: Annotated[list[str], operator.add]


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    with run_daemon() as daemon:
        yield daemon


def calls_of(saver: StatewardSaver) -> list[tuple[str, int]]:
    """The calls that the saver makes from now on: method, and number of effects."""
    session: Any = saver._aio._session
    perform, made = session.perform, list[tuple[str, int]]()

    async def note(step: Any) -> Any:
        if isinstance(step, Call):
            made.append((step.method, len(getattr(step.request, "effects", ()))))
        return await perform(step)

    session.perform = note
    return made


def following(checkpoint: Any) -> Any:
    """The next checkpoint."""
    return {**checkpoint, "id": str(uuid6())}


def talking(steps: int) -> Any:
    """A graph with one node, which says something and comes again."""

    async def talk(state: Said) -> Said:
        return {"said": [f"message {len(state['said'])}"]}

    builder: Any = StateGraph(Said)
    builder.add_node("talk", talk)
    builder.add_edge(START, "talk")
    builder.add_conditional_edges("talk", lambda state: "talk" if len(state["said"]) < steps else END, ["talk", END])
    return builder


@pytest.mark.parametrize("durability", ["sync", "async"])
async def test_every_step_has_its_writes(daemon: Daemon, monkeypatch: pytest.MonkeyPatch, durability: Any) -> None:
    """A run leaves the same checkpoints and writes as with LangGraph's saver in memory, in fewer calls."""
    monkeypatch.setattr(_joining, "PATIENCE_S", WAIT_S)  # on a busy machine, too
    async with StatewardSaver(daemon.target) as saver:
        calls, memory, found = calls_of(saver), InMemorySaver(), list[Any]()
        for each in (saver, memory):
            graph = talking(10).compile(checkpointer=each)
            await graph.ainvoke({"said": []}, PLACE, durability=durability)
            listed = [made async for made in each.alist(PLACE)]
            found.append([[(channel, value) for _, channel, value in made.pending_writes or ()] for made in listed])
        assert found[0] == found[1]
        assert sum(map(len, found[0])) >= 20
        writes = [method for method, effects in calls if effects]
        if durability == "sync":  # LangGraph does not wait for the first checkpoint, which has the input
            assert set(writes[1:]) == {"Save"}
        assert len(writes) <= 11


async def test_a_task_that_ends_early_is_stored_at_once(daemon: Daemon) -> None:
    """While another task of the step still runs, and although no checkpoint comes."""
    may_end = asyncio.Event()

    async def early(_: Said) -> Said:
        return {"said": ["early"]}

    async def late(_: Said) -> Said:
        await may_end.wait()
        return {"said": ["late"]}

    builder: Any = StateGraph(Said)
    for name, node in (("early", early), ("late", late)):
        builder.add_node(name, node)
        builder.add_edge(START, name)
    async with StatewardSaver(daemon.target) as saver, StatewardSaver(daemon.target) as other:
        running = asyncio.ensure_future(builder.compile(checkpointer=saver).ainvoke({"said": []}, PLACE))
        until_s = time.monotonic() + WAIT_S
        while True:
            found = await other.aget_tuple(PLACE)
            if found is not None and ["early"] in [value for _, _, value in found.pending_writes or ()]:
                break
            assert time.monotonic() < until_s, "the writes never came"
            await asyncio.sleep(0.01)
        assert not running.done()
        may_end.set()
        assert (await running)["said"] == ["early", "late"]


async def test_a_write_that_is_refused_does_not_refuse_the_checkpoint(daemon: Daemon) -> None:
    """The checkpoint is stored without it, and the write has the error."""
    async with StatewardSaver(daemon.target) as saver:
        first = empty_checkpoint()
        config = await saver.aput(PLACE, first, {}, {})
        claim(daemon, first["id"], '["task", 0]')
        write = asyncio.ensure_future(saver.aput_writes(config, [("a", 1)], "task"))
        await asyncio.sleep(0)
        after = await saver.aput(config, following(first), {}, {})
        with pytest.raises(ClaimLost):
            await write
        assert await saver.aget_tuple(after) is not None


def claim(daemon: Daemon, anchor: str, key: str) -> None:
    """Somebody is at work on an effect."""
    from google.protobuf.duration_pb2 import Duration

    from stateward.v1.effect_service_pb2 import BeginEffectRequest
    from stateward.v1.effect_service_pb2_grpc import EffectServiceStub
    from stateward.v1.lease_pb2 import Holder
    from stateward.v1.write_pb2 import WriteOptions

    with grpc.insecure_channel(daemon.target) as channel:
        holder = Holder(name="other", incarnation="1")
        EffectServiceStub(channel).BeginEffect(
            BeginEffectRequest(
                thread="t", options=WriteOptions(request_id="1"), anchor=anchor, key=key, holder=holder,
                term=Duration(seconds=600),
            )
        )  # fmt: skip


async def test_several_tasks_travel_together(daemon: Daemon) -> None:
    """Writes with which no checkpoint comes share a call, and two that collide are stored all the same."""
    async with StatewardSaver(daemon.target) as saver:
        config = await saver.aput(PLACE, empty_checkpoint(), {}, {})
        calls = calls_of(saver)
        await asyncio.gather(*(saver.aput_writes(config, [("a", task)], f"task-{task}") for task in range(5)))
        assert calls == [("PutEffects", 5)]
        await asyncio.gather(*(saver.aput_writes(config, [("a", value)], "task-9") for value in (1, 2)))
        found = await saver.aget_tuple(config)
    assert found is not None
    expected = [(f"task-{task}", "a", task) for task in range(5)]
    assert sorted(found.pending_writes or ()) == [*expected, ("task-9", "a", 1)]


@pytest.mark.parametrize("turns", range(6))
async def test_a_cancelled_write_is_stored(daemon: Daemon, turns: int) -> None:
    """Whenever the caller leaves: what a task has done is not lost, nor sent twice."""
    async with StatewardSaver(daemon.target) as saver:
        first = empty_checkpoint()
        config = await saver.aput(PLACE, first, {}, {})
        calls = calls_of(saver)
        write = asyncio.ensure_future(saver.aput_writes(config, [("a", 1)], "task"))
        saving = asyncio.ensure_future(saver.aput(config, following(first), {}, {})) if turns % 2 else None
        for _ in range(1 + turns):
            await asyncio.sleep(0)
        write.cancel()
        with pytest.raises(asyncio.CancelledError):
            await write
        found = await saver.aget_tuple(config)
        assert found is not None
        assert found.pending_writes == [("task", "a", 1)]
        if saving is not None:
            await saving
        assert sum(effects for _, effects in calls) == 1


async def test_both_are_told_that_the_daemon_is_away(daemon: Daemon) -> None:
    """At the same time: the writes do not wait as long once more."""
    async with StatewardSaver(daemon.target, retry_timeout=0.5, connect_timeout=0.5) as saver:
        first = empty_checkpoint()
        config = await saver.aput(PLACE, first, {}, {})
        daemon.stop()
        calls = calls_of(saver)
        both = [saver.aput_writes(config, [("a", 1)], "task"), saver.aput(config, following(first), {}, {})]
        ended = await asyncio.gather(*both, return_exceptions=True)
        assert [type(each) for each in ended] == [ServerUnavailable] * 2
        assert {method for method, _ in calls} == {"Save"}


async def test_signs_to_the_next_nodes_take_no_effect(daemon: Daemon) -> None:
    """A task's writes are one effect, and read as they were written; what is there already stays."""
    writes = [("branch:to:a", None), ("said", ["x"]), ("branch:to:b", None), ("join:b", 1), ("branch:to:c", None)]
    async with StatewardSaver(daemon.target) as saver:
        config = await saver.aput(PLACE, empty_checkpoint(), {}, {})
        await saver.aput_writes(config, writes, "task", "path")
        await saver.aput_writes(config, [*writes[:1], ("said", ["y"]), *writes[2:]], "task", "path")
        await saver.aput_writes(config, [("branch:to:a", None)], "only")
        nobody = "00000000-0000-0000-0000-000000000000"
        await saver.aput_writes(config, [("said", ["z"]), ("branch:to:a", None)], nobody)
        found = await saver.aget_tuple(config)
        with daemon.client() as client:
            names = [each.name for each in client.thread("t").effects.list()]
    assert sorted(names) == ["branch:to:a", "branch:to:a", "join:b", "said", "said"]
    assert found is not None
    expected = [(nobody, "said", ["z"]), (nobody, "branch:to:a", None), ("only", "branch:to:a", None)]
    assert found.pending_writes == [*expected, *(("task", *write) for write in writes)]


def test_an_event_loop_that_ended_is_forgotten() -> None:
    """A saver that lives longer than its event loops keeps nothing of them."""
    from weakref import WeakKeyDictionary

    made: WeakKeyDictionary[asyncio.AbstractEventLoop, _joining.Joining] = WeakKeyDictionary()

    async def store(_: object) -> None:
        raise AssertionError

    async def write() -> None:
        joining = made[asyncio.get_running_loop()] = _joining.Joining(store)
        ref = ThreadRef("default", "t", "main")
        assert not await joining.wait(_joining.Writes(ref, "checkpoint", "", [Effect(key="k")]))

    for _ in range(3):
        asyncio.run(write())
    gc.collect()
    assert len(made) == 0


def fail(saver: StatewardSaver, error: StatewardError) -> list[tuple[str, int]]:
    """Lets all writes fail from now on, and returns them: method, and number of effects."""
    session: Any = saver._aio._session
    perform, made = session.perform, list[tuple[str, int]]()

    async def refuse(step: Any) -> Any:
        if isinstance(step, Call) and step.method in ("Save", "PutEffects"):
            made.append((step.method, len(step.request.effects)))
            raise error
        return await perform(step)

    session.perform = refuse
    return made


LASTING = [QueueFull("full"), DeadlineExceeded("late"), NotOwner("elsewhere")]


@pytest.mark.parametrize("error", LASTING, ids=lambda error: type(error).__name__)
async def test_what_was_tried_to_its_end_is_not_tried_again(daemon: Daemon, error: StatewardError) -> None:
    """The writes end with the error of the call in which they travelled: another one would take as long."""
    async with StatewardSaver(daemon.target, retry_timeout=0.2, connect_timeout=0.2) as saver:
        first = empty_checkpoint()
        config = await saver.aput(PLACE, first, {}, {})
        calls = fail(saver, error)
        both = [saver.aput_writes(config, [("a", 1)], "task"), saver.aput(config, following(first), {}, {})]
        assert await asyncio.gather(*both, return_exceptions=True) == [error, error]
        several = [saver.aput_writes(config, [("a", 1)], f"task-{task}") for task in range(2)]
        assert await asyncio.gather(*several, return_exceptions=True) == [error, error]
    assert set(calls) == {("Save", 1), ("PutEffects", 2)}


@pytest.mark.parametrize("tasks", [1, 2, 3])
@pytest.mark.parametrize("turns", range(6))
async def test_a_saver_that_is_closed_stores_what_waits(daemon: Daemon, tasks: int, turns: int) -> None:
    """Also what is under way, and the checkpoints."""
    async with StatewardSaver(daemon.target) as saver:
        first = empty_checkpoint()
        config = await saver.aput(PLACE, first, {}, {})
        writes = [saver.aput_writes(config, [("a", 1)], f"task-{each}") for each in range(tasks)]
        writing = [asyncio.ensure_future(each) for each in writes]
        for _ in range(1 + turns):
            await asyncio.sleep(0)
        saving = asyncio.ensure_future(saver.aput(config, following(first), {}, {}))
        await asyncio.sleep(0)
    assert await asyncio.gather(*writing) == [None] * tasks
    await saving
    async with StatewardSaver(daemon.target) as other:
        found = await other.aget_tuple(config)
    assert found is not None
    assert found.pending_writes == [(f"task-{each}", "a", 1) for each in range(tasks)]


async def test_an_error_of_a_shared_call_is_told_to_the_callers_alone() -> None:
    """Each stores its writes by themselves, and asyncio logs nothing."""
    logged = list[Any]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))

    async def store(_: object) -> None:
        raise RuntimeError

    joining, ref = _joining.Joining(store), ThreadRef("default", "t", "main")
    waits = [joining.wait(_joining.Writes(ref, "checkpoint", "", [Effect(key=key)])) for key in "ab"]
    assert await asyncio.gather(*waits) == [False, False]
    await asyncio.sleep(0)
    gc.collect()
    assert logged == []


@pytest.mark.parametrize("is_pruned", [False, True])
async def test_a_thread_that_is_deleted_stays_deleted(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, is_pruned: bool
) -> None:
    """Writes that wait are stored before; later they would make the thread again."""
    monkeypatch.setattr(_joining, "IDLE_TURNS", 1_000_000)
    async with StatewardSaver(daemon.target) as saver, StatewardSaver(daemon.target) as other:
        config = await other.aput(PLACE, empty_checkpoint(), {}, {})
        write = asyncio.ensure_future(saver.aput_writes(config, [("a", 1)], "task"))
        await asyncio.sleep(0)
        await (saver.aprune(["t"], strategy="delete") if is_pruned else saver.adelete_thread("t"))
        await write
        with daemon.client() as client:
            assert list(client.threads()) == []


A, B = ("branch:to:a", None), ("branch:to:b", None)
TWICE = {
    "sign-then-both": [[A], [A, ("said", 1)]],
    "both-turned": [[("said", 1), A], [B, ("said", 2)]],
    "both": [[("said", 1), A], [("said", 2), A]],
    "with-a-question": [[("__interrupt__", "q")], [("said", 1), A, ("__resume__", [1])]],
}


@pytest.mark.parametrize("calls", TWICE.values(), ids=TWICE)
async def test_a_task_that_writes_twice_has_one_write_of_each_index(daemon: Daemon, calls: Any) -> None:
    """As with LangGraph's saver in memory: the first one stays. Also in a copy of the thread."""
    async with StatewardSaver(daemon.target) as saver:
        found = list[Any]()
        for each in (saver, InMemorySaver()):
            config = await each.aput(PLACE, empty_checkpoint(), {}, {})
            for writes in calls:
                await each.aput_writes(config, writes, "task", "path")
            found.append(await each.aget_tuple(config))
        await saver.acopy_thread("t", "copy")
        found.append(await saver.aget_tuple({"configurable": {"thread_id": "copy", "checkpoint_ns": ""}}))
    ours, memory, copied = (sorted(each.pending_writes, key=str) for each in found)
    assert ours == memory
    assert copied == memory


async def test_writes_that_are_awaited_first_do_not_wait(daemon: Daemon) -> None:
    """After a few steps in which the checkpoint came too late, and until it comes in time again."""
    async with StatewardSaver(daemon.target) as saver:
        before = empty_checkpoint()
        config, waited = await saver.aput(PLACE, before, {}, {}), list[bool]()
        for step in range(8):
            write = asyncio.ensure_future(saver.aput_writes(config, [("a", 1)], "task"))
            await asyncio.sleep(0)
            waited.append(bool(saver._joining()._waiting))
            if step != 5:
                await write
            before = following(before)
            config = await saver.aput(config, before, {}, {})
            await write
    assert waited == [True] * 3 + [False] * 3 + [True] * 2


async def test_tasks_that_end_together_go_on_to_wait(daemon: Daemon) -> None:
    """Although no checkpoint comes in time: they share a call."""
    async with StatewardSaver(daemon.target) as saver:
        before = empty_checkpoint()
        config = await saver.aput(PLACE, before, {}, {})
        calls = calls_of(saver)
        for _ in range(5):
            await asyncio.gather(*(saver.aput_writes(config, [("a", 1)], f"task-{task}") for task in range(3)))
            before = following(before)
            config = await saver.aput(config, before, {}, {})
    assert calls == [("PutEffects", 3), ("Save", 0)] * 5
