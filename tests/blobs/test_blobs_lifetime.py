"""The danger: a blob is collected while a version, branch or copy still needs it, or is kept for ever. The clock is
moved by hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.blobs.desk import MIB, names, random_bytes
from tests.daemon.clocks import MovedClock
from tests.daemon.store import findings, make_store, rest, save_request, write
from tests.messages import to_write

from stateward._operations.threads import spans_of
from stateward.v1.blob_service_pb2 import BlobBegin, ReadBlobRequest
from stateward.v1.checkpoint_pb2 import VersionRef
from stateward.v1.checkpoint_service_pb2 import SaveRequest
from stateward.v1.diff_pb2 import DeleteSlot, Diff, Edit
from stateward.v1.state_pb2 import BlobRef
from stateward.v1.thread_pb2 import ThreadOptions
from stateward.v1.thread_service_pb2 import DeleteThreadRequest, ForkThreadRequest, PruneThreadRequest
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.codec.blob import SEGMENT_BYTES
from stateward_sidecar.codec.edits import check_diff
from stateward_sidecar.errors import BlobNotFound, InvalidField, UidMismatch
from stateward_sidecar.storage.blobfiles import BlobFiles
from stateward_sidecar.store.blobs.blobsweep import INTERVAL_S, KEPT_S, clear_leftovers
from stateward_sidecar.store.thread.thread import rows
from stateward_sidecar.store.versions.save import SaveWrite

NAMESPACE = "default"


class Shelf:
    """An open store, and short words for what tests do with it."""

    def __init__(self, directory: Path) -> None:
        self.clock = MovedClock()
        self.store = make_store(directory, self.clock)
        self.store.start()
        self.directory = directory / "blobs"
        self.version: dict[str, int] = {}

    def do(self, run: Any) -> Any:
        return write(self.store, run)

    def write(self, data: bytes, thread: str = "t") -> BlobRef:
        """As BlobService does it."""
        blobs = self.store.blobs
        begin = BlobBegin(namespace=NAMESPACE, thread=thread, options=WriteOptions(create=ThreadOptions()))
        found = blobs.find_thread(begin)
        if found is None:
            self.do(blobs.make_thread(begin))
            found = blobs.find_thread(begin)
        assert found is not None
        write = blobs.begin_write(found, begin)
        whole = len(data) // SEGMENT_BYTES * SEGMENT_BYTES
        for at in range(0, whole, SEGMENT_BYTES):
            write.add(data[at : at + SEGMENT_BYTES])
        write.finish(data[whole:])
        answer = self.do(lambda txn, batch: write.commit(self.store.threads, txn, batch))
        if answer.existed:
            write.discard()
        return BlobRef(sha256=answer.blob.sha256, size_bytes=answer.blob.size_bytes)

    def save(self, request: SaveRequest) -> None:
        request.namespace = NAMESPACE
        request.options.expected_version = self.version.get(request.thread, 0)
        request.options.request_id = f"{request.thread} {request.options.expected_version}"
        self.version[request.thread] = save_request(self.store, request, *check_diff(request.diff)).version

    def name(self, blob: BlobRef, slot: str = "s", thread: str = "t") -> None:
        """A version that names a blob."""
        self.save(names(blob, 0, thread, slot))

    def drop(self, slot: str = "s", thread: str = "t") -> None:
        """A version that no longer does."""
        self.save(SaveRequest(thread=thread, diff=Diff(edits=[Edit(delete_slot=DeleteSlot(slot=slot))])))

    def read(self, blob: BlobRef, thread: str = "t") -> bytes:
        request = ReadBlobRequest(namespace=NAMESPACE, thread=thread, blob=blob)
        return b"".join(step().data for step in self.store.read(self.store.blobs.read, request))

    def prune(self, *versions: int, thread: str = "t") -> None:
        request = PruneThreadRequest(namespace=NAMESPACE, thread=thread, versions=spans_of(versions))
        self.store.pruner.prune(request)

    def fork(self, new: str, **fields: Any) -> None:
        self.store.forker.fork(to_write(ForkThreadRequest, namespace=NAMESPACE, thread="t", new_thread=new, **fields))

    def delete(self, thread: str = "t") -> None:
        self.do(self.store.deleter.delete(DeleteThreadRequest(namespace=NAMESPACE, thread=thread)))

    def sweep_later(self, seconds: int) -> None:
        """Lets time pass, and sweeps."""
        self.clock.ahead_s += seconds
        self.store.sweeper.sweep()

    def files(self) -> int:
        return sum(path.is_file() for path in self.directory.rglob("*"))

    def check(self) -> None:
        assert findings(self.store) == []

    def is_gone(self, blob: BlobRef, thread: str = "t") -> bool:
        try:
            self.read(blob, thread)
        except BlobNotFound as error:
            return blob.sha256.hex() in error.message
        return False


@pytest.fixture
def shelf(tmp_path: Path) -> Iterator[Shelf]:
    opened = Shelf(tmp_path)
    yield opened
    opened.store.close()


DAY_S = KEPT_S + INTERVAL_S + 1


def test_a_blob_that_nothing_names_goes_after_a_day(shelf: Shelf) -> None:
    """Not before; with its file and its bytes in the sum. A save that names it then is refused by name."""
    kept, doomed = shelf.write(b"kept" * 100), shelf.write(random_bytes(600))
    shelf.name(kept)
    before = stored_bytes(shelf)
    shelf.sweep_later(KEPT_S - INTERVAL_S)
    assert (shelf.files(), shelf.is_gone(doomed)) == (2, False)
    shelf.sweep_later(2 * INTERVAL_S)
    assert (shelf.files(), shelf.is_gone(doomed)) == (1, True)
    assert shelf.read(kept) == b"kept" * 100
    assert before - stored_bytes(shelf) > len(doomed.sha256)
    with pytest.raises(InvalidField, match="write it first"):
        shelf.name(doomed)
    shelf.check()


def stored_bytes(shelf: Shelf) -> int:
    with shelf.store.context.engine.read() as txn:
        return int(shelf.store.threads.get(txn, NAMESPACE, "t").head.stored_bytes)


def test_written_again_it_lives_for_another_day(shelf: Shelf) -> None:
    """Also where the bytes were there and nothing was written."""
    blob = shelf.write(b"x")
    shelf.clock.ahead_s += KEPT_S - 10
    assert shelf.write(b"x") == blob
    shelf.sweep_later(INTERVAL_S)
    assert not shelf.is_gone(blob)
    shelf.name(blob)
    shelf.sweep_later(10 * DAY_S)
    assert not shelf.is_gone(blob)


def test_any_retained_version_keeps_it(shelf: Shelf) -> None:
    """A version long replaced keeps its blob as long as it can be read; when it is pruned, the blob goes."""
    blob = shelf.write(b"x" * 1000)
    shelf.name(blob)
    shelf.drop()
    shelf.sweep_later(DAY_S)
    assert shelf.read(blob) == b"x" * 1000
    shelf.prune(1)
    shelf.check()
    shelf.sweep_later(DAY_S)
    assert (shelf.is_gone(blob), shelf.files()) == (True, 0)
    shelf.check()


def test_a_version_that_inherited_it_keeps_it(shelf: Shelf) -> None:
    """The version that brought the blob is pruned, and a later one still holds it: only its snapshot says so."""
    blob = shelf.write(b"x" * 1000)
    shelf.name(blob)
    for number in range(3):
        shelf.name(shelf.write(b"other %d" % number), slot="other")
    shelf.prune(1, 2)
    shelf.sweep_later(DAY_S)
    assert shelf.read(blob) == b"x" * 1000
    assert shelf.is_gone(BlobRef(sha256=b"0" * 32))
    shelf.check()


@pytest.mark.parametrize("cut", ["a copied state", "a pruned parent"])
def test_a_version_whose_snapshot_is_missing_may_hold_it(shelf: Shelf, cut: str) -> None:
    """Only the snapshot would say what the version holds, and it did not come from the archive: nothing goes."""
    blob = shelf.write(b"x" * 1000)
    shelf.name(blob)
    name, version = "t", 2
    if cut == "a copied state":
        shelf.fork("copy")
        name, version, shelf.version["copy"] = "copy", 1, 1
    shelf.name(shelf.write(b"other", name), "other", name)
    shelf.drop(thread=name)
    if cut == "a pruned parent":
        shelf.prune(1)
    forget_snapshot(shelf, name, version)
    shelf.sweep_later(DAY_S)
    assert shelf.read(blob, name) == b"x" * 1000


def forget_snapshot(shelf: Shelf, name: str, version: int) -> None:
    with shelf.store.context.engine.read() as txn:
        thread = shelf.store.threads.get(txn, NAMESPACE, name)
    assert version in thread.snapshots
    keys = thread.identity.keys
    shelf.do(lambda txn, batch: [txn.delete(key) for key, _ in list(rows(txn, keys.snapshot_pieces(version)))])
    thread.snapshots -= {version}


def test_a_branch_keeps_it(shelf: Shelf) -> None:
    """A version on another branch counts as any other."""
    blob = shelf.write(b"x")
    shelf.name(shelf.write(b"main"))
    request = names(blob, 0, "t", "side")
    request.branch = "side"
    request.parent.version = 1
    request.namespace, request.options.expected_version = NAMESPACE, 0
    write = SaveWrite(shelf.store.context, shelf.store.threads, request, check_diff(request.diff))
    shelf.do(write.run)
    shelf.sweep_later(DAY_S)
    assert shelf.read(blob) == b"x"


def test_a_save_races_the_sweep(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version that names the blob after the sweep has looked, and before it removes: the blob stays."""
    blob = shelf.write(b"x")
    shelf.name(shelf.write(b"other"))
    sweeper = shelf.store.sweeper._blobs
    look = sweeper._find_named

    def look_then_save(thread: Any) -> Any:
        found = look(thread)
        shelf.name(blob)
        return found

    monkeypatch.setattr(sweeper, "_find_named", look_then_save)
    shelf.sweep_later(DAY_S)
    assert shelf.read(blob) == b"x"
    shelf.check()


def test_a_write_races_the_sweep(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bytes written again after the sweep has looked, and before it removes: the blob stays."""
    blob = shelf.write(b"x")
    sweeper = shelf.store.sweeper._blobs
    look = sweeper._find_named

    def look_then_write(thread: Any) -> Any:
        found = look(thread)
        shelf.write(b"x")
        return found

    monkeypatch.setattr(sweeper, "_find_named", look_then_write)
    shelf.sweep_later(DAY_S)
    assert shelf.read(blob) == b"x"


def test_a_clearing_spares_what_is_being_written(shelf: Shelf) -> None:
    """What a start clears away is never a file that this process has begun, finished or not."""
    blob = shelf.write(b"x")
    context = shelf.store.context
    (uid,) = [bytes.fromhex(path.name) for path in shelf.directory.iterdir()]
    files = BlobFiles(context.engine)
    begun, finished, crashed = (files.create(uid, bytes((number,)) * 16) for number in range(3))
    for file in (begun, finished, crashed):
        file.write(b"data")
    finished.publish()
    crashed.publish()
    assert files._fresh is not None
    files._fresh.discard(b"\2" * 16)
    with context.engine.read() as txn:
        thread = shelf.store.threads.get(txn, NAMESPACE, "t")
    clear_leftovers(replace(context, blob_files=files), shelf.store.threads, {uid: [thread.number]})
    begun.publish()
    assert [files.is_here(uid, bytes((number,)) * 16) for number in range(3)] == [True, True, False]
    assert shelf.read(blob) == b"x"


def test_copies_have_blobs_of_their_own(shelf: Shelf) -> None:
    """One version or the whole thread: each copy has exactly the blobs it names, and outlives its source."""
    blobs = [shelf.write(random_bytes(MIB + number)) for number in range(3)]
    contents = [shelf.read(blob) for blob in blobs]
    for blob in blobs:
        shelf.name(blob)
    shelf.write(b"named by nothing")
    shelf.prune(1)
    shelf.fork("one", version=VersionRef(version=2))
    shelf.fork("whole", all_versions=True)
    shelf.check()
    shelf.delete("t")
    assert not shelf.is_gone(blobs[1], "one")
    for thread, there in (("one", {1}), ("whole", {1, 2})):
        for number, blob in enumerate(blobs):
            assert shelf.is_gone(blob, thread) == (number not in there)
            if number in there:
                assert shelf.read(blob, thread) == contents[number]
    shelf.check()
    shelf.sweep_later(DAY_S)
    shelf.check()
    assert not shelf.is_gone(blobs[2], "whole")


def test_a_copy_made_twice_is_one(shelf: Shelf) -> None:
    """A retry of a fork of a version with blobs is answered as the first time."""
    shelf.name(shelf.write(b"x"))
    for _ in range(2):
        shelf.fork("copy", request_id="once")
    assert shelf.files() == 2


def test_deleting_a_thread_removes_its_files(shelf: Shelf) -> None:
    """And only its own; a thread of the same name made later has none of them."""
    blob, other = shelf.write(b"x" * 100), shelf.write(b"y" * 100, "other")
    shelf.name(blob)
    shelf.delete("t")
    shelf.version.clear()
    rest(shelf.store)
    again = shelf.write(b"z")
    assert shelf.is_gone(blob)
    assert shelf.read(other, "other") == b"y" * 100
    assert shelf.read(again) == b"z"
    rest(shelf.store)  # what was put aside is removed after the answer
    assert len({path.parent for path in shelf.directory.rglob("*") if path.is_file()}) == 2
    shelf.check()


@pytest.mark.parametrize("is_finished", [False, True])
def test_a_deletion_during_a_write_wins(shelf: Shelf, is_finished: bool) -> None:
    """The thread goes while a blob is on its way: UID_MISMATCH, nothing of it stays, also under the same name."""
    shelf.write(b"first")
    begin = BlobBegin(namespace=NAMESPACE, thread="t")
    thread = shelf.store.blobs.find_thread(begin)
    assert thread is not None
    write = shelf.store.blobs.begin_write(thread, begin)
    write.add(random_bytes(SEGMENT_BYTES))
    if is_finished:
        write.finish(b"rest")
    shelf.delete("t")
    shelf.write(b"of the new one")

    def go_on() -> None:
        if not is_finished:
            write.finish(b"rest")
        shelf.do(lambda txn, batch: write.commit(shelf.store.threads, txn, batch))

    with pytest.raises(UidMismatch):
        go_on()
    write.discard()
    rest(shelf.store)
    assert shelf.files() == 1
    shelf.check()


def test_a_clock_that_jumps_collects_nothing(shelf: Shelf) -> None:
    """A wall clock that is a year ahead of the other one suspends collecting, as it does expiry."""
    blob = shelf.write(b"x")
    shelf.clock.off_s = 365 * 24 * 3600
    shelf.sweep_later(0)
    assert not shelf.is_gone(blob)
