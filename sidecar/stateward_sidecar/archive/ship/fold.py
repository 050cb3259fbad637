"""Keeps HEAD small: moves older references into an index, and merges small packs into a larger one.

Part of a ship. New objects are written before the HEAD that names them. From that HEAD on, the packs that were merged
are garbage.
"""

from __future__ import annotations

from collections.abc import Sequence

from stateward.storage.v1.archive_pb2 import (
    OBJECT_KIND_INDEX,
    OBJECT_KIND_SNAPSHOT,
    ArchiveHead,
    ArchiveIndex,
    Garbage,
    ObjectRef,
    PackedRow,
)
from stateward_sidecar.archive.objects.desk import Desk, Hold
from stateward_sidecar.archive.objects.packs import is_pack, pack_entries, pack_index, snapshots_of
from stateward_sidecar.archive.own.pulse import Uploads
from stateward_sidecar.codec.entry import unpack
from stateward_sidecar.store.travel.outbox import Cleared, Moment
from stateward_sidecar.telemetry import log

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
    desk: Desk, hold: Hold, head: ArchiveHead, moment: Moment, tail: Sequence[PackedRow], uploads: Uploads
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
        ref = desk.names.ref(OBJECT_KIND_INDEX, head.epoch, data)
        ref.first_version = head.index.first_version if head.HasField("index") else old[0].first_version
        ref.last_version = max(head.index.last_version, *(item.last_version for item in old))
        ref.last_sequence = max(head.index.last_sequence, *(item.last_sequence for item in old))
        ref = hold.spares.stage(desk.wire, hold.place, ref, data, uploads.add)
        if hold.indexed_snapshots is not None:
            hold.indexed_snapshots |= {item.first_version for item in old if item.kind == OBJECT_KIND_SNAPSHOT}
        elif not head.HasField("index"):
            hold.indexed_snapshots = {item.first_version for item in old if item.kind == OBJECT_KIND_SNAPSHOT}
        head.index.CopyFrom(ref)
        for item in old:
            head.objects.remove(item)
    if len(head.objects) > OBJECTS_SOFT_MAX:
        _merge(desk, hold, head, moment, uploads)


def _start(head: ArchiveHead, packs: Sequence[ObjectRef], base: int) -> int:
    """Returns the first sequence of the packs that a reader of the newest version needs.

    A pack of records or effects alone has no versions: only its sequences say whether it is old.
    """
    if head.HasField("index") and base <= head.index.last_version:
        return 0  # the pack of ``base`` is in the index, and all packs of HEAD are newer
    return min((ref.first_sequence for ref in packs if ref.last_version >= base), default=head.tip_sequence + 1)


def _merge(desk: Desk, hold: Hold, head: ArchiveHead, moment: Moment, uploads: Uploads) -> None:
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
        for shipment in desk.outbox.entries(thread, chosen[0].first_sequence - 1, chosen[-1].last_sequence):
            rows += shipment.rows
            headers += shipment.headers
    except Cleared:  # a later ship merges them
        return
    if not headers:
        return
    ref, data = pack_entries(desk.names, head.epoch, rows, headers)
    ref.cleared = all(item.cleared for item in chosen)
    ref = hold.spares.stage(desk.wire, hold.place, ref, data, uploads.add)
    at = list(head.objects).index(chosen[0])
    kept = [item for item in head.objects if item not in chosen]
    kept.insert(at, ref)
    del head.objects[:]
    head.objects.extend(kept)
    for item in chosen:
        discard(hold, head, item)
