"""The danger: a blob whose file was changed, cut or swapped is read as if it were sound, or makes other blobs
unreadable."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest
from tests.blobs.desk import MIB, BlobWire, names, random_bytes
from tests.daemon.wire import refused

from stateward.testing import Daemon
from stateward.v1.blob_service_pb2 import ReadBlobRequest
from stateward.v1.error_reason_pb2 import ERROR_REASON_CORRUPT
from stateward.v1.thread_service_pb2 import ForkThreadRequest

SIZE = 3 * MIB + 1000


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def segment_places() -> list[int]:
    """A byte in the middle of each segment of a blob that does not compress."""
    sealed = MIB + 12 + 1 + 16
    return [4 + number * sealed + 500 for number in range(4)]


@pytest.mark.parametrize("number", range(4))
def test_a_flipped_bit_costs_one_segment(desk: BlobWire, number: int) -> None:
    """The segment is CORRUPT and named by Verify; the others, other blobs and the thread are read as before."""
    data, other = random_bytes(SIZE), random_bytes(1000)
    blob, intact = desk.put(data), desk.put(other)
    desk.save(names(blob))
    flip(desk.file_of(blob), segment_places()[number])
    assert refused(desk.blobs.ReadBlob, ReadBlobRequest(thread="t", blob=blob)).reason == "CORRUPT"
    for index in range(4):
        wanted = {"offset": index * MIB, "length": min(MIB, SIZE - index * MIB)}
        if index == number:
            found = refused(desk.blobs.ReadBlob, ReadBlobRequest(thread="t", blob=blob, **wanted))
            assert (found.reason, found.metadata["thread"]) == ("CORRUPT", "t")
        else:
            assert desk.read(blob, **wanted) == data[index * MIB : (index + 1) * MIB]
    assert desk.read(intact) == other
    assert [(finding.reason, finding.thread) for finding in desk.findings()] == [(ERROR_REASON_CORRUPT, "t")]
    assert desk.stat(blob).blob == blob
    assert desk.save(names(intact, 1)).version == 2


CHANGES: dict[str, Callable[[Path], object]] = {
    "its header": lambda path: flip(path, 0),
    "its format": lambda path: flip(path, 2),
    "its index": lambda path: flip(path, path.stat().st_size - 20),
    "one byte less": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "half of it": lambda path: path.write_bytes(path.read_bytes()[: SIZE // 2]),
    "nothing left": lambda path: path.write_bytes(b""),
    "one byte more": lambda path: path.write_bytes(path.read_bytes() + b"x"),
    "bytes between": lambda path: path.write_bytes(path.read_bytes()[:4] + b"x" + path.read_bytes()[4:]),
    "bytes before its index": lambda path: path.write_bytes(path.read_bytes()[:-88] + b"x" + path.read_bytes()[-88:]),
    "gone": Path.unlink,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_changed_file_is_found(desk: BlobWire, change: Callable[[Path], object]) -> None:
    """CORRUPT before the first byte, a finding of Verify, a fork that is refused; and the rest goes on."""
    blob, intact = desk.put(random_bytes(SIZE)), desk.put(b"other")
    desk.save(names(blob))
    change(desk.file_of(blob))
    assert refused(desk.blobs.ReadBlob, ReadBlobRequest(thread="t", blob=blob, length=1)).reason == "CORRUPT"
    assert [(finding.reason, finding.thread) for finding in desk.findings()] == [(ERROR_REASON_CORRUPT, "t")]
    assert refused(desk.threads.ForkThread, ForkThreadRequest(thread="t", new_thread="copy")).reason == "CORRUPT"
    assert desk.read(intact) == b"other"


@pytest.mark.parametrize("threads", [("t", "t"), ("t", "u")], ids=["one thread", "two threads"])
def test_swapped_files_are_found(desk: BlobWire, threads: tuple[str, str]) -> None:
    """The files of two blobs of one size change places, in one thread or between two: both are CORRUPT."""
    blobs = [desk.put(random_bytes(SIZE - number), thread) for number, thread in enumerate(threads)]
    paths = [desk.file_of(blob, thread) for blob, thread in zip(blobs, threads, strict=True)]
    aside = paths[0].with_name("aside")
    for source, target in ((paths[0], aside), (paths[1], paths[0]), (aside, paths[1])):
        shutil.move(source, target)
    for blob, thread in zip(blobs, threads, strict=True):
        assert refused(desk.blobs.ReadBlob, ReadBlobRequest(thread=thread, blob=blob)).reason == "CORRUPT"
    assert len(desk.findings()) == 2


def test_swapped_segments_are_found(desk: BlobWire) -> None:
    """Two segments of one blob change places: reading either is CORRUPT, the others are not."""
    data = random_bytes(SIZE)
    blob = desk.put(data)
    path, sealed = desk.file_of(blob), MIB + 12 + 1 + 16
    stored = path.read_bytes()
    first, second = stored[4 : 4 + sealed], stored[4 + sealed : 4 + 2 * sealed]
    path.write_bytes(stored[:4] + second + first + stored[4 + 2 * sealed :])
    for offset in (0, MIB):
        request = ReadBlobRequest(thread="t", blob=blob, offset=offset, length=1)
        assert refused(desk.blobs.ReadBlob, request).reason == "CORRUPT"
    assert desk.read(blob, offset=2 * MIB) == data[2 * MIB :]


def test_lost_bytes_can_be_written_again(desk: BlobWire) -> None:
    """Where the file is gone, the same bytes are taken once more, and what named the blob is whole again."""
    data = random_bytes(SIZE)
    blob = desk.put(data)
    desk.save(names(blob))
    desk.file_of(blob).unlink()
    again = desk.write(data, sha256=blob.sha256)
    assert (again.existed, again.blob) == (False, blob)
    assert desk.read(blob) == data
    assert desk.findings() == []


def test_damaged_rows_are_found(daemon: Daemon, desk: BlobWire) -> None:
    """A row that is gone, or another's: what names the blob is a finding, and nobody gets other bytes."""
    data = random_bytes(SIZE)
    blob, other = desk.put(data), desk.put(b"other")
    desk.save(names(blob))
    desk.save(names(other, 1, slot="other"))
    assert desk.findings() == []
    for damage in ("removed", "swapped", "unmarked"):
        desk.close()
        daemon.kill()
        saved = shutil.copytree(daemon.data_dir, daemon.data_dir.with_name(f"saved-{damage}"))
        with lmdb.open(str(daemon.data_dir), map_size=1 << 30) as env, env.begin(write=True) as txn:
            rows = [(key, value) for key, value in txn.cursor() if key[:1] == b"T" and key[5:6] == b"Q"]
            assert len(rows) == 2
            if damage == "removed":
                txn.delete(rows[0][0])
            elif damage == "swapped":
                txn.put(rows[0][0], rows[1][1])
            else:
                txn.delete(b"Q" + rows[0][0][1:5])
        daemon.start()
        desk = BlobWire(daemon)
        reasons = {finding.reason for finding in desk.findings()}
        assert reasons == {ERROR_REASON_CORRUPT}, damage
        desk.close()
        daemon.kill()
        shutil.rmtree(daemon.data_dir)
        shutil.move(saved, daemon.data_dir)
        daemon.start()
        desk = BlobWire(daemon)
    assert desk.read(blob) == data
    assert desk.findings() == []
    desk.close()
