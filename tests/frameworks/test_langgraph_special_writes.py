"""The danger: a second interrupt in one call is refused or lost, because LangGraph writes its channel twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypedDict

import pytest

from stateward.testing import Daemon, run_daemon

pytest.importorskip("langgraph.graph", reason="the extra langgraph is not installed")
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from stateward.langgraph import StatewardSaver


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with run_daemon(tmp_path_factory.mktemp("langgraph") / "data") as daemon:
        yield daemon


class Form(TypedDict):
    """What a person is asked."""

    answers: list[str]


def test_a_node_that_asks_twice(daemon: Daemon) -> None:
    """LangGraph writes one special channel twice in a call then, and the last value counts."""
    builder = StateGraph(Form)
    builder.add_node("ask", lambda _: {"answers": [interrupt("name?"), interrupt("age?")]})
    builder.add_edge(START, "ask")
    config: Any = {"configurable": {"thread_id": "form"}}
    with StatewardSaver(daemon.target) as saver:
        graph: Any = builder.compile(checkpointer=saver)
        graph.invoke({"answers": []}, config)
        for answer in ("Ana", "41"):
            graph.invoke(Command(resume=answer), config)
        assert graph.get_state(config).values == {"answers": ["Ana", "41"]}


def test_a_special_channel_twice_in_one_call(daemon: Daemon) -> None:
    """The last value counts, also over an earlier call; every other write keeps its place."""
    config: Any = {"configurable": {"thread_id": "special", "checkpoint_ns": ""}}
    with StatewardSaver(daemon.target) as saver:
        made = saver.put(config, empty_checkpoint(), {}, {})
        saver.put_writes(made, [("__resume__", [1]), ("a", 1), ("__error__", "x"), ("__resume__", [1, 2])], "task")
        saver.put_writes(made, [("__resume__", [7]), ("__resume__", [8])], "task")
        found = saver.get_tuple(config)
    assert found is not None
    assert found.pending_writes == [("task", "__resume__", [8]), ("task", "__error__", "x"), ("task", "a", 1)]
