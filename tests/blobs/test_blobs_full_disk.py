"""The danger: a full disk keeps halves of refused blobs, and then not even a deletion can make room."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from tests.blobs.desk import MIB, BlobWire, messages, names, random_bytes
from tests.daemon.process import eventually
from tests.daemon.wire import refusal_of, refused, sets
from tests.faults.test_disk_full import tmpfs as tmpfs  # noqa: PLC0414  a fixture

from stateward.testing import Daemon, run_daemon
from stateward.v1.checkpoint_service_pb2 import SaveRequest
from stateward.v1.thread_pb2 import ThreadOptions
from stateward.v1.write_pb2 import WriteOptions

# A sixteenth of the disk.
RESERVE_BYTES = MIB // 2


@pytest.fixture
def small(tmpfs: Path) -> Iterator[Daemon]:
    """A daemon on a disk of 8 MiB."""
    with run_daemon(tmpfs / "data", sweep_interval=0) as daemon:
        yield daemon


def fill(desk: BlobWire) -> dict[str, bytes]:
    """Writes blobs of 300 kB to threads of their own until the disk is full."""
    written: dict[str, bytes] = {}
    for number in range(100):
        data = random_bytes(300_000)
        call = desk.blobs.WriteBlob.future(messages(data, thread=f"t{number}", create=ThreadOptions()), timeout=20)
        if call.code() != grpc.StatusCode.OK:
            assert refusal_of(call).reason == "DISK_FULL"
            return written
        written[f"t{number}"] = data
    raise AssertionError("it never got full")


def test_nothing_of_a_refused_blob_stays(small: Daemon) -> None:
    """What was answered is there, of what was refused there is no file; a deletion makes room, and writing goes on."""
    desk = BlobWire(small)
    written = fill(desk)
    files = desk.files()
    assert len(files) == len(written)
    announced = messages(b"", thread="t0", size_bytes=MIB, create=ThreadOptions())
    assert refused(desk.blobs.WriteBlob, announced).reason == "DISK_FULL"
    # The second one would go in if it were let into the reserve.
    for size in (8 * MIB, 300_000 + RESERVE_BYTES // 4):
        unannounced = messages(random_bytes(size), thread="t0", create=ThreadOptions())
        assert refused(desk.blobs.WriteBlob, unannounced).reason == "DISK_FULL"
    assert desk.files() == files
    assert desk.findings() == []
    for thread in list(written)[:4]:
        desk.delete(thread)
        del written[thread]
    eventually(lambda: len(desk.files()) == len(written))
    data = random_bytes(300_000)
    again = desk.put(data, "t99")
    assert desk.read(again, "t99") == data
    desk.save(names(again, 0, "t99"))
    assert desk.findings() == []
    desk.close()


def test_the_reserve_is_left_for_deletions(small: Daemon) -> None:
    """Blobs stop before the last bytes: a restart, a save and a deletion still work."""
    desk = BlobWire(small)
    written = fill(desk)
    disk = os.statvfs(small.data_dir)
    assert disk.f_bavail * disk.f_frsize > RESERVE_BYTES - MIB // 16
    desk.close()
    small.kill()
    small.start()
    desk = BlobWire(small)
    for thread, data in written.items():
        (path,) = [path for path in desk.files() if path.parent.name == desk.thread("", thread).uid]
        assert path.stat().st_size > len(data)
    desk.delete("t0")
    assert desk.findings() == []
    desk.close()


def test_a_copy_that_does_not_fit_leaves_nothing(small: Daemon) -> None:
    """DISK_FULL in the middle of a copy: no copy, no file of it."""
    desk = BlobWire(small)
    for version in range(2):
        desk.save(names(desk.put(random_bytes(1000)), 2 * version, slot=f"s{version}"))
        options = WriteOptions(expected_version=2 * version + 1)
        desk.save(SaveRequest(thread="t", diff=sets("page", random_bytes(500_000).hex()), options=options))
    fill(desk)
    files = desk.files()
    with pytest.raises(grpc.RpcError) as caught:
        desk.fork("copy", all_versions=True)
    assert refusal_of(caught.value).reason == "DISK_FULL"
    eventually(lambda: desk.files() == files)
    assert desk.findings() == []
    desk.close()


def test_a_copy_of_blobs_takes_no_room(small: Daemon) -> None:
    """Its files are those of the source, which may go: five copies of a blob of a third of the disk."""
    desk = BlobWire(small)
    data = random_bytes(2_500_000)
    blob = desk.put(data)
    desk.save(names(blob))
    for number in range(5):
        desk.fork(f"copy{number}")
    desk.delete()
    assert [desk.read(blob, f"copy{number}") == data for number in range(5)] == [True] * 5
    assert desk.findings() == []
    desk.close()
