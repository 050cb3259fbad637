"""Blobs."""

from __future__ import annotations

from stateward.storage.v1.journal_pb2 import ENTRY_KIND_BLOB, ENTRY_KIND_BLOB_REMOVED, EntryMetadata
from stateward_sidecar.store.journal.kind import Kind


class BlobKind(Kind):
    """A blob that was written. A watch learns only that something happened."""

    number = ENTRY_KIND_BLOB
    is_loose = True

    def is_own(self, metadata: EntryMetadata) -> bool:
        """Entries of a log became a segment."""
        return metadata.blob.is_segment


class BlobRemovedKind(Kind):
    """A blob that was removed, because nothing names it. A watch learns only that something happened."""

    number = ENTRY_KIND_BLOB_REMOVED
    is_loose = True

    def is_own(self, metadata: EntryMetadata) -> bool:
        """Nothing named the blob."""
        return True


BLOB, BLOB_REMOVED = BlobKind(), BlobRemovedKind()
