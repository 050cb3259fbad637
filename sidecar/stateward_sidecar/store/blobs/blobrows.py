"""The rows of a thread's blobs, and the blobs that states and edits name.

Row ``Q`` stands for a complete blob. It is put in the transaction of the blob's entry, after the file is durable. It is
removed when nothing names the blob any more, with an entry that says so. Its key is a keyed hash of the content's
SHA-256.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import lmdb

from stateward.storage.v1.head_pb2 import BlobRow
from stateward.storage.v1.journal_pb2 import BlobRecord
from stateward.v1.diff_pb2 import Diff
from stateward.v1.state_pb2 import BlobRef, Value
from stateward_sidecar.codec.edits import Named
from stateward_sidecar.codec.entries import SealedRun
from stateward_sidecar.codec.entry import unpack
from stateward_sidecar.codec.seal import length_prefixed
from stateward_sidecar.codec.state import StateTree, find_data
from stateward_sidecar.codec.varints import skip_prefix
from stateward_sidecar.errors import BlobNotFound, InvalidField
from stateward_sidecar.storage import layout
from stateward_sidecar.store.kinds.blob import BLOB, BLOB_REMOVED
from stateward_sidecar.store.thread import blocks
from stateward_sidecar.store.thread.table import Table
from stateward_sidecar.store.thread.thread import Identity, rows


def blob_key(identity: Identity, sha256: bytes) -> bytes:
    """Returns the row key of a blob."""
    return identity.keys.blob(identity.cipher.digest(length_prefixed(b"blob", sha256)))


BLOB_ROWS = Table(b"Q", BlobRow, "a blob", lambda identity, row: blob_key(identity, row.record.sha256))


def find_blob(txn: lmdb.Transaction, identity: Identity, sha256: bytes) -> BlobRow | None:
    """Returns the row of a blob; None if the thread has no such blob. Raises Corrupt."""
    return BLOB_ROWS.find(txn, identity, blob_key(identity, sha256))


def get_blob(txn: lmdb.Transaction, identity: Identity, sha256: bytes) -> BlobRow:
    """Returns the row of a blob. Raises BlobNotFound if the thread has no such blob, or Corrupt."""
    row = find_blob(txn, identity, sha256)
    if row is None:
        raise removed(identity, sha256)
    return row


def get_written(txn: lmdb.Transaction, identity: Identity, sha256: bytes) -> BlobRow:
    """Returns the row of a blob that a client wrote. Raises as ``get_blob``."""
    row = get_blob(txn, identity, sha256)
    if row.record.is_segment:
        raise removed(identity, sha256)
    return row


def removed(identity: Identity, sha256: bytes) -> BlobNotFound:
    """Returns the error for a blob that the thread does not have."""
    return BlobNotFound(
        f"thread {identity.name!r} has no blob {sha256.hex()}: it was not written, or it was removed because no "
        "retained version names it", thread=identity.name, sha256=sha256.hex(),
    )  # fmt: skip


def list_blobs(txn: lmdb.Transaction, identity: Identity) -> Iterator[BlobRow]:
    """Yields the rows of all blobs of a thread. Raises Corrupt."""
    for _, row in BLOB_ROWS.rows(txn, identity):
        yield row


# After more entries than this the rows are read instead.
CHANGES_MAX = 256


class OpenedBlobs:
    """The rows of a thread's blobs as they were opened last, while this process holds the thread. A row that has not
    changed is not opened again, so a ship opens what changed. If no entry since then is about a blob, no row is read: a
    long log has thousands of segments. Any thread may use it: what it knows is replaced as a whole."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        # By key: as sealed, and opened; all that are opened; and the newest entry at that time.
        self._known: tuple[dict[bytes, tuple[bytes, BlobRow]], list[BlobRow], int] = {}, [], 0

    def list(self, txn: lmdb.Transaction, identity: Identity, tip_sequence: int = 0) -> list[BlobRow]:
        """Returns the rows of all blobs: the same list as before if none has changed. Nobody may change list or rows.
        Raises Corrupt. ``tip_sequence``: the newest entry; 0 = all rows are read."""
        before, listed, seen = self._known
        if seen and _has_no_blob(txn, identity, seen, tip_sequence):
            self._known = before, listed, tip_sequence
            return listed
        found, is_same = dict[bytes, tuple[bytes, BlobRow]](), True
        for key, record in rows(txn, identity.keys.all_of(b"Q")):
            known = before.get(key)
            if known is None or known[0] != record:
                known, is_same = (bytes(record), BLOB_ROWS.open(identity, key, record)), False
            found[key] = known
        if not is_same or len(found) != len(before):
            listed = [row for _, row in found.values()]
        self._known = found, listed, tip_sequence
        return listed


def _has_no_blob(txn: lmdb.Transaction, identity: Identity, after: int, until: int) -> bool:
    """Whether no entry of these changed rows of blobs: each change has an entry that says so."""
    if not after <= until <= after + CHANGES_MAX:
        return False
    for sequence in range(after + 1, until + 1):
        record = blocks.get_entry(txn, identity.keys, sequence)
        if record is None or unpack(record, sequence).header.kind in (BLOB.number, BLOB_REMOVED.number):
            return False
    return True


def put_blob(txn: lmdb.Transaction, identity: Identity, row: BlobRow) -> None:
    """Puts the row of a blob, and the row that lists the thread among those with blobs."""
    BLOB_ROWS.put(txn, identity, blob_key(identity, row.record.sha256), row)
    txn.put(layout.blobs_key(identity.number), layout.PRESENT)


def delete_blob(txn: lmdb.Transaction, identity: Identity, sha256: bytes) -> None:
    """Removes the row of a blob."""
    txn.delete(blob_key(identity, sha256))
    if next(rows(txn, identity.keys.all_of(b"Q")), None) is None:
        txn.delete(layout.blobs_key(identity.number))


def view_blob(record: BlobRecord) -> BlobRef:
    """Returns the reference by which a value names a blob."""
    return BlobRef(sha256=record.sha256, size_bytes=record.size_bytes, preview=record.preview)


def check_named(txn: lmdb.Transaction, identity: Identity | None, named: Sequence[Named]) -> None:
    """Raises InvalidField unless the thread has every blob that a request names.

    ``identity``: None if there is no thread yet.
    """
    for field, ref in named:
        row = find_blob(txn, identity, ref.sha256) if identity is not None else None
        if row is None or row.record.is_segment:
            raise InvalidField(field, f"the thread has no blob {ref.sha256.hex()}; write it first with WriteBlob")
        record = row.record
        if ref.size_bytes != record.size_bytes:
            raise InvalidField(f"{field}.size_bytes", f"{ref.size_bytes}, but the blob has {record.size_bytes} bytes")
        if not record.preview.startswith(ref.preview):
            raise InvalidField(f"{field}.preview", "is not the beginning of the blob")


def blobs_in_edits(diff: Diff) -> set[bytes]:
    """Returns the SHA-256 of all blobs that edits put into a state."""
    found: set[bytes] = set()
    for edit in diff.edits:
        kind = edit.WhichOneof("edit")
        if kind == "append":
            _add_values(found, edit.append.entries)
        elif kind in ("set_slot", "replace_entry"):
            _add_values(found, (getattr(edit, kind).value,))
    return found


def blobs_in_state(tree: StateTree) -> set[bytes]:
    """Returns the SHA-256 of all blobs that a state names, and of those that hold entries of its logs."""
    found: set[bytes] = set()
    for value in tree.slots.values():
        if find_data(value) is None:
            _add_values(found, (Value.FromString(value),))
    for log in tree.logs.values():
        for run in log.entries.runs.each:
            if isinstance(run, SealedRun):
                found.add(run.segment.digest)
                found.update(run.segment.blobs)
            else:
                found |= blobs_in_frames(run.items)
        found |= blobs_in_frames(log.entries.tail())
    return found


def segments_in_state(tree: StateTree) -> set[bytes]:
    """Returns the SHA-256 of the blobs that hold entries of a state's logs."""
    return {segment.digest for log in tree.logs.values() for segment in log.entries.runs.segments()}


def blobs_in_frames(items: Iterable[bytes]) -> set[bytes]:
    """Returns the SHA-256 of all blobs that entries name."""
    found: set[bytes] = set()
    for item in items:
        at = skip_prefix(item)
        if find_data(item, at) is None:
            _add_values(found, (Value.FromString(item[at:]),))
    return found


def _add_values(found: set[bytes], values: Iterable[Value]) -> None:
    for value in values:
        if value.WhichOneof("content") == "blob":
            found.add(value.blob.sha256)
