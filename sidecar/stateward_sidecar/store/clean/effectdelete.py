"""Deletes effects that a caller names, as a prune deletes those of its versions: planned outside the writer.

    1. plan: find the rows of the effects, and the sequences of all their entries
    2. one small transaction: check that nothing concerned the anchor since (else make a new plan); put the entry, and
       remove the rows
    3. clear the values, in small steps (``clear.py``)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import lmdb

from stateward.storage.v1.head_pb2 import EffectRow
from stateward.storage.v1.journal_pb2 import EntryMetadata
from stateward.v1.effect_service_pb2 import DeleteEffectsRequest, DeleteEffectsResponse
from stateward_sidecar.codec.entry import draft as draft_content
from stateward_sidecar.errors import QueueFull
from stateward_sidecar.storage.queue import Batch, Write
from stateward_sidecar.store.clean.lineage import read_uncleared, write_uncleared
from stateward_sidecar.store.clean.prune import PLANS_MAX, Pruner
from stateward_sidecar.store.clean.pruneplan import NEW_ENTRIES_MAX, GoneEffects, entries_of
from stateward_sidecar.store.journal import replay
from stateward_sidecar.store.journal.admitting import admit, get_draft
from stateward_sidecar.store.journal.journal import append, commit_entry
from stateward_sidecar.store.journal.requests import find_request, fingerprint, hash_request
from stateward_sidecar.store.journal.views import newest_receipt, receipt_of
from stateward_sidecar.store.kinds.effect import EFFECT_ROWS, EFFECTS_DELETED, anchor_prefix, effect_key
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.ranges import Pruned, Ranges
from stateward_sidecar.store.thread.thread import Thread, ThreadDraft, write_row
from stateward_sidecar.store.thread.threads import Threads, not_found


@dataclass(frozen=True, slots=True)
class _Plan:
    """The effects to delete, planned for a thread at one entry of its journal."""

    number: int
    tip_sequence: int
    before: Pruned
    effects: GoneEffects

    def holds(self, txn: lmdb.Transaction, draft: ThreadDraft) -> bool:
        """Returns whether the plan is still right after the writes since. Reads only the new entries."""
        tip = draft.head.tip_sequence
        if draft.identity.number != self.number or tip - self.tip_sequence > NEW_ENTRIES_MAX:
            return False
        if draft.pruned.effects.pairs() != self.before.effects.pairs():  # by another sidecar that had the thread since
            return False
        return all(self.effects.holds(txn, draft, sequence) for sequence in range(self.tip_sequence + 1, tip + 1))


class EffectDeleter:
    """Deletes effects on request. Waits for the writer, so not for the event loop."""

    def __init__(self, context: Context, threads: Threads, pruner: Pruner) -> None:
        self._context = context
        self._threads = threads
        self._pruner = pruner

    def delete(self, request: DeleteEffectsRequest) -> DeleteEffectsResponse:
        """Deletes effects. Raises typed errors, and QueueFull if the effects change too often for a plan to hold."""
        namespace, name = request.namespace, request.thread
        with self._pruner.alone(namespace, name):  # a prune may not clear entries that a plan reads
            for _ in range(PLANS_MAX):
                thread = self._pruner.moment(namespace, name)
                if thread is None:
                    raise not_found(namespace, name)
                plan = self._plan(thread, request)
                write = Write(run=self._commit(request, plan), frees_space=True)
                answer: DeleteEffectsResponse | None = self._context.writer.submit(write, wait=True).wait()
                if answer is not None:
                    if plan.effects.row_keys:
                        self._pruner.clear_up(thread.number)
                    return answer
        raise QueueFull(f"the effects of thread {name!r} change too often to be deleted; try again", thread=name)

    def _plan(self, thread: Thread, request: DeleteEffectsRequest) -> _Plan:
        identity, rows = thread.identity, list[EffectRow]()
        found = GoneEffects({request.anchor}, frozenset(request.keys.keys))
        if thread.floor_sequence and thread.head.effects:
            raise replay.history_elsewhere(identity)
        prefixes = [effect_key(identity, request.anchor, key) for key in dict.fromkeys(request.keys.keys)]
        with self._context.engine.read() as txn:
            for prefix in prefixes or [anchor_prefix(identity, request.anchor)]:
                for row_key, row in EFFECT_ROWS.rows(txn, identity, prefix):
                    found.add(identity, row_key, row)
                    rows.append(row)
        found.entries = entries_of(self._context, thread, rows)
        return _Plan(thread.number, thread.head.tip_sequence, thread.pruned, found)

    def _commit(
        self, request: DeleteEffectsRequest, plan: _Plan
    ) -> Callable[[lmdb.Transaction, Batch], DeleteEffectsResponse | None]:
        """Returns the write. The write returns None if the plan no longer holds."""
        mark, request_hash = fingerprint(request), hash_request(request.options.request_id)

        def run(txn: lmdb.Transaction, batch: Batch) -> DeleteEffectsResponse | None:
            draft = get_draft(self._threads, txn, batch, request)
            found = find_request(txn, draft, request.options.request_id, mark)
            if found is not None:
                deleted = replay.open_metadata(draft.identity, found).deleted_effects.count
                receipt = receipt_of(txn, draft, found.header.sequence, replayed=True)
                return DeleteEffectsResponse(receipt=receipt, deleted=deleted)
            admit(self._context, draft, request.options, needs_lease=True)
            if not plan.holds(txn, draft):
                return None
            count = len(plan.effects.row_keys)
            if count:
                metadata = EntryMetadata(request_hash=request_hash, fingerprint=mark)
                metadata.deleted_effects.anchor, metadata.deleted_effects.count = request.anchor, count
                self._remove(txn, batch, draft, plan.effects, metadata)
            return DeleteEffectsResponse(receipt=newest_receipt(draft), deleted=count)

        return run

    def _remove(
        self, txn: lmdb.Transaction, batch: Batch, draft: ThreadDraft, effects: GoneEffects, metadata: EntryMetadata
    ) -> None:
        context, identity = self._context, draft.identity
        after = draft.pruned.with_more(Ranges(), effects.entries)
        metadata.pruned.CopyFrom(after.to_message())
        content = draft_content(metadata)
        entry = append(
            context, txn, draft, EFFECTS_DELETED, content, request_hash=metadata.request_hash
        )
        effects.remove(context, txn, batch, draft, entry.head)
        sums = dict([write_row(txn, draft, entry.head, identity.keys.pruned(), metadata.pruned)])
        uncleared = read_uncleared(txn, identity.number, draft.pruned)
        write_uncleared(txn, identity.number, uncleared.with_more(Ranges(), effects.entries))
        commit_entry(context, txn, batch, draft, entry, sums)
        draft.pruned = after
        self._threads.keep_draft(batch, draft)


