"""Prunes."""

from __future__ import annotations

from stateward.storage.v1.journal_pb2 import ENTRY_KIND_PRUNED
from stateward.v1.thread_service_pb2 import JournalEvent
from stateward_sidecar.store.journal.kind import Kind, Watched
from stateward_sidecar.store.thread.ranges import Ranges, spans_of


class PrunedKind(Kind):
    """Versions, or entries that count for nothing, which were removed."""

    number = ENTRY_KIND_PRUNED

    def tell(self, watched: Watched, event: JournalEvent) -> bool:
        """The versions. One that only cleans the journal changes nothing that anybody sees."""
        removed = watched.metadata().removed
        if removed.ranges:
            event.pruned.CopyFrom(spans_of(Ranges.from_message(removed)))
        return bool(removed.ranges)


PRUNED = PrunedKind()
