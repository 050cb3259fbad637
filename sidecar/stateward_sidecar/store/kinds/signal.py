"""Signals."""

from __future__ import annotations

from stateward.storage.v1.head_pb2 import SignalRow
from stateward.storage.v1.journal_pb2 import ENTRY_KIND_SIGNAL
from stateward.v1.thread_service_pb2 import JournalEvent
from stateward_sidecar.store.items.signals import view_signal
from stateward_sidecar.store.kinds.base import Kind, Watched


class SignalKind(Kind):
    """A message to the agent."""

    numbers = (ENTRY_KIND_SIGNAL,)

    def tell(self, watched: Watched, event: JournalEvent) -> bool:
        """The message."""
        header = watched.entry.header
        row = SignalRow(
            record=watched.metadata().signal, sequence=header.sequence, create_time_us=header.create_time_us
        )
        event.signal.CopyFrom(view_signal(row))
        return True
