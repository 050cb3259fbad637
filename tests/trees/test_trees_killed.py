"""The danger: a kill during a write leaves a version that names a tree which is not whole, or files for ever."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
from tests.crash.faulty_daemon import FaultyDaemon
from tests.daemon.process import eventually, started_with
from tests.trees.yard import TreeWire, grown, make, naming

from stateward._operations.threads import spans_of
from stateward.v1.thread_service_pb2 import DeleteThreadRequest, PruneThreadRequest

FIRST, SECOND = grown(1, 30), grown(2, 90, large=True)
SWEEPS = {"ARCHIVE_FAULTS_BLOBS_KEPT_S": "0.5"}
# Channels that are never closed: see Connection.close in the client.
BRITTLE: list[TreeWire] = []


@pytest.fixture
def faulty(tmp_path: Path) -> Iterator[FaultyDaemon]:
    """A daemon with a thread, and a version that names a tree in two packs."""
    short = Path("/tmp", f"sw-{os.getpid()}-{abs(hash(tmp_path)) % 10**6}")
    short.mkdir(mode=0o700)
    daemon = FaultyDaemon(short, tmp_path / "data", sweep_interval=0, log_level="warning")
    daemon.start()
    try:
        yard = TreeWire(daemon)
        yard.keep(make(FIRST))
        yard.close()
        yield daemon
    finally:
        daemon.kill()


def die_at(daemon: FaultyDaemon, where: str, action: Callable[[TreeWire], object], nth: int = 1) -> TreeWire:
    """Does something during which the daemon dies, and starts it again. Returns it once it is tidy."""
    daemon.stop()
    daemon.start_faulty(where, nth)
    yard = TreeWire(daemon)
    with suppress(grpc.RpcError):
        action(yard)
    BRITTLE.append(yard)
    daemon.wait_until_dead()
    daemon.start()
    yard = TreeWire(daemon)
    eventually(lambda: not [name for name in yard.files() if name.startswith(".")])
    return yard


def is_whole(yard: TreeWire) -> int:
    """Every version's tree is as it was kept, and nothing is wrong. Returns the newest version."""
    version = yard.thread("", "t").version
    for number, tree in enumerate((FIRST, SECOND)[:version], 1):
        assert yard.restored(number) == tree
    assert yard.findings("", "t") == []
    assert len(yard.files()) == yard.stat().packs
    return version


WRITING = {
    "before the file": "<storage.blobfiles:NewBlobFile.__init__",
    "before it is synced": "<storage.blobfiles:NewBlobFile.publish",
    "when it is durable": ">storage.blobfiles:NewBlobFile.publish",
    "before the transaction": "<store.trees.objectwrite:ObjectsWrite.commit",
    "after the pack's entry": "<store.kinds.objects:put_rows",
    "after the rows": ">store.kinds.objects:put_rows",
    "after the commit": "<service.calls.calls:_finish",
    "before the next packs": "<store.trees.objectwrite:ObjectsWrite.finish",
}


@pytest.mark.parametrize("nth", [1, 2], ids=["first pack", "second pack"])
@pytest.mark.parametrize("where", WRITING.values(), ids=WRITING)
def test_kill_while_objects_are_written(faulty: FaultyDaemon, where: str, nth: int) -> None:
    """No version names anything that is not there. The client asks what is missing, and goes on."""
    if nth == 2 and where.endswith("finish"):
        pytest.skip("it is called once")
    made = make(SECOND)
    yard = die_at(faulty, where, lambda yard: yard.send(made.objects()), nth)
    eventually(lambda: len(yard.files()) == yard.stat().packs)
    assert is_whole(yard) == 1
    yard.keep(made, 1)
    assert is_whole(yard) == 2
    yard.close()


SAVING = {
    "before the objects": "<store.trees.naming:NamedTree.put",
    "behind the objects": ">store.trees.naming:NamedTree.put",
    "before the commit": "<storage.writer:Writer._commit",
    "after the commit": "<service.calls.calls:_finish",
}


@pytest.mark.parametrize("where", SAVING.values(), ids=SAVING)
def test_kill_while_a_save_brings_objects(faulty: FaultyDaemon, where: str) -> None:
    """Objects and version are there together, or neither is. The same save again is answered once."""
    made = make({**FIRST, b"new": b"small " * 100})
    missing = [each for each in made.objects() if each.digest not in make(FIRST).directories]
    request = naming(made.ref, 1, objects=[each for each in missing if each.digest not in make(FIRST).chunks])
    yard = die_at(faulty, where, lambda yard: yard.save(request))
    before = yard.thread("", "t").version
    answer = yard.save(request)
    assert answer.version == 2
    assert answer.receipt.replayed == (before == 2)
    assert yard.restored(2) == {**FIRST, b"new": b"small " * 100}
    assert yard.restored(1) == FIRST
    assert yard.findings("", "t") == []
    yard.close()


SWEEPING = {
    "before rows go": "<store.clean.objectsweep:ObjectSweeper._remove_rows",
    "after rows went": "<store.clean.objectsweep:ObjectSweeper._move",
    "while objects move": "<store.clean.objectsweep:ObjectSweeper._commit",
    "when a new pack is durable": ">storage.blobfiles:NewBlobFile.publish",
    "after they moved": "<store.clean.objectsweep:ObjectSweeper._remove_lists",
    "inside the removal of packs": ">store.clean.objectsweep:ObjectSweeper._remove_some",
    "before the files go": "<storage.blobfiles:BlobFiles.remove",
    "before what is removed is cleared": "<store.clean.clear:Clearer.clear",
}


@pytest.mark.parametrize("where", SWEEPING.values(), ids=SWEEPING)
def test_kill_while_a_sweep_collects(tmp_path: Path, where: str) -> None:
    """Every version's tree is whole afterwards, and what nothing names goes with a later sweep."""
    short = Path("/tmp", f"sw-{os.getpid()}-{abs(hash(tmp_path)) % 10**6}")
    short.mkdir(mode=0o700)
    daemon = FaultyDaemon(short, tmp_path / "data", sweep_interval="0.1", log_level="warning")
    kept = {b"%d" % number: os.urandom(3000) for number in range(40)}
    few = {name: kept[name] for name in (b"1", b"2")}
    with started_with(SWEEPS):
        try:
            daemon.start_faulty(where, 1)
            yard = TreeWire(daemon)
            with suppress(grpc.RpcError):
                yard.keep(make(kept))
                yard.keep(make(few), 1)
                yard.threads.PruneThread(PruneThreadRequest(thread="t", versions=spans_of([1])), timeout=20)
            BRITTLE.append(yard)
            daemon.wait_until_dead()
            daemon.start()
            yard = TreeWire(daemon)
            if yard.thread("", "t").version < 2:  # it died before that was asked
                yard.keep(make(few), yard.thread("", "t").version)
            if yard.thread("", "t").retained_versions > 1:
                yard.threads.PruneThread(PruneThreadRequest(thread="t", versions=spans_of([1])), timeout=20)
            eventually(lambda: yard.stat().chunks == 2)
            eventually(lambda: len(yard.files()) == yard.stat().packs == 2)
            assert yard.restored() == few
            assert yard.findings("", "t") == []
            yard.close()
        finally:
            daemon.kill()


def test_kill_while_a_thread_is_deleted(faulty: FaultyDaemon) -> None:
    """Its packs go with it at the next start."""
    delete = DeleteThreadRequest(thread="t")
    yard = die_at(faulty, "<storage.blobfiles:BlobFiles.empty", lambda yard: yard.threads.DeleteThread(delete))
    eventually(lambda: yard.files() == [])
    yard.close()
