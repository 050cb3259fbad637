"""Reads a sealed blob: first its index, then any single segment."""

from __future__ import annotations

import os
from collections.abc import Iterator
from io import FileIO

from stateward.storage.v1.journal_pb2 import BlobRecord
from stateward_sidecar.codec.blob import BlobCipher, check_header, count_segments, index_bytes
from stateward_sidecar.codec.seal import PREFIX_BYTES
from stateward_sidecar.errors import Corrupt, HistoryElsewhere
from stateward_sidecar.store.context import Context
from stateward_sidecar.store.thread import Thread
from stateward_sidecar.store.threads import not_found


class BlobReader:
    """Reads segments of a blob. Keeps no file open between two reads. Raises Corrupt."""

    def __init__(self, context: Context, thread: Thread, record: BlobRecord) -> None:
        """Reads the index. Raises HistoryElsewhere if the file is in the archive only, ThreadNotFound or Corrupt."""
        self.record = record
        self._context = context
        self._thread = thread
        identity = thread.identity
        self._cipher = BlobCipher(identity.cipher, identity.uid, record.blob_id)
        try:
            with self._open() as file:
                self._starts = self._read_index(file.fileno())
        except Corrupt as error:
            raise error.locate(identity.name) from None

    def _open(self) -> FileIO:
        identity, blob_id = self._thread.identity, self.record.blob_id
        try:
            return FileIO(self._context.blob_files.path(identity.uid, blob_id))
        except FileNotFoundError:
            pass
        if self._thread.is_deleted:
            raise not_found(identity.namespace, identity.name)
        if self._context.archive is not None:
            raise elsewhere(self._thread, blob_id)
        raise Corrupt(f"the file of blob {self.record.sha256.hex()} is missing")

    def _read_index(self, fd: int) -> list[int]:
        record = self.record
        check_header(os.pread(fd, PREFIX_BYTES, 0))
        file_bytes, length = os.fstat(fd).st_size, index_bytes(record.size_bytes)
        sealed = os.pread(fd, length, max(file_bytes - length, 0))
        starts = self._cipher.open_index(sealed, record.size_bytes, record.sha256)
        if starts[-1] + length != file_bytes:
            raise Corrupt(f"the file of a blob has {file_bytes} bytes, not {starts[-1] + length}")
        return starts

    def segment(self, index: int) -> bytes:
        """Returns the bytes of a segment."""
        start, end = self._starts[index : index + 2]
        try:
            with self._open() as file:
                sealed = os.pread(file.fileno(), end - start, start)
            return self._cipher.open_segment(index, sealed, self.record.size_bytes)
        except Corrupt as error:
            raise error.locate(self._thread.name) from None

    def segments(self) -> Iterator[bytes]:
        """Yields all segments, in order."""
        return map(self.segment, range(count_segments(self.record.size_bytes)))


def elsewhere(thread: Thread, *blob_ids: bytes) -> HistoryElsewhere:
    """Returns the error for blobs whose files only the archive has. Its ``blob_id`` holds all ids, with commas."""
    return HistoryElsewhere(
        f"a blob of thread {thread.name!r} is in the archive only", namespace=thread.identity.namespace,
        thread=thread.name, blob_id=",".join(each.hex() for each in blob_ids),
    )  # fmt: skip
