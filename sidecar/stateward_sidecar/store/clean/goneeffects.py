"""Deletes effects: those of pruned versions, and those that a caller names.

An effect belongs to a version if its anchor is the version's checkpoint id. It goes with the last version that has this
id, on any branch. The plan of a prune finds these effects outside the writer; the writer removes their rows in the
transaction of the prune, and ``clear.py`` removes their entries as it removes the edits of the versions.

``Pruned.effects`` names all entries of deleted effects, the replaced ones too: each entry names the one before it. So a
machine that reads old entries from the archive does not bring a deleted effect back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

import lmdb

from stateward.storage.v1.head_pb2 import EffectRow, ThreadHead
from stateward_sidecar.codec.entry import unpack
from stateward_sidecar.storage.queue import Batch
from stateward_sidecar.store.clean.lineage import Lineage
from stateward_sidecar.store.journal import replay
from stateward_sidecar.store.journal.refs import find_named
from stateward_sidecar.store.kinds.effect import EFFECT
from stateward_sidecar.store.kinds.effectrows import anchor_prefix, anchor_rows, effect_part
from stateward_sidecar.store.kinds.version import VERSION
from stateward_sidecar.store.thread import blocks
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.identity import Identity
from stateward_sidecar.store.thread.ranges import Ranges
from stateward_sidecar.store.thread.thread import MAIN, Thread, ThreadDraft

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
        self.sum_change ^= effect_part(identity, row_key, row)

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
            head.effect_sum = (int.from_bytes(head.effect_sum, "big") ^ self.sum_change).to_bytes(16, "big")
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
            of_anchor = list(anchor_rows(txn, thread.identity, anchor_prefix(thread.identity, anchor)))
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
