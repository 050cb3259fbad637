"""The danger: a session of the OpenAI Agents SDK loses an item, or tears a call from its result, with two processes or
after a kill."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from stateward.testing import Daemon, run_daemon

pytest.importorskip("agents", reason="the extra openai-agents is not installed")
from agents import Agent, RunConfig, Runner, SessionSettings, SQLiteSession, function_tool
from agents.memory import Session
from agents.testing import ScriptedModel, assistant_message, function_call

from stateward.openai_agents import StatewardSession

CONFIG = RunConfig(tracing_disabled=True)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with run_daemon(tmp_path_factory.mktemp("openai") / "data") as daemon:
        yield daemon


def item(text: str) -> Any:
    """A message."""
    return {"role": "user", "content": text}


async def read(daemon: Daemon, session_id: str) -> list[Any]:
    """The items of a session."""
    async with StatewardSession(session_id, target=daemon.target) as session:
        found: list[Any] = await session.get_items()
        return found


async def test_it_does_what_the_sdk_s_own_session_does(daemon: Daemon) -> None:
    """Any order of calls, any limit, an empty session, a cleared one."""
    chance = random.Random(3)
    async with StatewardSession("same", target=daemon.target) as ours:
        assert isinstance(ours, Session)
        theirs = SQLiteSession("same")
        for step in range(150):
            kind = chance.random()
            if kind < 0.4:
                made = [item(f"{step}-{number} ä") for number in range(chance.randrange(4))]
                await ours.add_items(made)
                await theirs.add_items(made)
            elif kind < 0.7:
                assert await ours.pop_item() == await theirs.pop_item()
            elif kind < 0.73:
                await ours.clear_session()
                await theirs.clear_session()
            limit = chance.choice([None, -1, 0, 1, 3, 1000])
            assert await ours.get_items(limit) == await theirs.get_items(limit)


async def test_the_limit_of_the_settings_holds_unless_one_is_given(daemon: Daemon) -> None:
    async with StatewardSession("limit", target=daemon.target, session_settings=SessionSettings(limit=2)) as session:
        await session.add_items([item(text) for text in "abc"])
        assert await session.get_items() == [item("b"), item("c")]
        assert len(await session.get_items(3)) == 3


def test_two_processes_on_one_session_lose_nothing(daemon: Daemon) -> None:
    """Each item is there or was taken once, pairs stay together, and each process's items stay in order."""
    command = [sys.executable, "-m", "tests.frameworks.openai_writer", daemon.target]
    writers = [subprocess.Popen([*command, name, "40"], stdout=subprocess.PIPE, text=True) for name in ("one", "two")]
    taken = [each["content"] for writer in writers for each in json.loads(writer.communicate(timeout=90)[0])]
    left = [each["content"] for each in asyncio.run(read(daemon, "shared"))]
    wanted = {f"{name}-{number}-{part}" for name in ("one", "two") for number in range(40) for part in "ab"}
    assert len(taken) == len(set(taken)) == 16
    assert sorted([*left, *taken]) == sorted(wanted)
    for name in ("one", "two"):
        own = [each for each in left if each.startswith(name)]
        assert own == sorted(own, key=lambda each: (int(each.split("-")[1]), each[-1]))


def build() -> Agent[None]:
    """An agent that calls a tool once in each run."""

    @function_tool
    def price(city: str) -> int:
        """The price of a trip."""
        return 100 * len(city)

    call = function_call("price", {"city": "Rome"}, call_id="call-1")
    model = ScriptedModel([[call], [assistant_message("Rome costs 400.")], [assistant_message("As I said.")]])
    return Agent(name="travel", model=model, tools=[price])


async def run(session: Any, between: Any) -> list[Any]:
    """Two runs of the agent on one session. Returns what the model was given in the second one."""
    agent = build()
    await Runner.run(agent, "What does Rome cost?", session=session, run_config=CONFIG)
    between()
    result = await Runner.run(agent, "Again, please.", session=session, run_config=CONFIG)
    assert result.final_output == "As I said."
    given: Any = agent.model.last_call.input  # type: ignore[union-attr]
    return list(given)


async def test_the_sdk_s_runner_continues_after_a_kill(daemon: Daemon) -> None:
    """Kill -9 of the daemon between two runs, and another session object: the model is given the same history."""

    def restart() -> None:
        daemon.kill()
        daemon.start()

    async with StatewardSession("run", target=daemon.target) as session:
        ours = await run(session, restart)
        theirs = await run(SQLiteSession("run"), lambda: None)
        assert ours == theirs
        assert len(ours) == 5
        async with StatewardSession("run", target=daemon.target) as again:
            assert await again.get_items() == await session.get_items()
            assert len(await again.get_items()) == 6


async def test_a_client_of_one_s_own_stays_open(daemon: Daemon) -> None:
    """And a client together with options for one is refused."""
    async with daemon.async_client() as client:
        async with StatewardSession("own", client=client) as session:
            await session.add_items([item("a")])
        assert len((await client.thread("own").hydrate(must_exist=True)).logs["items"]) == 1
        with pytest.raises(TypeError, match="either a client"):
            StatewardSession("own", client=client, target=daemon.target)


async def test_what_is_there_after_a_cancelled_write_stays(daemon: Daemon) -> None:
    """Items that are added while their caller is cancelled, at any moment, are there at once, or never."""
    chance, there = random.Random(2), dict[str, bool]()
    async with StatewardSession("cancelled", target=daemon.target) as session:
        for number in range(60):
            task = asyncio.create_task(session.add_items([item(str(number))]))
            await asyncio.sleep(chance.random() * 0.006)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            there[str(number)] = item(str(number)) in await session.get_items()
        await session.add_items([item("end")])
        found = await session.get_items()
    assert found == [item(text) for text, is_there in there.items() if is_there] + [item("end")]
