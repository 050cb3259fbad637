"""Prunes versions. All other versions stay readable.

    1. plan (outside the writer): find the versions to prune, and the versions that stay without their parent
    2. write a snapshot of each version that stays without its parent; find where heads go that are pruned
    3. one small transaction: check that the plan still holds (else make a new plan); put the entry that moves heads,
       the entry that lists the pruned versions, the row of pruned versions, the branches' snapshots, and a row that
       lists what to clear
    4. clear, in small steps (``clear.py``)

The cost depends on what is pruned. A crash after step 2 leaves snapshots that shorten replays. A crash after step 3
leaves rows that the next start clears.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeVar

import lmdb

from stateward.storage.v1.journal_pb2 import EntryMetadata
from stateward.v1.thread_pb2 import THREAD_ACCESS_ORPHAN, THREAD_ACCESS_REMOTE, Retention
from stateward.v1.thread_service_pb2 import PruneThreadRequest, PruneThreadResponse
from stateward_sidecar.codec.entry import draft as draft_content
from stateward_sidecar.codec.snapshot import to_snapshot
from stateward_sidecar.errors import Corrupt, KeyUnavailable, QueueFull, ShuttingDown, StatewardError
from stateward_sidecar.storage import layout
from stateward_sidecar.storage.queue import Batch, Write
from stateward_sidecar.store.blobs.blobrows import segments_in_state
from stateward_sidecar.store.clean.clear import Clearer
from stateward_sidecar.store.clean.lineage import Lineages, read_uncleared, write_uncleared
from stateward_sidecar.store.clean.pruneplan import Fall, Plan, Shown, find_falls, find_gone, find_moves
from stateward_sidecar.store.clean.retention import Chooser
from stateward_sidecar.store.journal import replay
from stateward_sidecar.store.journal.admitting import check_lease, check_uid, other_creation
from stateward_sidecar.store.journal.journal import append, commit_entry
from stateward_sidecar.store.journal.opening import begin_change, check_change
from stateward_sidecar.store.journal.views import newest_receipt, receipt_of
from stateward_sidecar.store.kinds.pruned import PRUNED
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.ranges import Pruned, Ranges, spans_of
from stateward_sidecar.store.thread.thread import Thread, ThreadDraft, rows, write_branch, write_row
from stateward_sidecar.store.thread.threads import NameLock, Threads, not_found
from stateward_sidecar.store.versions.moves import put_moves
from stateward_sidecar.store.versions.snapshots import Snapshots
from stateward_sidecar.telemetry import log_damage

T = TypeVar("T")
# How many plans are made in turn. A plan fails if, for example, a version to prune got a tag or a child meanwhile.
PLANS_MAX = 16
BY_RULE = PruneThreadRequest()


class Pruner:
    """Prunes on request, and by a thread's retention rule. Waits for the writer, so not for the event loop."""

    def __init__(self, context: Context, threads: Threads, snapshots: Snapshots) -> None:
        self._context = context
        self._threads = threads
        self._snapshots = snapshots
        self._lineages = Lineages(context)
        self._clearer = Clearer(context, threads)
        self._alone = NameLock()
        self.chooser = Chooser(context)

    def alone(self, namespace: str, name: str) -> AbstractContextManager[None]:
        """Keeps prunes of a thread, and all else that clears its entries, out during a block."""
        return self._alone.of((namespace, name))

    def prune(self, request: PruneThreadRequest) -> PruneThreadResponse:
        """Prunes on request. Raises typed errors, and QueueFull if the thread changes too often for a plan to hold."""
        with self.alone(request.namespace, request.thread):
            for _ in range(PLANS_MAX):
                plan = self._plan_or_vanish(request)
                is_alone = plan is not None and bool(plan.falls)
                answer = self._submit(self._commit_request(request, plan), is_alone=is_alone)
                if answer is not None:
                    if plan is not None and not request.dry_run:
                        self._clear_up(plan)
                    return answer
        raise QueueFull(f"thread {request.thread!r} changes too often to be pruned; try again", thread=request.thread)

    def retain(self, namespace: str, name: str) -> int:
        """Applies the thread's retention rule. Returns the number of pruned versions."""
        with self.alone(namespace, name):
            for _ in range(PLANS_MAX):
                thread = self.moment(namespace, name)
                if thread is None or not is_whole(thread) or not thread.head.options.HasField("retention"):
                    return 0
                rule = thread.head.options.retention
                plan = self._plan(thread, self.chooser.by_rule(thread, rule))
                if plan is None:
                    return 0
                if self._submit(self._commit_rule(namespace, name, rule, plan)):
                    self._clear_up(plan)
                    return len(plan.going)
        return 0

    def clean(self, namespace: str, name: str) -> None:
        """Says that the entries of tags, settings, leases, blobs and heads count for nothing, and clears them.

        Prunes do so, too; this is for threads that nobody prunes, such as locks.
        """
        with self.alone(namespace, name):
            thread = self.moment(namespace, name)
            if thread is None or not is_whole(thread) or not thread.head.loose_entries:
                return
            plan = Plan(thread.number, thread.head.tip_sequence, thread.pruned, Ranges(), frozenset(), {})
            if self._submit(self._commit_clean(namespace, name, plan)):
                self.clear_up(plan.number, plan.before)

    def resume(self) -> None:
        """Continues to clear the versions of earlier prunes, for threads that this sidecar may change, and orphans."""
        with self._context.engine.read() as txn:
            keys = [key for key, _ in rows(txn, b"P") if len(key) == layout.UNCLEARED_KEY_BYTES]
            numbers = [layout.marked_thread(key) for key in keys]
        for number in numbers:
            try:
                self._resume(number)
            except ShuttingDown:
                return
            except StatewardError as error:
                log_damage("pruned versions are not cleared", error)

    def _resume(self, number: int) -> None:
        with self._context.engine.read() as txn:
            thread = self._threads.head(txn, number)  # a copy waits for long, and pushes no hot thread out of memory
        if thread is None or thread.access == THREAD_ACCESS_REMOTE or thread.floor_sequence:
            return  # not ours to change, or without its whole history
        with self._alone.of((thread.identity.namespace, thread.name)):
            now = self.moment(thread.identity.namespace, thread.name)
            if now is not None and now.number == number:
                self._clearer.clear(now, self._lineages.of(now))

    # -- outside the writer ---------------------------------------------------------------------------------------

    def moment(self, namespace: str, name: str) -> Thread | None:
        """Returns a copy of the thread as it is now, because writes change the object in memory."""
        with self._context.engine.read() as txn:
            live = self._threads.find(txn, namespace, name)
        if live is None:
            return None
        with self._context.writer.publishing:
            return Thread(
                live.identity, live.head, dict(live.branches), live.tags, live.pruned, live.snapshots,
                archive=live.archive, archived_sequence=live.archived_sequence, lost_sequence=live.lost_sequence,
            )  # fmt: skip

    def _plan_or_vanish(self, request: PruneThreadRequest) -> Plan | None:
        thread = self.moment(request.namespace, request.thread)
        try:
            return self._plan_request(thread, request) if thread is not None else None
        except (Corrupt, KeyUnavailable):
            now = self.moment(request.namespace, request.thread)
            if thread is not None and (now is None or now.number != thread.number):
                raise not_found(request.namespace, request.thread) from None  # deleted during the read
            raise

    def _plan_request(self, thread: Thread, request: PruneThreadRequest) -> Plan | None:
        """Returns the plan for a request; None if no version is to be pruned, or if the request is a retry."""
        with self._context.engine.read() as txn:
            check_uid(thread.identity, request)
            if check_change(self._context, txn, ThreadDraft(thread), request).replayed_sequence:
                return None
            if (shown := Shown.of(request)) is not None:
                if thread.identity.uid_text != request.plan.uid:
                    raise other_creation(thread.identity, request.plan.uid)
                shown.check_newest(txn, thread)
        doomed = self.chooser.by_request(thread, request)
        if shown is not None:
            doomed = [version for version in doomed if version in shown.versions]
        return self._plan(thread, doomed, request, shown)

    def _plan(
        self,
        thread: Thread,
        doomed: list[int],
        request: PruneThreadRequest = BY_RULE,
        shown: Shown | None = None,
    ) -> Plan | None:
        retained = thread.pruned.missing(thread.head.last_version)
        if thread.floor_version and retained.pairs() and retained[0] <= thread.floor_version:
            raise replay.history_elsewhere(thread.identity)
        if not doomed:
            return None
        lineage = self._lineages.of(thread)
        gone = set(doomed)
        alone = frozenset(lineage.left_alone(gone, thread.head.last_version))
        going, falls = Ranges((version, version) for version in doomed), dict[str, Fall]()
        if request.move_heads:
            with self._context.engine.read() as txn:
                falls = find_falls(txn, thread, going)  # raises before anything is written
        if request.dry_run:
            with self._context.engine.read() as txn:
                digest = replay.read_version(txn, thread, going.last).header.digest
            tip, nothing = thread.head.tip_sequence, frozenset[int]()
            return Plan(
                thread.number, tip, thread.pruned, going, nothing, {}, falls=falls, newest_digest=digest
            )
        for version in sorted(alone - thread.snapshots):
            with self._context.engine.read() as txn:
                digest = replay.read_version(txn, thread, version).header.digest
                tree = replay.state_at(txn, thread, version, self._context.cache)
            self._snapshots.store(
                thread, version, digest, to_snapshot(tree), named=segments_in_state(tree), frees_space=True
            )
        now = self.moment(thread.identity.namespace, thread.name)
        with self._context.engine.read() as txn:
            moves = find_moves(txn, now, going, alone) if now is not None else {}
            falls = find_falls(txn, now, going) if now is not None and request.move_heads else {}
        if shown is not None:
            shown.check_moved(thread, falls)
        effects = find_gone(self._context, thread, lineage, going)
        snapshots, had_effects = now.snapshots if now else frozenset[int](), thread.head.effects > 0
        tip = thread.head.tip_sequence
        signals = lineage.acked(going, thread.pruned.signals)
        return Plan(
            thread.number, tip, thread.pruned, going, alone, moves, snapshots, falls, effects, had_effects, signals
        )

    def _clear_up(self, plan: Plan) -> None:
        for version in plan.going:
            self._context.cache.drop_state(plan.number, version)
        self.clear_up(plan.number, plan.before)

    def clear_up(self, number: int, before: Pruned | None = None) -> None:
        """Clears what was pruned, after the commit. If this fails, the next start or sweep continues.

        ``before``: what was pruned before the caller's prune.
        """
        try:
            with self._context.engine.read() as txn:
                thread = self._threads.by_number(txn, number)
            if thread is not None:
                self._clearer.clear(thread, self._lineages.of(thread, before))
        except StatewardError as error:
            log_damage("pruned versions are not cleared yet", error)

    # -- in the writer --------------------------------------------------------------------------------------------

    def _commit_request(
        self, request: PruneThreadRequest, plan: Plan | None
    ) -> Callable[[lmdb.Transaction, Batch], PruneThreadResponse | None]:
        """Returns the write of a prune on request. The write returns None if the plan no longer holds."""

        def run(txn: lmdb.Transaction, batch: Batch) -> PruneThreadResponse | None:
            change = begin_change(self._context, self._threads, txn, batch, request)
            draft = change.draft
            answer = PruneThreadResponse(retained_versions=draft.head.retained_versions)
            if change.replayed_sequence:
                entry = replay.read_entry(txn, draft.identity, change.replayed_sequence)
                removed = entry.open_metadata(draft.identity.cipher, draft.identity.uid).removed
                answer.pruned.CopyFrom(spans_of(Ranges.from_message(removed)))
                answer.receipt.CopyFrom(receipt_of(txn, draft, change.replayed_sequence, replayed=True))
                return answer
            if plan is None:
                answer.receipt.CopyFrom(newest_receipt(draft))
                return answer
            if plan.number != draft.identity.number:
                return None
            if request.dry_run:
                answer.plan.CopyFrom(plan.shown(draft.identity.uid_text))
            else:
                if plan.falls:
                    check_lease(self._context, draft, request.options.lease_token)
                if not plan.holds(txn, draft):
                    return None
                metadata = EntryMetadata(request_hash=change.request_hash, fingerprint=change.fingerprint)
                self._remove(txn, batch, draft, plan, metadata)
            answer.retained_versions -= len(plan.going)
            answer.pruned.CopyFrom(spans_of(plan.going))
            answer.receipt.CopyFrom(newest_receipt(draft))
            return answer

        return run

    def _commit_rule(
        self, namespace: str, name: str, rule: Retention, plan: Plan
    ) -> Callable[[lmdb.Transaction, Batch], bool]:
        """Returns the write of a prune by rule. The write returns False if rule or plan no longer holds."""

        def run(txn: lmdb.Transaction, batch: Batch) -> bool:
            draft = self._threads.draft(txn, batch, namespace, name)
            if draft is None or draft.head.options.retention != rule or not plan.holds(txn, draft):
                return False
            draft.check_writable()
            self._remove(txn, batch, draft, plan, EntryMetadata())
            return True

        return run

    def _commit_clean(
        self, namespace: str, name: str, plan: Plan
    ) -> Callable[[lmdb.Transaction, Batch], bool]:  # fmt: skip
        def run(txn: lmdb.Transaction, batch: Batch) -> bool:
            draft = self._threads.draft(txn, batch, namespace, name)
            if draft is None or draft.identity.number != plan.number or not draft.head.loose_entries:
                return False
            draft.check_writable()
            self._remove(txn, batch, draft, plan, EntryMetadata())
            return True

        return run

    def _remove(
        self, txn: lmdb.Transaction, batch: Batch, draft: ThreadDraft, plan: Plan, metadata: EntryMetadata
    ) -> int:
        """Appends the entry that lists the pruned versions. Returns its sequence."""
        context, identity = self._context, draft.identity
        if plan.falls:
            moves = {name: fall.to for name, fall in plan.falls.items()}
            put_moves(context, txn, batch, draft, moves, EntryMetadata())
        removed = Pruned(plan.going.pairs(), plan.effects.entries, signals=plan.signals, loose=_loose(draft))
        after = draft.pruned.merged(removed)
        metadata.pruned.CopyFrom(after.to_message())
        metadata.removed.CopyFrom(removed.to_message())
        entry_put = append(
            context, txn, draft, PRUNED, draft_content(metadata), request_hash=metadata.request_hash
        )
        head = entry_put.head
        head.retained_versions -= len(plan.going)
        head.loose_entries = 0
        plan.effects.remove(context, txn, batch, draft, head)
        sums = dict([write_row(txn, draft, head, identity.keys.pruned(), metadata.pruned)])
        moved = list(plan.moved(draft))
        for branch in moved:
            sums.update([write_branch(txn, draft, head, branch)])
        uncleared = read_uncleared(txn, identity.number, draft.pruned)
        write_uncleared(txn, identity.number, uncleared.merged(removed))
        commit_entry(context, txn, batch, draft, entry_put, sums)
        draft.pruned = after
        draft.branches.update({branch.name: branch for branch in moved})
        self._threads.keep_draft(batch, draft)
        return entry_put.header.sequence

    def _submit(self, run: Callable[[lmdb.Transaction, Batch], T], *, is_alone: bool = False) -> T:
        """``is_alone``: the write puts several entries. If one of them fails, the batch must not keep the others."""
        write = Write(run=run, frees_space=True, is_alone=is_alone)
        answer: T = self._context.writer.submit(write, wait=True).wait()
        return answer


def _loose(draft: ThreadDraft) -> Ranges:
    """Returns the entries among which those of tags and the like are not said to count for nothing yet."""
    return Ranges([(draft.pruned.loose.last + 1, draft.head.tip_sequence)]) if draft.head.loose_entries else Ranges()


def is_whole(thread: Thread) -> bool:
    """Returns whether this sidecar may prune the thread, and has its whole history on this disk."""
    return thread.access not in (THREAD_ACCESS_REMOTE, THREAD_ACCESS_ORPHAN) and not thread.floor_sequence
