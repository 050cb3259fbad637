"""Settings of a thread."""

from __future__ import annotations

from stateward.storage.v1.journal_pb2 import ENTRY_KIND_OPTIONS
from stateward.v1.thread_service_pb2 import JournalEvent
from stateward_sidecar.store.journal.kind import Kind, Watched


class OptionsKind(Kind):
    """Options that were changed."""

    number = ENTRY_KIND_OPTIONS
    is_loose = True

    def tell(self, watched: Watched, event: JournalEvent) -> bool:
        """All options, as they are then."""
        event.options_changed.CopyFrom(watched.metadata().options)
        return True


OPTIONS = OptionsKind()
