"""The danger: the late writes of a run bring back a thread that was deleted meanwhile, or reach the next thread of its
name."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextvars import Context
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from tests.daemon.process import Pair

from stateward.testing import Daemon, run_daemon

pytest.importorskip("langgraph.graph", reason="the extra langgraph is not installed")
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.graph import START, StateGraph

from stateward._operations.steps import ThreadRef
from stateward.errors import ThreadNotFound, UidMismatch, VersionMismatch
from stateward.langgraph import StatewardSaver
from stateward.langgraph._bases import Creations
from stateward.langgraph._threads import delete_thread
from stateward.v1.thread_service_pb2 import GetThreadResponse


class Chat(TypedDict, total=False):
    """A conversation."""

    said: Annotated[list[str], operator.add]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with run_daemon(tmp_path_factory.mktemp("langgraph") / "data") as daemon:
        yield daemon


@pytest.fixture
def saver(daemon: Daemon) -> Iterator[StatewardSaver]:
    with StatewardSaver(daemon.target) as saver:
        yield saver


def place(thread: str, namespace: str = "") -> Any:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": namespace}}


def put(saver: StatewardSaver, config: Any, name: str, values: dict[str, Any]) -> Any:
    """Writes a checkpoint with these values, all of which are new."""
    versions: Any = dict.fromkeys(values, name)
    made: Any = {**empty_checkpoint(), "id": name, "channel_values": dict(values), "channel_versions": versions}
    return saver.put(config, made, {"source": "loop", "step": 1}, versions)


def talking(saver: StatewardSaver, meanwhile: Callable[[], object], *, then: bool, inside: bool) -> Any:
    """A graph in whose node something happens; with a second node after it, or with the node in a subgraph."""

    def talk(_: Chat) -> Chat:
        Context().run(meanwhile)
        return {"said": ["a diagnosis"]}

    builder: Any = StateGraph(Chat)
    builder.add_node("talk", talk)
    builder.add_edge(START, "talk")
    if inside:
        outer: Any = StateGraph(Chat)
        outer.add_node("inner", builder.compile())
        outer.add_edge(START, "inner")
        return outer.compile(checkpointer=saver)
    if then:
        builder.add_node("bye", lambda _: {"said": ["bye"]})
        builder.add_edge("talk", "bye")
    return builder.compile(checkpointer=saver)


@pytest.mark.parametrize("durability", ["sync", "async"])
@pytest.mark.parametrize(("then", "inside"), [(False, False), (True, False), (False, True)])
def test_nothing_is_left(daemon: Daemon, saver: StatewardSaver, durability: str, then: bool, inside: bool) -> None:
    """The run ends with UidMismatch, and nothing that it writes comes back. The next run works."""
    thread = f"{durability}-{then}-{inside}"
    with StatewardSaver(daemon.target) as admin, daemon.client() as client:
        talking(saver, lambda: None, then=then, inside=inside).invoke({"said": ["hello"]}, place(thread))
        graph = talking(saver, lambda: admin.delete_thread(thread), then=then, inside=inside)
        with pytest.raises(UidMismatch):
            graph.invoke({"said": ["again"]}, place(thread), durability=durability)
        assert saver.get_tuple(place(thread)) is None
        assert thread not in [info.name for info in client.threads()]
        said = talking(saver, lambda: None, then=False, inside=False).invoke({"said": ["new"]}, place(thread))
        assert said == {"said": ["new", "a diagnosis"]}


def test_the_next_thread_of_the_name_is_not_reached(daemon: Daemon, saver: StatewardSaver) -> None:
    """Two runs are never in one state: the late writes of the first are refused, however they come."""
    with StatewardSaver(daemon.target) as other:
        config = put(saver, place("two"), "a1", {"plan": "PARIS", "log": ["p1"]})
        config = put(saver, config, "a2", {"plan": "PARIS", "log": ["p1", "p2"]})
        other.delete_thread("two")
        put(other, put(other, place("two"), "b1", {"plan": "ROME", "log": ["r1"]}), "b2", {"plan": "ROME", "log": []})
        before = list(other.list(place("two")))
        for late in (saver, saver):  # the second time, the saver has forgotten what it knew of the checkpoint
            with pytest.raises(UidMismatch):
                put(late, config, "a3", {"plan": "PARIS", "log": ["p1", "p2", "p3"]})
        with pytest.raises(UidMismatch):
            saver.put_writes(config, [("log", "p4")], "task")
        inner = place("two", "inner")
        inner["configurable"]["checkpoint_map"] = {"": "a2"}
        with pytest.raises(UidMismatch):
            put(saver, inner, "a4", {"plan": "PARIS"})
        assert list(other.list(place("two"))) == before
        with daemon.client() as client:
            assert list(client.thread("two").effects.list()) == []
        found = saver.get_tuple(place("two"))
        assert found is not None
        put(saver, found.config, "b3", {"plan": "ROME", "log": ["r3"]})
        assert len(list(other.list(place("two")))) == 3


def test_a_thread_that_has_the_same_checkpoint_again(daemon: Daemon, saver: StatewardSaver) -> None:
    """Somebody restored it: a run that began before is refused, one that begins now is not."""
    with StatewardSaver(daemon.target) as other:
        first = put(saver, place("again"), "c1", {"a": ["old"]})
        other.delete_thread("again")
        put(other, place("again"), "c1", {"a": ["new"]})
        saver._bases.forget_thread("again")  # so it would read the checkpoint before it writes
        with pytest.raises(UidMismatch):
            put(saver, first, "c2", {"a": ["old", "er"]})
        assert saver.get_tuple(first) is not None
        put(saver, first, "c2", {"a": ["new", "er"]})
        found = other.get_tuple(place("again"))
        assert found is not None
        assert found.checkpoint["channel_values"] == {"a": ["new", "er"]}


def test_writes_before_any_checkpoint(saver: StatewardSaver) -> None:
    """LangGraph writes them for a checkpoint that it never stores, if the first input of a thread is a Command."""
    first = {"configurable": {**place("early")["configurable"], "checkpoint_id": "c0"}}
    saver.put_writes(first, [("a", 1)], "task")  # type: ignore[arg-type]
    put(saver, first, "c1", {"a": 1})
    found = saver.get_tuple(place("early"))
    assert found is not None
    assert found.checkpoint["channel_values"] == {"a": 1}


def test_writes_for_a_checkpoint_that_is_not_written_yet(daemon: Daemon, saver: StatewardSaver) -> None:
    """With durability "async" they may come before it. They belong to the thread as the run found it."""
    with StatewardSaver(daemon.target) as other, daemon.client() as client:
        put(saver, place("before"), "c1", {"a": 1})
        next_one = {"configurable": {**place("before")["configurable"], "checkpoint_id": "c2"}}
        other.delete_thread("before")
        with pytest.raises(UidMismatch):
            saver.put_writes(next_one, [("a", 2)], "task")  # type: ignore[arg-type]
        assert "before" not in [info.name for info in client.threads()]
        put(other, place("before"), "c2", {"a": 3})
        saver.put_writes(next_one, [("a", 4)], "task")  # type: ignore[arg-type]
        found = other.get_tuple(place("before"))
        assert found is not None
        assert found.pending_writes == [("task", "a", 4)]


def test_a_run_that_finds_a_thread_without_checkpoints(daemon: Daemon, saver: StatewardSaver) -> None:
    """Another worker deleted the thread, and died after its first write: the next run begins anew, and its writes may
    come before its checkpoint."""
    with StatewardSaver(daemon.target) as other:
        put(saver, place("begun"), "c1", {"a": 1})
        other.delete_thread("begun")
        dead = {"configurable": {**place("begun")["configurable"], "checkpoint_id": "d1"}}
        other.put_writes(dead, [("a", 2)], "task")  # type: ignore[arg-type]
        assert saver.get_tuple(place("begun")) is None
        first = {"configurable": {**place("begun")["configurable"], "checkpoint_id": "e1"}}
        saver.put_writes(first, [("a", 3)], "task")  # type: ignore[arg-type]
        put(saver, place("begun"), "e1", {"a": 3})
        found = saver.get_tuple(place("begun"))
        assert found is not None
        assert (found.checkpoint["id"], found.pending_writes) == ("e1", [("task", "a", 3)])


def test_a_late_checkpoint_beside_the_next_run(daemon: Daemon, saver: StatewardSaver) -> None:
    """It is refused, and the next run's writes are not, though they come before its first checkpoint."""
    with StatewardSaver(daemon.target) as other:
        config = put(saver, place("beside"), "c1", {"a": 1})
        other.delete_thread("beside")
        assert saver.get_tuple(place("beside")) is None
        with pytest.raises(UidMismatch):
            put(saver, config, "c2", {"a": 2})
        first = {"configurable": {**place("beside")["configurable"], "checkpoint_id": "e1"}}
        saver.put_writes(first, [("a", 3)], "task")  # type: ignore[arg-type]
        put(saver, place("beside"), "e1", {"a": 3})
        found = saver.get_tuple(place("beside"))
        assert found is not None
        assert found.pending_writes == [("task", "a", 3)]


def test_old_checkpoints_are_forgotten_first() -> None:
    """The limit holds, and what was used last stays."""
    ref: Any = type("Ref", (), {"thread": "t"})
    creations = Creations(limit=2)
    for name in ("a", "b", "a", "c"):
        creations.note(ref, name, f"uid of {name}")
    assert [creations.of(ref, [name]) for name in "abc"] == ["uid of a", "", "uid of c"]


@pytest.mark.parametrize("owns", [False, True])
def test_a_checkpoint_that_was_lost_with_its_machine(tmp_path: Path, owns: bool) -> None:
    """Another sidecar made another version of the same number: the next checkpoint has what its run wrote, and nothing
    of the other run; with write_ownership it is refused."""
    place_of_all = tmp_path / "bucket"
    place_of_all.mkdir()
    flags: Any = {"archive": f"file://{place_of_all}", "archive_lease": "1", "accept_local_key": True}
    with run_daemon(tmp_path / "one", archive_interval="60", **flags) as one:
        socket = one.socket.parent.parent / f"{one.socket.parent.name}.sock"  # an address that outlives the machine
        socket.symlink_to(one.socket)
        try:
            with StatewardSaver(f"unix://{socket}", write_ownership=owns) as saver:
                first = put(saver, place("t"), "a1", {"plan": "?", "log": ["p1"]})
                with one.client() as client:
                    client.thread("t").archive.wait(1)
                with Pair(tmp_path).slow():  # so that it is not archived
                    config = put(saver, first, "a2", {"plan": "PARIS", "log": ["p1", "p2"]})
                    one.kill()
                with run_daemon(tmp_path / "two", key_file=one.key_file, **flags) as two:
                    socket.unlink()
                    socket.symlink_to(two.socket)
                    with StatewardSaver(two.target) as other:
                        assert other.get_tuple(config) is None
                        put(other, first, "b2", {"plan": "ROME", "log": ["p1", "r2"]})
                        values = {"plan": "PARIS", "log": ["p1", "p2", "p3"]}
                        if owns:
                            with pytest.raises(VersionMismatch):
                                put(saver, config, "a3", values)
                            return
                        found = other.get_tuple(put(saver, config, "a3", values))
                        assert found is not None
                        assert found.checkpoint["channel_values"] == values
        finally:
            socket.unlink(missing_ok=True)


def test_a_deletion_beside_the_first_save() -> None:
    """The look finds no thread, and the save is committed then: the thread is looked for again, and deleted."""
    ref = ThreadRef("default", "t", "main")
    operation = delete_thread(ref)
    assert next(operation).method == "GetThread"  # type: ignore[union-attr]
    barrier: Any = operation.throw(ThreadNotFound("no thread", reason="THREAD_NOT_FOUND", metadata={}))
    assert (barrier.method, barrier.request.options.expected_uid) == ("DeleteThread", "0" * 32)
    assert operation.send(None).method == "GetThread"  # type: ignore[union-attr]
    deletion: Any = operation.send(GetThreadResponse(thread={"uid": "a" * 32}))
    assert (deletion.method, deletion.request.options.expected_uid) == ("DeleteThread", "a" * 32)
    with pytest.raises(StopIteration):
        operation.send(None)
