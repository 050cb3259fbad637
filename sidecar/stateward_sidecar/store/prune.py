"""Removing versions while what stays is readable as before.

Before a chain goes, each version that stays behind without its parent gets a snapshot of its own, in the same
transaction. A snapshot stays as long as an entry names it as dictionary. An entry that goes is cut down to its header
and metadata (a husk) while it lies in the request id window, and removed later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import lmdb

from stateward.storage.v1.head_pb2 import BranchHead, ThreadHead
from stateward.storage.v1.journal_pb2 import ENTRY_KIND_PRUNED, EntryMetadata
from stateward.v1.thread_pb2 import Retention
from stateward.v1.thread_service_pb2 import PruneThreadRequest, PruneThreadResponse
from stateward_sidecar.codec.entry import Entry, unpack
from stateward_sidecar.codec.entry import draft as draft_content
from stateward_sidecar.errors import InvalidField, VersionNotFound
from stateward_sidecar.storage import layout
from stateward_sidecar.storage.writer import Batch
from stateward_sidecar.store import replay
from stateward_sidecar.store.context import REQUEST_WINDOW_ENTRIES, REQUEST_WINDOW_S, Context
from stateward_sidecar.store.journal import SECOND_US, append, commit_entry, label_keys
from stateward_sidecar.store.ranges import Ranges
from stateward_sidecar.store.requests import request_key
from stateward_sidecar.store.settings import begin_change
from stateward_sidecar.store.snapshots import put_snapshot
from stateward_sidecar.store.thread import MAIN, Draft, rows, write_row
from stateward_sidecar.store.threads import Threads

# How many old entries one prune looks at to finish earlier ones.
SWEEP_ENTRIES_MAX = 2048
# How many versions a sweep removes in one write: others wait for it.
RETAIN_VERSIONS_MAX = 1000


@dataclass(slots=True)
class _Work:
    """One prune on its way."""

    txn: lmdb.Transaction
    draft: Draft
    head: ThreadHead
    now_us: int

    def in_window(self, entry: Entry) -> bool:
        """True while a retry may still ask for the entry."""
        header = entry.header
        return (
            header.sequence == 1
            or header.sequence > self.head.tip_sequence - REQUEST_WINDOW_ENTRIES
            or header.create_time_us > self.now_us - REQUEST_WINDOW_S * SECOND_US
        )


class Pruner:
    """Prunes on request, and by a thread's retention rule."""

    def __init__(self, context: Context, threads: Threads) -> None:
        self._context = context
        self._threads = threads

    def prune(self, request: PruneThreadRequest) -> Callable[[lmdb.Transaction, Batch], PruneThreadResponse]:
        """The verb."""

        def run(txn: lmdb.Transaction, batch: Batch) -> PruneThreadResponse:
            change = begin_change(self._threads, txn, batch, request)
            draft = change.draft
            if change.replayed_sequence:
                entry = replay.read_entry(txn, draft.identity, change.replayed_sequence)
                removed = entry.open_metadata(draft.identity.cipher, draft.identity.uid).removed
                return PruneThreadResponse(
                    pruned_versions=Ranges.from_message(removed), retained_versions=draft.head.retained_versions,
                    sequence=change.replayed_sequence,
                )  # fmt: skip
            doomed = self._choose(txn, draft, request)
            answer = PruneThreadResponse(
                pruned_versions=doomed, retained_versions=draft.head.retained_versions - len(doomed),
                sequence=draft.head.tip_sequence,
            )  # fmt: skip
            if doomed and not request.dry_run:
                metadata = EntryMetadata(request_hash=change.request_hash, fingerprint=change.fingerprint)
                answer.sequence = self._remove(txn, batch, draft, doomed, metadata)
            return answer

        return run

    def retain(self, namespace: str, name: str) -> Callable[[lmdb.Transaction, Batch], int]:
        """Applies the thread's retention rule; returns how many versions went."""

        def run(txn: lmdb.Transaction, batch: Batch) -> int:
            draft = self._threads.draft(txn, batch, namespace, name)
            if draft is None or not draft.head.options.HasField("retention"):
                return 0
            doomed = self.choose_by_rule(txn, draft, draft.head.options.retention)[:RETAIN_VERSIONS_MAX]
            if doomed:
                self._remove(txn, batch, draft, doomed, EntryMetadata())
            return len(doomed)

        return run

    def _may_go(self, draft: Draft, entry: Entry) -> bool:
        """With an archive, nothing goes before it is there."""
        return self._context.archive is None or entry.header.sequence <= draft.thread.archived_sequence

    def _choose(self, txn: lmdb.Transaction, draft: Draft, request: PruneThreadRequest) -> list[int]:
        kind = request.WhichOneof("what")
        if kind == "versions":
            named = _choose_named(draft, request.versions.versions)
            return [version for version in named if self._may_go(draft, replay.read_version(txn, draft, version))]
        rule = Retention(keep_last=request.keep_latest_per_branch)
        if kind == "older_than":
            rule = Retention(keep_for=request.older_than)
        return self.choose_by_rule(txn, draft, rule)

    def choose_by_rule(self, txn: lmdb.Transaction, draft: Draft, rule: Retention) -> list[int]:
        """Retained versions that every part of a rule lets go."""
        kept = _protected(draft)
        retained = _retained(draft)
        keeps: dict[str, int] = {}
        oldest_us = 0
        if rule.HasField("keep_for"):
            oldest_us = self._context.clock.now_us() - rule.keep_for.ToMicroseconds()
        doomed = []
        branches = draft.all_branches()
        for version in reversed(retained):
            entry = replay.read_version(txn, draft, version)
            if not self._may_go(draft, entry):
                kept.add(version)
            if rule.keep_last:
                # With one branch there is no need to open every entry to see where it was saved.
                branch = MAIN if len(branches) == 1 else _branch_of(draft, entry)
                keeps[branch] = keeps.get(branch, 0) + 1
                if keeps[branch] <= rule.keep_last:
                    continue
            if oldest_us and entry.header.create_time_us >= oldest_us:
                continue
            if version not in kept:
                doomed.append(version)
        return doomed[::-1]

    def _remove(
        self, txn: lmdb.Transaction, batch: Batch, draft: Draft, doomed: list[int], metadata: EntryMetadata
    ) -> int:
        """Removes versions and says so in the journal. Returns the entry's sequence."""
        context, identity = self._context, draft.identity
        going = set(doomed)
        stay = [version for version in _retained(draft) if version not in going]
        named = set()
        new_snapshots: dict[int, bytes] = {}
        for version in stay:
            entry = replay.read_version(txn, draft, version)
            named.add(entry.header.dictionary_version)
            if entry.header.parent_version in going and version not in draft.snapshots:
                new_snapshots[version] = entry.header.digest
        trees = {version: replay.state_at(txn, draft, version, context.cache) for version in new_snapshots}
        pruned = draft.pruned.union(going)
        metadata.pruned.CopyFrom(pruned.to_message())
        metadata.removed.CopyFrom(Ranges((version, version) for version in doomed).to_message())
        entry_put = append(
            context, txn, draft, ENTRY_KIND_PRUNED, draft_content(metadata), request_hash=metadata.request_hash
        )
        head = entry_put.head
        work = _Work(txn, draft, head, context.clock.now_us())
        snapshots = set(draft.snapshots)
        for version, tree in trees.items():
            head.stored_bytes += put_snapshot(txn, draft, version, new_snapshots[version], tree)
            snapshots.add(version)
        for version in doomed:
            _strip(work, replay.read_version(txn, draft, version))
        for version in {version for version in snapshots if version in pruned} - named:
            head.stored_bytes -= _delete_rows(txn, identity.keys.snapshot_pieces(version))
            snapshots.discard(version)
        _drop_old_husks(work, pruned)
        head.retained_versions -= len(doomed)
        sums = dict([write_row(txn, draft, head, identity.keys.pruned(), metadata.pruned)])
        before = draft.snapshots
        draft.snapshots = frozenset(snapshots)
        try:
            moved = list(self._moved_branches(txn, draft, before))
            for branch in moved:
                key = identity.branch_key(branch.name)
                sums.update([write_row(txn, draft, head, key, branch)])
            commit_entry(context, txn, batch, draft, entry_put, sums)
        except BaseException:
            draft.snapshots = before
            raise
        draft.pruned = pruned
        draft.branches.update({branch.name: branch for branch in moved})
        self._threads.keep_draft(batch, draft)
        cache, number = context.cache, identity.number

        def forget_states() -> None:
            for version in doomed:
                cache.drop_state(number, version)

        batch.after_commit.append(forget_states)
        return entry_put.header.sequence

    def _moved_branches(self, txn: lmdb.Transaction, draft: Draft, before: frozenset[int]) -> Iterable[BranchHead]:
        """Branches whose nearest snapshot is another one now."""
        if draft.snapshots == before:
            return
        for branch in draft.all_branches().values():
            snapshot, weight = replay.nearest_snapshot(txn, draft, branch.version)
            if snapshot != branch.snapshot_version:
                moved = BranchHead()
                moved.CopyFrom(branch)
                moved.snapshot_version, moved.weight = snapshot, weight
                moved.snapshot_stored_bytes = (
                    replay.snapshot_stored_bytes(txn, draft.identity, snapshot) if snapshot else 0
                )
                yield moved


def _drop_old_husks(work: _Work, pruned: Ranges) -> None:
    """Finishes earlier prunes: husks and prune entries that have left the window."""
    prefix = work.draft.identity.keys.all_of(b"J")
    old = []
    for number, (key, record) in enumerate(rows(work.txn, prefix)):
        entry = unpack(record, layout.tail_number(key))
        if number >= SWEEP_ENTRIES_MAX or entry.header.sequence > work.head.tip_sequence - REQUEST_WINDOW_ENTRIES:
            break
        is_done_with = entry.header.version in pruned or entry.header.kind == ENTRY_KIND_PRUNED
        if is_done_with and not work.in_window(entry):
            old.append(entry)
    for entry in old:
        _drop(work, entry)


def _choose_named(draft: Draft, versions: Iterable[int]) -> list[int]:
    doomed = sorted(set(versions))
    last = draft.head.last_version
    heads = {branch.version: branch.name for branch in draft.all_branches().values()}
    tagged = {version: name for name, version in draft.all_tags().items()}
    for version in doomed:
        if not 1 <= version <= last:
            raise VersionNotFound(
                f"thread {draft.identity.name!r} has no version {version}", thread=draft.identity.name, version=version
            )
        if version in heads:
            raise InvalidField("versions", f"version {version} is the head of branch {heads[version]!r}")
        if version in tagged:
            raise InvalidField("versions", f"version {version} has the tag {tagged[version]!r}; delete the tag first")
    return [version for version in doomed if version not in draft.pruned]


def _protected(draft: Draft) -> set[int]:
    branches = draft.all_branches().values()
    return (
        {branch.version for branch in branches}
        | {branch.base_version for branch in branches}
        | set(draft.all_tags().values())
    )


def _retained(draft: Draft) -> list[int]:
    """Ascending."""
    retained: list[int] = []
    at = 1
    for first, last in draft.pruned.pairs():
        retained.extend(range(at, first))
        at = last + 1
    retained.extend(range(at, draft.head.last_version + 1))
    return retained


def _branch_of(draft: Draft, entry: Entry) -> str:
    identity = draft.identity
    return entry.open_metadata(identity.cipher, identity.uid).checkpoint.branch or MAIN


def _strip(work: _Work, entry: Entry) -> None:
    """Takes the edits of a version away, and the whole entry where nobody may ask for it any more."""
    identity, txn = work.draft.identity, work.txn
    header = entry.header
    if header.parts_id:
        work.head.stored_bytes -= _delete_rows(txn, identity.keys.edits_pieces(header.parts_id))
    metadata = entry.open_metadata(identity.cipher, identity.uid)
    for key in label_keys(identity, header, metadata.checkpoint.labels):
        txn.delete(key)
    if work.in_window(entry):
        husk = entry.husk()
        work.head.stored_bytes -= len(entry.record) - len(husk)
        txn.put(identity.keys.entry(header.sequence), husk)
    else:
        _drop(work, entry)


def _drop(work: _Work, entry: Entry) -> None:
    """Removes an entry with the rows that lead to it."""
    identity, txn = work.draft.identity, work.txn
    metadata = entry.open_metadata(identity.cipher, identity.uid)
    if metadata.request_hash:
        txn.delete(request_key(identity, metadata.request_hash))
    body = metadata.checkpoint
    if body.checkpoint_id:
        id_hash = identity.hash_id(b"checkpoint", body.branch or MAIN, body.checkpoint_id)
        txn.delete(identity.keys.checkpoint_id(id_hash))
    txn.delete(identity.keys.entry(entry.header.sequence))
    work.head.stored_bytes -= len(entry.record)


def _delete_rows(txn: lmdb.Transaction, prefix: bytes) -> int:
    """Removes all rows with a prefix. Returns how many bytes their values had."""
    found = [(key, len(value)) for key, value in rows(txn, prefix)]
    for key, _ in found:
        txn.delete(key)
    return sum(size for _, size in found)
