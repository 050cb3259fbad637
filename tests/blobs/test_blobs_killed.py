"""The danger: a kill in the middle of writing, copying or deleting a blob loses one that was answered, or leaves its
file for ever."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
from tests.blobs.desk import MIB, BlobWire, messages, names, random_bytes
from tests.crash.faulty_daemon import FaultyDaemon
from tests.daemon.process import eventually
from tests.daemon.wire import refused

from stateward.v1.blob_service_pb2 import BlobBegin, StatBlobRequest, WriteBlobRequest
from stateward.v1.thread_pb2 import ThreadOptions

DATA = random_bytes(3 * MIB + 7)
# Channels that are never closed: see Connection.close in the client.
BRITTLE: list[BlobWire] = []


@pytest.fixture
def faulty(tmp_path: Path) -> Iterator[FaultyDaemon]:
    """A daemon with a thread, a blob and a version that names it."""
    short = Path("/tmp", f"sw-{os.getpid()}-{abs(hash(tmp_path)) % 10**6}")
    short.mkdir(mode=0o700)
    daemon = FaultyDaemon(short, tmp_path / "data", sweep_interval=0, log_level="warning")
    daemon.start()
    try:
        desk = BlobWire(daemon)
        desk.save(names(desk.put(b"first")))
        desk.close()
        yield daemon
    finally:
        daemon.kill()


def die_at(daemon: FaultyDaemon, where: str, action: Callable[[BlobWire], object], nth: int = 1) -> None:
    """Does something during which the daemon dies, and starts it again."""
    daemon.stop()
    daemon.start_faulty(where, nth)
    desk = BlobWire(daemon)
    with suppress(grpc.RpcError):
        action(desk)
    BRITTLE.append(desk)
    daemon.wait_until_dead()
    daemon.start()


def settled(daemon: FaultyDaemon, files: int) -> BlobWire:
    """The daemon once it has cleared away what the crash left: only so many files are there."""
    desk = BlobWire(daemon)
    eventually(lambda: len(desk.files()) == files)
    assert desk.findings() == []
    return desk


BEFORE_THE_ENTRY = {
    "before the file": "<storage.blobfiles:NewBlobFile.__init__",
    "after its first bytes": ">storage.blobfiles:NewBlobFile.write",
    "before it is synced": "<storage.blobfiles:NewBlobFile.publish",
    "before its directory is synced": "<storage.blobfiles:BlobFiles.sync",
    "when it is durable": ">storage.blobfiles:NewBlobFile.publish",
    "before the transaction": "<store.blobs.blobwrite:BlobWrite.commit",
    "inside the transaction": ">store.blobs.blobwrite:BlobWrite.commit",
}


@pytest.mark.parametrize("where", BEFORE_THE_ENTRY.values(), ids=BEFORE_THE_ENTRY)
def test_before_its_entry_is_committed_a_blob_is_nothing(faulty: FaultyDaemon, where: str) -> None:
    """No row, no file after the next start; the same write again is taken as new."""
    die_at(faulty, where, lambda desk: desk.put(DATA))
    desk = settled(faulty, files=1)
    again = desk.write(DATA)
    assert not again.existed
    assert desk.read(again.blob) == DATA
    assert desk.findings() == []
    desk.close()


def test_after_its_entry_is_committed_a_blob_is_there(faulty: FaultyDaemon) -> None:
    """Dead between commit and answer: the retry is told that it exists, and reads it."""
    die_at(faulty, "<service.calls.calls:_finish", lambda desk: desk.put(DATA), nth=1)
    desk = settled(faulty, files=2)
    again = desk.write(DATA)
    assert again.existed
    assert desk.read(again.blob) == DATA
    desk.close()


def test_kill_in_the_middle_of_a_stream(faulty: FaultyDaemon) -> None:
    """SIGKILL while bytes come: what was answered before is there, of the rest nothing."""
    desk = BlobWire(faulty)
    is_under_way = threading.Event()

    def slowly() -> Iterator[WriteBlobRequest]:
        yield WriteBlobRequest(begin=BlobBegin(thread="t"))
        for _ in range(3):
            yield WriteBlobRequest(data=DATA)
        is_under_way.set()
        threading.Event().wait(20)

    call = desk.blobs.WriteBlob.future(slowly())
    is_under_way.wait(20)
    answered = desk.put(DATA)
    assert any(path.name.startswith(".") for path in desk.files())
    faulty.kill()
    with suppress(grpc.RpcError):
        call.result(timeout=20)
    BRITTLE.append(desk)
    faulty.start()
    desk = settled(faulty, files=2)
    assert desk.read(answered) == DATA
    desk.close()


DELETING = {
    "before the key is destroyed": "<storage.keystore:KeyStore.erase_thread",
    "before the files are set aside": "<storage.blobfiles:BlobFiles.set_aside",
    "before they are removed": "<storage.blobfiles:BlobFiles.empty",
}


@pytest.mark.parametrize("where", DELETING.values(), ids=DELETING)
def test_a_deletion_takes_the_files_with_it(faulty: FaultyDaemon, where: str) -> None:
    """Wherever it was cut short, the thread is gone and the next start removes its files; others keep theirs."""
    desk = BlobWire(faulty)
    kept = desk.put(DATA, "other")
    desk.close()
    die_at(faulty, where, lambda desk: desk.delete())
    desk = settled(faulty, files=1)
    assert refused(desk.blobs.StatBlob, StatBlobRequest(thread="t", sha256=b"1" * 32)).reason == "THREAD_NOT_FOUND"
    assert desk.read(kept, "other") == DATA
    other = desk.thread("", "other").uid
    eventually(lambda: [path.name for path in desk.directory.iterdir()] == [other])
    desk.close()


@pytest.mark.parametrize(
    "where",
    [
        "<storage.blobfiles:BlobFiles.sync_names",
        ">storage.blobfiles:BlobFiles.sync_names",
        "<store.copies.hidden:Hidden._reveal",
    ],
)
def test_a_copy_that_was_not_finished_leaves_no_files(faulty: FaultyDaemon, where: str) -> None:
    """Dead while a thread with blobs is copied: neither thread nor files of the copy; the copy can be made again."""
    die_at(faulty, where, lambda desk: desk.fork("copy"))
    desk = settled(faulty, files=1)
    desk.fork("copy")
    assert len(desk.files()) == 2
    assert desk.findings() == []
    desk.close()


def test_unfinished_files_of_living_writes_stay(faulty: FaultyDaemon) -> None:
    """What a start clears away is never what a write of this process is about to name."""
    desk = BlobWire(faulty)
    desk.close()
    faulty.kill()
    for _ in range(3):
        faulty.start()
        desk = BlobWire(faulty)
        calls = [
            desk.blobs.WriteBlob.future(
                messages(random_bytes(MIB + number), thread=f"n{number}", create=ThreadOptions()), wait_for_ready=True
            )
            for number in range(6)
        ]
        for number, call in enumerate(calls):
            assert desk.stat(call.result(timeout=20).blob, f"n{number}").is_here
        assert desk.findings() == []
        desk.close()
        faulty.kill()
