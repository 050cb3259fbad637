"""The record of a deletion. It outlives the thread, whose key is destroyed, so it is under the namespace's key."""

from __future__ import annotations

from stateward.storage.v1.head_pb2 import DeletionRecord
from stateward_sidecar.codec.seal import Cipher, open_record, seal_record
from stateward_sidecar.storage import layout
from stateward_sidecar.storage.keystore import NamespaceKeys

DELETION_MAGIC = b"SD"
LOCAL = "local"
"""The cause of a deletion of this disk's copy alone."""


def seal_deletion(namespace: NamespaceKeys, cursor: int, record: DeletionRecord) -> bytes:
    """Seals a deletion record."""
    return seal_record(
        Cipher(namespace.wrapping_key), DELETION_MAGIC, record.SerializeToString(), namespace.id, layout.u64(cursor)
    )


def open_deletion(namespace: NamespaceKeys, cursor: int, row: bytes) -> DeletionRecord | None:
    """Opens the row of a deletion record; returns None if the thread was in another namespace."""
    owner, sealed = layout.unpack_deletion(row)
    if owner != namespace.id:
        return None
    record = open_record(Cipher(namespace.wrapping_key), DELETION_MAGIC, sealed, namespace.id, layout.u64(cursor))
    return DeletionRecord.FromString(record)
