"""Blobs."""

from __future__ import annotations

from stateward.storage.v1.journal_pb2 import ENTRY_KIND_BLOB, ENTRY_KIND_BLOB_REMOVED
from stateward_sidecar.store.kinds.base import Kind


class BlobKind(Kind):
    """A blob that was written, or removed because nothing names it. A watch learns only that something happened."""

    numbers = (ENTRY_KIND_BLOB, ENTRY_KIND_BLOB_REMOVED)
