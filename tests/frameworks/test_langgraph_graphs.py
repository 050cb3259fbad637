"""The danger: a graph ends with another result than with LangGraph's own saver, or repeats or skips steps after a
kill."""

from __future__ import annotations

import itertools
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stateward.testing import Daemon, run_daemon

pytest.importorskip("langgraph.graph", reason="the extra langgraph is not installed")
from langgraph.checkpoint.memory import InMemorySaver
from tests.frameworks.graphs import build, play
from tests.processes import running

from stateward._operations.steps import Call
from stateward.errors import VersionMismatch
from stateward.langgraph import StatewardSaver

# Where somebody is killed: before or after the n-th call of a method.
AIMS = [
    ("Save", 1, "after"), ("Save", 2, "before"), ("Save", 7, "after"),
    ("PutEffects", 4, "before"), ("PutEffects", 6, "after"), ("Hydrate", 3, "before"),
]  # fmt: skip


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    """What the graph gives when nothing happens, as JSON has it."""
    found: dict[str, Any] = json.loads(json.dumps(play(build(InMemorySaver()), "t")))
    return found


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with run_daemon(tmp_path_factory.mktemp("langgraph") / "data") as daemon:
        yield daemon


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_a_graph_gives_what_it_gives_in_memory(daemon: Daemon, expected: dict[str, Any], durability: str) -> None:
    """Tools, parallel tasks, two interrupts, one of them in a subgraph; also the same history."""
    config, memory = {"configurable": {"thread_id": durability}}, InMemorySaver()
    play(build(memory), durability, durability=durability)
    with StatewardSaver(daemon.target) as saver:
        graph = build(saver)
        assert json.loads(json.dumps(play(graph, durability, durability=durability))) == expected
        history = [(each.next, each.values.get("steps")) for each in graph.get_state_history(config)]
    assert history == [(each.next, each.values.get("steps")) for each in build(memory).get_state_history(config)]


@pytest.fixture(scope="module")
def run_agent(daemon: Daemon) -> Iterator[Callable[..., tuple[int, str]]]:
    """Runs an agent process; returns its exit code and what it printed."""
    command = [sys.executable, "-m", "tests.frameworks.killed_agent", daemon.target]
    with running(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as agents:

        def run(*arguments: str) -> tuple[int, str]:
            print(*arguments, file=agents.stdin, flush=True)
            said = ""
            while not re.fullmatch(r"-?\d+\n", line := agents.stdout.readline()):
                assert line, "the agents have ended"
                said += line
            return int(line), said

        yield run


@pytest.mark.parametrize(("method", "nth", "when"), AIMS)
def test_a_killed_agent_carries_on(
    run_agent: Callable[..., tuple[int, str]], expected: dict[str, Any], method: str, nth: int, when: str
) -> None:
    """Kill -9 at an aimed moment; the next process ends with the state of an undisturbed run."""
    thread = f"{method}-{nth}-{when}"
    assert run_agent(thread, method, str(nth), when) == (-signal.SIGKILL, "")
    code, state = run_agent(thread, "none", "0", when)
    assert code == 0
    assert json.loads(state) == expected


@pytest.mark.parametrize(("method", "nth", "when"), AIMS)
def test_a_killed_daemon_costs_nothing(
    tmp_path: Path, expected: dict[str, Any], method: str, nth: int, when: str
) -> None:
    """Kill -9 of the daemon before a call, or after its answer; the agent notices nothing."""
    with run_daemon(tmp_path / "data") as daemon, StatewardSaver(daemon.target) as saver:
        session, calls, kills = saver._blocking._session, itertools.count(1), list[Call]()
        perform = session.perform

        def aimed(step: Any) -> Any:
            # Parallel tasks call at once: each call takes its number here, and keeps it.
            is_aimed = isinstance(step, Call) and step.method == method and next(calls) == nth
            answer = perform(step) if when == "after" else None
            if is_aimed:
                kills.append(step)
                daemon.kill()
                daemon.start()
            return answer if when == "after" else perform(step)

        session.perform = aimed  # type: ignore[method-assign]
        assert json.loads(json.dumps(play(build(saver), "t", durability="sync"))) == expected
        assert len(kills) == 1


def test_time_travel_and_forks(daemon: Daemon, expected: dict[str, Any]) -> None:
    """An old checkpoint can be read, run on from, and changed; the newest one is then the fork's."""
    config = {"configurable": {"thread_id": "travel"}}
    with StatewardSaver(daemon.target) as saver:
        graph = build(saver)
        end = play(graph, "travel")
        past = next(each for each in graph.get_state_history(config) if each.next == ("approve",))
        assert graph.get_state(past.config).values == past.values
        fork = graph.update_state(past.config, {"steps": 10}, as_node="quote")
        assert graph.get_state(config).values["steps"] == past.values["steps"] + 10
        assert graph.get_state(fork).parent_config["configurable"] == past.config["configurable"]
        assert play(graph, "travel")["steps"] == end["steps"] + 10


def test_a_second_writer_is_refused_with_write_ownership(daemon: Daemon) -> None:
    """Two writers from one parent: with write_ownership the second one learns it, without it forks as elsewhere."""
    config = {"configurable": {"thread_id": "two", "checkpoint_ns": ""}}

    def checkpoint(number: int) -> Any:
        return {
            "v": 4, "id": f"1f1e7739-3b1c-6112-8007-{number:012}", "ts": "", "channel_values": {"a": number},
            "channel_versions": {"a": str(number)}, "versions_seen": {}, "updated_channels": None,
        }  # fmt: skip

    with StatewardSaver(daemon.target) as one, StatewardSaver(daemon.target, write_ownership=True) as two:
        parent = one.put(config, checkpoint(1), {"step": 0}, {"a": "1"})
        one.put(parent, checkpoint(2), {"step": 1}, {"a": "2"})
        with pytest.raises(VersionMismatch):
            two.put(parent, checkpoint(3), {"step": 1}, {"a": "3"})
        forked = one.put(parent, checkpoint(4), {"step": 1}, {"a": "4"})
        found = one.get_tuple(forked)
    assert found is not None
    assert found.parent_config is not None
    assert found.parent_config["configurable"]["checkpoint_id"] == checkpoint(1)["id"]
    assert found.checkpoint["channel_values"] == {"a": 4}


def test_a_thread_of_somebody_else_is_not_read_as_a_checkpoint(daemon: Daemon) -> None:
    """The error says which thread, and what to do."""
    with daemon.client() as client, StatewardSaver(daemon.target) as saver:
        client.thread("other").append("log", 1)
        with pytest.raises(ValueError, match="version 1 of thread 'other' is no checkpoint of LangGraph"):
            saver.get_tuple({"configurable": {"thread_id": "other"}})
