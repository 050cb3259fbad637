"""The danger: StatewardSaver refuses a long or odd name that LangGraph's own savers take, or takes one for another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypedDict

import pytest

from stateward.testing import Daemon, run_daemon

pytest.importorskip("langgraph.graph", reason="the extra langgraph is not installed")
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from stateward.langgraph import StatewardSaver

LONG = "x" * 3000
NAMES = (
    "-", "plain", "main", "ns/main", "ns/ns/main", "a\x00b", "a\nb", "\x7f\x85", "é" * 600, LONG, LONG + "y",
    "x\x00" * 600, "t@@3", "~%41", "~#41", "~", "100%", "a/b|c:d", "\ud800", "a\udfffb" * 500,
)  # fmt: skip


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with run_daemon(tmp_path_factory.mktemp("langgraph") / "data") as daemon:
        yield daemon


@pytest.fixture
def saver(daemon: Daemon, request: pytest.FixtureRequest) -> Iterator[StatewardSaver]:
    with StatewardSaver(daemon.target, namespace=request.node.name[:60], cache_bytes=0) as saver:
        yield saver


def put(saver: Any, thread: str, namespace: str = "", name: str = "c1", parent: Any = None, **more: Any) -> Any:
    """Writes a checkpoint with one channel, or with the given ones."""
    values = more.pop("values", {"a": 1})
    versions: Any = dict.fromkeys(values, name)
    made: Any = {
        **empty_checkpoint(),
        "ts": "",
        "id": name,
        "channel_values": dict(values),
        "channel_versions": versions,
    }
    config = parent or {"configurable": {"thread_id": thread, "checkpoint_ns": namespace}}
    return saver.put(config, made, {"source": "loop", "step": 1, **more}, versions)


def every(saver: Any, config: Any = None) -> list[Any]:
    return sorted(saver.list(config), key=lambda each: repr(each.config))


def test_thread_ids(saver: StatewardSaver) -> None:
    """Each is another thread, under the name that it was given; also the empty one."""
    memory = InMemorySaver()
    for each in (saver, memory):
        for name in ("", *NAMES):
            config = put(each, name, values={"a": name.encode(errors="surrogatepass")})
            each.put_writes(config, [("a", 1)], "task")
    assert every(saver) == every(memory)
    for name in ("", *NAMES):
        root: Any = {"configurable": {"thread_id": name, "checkpoint_ns": ""}}
        assert saver.get_tuple(root) == memory.get_tuple(root)
        assert len(list(saver.list(root))) == 1
    saver.copy_thread(LONG, LONG + "z")
    copied = saver.get_tuple({"configurable": {"thread_id": LONG + "z"}})
    assert copied is not None
    assert copied.config["configurable"]["thread_id"] == LONG + "z"
    for name in (*NAMES, LONG + "z"):
        saver.delete_thread(name)
    assert [each.config["configurable"]["thread_id"] for each in saver.list(None)] == [""]


def test_checkpoint_namespaces(saver: StatewardSaver) -> None:
    """Each is another branch of the thread; the checkpoints of each come back with their namespace."""
    memory = InMemorySaver()
    for each in (saver, memory):
        for name in ("", *NAMES):
            first = put(each, "t", name, "c1", values={"a": [name.encode(errors="surrogatepass")]})
            put(each, "t", name, "c2", parent=first, values={"a": [1, 2]})
    config: Any = {"configurable": {"thread_id": "t"}}
    assert every(saver, config) == every(memory, config)
    saver.prune(["t"])
    left = {each.config["configurable"]["checkpoint_ns"]: each.checkpoint["id"] for each in saver.list(config)}
    assert left == dict.fromkeys(("", *NAMES), "c2")


def test_checkpoint_ids_and_runs(saver: StatewardSaver) -> None:
    """Parents, pending writes and lists find them; a run of any id can be deleted."""
    memory = InMemorySaver()
    for each in (saver, memory):
        parent = None
        for name in NAMES:
            if "\ud800" <= max(name) <= "\udfff":
                continue  # no serializer of LangGraph takes it within a checkpoint
            parent = put(each, "t", "", name, parent, run_id=name)
            each.put_writes(parent, [("a", name)], "task")
    names = [name for name in NAMES if not "\ud800" <= max(name) <= "\udfff"]
    for name in names:
        config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": name}}
        assert saver.get_tuple(config) == memory.get_tuple(config)
        assert [each.checkpoint["id"] for each in saver.list(config)] == [name]
    for name in names[1:]:
        saver.delete_for_runs([name])
    assert [each.checkpoint["id"] for each in saver.list(None)] == names[:1]


def test_channels(saver: StatewardSaver) -> None:
    """Values and pending writes of each come back under its name, lists and others; also of two long ones that begin
    alike."""
    memory, names = InMemorySaver(), [name for name in NAMES if not "\ud800" <= max(name) <= "\udfff"]
    for each in (saver, memory):
        parent = put(each, "t", values={name: [name] for name in names})
        parent = put(each, "t", name="c2", parent=parent, values={name: [name, 1] for name in names})
        each.put_writes(parent, [(name, name) for name in names], "task")
    config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    assert saver.get_tuple(config) == memory.get_tuple(config)
    at: Any = {"configurable": {**config["configurable"], "checkpoint_id": "c2"}}
    put(saver, "t", name="c3", parent=at, values={"a": 1})
    put(memory, "t", name="c3", parent=at, values={"a": 1})
    found = saver.get_delta_channel_history(config=config, channels=names)
    assert found == memory.get_delta_channel_history(config=config, channels=names)


def test_tasks_and_their_paths(saver: StatewardSaver) -> None:
    """Pending writes come in the order of their paths, however long they are; the paths differ only at their ends."""
    memory = InMemorySaver()
    paths = ["", "~1", LONG + "2", LONG + "1", "é" * 511 + "a", "é" * 511 + "b", "\ud800", "a\x00"]
    for each in (saver, memory):
        config = put(each, "t")
        for number, path in enumerate(paths):
            for name in NAMES[number:]:
                each.put_writes(config, [("a", number), ("__error__", path.encode(errors="surrogatepass"))], name, path)
    found, expected = saver.get_tuple(config), memory.get_tuple(config)
    assert found is not None
    assert expected is not None
    assert len(found.pending_writes or ()) == 2 * len(NAMES)
    assert sorted(found.pending_writes or ()) == sorted(expected.pending_writes or ())
    saver.put_writes(config, [("a", "again"), ("__error__", b"new")], LONG, "~2")
    replaced = saver.get_tuple(config)
    assert replaced is not None
    assert ("task", LONG) not in replaced.pending_writes
    mine = [each[1:] for each in replaced.pending_writes or () if each[0] == LONG]
    assert sorted(mine) == [("__error__", b"new"), ("a", 0)]


def test_paths_that_differ_only_at_their_ends(saver: StatewardSaver) -> None:
    """The order is that of the whole paths."""
    memory, found = InMemorySaver(), []
    for each in (saver, memory):
        config = put(each, "t")
        for name, path in (("a", LONG + "2"), ("b", LONG + "1")):
            each.put_writes(config, [("a", name)], name, path)
        found.append(each.get_tuple(config).pending_writes)
    assert found[0] == found[1] == [("b", "a", "b"), ("a", "a", "a")]


class Deep(TypedDict, total=False):
    """A state that goes down through subgraphs."""

    depth: int


def test_nested_subgraphs(saver: StatewardSaver) -> None:
    """Twenty-four of them, whose namespaces are longer than a name, with a question at the bottom."""

    def nested(checkpointer: Any) -> Any:
        graph: Any = None
        for level in range(24):
            builder: Any = StateGraph(Deep)
            node = graph or (lambda state: {"depth": state["depth"] + int(interrupt("how deep?"))})
            builder.add_node(f"a_node_with_a_long_name_{level}", node)
            builder.add_edge(START, f"a_node_with_a_long_name_{level}")
            graph = builder.compile(checkpointer=checkpointer if level == 23 else None)
        return graph

    from langgraph.types import Command

    results = []
    for each in (saver, InMemorySaver()):
        graph, config = nested(each), {"configurable": {"thread_id": "deep"}, "recursion_limit": 100}
        graph.invoke({"depth": 1}, config)
        found = graph.get_state(config, subgraphs=True)
        depth = 0
        while found is not None and found.tasks:
            found, depth = found.tasks[0].state, depth + 1
        results.append((depth, graph.invoke(Command(resume="7"), config)))
    assert results[0] == results[1]
    assert results[0][1] == {"depth": 8}


async def test_nested_tasks(daemon: Daemon) -> None:
    """Thirty of them, whose paths are longer than a sort key."""

    @task
    async def down(depth: int) -> int:
        return int(await down(depth - 1)) + 1 if depth else int(interrupt("how deep?"))

    async def run(checkpointer: Any) -> int:
        @entrypoint(checkpointer=checkpointer)
        async def flow(depth: int) -> int:
            return int(await down(depth))

        config: Any = {"configurable": {"thread_id": "tasks"}, "recursion_limit": 100}
        await flow.ainvoke(30, config)
        return int(await flow.ainvoke(Command(resume="7"), config))

    async with StatewardSaver(daemon.target, namespace="tasks") as saver:
        assert await run(saver) == await run(InMemorySaver()) == 37
