"""The danger: a version reaches another machine before the objects of its tree, or a machine that takes a thread over
does not know which objects there are."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.daemon.process import Fleet, Pair, eventually, fleet, started_with
from tests.daemon.wire import TIMEOUT_S, refused
from tests.trees.yard import TreeWire, grown, make, naming

from stateward._operations.threads import spans_of
from stateward.v1.checkpoint_pb2 import DURABILITY_ARCHIVED
from stateward.v1.thread_service_pb2 import (
    ATTACH_MODE_TAKE_OVER,
    AttachRequest,
    DeleteThreadRequest,
    PruneThreadRequest,
    WaitDurableRequest,
)
from stateward.v1.workspace_pb2 import TreeObjects
from stateward.v1.workspace_service_pb2 import ObjectsBegin, WriteObjectsRequest


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Fleet]:
    with fleet(tmp_path) as made:
        yield made


def archived(yard: TreeWire, tree: dict[bytes, Any], version: int = 0, *, inline: bool = False) -> None:
    """A version with a tree, in the bucket."""
    made = make(tree)
    missing = made.objects() if not version else yard.missing(made)
    if not inline:
        yard.send(missing)
    request = naming(made.ref, version, objects=missing if inline else ())
    request.options.durability = DURABILITY_ARCHIVED
    assert yard.checkpoints.Save(request, timeout=60).receipt.durability == DURABILITY_ARCHIVED


def take(yard: TreeWire) -> None:
    yard.threads.Attach(AttachRequest(thread="t", mode=ATTACH_MODE_TAKE_OVER), timeout=60)


def blobs(machines: Fleet) -> list[str]:
    return sorted(key for key in machines.objects() if ".blob" in key)


@pytest.mark.parametrize("inline", [True, False], ids=["in the save", "in packs"])
def test_a_tree_is_restored_on_another_machine(machines: Fleet, inline: bool) -> None:
    """The first machine is lost after ARCHIVED was answered. The next one goes on, and sends only what is new."""
    first, second = grown(1, 60), grown(2, 20)
    lost = machines.machine("first")
    yard = TreeWire(lost)
    archived(yard, first, inline=inline)
    yard.close()
    lost.kill()
    other = TreeWire(machines.machine("other"))
    assert other.restored(1) == first
    assert other.missing(make(first)) == []
    take(other)
    archived(other, {**first, **second}, 1)
    assert other.restored(2) == {**first, **second}
    assert other.restored(1) == first
    assert other.findings("", "t") == []
    other.close()
    third = TreeWire(machines.machine("third"))
    assert third.differences(base={"version": 1})
    assert third.restored(2) == {**first, **second}
    third.close()


def test_a_pack_is_uploaded_once(machines: Fleet) -> None:
    """Neither later versions nor the next owner upload it again. Lists of a tree fetch no chunks."""
    tree = grown(3, 80, large=True)
    lost = machines.machine("first")
    yard = TreeWire(lost)
    archived(yard, tree)
    before = blobs(machines)
    archived(yard, {**tree, b"new": b"small"}, 1, inline=True)
    assert blobs(machines) == before
    yard.close()
    lost.kill()
    machine = machines.machine("other")
    other = TreeWire(machine)
    listed = other.listed()
    assert len(listed) > 80
    stored = sum(path.stat().st_size for path in (machine.data_dir / "blobs").rglob("*") if path.is_file())
    assert stored < 100_000
    take(other)
    archived(other, {**tree, b"newer": b"small"}, 2, inline=True)
    assert blobs(machines) == before
    assert other.restored(1) == tree
    other.close()


def test_a_deleted_thread_leaves_no_pack(machines: Fleet) -> None:
    """Neither here nor in the bucket."""
    machine = machines.machine("first")
    yard = TreeWire(machine)
    archived(yard, grown(4, 30))
    assert blobs(machines)
    yard.threads.DeleteThread(DeleteThreadRequest(thread="t"), timeout=TIMEOUT_S)
    eventually(lambda: not blobs(machines))
    eventually(lambda: not yard.files())
    yard.close()


def test_objects_that_another_machine_has_moved(tmp_path: Path) -> None:
    """The next owner collects, packs anew, and gives the thread back: the first machine finds what is left."""
    kept = {b"%d" % number: os.urandom(3000) for number in range(40)}
    few = {name: kept[name] for name in (b"1", b"2")}
    with fleet(tmp_path) as machines:
        first = TreeWire(machines.machine("first"))
        archived(first, kept)
        archived(first, few, 1)
        with started_with({"ARCHIVE_FAULTS_BLOBS_KEPT_S": "0.5"}):
            other = TreeWire(machines.machine("other", sweep_interval="0.1"))
        take(other)
        assert other.restored(1) == kept
        other.threads.PruneThread(PruneThreadRequest(thread="t", versions=spans_of([1])), timeout=20)
        eventually(lambda: other.stat().chunks == 2)
        eventually(lambda: len(other.files()) == other.stat().packs == 2)
        archived(other, {**few, b"more": b"more"}, 2, inline=True)
        assert other.findings("", "t") == []
        take(first)
        assert first.restored(2) == few
        assert first.restored(3) == {**few, b"more": b"more"}
        assert first.missing(make(kept))
        archived(first, kept, 3)
        assert first.restored(4) == kept
        assert first.findings("", "t") == []
        eventually(lambda: len(blobs(machines)) == first.stat().packs)
        for each in (first, other):
            each.close()


def test_a_thread_is_taken_during_an_upload(machines: Fleet) -> None:
    """The rest of it is refused, and neither machine lacks anything that a version names."""
    first, other = TreeWire(machines.machine("first")), TreeWire(machines.machine("other"))
    tree = grown(6, 20)
    archived(first, tree)
    late = make(grown(7, 20))

    def slowly() -> Iterator[WriteObjectsRequest]:
        yield WriteObjectsRequest(begin=ObjectsBegin(thread="t"))
        yield WriteObjectsRequest(objects=TreeObjects(objects=late.objects()[:10]))
        take(other)
        archived(other, {b"other": b"went on"}, 1, inline=True)
        save = naming(make(tree).ref, 1)
        save.options.durability = DURABILITY_ARCHIVED
        assert refused(first.checkpoints.Save, save, timeout=60).reason in ("NOT_OWNER", "FENCED")
        yield WriteObjectsRequest(objects=TreeObjects(objects=late.objects()[10:]))

    assert refused(first.workspaces.WriteObjects, slowly()).reason in ("NOT_OWNER", "FENCED")
    assert other.restored(1) == tree
    assert other.findings("", "t") == []
    take(first)
    assert first.restored(2) == {b"other": b"went on"}
    assert len(first.missing(late)) == len(late.objects())
    archived(first, grown(7, 20), 2)
    assert first.restored(3) == grown(7, 20)
    assert first.findings("", "t") == []
    for each in (first, other):
        each.close()


def test_trees_are_kept_while_the_bucket_is_away(tmp_path: Path) -> None:
    """Here, and in the bucket once it is back: HEAD never names a version without its packs."""
    pair = Pair(tmp_path)
    try:
        machine = pair.machine("first")
        first = TreeWire(machine)
        archived(first, {b"before": b"before"})
        pair.go_away()
        tree = grown(8, 40)
        made = make(tree)
        first.send(made.objects())
        saved = first.save(naming(made.ref, 1))
        assert first.restored(2) == tree
        pair.come_back()
        wait = WaitDurableRequest(thread="t", receipt=saved.receipt, durability=DURABILITY_ARCHIVED)
        assert first.threads.WaitDurable(wait, timeout=60).receipt.durability == DURABILITY_ARCHIVED
        first.close()
        machine.kill()
        other = TreeWire(pair.machine("other"))
        assert other.restored(2) == tree
        other.close()
    finally:
        pair.close()
