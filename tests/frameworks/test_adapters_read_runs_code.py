"""The danger: reading a thread imports and calls what a value of another client of the daemon names."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import ipaddress
import os
import pathlib
import re
import subprocess
import sys
import uuid
import zoneinfo
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypedDict

import pytest

from stateward import Client
from stateward.testing import Daemon, run_daemon

pytest.importorskip("langgraph.graph", reason="the extra langgraph is not installed")
import ormsgpack
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.prompt_values import StringPromptValue
from langgraph.checkpoint.base import CheckpointTuple, empty_checkpoint
from langgraph.checkpoint.serde import jsonplus
from langgraph.graph import START, StateGraph
from langgraph.types import Interrupt, Send

from stateward.langgraph import StatewardSaver, TypeNotAllowed


class Mood(enum.Enum):
    """A type of the graph's own."""

    GOOD = "good"


@dataclass
class Order:
    """A type of the graph's own, with another one inside."""

    city: str
    mood: Mood = Mood.GOOD


OWN = [Order, (Mood.__module__, "Mood")]
FOREIGN = [Order("Rome"), {"deep": [Mood.GOOD]}, StringPromptValue(text="a")]
SAFE = [
    {1, 2}, frozenset("a"), deque([1]), decimal.Decimal("1.50"), uuid.UUID(int=7), pathlib.Path("/a"), re.compile("a"),
    ipaddress.ip_address("::1"), dt.datetime(2026, 1, 2, tzinfo=dt.UTC), dt.date(2026, 1, 2), dt.time(1, 2),
    dt.timedelta(1), zoneinfo.ZoneInfo("UTC"), HumanMessage("a", id="1"), AIMessage("b", id="2"), Document("text"),
    Send("node", {"set": {1}}), Interrupt("why?", id="3"), b"bytes", bytearray(b"b"), None, "text",
]  # fmt: skip


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with run_daemon(tmp_path_factory.mktemp("types") / "data") as daemon:
        yield daemon


class Hostile(jsonplus.JsonPlusSerializer):
    """Writes some bytes in place of the text that stands for them."""

    def __init__(self, packed: ormsgpack.Ext | None) -> None:
        super().__init__()
        self.packed = packed

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        def pack(value: Any) -> Any:
            return self.packed if isinstance(value, Mark) else jsonplus._msgpack_default(value)

        if self.packed is not None:
            return "msgpack", ormsgpack.packb(obj, default=pack, option=jsonplus._option)
        return super().dumps_typed(obj)


class Mark:
    """Stands for a hostile value."""


def calls(path: str) -> dict[str, ormsgpack.Ext]:
    """Every form in which LangGraph's serializer names what is called: here, what makes a directory."""
    packed = {
        "one argument": (jsonplus.EXT_CONSTRUCTOR_SINGLE_ARG, ("os", "mkdir", path)),
        "arguments": (jsonplus.EXT_CONSTRUCTOR_POS_ARGS, ("os", "mkdir", (path,))),
        "named arguments": (jsonplus.EXT_CONSTRUCTOR_KW_ARGS, ("os", "mkdir", {"path": path})),
        "method": (jsonplus.EXT_METHOD_SINGLE_ARG, ("os", "path", path, "mkdir")),
        "pydantic 1": (jsonplus.EXT_PYDANTIC_V1, ("os", "mkdir", {"path": path})),
        "pydantic 2": (jsonplus.EXT_PYDANTIC_V2, ("os", "mkdir", {"path": path}, "model_validate")),
    }
    made = {name: ormsgpack.Ext(code, ormsgpack.packb(found)) for name, (code, found) in packed.items()}
    inner = ormsgpack.packb(("builtins", "set", [made["arguments"]]))
    made["in a set"] = ormsgpack.Ext(jsonplus.EXT_CONSTRUCTOR_SINGLE_ARG, inner)
    snapshot = ormsgpack.packb([{"a": made["arguments"]}])
    return made | {"in a snapshot": ormsgpack.Ext(jsonplus.EXT_DELTA_SNAPSHOT, snapshot)}


FORMS = list(calls(""))
PLACES = ["slot", "log", "write", "metadata", "rest"]


def put(saver: StatewardSaver, thread: str, value: Any, place: str = "slot") -> Any:
    """Writes a checkpoint with a value in this place."""
    config: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
    made: Any = {**empty_checkpoint(), "channel_versions": {"a": "1"}}
    made["channel_values"] = {"a": {"slot": {"deep": value}, "log": ["text", value]}.get(place)}
    if place == "rest":
        made["more"] = value
    metadata: Any = {"source": "loop", "step": 1, "more": value if place == "metadata" else None}
    saved = saver.put(config, made, metadata, {"a": "1"})
    if place == "write":
        saver.put_writes(saved, [("a", value)], "task")
    return saved


def read(saver: StatewardSaver, thread: str) -> CheckpointTuple:
    found = saver.get_tuple({"configurable": {"thread_id": thread}})
    assert found is not None
    return found


@pytest.mark.parametrize("form", FORMS)
def test_a_read_calls_nothing(daemon: Daemon, tmp_path: pathlib.Path, form: str) -> None:
    """A value that names code is an error that names it, wherever it lies and however it is read."""
    marker = tmp_path / "made"
    hostile = Hostile(calls(str(marker))[form])
    with StatewardSaver(daemon.target, serde=hostile) as writer, StatewardSaver(daemon.target) as saver:
        for place in PLACES:
            thread = f"{form} {place}"
            put(writer, thread, Mark(), place)
            config: Any = {"configurable": {"thread_id": thread}}
            named = r"type os\.\w.*StatewardSaver\(allowed_types="
            with pytest.raises(TypeNotAllowed, match=named):
                read(saver, thread)
            with pytest.raises(TypeNotAllowed, match=named):
                list(saver.list(config))
    assert not marker.exists()


def test_pickle_and_old_json_are_not_loaded(daemon: Daemon) -> None:
    """The kind of a value is the writer's word: only kinds that this serializer writes are read."""

    class Kind(jsonplus.JsonPlusSerializer):
        def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
            return (obj, b"{}") if obj in ("pickle", "json") else super().dumps_typed(obj)

    for kind in ("pickle", "json"):
        with StatewardSaver(daemon.target, serde=Kind()) as writer, StatewardSaver(daemon.target) as saver:
            config: Any = {"configurable": {"thread_id": kind, "checkpoint_ns": ""}}
            made: Any = {**empty_checkpoint(), "channel_versions": {"a": "1"}, "channel_values": {"a": kind}}
            writer.put(config, made, {}, {"a": "1"})
            with pytest.raises(ValueError, match=f"stored as '{kind}'"):
                read(saver, kind)


def test_types_of_the_own_list_come_back(daemon: Daemon) -> None:
    """What LangGraph lists as safe needs no permission."""
    with StatewardSaver(daemon.target) as saver:
        for place in PLACES:
            put(saver, f"safe {place}", SAFE, place)
        assert read(saver, "safe slot").checkpoint["channel_values"]["a"] == {"deep": SAFE}
        assert read(saver, "safe log").checkpoint["channel_values"]["a"] == ["text", SAFE]
        assert read(saver, "safe write").pending_writes == [("task", "a", SAFE)]
        assert read(saver, "safe metadata").metadata["more"] == SAFE  # type: ignore[typeddict-item]
        assert read(saver, "safe rest").checkpoint["more"] == SAFE  # type: ignore[typeddict-item]


@pytest.mark.parametrize("value", FOREIGN, ids=["class", "enum", "other"])
@pytest.mark.parametrize("place", PLACES)
def test_a_type_that_could_not_be_loaded_is_not_written(daemon: Daemon, place: str, value: Any) -> None:
    """The program learns of it at its first checkpoint, and not when it has to go on from it; nothing is written."""
    thread = f"own {place} {type(value).__name__}"
    with StatewardSaver(daemon.target) as saver:
        with pytest.raises(TypeNotAllowed) as refused:
            put(saver, thread, value, place)
        expected = {"Order": ["Mood", "Order"], "dict": ["Mood"]}.get(type(value).__name__, [type(value).__name__])
        assert [name for _, name in refused.value.types] == expected
        assert f"StatewardSaver(allowed_types={list(refused.value.types)!r})" in str(refused.value)
        if place == "write":
            assert read(saver, thread).pending_writes == []
        else:
            assert saver.get_tuple({"configurable": {"thread_id": thread}}) is None


@pytest.mark.parametrize("place", PLACES)
def test_allowed_types_are_loaded(daemon: Daemon, place: str) -> None:
    """A class, and the names of one, allow a type, also inside another one; a saver without them names the first."""
    value, thread = [Order("Rome"), Mood.GOOD], f"allowed {place}"
    with StatewardSaver(daemon.target, allowed_types=OWN) as saver, StatewardSaver(daemon.target) as other:
        put(saver, thread, value, place)
        found = read(saver, thread)
        held: list[Any] = [
            found.checkpoint["channel_values"]["a"], found.pending_writes, found.metadata, dict(found.checkpoint)
        ]  # fmt: skip
        assert repr(value) in repr(held)
        with pytest.raises(TypeNotAllowed, match=r"Order.*allowed_types="):
            read(other, thread)


def test_a_graph_with_its_own_types(daemon: Daemon) -> None:
    """A graph whose state has a type of its own fails at once, and runs once the type is allowed."""

    class Trip(TypedDict):
        order: Order

    builder = StateGraph(Trip)
    builder.add_node("book", lambda state: {"order": Order(state["order"].city + "!")})
    builder.add_edge(START, "book")
    config: Any = {"configurable": {"thread_id": "graph"}}
    with StatewardSaver(daemon.target) as saver, StatewardSaver(daemon.target, allowed_types=OWN) as allowing:
        graph: Any = builder.compile(checkpointer=saver)
        with pytest.raises(TypeNotAllowed, match="Order"):
            graph.invoke({"order": Order("Rome")}, config)
        graph = builder.compile(checkpointer=allowing)
        graph.invoke({"order": Order("Rome")}, config)
        assert graph.get_state(config).values == {"order": Order("Rome!")}


STRICT = """
import sys
from typing import TypedDict
from langgraph.graph import START, StateGraph
from stateward.langgraph import StatewardSaver
from tests.frameworks.test_adapters_read_runs_code import Mood, Order
class Trip(TypedDict):
    order: Order
builder = StateGraph(Trip)
builder.add_node("book", lambda state: {"order": Order("Oslo", state["order"].mood)})
builder.add_edge(START, "book")
with StatewardSaver(sys.argv[1], allowed_types=[Mood]) as saver:
    graph = builder.compile(checkpointer=saver)
    config = {"configurable": {"thread_id": "strict"}}
    graph.invoke({"order": Order("Rome")}, config)
    print(graph.get_state(config).values["order"])
"""


def test_a_strict_graph_names_its_own_types(daemon: Daemon, repository: pathlib.Path) -> None:
    """LANGGRAPH_STRICT_MSGPACK: LangGraph names the types of a graph's state, and those of `allowed_types` stay."""
    environment = {**os.environ, "LANGGRAPH_STRICT_MSGPACK": "true", "PYTHONPATH": str(repository)}
    done = subprocess.run(
        [sys.executable, "-c", STRICT, daemon.target], env=environment, cwd=repository, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Order(city='Oslo', mood=<Mood.GOOD" in done.stdout


def test_wrong_arguments() -> None:
    """Names that are no names, and a list beside a serializer that would not use it, are refused."""
    for wrong in ("my_app.Order", ("my_app",), ("my_app", ""), 7):
        with pytest.raises(TypeError, match="allowed_types"):
            StatewardSaver("unix:///nowhere", allowed_types=[wrong])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="allowed_types"):
        StatewardSaver("unix:///nowhere", allowed_types=[Order], serde=jsonplus.JsonPlusSerializer())


async def test_a_workflow_unpickles_no_other_types(daemon: Daemon, tmp_path: pathlib.Path) -> None:
    """Microsoft's Agent Framework pickles: a checkpoint that names code is refused, and nothing runs."""
    framework = pytest.importorskip("agent_framework", reason="the extra agent-framework is not installed")
    import base64
    import pickle

    from stateward.agent_framework import StatewardCheckpointStorage

    class Call:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "made"),)

    checkpoint = framework.WorkflowCheckpoint(workflow_name="w", graph_signature_hash="h", state={"a": 1})
    async with StatewardCheckpointStorage("hostile", target=daemon.target) as storage:
        await storage.save(checkpoint)
        with Client(daemon.target) as client:
            thread = client.thread("hostile")
            state = thread.hydrate()
            pickled = base64.b64encode(pickle.dumps(Call())).decode()
            state.slots["state"] = {"a": {"__pickled__": pickled, "__type__": "builtins:int"}}
            thread.save(state, labels=state.checkpoint.labels, attributes=state.checkpoint.attributes)
        with pytest.raises(framework.exceptions.WorkflowCheckpointException):
            await storage.load(checkpoint.checkpoint_id)
    assert not (tmp_path / "made").exists()
