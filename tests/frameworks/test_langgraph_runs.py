"""The danger: deleting a run removes checkpoints of another run, or leaves a thread whose next checkpoint cannot be
written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from stateward.testing import Daemon, run_daemon

pytest.importorskip("langgraph.checkpoint.base", reason="the extra langgraph is not installed")
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base.id import uuid6

from stateward._operations.steps import Call
from stateward.langgraph import StatewardSaver
from stateward.langgraph._operations import get
from stateward.v1.checkpoint_pb2 import VersionRef


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with run_daemon(tmp_path_factory.mktemp("langgraph") / "data") as daemon:
        yield daemon


def put(saver: StatewardSaver, config: Any, run_id: str, **values: Any) -> Any:
    """Writes a checkpoint after the one that `config` names, and one pending write for it."""
    versions: Any = {name: str(uuid6()) for name in values}
    checkpoint: Any = {**empty_checkpoint(), "id": str(uuid6()), "channel_values": values, "channel_versions": versions}
    made = saver.put(config, checkpoint, {"run_id": run_id}, versions)  # type: ignore[typeddict-unknown-key]
    saver.put_writes(made, [("a", run_id)], "task")
    return made


def place(thread: str, namespace: str = "") -> Any:
    """A config that names a branch."""
    return {"configurable": {"thread_id": thread, "checkpoint_ns": namespace}}


def test_the_checkpoint_before_the_run_is_the_newest_again(daemon: Daemon) -> None:
    """The next checkpoint continues from it."""
    with StatewardSaver(daemon.target) as saver:
        first = put(saver, place("a"), "one", a=1)
        put(saver, put(saver, first, "two", a=2), "two", a=3)
        saver.delete_for_runs(["two"])
        found = saver.get_tuple(place("a"))
        assert found is not None
        assert found.config == first
        put(saver, first, "three", a=4)
        values = [each.checkpoint["channel_values"] for each in saver.list(place("a"))]
    assert values == [{"a": 4}, {"a": 1}]


def test_a_thread_of_which_nothing_is_left_is_removed(daemon: Daemon) -> None:
    """With its key."""
    with StatewardSaver(daemon.target) as saver, daemon.client() as client:
        put(saver, place("b"), "one", a=1)
        put(saver, place("b", "inner"), "one", a=1)
        saver.delete_for_runs(["one"])
        assert saver.get_tuple(place("b")) is None
        assert "b" not in [info.name for info in client.threads()]
        put(saver, place("b"), "again", a=2)
        assert len(list(saver.list(place("b")))) == 1


def test_a_root_without_checkpoints_is_empty_and_can_be_written(daemon: Daemon) -> None:
    """The checkpoints of a subgraph stay."""
    with StatewardSaver(daemon.target) as saver:
        old = put(saver, place("c"), "gone", a=1)
        inner = put(saver, place("c", "inner"), "stays", b=1)
        saver.delete_for_runs(["gone"])
        assert saver.get_tuple(place("c")) is None
        assert saver.get_tuple(old) is None
        assert list(saver.list(place("c"))) == []
        assert [each.config for each in saver.list(place("c", "inner"))] == [inner]
        made = put(saver, place("c"), "new", a=2)
        found = saver.get_tuple(place("c"))
        assert found is not None
        assert (found.config, found.parent_config) == (made, None)
        assert found.checkpoint["channel_values"] == {"a": 2}


@pytest.mark.parametrize("is_made_again", [False, True], ids=["gone", "made again"])
@pytest.mark.parametrize("cut", ["prune", "run", "run without a root"])
def test_a_thread_that_is_deleted_meanwhile(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, cut: str, is_made_again: bool
) -> None:
    """Nothing is left to be removed from it; the next thread of the name keeps what is of another run."""
    thread = f"{cut} {is_made_again}"
    with StatewardSaver(daemon.target) as saver, StatewardSaver(daemon.target) as other:
        first = put(saver, place(thread), "gone", a=1)
        put(saver, place(thread, "inner"), "stays", b=1)
        put(saver, first, "gone" if "root" in cut else "stays", a=2)
        session, deleted = saver._blocking._session, list[str]()
        perform = session.perform

        def delete_first(step: Any) -> Any:
            if isinstance(step, Call) and step.method in ("PruneThread", "Save") and not deleted:
                deleted.append(thread)
                other.delete_thread(thread)
                if is_made_again:
                    put(other, place(thread), "next", a=3)
            return perform(step)

        monkeypatch.setattr(session, "perform", delete_first)
        if cut == "prune":
            saver.prune([thread])
        else:
            saver.delete_for_runs(["gone"])
        assert deleted == [thread]
        assert [each.metadata["run_id"] for each in other.list(place(thread))] == ["next"] * is_made_again  # type: ignore[typeddict-item]


def test_a_version_with_another_digest_is_not_there(daemon: Daemon) -> None:
    """What was listed may be of a thread that was deleted and made again since."""
    with StatewardSaver(daemon.target) as saver:
        put(saver, place("d"), "one", a=1)
        for digest, is_there in ((b"", True), (bytes(16), False)):
            exactly = VersionRef(version=1, digest=digest)
            found = saver._blocking._session.run(get(saver._refer("d"), saver.serde, exactly))
            assert (found is not None) == is_there
