"""Writes one blob, or copies it for a copy of a thread.

Writes one blob: seals its segments as they come, makes the file durable, then adds one entry to the journal.

The order is: sync the file, rename it, sync the directories, then commit the transaction that names it. A crash before
the commit leaves a file that no row names, and the next start removes it. No more than one segment is in memory.

The methods block, and may be called on any thread. After ``commit`` was queued, only its outcome decides whether the
file may be discarded. If the outcome is unknown, the file stays.

Copies blobs for a copy of a thread.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256

import lmdb

from stateward.storage.v1.head_pb2 import BlobRow
from stateward.storage.v1.journal_pb2 import BlobRecord, EntryMetadata
from stateward.v1.blob_service_pb2 import BlobBegin, WriteBlobResponse
from stateward_sidecar.codec.blob import BLOB_ID_BYTES, SEGMENT_BYTES, BlobCipher, sealed_bytes_max
from stateward_sidecar.codec.compress import LEVEL
from stateward_sidecar.codec.edits import MAX_PREVIEW_BYTES
from stateward_sidecar.codec.entry import EntryContent
from stateward_sidecar.codec.entry import draft as draft_content
from stateward_sidecar.codec.seal import KEY_BYTES
from stateward_sidecar.errors import (
    ArchiveUnavailable,
    BlobNotFound,
    Corrupt,
    DeadlineExceeded,
    InvalidField,
    StateTooLarge,
    no_room,
)
from stateward_sidecar.storage.blobfiles import NewBlobFile
from stateward_sidecar.storage.queue import Batch
from stateward_sidecar.store.blobs.blobread import BlobReader, archived_until, elsewhere, missing_file, note_read
from stateward_sidecar.store.blobs.blobrows import find_blob, get_blob, list_blobs, put_blob, view_blob
from stateward_sidecar.store.blobs.blobsweep import remove_blob
from stateward_sidecar.store.journal.admitting import admit, get_same
from stateward_sidecar.store.journal.journal import LARGE_BYTES, append, commit_entry
from stateward_sidecar.store.journal.views import receipt_of
from stateward_sidecar.store.kinds.blob import BLOB
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.thread import Identity, Thread, ThreadDraft
from stateward_sidecar.store.thread.threads import Threads
from stateward_sidecar.store.thread.usage import Reserved

BLOB_BYTES_MAX = 64 << 30
# Counts a blob that the thread has as written now, in the writer. Takes transaction, batch, draft, row and entry.
Again = Callable[[lmdb.Transaction, Batch, ThreadDraft, BlobRow, EntryContent], WriteBlobResponse]


class Sealing:
    """Seals bytes into a file. The file is made when the first bytes come."""

    def __init__(self, context: Context, identity: Identity, level: int | None = LEVEL) -> None:
        """``level``: of the compression; None keeps the length of the bytes, which are compressed already."""
        self.blob_id = os.urandom(BLOB_ID_BYTES)
        self.size_bytes = 0
        self._level = level
        self._data_key = os.urandom(KEY_BYTES)
        self._cipher = BlobCipher(self._data_key, self.blob_id)
        self._create = partial(context.blob_files.create, identity.uid, self.blob_id)
        self._file: NewBlobFile | None = None
        self._hash = sha256()
        self._preview = b""
        self._lengths: list[int] = []
        self._pending = b""  # held back, because the last segment is sealed as the last one

    def add(self, data: bytes) -> None:
        """Takes the next segment: ``SEGMENT_BYTES``, or fewer in the last one. Raises DiskFull."""
        if self._file is None:
            self._file = self._create()
            self._file.write(self._cipher.header)
            self._preview = data[:MAX_PREVIEW_BYTES]
        else:
            self._seal(self._pending, is_last=False)
        self._hash.update(data)
        self.size_bytes += len(data)
        self._pending = data

    def finish(self, media_type: str) -> BlobRecord:
        """Seals the last segment, and makes the file durable. Raises DiskFull."""
        record = self.seal(media_type)
        self.publish()
        return record

    def seal(self, media_type: str) -> BlobRecord:
        """Seals the last segment. Raises DiskFull."""
        if self._file is None:
            self.add(b"")
        assert self._file is not None
        self._seal(self._pending, is_last=True)
        digest = self.digest
        self._file.write(self._cipher.seal_index(self._lengths, self.size_bytes, digest))
        return BlobRecord(
            blob_id=self.blob_id, sha256=digest, size_bytes=self.size_bytes, media_type=media_type,
            preview=self._preview, stored_bytes=self._file.size_bytes, data_key=self._data_key,
        )  # fmt: skip

    def publish(self) -> None:
        """Makes the sealed file durable. Raises DiskFull, or FileNotFoundError if the thread was deleted meanwhile."""
        assert self._file is not None
        self._file.publish()

    @property
    def stored_bytes(self) -> int:
        """How long the file is so far."""
        return self._file.size_bytes if self._file is not None else 0

    @property
    def digest(self) -> bytes:
        """SHA-256 of the bytes so far."""
        return self._hash.digest()

    def discard(self) -> None:
        """Removes the file."""
        if self._file is not None:
            self._file.discard()

    def _seal(self, data: bytes, *, is_last: bool) -> None:
        assert self._file is not None
        sealed = self._cipher.seal_segment(len(self._lengths), data, is_last=is_last, level=self._level)
        self._lengths.append(len(sealed))
        self._file.write(sealed)


class BlobWrite:
    """One call of WriteBlob."""

    def __init__(self, context: Context, thread: Thread, begin: BlobBegin, again: Again) -> None:
        """Raises DiskFull or StateTooLarge if the announced size is too large; QuotaExceeded."""
        self.thread = thread
        self._context = context
        self._begin = begin
        self._again = again
        self._announced = begin.size_bytes if begin.HasField("size_bytes") else None
        size = self._announced or 0
        _check_size(size)
        room = context.engine.disk_room_bytes()
        if sealed_bytes_max(size) > room:
            raise no_room(sealed_bytes_max(size), room)
        self._sealing = Sealing(context, thread.identity)
        self._reserved = Reserved(context.usage, thread.identity.namespace)
        self._reserved.take(0)
        # A cancelled call discards the file while a worker may still run its last step.
        self._lock = threading.Lock()
        self._is_over = False
        self.record: BlobRecord | None = None  # after ``finish``
        self._content = draft_content(EntryMetadata())
        # The blob with the same bytes whose own bytes were found to be lost. This blob takes its place.
        self.lost: BlobRecord | None = None

    def add(self, segment: bytes) -> None:
        """Takes the next ``SEGMENT_BYTES``. Raises DiskFull, StateTooLarge or InvalidField."""
        assert len(segment) == SEGMENT_BYTES
        with self._lock:
            self._check_open()
            self._take(segment)

    def finish(self, rest: bytes) -> None:
        """Takes the last bytes, fewer than a segment, and makes the file durable. Raises as ``add``."""
        with self._lock:
            self._check_open()
            self._finish(rest)

    def _finish(self, rest: bytes) -> None:
        if rest:
            self._take(rest)
        size, begin = self._sealing.size_bytes, self._begin
        if self._announced is not None and size != self._announced:
            raise InvalidField("begin.size_bytes", f"is {self._announced}, but {size} bytes were received")
        if begin.sha256 and self._sealing.digest != begin.sha256:
            raise InvalidField("begin.sha256", f"the bytes that were received have {self._sealing.digest.hex()}")
        self.record = self._sealing.seal(begin.media_type)
        self._content = draft_content(EntryMetadata(blob=self.record))
        with suppress(FileNotFoundError):  # the thread was deleted here, and its files with it: ``commit`` says so
            self._sealing.publish()

    def _check_open(self) -> None:
        if self._is_over:
            raise DeadlineExceeded("the call was cancelled; nothing was stored")

    def _take(self, data: bytes) -> None:
        size = self._sealing.size_bytes + len(data)
        if self._announced is not None and size > self._announced:
            raise InvalidField("begin.size_bytes", f"is {self._announced}, but more bytes were received")
        _check_size(size)
        self._sealing.add(data)
        self._reserved.take(self._sealing.stored_bytes)

    def commit(self, threads: Threads, txn: lmdb.Transaction, batch: Batch) -> WriteBlobResponse:
        """Runs in the writer. The caller discards the file if the answer has ``existed``, or if the write failed.

        The copy of the thread may have been deleted on this disk during the write, and may be back from the archive,
        under the same uid. A row must not name the file that went with it.
        """
        record, context = self.record, self._context
        assert record is not None
        draft = get_same(threads, txn, batch, self.thread.identity)  # the bytes are sealed with its key
        draft.check_writable()
        identity = draft.identity
        row = find_blob(txn, identity, record.sha256)
        if row is not None and not self._is_lost(draft.thread, row):
            # Another call wrote it since the service looked.
            return self._again(txn, batch, draft, row, self._content)
        admit(context, draft, self._begin.options, needs_lease=False)
        if not is_here(context, identity, record):
            raise ArchiveUnavailable(
                f"the copy of thread {identity.name!r} on this disk was deleted during the write, and the bytes with "
                "it; send them again"
            )
        if row is not None:
            remove_blob(context, txn, batch, draft, row)
        entry = append(context, txn, draft, BLOB, self._content)
        entry.head.stored_bytes += record.stored_bytes
        header = entry.header
        row = BlobRow(
            record=record, sequence=header.sequence, write_time_us=header.create_time_us,
            write_sequence=header.sequence,
        )  # fmt: skip
        put_blob(txn, identity, row)
        self._reserved.end()  # the entry counts the bytes
        commit_entry(context, txn, batch, draft, entry, {}, is_bounded=True)
        threads.keep_draft(batch, draft)
        return answer_write(txn, draft, row, row.sequence, existed=False)

    def _is_lost(self, thread: Thread, row: BlobRow) -> bool:
        """Returns whether the bytes of the thread's blob are lost, as far as this disk can tell."""
        if self.lost is not None and self.lost.blob_id == row.record.blob_id:
            return True
        is_archived = self._context.archive is not None and row.sequence <= archived_until(thread)
        return not is_archived and not is_here(self._context, thread.identity, row.record)

    @property
    def is_large(self) -> bool:
        """Whether the upload of the blob takes long."""
        return self._sealing.size_bytes >= LARGE_BYTES

    def discard(self) -> None:
        """Removes the file. Later steps of the call raise DeadlineExceeded."""
        with self._lock:
            self._is_over = True
            self._sealing.discard()
            self._reserved.end()


def is_here(context: Context, identity: Identity, record: BlobRecord) -> bool:
    """Returns whether the file of a blob is on this disk, with its size."""
    return context.blob_files.is_whole(identity.uid, record.blob_id, record.stored_bytes)


def answer_write(
    txn: lmdb.Transaction, draft: ThreadDraft, row: BlobRow, sequence: int, *, existed: bool
) -> WriteBlobResponse:
    """Returns the answer to a write."""
    return WriteBlobResponse(
        receipt=receipt_of(txn, draft, sequence), blob=view_blob(row.record), existed=existed
    )


def _check_size(size_bytes: int) -> None:
    if size_bytes > BLOB_BYTES_MAX:
        raise StateTooLarge(
            size_bytes, BLOB_BYTES_MAX, f"a blob of {size_bytes} bytes is larger than the limit of {BLOB_BYTES_MAX}"
        )


def require_blobs(context: Context, source: Thread, digests: set[bytes] | None = None) -> None:
    """Raises HistoryElsewhere if the files of some blobs are in the archive only. The error names all of them.

    ``digests``: the blobs to check; None = all blobs of the thread. Call this before the copy begins, because a copy
    begins again after the files were fetched.
    """
    if context.archive is None:
        return
    identity = source.identity
    with context.engine.read() as txn:
        wanted = [row.record for row in list_blobs(txn, identity) if digests is None or row.record.sha256 in digests]
    for each in wanted:  # before the look: a long copy reads a file hours later
        note_read(context, identity, each)
    missing = [each.sha256 for each in wanted if not context.blob_files.is_here(identity.uid, each.blob_id)]
    if missing:
        raise elsewhere(source, *missing)


def find_blobs(context: Context, source: Thread, digests: Iterable[bytes]) -> list[BlobRecord]:
    """Returns blobs that versions of a thread name. Raises Corrupt."""
    with context.engine.read() as txn:
        return [_named(txn, source, digest) for digest in digests]


def copy_blobs(context: Context, source: Thread, target: Identity, records: Sequence[BlobRecord]) -> None:
    """Gives a copy of a thread the files of blobs, durably. The caller puts entries and rows.

    The copy has the same files with the same keys, so a blob takes nothing of the disk but its name. It counts for the
    copy nevertheless, which keeps the file if the source goes. Raises DiskFull, Corrupt, or HistoryElsewhere if a file
    is in the archive only.
    """
    for record in records:
        BlobReader(context, source, record)  # its header and index can be opened
        try:
            context.blob_files.duplicate(source.identity.uid, target.uid, record.blob_id, record.stored_bytes)
        except FileNotFoundError:
            raise missing_file(context, source, record) from None
        except Corrupt as error:
            raise error.locate(source.name) from None
    if records:
        context.blob_files.sync_names(target.uid)


def _named(txn: lmdb.Transaction, source: Thread, digest: bytes) -> BlobRecord:
    try:
        return get_blob(txn, source.identity, digest).record
    except BlobNotFound:
        raise Corrupt(f"a version names blob {digest.hex()}, which the thread does not have", source.name) from None
