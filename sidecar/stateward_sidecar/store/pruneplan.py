"""What a prune is about to do, worked out beside the writer; the writer only looks whether it still holds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import lmdb

from stateward.storage.v1.head_pb2 import BranchHead
from stateward_sidecar.store import replay
from stateward_sidecar.store.choose import protected
from stateward_sidecar.store.ranges import Ranges
from stateward_sidecar.store.thread import Draft, Thread

# A plan that is older than so many entries is made anew.
NEW_ENTRIES_MAX = 500


@dataclass(frozen=True, slots=True)
class Move:
    """A branch whose nearest snapshot goes, or is nearer from now on."""

    before: BranchHead
    snapshot: int
    stored_bytes: int
    weight: int

    def apply(self, branch: BranchHead) -> BranchHead:
        """The branch as it stands now, with its new snapshot."""
        moved = BranchHead()
        moved.CopyFrom(branch)
        moved.snapshot_version, moved.snapshot_stored_bytes = self.snapshot, self.stored_bytes
        moved.weight = self.weight + max(branch.weight - self.before.weight, 0)
        return moved


@dataclass(frozen=True, slots=True)
class Plan:
    """Versions that go, from a thread as it was at an entry."""

    number: int
    tip_sequence: int
    before: Ranges
    going: Ranges
    after: Ranges
    alone: frozenset[int]  # versions that stay without their parent: they have snapshots
    moves: dict[str, Move]
    snapshots: frozenset[int] = frozenset()  # those there were for the moves

    def holds(self, txn: lmdb.Transaction, draft: Draft) -> bool:
        """Whether nothing was written meanwhile that the plan did not know of. Reads what is new only."""
        going, tip = self.going, draft.head.tip_sequence
        if draft.identity.number != self.number or draft.pruned.pairs() != self.before.pairs():
            return False
        if tip == self.tip_sequence and draft.snapshots == self.snapshots:
            return True  # else every branch is looked at, of which there may be thousands
        if tip - self.tip_sequence > NEW_ENTRIES_MAX or not self.alone <= draft.snapshots:
            return False
        if any(version in going for version in protected(draft)):
            return False
        for sequence in range(self.tip_sequence + 1, tip + 1):
            if replay.read_entry(txn, draft.identity, sequence).header.parent_version in going:
                return False
        return all(self._knows(branch) for branch in draft.all_branches().values())

    def _knows(self, branch: BranchHead) -> bool:
        move = self.moves.get(branch.name)
        if move is None or branch.snapshot_version != move.before.snapshot_version:
            return branch.snapshot_version not in self.going
        return branch.moved_version == move.before.moved_version

    def moved(self, draft: Draft) -> Iterable[BranchHead]:
        """Branches with a new snapshot, as they are to be written."""
        for name, move in self.moves.items():
            branch = draft.branch(name)
            if branch is not None and branch.snapshot_version == move.before.snapshot_version:
                yield move.apply(branch)


def find_moves(txn: lmdb.Transaction, thread: Thread, going: Ranges, alone: Iterable[int]) -> dict[str, Move]:
    """The branches whose nearest snapshot is another one once versions are gone. ``alone`` have snapshots by now."""
    moves, new = {}, sorted(alone)
    for branch in thread.branches.values():
        at = branch.snapshot_version
        if at not in going and not any(at < version <= branch.version for version in new):
            continue
        snapshot, weight = replay.nearest_snapshot(txn, thread, branch.version)
        if snapshot != at:
            stored = replay.snapshot_stored_bytes(txn, thread.identity, snapshot) if snapshot else 0
            moves[branch.name] = Move(branch, snapshot, stored, weight)
    return moves
