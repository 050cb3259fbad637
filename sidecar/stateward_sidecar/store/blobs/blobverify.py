"""Verifies a thread's blobs: their rows, their journal entries, and every segment of every file."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256

import lmdb

from stateward.storage.v1.head_pb2 import BlobRow
from stateward.v1.thread_pb2 import THREAD_ACCESS_ORPHAN
from stateward_sidecar.codec.entry import unpack
from stateward_sidecar.codec.state import StateTree
from stateward_sidecar.errors import Corrupt, HistoryElsewhere, StatewardError
from stateward_sidecar.storage import layout
from stateward_sidecar.store.blobs.blobread import BlobReader, archived_until
from stateward_sidecar.store.blobs.blobrows import blob_key, blobs_in_state, find_blob, list_blobs
from stateward_sidecar.store.journal import replay
from stateward_sidecar.store.kinds.blob import BLOB
from stateward_sidecar.store.thread import blocks
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.thread import Thread

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
        if txn.get(thread.identity.keys.head()) is None:
            return False
        found = find_blob(txn, thread.identity, row.record.sha256)
        return found is not None and found.record.blob_id == row.record.blob_id
