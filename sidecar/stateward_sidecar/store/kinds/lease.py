"""Leases."""

from __future__ import annotations

from stateward.storage.v1.journal_pb2 import ENTRY_KIND_LEASE
from stateward.v1.thread_service_pb2 import JournalEvent
from stateward_sidecar.store.items.leases import view_record
from stateward_sidecar.store.kinds.base import Kind, Watched


class LeaseKind(Kind):
    """A lease that was granted or given back."""

    numbers = (ENTRY_KIND_LEASE,)

    def tell(self, watched: Watched, event: JournalEvent) -> bool:
        """Without the rest of its term, which is not known for a grant that is read later."""
        event.lease.CopyFrom(view_record(watched.metadata().lease, 0.0))
        event.lease.ClearField("remaining")
        return True
