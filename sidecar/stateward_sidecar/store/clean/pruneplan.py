"""The plan of a prune, and the effects that go with it.

It is made outside the writer, which checks that it still holds.

An effect belongs to a version if its anchor is the version's checkpoint id. It goes with the last version that has this
id, on any branch. The plan finds these effects; the writer removes their rows in the transaction of the prune, and
``clear.py`` removes their entries as it removes the edits of the versions.

``Pruned.effects`` names all entries of deleted effects, the replaced ones too: each entry names the one before it. So a
machine that reads old entries from the archive does not bring a deleted effect back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

import lmdb

from stateward.storage.v1.head_pb2 import BranchHead, EffectRow, ThreadHead
from stateward.v1.thread_service_pb2 import MovedHead, PrunePlan, PruneThreadRequest
from stateward_sidecar.codec.entry import unpack
from stateward_sidecar.errors import InvalidField, VersionMismatch
from stateward_sidecar.storage.queue import Batch
from stateward_sidecar.store.clean.lineage import Lineage
from stateward_sidecar.store.journal import replay
from stateward_sidecar.store.journal.finding import find_named
from stateward_sidecar.store.kinds.effect import EFFECT, EFFECT_ROWS, anchor_prefix
from stateward_sidecar.store.kinds.version import VERSION
from stateward_sidecar.store.thread import blocks
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.ranges import Pruned, Ranges, spans_of
from stateward_sidecar.store.thread.thread import MAIN, Identity, Thread, ThreadDraft, add_to_sum
from stateward_sidecar.store.versions.branches import Pointed, fall_back, point_branch

VERSIONS_A_STEP = 100
# Two ranges are joined if fewer entries lie between them, and none of these is about an effect that is left.
GAP_MAX = 64


@dataclass(slots=True)
class GoneEffects:
    """Effects that are deleted together, and all that the writer needs for it."""

    anchors: set[str] = field(default_factory=set)  # the checkpoint ids of the versions that are pruned
    only: frozenset[str] = frozenset()  # only effects with these keys; empty = all of the anchors
    row_keys: list[bytes] = field(default_factory=list)
    sum_change: int = 0
    entries: Ranges = field(default_factory=Ranges)  # sequences

    def add(self, identity: Identity, row_key: bytes, row: EffectRow) -> None:
        """Adds an effect."""
        self.row_keys.append(row_key)
        self.sum_change ^= EFFECT_ROWS.part(identity, row_key, row)

    def holds(self, txn: lmdb.Transaction, draft: ThreadDraft, sequence: int) -> bool:
        """Returns whether an entry that was written since changes nothing of this."""
        if not replay.has_entry(txn, draft.identity, sequence):
            return True  # another sidecar wrote and removed it: it is of records, or loose
        entry = replay.read_entry(txn, draft.identity, sequence)
        if entry.header.kind not in (VERSION.number, EFFECT.number):
            return True
        metadata = replay.open_metadata(draft.identity, entry)
        if entry.header.kind == VERSION.number:  # effects with a free anchor belong to no version
            return not metadata.checkpoint.checkpoint_id or metadata.checkpoint.checkpoint_id not in self.anchors
        is_about = metadata.effect.anchor in self.anchors and (not self.only or metadata.effect.key in self.only)
        return not is_about

    def remove(
        self, context: Context, txn: lmdb.Transaction, batch: Batch, draft: ThreadDraft, head: ThreadHead
    ) -> None:
        """Removes the rows, and subtracts them from the head."""
        for row_key in self.row_keys:
            txn.delete(row_key)
        if self.row_keys:
            head.effect_sum = add_to_sum(head.effect_sum, self.sum_change)
            head.effects -= len(self.row_keys)
            places = [(draft.identity.number, row_key) for row_key in self.row_keys]
            batch.after_commit.append(partial(_forget_terms, context, places))


def _forget_terms(context: Context, places: Iterable[tuple[int, bytes]]) -> None:
    for place in places:
        context.terms.forget(place)


def find_gone(context: Context, thread: Thread, lineage: Lineage, going: Ranges) -> GoneEffects:
    """Returns the effects that go with versions. Reads nothing if the thread has no effects.

    ``thread``: a copy for this moment. Raises HistoryElsewhere or Corrupt.
    """
    found = GoneEffects()
    if not thread.head.effects:
        return found
    if thread.floor_sequence:
        raise replay.history_elsewhere(thread.identity)
    versions = list(going)
    for at in range(0, len(versions), VERSIONS_A_STEP):
        with context.engine.read() as txn:
            for version in versions[at : at + VERSIONS_A_STEP]:
                entry = replay.read_version(txn, thread, version)
                found.anchors.add(replay.open_metadata(thread.identity, entry).checkpoint.checkpoint_id)
    found.anchors.discard("")
    with context.engine.read() as txn:
        branches = {*thread.branches, *_deleted_branches(txn, thread, lineage)} if found.anchors else set[str]()
    rows = list[EffectRow]()
    for anchor in sorted(found.anchors):
        with context.engine.read() as txn:
            of_anchor = list(EFFECT_ROWS.rows(txn, thread.identity, anchor_prefix(thread.identity, anchor)))
            if of_anchor and not _is_named(txn, thread, anchor, branches, going):
                for row_key, row in of_anchor:
                    if not row.record.stays:
                        found.add(thread.identity, row_key, row)
                        rows.append(row)
    found.entries = entries_of(context, thread, rows)
    return found


def _deleted_branches(txn: lmdb.Transaction, thread: Thread, lineage: Lineage) -> Iterator[str]:
    for sequence in lineage.deletions:
        entry = replay.read_entry(txn, thread.identity, sequence)
        for move in replay.open_metadata(thread.identity, entry).heads:
            if not move.version:
                yield move.branch


def _is_named(txn: lmdb.Transaction, thread: Thread, checkpoint_id: str, branches: set[str], going: Ranges) -> bool:
    """Returns whether a version with this checkpoint id is left."""
    for branch in branches or {MAIN}:
        entry = find_named(txn, thread, checkpoint_id, branch)
        if entry is not None and entry.header.version not in going and entry.header.version not in thread.pruned:
            return True
    return False


def entries_of(context: Context, thread: Thread, rows: Iterable[EffectRow]) -> Ranges:
    """Returns the sequences of all entries about some effects, as few ranges as possible."""
    found = set[int]()
    for row in rows:
        with context.engine.read() as txn:
            found.update(_entries(txn, thread.identity, row))
    return _join(context, thread, Ranges((sequence, sequence) for sequence in found))


def _entries(txn: lmdb.Transaction, identity: Identity, row: EffectRow) -> Iterator[int]:
    """Yields the sequences of the entries of an effect, newest first."""
    yield row.sequence
    sequence = row.record.previous_sequence
    while sequence:
        yield sequence
        sequence = replay.open_metadata(identity, replay.read_entry(txn, identity, sequence)).effect.previous_sequence


def _join(context: Context, thread: Thread, new: Ranges) -> Ranges:
    """Adds to ``new`` each short gap without an entry of a live effect."""
    known = thread.pruned.effects
    pairs, gaps = Ranges([*known.pairs(), *new.pairs()]).pairs(), list[tuple[int, int]]()
    for (_, last), (first, _) in pairwise(pairs):
        if first - last <= GAP_MAX and (last in new or first in new):
            with context.engine.read() as txn:
                if not any(_is_effect(txn, thread.identity, sequence) for sequence in range(last + 1, first)):
                    gaps.append((last + 1, first - 1))
    return Ranges([*new.pairs(), *gaps])


def _is_effect(txn: lmdb.Transaction, identity: Identity, sequence: int) -> bool:
    record = blocks.get_entry(txn, identity.keys, sequence)
    return record is not None and unpack(record, sequence).header.kind == EFFECT.number


# If more entries than this were written since the plan, a new plan is made.
NEW_ENTRIES_MAX = 500


@dataclass(frozen=True, slots=True)
class Move:
    """A branch whose nearest snapshot changes: the old one is pruned, or a new one is nearer."""

    before: BranchHead
    snapshot: int
    stored_bytes: int
    weight: int

    def apply(self, branch: BranchHead) -> BranchHead:
        """Returns the current branch with its new snapshot."""
        moved = BranchHead()
        moved.CopyFrom(branch)
        moved.snapshot_version, moved.snapshot_stored_bytes = self.snapshot, self.stored_bytes
        moved.weight = self.weight + max(branch.weight - self.before.weight, 0)
        return moved


@dataclass(frozen=True, slots=True)
class Fall:
    """A branch whose head is pruned: it moves to an earlier version, or is deleted."""

    before: BranchHead
    to: Pointed | None

    def facts(self, name: str) -> tuple[str, int, int]:
        """Returns the branch, its head afterwards (0 = it is deleted), and its head before."""
        return name, self.to.branch.version if self.to is not None else 0, self.before.version


@dataclass(frozen=True, slots=True)
class Shown:
    """What a dry run found, for a person to agree to. A prune that was given it removes nothing else."""

    versions: Ranges
    newest_digest: bytes
    moved: frozenset[tuple[str, int, int]]  # branch, its head afterwards (0 = deleted), its head before

    @classmethod
    def of(cls, request: PruneThreadRequest) -> Shown | None:
        """Returns the plan that a request was given; None = none."""
        if not request.HasField("plan"):
            return None
        plan = request.plan
        spans = ((span.first, span.last) for span in plan.versions.spans)
        moved = frozenset((each.branch, each.version, each.previous_version) for each in plan.moved_heads)
        return cls(Ranges(spans), plan.newest_digest, moved)

    def check_newest(self, txn: lmdb.Transaction, thread: Thread) -> None:
        """Raises VersionMismatch if the newest version was pruned, or is another one. The digest of an entry stands for
        all entries before it."""
        newest, name = self.versions.last, thread.name
        is_there = newest <= thread.head.last_version and newest not in thread.pruned
        if not is_there or replay.read_version(txn, thread, newest).header.digest != self.newest_digest:
            why = f"version {newest} was pruned since, or is another version"
            raise _changed(name, why, current_version=thread.head.main_version, expected_version=newest)

    def check_moved(self, thread: Thread, falls: Mapping[str, Fall]) -> None:
        """Raises VersionMismatch if other heads would move."""
        if frozenset(fall.facts(name) for name, fall in falls.items()) != self.moved:
            why = "other heads of branches would move"
            raise _changed(thread.name, why, current_version=thread.head.main_version)


def _changed(thread: str, why: str, **facts: int) -> VersionMismatch:
    what = f"thread {thread!r} is not as the plan of the prune says: {why}; nothing was removed, make a new plan"
    return VersionMismatch(what, thread=thread, **facts)


@dataclass(frozen=True, slots=True)
class Plan:
    """The versions to prune (``going``), planned for a thread at one entry of its journal."""

    number: int
    tip_sequence: int
    before: Pruned
    going: Ranges
    alone: frozenset[int]  # versions that stay without their parent; each has a snapshot
    moves: dict[str, Move]
    snapshots: frozenset[int] = frozenset()  # the thread's snapshots when the moves were found
    falls: dict[str, Fall] = field(default_factory=dict)
    effects: GoneEffects = field(default_factory=GoneEffects)  # those that go with the versions
    had_effects: bool = False  # the thread had effects when they were searched
    signals: Ranges = field(default_factory=Ranges)  # those that the versions acknowledged
    newest_digest: bytes = b""  # of the newest of the versions; only in a dry run

    def shown(self, uid: str) -> PrunePlan:
        """Returns the plan as an answer has it."""
        moved = [
            MovedHead(
                branch=name, version=fall.to.branch.version if fall.to else 0,
                version_digest=fall.to.branch.digest if fall.to else b"", previous_version=fall.before.version,
            )
            for name, fall in sorted(self.falls.items())
        ]  # fmt: skip
        return PrunePlan(uid=uid, versions=spans_of(self.going), newest_digest=self.newest_digest, moved_heads=moved)

    def holds(self, txn: lmdb.Transaction, draft: ThreadDraft) -> bool:
        """Returns whether the plan is still right after the writes since. Reads only the new entries."""
        going, tip = self.going, draft.head.tip_sequence
        now, before = draft.pruned, self.before
        if draft.identity.number != self.number or now.pairs() != before.pairs():
            return False
        # Deleted by another sidecar that had the thread meanwhile.
        if now.effects.pairs() != before.effects.pairs() or now.signals.pairs() != before.signals.pairs():
            return False
        if tip == self.tip_sequence and draft.snapshots == self.snapshots:
            return True  # shortcut: the checks below look at every branch, and there may be thousands
        if tip - self.tip_sequence > NEW_ENTRIES_MAX or not self.alone <= draft.snapshots:
            return False
        if draft.head.effects and not self.had_effects:
            return False
        if any(draft.branch(name) != fall.before for name, fall in self.falls.items()):
            return False
        falling = {fall.before.version for fall in self.falls.values()}
        # A base needs no check: the plan chose it, or it has a child since, which is found below.
        heads = (branch.version for branch in draft.all_branches().values())
        if any(version in going and version not in falling for version in heads):
            return False
        if any(version in going for version in draft.all_tags().values()):
            return False
        if not all(self._allows(txn, draft, sequence) for sequence in range(self.tip_sequence + 1, tip + 1)):
            return False
        return all(self._knows(branch) for branch in draft.all_branches().values())

    def _allows(self, txn: lmdb.Transaction, draft: ThreadDraft, sequence: int) -> bool:
        """Returns whether the plan is still right after an entry that is newer than it."""
        if not replay.has_entry(txn, draft.identity, sequence):
            return True  # another sidecar wrote and removed it: it is of records, or loose
        if replay.read_entry(txn, draft.identity, sequence).header.parent_version in self.going:
            return False
        return not self.had_effects or self.effects.holds(txn, draft, sequence)

    def _knows(self, branch: BranchHead) -> bool:
        if branch.name in self.falls:
            return True
        move = self.moves.get(branch.name)
        if move is None or branch.snapshot_version != move.before.snapshot_version:
            return branch.snapshot_version not in self.going
        return branch.moved_version == move.before.moved_version

    def moved(self, draft: ThreadDraft) -> Iterable[BranchHead]:
        """Yields the branches with a new snapshot, ready to be written."""
        for name, move in self.moves.items():
            branch = draft.branch(name)
            if branch is not None and branch.snapshot_version == move.before.snapshot_version:
                yield move.apply(branch)


def find_falls(txn: lmdb.Transaction, thread: Thread, going: Ranges) -> dict[str, Fall]:
    """Returns the branches whose heads are ``going``. Raises InvalidField if main would have no version.

    The versions that stay without their parent must have their snapshots already.
    """
    falls = {}
    for name, branch in thread.branches.copy().items():
        if branch.version in going:
            version = fall_back(txn, thread, branch, going)
            if not version and name == MAIN:
                raise InvalidField("versions", "would leave main without a version; delete the thread instead")
            falls[name] = Fall(branch, point_branch(txn, thread, branch, version) if version else None)
    return falls


def find_moves(txn: lmdb.Transaction, thread: Thread, going: Ranges, alone: Iterable[int]) -> dict[str, Move]:
    """Returns the branches whose nearest snapshot changes if ``going`` is pruned.

    ``alone``: the versions that stay without their parent. They must have their snapshots already.
    """
    moves, new = {}, sorted(alone)
    for branch in thread.branches.values():
        if branch.version in going:
            continue  # see ``find_falls``
        at = branch.snapshot_version
        if at not in going and not any(at < version <= branch.version for version in new):
            continue
        snapshot, weight = replay.nearest_snapshot(txn, thread, branch.version)
        if snapshot != at:
            stored = replay.snapshot_stored_bytes(txn, thread.identity, snapshot) if snapshot else 0
            moves[branch.name] = Move(branch, snapshot, stored, weight)
    return moves
