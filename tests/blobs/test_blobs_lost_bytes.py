"""The danger: a blob comes back with other bytes than were written, at some size, range or piece, or after a
restart."""

from __future__ import annotations

import threading
import time
from hashlib import sha256

import grpc
import pytest
from tests.blobs.desk import MIB, BlobWire, messages, names, random_bytes
from tests.daemon.wire import refused

from stateward.testing import Daemon
from stateward.v1.admin_service_pb2 import GetServerInfoRequest, GetStatsRequest
from stateward.v1.blob_service_pb2 import StatBlobRequest
from stateward.v1.checkpoint_pb2 import DURABILITY_COMMITTED
from stateward.v1.checkpoint_service_pb2 import HydrateRequest
from stateward.v1.thread_pb2 import ThreadOptions
from stateward.v1.thread_service_pb2 import WatchRequest


def test_bytes_come_back(desk: BlobWire) -> None:
    """Blobs of all sizes around a segment, sent in pieces of odd sizes, also after a restart of the daemon."""
    written = {}
    for size, piece in ((0, MIB), (1, 1), (MIB - 1, 7001), (MIB, MIB), (MIB + 1, 3 * MIB), (5 * MIB + 17, 999_983)):
        data = random_bytes(size)
        answer = desk.write(data, piece=piece, media_type="x/y")
        assert (answer.blob.sha256, answer.blob.size_bytes) == (sha256(data).digest(), size)
        assert answer.blob.preview == data[:1024]
        assert (answer.existed, answer.receipt.durability) == (False, DURABILITY_COMMITTED)
        written[data] = answer.blob
    for data, blob in written.items():
        assert desk.read(blob) == data
        found = desk.stat(blob)
        assert (found.blob, found.media_type, found.is_here) == (blob, "x/y", True)
    assert desk.findings() == []


def test_bytes_survive_a_kill(daemon: Daemon, desk: BlobWire) -> None:
    """A blob whose write was answered is there after kill -9."""
    data = random_bytes(3 * MIB)
    blob = desk.put(data)
    daemon.kill()
    daemon.start()
    again = BlobWire(daemon)
    assert again.read(blob) == data
    assert again.findings() == []
    again.close()


def test_ranges(desk: BlobWire) -> None:
    """Ranges inside, across and at the borders of segments, empty ones, and ones that reach beyond the end."""
    data = random_bytes(3 * MIB + 100)
    blob = desk.put(data)
    offsets = (0, 1, MIB - 1, MIB, MIB + 1, 2 * MIB, len(data) - 1, len(data))
    for offset in offsets:
        for length in (0, 1, 100, MIB, 2 * MIB + 1, len(data)):
            assert desk.read(blob, offset=offset, length=length) == data[offset : offset + length]
        assert desk.read(blob, offset=offset) == data[offset:]


def test_the_same_bytes_are_kept_once(desk: BlobWire) -> None:
    """Written again, announced or not, or by ten at once: one file, one entry, the same answer."""
    data = random_bytes(2 * MIB)
    first = desk.write(data)
    answers = [desk.write(data), desk.write(data, sha256=first.blob.sha256), desk.write(data, media_type="other")]
    assert {(each.existed, each.receipt.sequence) for each in answers} == {(True, first.receipt.sequence)}
    assert len(desk.files()) == 1
    other = random_bytes(2 * MIB)
    calls = [desk.blobs.WriteBlob.future(messages(other, thread="t"), timeout=60) for _ in range(10)]
    results = [call.result() for call in calls]
    assert sorted(each.existed for each in results) == [False, *[True] * 9]
    assert len({each.receipt.sequence for each in results}) == 1
    assert len(desk.files()) == 2
    assert desk.findings() == []


def test_an_announced_blob_is_not_sent_again(desk: BlobWire) -> None:
    """Announced bytes that the thread has need not be sent at all."""
    data = random_bytes(MIB)
    first = desk.write(data)
    again = desk.blobs.WriteBlob(messages(b"", sha256=first.blob.sha256, size_bytes=len(data)), timeout=20)
    assert (again.existed, again.blob) == (True, first.blob)


def test_the_first_save_of_a_thread_may_name_a_blob(desk: BlobWire) -> None:
    """A blob makes the thread where that is asked for; the first save still expects version 0, and gets 1."""
    missing = refused(desk.blobs.WriteBlob, messages(b"x"))
    assert missing.reason == "THREAD_NOT_FOUND"
    answer = desk.write(b"x" * 100, create=ThreadOptions(agent="a", labels={"k": "v"}))
    thread = desk.thread("", "t")
    assert (thread.uid, thread.version, thread.agent, dict(thread.labels)) == (answer.receipt.uid, 0, "a", {"k": "v"})
    assert refused(desk.checkpoints.Hydrate, HydrateRequest(thread="t")).reason == "VERSION_NOT_FOUND"
    saved = desk.save_blob(answer.blob)
    assert (saved.version, saved.receipt.uid) == (1, answer.receipt.uid)
    assert desk.hydrate(HydrateRequest(thread="t")).slots["s"].blob == answer.blob
    assert desk.findings() == []


def test_a_blob_stands_in_the_journal_before_its_version(desk: BlobWire) -> None:
    """Its entry has a sequence of its own, before that of the version; watches and Verify pass over neither."""
    written = desk.write(b"x" * 100)
    saved = desk.save_blob(written.blob)
    assert saved.receipt.sequence == written.receipt.sequence + 1
    stream = desk.threads.Watch(WatchRequest(thread="t", after_sequence=0), timeout=10)
    seen: list[int] = []
    while len(seen) < saved.receipt.sequence:
        seen += [event.sequence for event in next(stream).events]
    stream.cancel()
    assert seen == list(range(1, saved.receipt.sequence + 1))


def test_values_of_all_edits_may_be_blobs(desk: BlobWire) -> None:
    """Slots, entries and replaced entries, and a full state; time travel reads them all."""
    blobs = [desk.put(random_bytes(1000 + number)) for number in range(3)]
    with_log = names(blobs[0])
    with_log.diff.edits.add().append.log = "l"
    with_log.diff.edits[1].append.entries.add().blob.CopyFrom(blobs[1])
    desk.save(with_log)
    replace = names(blobs[0], 1)
    replace.diff.edits.add().replace_entry.log = "l"
    replace.diff.edits[1].replace_entry.value.blob.CopyFrom(blobs[2])
    desk.save(replace)
    whole = names(blobs[0], 2)
    whole.state.slots["only"].blob.CopyFrom(blobs[1])
    desk.save(whole)
    now = desk.hydrate(HydrateRequest(thread="t"))
    assert (list(now.slots), now.slots["only"].blob, list(now.logs)) == (["only"], blobs[1], [])
    request = HydrateRequest(thread="t")
    for version, entry in ((1, blobs[1]), (2, blobs[2])):
        request.version.version = version
        assert desk.hydrate(request).logs["l"].entries[0].blob == entry
    assert desk.findings() == []


def test_readers_and_writers_do_not_hinder_each_other(desk: BlobWire) -> None:
    """Eight blobs written and read at once, beside saves."""
    contents = [random_bytes(2 * MIB + number) for number in range(8)]
    desk.put(b"first")
    failures: list[BaseException] = []

    def work(data: bytes) -> None:
        try:
            blob = desk.put(data)
            assert desk.read(blob) == data
        except BaseException as failure:  # noqa: BLE001
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(data,)) for data in contents]
    for thread in threads:
        thread.start()
    for version in range(20):
        desk.save(names(desk.put(b"first"), version))
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(desk.files()) == 9


def test_the_feature_is_announced(desk: BlobWire) -> None:
    """GetServerInfo lists blobs."""
    assert {"blobs", "records"} <= {*desk.admin.GetServerInfo(GetServerInfoRequest()).features}


def test_what_was_never_written_is_not_found(desk: BlobWire) -> None:
    """BLOB_NOT_FOUND says which blob, THREAD_NOT_FOUND which thread."""
    desk.put(b"x")
    for thread, reason in (("t", "BLOB_NOT_FOUND"), ("other", "THREAD_NOT_FOUND")):
        found = refused(desk.blobs.StatBlob, StatBlobRequest(thread=thread, sha256=b"1" * 32))
        assert (found.reason, found.code, found.metadata["thread"]) == (reason, grpc.StatusCode.NOT_FOUND, thread)


@pytest.mark.parametrize("size", [100, 5 * MIB])
def test_a_blob_is_not_readable_at_rest(desk: BlobWire, size: int) -> None:
    """Neither content nor preview nor media type nor SHA-256 stands anywhere in the data directory."""
    secret = b"The secret of the blob, which is said often. "
    data = (secret * (size // len(secret) + 1))[:size]
    blob = desk.put(data, media_type="text/very-secret")
    desk.save_blob(blob)
    for path in desk.directory.parent.rglob("*"):
        if path.is_file():
            stored = path.read_bytes()
            assert secret[:20] not in stored
            assert b"very-secret" not in stored
            assert blob.sha256 not in stored
            assert blob.sha256.hex().encode() not in str(path).encode()


def test_stats_count_the_bytes_of_blobs(desk: BlobWire) -> None:
    """As files, so as much as the disk has less; many files are not looked at all the time."""

    def counted() -> int:
        time.sleep(0.01)
        return int(desk.admin.GetStats(GetStatsRequest(), timeout=20).blob_bytes)

    desk.put(random_bytes(300_000), "counted")
    end = time.monotonic() + 20
    while counted() != sum(path.stat().st_size for path in desk.directory.rglob("*") if path.is_file()):
        assert time.monotonic() < end
    assert counted() > 300_000
