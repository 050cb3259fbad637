"""The danger: a value of a graph cannot be stored, and the error does not say which one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypedDict

import pytest

from stateward import Client
from stateward.models import Status
from stateward.testing import Daemon, run_daemon

pytest.importorskip("langgraph.graph", reason="the extra langgraph is not installed")
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.graph import START, StateGraph

from stateward.langgraph import StatewardSaver, TypeNotAllowed


class Bill(TypedDict, total=False):
    total: Any
    lines: list[Any]


class Own:
    """A type that no saver may load."""

    def model_dump(self) -> dict[str, Any]:
        return {}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with run_daemon(tmp_path_factory.mktemp("unnamed") / "data") as daemon:
        yield daemon


@pytest.fixture
def client(daemon: Daemon, request: pytest.FixtureRequest) -> Iterator[Client]:
    with daemon.client(namespace=request.node.name[:100]) as opened:
        yield opened


CONFIG: Any = {"configurable": {"thread_id": "bill-7", "checkpoint_ns": ""}}


@pytest.mark.parametrize("channel", ["total", "lines"])
def test_what_a_node_returns(client: Client, daemon: Daemon, channel: str) -> None:
    """The error names thread and channel; the run ends, the thread stays as running, and a mended node goes on."""
    returned: list[Any] = [print, lambda: 1]
    builder = StateGraph(Bill)
    builder.add_node("n", lambda _: {channel: returned})
    builder.add_edge(START, "n")
    with StatewardSaver(daemon.target, namespace=client.namespace) as saver:
        graph = builder.compile(checkpointer=saver)
        with pytest.raises(TypeError, match=f"channel '{channel}' of thread 'bill-7': Type is not msgpack"):
            graph.invoke({"total": 1}, CONFIG)
        assert client.thread("bill-7").info().status == Status.RUNNING
        returned[:] = [7]
        assert graph.invoke(None, CONFIG)[channel] == [7]


def test_values_and_metadata_of_a_checkpoint(client: Client, daemon: Daemon) -> None:
    """As the saver gets them, also of a type that is not allowed."""
    with StatewardSaver(daemon.target, namespace=client.namespace) as saver:
        for value, error in ((lambda: 1, TypeError), ([lambda: 1], TypeError), (Own(), TypeNotAllowed)):
            made = {**empty_checkpoint(), "channel_values": {"total": value}, "channel_versions": {"total": "1"}}
            with pytest.raises(error, match="channel 'total' of thread 'bill-7'"):
                saver.put(CONFIG, made, {}, {"total": "1"})
        with pytest.raises(TypeError, match="the metadata of thread 'bill-7'"):
            saver.put(CONFIG, empty_checkpoint(), {"writes": lambda: 1}, {})
    assert list(client.threads()) == []
