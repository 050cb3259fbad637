"""The danger: a tree is checked, kept or shown by a plain save only, and not by the other ways in which a version comes
about or is seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.daemon.process import fleet
from tests.daemon.wire import TIMEOUT_S, refused
from tests.messages import to_write
from tests.service.agents import Agent, new_id
from tests.trees.test_trees_travel import archived, blobs, take
from tests.trees.yard import Made, TreeWire, chunk, grown, make, naming

from stateward.v1.archive_service_pb2 import RestoreArchiveRequest, VerifyArchiveRequest
from stateward.v1.call_service_pb2 import RunCallsRequest, StreamedCall
from stateward.v1.checkpoint_pb2 import DURABILITY_ARCHIVED
from stateward.v1.checkpoint_service_pb2 import (
    ON_MISMATCH_FORK,
    BatchSaveRequest,
    HydrateRequest,
    ListCheckpointsRequest,
    SaveRequest,
)
from stateward.v1.thread_service_pb2 import MoveBranchRequest, SetTagRequest, WatchRequest
from stateward.v1.workspace_pb2 import TreeObjects
from stateward.v1.workspace_service_pb2 import ObjectsBegin, ReadTreeRequest, WriteObjectsRequest

TREE = grown(1, 20)


def request(made: Made, version: int, thread: str = "t") -> SaveRequest:
    return naming(made.ref, version, thread, made.objects())


def test_a_batch_names_a_tree_in_each_save(yard: TreeWire) -> None:
    """Of new threads and of one that is there; a tree that lacks something fails the whole batch, by its item."""
    one, other = make(TREE), make(grown(2, 10))
    answer = yard.checkpoints.BatchSave(BatchSaveRequest(saves=[request(one, 0, "a"), request(other, 0, "b")]))
    assert [each.version for each in answer.saves] == [1, 1]
    assert yard.restored(thread="a") == TREE
    lacking = request(make({b"x": b"y"}), 1, "b")
    del lacking.objects[1:]
    refusal = refused(yard.checkpoints.BatchSave, BatchSaveRequest(saves=[request(other, 1, "a"), lacking]))
    assert (refusal.reason, refusal.field) == ("INVALID_FIELD", "saves[1].workspace")
    assert yard.thread("", "a").version == 1
    assert yard.findings("", "a") == yard.findings("", "b") == []


@pytest.mark.parametrize("is_there", [True, False], ids=["a thread that is there", "a new thread"])
def test_a_batch_names_what_a_save_before_brings(yard: TreeWire, is_there: bool) -> None:
    """The saves of a batch are made in their order, so the second one needs no objects of its own."""
    made = make(TREE)
    if is_there:
        yard.save(request(make({}), 0))
    first, second = request(made, int(is_there)), naming(made.ref, 0)
    second.branch = "side"
    second.parent.version = 0
    answer = yard.checkpoints.BatchSave(BatchSaveRequest(saves=[first, second]))
    assert [each.version for each in answer.saves] == [1 + is_there, 2 + is_there]
    assert yard.listed(branch="side") == yard.listed()
    refusal = refused(yard.checkpoints.BatchSave, BatchSaveRequest(saves=[
        naming(made.ref, 1 + is_there), to_side(naming(make({b"x": b"y"}).ref, 2 + is_there)),
    ]))
    assert (refusal.reason, refusal.field) == ("INVALID_FIELD", "saves[1].workspace")
    assert yard.findings("", "t") == []


def to_side(save: SaveRequest) -> SaveRequest:
    save.branch = "side"
    return save


def test_a_writer_names_trees(yard: TreeWire) -> None:
    """Frame by frame; one without its objects is refused, and the stream goes on after a reset."""
    made, more = make(TREE), make({**TREE, b"more": b"more"})
    stream = Agent(yard, "default", "w", "t").open()
    stream.send(workspace=made.ref, objects=made.objects())
    assert stream.next().saved.save.version == 1
    stream.send(workspace=made.ref)
    assert stream.next().saved.save.version == 2
    stream.send(workspace=more.ref)
    assert stream.next().refused.status.code == 3
    stream.cut()
    assert yard.restored(2) == TREE


def test_calls_on_a_stream_name_trees(yard: TreeWire) -> None:
    """As a save by itself."""
    made = make(TREE)
    lacking = naming(make({b"n": b"o"}).ref, 0, "u")
    calls = [StreamedCall(call=1, save=request(made, 0)), StreamedCall(call=2, save=lacking)]
    answers = {
        each.call: each
        for message in yard.calls.RunCalls(iter([RunCallsRequest(calls=calls)]), timeout=TIMEOUT_S)
        for each in message.answers
    }
    assert answers[1].save.version == 1
    assert answers[2].refused.code == 3
    assert yard.restored() == TREE


def test_a_save_that_forks_has_its_tree(yard: TreeWire) -> None:
    """On the branch that it makes; a moved head and a tag lead to the tree of their version."""
    first, second = make(TREE), make(grown(2, 10))
    yard.save(request(first, 0))
    yard.save(request(second, 1))
    late = request(make({b"late": b"late"}), 1)
    late.on_mismatch, late.fork_branch = ON_MISMATCH_FORK, "late"
    assert yard.save(late).branch == "late"
    assert [path for path, _ in yard.listed(branch="late")] == [b"late"]
    yard.threads.SetTag(to_write(SetTagRequest, thread="t", tag="good", version={"version": 1}))
    tagged = yard.workspaces.ReadTree(ReadTreeRequest(thread="t", version={"tag": "good"}))
    assert (tagged.tree, tagged.version) == (first.ref, 1)
    yard.threads.MoveBranch(to_write(MoveBranchRequest, thread="t", version={"version": 1}))
    assert yard.listed() == yard.listed(1)


def test_whoever_sees_a_version_sees_its_tree(yard: TreeWire) -> None:
    """Lists, states and watches; objects alone are no event."""
    made = make(TREE)
    yard.send([chunk(b"before")])
    watch = yard.threads.Watch(WatchRequest(thread="t"), timeout=TIMEOUT_S)
    next(watch)
    yard.send(made.objects())
    yard.save(naming(made.ref))
    told = list[Any]()
    while not told:
        told += [event for event in next(watch).events if event.WhichOneof("what")]
    assert [event.checkpoint.workspace for event in told] == [made.ref]
    (listed,) = yard.checkpoints.ListCheckpoints(ListCheckpointsRequest(thread="t")).checkpoints
    assert listed.workspace == made.ref
    assert yard.checkpoints.Hydrate(HydrateRequest(thread="t")).checkpoint.workspace == made.ref


def test_a_lease_is_checked_if_it_is_given(yard: TreeWire) -> None:
    """Anybody may write objects; nobody with the token of a lease that is lost."""
    lost = Agent(yard, "default", "one", "t").take()
    Agent(yard, "default", "two", "t").take(take_over=True)
    yard.send([chunk(b"x")])
    messages = [
        WriteObjectsRequest(begin=to_write(ObjectsBegin, thread="t", lease_token=lost, request_id=new_id())),
        WriteObjectsRequest(objects=TreeObjects(objects=[chunk(b"y")])),
    ]
    assert refused(yard.workspaces.WriteObjects, iter(messages)).reason == "LEASE_HELD"


def test_archived_objects_are_in_the_bucket(tmp_path: Path) -> None:
    """WriteObjects waits for the packs, too. The check of the archive and a restore find all of them."""
    with fleet(tmp_path) as machines:
        first = TreeWire(machines.machine("first"))
        made = make(TREE)
        answer = first.send(made.objects(), durability=DURABILITY_ARCHIVED)
        assert answer.receipt.durability == DURABILITY_ARCHIVED
        assert len(blobs(machines)) == 2
        archived(first, TREE)
        first.daemon.kill()
        other = TreeWire(machines.machine("other"))
        other.archive.RestoreArchive(RestoreArchiveRequest(), timeout=60)
        list(other.archive.RestoreArchive(RestoreArchiveRequest(), timeout=60))
        assert len(other.files()) == 2
        found = list(other.archive.VerifyArchive(VerifyArchiveRequest(data_percent=100), timeout=60))
        assert not [each for each in found if each.HasField("finding")]
        assert other.restored() == TREE
        take(other)
        assert other.findings("", "t") == []
        pack = next(path for path in machines.bucket.rglob("*.blob"))
        data = bytearray(pack.read_bytes())
        data[len(data) // 2] ^= 1
        pack.write_bytes(data)
        found = list(other.archive.VerifyArchive(VerifyArchiveRequest(data_percent=100), timeout=60))
        assert [each for each in found if each.HasField("finding")]
        for each in (first, other):
            each.close()


@pytest.mark.parametrize("name", ["FindMissing", "ReadTree", "StatWorkspace"])
def test_a_namespace_has_its_own(yard: TreeWire, name: str) -> None:
    """Objects of a thread are not those of the same name elsewhere."""
    yard.keep(make(TREE))
    asked: Any = getattr(yard.workspaces, name)
    from stateward.v1 import workspace_service_pb2

    kind = getattr(workspace_service_pb2, f"{name}Request")
    assert refused(asked, kind(namespace="other", thread="t")).reason == "THREAD_NOT_FOUND"


def test_no_version_names_a_tree_of_another_thread(yard: TreeWire) -> None:
    """Each thread has its own objects."""
    made = make(TREE)
    yard.keep(made)
    refusal = refused(yard.checkpoints.Save, naming(made.ref, 0, "u"))
    assert (refusal.reason, refusal.field) == ("INVALID_FIELD", "workspace")
