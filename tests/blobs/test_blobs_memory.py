"""The danger: a blob is held in memory as a whole, so one large upload ends a daemon in a small container."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
from tests.blobs.desk import MIB, BlobWire

from stateward.testing import Daemon
from stateward.v1.blob_service_pb2 import BlobBegin, ReadBlobRequest, WriteBlobRequest
from stateward.v1.thread_pb2 import ThreadOptions
from stateward.v1.write_pb2 import WriteOptions

SIZE_MIB = 200
GROWTH_BYTES_MAX = 48 * MIB


def peak_bytes(daemon: Daemon) -> int:
    """The most memory that the daemon ever had."""
    for line in Path(f"/proc/{daemon.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    pytest.skip("this system does not tell how much memory a process had")


@pytest.mark.slow
def test_a_large_blob_is_streamed(daemon: Daemon, desk: BlobWire) -> None:
    """200 MiB written, copied, verified and read, while the daemon's memory grows by less than 48 MiB."""
    desk.put(b"warm")
    before, digest = peak_bytes(daemon), sha256()
    block = sha256(b"").digest() * (MIB // 32)

    def pieces() -> Iterator[WriteBlobRequest]:
        yield WriteBlobRequest(
            begin=BlobBegin(thread="t", options=WriteOptions(create=ThreadOptions()), size_bytes=SIZE_MIB * MIB)
        )
        for number in range(SIZE_MIB):
            data = number.to_bytes(8, "big") + block[8:]
            digest.update(data)
            yield WriteBlobRequest(data=data)

    blob = desk.blobs.WriteBlob(pieces(), timeout=110).blob
    assert (blob.sha256, blob.size_bytes) == (digest.digest(), SIZE_MIB * MIB)
    desk.save_blob(blob)
    desk.fork("copy")
    found = sha256()
    for message in desk.blobs.ReadBlob(ReadBlobRequest(thread="copy", blob=blob), timeout=110):
        found.update(message.data)
    assert found.digest() == blob.sha256
    assert desk.findings() == []
    assert peak_bytes(daemon) - before < GROWTH_BYTES_MAX
