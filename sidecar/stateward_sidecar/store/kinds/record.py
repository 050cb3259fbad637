"""Records."""

from __future__ import annotations

from collections.abc import Iterator

import lmdb

from stateward.storage.v1.journal_pb2 import ENTRY_KIND_RECORDS, EntryMetadata
from stateward.v1.thread_service_pb2 import JournalEvent
from stateward_sidecar.codec.entry import Entry
from stateward_sidecar.errors import Corrupt
from stateward_sidecar.store.journal.kind import Kind, Watched
from stateward_sidecar.store.kinds.recordrows import index_batch, open_batch, verify_records, view_record
from stateward_sidecar.store.thread.ranges import Pruned, Ranges
from stateward_sidecar.store.thread.thread import Thread, ThreadDraft


class RecordKind(Kind):
    """Records that were written, refreshed, deleted, or moved to a newer entry."""

    number = ENTRY_KIND_RECORDS

    def removed(self, pruned: Pruned) -> Ranges:
        """Those up to the floor."""
        return pruned.records

    def tell(self, watched: Watched, event: JournalEvent) -> bool:
        """Which ones, to a watch that asks for them; nothing of an entry that changed none, or that counts for nothing
        any more."""
        thread, entry = watched.thread, watched.entry
        if not watched.include_records or entry.is_husk or entry.header.sequence in thread.pruned.records:
            return False
        found = open_batch(thread.identity, entry)
        written = [change.facts for change in found.changes if change.HasField("value")]
        is_moved = found.moved or not entry.header.edit_bytes  # without records if none is left
        if not (written or found.deleted or is_moved):  # a refresh
            return False
        for facts in written:
            facts.ClearField("attributes")
            event.records_changed.written.append(view_record(facts))
        event.records_changed.deleted.extend(found.deleted)
        event.records_changed.expired, event.records_changed.moved = found.expired, is_moved
        return True

    def index(
        self, txn: lmdb.Transaction, draft: ThreadDraft, entry: Entry, metadata: EntryMetadata, *, is_whole: bool
    ) -> None:
        """The rows of the records."""
        if is_whole:
            index_batch(txn, draft.identity, entry)

    def verify(self, txn: lmdb.Transaction, thread: Thread) -> Iterator[Corrupt]:
        """All rows, and their sum in the head."""
        return verify_records(txn, thread)


RECORDS = RecordKind()
