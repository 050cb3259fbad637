"""Copies blobs for a copy of a thread: opens them under the source's key, and seals them under the copy's key."""

from __future__ import annotations

from stateward.storage.v1.journal_pb2 import BlobRecord
from stateward_sidecar.errors import BlobNotFound, Corrupt
from stateward_sidecar.store.blobs.blobread import BlobReader, elsewhere, note_read
from stateward_sidecar.store.blobs.blobrows import get_blob, list_blobs
from stateward_sidecar.store.blobs.blobwrite import Sealing
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.identity import Identity
from stateward_sidecar.store.thread.thread import Thread


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


def copy_blob(context: Context, source: Thread, target: Identity, digest: bytes) -> BlobRecord:
    """Copies the file of a blob to another thread, durably. The caller puts entry and row.

    Raises DiskFull, Corrupt, or HistoryElsewhere if the file is in the archive only.
    """
    try:
        with context.engine.read() as txn:
            record = get_blob(txn, source.identity, digest).record
    except BlobNotFound:
        raise Corrupt(f"a version names blob {digest.hex()}, which the thread does not have", source.name) from None
    reader, sealing = BlobReader(context, source, record), Sealing(context, target)
    try:
        with reader.open() as file:
            for segment in reader.segments(file):
                sealing.add(segment)
        copied = sealing.finish(record.media_type)
        if copied.sha256 != digest:
            raise Corrupt(f"the content of blob {digest.hex()} has another SHA-256", source.name)
    except BaseException:
        sealing.discard()
        raise
    return copied
