"""The danger: a full disk keeps halves of refused trees, names a tree that is not whole, or cannot even be swept."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from tests.daemon.process import eventually, started_with
from tests.daemon.wire import refusal_of, refused
from tests.faults.test_disk_full import tmpfs as tmpfs  # noqa: PLC0414  a fixture
from tests.trees.yard import KIB, Made, TreeWire, make, naming

from stateward._operations.threads import spans_of
from stateward.testing import Daemon, run_daemon
from stateward.v1.checkpoint_service_pb2 import SaveRequest
from stateward.v1.thread_service_pb2 import DeleteThreadRequest, PruneThreadRequest


@pytest.fixture
def small(tmpfs: Path) -> Iterator[Daemon]:
    """A daemon on a disk of 8 MiB, which sweeps all the time."""
    with (
        started_with({"ARCHIVE_FAULTS_BLOBS_KEPT_S": "0.5"}),
        run_daemon(tmpfs / "data", sweep_interval="0.1") as daemon,
    ):
        yield daemon


def tree(number: int) -> Made:
    return make({b"%d" % number: {b"%d" % each: os.urandom(50 * KIB) for each in range(8)}})


def fill(yard: TreeWire) -> list[Made]:
    """Versions with trees, until the disk is full."""
    kept = list[Made]()
    while True:
        made = tree(len(kept))
        try:
            yard.keep(made, len(kept))
        except grpc.RpcError as error:
            reason = refusal_of(error).reason
            assert reason == "DISK_FULL"
            return kept
        kept.append(made)
        assert len(kept) < 60, "it never got full"


def test_a_full_disk_loses_no_tree(small: Daemon) -> None:
    """What was answered is there, and of what was refused no file. A prune makes room, also over a restart."""
    yard = TreeWire(small)
    kept = fill(yard)
    assert len(kept) > 3
    eventually(lambda: len(yard.files()) == yard.stat().packs)
    assert yard.findings("", "t") == []
    yard.close()
    small.kill()
    small.start()
    yard = TreeWire(small)
    for version, made in enumerate(kept, 1):
        assert yard.listed(version)
        assert yard.fetch(chunks=list(made.chunks)) == list(made.chunks.values())
    going = spans_of(range(1, len(kept)))
    yard.threads.PruneThread(PruneThreadRequest(thread="t", versions=going), timeout=20)
    eventually(lambda: len(yard.files()) == yard.stat().packs <= 3)
    yard.keep(tree(99), len(kept))
    assert yard.findings("", "t") == []
    yard.close()


def test_objects_in_saves_stop_in_time(small: Daemon) -> None:
    """They leave room for a deletion, as all saves do."""
    yard, version = TreeWire(small), 0
    while True:
        made = make({b"f": os.urandom(200 * KIB)})
        save = naming(made.ref, version, objects=made.objects())
        try:
            yard.save(save)
        except grpc.RpcError as error:
            reason = refusal_of(error).reason
            break
        version += 1
        assert version < 100, "it never got full"
    assert reason == "DISK_FULL"
    assert refused(yard.checkpoints.Save, save).reason == "DISK_FULL"
    assert yard.thread("", "t").version == version
    yard.threads.DeleteThread(DeleteThreadRequest(thread="t"), timeout=20)
    eventually(lambda: is_taken(yard, naming(made.ref, 0, "u", made.objects())))  # into the pages that are free now
    yard.close()


def is_taken(yard: TreeWire, save: SaveRequest) -> bool:
    """Whether a save is taken by now."""
    try:
        yard.save(save)
    except grpc.RpcError:
        return False
    return True
