"""The verbs of blobs.

A blob is a row of its thread (store/blobs/blobrows.py) and a sealed file (storage/blobfiles.py, codec/blob.py). If the
file is in the archive only, HistoryElsewhere names the blob to fetch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import lmdb

from stateward.storage.v1.head_pb2 import BlobRow
from stateward.storage.v1.journal_pb2 import EntryMetadata
from stateward.v1.blob_service_pb2 import (
    BlobBegin,
    ReadBlobRequest,
    ReadBlobResponse,
    StatBlobRequest,
    StatBlobResponse,
    WriteBlobResponse,
)
from stateward.v1.workspace_service_pb2 import ObjectsBegin
from stateward_sidecar.codec.blob import SEGMENT_BYTES
from stateward_sidecar.codec.entry import EntryContent
from stateward_sidecar.codec.entry import draft as draft_content
from stateward_sidecar.errors import InvalidField
from stateward_sidecar.storage.queue import Batch
from stateward_sidecar.store.blobs import blobsweep
from stateward_sidecar.store.blobs.blobread import BlobReader, archived_until, is_sound
from stateward_sidecar.store.blobs.blobrows import find_blob, get_written, put_blob, view_blob
from stateward_sidecar.store.blobs.blobwrite import BlobWrite, answer_write, is_here
from stateward_sidecar.store.journal.admitting import admit, check_uid, find_draft, get_same
from stateward_sidecar.store.journal.journal import append, commit_entry
from stateward_sidecar.store.journal.opening import describe_creation, opened, settle_options
from stateward_sidecar.store.journal.views import reached
from stateward_sidecar.store.kinds.blob import BLOB
from stateward_sidecar.store.kinds.setting import OPTIONS
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.thread import Thread, ThreadDraft
from stateward_sidecar.store.thread.threads import Threads, not_found
from stateward_sidecar.store.thread.times import blob_written_us

# A blob that is written again counts as written now. An entry says so if the last one is older than this, or than an
# hour of the day for which unnamed blobs are kept.
RENEWAL_S = 3600


def renewal_us() -> int:
    """Returns after how many microseconds a blob that is written again gets an entry."""
    return int(min(RENEWAL_S, blobsweep.KEPT_S / 24) * 1_000_000)


class Blobs:
    """Writes, reads and describes blobs."""

    def __init__(self, context: Context, threads: Threads) -> None:
        self._context = context
        self._threads = threads

    def find_thread(self, begin: BlobBegin | ObjectsBegin) -> Thread | None:
        """Returns the thread of an upload; None if the thread must be made first. Raises ThreadNotFound,
        UidMismatch."""
        with self._context.engine.read() as txn:
            thread = self._threads.find(txn, begin.namespace, begin.thread)
        check_uid(thread.identity if thread is not None else None, begin)
        if thread is None and not begin.options.HasField("create"):
            raise not_found(begin.namespace, begin.thread)
        return thread

    def make_thread(self, begin: BlobBegin | ObjectsBegin) -> Callable[[lmdb.Transaction, Batch], None]:
        """Returns the write that makes a thread without versions, for a first save that names a blob or a tree.

        The first entry of the thread holds its settings.
        """

        def run(txn: lmdb.Transaction, batch: Batch) -> None:
            if find_draft(self._threads, txn, batch, begin) is not None:
                return
            with opened(self._context, self._threads, txn, batch, begin) as draft:
                admit(self._context, draft, begin.options, needs_lease=False)
                metadata, old_head = EntryMetadata(options=begin.options.create), draft.head
                describe_creation(draft, metadata, begin.options.create)
                entry = append(self._context, txn, draft, OPTIONS, draft_content(metadata))
                settle_options(txn, draft, old_head, entry.head, begin.options.create)
                commit_entry(self._context, txn, batch, draft, entry, {})
                self._threads.keep_draft(batch, draft)

        return run

    def find_written(self, thread: Thread, begin: BlobBegin, sha256: bytes) -> BlobRow | None:
        """Returns the row of a blob; None if the thread does not have it. Raises InvalidField, Corrupt."""
        with self._context.engine.read() as txn:
            row = find_blob(txn, thread.identity, sha256)
        if row is not None and begin.HasField("size_bytes") and begin.size_bytes != row.record.size_bytes:
            raise InvalidField("begin.size_bytes", f"the blob with this SHA-256 has {row.record.size_bytes} bytes")
        return row

    def is_here(self, thread: Thread, row: BlobRow) -> bool:
        """Returns whether the file of a blob is on this disk, with its size."""
        return is_here(self._context, thread.identity, row.record)

    def is_sound(self, thread: Thread, row: BlobRow) -> bool:
        """Returns whether the file of a blob is on this disk, and can be opened. Reads all of it."""
        try:
            return is_sound(self._context, thread.identity, row.record)
        except FileNotFoundError:
            return False

    def is_archived(self, thread: Thread, row: BlobRow) -> bool:
        """Returns whether the archive should have a blob."""
        return self._context.archive is not None and row.sequence <= archived_until(thread)

    def renew(
        self, thread: Thread, row: BlobRow, *, ships: bool
    ) -> Callable[[lmdb.Transaction, Batch], WriteBlobResponse | None]:
        """Returns the write that counts a blob as written now. It returns None if the blob was removed meanwhile.

        ``ships``: the archive lost the blob, and this disk sends it again.
        """
        identity, content = thread.identity, draft_content(EntryMetadata(blob=row.record))

        def run(txn: lmdb.Transaction, batch: Batch) -> WriteBlobResponse | None:
            draft = get_same(self._threads, txn, batch, identity)
            draft.check_writable()
            # The thread may have been set aside and fetched anew: the orphan has rows of its own.
            now = find_blob(txn, draft.identity, row.record.sha256)
            if now is None or now.record.blob_id != row.record.blob_id:
                return None
            return self._write_again(txn, batch, draft, now, content, ships=ships)

        return run

    def _write_again(
        self,
        txn: lmdb.Transaction,
        batch: Batch,
        draft: ThreadDraft,
        row: BlobRow,
        content: EntryContent,
        *,
        ships: bool = False,
    ) -> WriteBlobResponse:
        """Counts a blob that the thread has as written now. Runs in the writer.

        An entry says it, so that every machine knows: another one would collect the blob a day after the first write.
        """
        context, sequence = self._context, row.sequence
        now_us = context.clock.now_us()
        if ships or now_us - blob_written_us(draft.head, row, now_us) > renewal_us():
            entry = append(context, txn, draft, BLOB, content)
            row.write_time_us, row.write_sequence = entry.header.create_time_us, entry.header.sequence
            put_blob(txn, draft.identity, row)
            commit_entry(context, txn, batch, draft, entry, {})
            self._threads.keep_draft(batch, draft)
            sequence = entry.header.sequence if ships else sequence
        return answer_write(txn, draft, row, sequence, existed=True)

    def begin_write(self, thread: Thread, begin: BlobBegin) -> BlobWrite:
        """Begins to write a blob. Makes no file yet, and does not block. Raises DiskFull, StateTooLarge,
        QuotaExceeded."""
        return BlobWrite(self._context, thread, begin, self._write_again)

    def stat(self, request: StatBlobRequest) -> StatBlobResponse:
        """Describes a blob. Raises ThreadNotFound or BlobNotFound."""
        with self._context.engine.read() as txn:
            thread = self._threads.get(txn, request.namespace, request.thread)
            row = get_written(txn, thread.identity, request.sha256)
        answer = StatBlobResponse(
            blob=view_blob(row.record), media_type=row.record.media_type, sequence=row.sequence,
            durability=reached(thread, row.sequence), stored_bytes=row.record.stored_bytes,
            is_here=self._context.blob_files.is_here(thread.identity.uid, row.record.blob_id),
        )  # fmt: skip
        answer.write_time.FromMicroseconds(row.write_time_us)
        return answer

    def read(self, request: ReadBlobRequest) -> Iterator[Callable[[], ReadBlobResponse]]:
        """Finds a blob, and yields one function for each segment of the range. Each function may be called again.

        Raises ThreadNotFound, BlobNotFound, InvalidField, Corrupt or HistoryElsewhere.
        """
        with self._context.engine.read() as txn:
            thread = self._threads.get(txn, request.namespace, request.thread)
            record = get_written(txn, thread.identity, request.blob.sha256).record
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
