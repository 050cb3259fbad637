"""The danger: a workflow of the Agent Framework goes on from another checkpoint, or an agent reads another history,
than with its own stores."""

from __future__ import annotations

import asyncio
import copy
import math
import random
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from stateward import Retention
from stateward._operations.steps import Call
from stateward.testing import Daemon, run_daemon

pytest.importorskip("agent_framework", reason="the extra agent-framework is not installed")
from agent_framework import (
    Agent,
    BaseChatClient,
    ChatResponse,
    FunctionExecutor,
    InMemoryCheckpointStorage,
    InMemoryHistoryProvider,
    Message,
    WorkflowBuilder,
    WorkflowCheckpoint,
    WorkflowContext,
)
from agent_framework.exceptions import WorkflowCheckpointException
from tests.frameworks.agent_framework_workflow import ROUNDS, TYPES, Trip, play
from tests.frameworks.forks import Forks, forks

from stateward.agent_framework import StatewardCheckpointStorage, StatewardHistoryProvider


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with run_daemon(tmp_path_factory.mktemp("agent-framework") / "data") as daemon:
        yield daemon


@pytest.fixture(scope="module")
def agents() -> Iterator[Forks]:
    with forks("agent_framework_workflow") as waiting:
        yield waiting


def checkpoint(checkpoint_id: str, **fields: Any) -> WorkflowCheckpoint:
    """A checkpoint of the workflow w, unless `fields` says otherwise."""
    given = {"workflow_name": "w", "graph_signature_hash": "h", "checkpoint_id": checkpoint_id, **fields}
    return WorkflowCheckpoint(**given)


async def answer(storage: Any, chance: random.Random, step: int) -> Any:
    """What a storage answers to one random call."""
    name, workflow, kind = chance.choice("abcdef"), chance.choice("vw"), chance.random()
    state = {chance.choice("xyz"): chance.choice([1, None, "ä", (1, 2), {3}, {"four": [5.5]}]) for _ in range(3)}
    timestamp = f"2026-01-01T00:00:{chance.randrange(60):02}.{step:06}+0{chance.randrange(3)}:00"
    if kind < 0.4:
        fields = {"workflow_name": workflow, "timestamp": timestamp, "state": state, "iteration_count": step}
        return await storage.save(checkpoint(name, **fields, previous_checkpoint_id=chance.choice([None, "a"])))
    if kind < 0.55:
        try:
            return await storage.load(name)
        except WorkflowCheckpointException as error:
            return str(error)
    if kind < 0.65:
        return await storage.delete(name)
    if kind < 0.8:
        return await storage.get_latest(workflow_name=workflow)
    if kind < 0.9:
        found = await storage.list_checkpoints(workflow_name=workflow)
        return sorted(found, key=lambda each: str(each.checkpoint_id))
    return sorted(await storage.list_checkpoint_ids(workflow_name=workflow))


@pytest.mark.parametrize("seed", range(2))
async def test_it_does_what_the_storage_in_memory_does(daemon: Daemon, seed: int) -> None:
    """Any order of calls, with checkpoints that are saved again, and after all of them were deleted."""
    ours, theirs = random.Random(seed), random.Random(seed)
    memory = InMemoryCheckpointStorage()
    async with StatewardCheckpointStorage(f"same-{seed}", target=daemon.target) as storage:
        for step in range(150):
            assert await answer(storage, ours, step) == await answer(memory, theirs, step), step


async def test_the_order_is_that_of_the_saves(daemon: Daemon) -> None:
    async with StatewardCheckpointStorage("order", target=daemon.target) as storage:
        names = ["c", "a", "b"]
        for name in names:
            await storage.save(checkpoint(name))
        assert await storage.list_checkpoint_ids(workflow_name="w") == names
        assert [each.checkpoint_id for each in await storage.list_checkpoints(workflow_name="w")] == names


async def test_only_allowed_types_are_saved_and_loaded(daemon: Daemon) -> None:
    """A type that could not be loaded is refused before anything is written; so is a value that cannot be pickled."""
    async with (
        StatewardCheckpointStorage("types", target=daemon.target) as strict,
        StatewardCheckpointStorage("types", target=daemon.target, allowed_checkpoint_types=TYPES) as lenient,
    ):
        for value in (Trip(["a"]), lambda: 1):
            with pytest.raises(WorkflowCheckpointException):
                await strict.save(checkpoint("a", state={"trip": value}))
        assert await strict.list_checkpoint_ids(workflow_name="w") == []
        await lenient.save(checkpoint("a", state={"trip": Trip(["a"])}))
        assert (await lenient.load("a")).state["trip"] == Trip(["a"])
        with pytest.raises(WorkflowCheckpointException, match="Trip"):
            await strict.load("a")


async def test_many_checkpoints_take_little_and_the_newest_is_one_read(daemon: Daemon) -> None:
    """A state that grows to 200 kB in a hundred steps, and is 10 MB if each step has all of it."""
    async with StatewardCheckpointStorage("grows", target=daemon.target) as storage:
        chance, notes = random.Random(1), list[str]()
        for step in range(100):
            notes.append(chance.randbytes(1000).hex())
            await storage.save(checkpoint(f"c-{step}", state={"notes": notes, "step": step}))
        stored = [made.stored_bytes async for made in storage._thread.checkpoints.list()]
        assert sum(stored) < 400_000
        session, calls = storage._client._session, list[str]()
        perform = session.perform

        async def watched(step: Any) -> Any:
            if isinstance(step, Call):
                calls.append(step.method)
            return await perform(step)

        session.perform = watched  # type: ignore[method-assign]
        newest = await storage.get_latest(workflow_name="w")
        assert newest is not None
        assert newest.state == {"notes": notes, "step": 99}
        assert calls == ["ListCheckpoints"] * 2


async def test_a_retention_removes_old_checkpoints(tmp_path: Path) -> None:
    """After a sweep the newest three are left."""
    with run_daemon(tmp_path / "data", sweep_interval="100ms") as daemon:
        rule = Retention(keep_last=3)
        async with StatewardCheckpointStorage("few", target=daemon.target, retention=rule) as storage:
            for step in range(10):
                await storage.save(checkpoint(f"c-{step}"))
            for _ in range(100):
                left = await storage.list_checkpoint_ids(workflow_name="w")
                if len(left) == 3:
                    break
                await asyncio.sleep(0.1)
            assert left == ["c-7", "c-8", "c-9"]


async def test_two_writers_keep_all_checkpoints(daemon: Daemon) -> None:
    """Of two runs in one thread, each checkpoint is whole, and none replaces another one."""
    async with (
        StatewardCheckpointStorage("race", target=daemon.target) as one,
        StatewardCheckpointStorage("race", target=daemon.target) as two,
    ):

        async def run(storage: StatewardCheckpointStorage, name: str) -> None:
            previous = None
            for step in range(20):
                made = checkpoint(f"{name}-{step}", state={name: step}, previous_checkpoint_id=previous)
                previous = await storage.save(made)

        await asyncio.gather(run(one, "one"), run(two, "two"))
        found = {each.checkpoint_id: each for each in await one.list_checkpoints(workflow_name="w")}
    assert len(found) == 40
    for name in ("one", "two"):
        for step in range(20):
            assert found[f"{name}-{step}"].state == {name: step}
            assert found[f"{name}-{step}"].previous_checkpoint_id == (f"{name}-{step - 1}" if step else None)


@pytest.mark.slow
async def test_two_processes_run_in_one_thread(daemon: Daemon, agents: Forks) -> None:
    """Both runs end as one alone does, and all of their checkpoints are there, each chain with its own end."""
    memory = InMemoryCheckpointStorage()
    whole = await play(memory)
    async with StatewardCheckpointStorage("both", target=daemon.target, allowed_checkpoint_types=TYPES) as storage:
        run = asyncio.to_thread(agents.run, "agent_framework_workflow", daemon.target, "both", "99", "before")
        done, *ours = await asyncio.gather(run, *(play(storage) for _ in range(3)))
        assert ours == [whole] * 3
        assert done.stdout.strip() == str(whole), done
        found = await storage.list_checkpoints(workflow_name="trip")
    assert len(found) == 4 * len(memory._checkpoints)
    previous = [each.previous_checkpoint_id for each in found]
    assert previous.count(None) == 4
    assert len({each.checkpoint_id for each in found} - set(previous)) == 4


@pytest.mark.slow
@pytest.mark.parametrize(("nth", "when"), [(1, "after"), (4, "before"), (7, "after")])
async def test_a_workflow_continues_after_a_kill(daemon: Daemon, agents: Forks, nth: int, when: str) -> None:
    """Kill -9 of its process around a save, then of the daemon: it goes on from the newest checkpoint to its end."""
    name = f"killed-{nth}-{when}"
    killed = await asyncio.to_thread(agents.run, "agent_framework_workflow", daemon.target, name, str(nth), when)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    await asyncio.to_thread(daemon.kill)
    await asyncio.to_thread(daemon.start)
    whole = await play(InMemoryCheckpointStorage())
    async with StatewardCheckpointStorage(name, target=daemon.target, allowed_checkpoint_types=TYPES) as storage:
        assert len(await storage.list_checkpoint_ids(workflow_name="trip")) == (nth if when == "after" else nth - 1)
        newest = await storage.get_latest(workflow_name="trip")
        assert newest is not None
        assert await play(storage, newest.checkpoint_id) == whole
        assert len(whole[1]) == ROUNDS - 1


class CountingClient(BaseChatClient[Any]):
    """A model that says how many messages it was given."""

    async def _inner_get_response(  # type: ignore[override]
        self, *, messages: Sequence[Message], stream: bool, options: Mapping[str, Any], **kwargs: Any
    ) -> ChatResponse:
        return ChatResponse(messages=[Message(role="assistant", contents=[f"I read {len(messages)} messages"])])


async def talk(provider: Any, between: Any) -> list[str]:
    """Two runs of an agent on one session, which a new object continues. Returns what the model said."""
    said = list[str]()
    agent = Agent(CountingClient(), context_providers=[provider])
    session = agent.create_session(session_id="talk")
    for text in ("Where to?", "And when?"):
        said.append((await agent.run(text, session=session)).text)
        await between()
        restored = agent.create_session(session_id="talk")
        restored.state = copy.deepcopy(session.state)
        session = restored
    return said


async def test_an_agent_reads_its_history_after_a_kill(daemon: Daemon) -> None:
    """Kill -9 of the daemon between two runs: the model is given what it is given with the history in memory."""

    async def restart() -> None:
        await asyncio.to_thread(daemon.kill)
        await asyncio.to_thread(daemon.start)

    async def nothing() -> None:
        pass

    async with StatewardHistoryProvider(target=daemon.target, namespace="talk") as provider:
        ours = await talk(provider, restart)
        stored = await provider.get_messages("talk")
        assert [message.role for message in stored] == ["user", "assistant"] * 2
        await provider.clear("talk")
        assert await provider.get_messages("talk") == []
    assert ours == await talk(InMemoryHistoryProvider(), nothing) == ["I read 1 messages", "I read 3 messages"]


@pytest.mark.parametrize("seed", range(3))
async def test_a_repeated_transcript_is_added_once(daemon: Daemon, seed: int) -> None:
    """Messages that repeat the end or all of the history are known as such, as by the provider in memory."""
    chance, memory, state = random.Random(seed), InMemoryHistoryProvider(), dict[str, Any]()
    async with StatewardHistoryProvider(target=daemon.target, namespace="repeat") as provider:
        for step in range(25):
            known = await memory.get_messages(None, state=state)
            repeated = known[chance.choice([0, len(known), max(0, len(known) - 2)]) :]
            new = [
                Message(role=chance.choice(["user", "assistant"]), contents=[chance.choice("ab")],
                        message_id=chance.choice([None, f"{step}-{number}"]))
                for number in range(chance.randrange(3))
            ]  # fmt: skip
            await memory.save_messages(None, [*repeated, *new], state=state)
            await provider.save_messages(f"s-{seed}", [*repeated, *new])
            ours, theirs = await provider.get_messages(f"s-{seed}"), await memory.get_messages(None, state=state)
            assert [each.to_dict() for each in ours] == [each.to_dict() for each in theirs]


async def test_two_writers_of_a_history_lose_nothing(daemon: Daemon) -> None:
    """Every message is there once, also one that both write, and those of each writer are in order."""
    async with (
        StatewardHistoryProvider(target=daemon.target, namespace="race") as one,
        StatewardHistoryProvider(target=daemon.target, namespace="race") as two,
    ):

        async def write(provider: StatewardHistoryProvider, name: str) -> None:
            for number in range(20):
                await provider.save_messages("s", [Message(role="user", contents=[f"{name}-{number}"])])

        await asyncio.gather(write(one, "one"), write(two, "two"))
        texts = [message.text for message in await one.get_messages("s")]
        for number in range(5):
            same = [Message(role="user", contents=["same"], message_id=f"same-{number}")]
            await asyncio.gather(*(provider.save_messages("same", same) for provider in (one, two)))
        assert len(await one.get_messages("same")) == 5
    assert len(texts) == 40
    for name in ("one", "two"):
        assert [text for text in texts if text.startswith(name)] == [f"{name}-{number}" for number in range(20)]


def test_two_processes_on_one_history_lose_nothing(daemon: Daemon) -> None:
    """Two agents talk in one session at a time: each turn is there once and whole, and those of each are in order."""
    command = [sys.executable, "-m", "tests.frameworks.agent_framework_writer", daemon.target]
    writers = [
        subprocess.Popen([*command, name, "15"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for name in ("one", "two")
    ]
    for writer in writers:
        assert writer.stdout
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin
        writer.stdin.write("begin\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate(timeout=90)
        assert writer.returncode == 0

    async def read() -> list[str]:
        async with StatewardHistoryProvider(target=daemon.target) as provider:
            return [message.text for message in await provider.get_messages("shared")]

    texts = asyncio.run(read())
    assert len(texts) == 60
    asked = texts[::2]
    assert texts[1::2] == [f"re {text}" for text in asked]
    for name in ("one", "two"):
        assert [text for text in asked if text.startswith(name)] == [f"{name}-{number}" for number in range(15)]
    assert [text[:3] for text in asked] != sorted(text[:3] for text in asked), "they did not talk at the same time"


async def test_a_client_of_one_s_own_stays_open(daemon: Daemon) -> None:
    """And a client together with options for one is refused."""
    async with daemon.async_client() as client:
        async with StatewardCheckpointStorage("own", client=client) as storage:
            await storage.save(checkpoint("a"))
        async with StatewardHistoryProvider(client=client) as provider:
            await provider.save_messages(None, [Message(role="user", contents=["a"])])
        assert {info.name async for info in client.threads()} >= {"own", "default"}
        with pytest.raises(TypeError, match="either a client"):
            StatewardCheckpointStorage("own", client=client, target=daemon.target)
        with pytest.raises(TypeError, match="either a client"):
            StatewardHistoryProvider(client=client, options={"call_timeout": 1})


async def test_a_state_with_infinity_has_its_checkpoints(daemon: Daemon) -> None:
    """As many as with the framework's storage in memory, each with the number."""

    async def measure(city: str, context: WorkflowContext[str, str]) -> None:
        context.set_state("lowest_price", math.inf)
        await context.send_message(city)

    async def book(city: str, context: WorkflowContext[str, str]) -> None:
        await context.yield_output(f"booked {city}")

    found = []
    async with StatewardCheckpointStorage("infinity", target=daemon.target) as ours:
        for storage in (ours, InMemoryCheckpointStorage()):
            first, second = FunctionExecutor(measure, id="measure"), FunctionExecutor(book, id="book")
            builder = WorkflowBuilder(name="trip", start_executor=first, checkpoint_storage=storage)
            await builder.add_edge(first, second).build().run("Rome")
            listed = await storage.list_checkpoints(workflow_name="trip")
            found.append(sorted(str(each.state.get("lowest_price")) for each in listed))
    assert found[0] == found[1]
    assert "inf" in found[0]
