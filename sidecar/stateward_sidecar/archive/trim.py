"""Takes out of the bucket what was pruned. Part of a ship; what HEAD names is dropped in the ship itself.

A pack of which all versions were pruned is put anew without their edits, as soon as this disk has cleared them: its
entries stay for as long as a retry may ask for them. Packs that follow each other become one. And packs and snapshots
that nothing needs go from the indexes. An index is never changed, so it is put anew, with all newer ones.

The work is bounded: the indexes are read when something was pruned, and written if they are few, or if what goes is an
eighth of their number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stateward.storage.v1.archive_pb2 import (
    OBJECT_KIND_INDEX,
    OBJECT_KIND_SNAPSHOT,
    ArchiveHead,
    ArchiveIndex,
    ObjectRef,
    PackedRow,
)
from stateward.storage.v1.journal_pb2 import EntryHeader
from stateward_sidecar.archive.desk import Desk, Hold
from stateward_sidecar.archive.fold import MERGED_BYTES_MAX, Older, discard
from stateward_sidecar.archive.packs import is_pack, pack_entries, pack_index
from stateward_sidecar.archive.pulse import Uploads
from stateward_sidecar.codec.entry import unpack
from stateward_sidecar.errors import ArchiveUnavailable, StatewardError
from stateward_sidecar.store.outbox import Cleared, Moment
from stateward_sidecar.store.ranges import Pruned
from stateward_sidecar.telemetry import log_damage

# How many objects an index names that is put anew.
INDEX_OBJECTS_MAX = 512
# So many indexes are put anew for a single object that goes from the last of them.
INDEXES_FREE = 8
# After so many entries the indexes are searched again, because retries may not ask for older ones any more.
LOOK_ENTRIES = 256
# A cleared pack is joined with the packs after it unless it is so many times larger.
LARGER_MAX = 4


def trim(desk: Desk, hold: Hold, head: ArchiveHead, moment: Moment, uploads: Uploads, older: Older) -> None:
    """Makes HEAD lead to nothing that was pruned. The new objects are added to ``uploads``."""
    thread, hold.trimming = moment.thread, hold.trimmed
    if thread.pruned.is_empty or thread.floor_sequence:
        return
    clearing = _Clearing(desk, hold, head, moment, uploads)
    refs = clearing.replace(list(head.objects))
    if refs is not None:
        del head.objects[:]
        head.objects.extend(refs)
    if head.HasField("index") and _is_due(hold, moment):
        try:
            _trim_indexes(desk, hold, head, clearing, older)
        except ArchiveUnavailable:  # the next ship tries again
            return
        except StatewardError as error:  # an index is damaged or missing
            log_damage("pruned versions stay in the archive", error, uid=thread.identity.uid_text)
        was_pruned = hold.trimmed is None or hold.trimmed[0].pairs() != thread.pruned.pairs()
        hold.trimming = thread.pruned, moment.tip_sequence, was_pruned or clearing.waits


def _is_due(hold: Hold, moment: Moment) -> bool:
    if hold.trimmed is None:
        return True
    pruned, tip, again = hold.trimmed
    is_new = again or moment.tip_sequence - tip >= LOOK_ENTRIES
    return is_new or pruned.pairs() != moment.thread.pruned.pairs()


def _trim_indexes(desk: Desk, hold: Hold, head: ArchiveHead, clearing: _Clearing, older: Older) -> None:
    chain = list(_chain(older, head.index))  # newest first
    gone = {_name(ref) for ref in older.gone([ref for _, index in chain for ref in index.objects])}
    changed = dict[int, list[ObjectRef]]()
    for depth, (_, index) in enumerate(chain):
        left = [ref for ref in index.objects if _name(ref) not in gone]
        cleared = clearing.look(left)
        if len(left) < len(index.objects) or cleared:
            changed[depth] = left
    if not changed:
        return
    deepest = max(changed)
    objects = sum(len(chain[depth][1].objects) - len(left) for depth, left in changed.items())
    if deepest >= INDEXES_FREE and objects * 8 < deepest:
        return
    put_anew = chain[: deepest + 1]
    refs = [
        ref for depth in range(deepest, -1, -1) for ref in changed.get(depth, list(put_anew[depth][1].objects))
    ]
    dropped = [ref for _, index in put_anew for ref in index.objects if _name(ref) in gone]
    refs = clearing.replace(refs) or refs
    previous = chain[deepest + 1][0] if deepest + 1 < len(chain) else None
    _put_indexes(desk, hold, head, clearing.uploads, refs, previous)
    for ref in [*dropped, *(ref for ref, _ in put_anew)]:
        discard(hold, head, ref)
    rest = [ref for _, index in chain[deepest + 1 :] for ref in index.objects]
    hold.indexed_snapshots = {ref.first_version for ref in [*refs, *rest] if ref.kind == OBJECT_KIND_SNAPSHOT}


def _put_indexes(
    desk: Desk, hold: Hold, head: ArchiveHead, uploads: Uploads, refs: Sequence[ObjectRef], previous: ObjectRef | None
) -> None:
    for at in range(0, len(refs), INDEX_OBJECTS_MAX):
        some = refs[at : at + INDEX_OBJECTS_MAX]
        data = pack_index(ArchiveIndex(objects=some, previous=previous))
        ref = desk.names.ref(OBJECT_KIND_INDEX, head.epoch, data)
        known = [*some, previous] if previous is not None else some
        ref.first_version = previous.first_version if previous is not None else some[0].first_version
        ref.last_version = max(item.last_version for item in known)
        ref.last_sequence = max(item.last_sequence for item in known)
        previous = hold.spares.stage(desk.wire, hold.place, ref, data, uploads.add)
    if previous is not None:
        head.index.CopyFrom(previous)
    else:
        head.ClearField("index")


def _chain(older: Older, newest: ObjectRef) -> Iterator[tuple[ObjectRef, ArchiveIndex]]:
    at: ObjectRef | None = ObjectRef()
    at.CopyFrom(newest)  # HEAD's own reference changes with HEAD
    while at is not None:
        index = older.read(at)
        yield at, index
        at = index.previous if index.HasField("previous") else None


def _name(ref: ObjectRef) -> tuple[int, int, int]:
    return ref.epoch, ref.boot, ref.counter


class _Clearing:
    """Puts packs anew without the edits of pruned versions, for one HEAD."""

    def __init__(self, desk: Desk, hold: Hold, head: ArchiveHead, moment: Moment, uploads: Uploads) -> None:
        self._desk = desk
        self._hold = hold
        self._head = head
        self._thread = moment.thread
        self.uploads = uploads
        self.waits = False  # some versions are pruned, and not cleared on this disk yet

    def look(self, refs: Sequence[ObjectRef]) -> bool:
        """Returns whether a pack is to be put anew."""
        return any(self._is_dead(ref) and not ref.cleared and self._read([ref]) is not None for ref in refs)

    def replace(self, refs: Sequence[ObjectRef]) -> list[ObjectRef] | None:
        """Returns the objects with new packs in place of others; None if there is nothing to do."""
        left, is_same, run = list[ObjectRef](), True, list[ObjectRef]()
        for ref in [*refs, None]:
            if ref is not None and is_pack(ref) and self._is_dead(ref):
                run.append(ref)
                continue
            if ref is not None and not is_pack(ref) and run:
                left.append(ref)  # a snapshot parts no run of packs
                continue
            for some in self._runs(run):
                new = self._put(some) if any(not each.cleared for each in some) else None
                is_same = is_same and new is None
                left += some if new is None else [new]
            run = []
            if ref is not None:
                left.append(ref)
        return None if is_same else left

    def _is_dead(self, ref: ObjectRef) -> bool:
        """Returns whether all versions of a pack, of which there are some, were pruned."""
        is_pruned = ref.first_version > 0 and self._thread.pruned.covers(ref.first_version, ref.last_version)
        return is_pack(ref) and is_pruned

    def _runs(self, run: list[ObjectRef]) -> Iterator[list[ObjectRef]]:
        """Yields packs to keep or to join, in order: those that were cleared before are joined if they are small."""
        first = next((at for at, ref in enumerate(run) if not ref.cleared), len(run))
        size = sum(ref.size_bytes for ref in run[first:])
        while 0 < first < len(run) and run[first - 1].size_bytes <= LARGER_MAX * size:
            first -= 1
            size += run[first].size_bytes
        yield from ([ref] for ref in run[:first])
        joined = list[ObjectRef]()
        for ref in run[first:]:
            if self._read([ref]) is None:
                yield from ([joined] if joined else [])
                yield [ref]
                joined = []
            else:
                joined.append(ref)
        if joined:
            yield joined

    def _put(self, refs: Sequence[ObjectRef]) -> ObjectRef | None:
        """Adds the upload of one pack in place of some, and drops these. Returns None if one is not cleared yet."""
        found = self._read(refs)
        if found is None or not found[1]:
            return None
        desk, head, hold = self._desk, self._head, self._hold
        ref, data = pack_entries(desk.names, head.epoch, *found)
        ref.cleared = True
        del ref.dictionaries[:]
        ref = hold.spares.stage(desk.wire, hold.place, ref, data, self.uploads.add)
        for each in refs:
            discard(hold, head, each)
        return ref

    def _read(self, refs: Sequence[ObjectRef]) -> tuple[list[PackedRow], list[EntryHeader]] | None:
        """Returns the entries of packs as this disk has them; None if it has not cleared all of them yet."""
        rows, headers = list[PackedRow](), list[EntryHeader]()
        try:
            for ref in refs:
                for shipment in self._desk.outbox.entries(self._thread, ref.first_sequence - 1, ref.last_sequence):
                    self.uploads.tick()
                    rows += shipment.rows
                    headers += shipment.headers
                    if not all(_is_cleared(row, self._thread.pruned) for row in shipment.rows):
                        self.waits = True
                        return None
        except (Cleared, StatewardError):
            self.waits = True
            return None
        return (rows, headers) if sum(len(row.record) for row in rows) <= MERGED_BYTES_MAX else None


def _is_cleared(row: PackedRow, pruned: Pruned) -> bool:
    if row.WhichOneof("place") != "sequence":
        return True
    entry = unpack(row.record, row.sequence)
    header = entry.header
    return not header.version or header.version not in pruned or not header.edit_stored_bytes or entry.is_husk
