"""Signals: messages to a thread, kept until a save acknowledges them.

Each signal is an entry of the journal, and a row that is deleted when the signal is acknowledged. The rows are few.
They are in memory with the thread, are part of the head's sum, and are shipped in HEAD. Effects may acknowledge a
signal, too. Its row then says so (``is_used``), and the next version on main deletes it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

import lmdb

from stateward.storage.v1.head_pb2 import SignalRow
from stateward.storage.v1.journal_pb2 import EntryMetadata, SignalRecord
from stateward.v1.checkpoint_pb2 import WORK_STATUS_WAITING
from stateward.v1.signal_pb2 import Signal
from stateward.v1.signal_service_pb2 import SendSignalRequest, SendSignalResponse
from stateward.v1.thread_pb2 import THREAD_ACCESS_ORPHAN
from stateward_sidecar.codec.entry import draft as draft_content
from stateward_sidecar.errors import QuotaExceeded, StaleAnswer
from stateward_sidecar.storage.queue import Batch
from stateward_sidecar.store.journal import replay
from stateward_sidecar.store.journal.journal import append, commit_entry
from stateward_sidecar.store.journal.opening import begin_change
from stateward_sidecar.store.journal.views import receipt_of
from stateward_sidecar.store.kinds.signal import SIGNAL, put_signals, view_signal
from stateward_sidecar.store.kinds.unchanged import check_unchanged
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.thread import Thread, ThreadDraft
from stateward_sidecar.store.thread.threads import Threads

# They are in memory with the thread, and in HEAD.
PENDING_MAX, PENDING_BYTES_MAX = 1024, 16 << 20
# Tag and length of a signal in an answer, at most.
FRAME_BYTES = 6


class Signals:
    """The verb that sends a signal."""

    def __init__(self, context: Context, threads: Threads) -> None:
        self._context = context
        self._threads = threads

    def send(self, sent: SendSignalRequest) -> Callable[[lmdb.Transaction, Batch], SendSignalResponse]:
        """Returns the write that adds a signal. It raises StaleAnswer or QuotaExceeded."""
        # A retry may name other parts: a client derives them from the payload and the question that it sees. What was
        # sent stays as it is, because this may be called again for it.
        request = SendSignalRequest()
        request.CopyFrom(sent)
        request.ClearField("parts")

        def run(txn: lmdb.Transaction, batch: Batch) -> SendSignalResponse:
            change = begin_change(self._context, self._threads, txn, batch, request)
            draft, identity = change.draft, change.draft.identity
            if change.replayed_sequence:
                entry = replay.read_entry(txn, identity, change.replayed_sequence)
                row = SignalRow(
                    record=replay.open_metadata(identity, entry).signal, sequence=entry.header.sequence,
                    create_time_us=entry.header.create_time_us,
                )  # fmt: skip
                return _answer(txn, draft, row, replayed=True)
            check_unchanged(txn, draft, request)
            answered = check_answer(draft, request, sent.parts)
            _check_room(draft, request)
            record = SignalRecord(
                signal_id=os.urandom(8).hex(), name=request.name, sender=request.sender, wait_id=request.wait_id
            )
            record.parts.extend(answered)
            if request.HasField("payload"):
                record.payload.CopyFrom(request.payload)
            metadata = EntryMetadata(request_hash=change.request_hash, fingerprint=change.fingerprint, signal=record)
            put = append(
                self._context, txn, draft, SIGNAL, draft_content(metadata),
                request_hash=change.request_hash,
            )  # fmt: skip
            row = SignalRow(record=record, sequence=put.header.sequence, create_time_us=put.header.create_time_us)
            sums = put_signals(txn, draft, put.head, [row])
            put.head.pending_signals += 1
            commit_entry(self._context, txn, batch, draft, put, sums)
            draft.signals[row.sequence] = row
            self._threads.keep_draft(batch, draft)
            return _answer(txn, draft, row, replayed=False)

        return run


def check_answer(draft: ThreadDraft, request: SendSignalRequest, parts: Sequence[str]) -> list[str]:
    """Returns the names of the parts that a signal answers; ``parts``: as the sender named them.

    Raises StaleAnswer if the thread does not wait for this answer, or if it was answered already.
    """
    if not request.wait_id:
        return []
    head, name = draft.head, draft.identity.name
    if head.status != WORK_STATUS_WAITING or head.wait_id != request.wait_id:
        now = f"it waits for {head.wait_id!r} now" if head.status == WORK_STATUS_WAITING else "it waits for nothing now"
        raise StaleAnswer(
            f"thread {name!r} does not wait for {request.wait_id!r}: {now}", thread=name,
            wait_id=head.wait_id if head.status == WORK_STATUS_WAITING else "", answered=False,
        )  # fmt: skip
    names = [part.name for part in head.question.parts]
    if unknown := set(parts).difference(names):
        raise StaleAnswer(
            f"thread {name!r} does not ask for {min(unknown)!r} any more", thread=name, wait_id=head.wait_id,
            answered=False,
        )  # fmt: skip
    # Parts of askers go on one by one, so each has an answer of its own. Any other question has one answer.
    is_divided = bool(names) and all(part.asker for part in head.question.parts)
    left = list(parts) or names
    for row in draft.all_signals().values():
        if row.record.wait_id != request.wait_id or row.is_used:  # a used one answered an earlier question
            continue
        is_answered = not is_divided or not set(left).difference(row.record.parts)
        if is_answered or set(parts).intersection(row.record.parts):
            raise StaleAnswer(
                f"{request.wait_id!r} of thread {name!r} was answered already, with signal {row.record.name!r} by "
                f"{row.record.sender!r}", thread=name, wait_id=head.wait_id, answered="true",
            )  # fmt: skip
        left = [each for each in left if each not in row.record.parts]
    return left


def _check_room(draft: ThreadDraft, request: SendSignalRequest) -> None:
    waiting = draft.all_signals().values()
    size_bytes = sum(len(row.record.payload.data) for row in waiting) + len(request.payload.data)
    if len(waiting) < PENDING_MAX and size_bytes <= PENDING_BYTES_MAX:
        return
    what = f"{len(waiting)} signals wait for thread {request.thread!r} already"
    if len(waiting) < PENDING_MAX:
        what += f", and with this one they would have {size_bytes:,} bytes, more than {PENDING_BYTES_MAX:,}"
    raise QuotaExceeded(f"{what}; try again after a save acknowledged some", thread=request.thread)


def acknowledged_by(txn: lmdb.Transaction, thread: Thread, version: int) -> dict[int, SignalRow]:
    """Returns the signals that a version acknowledged, by sequence. Raises as ``replay.read_version`` does, and
    VersionPruned if the thread that an orphan comes from has cleaned them since."""
    entry, found, identity = replay.read_version(txn, thread, version), dict[int, SignalRow](), thread.identity
    replay.open_metadata(identity, entry)  # proves the sequences in the header
    for sequence in entry.header.acked_sequences:
        if sequence <= thread.floor_sequence:
            raise replay.history_elsewhere(identity)
        if thread.access == THREAD_ACCESS_ORPHAN and not replay.has_entry(txn, identity, sequence):
            raise replay.gone_with_thread(thread, "signals that the version acknowledged")
        signal = replay.read_entry(txn, identity, sequence)
        record = replay.open_metadata(identity, signal).signal
        found[sequence] = SignalRow(record=record, sequence=sequence, create_time_us=signal.header.create_time_us)
    return found


def list_signals(
    signals: Mapping[int, SignalRow], after: int, size_bytes: int, count: int = PENDING_MAX, *, is_alone: bool = True
) -> tuple[list[Signal], bool]:
    """Returns the signals behind a sequence that fit, oldest first, and whether there are more.

    ``is_alone``: a page without anything else has at least one.
    """
    found = list[Signal]()
    for sequence in sorted(sequence for sequence, row in signals.items() if sequence > after and not row.is_used):
        signal = view_signal(signals[sequence])
        size_bytes -= signal.ByteSize() + FRAME_BYTES
        if len(found) >= count or (size_bytes < 0 and (found or not is_alone)):
            return found, True
        found.append(signal)
    return found, False


def _answer(txn: lmdb.Transaction, draft: ThreadDraft, row: SignalRow, *, replayed: bool) -> SendSignalResponse:
    return SendSignalResponse(
        receipt=receipt_of(txn, draft, row.sequence, replayed=replayed), signal=view_signal(row)
    )  # fmt: skip
