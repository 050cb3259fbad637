"""Effects: the results of tool calls, recorded beside the states, and the claims on calls that are open.

    NEW ──begin──► IN_PROGRESS ──complete──► DONE | FAILED
     ▲                  │ its holder died, or its term ended, or it was given up
     └──complete NEW────┴─► UNCERTAIN ──begin──► IN_PROGRESS; begin answers UNCERTAIN

A claim is an entry of the journal, durable before its holder calls the tool. If the claim dies, the next caller gets
UNCERTAIN with a claim of its own. So a tool is never called again by a caller that does not know of the first call, and
only one caller at a time has to find out whether the tool ran.

Order of checks: request id → ownership → lease → state of the effect. An answer that gives a claim says what is true
now, so there ownership comes first: another sidecar may have given the claim to somebody else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import lmdb

from stateward.storage.v1.head_pb2 import EffectRow, SignalRow
from stateward.storage.v1.journal_pb2 import EffectRecord, EntryMetadata
from stateward.v1.checkpoint_pb2 import StatusTold
from stateward.v1.checkpoint_service_pb2 import SaveRequest
from stateward.v1.effect_pb2 import (
    EFFECT_STATE_DONE,
    EFFECT_STATE_FAILED,
    EFFECT_STATE_IN_PROGRESS,
    EFFECT_STATE_NEW,
    EFFECT_STATE_UNCERTAIN,
    Effect,
    EffectState,
)
from stateward.v1.effect_service_pb2 import (
    BeginEffectRequest,
    BeginEffectResponse,
    CompleteEffectRequest,
    CompleteEffectResponse,
    PutEffectsRequest,
    PutEffectsResponse,
    RenewEffectRequest,
    RenewEffectResponse,
)
from stateward.v1.state_pb2 import Value
from stateward.v1.thread_pb2 import ThreadOptions
from stateward_sidecar.codec.entry import draft as draft_content
from stateward_sidecar.errors import ClaimLost
from stateward_sidecar.storage.queue import Batch
from stateward_sidecar.store.journal import replay
from stateward_sidecar.store.journal.admitting import admit, get_draft, next_token
from stateward_sidecar.store.journal.journal import all_or_none, append, commit_entry
from stateward_sidecar.store.journal.opening import describe_creation, opened, settle_options
from stateward_sidecar.store.journal.requests import find_request, fingerprint, hash_request
from stateward_sidecar.store.journal.telling import Told, find_told, find_used, tell
from stateward_sidecar.store.journal.views import newest_receipt, receipt_of
from stateward_sidecar.store.kinds.effect import (
    EFFECT,
    OVER,
    effect_key,
    find_effect,
    put_effect,
    read_value,
    view_effect,
)
from stateward_sidecar.store.kinds.signal import put_signals, use_signals
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.thread import ThreadDraft
from stateward_sidecar.store.thread.threads import Threads

TERM_US = 60_000_000


@dataclass(frozen=True, slots=True)
class _Asked:
    """The facts of a request that are stored in its entry."""

    request_hash: bytes = b""
    fingerprint: bytes = b""
    create: ThreadOptions | None = None


class Effects:
    """The verbs. Those that write return a function for the writer."""

    def __init__(self, context: Context, threads: Threads) -> None:
        self._context = context
        self._threads = threads

    # -- with a claim ---------------------------------------------------------------------------------------------

    def begin(
        self, request: BeginEffectRequest, answered_in_s: float = 0.0
    ) -> Callable[[lmdb.Transaction, Batch], BeginEffectResponse]:
        """Returns the write that claims an effect, or answers with its result or its present claim.

        ``answered_in_s``: how long the answer waits for the archive at most. The claim lives longer by that time, as
        its holder cannot renew it before the answer. See ``answered``.
        """
        asked = _Asked(hash_request(request.options.request_id), fingerprint(request), request.options.create)

        def run(txn: lmdb.Transaction, batch: Batch) -> BeginEffectResponse:
            with opened(self._context, self._threads, txn, batch, request) as draft:
                return self._begin(txn, batch, draft, request, asked, answered_in_s)

        return run

    def _begin(
        self, txn: lmdb.Transaction, batch: Batch, draft: ThreadDraft, request: BeginEffectRequest, asked: _Asked,
        answered_in_s: float,
    ) -> BeginEffectResponse:  # fmt: skip
        context, identity = self._context, draft.identity
        draft.check_writable()
        row_key = effect_key(identity, request.anchor, request.key)
        row = find_effect(txn, draft, row_key)
        found = find_request(txn, draft, request.options.request_id, asked.fingerprint)
        is_newest = found is not None and row is not None and row.sequence == found.header.sequence
        if row is not None and is_newest and row.record.holder == request.holder:
            row = self._carried_on(txn, batch, draft, row_key, row, request, asked)
            if not _was_overtaken(draft, row.record):  # a retry: the answer was lost, and the claim was not
                return self._granted(txn, batch, draft, row_key, row, answered_in_s, replayed=True)
        admit(context, draft, request.options, needs_lease=False)
        now = context.clock.now_us()
        state = self._state(draft, row_key, row, request, now)
        if row is not None and state in OVER:
            return BeginEffectResponse(
                state=state, effect=view_effect(row, read_value(txn, identity, row, context.cache)),
                idempotency_key=row.record.idempotency_key, receipt=receipt_of(txn, draft, row.sequence),
            )  # fmt: skip
        if row is not None and state == EFFECT_STATE_IN_PROGRESS:
            answer = BeginEffectResponse(
                state=state, effect=view_effect(row), idempotency_key=row.record.idempotency_key,
                receipt=receipt_of(txn, draft, row.sequence),
            )  # fmt: skip
            answer.retry_after.FromMicroseconds(int(self._remaining_s(draft, row_key, row.record) * 1e6))
            return answer
        record = EffectRecord(
            anchor=request.anchor, key=request.key, sort_key=request.sort_key, name=request.name,
            state=EFFECT_STATE_IN_PROGRESS, holder=request.holder, claim_token=next_token(draft),
            term_us=request.term.ToMicroseconds() if request.HasField("term") else TERM_US, begin_time_us=now,
            attempts=(row.record.attempts if row is not None else 0) + 1, lease_token=request.options.lease_token,
            was_uncertain=state == EFFECT_STATE_UNCERTAIN, idempotency_key=_idempotency_key(draft, request, row),
            stays=request.keep_when_pruned,
        )  # fmt: skip
        claimed = self._append(txn, batch, draft, row_key, row, record, None, asked)
        return self._granted(txn, batch, draft, row_key, claimed, answered_in_s)

    def _granted(
        self, txn: lmdb.Transaction, batch: Batch, draft: ThreadDraft, row_key: bytes, row: EffectRow,
        answered_in_s: float, *, replayed: bool = False,
    ) -> BeginEffectResponse:  # fmt: skip
        """Begins the term of a claim, and returns the answer that gives the claim to its holder."""
        place, record, terms = (draft.identity.number, row_key), row.record, self._context.terms
        longest_us = record.term_us + int(answered_in_s * 1e6)
        batch.after_commit.append(lambda: terms.begin(place, record.claim_token, longest_us))
        return _claimed(txn, draft, row, replayed=replayed)

    def answered(self, request: BeginEffectRequest, answer: BeginEffectResponse) -> None:
        """Begins the term of a claim whose answer is sent now, or whose caller has left. Reads memory only."""
        thread = self._threads.cached(request.namespace, request.thread)
        if thread is None or thread.identity.uid_text != answer.receipt.uid:
            return  # the claim lives longer, as nobody can tell for how much of the time it waited
        place = thread.number, effect_key(thread.identity, request.anchor, request.key)
        term_us = request.term.ToMicroseconds() if request.HasField("term") else TERM_US
        self._context.terms.begin_again(place, answer.claim_token, term_us)

    def _carried_on(
        self, txn: lmdb.Transaction, batch: Batch, draft: ThreadDraft, row_key: bytes, row: EffectRow,
        request: BeginEffectRequest, asked: _Asked,
    ) -> EffectRow:  # fmt: skip
        """Returns the claim that a retry asks for. If its holder has acquired the thread's lease anew since, the claim
        goes on under that lease: otherwise it would be dead for everybody else while its holder calls the tool."""
        lease, record = draft.head.lease, row.record
        is_under_old = 0 < record.lease_token < lease.token
        if not is_under_old or request.options.lease_token != lease.token or not lease.HasField("holder"):
            return row
        moved = EffectRecord()
        moved.CopyFrom(record)
        moved.lease_token = lease.token
        return self._append(txn, batch, draft, row_key, row, moved, None, asked)

    def _state(
        self, draft: ThreadDraft, row_key: bytes, row: EffectRow | None, request: BeginEffectRequest, now_us: int
    ) -> EffectState:
        """Returns the state of the effect for this caller."""
        if row is None:
            return EFFECT_STATE_NEW
        record = row.record
        if record.state in OVER:
            is_old = request.HasField("max_age") and record.end_time_us <= now_us - request.max_age.ToMicroseconds()
            is_retried = record.state == EFFECT_STATE_FAILED and request.retry_failed
            return EFFECT_STATE_NEW if is_old or is_retried else record.state
        if record.state != EFFECT_STATE_IN_PROGRESS:
            return record.state
        before, caller = record.holder, request.holder
        was_restarted = before.name == caller.name and before.incarnation != caller.incarnation
        if was_restarted or _was_overtaken(draft, record) or not self._remaining_s(draft, row_key, record):
            return EFFECT_STATE_UNCERTAIN
        return EFFECT_STATE_IN_PROGRESS

    def complete(self, request: CompleteEffectRequest) -> Callable[[lmdb.Transaction, Batch], CompleteEffectResponse]:
        """Returns the write that records how an effect ended. The write raises ClaimLost."""

        def run(txn: lmdb.Transaction, batch: Batch) -> CompleteEffectResponse:
            draft = get_draft(self._threads, txn, batch, request)
            row_key, row = _find_claim(txn, draft, request)
            if row.record.state != EFFECT_STATE_IN_PROGRESS:
                if row.record.state != request.state:
                    raise _lost(draft, request, row.record)
                return self._completed(txn, draft, row, replayed=True)  # a retry: the answer was lost
            admit(self._context, draft, request.options, needs_lease=False)
            ended = EffectRecord()
            ended.CopyFrom(row.record)
            ended.state, ended.detail = request.state, request.detail
            ended.end_time_us = self._context.clock.now_us()
            value = request.value if request.HasField("value") else None
            done = self._append(txn, batch, draft, row_key, row, ended, value, _Asked())
            place = draft.identity.number, row_key
            batch.after_commit.append(lambda: self._context.terms.forget(place))
            return self._completed(txn, draft, done)

        return run

    def renew(self, request: RenewEffectRequest) -> Callable[[lmdb.Transaction, Batch], RenewEffectResponse]:
        """Returns the write that restarts the term of a claim. It changes no row, and raises ClaimLost."""

        def run(txn: lmdb.Transaction, batch: Batch) -> RenewEffectResponse:
            draft = get_draft(self._threads, txn, batch, request)
            row_key, row = _find_claim(txn, draft, request)
            if row.record.state != EFFECT_STATE_IN_PROGRESS:
                raise _lost(draft, request, row.record)
            draft.check_writable()
            self._context.terms.begin((draft.identity.number, row_key), row.record.claim_token, row.record.term_us)
            return RenewEffectResponse(effect=view_effect(row), uid=draft.identity.uid_text)

        return run

    @staticmethod
    def _completed(
        txn: lmdb.Transaction, draft: ThreadDraft, row: EffectRow, *, replayed: bool = False
    ) -> CompleteEffectResponse:
        return CompleteEffectResponse(
            receipt=receipt_of(txn, draft, row.sequence, replayed=replayed), effect=view_effect(row)
        )

    # -- without a claim ------------------------------------------------------------------------------------------

    def put(self, request: PutEffectsRequest) -> Callable[[lmdb.Transaction, Batch], PutEffectsResponse]:
        """Returns the write that records results without claims. It raises ClaimLost if an effect is in progress."""
        asked = _Asked(hash_request(request.options.request_id), fingerprint(request), request.options.create)

        def run(txn: lmdb.Transaction, batch: Batch) -> PutEffectsResponse:
            with opened(self._context, self._threads, txn, batch, request) as draft:
                found = find_request(txn, draft, request.options.request_id, asked.fingerprint)
                if found is not None:
                    record = replay.open_metadata(draft.identity, found).effect
                    receipt = receipt_of(txn, draft, found.header.sequence, replayed=True)
                    return PutEffectsResponse(receipt=receipt, written=record.written)
                admit(self._context, draft, request.options, needs_lease=True)
                with all_or_none(batch, draft):
                    told = find_told(txn, draft, request)
                    used = use_signals(draft, [*request.ack_signals, *find_used(draft, told)])
                    written = self.put_all(txn, batch, draft, request.effects, asked, told, used)
                return PutEffectsResponse(receipt=newest_receipt(draft), written=written)

        return run

    def put_all(
        self, txn: lmdb.Transaction, batch: Batch, draft: ThreadDraft, effects: Sequence[Effect],
        asked: _Asked | None = None, told: Told | None = None, used: Sequence[SignalRow] = (),
    ) -> int:  # fmt: skip
        """Records results in the caller's transaction, in their order. Returns how many were written. ``told`` and
        ``used``: the status that is told, and the signals that are acknowledged, with the last of them."""
        now, chosen = self._context.clock.now_us(), list[tuple[bytes, EffectRow | None, Effect]]()
        for effect in effects:
            row_key = effect_key(draft.identity, effect.anchor, effect.key)
            row = find_effect(txn, draft, row_key)
            if row is not None and row.record.state == EFFECT_STATE_IN_PROGRESS:
                raise _lost(draft, effect, row.record)
            is_kept = effect.on_conflict != Effect.CONFLICT_RULE_REPLACE
            if row is None or row.record.state not in OVER or not is_kept:
                chosen.append((row_key, row, effect))
        for place, (row_key, row, effect) in enumerate(chosen, 1):
            record = EffectRecord(
                anchor=effect.anchor, key=effect.key, sort_key=effect.sort_key, name=effect.name,
                state=EFFECT_STATE_DONE, begin_time_us=now, end_time_us=now, stays=effect.keep_when_pruned,
            )  # fmt: skip
            is_last = place == len(chosen)
            if is_last:
                record.written = len(chosen)
            each = asked if asked is not None and is_last else _Asked(create=asked.create if asked else None)
            self._append(
                txn, batch, draft, row_key, row, record, effect.value, each, told if is_last else None,
                used if is_last else (),
            )  # fmt: skip
        return len(chosen)

    # -- writing --------------------------------------------------------------------------------------------------

    def _append(
        self, txn: lmdb.Transaction, batch: Batch, draft: ThreadDraft, row_key: bytes, old: EffectRow | None,
        record: EffectRecord, value: Value | None, asked: _Asked, told: Told | None = None,
        used: Sequence[SignalRow] = (),
    ) -> EffectRow:  # fmt: skip
        context, is_new, old_head = self._context, draft.head.tip_sequence == 0, draft.head
        record.has_value = value is not None
        record.previous_sequence = old.sequence if old is not None else 0
        metadata = EntryMetadata(request_hash=asked.request_hash, fingerprint=asked.fingerprint, effect=record)
        if isinstance(told, StatusTold):
            metadata.told.CopyFrom(told)
        options = asked.create or ThreadOptions()
        describe_creation(draft, metadata, options)
        content = draft_content(metadata, value.SerializeToString() if value is not None else b"")
        entry = append(context, txn, draft, EFFECT, content, request_hash=asked.request_hash)
        if is_new:
            settle_options(txn, draft, old_head, entry.head, options)
        if told is not None:
            tell(entry.head, entry.header, told)
        row = EffectRow(record=record, sequence=entry.header.sequence)
        put_effect(txn, draft.identity, entry.head, row_key, old, row)
        entry.head.pending_signals -= len(used)
        sums = put_signals(txn, draft, entry.head, used)
        # What is known of a call that was made is kept, also if the namespace is full.
        is_bounded = old is None or old.record.state in OVER
        commit_entry(context, txn, batch, draft, entry, sums, is_bounded=is_bounded)
        draft.signals.update((signal.sequence, signal) for signal in used)
        self._threads.keep_draft(batch, draft)
        return row

    def _remaining_s(self, draft: ThreadDraft, row_key: bytes, record: EffectRecord) -> float:
        return self._context.terms.remaining_s((draft.identity.number, row_key), record.claim_token, record.term_us)


def creates(request: SaveRequest, *, is_new: bool) -> _Asked | None:
    """Returns the settings for the first entry if the effects of a save begin a new thread; else None."""
    return _Asked(create=request.options.create) if is_new else None


def _was_overtaken(draft: ThreadDraft, record: EffectRecord) -> bool:
    """Whether somebody acquired the thread's lease since: that ended the claims under the former lease."""
    return bool(record.lease_token) and draft.head.lease.token > record.lease_token


def _claimed(txn: lmdb.Transaction, draft: ThreadDraft, row: EffectRow, *, replayed: bool) -> BeginEffectResponse:
    record = row.record
    state = EFFECT_STATE_UNCERTAIN if record.was_uncertain else EFFECT_STATE_NEW
    return BeginEffectResponse(
        state=state, claim_token=record.claim_token, effect=view_effect(row), idempotency_key=record.idempotency_key,
        receipt=receipt_of(txn, draft, row.sequence, replayed=replayed),
    )  # fmt: skip


def _idempotency_key(draft: ThreadDraft, request: BeginEffectRequest, row: EffectRow | None) -> str:
    """Returns the idempotency key: the same for all attempts until the effect is over, then another one."""
    if row is not None and row.record.state not in OVER and row.record.idempotency_key:
        return str(row.record.idempotency_key)
    # The effect may have been deleted. Then it is a new one, and needs another key than before.
    since = str(row.sequence if row is not None else draft.pruned.effects.last)
    return draft.identity.hash_id(b"idempotency", request.anchor, request.key, since).hex()


def _find_claim(
    txn: lmdb.Transaction, draft: ThreadDraft, request: CompleteEffectRequest | RenewEffectRequest
) -> tuple[bytes, EffectRow]:
    """Returns the row of the effect and its key. Raises ClaimLost if another claim is the newest, or there is none."""
    row_key = effect_key(draft.identity, request.anchor, request.key)
    row = find_effect(txn, draft, row_key)
    if row is None or row.record.claim_token != request.claim_token:
        raise _lost(draft, request, row.record if row is not None else None)
    return row_key, row


def _lost(
    draft: ThreadDraft, asked: CompleteEffectRequest | RenewEffectRequest | Effect, record: EffectRecord | None
) -> ClaimLost:
    name = EffectState.Name(record.state).removeprefix("EFFECT_STATE_") if record is not None else "NEW"
    holder = f" by {record.holder.name!r}" if record is not None and record.HasField("holder") else ""
    return ClaimLost(
        f"effect {asked.key!r} of thread {draft.identity.name!r} is {name}{holder}, under another claim",
        thread=draft.identity.name, anchor=asked.anchor, key=asked.key, state=name,
    )  # fmt: skip
