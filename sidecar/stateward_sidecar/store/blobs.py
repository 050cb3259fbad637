"""The verbs of blobs, and the access to sealed files for the archive.

A blob is a row of its thread (store/blobrows.py) and a sealed file (storage/blobfiles.py, codec/blob.py). If the file
is in the archive only, HistoryElsewhere names the file to fetch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import lmdb

from stateward.storage.v1.head_pb2 import BlobRow
from stateward.storage.v1.journal_pb2 import ENTRY_KIND_OPTIONS, EntryMetadata
from stateward.v1.blob_service_pb2 import (
    BlobBegin,
    ReadBlobRequest,
    ReadBlobResponse,
    StatBlobRequest,
    StatBlobResponse,
    WriteBlobResponse,
)
from stateward_sidecar.codec.blob import SEGMENT_BYTES
from stateward_sidecar.codec.entry import draft as draft_content
from stateward_sidecar.errors import InvalidField
from stateward_sidecar.storage.blobfiles import guarded
from stateward_sidecar.storage.queue import Batch
from stateward_sidecar.store.blobread import BlobReader, elsewhere
from stateward_sidecar.store.blobrows import find_blob, get_blob, list_blobs, put_blob, view_blob
from stateward_sidecar.store.blobwrite import BlobWrite, answer_write, is_complete
from stateward_sidecar.store.context import Context
from stateward_sidecar.store.expecting import check_uid, find_draft
from stateward_sidecar.store.identity import Identity
from stateward_sidecar.store.journal import append, commit_entry
from stateward_sidecar.store.opening import describe_creation, opened, settle_options
from stateward_sidecar.store.thread import Thread
from stateward_sidecar.store.threads import Threads, not_found
from stateward_sidecar.store.views import reached

# A blob that is written again counts as written now. Its row is renewed only if it is older than this.
RENEWAL_S = 3600


class Blobs:
    """Writes, reads and describes blobs."""

    def __init__(self, context: Context, threads: Threads) -> None:
        self._context = context
        self._threads = threads

    def find_thread(self, begin: BlobBegin) -> Thread | None:
        """Returns the thread of a blob to write; None if the thread must be made first. Raises ThreadNotFound."""
        with self._context.engine.read() as txn:
            thread = self._threads.find(txn, begin.namespace, begin.thread)
        check_uid(thread.identity if thread is not None else None, begin)
        if thread is None and not begin.HasField("create"):
            raise not_found(begin.namespace, begin.thread)
        return thread

    def make_thread(self, begin: BlobBegin) -> Callable[[lmdb.Transaction, Batch], None]:
        """Returns the write that makes a thread without versions, for a first save that names a blob.

        The first entry of the thread holds its settings.
        """

        def run(txn: lmdb.Transaction, batch: Batch) -> None:
            if find_draft(self._threads, txn, batch, begin) is not None:
                return
            with opened(self._context, self._threads, txn, batch, begin) as draft:
                metadata, old_head = EntryMetadata(options=begin.create), draft.head
                describe_creation(draft, metadata, begin.create)
                entry = append(self._context, txn, draft, ENTRY_KIND_OPTIONS, draft_content(metadata))
                settle_options(txn, draft, old_head, entry.head, begin.create)
                commit_entry(self._context, txn, batch, draft, entry, {})
                self._threads.keep_draft(batch, draft)

        return run

    def find_written(self, thread: Thread, begin: BlobBegin) -> WriteBlobResponse | None:
        """Returns the answer if the thread has the announced blob already; else None. Raises InvalidField."""
        if not begin.sha256:
            return None
        with self._context.engine.read() as txn:
            row = find_blob(txn, thread.identity, begin.sha256)
        if row is None or not is_complete(self._context, thread.identity, row):
            return None
        if begin.HasField("size_bytes") and begin.size_bytes != row.record.size_bytes:
            raise InvalidField("begin.size_bytes", f"the blob with this SHA-256 has {row.record.size_bytes} bytes")
        return answer_write(thread, row)

    def renew(self, thread: Thread, sha256: bytes) -> Callable[[lmdb.Transaction, Batch], bool]:
        """Returns the write that counts a blob as written now. It returns False if the blob was removed meanwhile."""
        identity = thread.identity

        def run(txn: lmdb.Transaction, batch: Batch) -> bool:
            draft = self._threads.draft(txn, batch, identity.namespace, identity.name)
            if draft is None or draft.identity.uid != identity.uid:
                raise not_found(identity.namespace, identity.name)
            draft.check_writable()
            row = find_blob(txn, identity, sha256)
            if row is None:
                return False
            now = self._context.clock.now_us()
            if now - row.write_time_us > RENEWAL_S * 1_000_000:
                row.write_time_us = now
                put_blob(txn, identity, row)
            return True

        return run

    def begin_write(self, thread: Thread, begin: BlobBegin) -> BlobWrite:
        """Begins to write a blob. Makes no file yet, and does not block. Raises DiskFull or StateTooLarge."""
        return BlobWrite(self._context, thread, begin)

    def stat(self, request: StatBlobRequest) -> StatBlobResponse:
        """Describes a blob. Raises ThreadNotFound or VersionNotFound."""
        with self._context.engine.read() as txn:
            thread = self._threads.get(txn, request.namespace, request.thread)
            row = get_blob(txn, thread.identity, request.sha256)
        answer = StatBlobResponse(
            blob=view_blob(row.record), media_type=row.record.media_type, sequence=row.sequence,
            durability=reached(thread, row.sequence), stored_bytes=row.record.stored_bytes,
            is_here=self._context.blob_files.is_here(thread.identity.uid, row.record.blob_id),
        )  # fmt: skip
        answer.write_time.FromMicroseconds(row.write_time_us)
        return answer

    def read(self, request: ReadBlobRequest) -> Iterator[Callable[[], ReadBlobResponse]]:
        """Finds a blob, and yields one function for each segment of the range. Each function may be called again.

        Raises ThreadNotFound, VersionNotFound, InvalidField, Corrupt or HistoryElsewhere.
        """
        with self._context.engine.read() as txn:
            thread = self._threads.get(txn, request.namespace, request.thread)
            record = get_blob(txn, thread.identity, request.blob.sha256).record
        size = record.size_bytes
        if request.offset > size:
            raise InvalidField("offset", f"{request.offset} is beyond the end of a blob of {size} bytes")
        end = min(size, request.offset + request.length) if request.HasField("length") else size
        reader = BlobReader(self._context, thread, record)
        return _answers(reader, request.offset, end)


def _answers(reader: BlobReader, start: int, end: int) -> Iterator[Callable[[], ReadBlobResponse]]:
    first = ReadBlobResponse(blob=view_blob(reader.record), media_type=reader.record.media_type, offset=start)
    yield lambda: first
    while start < end:
        stop = min(end, (start // SEGMENT_BYTES + 1) * SEGMENT_BYTES)
        yield partial(_read_range, reader, start, stop)
        start = stop


def _read_range(reader: BlobReader, start: int, stop: int) -> ReadBlobResponse:
    """Reads bytes of one segment."""
    index, skipped = divmod(start, SEGMENT_BYTES)
    return ReadBlobResponse(offset=start, data=reader.segment(index)[skipped : skipped + stop - start])


class SealedBlobs:
    """The access of the archive: sealed files as they are, and the rows that name them."""

    def __init__(self, context: Context) -> None:
        self._files = context.blob_files

    @staticmethod
    def rows(txn: lmdb.Transaction, identity: Identity) -> list[BlobRow]:
        """Returns the rows of all blobs of a thread."""
        return list(list_blobs(txn, identity))

    def open_sealed(self, thread: Thread, blob_id: bytes) -> Path:
        """Returns the path of a sealed file. Raises HistoryElsewhere if the file is not on this disk."""
        path = self._files.path(thread.identity.uid, blob_id)
        if not path.exists():
            raise elsewhere(thread, blob_id)
        return path

    def install_sealed(self, uid: bytes, blob_id: bytes, source: bytes | Path) -> None:
        """Installs a fetched sealed file, durably. Damage in the file is found when it is read. Raises DiskFull."""
        if self.is_here(uid, blob_id):
            return
        file = self._files.create(uid, blob_id)
        try:
            if isinstance(source, bytes):
                file.write(source)
            else:
                guarded(lambda: _copy(source, file.write))
            file.publish()
        except BaseException:
            file.discard()
            raise

    def is_here(self, uid: bytes, blob_id: bytes) -> bool:
        """Returns whether the sealed file is on this disk."""
        return self._files.is_here(uid, blob_id)


def _copy(source: Path, write: Callable[[bytes], None]) -> None:
    with source.open("rb") as file:
        while data := file.read(SEGMENT_BYTES):
            write(data)
