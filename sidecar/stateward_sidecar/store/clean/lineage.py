"""Parents and dictionaries of all versions of a thread, and the list of what is still to be cleared.

The row that lists what of a thread was pruned and still has its rows: versions, and entries that count for nothing.

The row is not sealed, because only what the thread's sealed row of pruned versions names is ever cleared. If the row
is damaged, it is ignored, and the versions that it named keep their space.

Parents and dictionaries of all versions of a thread, as pruning needs them.

The journal is read once in a process, some entries at a time. Later prunes read only new entries. The result stays in
memory for the threads that were pruned last.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from itertools import pairwise

import lmdb
from google.protobuf.message import DecodeError

from stateward.storage.v1.journal_pb2 import (
    EntryHeader,
    PrunedVersions,
)
from stateward_sidecar.codec.entry import Entry, unpack
from stateward_sidecar.errors import Corrupt
from stateward_sidecar.storage import layout
from stateward_sidecar.store.journal import replay
from stateward_sidecar.store.kinds.effect import EFFECTS_DELETED
from stateward_sidecar.store.kinds.pruned import PRUNED
from stateward_sidecar.store.kinds.ref import HEADS
from stateward_sidecar.store.kinds.signal import SIGNAL
from stateward_sidecar.store.kinds.table import is_cut, kind_of
from stateward_sidecar.store.thread import blocks
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.ranges import Pruned, Ranges
from stateward_sidecar.store.thread.thread import Thread, ThreadDraft, rows


def read_uncleared(txn: lmdb.Transaction, number: int, pruned: Pruned) -> Pruned:
    """Returns what is pruned and not cleared. ``pruned``: all that was ever pruned in the thread."""
    row = txn.get(layout.uncleared_key(number))
    if row is None:
        return Pruned()
    try:
        named = Pruned.from_message(PrunedVersions.FromString(bytes(row[1:])))
    except DecodeError:
        return Pruned()
    return named.common_with(pruned)


def add_uncleared(txn: lmdb.Transaction, number: int, pruned: Pruned, more: Pruned) -> None:
    """Adds versions, and entries that count for nothing. Does nothing if there are none."""
    if not more.is_empty:
        write_uncleared(txn, number, read_uncleared(txn, number, pruned).merged(more))


def write_uncleared(txn: lmdb.Transaction, number: int, left: Pruned) -> None:
    """Writes the row. An empty row says that only the snapshots of pruned versions are left to check."""
    txn.put(layout.uncleared_key(number), layout.PRESENT + left.to_message().SerializeToString())


THREADS_MAX = 64
ENTRIES_A_STEP = 100
# Pause between two steps, so that other threads get the interpreter.
PAUSE_S = 0.0005


@dataclass(slots=True)
class Lineage:
    """The lineage of one thread, up to one entry."""

    uid: bytes
    pruned: Pruned  # the pruned versions after the last prune in this process
    uncleared: Pruned  # pruned, but not cleared when the journal was read
    sequence: int = 0
    children: dict[int, list[int]] = field(default_factory=dict)  # by parent: children whose number is not parent + 1
    jumped: set[int] = field(default_factory=set)  # versions whose parent is not the version before them
    users: Counter[int] = field(default_factory=Counter)  # by snapshot: how many versions need it as dictionary
    husks: list[int] = field(default_factory=list)  # sequences of husks and prune entries, ascending
    # Entries that deleted branches, by sequence: the ranges that hold all versions of these branches.
    deletions: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    # Sequences of entries that are not cleared: of signals, and of tags, settings, leases, blobs and moved heads.
    signals: list[int] = field(default_factory=list)
    loose: list[int] = field(default_factory=list)
    acks: dict[int, list[int]] = field(default_factory=dict)  # by version: the signals that it acknowledged

    def read_on(self, txn: lmdb.Transaction, thread: Thread | ThreadDraft, entries: int) -> bool:
        """Reads at most ``entries`` more entries. Returns whether all were read."""
        for count, (sequence, record) in enumerate(blocks.entries(txn, thread.identity.keys, self.sequence + 1)):
            if count >= entries:
                return False
            entry = unpack(record, sequence)
            if deleted := _deleted(thread, entry):
                self.deletions[sequence] = deleted
            else:
                self._add(entry.header, thread.identity.name, is_gone=self._is_cleared(txn, thread, entry))
            self.sequence = sequence
        return True

    def _is_cleared(self, txn: lmdb.Transaction, thread: Thread | ThreadDraft, entry: Entry) -> bool:
        header = entry.header
        if not is_cut(self.pruned, header):
            return False
        if not is_cut(self.uncleared, header) or entry.is_husk:  # a crash may leave more in the row than is left
            return True
        pieces = thread.identity.keys.edits_pieces(header.parts_id)
        return bool(header.parts_id) and next(rows(txn, pieces), None) is None

    def _add(self, header: EntryHeader, name: str, *, is_gone: bool) -> None:
        version, parent = header.version, header.parent_version
        if header.kind in (PRUNED.number, EFFECTS_DELETED.number) or (
            is_gone and header.sequence > 1
        ):  # the first entry describes the thread, and stays
            self.husks.append(header.sequence)
        if not version and not is_gone:
            if header.kind == SIGNAL.number:
                self.signals.append(header.sequence)
            elif kind_of(header).is_loose and header.sequence > 1:
                self.loose.append(header.sequence)
        if not version or is_gone:
            return
        if header.acked_sequences:
            self.acks[version] = list(header.acked_sequences)
        if not 0 <= parent < version:
            raise Corrupt(f"an entry names the parent {parent}", name, version)
        if header.dictionary_version:
            self.users[header.dictionary_version] += 1
        if parent != version - 1:
            self.jumped.add(version)
            if parent:
                self.children.setdefault(parent, []).append(version)

    def acked(self, going: Iterable[int], before: Ranges) -> Ranges:
        """Returns the signals that versions acknowledged, as few ranges as possible. ``before``: signals that other
        pruned versions acknowledged."""
        mine = sorted(sequence for version in going for sequence in self.acks.get(version, ()))
        if not mine:
            return Ranges()
        dead = {*mine, *(sequence for sequence in self.signals if sequence in before)}
        alive = [sequence for sequence in self.signals if sequence not in dead]
        known = Ranges([*before.pairs(), *((sequence, sequence) for sequence in mine)]).pairs()
        gaps = [
            (last + 1, first - 1) for (_, last), (first, _) in pairwise(known)
            if bisect_right(alive, first) == bisect_right(alive, last)
        ]  # fmt: skip
        return Ranges([*((sequence, sequence) for sequence in mine), *gaps])

    def forget(self, cleared: Pruned) -> None:
        """Forgets entries that were cleared."""
        for sequence in self.over(cleared.loose):
            del self.deletions[sequence]
        self.signals = [sequence for sequence in self.signals if sequence not in cleared.signals]
        self.loose = [sequence for sequence in self.loose if sequence not in cleared.loose]
        for version in [version for version in self.acks if version in cleared]:
            del self.acks[version]

    def over(self, loose: Ranges) -> list[int]:
        """Returns the entries among ``loose`` that deleted branches of which every version was pruned."""
        return [
            sequence for sequence, spans in self.deletions.items()
            if sequence in loose and all(self.pruned.covers(first, last) for first, last in spans)
        ]  # fmt: skip

    def left_alone(self, going: Collection[int], last: int) -> set[int]:
        """Returns the versions that stay without their parent if ``going`` is pruned."""
        alone = {version + 1 for version in going if version < last and version + 1 not in self.jumped}
        if self.children:
            alone.update(child for version in going for child in self.children.get(version, ()))
        return {version for version in alone if version not in going and version not in self.pruned}


def _deleted(thread: Thread | ThreadDraft, entry: Entry) -> list[tuple[int, int]]:
    """Returns the ranges that hold the versions of the branches which an entry deleted."""
    if entry.header.kind != HEADS.number:
        return []
    try:
        moves = replay.open_metadata(thread.identity, entry).heads
    except Corrupt:  # it stays
        return [(1, layout.SEQUENCE_MAX)]
    return [(move.first_version, move.last_version) for move in moves if not move.version]


class Lineages:
    """The lineages of the threads that were pruned last."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._lineages: OrderedDict[int, Lineage] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, thread: Thread, before: Pruned | None = None) -> Lineage:
        """Returns the lineage up to the newest entry at least. Only one call for each thread at a time. Raises Corrupt.

        ``before``: the versions that were pruned before the caller's prune, which is not cleared yet.
        """
        with self._lock:
            found = self._lineages.get(thread.number)
        if found is not None and before is not None and found.pruned.pairs() == before.pairs():
            found.pruned = thread.pruned
        if found is None or found.pruned.pairs() != thread.pruned.pairs():
            with self._context.engine.read() as txn:
                found = Lineage(thread.identity.uid, thread.pruned, read_uncleared(txn, thread.number, thread.pruned))
        while True:
            with self._context.engine.read() as txn:
                if found.read_on(txn, thread, ENTRIES_A_STEP):
                    break
            time.sleep(PAUSE_S)
        with self._lock:
            self._lineages[thread.number] = found
            self._lineages.move_to_end(thread.number)
            while len(self._lineages) > THREADS_MAX:
                self._lineages.popitem(last=False)
        return found
