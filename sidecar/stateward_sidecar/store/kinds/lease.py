"""Leases."""

from __future__ import annotations

from stateward.storage.v1.journal_pb2 import ENTRY_KIND_LEASE, LeaseRecord
from stateward.v1.lease_pb2 import Lease
from stateward.v1.thread_service_pb2 import JournalEvent
from stateward_sidecar.store.journal.kind import Kind, Watched


class LeaseKind(Kind):
    """A lease that was granted or given back."""

    number = ENTRY_KIND_LEASE
    is_loose = True

    def tell(self, watched: Watched, event: JournalEvent) -> bool:
        """Without the rest of its term, which is not known for a grant that is read later."""
        event.lease.CopyFrom(view_record(watched.metadata().lease, 0.0))
        event.lease.ClearField("remaining")
        return True


LEASE = LeaseKind()


def view_record(record: LeaseRecord, remaining_s: float) -> Lease:
    """The contract's message for a lease."""
    lease = Lease(token=record.token)
    if record.HasField("holder"):
        lease.holder.CopyFrom(record.holder)
        lease.term.FromMicroseconds(record.term_us)
        lease.remaining.FromMicroseconds(int(remaining_s * 1e6))
    lease.grant_time.FromMicroseconds(record.grant_time_us)
    return lease
