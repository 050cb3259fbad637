"""The danger: a fork of a graph's thread cannot be used by the graph, or waits for an answer that nobody can use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any, TypedDict

import pytest
from tests.cli.conftest import Answer, run

from stateward import Client
from stateward.models import Status
from stateward.testing import Daemon, run_daemon

pytest.importorskip("langgraph.graph", reason="the extra langgraph is not installed")
import operator

from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt
from tests.frameworks.saved_steps import wait_for_version

from stateward.langgraph import StatewardSaver, resume_command


class Said(TypedDict, total=False):
    said: Annotated[list[str], operator.add]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with run_daemon(tmp_path_factory.mktemp("unusable") / "data") as daemon:
        yield daemon


@pytest.fixture
def client(daemon: Daemon, request: pytest.FixtureRequest) -> Iterator[Client]:
    with daemon.client(namespace=request.node.name) as opened:
        yield opened


@pytest.fixture
def saver(daemon: Daemon, client: Client) -> Iterator[StatewardSaver]:
    with StatewardSaver(daemon.target, namespace=client.namespace) as opened:
        yield opened


@pytest.fixture
def stateward(daemon: Daemon, client: Client) -> Callable[..., Answer]:
    return lambda *arguments: run(*arguments, "--target", daemon.target, "--namespace", client.namespace)


def at(thread_id: str) -> Any:
    return {"configurable": {"thread_id": thread_id}}


def graph_of(saver: StatewardSaver) -> Any:
    def ask(_: Said, config: RunnableConfig) -> Said:
        wait_for_version(saver, config)
        return {"said": [str(interrupt("Pay?"))]}

    builder = StateGraph(Said)
    builder.add_node("begin", lambda _: {"said": ["begun"]})
    builder.add_node("ask", ask)
    builder.add_edge(START, "begin")
    builder.add_edge("begin", "ask")
    return builder.compile(checkpointer=saver)


def test_a_fork_that_waits(client, saver, stateward):
    """The fork asks the same, and goes on with its own answer; the original waits on."""
    graph = graph_of(saver)
    graph.invoke({"said": []}, at("trip"))
    stateward("fork", "trip", "copy")
    client.thread("trip").fork("other")
    for name in ("copy", "other"):
        assert client.thread(name).info().status == Status.WAITING
        assert graph.get_state(at(name)).next == ("ask",)
        client.thread(name).answer(name)
        graph.invoke(resume_command(saver.thread(name)), at(name))
        assert graph.get_state(at(name)).values == {"said": ["begun", name]}
        assert client.thread(name).info().status == Status.COMPLETED
    info = client.thread("trip").info()
    assert (info.status, info.pending_signals) == (Status.WAITING, 0)


def test_a_fork_of_an_earlier_version(client, daemon, saver, stateward):
    """It goes on from there, also with a saver that has never read it; its history begins with one checkpoint."""
    graph = graph_of(saver)
    graph.invoke({"said": []}, at("trip"))
    client.thread("trip").approve()
    graph.invoke(resume_command(saver.thread("trip")), at("trip"))
    asked = client.thread("trip").info().version - 1
    stateward("fork", "trip", "copy", "--at", str(asked - 1))
    with StatewardSaver(daemon.target, namespace=client.namespace) as other:
        graph = graph_of(other)
        (first,) = graph.get_state_history(at("copy"))
        assert (first.values, first.next) == ({"said": []}, ("begin",))
        graph.invoke(None, at("copy"))
        assert client.thread("copy").info().status == Status.WAITING
        client.thread("copy").answer("later")
        graph.invoke(resume_command(other.thread("copy")), at("copy"))
        assert graph.get_state(at("copy")).values == {"said": ["begun", "later"]}
        assert graph.get_state(first.config).next == ("begin",)
