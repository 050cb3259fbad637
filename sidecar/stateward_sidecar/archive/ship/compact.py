"""Keeps a thread small in the bucket: merges packs and references, and takes out what was cleared here.

Keeps HEAD small: moves older references into an index, and merges small packs into a larger one.

Part of a ship. New objects are written before the HEAD that names them. From that HEAD on, the packs that were merged
are garbage.

Takes out of the bucket what was cleared on this disk. Part of a ship.

A pack that has no version any more is put anew from this disk as soon as something of it was cleared: the edits of its
versions, or values of its effects and records. Its entries stay for as long as a retry may ask for them. Packs of which
nothing but such entries is left are joined, and are put anew when half of that has gone. What nobody needs goes from
the indexes, too. An index is never changed, so it is put anew, with all newer ones.

The work is bounded: packs are read when something of them was cleared, indexes when anything was cleared, and the rest
once in ``LOOK_ENTRIES``. Indexes are written if they are few, or if what goes is an eighth of their number; until then
it waits (``holds.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from stateward.storage.v1.archive_pb2 import (
    OBJECT_KIND_INDEX,
    OBJECT_KIND_SNAPSHOT,
    ArchiveHead,
    ArchiveIndex,
    Garbage,
    ObjectRef,
    PackedRow,
)
from stateward.storage.v1.journal_pb2 import EntryHeader
from stateward_sidecar.archive.objects.holds import ArchiveState, Hold, Taken
from stateward_sidecar.archive.objects.packs import is_pack, pack_entries, pack_index, packed_bytes, snapshots_of
from stateward_sidecar.archive.own.pulse import Uploads
from stateward_sidecar.codec.entry import unpack
from stateward_sidecar.errors import ArchiveUnavailable, StatewardError
from stateward_sidecar.store.kinds.table import is_cut
from stateward_sidecar.store.thread.ranges import Pruned
from stateward_sidecar.store.travel.outbox import Cleared, Moment
from stateward_sidecar.telemetry import log, log_damage

# HEAD is folded above the first number of references. If more than the second number are left, that is only logged.
OBJECTS_SOFT_MAX, OBJECTS_MAX, GARBAGE_MAX = 40, 64, 64
# The most bytes of entries that are joined into one pack.
MERGED_BYTES_MAX = 4 << 20


def dropped(ref: ObjectRef, time_us: int) -> Garbage:
    """Returns what HEAD keeps of an object that it drops: its name and its size, because each HEAD has it again."""
    kept = ObjectRef(kind=ref.kind, epoch=ref.epoch, boot=ref.boot, counter=ref.counter, size_bytes=ref.size_bytes)
    return Garbage(object=kept, time_us=time_us)


def discard(hold: Hold, head: ArchiveHead, ref: ObjectRef) -> None:
    """Records that HEAD no longer names an object. A later ship deletes it, once no reader follows an older HEAD.

    If HEAD has no room for the record, only this process remembers it. If the process ends, ``stateward archive gc``
    finds the object.
    """
    item = dropped(ref, head.update_time_us)
    if len(head.garbage) < GARBAGE_MAX:
        head.garbage.append(item)
    else:
        hold.spares.drop(item)


def fold(
    state: ArchiveState, hold: Hold, head: ArchiveHead, moment: Moment, tail: Sequence[PackedRow], uploads: Uploads
) -> None:  # fmt: skip
    """Moves older references into an index. If too many are left, merges small packs. The new objects are added to
    ``uploads``."""
    if len(head.objects) <= OBJECTS_SOFT_MAX:
        return
    thread = moment.thread
    main = thread.branches.get("main")
    base = main.snapshot_version if main is not None else 0
    packs = [ref for ref in head.objects if is_pack(ref)]
    start = _start(head, packs, base)
    needed = {version for ref in packs if ref.last_sequence >= start for version in ref.snapshots}
    needed |= snapshots_of(unpack(row.record, row.sequence).header for row in tail)
    old = [
        ref for ref in head.objects
        if (ref.last_sequence < start if is_pack(ref) else ref.last_version < base and ref.first_version not in needed)
    ]  # fmt: skip
    if len(old) >= OBJECTS_SOFT_MAX // 2:
        index = ArchiveIndex(objects=old)
        if head.HasField("index"):
            index.previous.CopyFrom(head.index)
        data = pack_index(index)
        ref = state.names.ref(OBJECT_KIND_INDEX, head.epoch, data)
        ref.first_version = head.index.first_version if head.HasField("index") else old[0].first_version
        ref.last_version = max(head.index.last_version, *(item.last_version for item in old))
        ref.last_sequence = max(head.index.last_sequence, *(item.last_sequence for item in old))
        ref = hold.spares.stage(state.wire, hold.place, ref, data, uploads.add)
        if hold.indexed_snapshots is not None:
            hold.indexed_snapshots |= {item.first_version for item in old if item.kind == OBJECT_KIND_SNAPSHOT}
        elif not head.HasField("index"):
            hold.indexed_snapshots = {item.first_version for item in old if item.kind == OBJECT_KIND_SNAPSHOT}
        head.index.CopyFrom(ref)
        for item in old:
            head.objects.remove(item)
    if len(head.objects) > OBJECTS_SOFT_MAX:
        _merge(state, hold, head, moment, uploads)


def _start(head: ArchiveHead, packs: Sequence[ObjectRef], base: int) -> int:
    """Returns the first sequence of the packs that a reader of the newest version needs.

    A pack of records or effects alone has no versions: only its sequences say whether it is old.
    """
    if head.HasField("index") and base <= head.index.last_version:
        return 0  # the pack of ``base`` is in the index, and all packs of HEAD are newer
    return min((ref.first_sequence for ref in packs if ref.last_version >= base), default=head.tip_sequence + 1)


def _merge(state: ArchiveState, hold: Hold, head: ArchiveHead, moment: Moment, uploads: Uploads) -> None:
    """Replaces the oldest run of consecutive small packs by one pack. Reads the entries from this disk."""
    thread = moment.thread
    packs = [ref for ref in head.objects if is_pack(ref) and ref.first_sequence > thread.floor_sequence]
    chosen: list[ObjectRef] = []
    for ref in packs:
        if ref.size_bytes > MERGED_BYTES_MAX // 8 or (chosen and ref.first_sequence != chosen[-1].last_sequence + 1):
            if len(chosen) >= OBJECTS_SOFT_MAX // 2:
                break
            chosen = []
            continue
        chosen.append(ref)
        if sum(item.size_bytes for item in chosen) > MERGED_BYTES_MAX // 2:
            break
    if len(chosen) < OBJECTS_SOFT_MAX // 2 or len(head.garbage) + len(chosen) > GARBAGE_MAX:
        if len(head.objects) > OBJECTS_MAX:
            log.debug("HEAD has many references", uid=thread.identity.uid_text, objects=len(head.objects))
        return
    rows, headers = list[PackedRow](), []
    try:
        for shipment in state.outbox.entries(thread, chosen[0].first_sequence - 1, chosen[-1].last_sequence):
            rows += shipment.rows
            headers += shipment.headers
    except Cleared:  # a later ship merges them
        return
    if not headers:
        return
    ref, data = pack_entries(state.names, head.epoch, rows, headers)
    ref.cleared = all(item.cleared for item in chosen)
    ref = hold.spares.stage(state.wire, hold.place, ref, data, uploads.add)
    at = list(head.objects).index(chosen[0])
    kept = [item for item in head.objects if item not in chosen]
    kept.insert(at, ref)
    del head.objects[:]
    head.objects.extend(kept)
    for item in chosen:
        discard(hold, head, item)


# How many objects an index names that is put anew.
INDEX_OBJECTS_MAX = 512
# So many indexes are put anew for a single object that goes from the last of them; more of them for as many as one in
# so many.
INDEXES_FREE = INDEXES_AN_OBJECT = 8
# After so many entries it is looked for entries that are removed, because no retry may ask for them any more.
LOOK_ENTRIES = 256
# A pack is joined with the packs after it unless it is so many times larger.
LARGER_MAX = 4


@dataclass(frozen=True, slots=True)
class Older:
    """What older indexes are looked at with."""

    read: Callable[[ObjectRef], ArchiveIndex]
    gone: Callable[[Sequence[ObjectRef]], list[ObjectRef]]  # returns the objects of which all entries were pruned


def trim(
    state: ArchiveState, hold: Hold, head: ArchiveHead, moment: Moment, uploads: Uploads, older: Older, taken: Taken
) -> None:  # fmt: skip
    """Makes HEAD lead to nothing that was cleared. The new objects are added to ``uploads``."""
    thread, looked_at = moment.thread, head.trimmed_sequence
    is_due = not looked_at or moment.tip_sequence - looked_at >= LOOK_ENTRIES
    if thread.pruned.is_empty or thread.floor_sequence or (taken.is_quiet and not is_due):
        return
    clearing = _Clearing(state, hold, head, moment, uploads, None if is_due else taken.all, is_due=is_due)
    refs = clearing.replace(list(head.objects))
    if refs is not None:
        del head.objects[:]
        head.objects.extend(refs)
    is_whole = True
    if head.HasField("index"):
        try:
            is_whole = _trim_indexes(state, hold, head, clearing, older)
        except ArchiveUnavailable:
            taken.put_off()
            return
        except StatewardError as error:  # an index is damaged or missing
            log_damage("pruned versions stay in the archive", error, uid=thread.identity.uid_text)
    if clearing.is_outdated:
        taken.put_off()  # the next ship knows of what was cleared since this one began
    elif is_whole and hold.spares.has_unused_packs:
        taken.settle_here()
    elif is_whole:
        taken.settle()
    if is_due:
        head.trimmed_sequence = moment.tip_sequence


def _trim_indexes(state: ArchiveState, hold: Hold, head: ArchiveHead, clearing: _Clearing, older: Older) -> bool:
    """Returns False if it is not worth it yet."""
    chain = list(_chain(older, head.index))  # newest first
    gone = {_name(ref) for ref in older.gone([ref for _, index in chain for ref in index.objects])}
    changed, objects = dict[int, list[ObjectRef]](), 0
    for depth, (_, index) in enumerate(chain):
        left = [ref for ref in index.objects if _name(ref) not in gone]
        if found := len(index.objects) - len(left) + clearing.count(left):
            changed[depth] = left
            objects += found
    if not changed:
        return True
    deepest = max(changed)
    if deepest >= INDEXES_FREE and objects * INDEXES_AN_OBJECT < deepest:
        return False
    put_anew = chain[: deepest + 1]
    refs = [
        ref for depth in range(deepest, -1, -1) for ref in changed.get(depth, list(put_anew[depth][1].objects))
    ]
    dropped = [ref for _, index in put_anew for ref in index.objects if _name(ref) in gone]
    refs = clearing.replace(refs) or refs
    previous = chain[deepest + 1][0] if deepest + 1 < len(chain) else None
    _put_indexes(state, hold, head, clearing.uploads, refs, previous)
    for ref in [*dropped, *(ref for ref, _ in put_anew)]:
        discard(hold, head, ref)
    rest = [ref for _, index in chain[deepest + 1 :] for ref in index.objects]
    hold.indexed_snapshots = {ref.first_version for ref in [*refs, *rest] if ref.kind == OBJECT_KIND_SNAPSHOT}
    return True


def _put_indexes(
    state: ArchiveState, hold: Hold, head: ArchiveHead, uploads: Uploads, refs: Sequence[ObjectRef],
    previous: ObjectRef | None,
) -> None:  # fmt: skip
    for at in range(0, len(refs), INDEX_OBJECTS_MAX):
        some = refs[at : at + INDEX_OBJECTS_MAX]
        data = pack_index(ArchiveIndex(objects=some, previous=previous))
        ref = state.names.ref(OBJECT_KIND_INDEX, head.epoch, data)
        known = [*some, previous] if previous is not None else some
        ref.first_version = previous.first_version if previous is not None else some[0].first_version
        ref.last_version = max(item.last_version for item in known)
        ref.last_sequence = max(item.last_sequence for item in known)
        previous = hold.spares.stage(state.wire, hold.place, ref, data, uploads.add)
    if previous is not None:
        head.index.CopyFrom(previous)
    else:
        head.ClearField("index")


def _chain(older: Older, newest: ObjectRef) -> Iterator[tuple[ObjectRef, ArchiveIndex]]:
    first = ObjectRef()
    first.CopyFrom(newest)  # HEAD's own reference changes with HEAD
    at: ObjectRef | None = first
    while at is not None:
        index = older.read(at)
        yield at, index
        at = index.previous if index.HasField("previous") else None


def _name(ref: ObjectRef) -> tuple[int, int, int]:
    return ref.epoch, ref.boot, ref.counter


@dataclass(frozen=True, slots=True)
class _Found:
    """What this disk has of a pack. Its rows are read again when they are put, because many packs may be looked at."""

    size_bytes: int
    has_entries: bool
    is_cleared: bool  # nothing has a second part


class _Clearing:
    """Puts packs anew, for one HEAD."""

    def __init__(
        self, state: ArchiveState, hold: Hold, head: ArchiveHead, moment: Moment, uploads: Uploads,
        cleared: Pruned | None, *, is_due: bool,
    ) -> None:  # fmt: skip
        """``cleared``: what was cleared; None = perhaps anything that was pruned. ``is_due``: packs of cleared entries
        are looked at, too."""
        self._state = state
        self._hold = hold
        self._head = head
        self._thread = moment.thread
        self._cleared = cleared
        self._is_due = is_due
        self._found = dict[tuple[int, int, int], _Found | None]()
        self.uploads = uploads
        self.is_outdated = False  # whether a pack could not be judged, because more of it was cleared meanwhile

    def count(self, refs: Sequence[ObjectRef]) -> int:
        """Returns how many packs are to be put anew."""
        return sum(self._shrinks(ref) for ref in refs)

    def replace(self, refs: Sequence[ObjectRef]) -> list[ObjectRef] | None:
        """Returns the objects with new packs in place of others; None if there is nothing to do."""
        left, run, is_same = list[ObjectRef](), list[ObjectRef](), True

        def end_run() -> None:
            nonlocal is_same
            for some in self._joined(run):
                new = self._put(some) if any(self._shrinks(each) for each in some) else None
                is_same = is_same and new is None
                left.extend(some if new is None else [new])
            run.clear()

        for ref in refs:
            if not is_pack(ref):
                left.append(ref)  # parts no run of packs
                continue
            if not (ref.cleared or self._shrinks(ref)):
                end_run()
                left.append(ref)
                continue
            run.append(ref)
        end_run()
        return None if is_same else left

    def _joined(self, run: Sequence[ObjectRef]) -> Iterator[list[ObjectRef]]:
        """Yields what becomes one pack: packs from which all was cleared, unless the older ones are much larger."""
        some, size = list[ObjectRef](), 0
        found = list[list[ObjectRef]]()
        for ref in reversed(run):  # the newest first
            here = self._found.get(_name(ref))
            is_cleared = ref.cleared if here is None else here.is_cleared
            own = ref.size_bytes if here is None else here.size_bytes
            if some and (not is_cleared or own > LARGER_MAX * size or own + size > MERGED_BYTES_MAX):
                found.append(some[::-1])
                some, size = [], 0
            if is_cleared:
                some, size = [*some, ref], size + own
            else:
                found.append([ref])
        yield from reversed([*found, *([some[::-1]] if some else [])])

    def _shrinks(self, ref: ObjectRef) -> bool:
        """Returns whether this disk has less of a pack than the bucket, and should."""
        if not is_pack(ref) or not self._may_shrink(ref):
            return False
        name = _name(ref)
        if name not in self._found:
            self._found[name] = self._read(ref)
        found = self._found[name]
        if found is None or not found.has_entries:
            return False
        return found.size_bytes < (ref.size_bytes // 2 if ref.cleared else ref.size_bytes)

    def _may_shrink(self, ref: ObjectRef) -> bool:
        if ref.cleared:
            return self._is_due
        pruned, cleared, has_versions = self._thread.pruned, self._cleared, bool(ref.first_version)
        if has_versions and not pruned.covers(ref.first_version, ref.last_version):
            return False
        if cleared is None:  # entries of tags and the like have nothing to clear
            parts = (pruned.effects, pruned.records, pruned.signals)
            return has_versions or any(each.overlaps(ref.first_sequence, ref.last_sequence) for each in parts)
        versions = cleared.overlaps(ref.first_version, ref.last_version) if has_versions else False
        return versions or any(each.overlaps(ref.first_sequence, ref.last_sequence) for each in cleared.entries())

    def _put(self, refs: Sequence[ObjectRef]) -> ObjectRef | None:
        """Adds the upload of one pack in place of some, and drops these."""
        rows, headers, is_cleared = list[PackedRow](), list[EntryHeader](), True
        for each in refs:
            here = self._rows(each)
            if here is None:
                return None
            rows += here[0]
            headers += here[1]
            is_cleared = is_cleared and here[2]
        if not headers:
            return None
        state, head, hold = self._state, self._head, self._hold
        ref, data = pack_entries(state.names, head.epoch, rows, headers)
        del ref.snapshots[:]
        ref.cleared = is_cleared
        ref = hold.spares.stage(state.wire, hold.place, ref, data, self.uploads.add)
        for each in refs:
            discard(hold, head, each)
        return ref

    def _read(self, ref: ObjectRef) -> _Found | None:
        here = self._rows(ref)
        return _Found(packed_bytes(here[0]), bool(here[1]), here[2]) if here is not None else None

    def _rows(self, ref: ObjectRef) -> tuple[list[PackedRow], list[EntryHeader], bool] | None:
        """Returns the entries of a pack as this disk has them, and whether none of them has a second part; None if it
        has not cleared what was pruned."""
        rows, headers, is_cleared = list[PackedRow](), list[EntryHeader](), True
        try:
            for shipment in self._state.outbox.entries(self._thread, ref.first_sequence - 1, ref.last_sequence):
                self.uploads.tick()
                rows += shipment.rows
                headers += shipment.headers
                for row in shipment.rows:
                    if row.WhichOneof("place") != "sequence":
                        is_cleared = False
                        continue
                    entry = unpack(row.record, row.sequence)
                    header = entry.header
                    # The outbox leaves out the pieces of a large entry that was pruned.
                    is_gone = entry.is_husk or (bool(header.parts_id) and is_cut(self._thread.pruned, header))
                    has_second = bool(header.edit_stored_bytes) and not is_gone
                    if has_second and header.version in self._thread.pruned:
                        return None
                    is_cleared = is_cleared and not has_second
        except Cleared:
            self.is_outdated = True
            return None
        except StatewardError:
            return None
        return rows, headers, is_cleared
