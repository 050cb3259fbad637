"""The danger: the commands do not show that a LangGraph agent waits, has failed or is over, so nobody answers it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Annotated, Any, TypedDict

import pytest
from tests.cli.conftest import Answer, run
from tests.daemon.process import Pair

from stateward import Client
from stateward.changes import SetSlot
from stateward.models import Status
from stateward.testing import Daemon

pytest.importorskip("langgraph.graph", reason="the extra langgraph is not installed")
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, interrupt

from stateward.langgraph import StatewardSaver, resume_command

Shell = Callable[..., Answer]


class Trip(TypedDict, total=False):
    """The state of the graphs here."""

    hotel: str
    said: Annotated[list[str], operator.add]
    messages: Annotated[list[AnyMessage], add_messages]


@pytest.fixture
def saver(daemon: Daemon, namespace: str) -> Iterator[StatewardSaver]:
    with StatewardSaver(daemon.target, namespace=namespace) as opened:
        yield opened


def config(thread: str) -> Any:
    return {"configurable": {"thread_id": thread}}


def statuses(client: Client) -> dict[str, Status | int | None]:
    return {info.name: info.status for info in client.threads()}


def graph_of(saver: StatewardSaver | None, nodes: dict[str, Any], *edges: Any) -> Any:
    """A graph whose first node is `a`."""
    builder = StateGraph(Trip)
    for name, node in nodes.items():
        builder.add_node(name, node)
    builder.add_edge(START, "a")
    for edge in edges:
        builder.add_edge(*edge)
    return builder.compile(checkpointer=saver)


def test_a_graph_that_asks_is_answered_from_the_shell(saver: StatewardSaver, stateward: Shell) -> None:
    """`waiting` has the question, `show` the values; the graph is completed at its end."""
    graph = graph_of(
        saver, {"a": lambda _: {"hotel": "Ritz"}, "b": lambda _: {"said": [interrupt("Book the Ritz?")]}}, ("a", "b")
    )
    graph.invoke({}, config("trip"))

    (waits,) = stateward("waiting", "--json").json
    assert (waits["thread"], waits["prompt"]) == ("trip", "Book the Ritz?")
    shown = stateward("show", "trip").out
    assert "Ritz" in shown
    assert "waiting" in shown
    assert "base64" not in shown
    answered = stateward("approve", "trip", "--wait-id", waits["wait_id"])
    assert answered.code == 0, answered.err
    graph.invoke(Command(resume="yes"), config("trip"))
    assert stateward("waiting", "--json").json == []
    assert stateward("threads", "--status", "completed", "--json").json[0]["thread"] == "trip"


@pytest.mark.parametrize("command", ["show", "diff", "replay", "history", "effects"])
def test_what_langgraph_keeps_for_itself_hides_nothing(saver: StatewardSaver, stateward: Shell, command: str) -> None:
    """People see what the nodes made; how much is left out is said, and --internal and --json have it all."""
    graph = graph_of(
        saver, {"a": lambda _: {"hotel": "Ritz"}, "b": lambda _: {"said": [interrupt("Book?")]}}, ("a", "b")
    )
    graph.invoke({}, config("trip"))
    words = [command, "trip", *(["2"] if command == "diff" else [])]
    shown, all_of_it = stateward(*words).out, stateward(*words, "--internal").out
    assert ("Ritz" in shown) == (command != "history")
    own = {"effects": ["branch:to:b"], "history": ["__interrupt__"]}.get(command, ["branch:to:b", "channel_versions"])
    assert [name for name in own if name in shown] == []
    assert [name for name in own if name not in all_of_it] == []
    assert ("of the framework's own; --internal shows" in shown) == (command != "history")
    assert "--internal" not in all_of_it
    assert own[0] in stateward(*words, "--json").out
    stateward("answer", "trip", "yes")
    graph.invoke(resume_command(saver.thread("trip")), config("trip"))
    assert "Book?" in stateward("replay", "trip").out


def test_slots_of_other_threads_are_all_shown(client: Client, stateward: Shell) -> None:
    """The names that LangGraph uses are anybody's."""
    thread = client.thread("own")
    thread.apply([SetSlot("checkpoint", 1)])
    thread.apply([SetSlot("channel/branch:to:b", 2)])
    shown = stateward("show", "own").out
    assert "channel/branch:to:b" in shown
    assert "--internal" not in shown
    assert "channel/branch:to:b" in stateward("diff", "own", "1").out


def test_parallel_tasks_ask_one_question(saver: StatewardSaver, client: Client) -> None:
    """Each interrupt is a part; an answered one goes, a new one comes under another wait id, and the end is seen."""
    graph = graph_of(
        saver,
        {
            "a": lambda _: {}, "b": lambda _: {"said": [interrupt("B?")]},
            "c": lambda _: {"said": [interrupt("C1?"), interrupt("C2?")]},
        },
        ("a", "b"), ("a", "c"),
    )  # fmt: skip
    graph.invoke({}, config("trip"))
    asked = {}
    for answers, prompts in (({}, {"B?", "C1?"}), ({"B?": "b"}, {"C1?"}), ({"C1?": "c"}, {"C2?"})):
        if answers:
            graph.invoke(Command(resume={asked[prompt]: answer for prompt, answer in answers.items()}), config("trip"))
        info = client.thread("trip").info()
        assert info.status == Status.WAITING
        assert info.question is not None
        parts = info.question.parts
        assert {part.prompt for part in parts} == prompts
        asked = {part.prompt: part.name for part in parts} | {"": info.wait_id}
        seen = {each.id for state in graph.get_state(config("trip")).tasks for each in state.interrupts}
        assert {part.name for part in parts} == seen
    first = client.thread("trip").info().wait_id
    graph.invoke(None, config("trip"))  # a restart asks the same again
    assert client.thread("trip").info().wait_id == first
    graph.invoke(Command(resume={asked["C2?"]: "d"}), config("trip"))
    assert statuses(client) == {"trip": Status.COMPLETED}
    assert set(graph.get_state(config("trip")).values["said"]) == {"b", "c", "d"}


def test_parts_are_answered_from_the_shell(saver: StatewardSaver, stateward: Shell) -> None:
    """`waiting` and `show` name the parts, and `answer --part` takes the beginning of a name; the graph gets each."""
    graph = graph_of(
        saver,
        {"a": lambda _: {}, "b": lambda _: {"said": [interrupt("B?")]}, "c": lambda _: {"said": [interrupt("C?")]}},
        ("a", "b"), ("a", "c"),
    )  # fmt: skip
    graph.invoke({}, config("trip"))
    parts = {part["prompt"]: part["name"] for part in stateward("waiting", "--json").json[0]["parts"]}
    assert parts.keys() == {"B?", "C?"}
    for shown in (stateward("waiting").out, stateward("show", "trip").out):
        assert all(name in shown for name in parts.values())
    assert "is no part of the question" in stateward("answer", "trip", "x", "--part", "zzz").error
    sent = stateward("answer", "trip", "b", "--part", parts["B?"][:8], "--as", "ana")
    assert f"{parts['B?']}: B?" in sent.out
    assert (resume_command(saver.thread("trip")) or Command()).resume == {parts["B?"]: "b"}
    graph.invoke(resume_command(saver.thread("trip")), config("trip"))
    assert stateward("answer", "trip", "c", "--part", parts["C?"]).code == 0
    graph.invoke(resume_command(saver.thread("trip")), config("trip"))
    assert set(graph.get_state(config("trip")).values["said"]) == {"b", "c"}
    assert stateward("waiting", "--json").json == []


def test_a_subgraph_asks_for_its_graph(saver: StatewardSaver, client: Client) -> None:
    """The thread waits with the question of the inner graph, and runs on once it is answered."""
    inner = graph_of(None, {"a": lambda _: {"said": [interrupt("Inner?")]}})
    graph = graph_of(saver, {"a": inner, "b": lambda _: {}}, ("a", "b"))
    graph.invoke({}, config("trip"))
    question = client.thread("trip").info().question
    assert question is not None
    assert question.prompt == "Inner?"
    graph.invoke(Command(resume="yes"), config("trip"))
    assert statuses(client) == {"trip": Status.COMPLETED}


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_an_error_is_told_and_overcome(
    saver: StatewardSaver, client: Client, stateward: Shell, durability: Any
) -> None:
    """A thread whose node raised has failed, with type and text; the next run ends it."""
    told = [ValueError("no money"), None]

    def pay(_: Trip) -> Trip:
        if (error := told.pop(0)) is not None:
            raise error
        return {}

    graph: Any = graph_of(saver, {"a": lambda _: {"said": ["a"]}, "b": pay}, ("a", "b"))
    with pytest.raises(ValueError, match="no money"):
        graph.invoke({}, config("trip"), durability=durability)
    info = client.thread("trip").info()
    assert (info.status, info.status_detail) == (Status.FAILED, "ValueError: no money")
    assert "no money" in stateward("threads", "--status", "failed").out + stateward("failures").out
    graph.invoke(None, config("trip"), durability=durability)
    assert statuses(client) == {"trip": Status.COMPLETED}


def test_only_an_end_is_called_completed(saver: StatewardSaver, client: Client) -> None:
    """Every checkpoint with a task behind it is running: branches that join, sends, deferred nodes, static stops."""
    nodes = {"a": lambda _: {}, "b": lambda _: {}, "c": lambda _: {"said": ["c"]}, "d": lambda _: {}}
    graph = graph_of(saver, nodes, ("a", "b"), ("a", "c"), (["b", "c"], "d"), ("d", END))
    for _ in graph.stream({"said": []}, config("joined"), durability="sync", stream_mode="checkpoints"):
        pass
    for each in client.thread("joined").checkpoints.list():
        state = graph.get_state({"configurable": {"thread_id": "joined", "checkpoint_id": each.checkpoint_id}})
        assert (each.status == Status.COMPLETED) == (not state.next), state.next
    stopped = graph_of(saver, nodes, ("a", "b"))
    stopped.invoke({}, config("stopped"), interrupt_before=["b"])
    assert statuses(client)["stopped"] == Status.RUNNING
    stopped.invoke(None, config("stopped"))
    stopped.invoke({"said": ["more"]}, config("stopped"), interrupt_after=["a"])  # a completed chat goes on
    assert statuses(client)["stopped"] == Status.RUNNING

    sent = graph_of(saver, {"a": lambda _: Command(goto=END), "b": lambda _: {}})
    sent.invoke({}, config("sent"))
    assert statuses(client)["sent"] == Status.COMPLETED


def test_a_function_asks_and_ends(saver: StatewardSaver, client: Client) -> None:
    """The functional form tells the same: two tasks ask, the entry point repeats their questions, and it ends."""

    @task
    def ask(number: int) -> Any:
        return interrupt(f"{number}?")

    @entrypoint(checkpointer=saver)
    def flow(count: int) -> list[Any]:
        return [each.result() for each in [ask(number) for number in range(count)]]

    flow.invoke(2, config("flow"))
    question = client.thread("flow").info().question
    assert question is not None
    assert {part.prompt for part in question.parts} == {"0?", "1?"}
    flow.invoke(Command(resume={part.name: part.prompt for part in question.parts}), config("flow"))
    assert statuses(client) == {"flow": Status.COMPLETED}


def test_messages_and_calls_of_tools(saver: StatewardSaver, stateward: Shell) -> None:
    """`tools` counts the calls of tools and no channel, and a trajectory has the messages."""
    call = {"name": "search", "args": {"city": "Rome"}, "id": "c1"}
    graph = graph_of(
        saver,
        {
            "a": lambda _: {"messages": [AIMessage("", tool_calls=[call])], "hotel": "Ritz"},
            "b": lambda _: {"messages": [ToolMessage("Error: full", tool_call_id="c1", status="error")]},
        },
        ("a", "b"),
    )
    graph.invoke({"messages": [HumanMessage("Rome?")]}, config("trip"))
    (used,) = stateward("tools", "--json").json
    assert (used["name"], used["calls"], used["errors"]) == ("search", 1, 1)
    (run,) = [stateward("export", "trip", "--trajectories").json]
    assert [each["role"] for each in run["messages"]] == ["user", "assistant", "tool"]
    assert run["messages"][1]["tool_calls"][0]["args"] == {"city": "Rome"}
    for command in (("diff", "trip", "2"), ("replay", "trip"), ("effects", "trip")):
        said = stateward(*command).out
        assert "search" in said
        assert "base64" not in said


def test_a_told_question_outlives_its_machine(pair: Pair, namespace: str) -> None:
    """The thread is given up while it waits: another machine shows the question, takes the answer and ends the run."""
    nodes = {"a": lambda _: {"said": [interrupt("Book it?")]}}
    with StatewardSaver(pair.first.target, namespace=namespace) as saver:
        graph_of(saver, nodes).invoke({}, config("trip"))
    with pair.first.client(namespace=namespace) as client:
        thread = client.thread("trip")
        thread.archive.wait(thread.info().sequence)
    there = ("--target", pair.second.target, "--namespace", namespace)
    approved = run(*there, "approve", "trip", "--yes")
    assert approved.code == 0, approved.err
    with pair.second.client(namespace=namespace) as client:
        info, state = client.thread("trip").info(), client.thread("trip").hydrate()
        assert state.checkpoint is not None
        assert info.question is not None
        assert (info.status, info.question.prompt) == (state.checkpoint.status, "Book it?")
        with StatewardSaver(pair.second.target, namespace=namespace) as saver:
            graph_of(saver, nodes).invoke(Command(resume="yes"), config("trip"))
        assert statuses(client) == {"trip": Status.COMPLETED}
