"""The danger: the trees of one thread fill the disk of all, or a thread that is at its limit cannot go on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from tests.daemon.process import eventually, started_with
from tests.daemon.wire import NotRefused, Refusal, refused
from tests.daemon.wire import refusal_of as taken_apart
from tests.messages import to_write
from tests.trees.yard import KIB, Made, TreeWire, make, naming

from stateward._operations.threads import spans_of
from stateward.testing import run_daemon
from stateward.v1.backup_service_pb2 import ExportThreadRequest, ImportBegin, ImportThreadRequest
from stateward.v1.checkpoint_service_pb2 import HydrateRequest, SaveRequest
from stateward.v1.thread_service_pb2 import ForkThreadRequest, PruneThreadRequest, SetTagRequest
from stateward.v1.workspace_pb2 import TreeObjects
from stateward.v1.workspace_service_pb2 import ObjectsBegin, ReadTreeRequest, WriteObjectsRequest

LIMIT_KIB = 300


@pytest.fixture
def small(tmp_path: Path) -> Iterator[TreeWire]:
    """A daemon whose threads may have small trees, and which sweeps all the time."""
    with (
        started_with({"ARCHIVE_FAULTS_BLOBS_KEPT_S": "0.5"}),
        run_daemon(sweep_interval="0.1", max_workspace_size=f"{LIMIT_KIB}KiB") as running,
    ):
        yard = TreeWire(running)
        yield yard
        yard.close()


def tree(name: str, kib: int = 100) -> Made:
    """A tree of so many bytes that do not compress."""
    return make({name.encode(): {b"%d" % number: os.urandom(10 * KIB) for number in range(kib // 10)}})


def refusal_of(yard: TreeWire, made: Made, thread: str = "t") -> Refusal:
    messages = [
        WriteObjectsRequest(begin=ObjectsBegin(thread=thread)),
        WriteObjectsRequest(objects=TreeObjects(objects=made.objects())),
    ]
    return refused(yard.workspaces.WriteObjects, iter(messages))


def test_objects_beyond_the_limit_are_refused(small: TreeWire) -> None:
    """From a stream and from a save, with the limit by name; nothing of them is left. Everything else goes on."""
    first = tree("first", 200)
    small.keep(first)
    files = small.files()
    refusal = refusal_of(small, tree("more", 150))
    assert (refusal.reason, refusal.metadata["limit"]) == ("QUOTA_EXCEEDED", "workspace_bytes")
    assert refusal.metadata["maximum"] == str(LIMIT_KIB * KIB)
    small.keep(tree("another", 150), thread="other")  # each thread has its own
    reasons = list[str]()
    while not any(reasons):
        assert len(reasons) < 10, "saves went beyond the limit"
        inline = make({b"inline %d" % len(reasons): os.urandom(20 * KIB)})
        reasons.append(reason_of(small, naming(inline.ref, len(reasons) + 1, objects=inline.objects())))
    assert reasons[-1] == "QUOTA_EXCEEDED"
    version = small.thread("", "t").version
    small.save(naming(first.ref, version))  # whose objects are there
    plain = naming(first.ref, version + 1)
    plain.ClearField("workspace")
    small.save(plain)
    assert set(files) <= set(small.files())
    assert small.findings("", "t") == []


def reason_of(yard: TreeWire, save: SaveRequest) -> str:
    """Why a save is refused; empty if it is not."""
    try:
        return refused(yard.checkpoints.Save, save).reason
    except NotRefused:
        return ""


def test_pruned_versions_make_room(small: TreeWire) -> None:
    """The sweep gives back what they alone had."""
    small.keep(tree("first", 200))
    small.keep(tree("small", 10), 1)
    second = tree("second", 200)
    assert refusal_of(small, second).reason == "QUOTA_EXCEEDED"
    small.threads.PruneThread(PruneThreadRequest(thread="t", versions=spans_of([1])), timeout=20)
    eventually(lambda: small.stat().stored_bytes < 100 * KIB)
    small.keep(second, 2)
    assert small.findings("", "t") == []
    assert small.missing(second) == []


def test_a_copy_counts_what_it_has(small: TreeWire) -> None:
    """Also over a restart: it is at its limit as the original is."""
    small.keep(tree("first", 200))
    small.threads.ForkThread(ForkThreadRequest(thread="t", new_thread="copy"), timeout=20)
    small.daemon.kill()
    small.daemon.start()
    for name in ("t", "copy"):
        assert refusal_of(small, tree("more", 150), name).reason == "QUOTA_EXCEEDED"
        small.send(tree("little", 20).objects(), name)


def test_the_oldest_trees_go_first(small: TreeWire) -> None:
    """An agent that makes snapshots for ever goes on: old versions lose their files, and nothing else. Heads and tags
    keep theirs."""
    trees = [tree(f"{number}", 60) for number in range(14)]
    for number, each in enumerate(trees):
        eventually(lambda each=each: is_sent(small, each))
        assert small.save(naming(each.ref, number)).version == number + 1
        if number == 2:
            small.threads.SetTag(to_write(SetTagRequest, thread="t", tag="kept", version={"version": 3}))
    shown = [small.checkpoint(version) for version in range(1, 15)]
    dropped = [each.version for each in shown if each.workspace_dropped]
    assert len(dropped) >= 6
    assert dropped == [version for version in range(1, dropped[-1] + 1) if version != 3]
    assert small.listed(3)
    for version in range(1, 15):
        state = small.hydrate(HydrateRequest(thread="t", version={"version": version}))
        assert state.slots["s"].data == b"%d" % (version - 1)
        if version in dropped:
            request = ReadTreeRequest(thread="t", version={"version": version})
            assert refused(small.workspaces.ReadTree, request).reason == "VERSION_PRUNED"
            assert not shown[version - 1].HasField("workspace")
        else:
            assert small.fetch(chunks=list(trees[version - 1].chunks)) == list(trees[version - 1].chunks.values())
    assert small.findings("", "t") == []
    small.daemon.kill()
    small.daemon.start()
    assert [small.checkpoint(version).workspace_dropped for version in (1, 3, 14)] == [True, False, False]
    fork = to_write(ForkThreadRequest, thread="t", new_thread="copy", version={"version": 1})
    small.threads.ForkThread(fork, timeout=20)
    assert not small.checkpoint(thread="copy").HasField("workspace")
    assert small.findings("", "copy") == []
    answers = small.backups.ExportThread(ExportThreadRequest(thread="t"), timeout=60)
    parts = [part for answer in answers for part in answer.parts]
    begin = ImportThreadRequest(begin=to_write(ImportBegin, thread="back", request_id="back"))
    small.backups.ImportThread(iter([begin, *(ImportThreadRequest(parts=[part]) for part in parts)]), timeout=60)
    assert small.listed(3, "back") == small.listed(3)


def is_sent(yard: TreeWire, made: Made) -> bool:
    """Sends objects, unless the limit refuses them."""
    reason = ""
    try:
        yard.send(made.objects())
    except grpc.RpcError as error:
        reason = taken_apart(error).reason
    assert reason in ("", "QUOTA_EXCEEDED")
    return not reason
