"""The danger: a save that names its parent reads the disk, although the parent is the head, which is in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.daemon.store import hydrate, opened, save, write
from tests.daemon.wire import appends
from tests.messages import to_write

from stateward._operations.threads import spans_of
from stateward.v1.checkpoint_pb2 import VersionRef
from stateward.v1.checkpoint_service_pb2 import SaveRequest
from stateward.v1.thread_service_pb2 import PruneThreadRequest
from stateward_sidecar.errors import VersionPruned
from stateward_sidecar.store.clean import clear
from stateward_sidecar.store.journal import replay
from stateward_sidecar.store.store import Store
from stateward_sidecar.store.versions.save import SaveWrite


def prepare(store: Store, **fields: Any) -> tuple[SaveWrite, bool]:
    """A save, and whether memory was enough to prepare it."""
    request = to_write(SaveRequest, namespace="default", thread="t", request_id="new", diff=appends("x"), **fields)
    prepared, thread = SaveWrite(store.context, store.threads, request), store.threads.cached("default", "t")
    assert thread is not None
    return prepared, prepared.prepare_hot(thread)


def prune(store: Store, version: int) -> None:
    store.pruner.prune(PruneThreadRequest(namespace="default", thread="t", versions=spans_of([version])))


REFS = {
    "version": VersionRef(version=2), "id": VersionRef(checkpoint_id="two"),
    "any": VersionRef(checkpoint_id="two", branch="-"),
}  # fmt: skip


@pytest.mark.parametrize("branch", ["main", "side"])
@pytest.mark.parametrize("kind", REFS)
def test_the_head_as_parent_needs_no_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, branch: str, kind: str
) -> None:
    """Neither on the way to the writer nor in the writer is the parent's entry opened."""
    with opened(tmp_path) as store:
        save(store, "a", checkpoint_id="one", branch=branch)
        head = save(store, "b", checkpoint_id="two", branch=branch).version
        prepared, is_hot = prepare(store, parent=REFS[kind], branch=branch)
        assert is_hot

        def fail(*args: object) -> None:
            raise AssertionError("the parent was read from the disk")

        monkeypatch.setattr(replay, "read_entry", fail)
        assert write(store, prepared.run).parent_version == head


@pytest.mark.parametrize(
    "ref",
    [
        {"version": 1},
        {"checkpoint_id": "one"},
        {"checkpoint_id": "side"},
        {"tag": "none"},
        {"version": 9},
        {"checkpoint_id": "two", "branch": "side"},
        {"checkpoint_id": "side", "branch": "-"},
    ],
)
def test_another_parent_is_looked_up(tmp_path: Path, ref: dict[str, Any]) -> None:
    """Only the head is taken from memory: an older version, an id of another branch and a tag are not mistaken."""
    with opened(tmp_path) as store:
        save(store, "a", checkpoint_id="one")
        save(store, "b", checkpoint_id="two")
        save(store, "c", checkpoint_id="side", branch="side")
        assert not prepare(store, parent=VersionRef(**ref))[1]


def test_a_parent_that_was_the_head_stays_the_parent(tmp_path: Path) -> None:
    """A head that moves between the look-up and the writer changes nothing: the id still names the same version."""
    with opened(tmp_path) as store:
        save(store, "a", checkpoint_id="one")
        prepared, is_hot = prepare(store, parent=VersionRef(checkpoint_id="one"))
        save(store, "b", checkpoint_id="two")
        assert is_hot
        assert write(store, prepared.run).parent_version == 1


@pytest.mark.parametrize("branch", ["", "-"])
def test_an_id_that_was_used_again_names_the_new_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, branch: str
) -> None:
    """If an old parent is pruned between the look-up and the writer, and its id names another version, this one
    counts."""
    monkeypatch.setattr(clear, "REQUEST_WINDOW_ENTRIES", 2)  # as if a thousand entries and an hour were over
    monkeypatch.setattr(clear, "REQUEST_WINDOW_S", 0)
    with opened(tmp_path) as store:
        save(store, "a")
        save(store, "b", checkpoint_id="two")
        prepared, is_hot = prepare(store, parent=VersionRef(checkpoint_id="two", branch=branch))
        assert is_hot
        save(store, "c")
        prune(store, 2)
        save(store, "d", checkpoint_id="two")
        assert write(store, prepared.run).parent_version == 4
        assert [each.data for each in hydrate(store).state.logs["messages"].entries] == [b"a", b"b", b"c", b"d", b"x"]


def test_a_parent_that_was_pruned_is_no_parent(tmp_path: Path) -> None:
    """If the id names nothing else, the save is refused."""
    with opened(tmp_path) as store:
        save(store, "a", checkpoint_id="one")
        prepared, _ = prepare(store, parent=VersionRef(checkpoint_id="one"))
        save(store, "b")
        prune(store, 1)
        with pytest.raises(VersionPruned):
            write(store, prepared.run)
