"""A daemon's blobs seen from the wire: generated stubs only."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.daemon.wire import TIMEOUT_S, Wire
from tests.messages import to_write

from stateward._operations.threads import spans_of
from stateward.testing import Daemon
from stateward.v1.blob_service_pb2 import (
    BlobBegin,
    ReadBlobRequest,
    StatBlobRequest,
    StatBlobResponse,
    WriteBlobRequest,
    WriteBlobResponse,
)
from stateward.v1.checkpoint_service_pb2 import SaveRequest, SaveResponse
from stateward.v1.diff_pb2 import Diff, Edit, SetSlot
from stateward.v1.state_pb2 import BlobRef, Value
from stateward.v1.thread_pb2 import ThreadOptions
from stateward.v1.thread_service_pb2 import DeleteThreadRequest, ForkThreadRequest, PruneThreadRequest
from stateward.v1.write_pb2 import WriteOptions

MIB = 1 << 20


class BlobWire(Wire):
    """All services of a daemon, and short words for what tests do with blobs."""

    def __init__(self, daemon: Daemon) -> None:
        super().__init__(daemon.target)
        self.directory = daemon.data_dir / "blobs"

    def write(self, data: bytes, thread: str = "t", *, piece: int = MIB, **begin: Any) -> WriteBlobResponse:
        """Writes a blob; makes the thread unless told otherwise."""
        begin.setdefault("create", ThreadOptions())
        answer: WriteBlobResponse = self.blobs.WriteBlob(
            messages(data, piece=piece, thread=thread, **begin), timeout=60, wait_for_ready=True
        )
        return answer

    def put(self, data: bytes, thread: str = "t", **begin: Any) -> BlobRef:
        """The same; returns what names it."""
        return self.write(data, thread, **begin).blob

    def read(self, blob: BlobRef, thread: str = "t", **range_: int) -> bytes:
        """Reads a blob or a range; checks that the pieces follow each other."""
        request = ReadBlobRequest(thread=thread, blob=blob, **range_)
        stream = self.blobs.ReadBlob(request, timeout=60, wait_for_ready=True)
        first, data, at = next(stream), b"", range_.get("offset", 0)
        assert (first.blob.sha256, first.blob.size_bytes) == (blob.sha256, blob.size_bytes or first.blob.size_bytes)
        for message in stream:
            assert message.offset == at
            assert 0 < len(message.data) <= MIB
            data += message.data
            at += len(message.data)
        return data

    def stat(self, blob: BlobRef, thread: str = "t") -> StatBlobResponse:
        """What is known of a blob."""
        answer: StatBlobResponse = self.blobs.StatBlob(
            StatBlobRequest(thread=thread, sha256=blob.sha256), timeout=TIMEOUT_S, wait_for_ready=True
        )
        return answer

    def save_blob(self, blob: BlobRef, version: int = 0, thread: str = "t", slot: str = "s") -> SaveResponse:
        """Saves a version that names a blob."""
        return self.save(names(blob, version, thread, slot))

    def delete(self, thread: str = "t") -> None:
        self.threads.DeleteThread(DeleteThreadRequest(thread=thread), timeout=TIMEOUT_S)

    def prune(self, *versions: int, thread: str = "t") -> None:
        request = PruneThreadRequest(thread=thread, versions=spans_of(versions))  # type: ignore[arg-type]
        self.threads.PruneThread(request, timeout=TIMEOUT_S)

    def fork(self, new: str, thread: str = "t", **fields: Any) -> None:
        self.threads.ForkThread(to_write(ForkThreadRequest, thread=thread, new_thread=new, **fields), timeout=60)

    def files(self) -> list[Path]:
        """Every file below blobs/, finished or not."""
        found = os.walk(self.directory)  # passes over what is removed meanwhile
        return sorted(Path(folder, name) for folder, _, names in found for name in names)

    def file_of(self, blob: BlobRef, thread: str = "t") -> Path:
        """The only file of a thread, or the one of the blob's stored size."""
        uid = self.thread("", thread).uid
        size = self.stat(blob, thread).stored_bytes
        found = [path for path in (self.directory / uid).iterdir() if path.stat().st_size == size]
        assert len(found) == 1
        return found[0]


def messages(data: bytes, *, piece: int = MIB, thread: str = "t", **begin: Any) -> Iterator[WriteBlobRequest]:
    """What writes a blob."""
    yield WriteBlobRequest(begin=to_write(BlobBegin, thread=thread, **begin))
    for at in range(0, len(data), piece):
        yield WriteBlobRequest(data=data[at : at + piece])


def names(blob: BlobRef, version: int = 0, thread: str = "t", slot: str = "s") -> SaveRequest:
    """A save that puts a blob into a slot."""
    edit = Edit(set_slot=SetSlot(slot=slot, value=Value(media_type="application/pdf", blob=blob)))
    return SaveRequest(
        thread=thread, options=WriteOptions(request_id=f"{thread}-{version}-{slot}", expected_version=version),
        diff=Diff(edits=[edit])
    )


def random_bytes(size: int) -> bytes:
    """Bytes that do not compress, so that stored sizes tell blobs apart."""
    return os.urandom(size)
