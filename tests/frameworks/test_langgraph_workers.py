"""The danger: one of two workers that serve a thread by turns goes on from what it remembers, and overwrites the turn
of the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, TypedDict

import pytest

from stateward.testing import Daemon, run_daemon

pytest.importorskip("langgraph.graph", reason="the extra langgraph is not installed")
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES

from stateward.langgraph import StatewardSaver

LARGE = "x" * 20_000  # the daemon sends a small state whole, however little has changed


class Work(TypedDict, total=False):
    """A list of things to do, beside something large."""

    todo: list[str]
    note: str
    story: str


class Chat(MessagesState, total=False):
    """A conversation, beside something large."""

    profile: str


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with run_daemon(tmp_path_factory.mktemp("langgraph") / "data") as daemon:
        yield daemon


@pytest.fixture
def workers(daemon: Daemon) -> Iterator[list[StatewardSaver]]:
    """The savers of three workers; the third has seen nothing."""
    with ExitStack() as stack:
        yield [stack.enter_context(StatewardSaver(daemon.target)) for _ in range(3)]


def working(saver: StatewardSaver) -> Any:
    """A graph with one step."""
    builder = StateGraph(Work)
    builder.add_node("work", lambda state: {"note": f"seen: {state.get('todo')}"})
    builder.add_edge(START, "work")
    builder.add_edge("work", END)
    return builder.compile(checkpointer=saver)


def chatting(saver: StatewardSaver) -> Any:
    """A graph that answers."""
    builder = StateGraph(Chat)
    builder.add_node("answer", lambda state: {"messages": [AIMessage(f"answer {len(state['messages'])}")]})
    builder.add_edge(START, "answer")
    builder.add_edge("answer", END)
    return builder.compile(checkpointer=saver)


def said(state: Any) -> list[str]:
    return [each.content for each in state.values["messages"]]


def test_a_list_that_another_worker_filled_again(workers: list[StatewardSaver]) -> None:
    """The worker that saw it empty reads what is there, and its next step keeps that."""
    thread: Any = {"configurable": {"thread_id": "todo"}}
    first, second, third = map(working, workers)
    first.invoke({"todo": ["buy milk"], "story": LARGE}, thread)
    first.invoke({"todo": []}, thread)
    second.invoke({"todo": ["one", "two", "three"]}, thread)
    assert first.get_state(thread).values["todo"] == ["one", "two", "three"]
    first.update_state(thread, {"note": "worked"})
    first.update_state(thread, {"todo": [*first.get_state(thread).values["todo"], "four"]})
    assert third.get_state(thread).values["todo"] == ["one", "two", "three", "four"]


def test_a_conversation_that_was_reset(workers: list[StatewardSaver]) -> None:
    """Another worker answers the next question, and the first one the question after."""
    thread: Any = {"configurable": {"thread_id": "chat"}}
    first, second, third = map(chatting, workers)
    first.invoke({"messages": [HumanMessage("hello")], "profile": LARGE}, thread)
    first.update_state(thread, {"messages": [RemoveMessage(REMOVE_ALL_MESSAGES)]})
    second.invoke({"messages": [HumanMessage("question 1")]}, thread)
    assert said(first.get_state(thread)) == ["question 1", "answer 1"]
    first.invoke({"messages": [HumanMessage("question 2")]}, thread)
    assert said(third.get_state(thread)) == ["question 1", "answer 1", "question 2", "answer 3"]


def test_a_version_of_something_else_is_told_also_if_nothing_changed(daemon: Daemon) -> None:
    """A worker that remembers the version before it says the same as one that does not."""
    thread: Any = {"configurable": {"thread_id": "foreign"}}
    with StatewardSaver(daemon.target) as saver, StatewardSaver(daemon.target) as fresh, daemon.client() as client:
        working(saver).invoke({"todo": ["a"], "story": LARGE}, thread)
        handle = client.thread("foreign")
        state = handle.hydrate()
        handle.save(state, labels={"by": "hand"})
        for each in (fresh, saver):
            with pytest.raises(ValueError, match="is no checkpoint of LangGraph"):
                each.get_tuple(thread)
