"""The danger: entries of a log that left memory for a segment are lost, doubled or mixed, now or when something else
happens to the thread."""

from __future__ import annotations

import os
import pkgutil
from collections.abc import Callable, Iterator
from pathlib import Path

import lmdb
import pytest
from tests.daemon.segments import files, shrink_segments
from tests.daemon.store import apply_together, findings, get, opened, rest, save, settle, write
from tests.daemon.wire import appends, sets
from tests.messages import to_write
from tests.storage.sync_law import sync_law

from stateward.storage.v1.head_pb2 import BlobRow
from stateward.storage.v1.journal_pb2 import BlobRecord
from stateward.v1.blob_service_pb2 import StatBlobRequest
from stateward.v1.checkpoint_service_pb2 import (
    DiffCheckpointsRequest,
    HydrateRequest,
    HydrateResponse,
    LogSelection,
    Projection,
    ReadLogRequest,
    ReadLogResponse,
    SaveRequest,
)
from stateward.v1.diff_pb2 import Diff, Edit, ReplaceEntry, TrimLog
from stateward.v1.state_pb2 import BlobRef, Value
from stateward.v1.thread_service_pb2 import DeleteThreadRequest, ForkThreadRequest, PruneThreadRequest
from stateward_sidecar.clock import Clock
from stateward_sidecar.codec import state as codec
from stateward_sidecar.codec.entries import SealedRun
from stateward_sidecar.codec.snapshot import from_snapshot
from stateward_sidecar.codec.state import StateTree, has_segments, resident_bytes
from stateward_sidecar.errors import BlobNotFound, DiskFull, InvalidField, QueueFull, StateTooLarge, VersionMismatch
from stateward_sidecar.storage.queue import Batch, Write
from stateward_sidecar.store.blobs import blobsweep
from stateward_sidecar.store.blobs import segments as module
from stateward_sidecar.store.blobs.blobrows import BLOB_ROWS, delete_blob, list_blobs, put_blob, segments_in_state
from stateward_sidecar.store.journal import replay
from stateward_sidecar.store.store import Store
from stateward_sidecar.store.thread.ranges import Ranges, spans_of
from stateward_sidecar.store.versions.make import Saved, check_size
from stateward_sidecar.store.versions.save import SaveWrite

PLACE = {"namespace": "default", "thread": "t"}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of 4 KiB."""
    shrink_segments(monkeypatch)


class Desk:
    """A thread whose log grows, and what must be in it."""

    def __init__(self, store: Store, name: str = "t") -> None:
        self.store, self.name = store, name
        self.log = list[str]()
        self.saves = 0

    def append(self, count: int = 1, size: int = 300) -> None:
        """One save, and the snapshot that follows it."""
        texts = [f"{len(self.log) + at:06} {os.urandom(size // 2).hex()}" for at in range(count)]
        self.log += texts
        self.edit(appends(*texts))

    def edit(self, diff: Diff) -> None:
        self.saves += 1
        save(self.store, f"{self.name}-{self.saves}-{os.urandom(4).hex()}", self.name, diff)
        self.consider()

    def consider(self) -> None:
        """What the service does after a save."""
        thread = get(self.store, self.name)
        saved = Saved(thread.branches["main"].version, self.tree())
        self.store.snapshots.consider(thread, "main", saved)

    def grow(self, saves: int) -> None:
        for _ in range(saves):
            self.append()
            settle(self.store)

    def tree(self, version: int = 0) -> StateTree:
        thread = get(self.store, self.name)
        with self.store.context.engine.read() as txn:
            version = version or thread.branches["main"].version
            return replay.state_at(txn, thread, version, self.store.context.cache)

    def forget(self) -> None:
        """Empties the cache."""
        self.store.context.cache.drop_thread(get(self.store, self.name).number)

    def check(self) -> None:
        """The log is as it must be: in memory, from the disk, and in pages."""
        for _ in range(2):
            assert read(self.store, self.name) == self.log
            assert pages(self.store, self.name) == self.log
            self.forget()
        assert findings(self.store) == []

    def segments(self) -> set[bytes]:
        return segments_in_state(self.tree())


def text_of(value: Value) -> str:
    return value.data.decode()


def read(store: Store, name: str = "t", version: int = 0, last: int | None = None) -> list[str]:
    """The log by hydrates, page by page."""
    found, token = list[str](), ""
    while True:
        request = HydrateRequest(namespace="default", thread=name, max_bytes=3000, page_token=token)
        if version:
            request.version.version = version
        if last is not None:
            request.projection.CopyFrom(Projection(logs=[LogSelection(log="messages", last=last)]))
        answer = HydrateResponse.FromString(store.read(store.reader.hydrate, request))
        found += map(text_of, answer.state.logs["messages"].entries)
        token = answer.next_page_token
        if not token:
            return found


def pages(store: Store, name: str = "t", first: int = 0) -> list[str]:
    """The log by ReadLog."""
    found, at = list[str](), first
    while True:
        request = ReadLogRequest(namespace="default", thread=name, log="messages", from_index=at, max_bytes=2000)
        answer = ReadLogResponse.FromString(store.read(store.log_reader.read, request).wire())
        found += map(text_of, answer.entries)
        if answer.next_index == answer.end_index:
            return found
        at = answer.next_index


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with opened(tmp_path) as store:
        yield Desk(store)


def test_a_log_that_grows_is_whole(tmp_path: Path) -> None:
    """Its older entries leave memory, and it is the same after a restart; nothing is written twice."""
    with opened(tmp_path) as store:
        desk = Desk(store)
        desk.grow(60)
        tree = desk.tree()
        assert len(desk.segments()) >= 3
        assert resident_bytes(tree) < 3 * codec.TAIL_BYTES
        desk.check()
        assert len(files(store)) == len(desk.segments())
        log = desk.log
    with opened(tmp_path) as store:
        desk = Desk(store)
        desk.log = log
        assert has_segments(desk.tree())
        desk.check()
        desk.grow(20)
        desk.check()
        assert len(files(store)) == len(desk.segments())


@pytest.mark.parametrize(
    "step", ["store.versions.snapshots.seal_segments", "store.thread.cache.Cache.begin_sealing"]
)
def test_saves_while_segments_are_made(desk: Desk, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """Versions that are made meanwhile, and before the sealing is noted, get the same segments, and none is made
    twice."""
    place = f"stateward_sidecar.{step}"
    slowed: Callable[..., object] = pkgutil.resolve_name(place)

    def slow(*arguments: object) -> object:
        for _ in range(2):
            desk.append()
        return slowed(*arguments)

    monkeypatch.setattr(place, slow)
    for _ in range(60):
        desk.append()
        settle(desk.store)
    desk.append()
    settle(desk.store)
    assert len(files(desk.store)) == len(desk.segments()) >= 3
    desk.check()


@pytest.mark.parametrize("at", [0, 7, 40, -1])
def test_a_replaced_entry_makes_its_segment_anew(desk: Desk, at: int) -> None:
    desk.grow(60)
    before = desk.segments()
    number = range(60)[at]
    desk.log[number] = "new"
    desk.edit(Diff(edits=[Edit(replace_entry=ReplaceEntry(log="messages", index=number, value=Value(data=b"new")))]))
    settle(desk.store)
    desk.check()
    desk.grow(30)
    desk.check()
    assert len(before - desk.segments()) == (1 if at in (0, 7, 40) else 0)
    assert all(isinstance(run, SealedRun) for run in desk.tree().logs["messages"].entries.runs.each)
    old = read(desk.store, version=60)
    assert old[number] != "new"
    assert len(old) == 60


def test_a_window_over_a_log(desk: Desk) -> None:
    """A trim at each save, as of a log that keeps its last entries."""
    for number in range(80):
        desk.append()
        settle(desk.store)
        if number > 40:
            desk.edit(Diff(edits=[Edit(trim_log=TrimLog(log="messages", keep_last=40))]))
            desk.log = desk.log[-40:]
            settle(desk.store)
    desk.check()
    assert pages(desk.store, first=79) == desk.log[-1:]


def test_a_log_is_cut_behind_a_segment(desk: Desk) -> None:
    """And grows on from there."""
    desk.grow(50)
    for cut in (37, 11):
        desk.edit(Diff(edits=[Edit(trim_log=TrimLog(log="messages", from_index=cut))]))
        del desk.log[cut:]
        desk.check()
        desk.grow(30)
        desk.check()


def test_the_tail_reads_no_segment(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also from the disk; older entries read only their segments."""
    desk.grow(60)
    reads = list[bytes]()
    call = module.SegmentReader.__call__

    def counted(self: module.SegmentReader, segment: module.Segment, ahead: object) -> object:
        reads.append(segment.digest)
        return call(self, segment, ahead)  # type: ignore[arg-type]

    monkeypatch.setattr(module.SegmentReader, "__call__", counted)
    desk.forget()
    assert read(desk.store, last=3) == desk.log[-3:]
    assert pages(desk.store, first=58) == desk.log[58:]
    desk.append()
    assert reads == []
    desk.forget()
    assert read(desk.store, last=len(desk.log))[:2] == desk.log[:2]
    assert set(reads) == desk.segments()


@pytest.mark.parametrize("all_versions", [False, True])
def test_a_copy_outlives_its_source(desk: Desk, *, all_versions: bool) -> None:
    """It has the same files, and its own growth; nothing of it goes with the source."""
    desk.grow(60)
    desk.forget()
    desk.store.forker.fork(ForkThreadRequest(**PLACE, new_thread="copy", all_versions=all_versions))
    copy = Desk(desk.store, "copy")
    copy.log = desk.log[:]
    assert copy.segments() == desk.segments()
    desk.grow(20)
    copy.grow(20)
    desk.check()
    copy.check()
    write(desk.store, desk.store.deleter.delete(DeleteThreadRequest(**PLACE)))
    settle(desk.store)
    copy.forget()
    copy.check()
    if all_versions:
        assert read(desk.store, "copy", version=30) == copy.log[:30]


def test_files_and_names_are_synced(tmp_path: Path) -> None:
    """Those of segments, and those that a copy gets for them."""
    with sync_law("/blobs/"), opened(tmp_path) as store:
        desk = Desk(store)
        desk.grow(40)
        store.forker.fork(ForkThreadRequest(**PLACE, new_thread="copy"))


def test_a_file_that_was_fetched_is_shared(desk: Desk) -> None:
    """It gets a second name, as any other, which stays when the first one goes."""
    desk.grow(40)
    store, uid = desk.store, get(desk.store).identity.uid
    with store.context.engine.read() as txn:
        first, second = (row.record for row in list(list_blobs(txn, get(store).identity))[:2])
    blob_files, other = store.context.blob_files, b"u" * 16
    blob_files.mark_read(uid, first.blob_id, 10**15)
    for record in (first, second):
        blob_files.duplicate(uid, other, record.blob_id, record.stored_bytes)
        made, source = (blob_files.path(each, record.blob_id) for each in (other, uid))
        assert made.read_bytes() == source.read_bytes()
        assert made.samefile(source)
        content = made.read_bytes()
        blob_files.remove(uid, record.blob_id)
        assert made.read_bytes() == content


def test_the_loop_reads_no_segment(desk: Desk) -> None:
    """A page of the newest entries is made at once, any other on a worker."""
    desk.grow(60)
    whole, last = HydrateRequest(**PLACE), HydrateRequest(**PLACE)
    last.projection.CopyFrom(Projection(logs=[LogSelection(log="messages", last=2)]))
    reader, logs = desk.store.reader, desk.store.log_reader
    assert reader.find_hot(whole) is None
    assert reader.find_hot(last) is not None
    for first, is_hot in ((0, False), (59, True)):
        assert logs.is_hot(ReadLogRequest(**PLACE, log="messages", from_index=first)) == is_hot
    edits = Diff(edits=[Edit(replace_entry=ReplaceEntry(log="messages", index=0, value=Value(data=b"x")))])
    for diff, is_hot in ((edits, False), (appends("x"), True)):
        request = to_write(SaveRequest, **PLACE, diff=diff, request_id="r")
        save = SaveWrite(desk.store.context, desk.store.threads, request)
        assert save.prepare_hot(get(desk.store)) == is_hot


def test_newest_entries_in_a_segment_at_hand_are_shown_at_once(desk: Desk) -> None:
    """Once the segment was read, and as a worker would show them; no file is opened for it."""
    desk.grow(60)
    entries, reader, store = desk.tree().logs["messages"].entries, desk.store.reader, desk.store
    request = HydrateRequest(**PLACE)
    request.projection.CopyFrom(Projection(logs=[LogSelection(log="messages", last=entries.tail_count + 2)]))
    assert reader.find_hot(request) is None
    expected = reader.hydrate(request)
    uid = get(store).identity.uid
    directory = store.context.blob_files.directory / uid.hex()
    aside = directory.rename(directory.with_name("aside"))
    found = reader.find_hot(request)
    assert found is not None
    assert reader.answer(request, found) == expected
    aside.rename(directory)
    request.projection.logs[0].last = 60
    assert reader.find_hot(request) is None


def test_segments_that_nothing_names_are_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A day after they were made, once the versions that had them are pruned; all others stay."""
    clock = Clock()
    with opened(tmp_path, clock) as store:
        desk = Desk(store)
        desk.grow(60)
        desk.edit(Diff(edits=[Edit(trim_log=TrimLog(log="messages", keep_last=5))]))
        desk.log = desk.log[-5:]
        desk.grow(40)
        made = set(files(store))
        monkeypatch.setattr(blobsweep, "KEPT_S", -10)
        sweeper = blobsweep.BlobSweeper(store.context, store.threads)
        sweeper.sweep(lambda each: store.context.writer.submit(each, wait=True).wait())
        assert set(files(store)) == made
        last = get(store).head.last_version
        store.pruner.prune(PruneThreadRequest(**PLACE, versions=spans_of(Ranges([(1, last - 3)]))))
        settle(store)
        sweeper = blobsweep.BlobSweeper(store.context, store.threads)
        sweeper.sweep(lambda each: store.context.writer.submit(each, wait=True).wait())
        settle(store)
        assert len(files(store)) < len(made)
        with store.context.engine.read() as txn:
            left = {row.record.sha256 for row in list_blobs(txn, get(store).identity)}
        assert desk.segments() <= left
        desk.check()


def test_a_full_disk_costs_no_entry(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """No segment is made and no file stays; later they are made."""
    desk.grow(5)
    refusing = True
    create = desk.store.context.blob_files.create

    def full(uid: bytes, blob_id: bytes) -> object:
        if refusing:
            raise DiskFull("full")
        return create(uid, blob_id)

    monkeypatch.setattr(desk.store.context.blob_files, "create", full)
    desk.grow(40)
    assert files(desk.store) == []
    desk.check()
    refusing = False
    desk.grow(1)
    assert len(files(desk.store)) >= 2
    desk.check()


@pytest.mark.parametrize("where", ["put_segments", "store"])
def test_a_failure_in_the_middle(desk: Desk, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """Files are written, or rows as well, but no snapshot names them: memory names none of them, either."""
    desk.grow(12)

    def fails(*_: object, **__: object) -> None:
        raise DiskFull("full")

    with monkeypatch.context() as patch:
        target = desk.store.snapshots if where == "store" else "stateward_sidecar.store.versions.snapshots"
        if isinstance(target, str):
            patch.setattr(f"{target}.{where}", fails)
        else:
            patch.setattr(target, where, fails)
        desk.grow(10)
        assert not has_segments(desk.tree())
        assert bool(files(desk.store)) == (where == "store")  # a day later, the sweep collects those with rows
        desk.check()
    desk.grow(20)
    assert has_segments(desk.tree())
    desk.check()


def test_no_client_sees_or_names_a_segment(desk: Desk) -> None:
    desk.grow(30)
    digest = min(desk.segments())
    with pytest.raises(BlobNotFound):
        desk.store.blobs.stat(StatBlobRequest(**PLACE, sha256=digest))
    with desk.store.context.engine.read() as txn:
        rows = list(list_blobs(txn, get(desk.store).identity))
    record = next(row.record for row in rows if row.record.sha256 == digest)
    ref = BlobRef(sha256=digest, size_bytes=record.size_bytes)
    from stateward_sidecar.store.blobs.blobrows import check_named

    with desk.store.context.engine.read() as txn, pytest.raises(InvalidField, match="write it first"):
        check_named(txn, get(desk.store).identity, [("field", ref)])


def test_a_damaged_segment_is_found(desk: Desk) -> None:
    """Verify names it, the tail is read, and what needs it is refused."""
    desk.grow(40)
    desk.forget()
    name = files(desk.store)[0]
    path = desk.store.context.blob_files.directory / name
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    assert {each.reason for each in findings(desk.store)} != set()
    assert read(desk.store, last=2) == desk.log[-2:]
    with pytest.raises(Exception, match=r"authentication|SHA-256"):
        read(desk.store)


def test_segments_are_no_change_of_the_thread(desk: Desk) -> None:
    """Whoever deletes what was shown deletes it, also if entries became segments meanwhile; not after a save."""
    desk.grow(5)
    shown = get(desk.store).head
    request = DeleteThreadRequest(
        **PLACE, expected_sequence=shown.tip_sequence, expected_sequence_digest=shown.tip_digest
    )
    desk.append(30)
    stale = DeleteThreadRequest()
    stale.CopyFrom(request)
    shown = get(desk.store).head
    request.expected_sequence, request.expected_sequence_digest = shown.tip_sequence, shown.tip_digest
    settle(desk.store)
    assert get(desk.store).head.tip_sequence > request.expected_sequence
    with pytest.raises(VersionMismatch):
        write(desk.store, desk.store.deleter.delete(stale))
    wrong = DeleteThreadRequest()
    wrong.CopyFrom(request)
    wrong.expected_sequence_digest = b"x" * 16
    with pytest.raises(VersionMismatch):
        write(desk.store, desk.store.deleter.delete(wrong))
    write(desk.store, desk.store.deleter.delete(request))


def test_a_version_that_goes_while_its_snapshot_is_made(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory names no segment of it: no snapshot does."""
    seal = module.seal_segments

    def pruned_meanwhile(*arguments: object) -> module.Sealed:
        found = seal(*arguments)  # type: ignore[arg-type]
        monkeypatch.undo()
        shrink_segments(monkeypatch)
        version = get(desk.store).head.last_version
        desk.append()
        desk.store.pruner.prune(PruneThreadRequest(**PLACE, versions=spans_of(Ranges([(version, version)]))))
        return found

    desk.grow(10)
    monkeypatch.setattr("stateward_sidecar.store.versions.snapshots.seal_segments", pruned_meanwhile)
    while not get(desk.store).pruned.pairs():
        desk.grow(1)
    assert not has_segments(desk.tree())
    desk.check()
    desk.grow(20)
    desk.check()


def test_replaced_entries_make_no_crumbs(desk: Desk) -> None:
    """A log whose old entries are replaced by a little larger ones, again and again, has as many segments as before."""
    desk.grow(60)
    before = len(desk.segments())
    for size in (420, 540, 660):
        for index in range(0, 50, 28):
            desk.log[index] = f"{index:06} {os.urandom(size // 2).hex()}"
            value = Value(data=desk.log[index].encode())
            desk.edit(Diff(edits=[Edit(replace_entry=ReplaceEntry(log="messages", index=index, value=value))]))
            settle(desk.store)
        desk.grow(20)
    assert len(desk.segments()) <= before + sum(map(len, desk.log[60:])) // codec.SEGMENT_BYTES + 1
    desk.check()


def test_segments_that_only_memory_names_stay(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their version was pruned after the version that stays had got a snapshot, which was made without them."""
    end = desk.store.context.cache.end_sealing

    def pruned_before(*arguments: object) -> None:
        monkeypatch.undo()
        shrink_segments(monkeypatch)
        last = get(desk.store).head.last_version
        desk.store.pruner.prune(PruneThreadRequest(**PLACE, versions=spans_of(Ranges([(1, last - 1)]))))
        end(*arguments)  # type: ignore[arg-type]

    seal = module.seal_segments

    def saved_meanwhile(*arguments: object) -> module.Sealed:
        found = seal(*arguments)  # type: ignore[arg-type]
        desk.append()
        return found

    monkeypatch.setattr(desk.store.context.cache, "end_sealing", pruned_before)
    monkeypatch.setattr("stateward_sidecar.store.versions.snapshots.seal_segments", saved_meanwhile)
    desk.grow(1)
    while not get(desk.store).pruned.pairs():
        desk.grow(1)
    monkeypatch.setattr(blobsweep, "KEPT_S", -10)
    assert desk.segments()
    for is_left in (True, False):
        sweeper = blobsweep.BlobSweeper(desk.store.context, desk.store.threads)
        sweeper.sweep(lambda each: desk.store.context.writer.submit(each, wait=True).wait())
        assert bool(files(desk.store)) == is_left
        assert read(desk.store) == desk.log
        desk.forget()
    desk.check()


def test_a_burst_that_ends_while_a_snapshot_is_made(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it appended becomes segments, though no save follows."""
    seal = module.seal_segments

    def crowded_meanwhile(*arguments: object) -> module.Sealed:
        found = seal(*arguments)  # type: ignore[arg-type]
        monkeypatch.setattr("stateward_sidecar.store.versions.snapshots.seal_segments", seal)
        for _ in range(30):
            desk.append()
        return found

    monkeypatch.setattr("stateward_sidecar.store.versions.snapshots.seal_segments", crowded_meanwhile)
    while len(desk.log) < 30:
        desk.grow(1)
    settle(desk.store)  # the snapshot that the first one has started
    assert not module.has_due(desk.tree())
    assert resident_bytes(desk.tree()) < codec.TAIL_BYTES
    desk.check()


def test_a_copy_forgets_snapshots_whose_segments_are_gone(desk: Desk) -> None:
    """They were never shipped, and the next owner collected the segments: edits lead to the same states."""
    desk.grow(40)
    while len(get(desk.store).snapshots) < 4:
        desk.grow(1)
    store, before = desk.store, get(desk.store).snapshots
    with store.context.engine.read() as txn:
        rows = list(list_blobs(txn, get(store).identity))
        contents = (replay.read_snapshot(txn, get(store).identity, version)[0] for version in sorted(before))
        *_, older, newest = map(from_snapshot, contents)
    lost = segments_in_state(newest) - segments_in_state(older)
    kept = [row for row in rows if row.record.sha256 not in lost]
    assert lost

    def install(txn: lmdb.Transaction, batch: Batch) -> None:
        draft = store.threads.draft(txn, batch, "default", "t")
        assert draft is not None
        image = blobsweep.rows_by_key(draft.identity, kept)
        blobsweep.drop_lost_snapshots(store.context, txn, batch, draft, image)
        blobsweep.install_blobs(store.context, store.threads, txn, batch, draft.identity, image)
        store.threads.keep_draft(batch, draft)

    write(store, install)
    assert get(store).snapshots == before - {max(before)}
    assert read(store) == desk.log
    desk.forget()
    assert read(store) == desk.log


def test_an_image_with_known_segments_opens_none_of_their_rows(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """They never change, and a long log has thousands. One that is missing here is put."""
    desk.grow(40)
    store = desk.store
    with store.context.engine.read() as txn:
        image = list(list_blobs(txn, get(store).identity))
    opened = list[bytes]()
    open_row = BLOB_ROWS.open
    monkeypatch.setattr(BLOB_ROWS, "open", lambda *given: (opened.append(given[1]), open_row(*given))[1])

    def install(txn: lmdb.Transaction, batch: Batch) -> None:
        draft = store.threads.draft(txn, batch, "default", "t")
        assert draft is not None
        delete_blob(txn, draft.identity, image[0].record.sha256)
        rows = blobsweep.rows_by_key(draft.identity, image)
        blobsweep.drop_lost_snapshots(store.context, txn, batch, draft, rows)
        blobsweep.install_blobs(store.context, store.threads, txn, batch, draft.identity, rows)

    write(store, install)
    assert opened == []
    monkeypatch.undo()
    shrink_segments(monkeypatch)
    with store.context.engine.read() as txn:
        found = list(list_blobs(txn, get(store).identity))
    assert sorted(row.sequence for row in found) == sorted(row.sequence for row in image)
    desk.forget()
    desk.check()


def test_an_image_replaces_the_row_of_a_blob_that_was_written_anew(desk: Desk) -> None:
    """Its bytes were lost, and another file has them now."""
    desk.append()
    store = desk.store
    lost, anew = (BlobRow(record=BlobRecord(blob_id=each * 16, sha256=b"x" * 32), sequence=1) for each in (b"1", b"2"))

    def install(txn: lmdb.Transaction, batch: Batch) -> list[BlobRow]:
        draft = store.threads.draft(txn, batch, "default", "t")
        assert draft is not None
        put_blob(txn, draft.identity, lost)
        image = blobsweep.rows_by_key(draft.identity, [anew])
        blobsweep.install_blobs(store.context, store.threads, txn, batch, draft.identity, image)
        return list(list_blobs(txn, draft.identity))

    assert write(store, install) == [anew]


def test_two_saves_of_one_batch(desk: Desk) -> None:
    """The snapshot that follows the first one is not that of the second."""
    desk.store.context.cache.limit_bytes = 0
    texts = [f"{number} {os.urandom(2000).hex()}" for number in range(4)]
    requests = [to_write(SaveRequest, **PLACE, diff=appends(text), request_id=text) for text in texts]
    saves = [SaveWrite(desk.store.context, desk.store.threads, request) for request in requests]
    apply_together(desk.store.context.writer, [Write(run=each.run) for each in saves])
    for each in saves:
        assert each.draft is not None
        desk.store.snapshots.consider(each.draft.thread, "main", each.saved)
        settle(desk.store)
    assert pages(desk.store) == texts
    assert findings(desk.store) == []


def test_entries_that_stay_make_no_snapshots(desk: Desk) -> None:
    """The newest entries are as large as those that become a segment: saves of something else cost what they did."""
    for sizes in ((6000,), (1900, 1900, 1900)):
        desk.edit(appends(*(os.urandom(size // 2).hex() for size in sizes)))
        settle(desk.store)
        before = len(get(desk.store).snapshots)
        for number in range(8):
            desk.edit(sets("page", f"{number}"))
            settle(desk.store)
        assert len(get(desk.store).snapshots) <= before + 1


def test_a_save_that_replaces_everything_is_refused(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would bring the whole log into memory; a part of it goes."""
    desk.grow(80)
    limits = desk.store.context.limits
    monkeypatch.setattr(desk.store.context, "limits", type(limits)(state_bytes=12_000))
    edits = [
        Edit(replace_entry=ReplaceEntry(log="messages", index=at, value=Value(data=b"x"))) for at in range(0, 80, 5)
    ]
    with pytest.raises(StateTooLarge, match="several saves"):
        desk.edit(Diff(edits=edits))
    desk.edit(Diff(edits=edits[:1]))
    desk.log[0] = "x"
    desk.check()


def test_what_a_sealing_keeps_counts(desk: Desk) -> None:
    """States that are remembered while entries become segments go when the cache is full."""
    for number in range(20):
        other = Desk(desk.store, f"t{number}")
        other.append(40)
    settle(desk.store)
    cache = desk.store.context.cache
    cache.limit_bytes = 30_000
    Desk(desk.store, "last").append(40)
    settle(desk.store)
    assert sum(size for _, size in cache._items.values()) == cache.used_bytes <= 30_000


def test_limits(desk: Desk) -> None:
    """Segments do not count, and what waits to become one does only once it is very much."""
    desk.grow(60)
    tree = desk.tree()
    limit = 3 * codec.TAIL_BYTES
    assert tree.size_bytes > limit
    check_size(tree, limit)
    loose = StateTree.of({}, {"a": tree.logs["messages"]}, {})
    entries = loose.logs["a"].entries.append_many([b"\x12\x00" * 10] * (limit // 10))
    with pytest.raises(QueueFull):
        check_size(StateTree.of({}, {"a": type(tree.logs["messages"])(0, entries)}, {}), limit)
    with pytest.raises(StateTooLarge):
        check_size(StateTree.of({"s": b"x" * (limit + 1)}, tree.logs, {}), limit)


def test_a_difference_larger_than_memory_is_refused(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The difference of neighbours reads no segment, that from the beginning would read all."""
    desk.grow(60)
    limits = desk.store.context.limits
    monkeypatch.setattr(desk.store.context, "limits", type(limits)(state_bytes=10_000))
    request = DiffCheckpointsRequest(**PLACE)
    request.base.version = 59
    assert len(desk.store.read(desk.store.reader.diff, request).diff.edits) == 1
    request.base.version = 0
    with pytest.raises(StateTooLarge, match="ReadLog"):
        desk.store.read(desk.store.reader.diff, request)


def test_a_segment_is_not_swept_while_a_snapshot_is_made(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is named by nothing yet."""
    monkeypatch.setattr(blobsweep, "KEPT_S", -10)
    store = desk.store
    real = store.snapshots.store

    def swept_first(*arguments: object, **named: object) -> bool:
        sweeper = blobsweep.BlobSweeper(store.context, store.threads)
        context = store.context
        place = object()
        context.under_way[place] = {(get(store).number, 10**6)}
        sweeper.sweep(lambda each: context.writer.submit(each, wait=True).wait())
        del context.under_way[place]
        return real(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(store.snapshots, "store", swept_first)
    desk.grow(40)
    assert has_segments(desk.tree())
    desk.check()
    rest(store)
    write(store, lambda txn, batch: None)
