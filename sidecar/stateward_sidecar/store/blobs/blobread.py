"""Reads and verifies sealed blobs.

Reads a sealed blob: first its index, then any single segment.

Verifies a thread's blobs: their rows, their journal entries, and every segment of every file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from hashlib import sha256
from io import FileIO

import lmdb

from stateward.storage.v1.head_pb2 import BlobRow
from stateward.storage.v1.journal_pb2 import BlobRecord
from stateward.v1.thread_pb2 import THREAD_ACCESS_ORPHAN
from stateward_sidecar.codec.blob import check_header, cipher_of, count_segments, index_bytes, open_all
from stateward_sidecar.codec.entry import unpack
from stateward_sidecar.codec.seal import PREFIX_BYTES
from stateward_sidecar.codec.state import StateTree
from stateward_sidecar.errors import Corrupt, HistoryElsewhere, StatewardError
from stateward_sidecar.storage import layout
from stateward_sidecar.store.blobs.blobrows import blob_key, blobs_in_state, find_blob, list_blobs, removed
from stateward_sidecar.store.journal import replay
from stateward_sidecar.store.kinds.blob import BLOB
from stateward_sidecar.store.thread import blocks
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.thread import Identity, Thread
from stateward_sidecar.store.thread.threads import not_found

# How often it is noted that a fetched file is read.
READ_PAUSE_US = 3600 * 1_000_000


class BlobReader:
    """Reads segments of a blob. Keeps no file open between two reads, unless the caller does. Raises Corrupt."""

    def __init__(self, context: Context, thread: Thread, record: BlobRecord) -> None:
        """Reads the index. Raises HistoryElsewhere if the file is in the archive only, ThreadNotFound or Corrupt."""
        self.record = record
        self._context = context
        self._thread = thread
        identity = thread.identity
        note_read(context, identity, record)
        try:
            self._cipher = cipher_of(record)
            with self.open() as file:
                self._starts = self._read_index(file.fileno())
        except Corrupt as error:
            raise error.locate(identity.name) from None

    def open(self) -> FileIO:
        """Opens the file. Whoever keeps it open reads all of a blob that is collected meanwhile."""
        identity, blob_id = self._thread.identity, self.record.blob_id
        try:
            return FileIO(self._context.blob_files.path(identity.uid, blob_id))
        except FileNotFoundError:
            raise missing_file(self._context, self._thread, self.record) from None

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
        with self.open() as file:
            return self._segment(file, index)

    def segments(self, file: FileIO) -> Iterator[bytes]:
        """Yields all segments, in order. ``file``: see ``open``."""
        return (self._segment(file, index) for index in range(count_segments(self.record.size_bytes)))

    def _segment(self, file: FileIO, index: int) -> bytes:
        start, end = self._starts[index : index + 2]
        try:
            sealed = os.pread(file.fileno(), end - start, start)
            return self._cipher.open_segment(index, sealed, self.record.size_bytes)
        except Corrupt as error:
            raise error.locate(self._thread.name) from None


def missing_file(context: Context, thread: Thread, record: BlobRecord) -> StatewardError:
    """Returns the error for a file that is not on this disk."""
    identity, digest = thread.identity, record.sha256
    if thread.is_deleted:
        return not_found(identity.namespace, identity.name)
    with context.engine.read() as txn:
        row = find_blob(txn, identity, digest)
    if row is None:
        return removed(identity, digest)
    is_other = row.record.blob_id != record.blob_id  # its bytes were lost, and were written again meanwhile
    if is_other or (context.archive is not None and row.sequence <= archived_until(thread)):
        return elsewhere(thread, digest)
    return Corrupt(f"the file of blob {digest.hex()} is missing", thread.name)


def note_read(context: Context, identity: Identity, record: BlobRecord) -> None:
    """Notes that a fetched file is read, or will be read soon, so that no sweep removes it."""
    files, now_us = context.blob_files, context.clock.now_us()
    read_us = files.read_us(identity.uid, record.blob_id)
    if read_us is not None and now_us - read_us > READ_PAUSE_US:
        files.mark_read(identity.uid, record.blob_id, now_us)


def is_sound(context: Context, identity: Identity, record: BlobRecord, *, anew: bool = False) -> bool:
    """Returns whether the file of a blob can be opened, every byte of it. Raises FileNotFoundError.

    A file that was found whole is not read again as long as it looks the same, unless ``anew``.
    """
    files, blob_id = context.blob_files, bytes(record.blob_id)
    if not anew and files.is_known_sound(identity.uid, blob_id):
        return True
    with FileIO(files.path(identity.uid, blob_id)) as file:
        found = os.fstat(file.fileno())
        sound = found.st_size == record.stored_bytes and _opens(file, record)
        files.note_sound(blob_id, found, is_sound=sound)
    return sound


def _opens(file: FileIO, record: BlobRecord) -> bool:
    try:
        for _ in open_all(lambda offset, length: os.pread(file.fileno(), length, offset), record):
            pass
    except (Corrupt, OSError):  # a disk that cannot read it, too
        return False
    return True


def archived_until(thread: Thread) -> int:
    """Returns the last entry of a line that the archive has. An orphan has the common history there."""
    row = thread.archive
    return row.common_sequence if row is not None and row.access == THREAD_ACCESS_ORPHAN else thread.archived_sequence


def elsewhere(thread: Thread, *digests: bytes) -> HistoryElsewhere:
    """Returns the error for blobs whose files only the archive has. Its ``blobs`` holds every SHA-256, with commas."""
    return HistoryElsewhere(
        f"a blob of thread {thread.name!r} is in the archive only", namespace=thread.identity.namespace,
        thread=thread.name, blobs=",".join(each.hex() for each in digests),
    )  # fmt: skip


# Segments read in one step of a verification.
SEGMENTS_A_STEP = 8


def verify_blobs(context: Context, thread: Thread) -> Iterator[tuple[StatewardError | None, int]]:
    """Yields findings, and numbers of records that were read. A blob that is removed meanwhile is not a finding."""
    try:
        with context.engine.read() as txn:
            found = list(list_blobs(txn, thread.identity))
            wrong = [_verify_entry(txn, thread, row) for row in found]
            if found and txn.get(layout.blobs_key(thread.number)) is None:
                wrong.append(Corrupt("the row of the thread's blobs is missing", thread.name))
    except Corrupt as error:
        yield error, 1
        return
    yield from ((each, 0) for each in wrong if each is not None)
    for row in found:
        try:
            yield from ((None, count) for count in _read_all(context, thread, row))
        except HistoryElsewhere:
            if (lost := _find_loss(context, thread, row)) is not None:
                yield lost, 1
        except StatewardError as error:
            if _is_still_there(context, thread, row):
                yield error, 1


def check_state_blobs(txn: lmdb.Transaction, thread: Thread, tree: StateTree, brought: set[bytes] | None) -> None:
    """Raises Corrupt unless the thread has the blobs that a version names.

    ``brought``: the blobs in the version's edits, if its parent was checked before; None = check the whole state.
    """
    for digest in sorted(blobs_in_state(tree) if brought is None else brought):
        if txn.get(blob_key(thread.identity, digest)) is None:
            raise Corrupt(f"the version names blob {digest.hex()}, which the thread does not have")


def _verify_entry(txn: lmdb.Transaction, thread: Thread, row: BlobRow) -> Corrupt | None:
    """Returns the damage in the entry of a blob; None if there is none, or if the entry is not needed here."""
    record = blocks.get_entry(txn, thread.identity.keys, row.sequence)
    if record is None:
        shared = archived_until(thread) if thread.access == THREAD_ACCESS_ORPHAN else 0  # the owner may have cleaned it
        if row.sequence <= max(thread.floor_sequence, shared) or row.sequence in thread.pruned.loose:
            return None
        return Corrupt("the journal entry of a blob is missing", thread.name)
    try:
        entry = unpack(record, row.sequence)
        metadata = replay.open_metadata(thread.identity, entry)
    except Corrupt:
        return None  # the check of the journal reports it
    if entry.header.kind != BLOB.number or metadata.blob != row.record:
        return Corrupt("the row of a blob differs from its journal entry", thread.name)
    return None


def _read_all(context: Context, thread: Thread, row: BlobRow) -> Iterator[int]:
    reader, digest, count = BlobReader(context, thread, row.record), sha256(), 0
    with reader.open() as file:
        for segment in reader.segments(file):
            digest.update(segment)
            count += 1
            if count % SEGMENTS_A_STEP == 0:
                yield SEGMENTS_A_STEP
    if digest.digest() != row.record.sha256:
        raise Corrupt(f"the content of blob {row.record.sha256.hex()} has another SHA-256", thread.name)
    yield count % SEGMENTS_A_STEP


def _find_loss(context: Context, thread: Thread, row: BlobRow) -> StatewardError | None:
    """Returns the damage if neither this disk nor the archive has the bytes of a blob. Whether its bytes in the archive
    can be opened is seen when the archive is verified."""
    hooks = context.archive
    if hooks is None or hooks.is_away():
        return None
    try:
        hooks.check_blob((thread.identity.namespace, thread.name), row.record.sha256)
    except Corrupt as error:
        return error
    except StatewardError:  # the archive does not answer, or the thread is gone or given up meanwhile
        return None
    return None


def _is_still_there(context: Context, thread: Thread, row: BlobRow) -> bool:
    with context.engine.read() as txn:
        if txn.get(thread.identity.keys.head) is None:
            return False
        found = find_blob(txn, thread.identity, row.record.sha256)
        return found is not None and found.record.blob_id == row.record.blob_id
