"""Signals."""

from __future__ import annotations

from collections.abc import Iterable

import lmdb

from stateward.storage.v1.head_pb2 import SignalRow, ThreadHead
from stateward.storage.v1.journal_pb2 import ENTRY_KIND_SIGNAL
from stateward.v1.signal_pb2 import Signal
from stateward.v1.thread_service_pb2 import JournalEvent
from stateward_sidecar.store.journal.kind import Kind, Watched
from stateward_sidecar.store.thread.ranges import Pruned, Ranges
from stateward_sidecar.store.thread.thread import ThreadDraft, delete_row, write_row


class SignalKind(Kind):
    """A message to the agent."""

    number = ENTRY_KIND_SIGNAL

    def removed(self, pruned: Pruned) -> Ranges:
        """Those that pruned versions acknowledged."""
        return pruned.signals

    def tell(self, watched: Watched, event: JournalEvent) -> bool:
        """The message."""
        header = watched.entry.header
        row = SignalRow(
            record=watched.metadata().signal, sequence=header.sequence, create_time_us=header.create_time_us
        )
        event.signal.CopyFrom(view_signal(row))
        return True


SIGNAL = SignalKind()


def view_signal(row: SignalRow) -> Signal:
    """The contract's message for a signal."""
    record = row.record
    signal = Signal(
        signal_id=record.signal_id, name=record.name, sender=record.sender, wait_id=record.wait_id,
        sequence=row.sequence, parts=record.parts,
    )  # fmt: skip
    if record.HasField("payload"):
        signal.payload.CopyFrom(record.payload)
    signal.create_time.FromMicroseconds(row.create_time_us)
    return signal


def put_signals(
    txn: lmdb.Transaction, draft: ThreadDraft, head: ThreadHead, added: Iterable[SignalRow]
) -> dict[bytes, int]:
    """Puts the rows of signals. Returns their parts of the sum; the caller adds them to the draft at the end."""
    keys = draft.identity.keys
    return dict(write_row(txn, draft, head, keys.signal(row.sequence), row) for row in added)


def drop_signals(
    txn: lmdb.Transaction, draft: ThreadDraft, head: ThreadHead, sequences: Iterable[int]
) -> dict[bytes, int]:
    """Deletes the rows of signals. Returns the same as ``put_signals``."""
    keys = draft.identity.keys
    return dict(delete_row(txn, draft, head, keys.signal(sequence)) for sequence in sequences)


def acknowledged(draft: ThreadDraft, ids: Iterable[str]) -> list[int]:
    """Returns the sequences of the signals with these ids. Ids without a pending signal are ignored."""
    wanted = set(ids)
    return [sequence for sequence, row in draft.all_signals().items() if row.record.signal_id in wanted]


def use_signals(draft: ThreadDraft, ids: Iterable[str]) -> list[SignalRow]:
    """Returns the rows of pending signals after effects acknowledged them; the caller puts them."""
    rows, used = draft.all_signals(), list[SignalRow]()
    for sequence in acknowledged(draft, ids):
        if not rows[sequence].is_used:
            used.append(SignalRow())
            used[-1].CopyFrom(rows[sequence])
            used[-1].is_used = True
    return used


def used_signals(draft: ThreadDraft) -> list[int]:
    """Returns the sequences of the signals that effects acknowledged, and no version yet."""
    signals = draft.all_signals()
    if len(signals) == draft.head.pending_signals:  # the usual case costs a save nothing
        return []
    return [sequence for sequence, row in signals.items() if row.is_used]
