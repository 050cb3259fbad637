"""Objects in the bucket to which HEAD does not lead, and which it does not name as garbage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from stateward.storage.v1.archive_pb2 import ArchiveHead, ObjectRef, PackedRow
from stateward_sidecar.archive.objects.image import open_image, part_refs
from stateward_sidecar.archive.objects.packs import is_pack, open_index, open_pack
from stateward_sidecar.archive.requests.places import Place, is_blob, origin_of, slice_name, whole_of
from stateward_sidecar.archive.ship.compact import GARBAGE_MAX
from stateward_sidecar.codec.entry import sequence_of, unpack
from stateward_sidecar.codec.seal import Cipher
from stateward_sidecar.store.thread.ranges import Pruned


def whole_objects(objects: Mapping[str, bytes]) -> dict[str, bytes]:
    """The objects of a bucket, with the slices of large ones joined. One that lacks its first slice is not there."""
    return {name: joined(objects, name) for name in objects if whole_of(name) == name}


def joined(objects: Mapping[str, bytes], name: str) -> bytes:
    """The bytes of one object."""
    data, number = objects[name], 2
    while (following := slice_name(name, number)) in objects:
        data, number = data + objects[following], number + 1
    return data


# A packed tail, and snapshots of some branches.
NEXT_MAX = 8


def litter(objects: Mapping[str, bytes], place: Place, head: ArchiveHead, key: bytes) -> list[str]:
    """Names of the objects of a thread that nobody will name or remove. The owner may have put a few that its next HEAD
    will name, and remembers those that it dropped when HEAD had no room for them. Blobs of a thread that has an owner
    count for none."""
    left = _unnamed(objects, place, head, key)
    following = [name for name in left if _may_follow(name, head)]
    is_full = len(head.garbage) >= GARBAGE_MAX
    return left if len(following) > NEXT_MAX and not is_full else sorted(set(left) - set(following))


def _may_follow(name: str, head: ArchiveHead) -> bool:
    origin, boot = origin_of(name), int.from_bytes(head.boot_id[:8], "big")
    if head.detached and (origin is None or origin.epoch <= head.epoch):
        return False  # no HEAD of this epoch follows
    if origin is None or origin.epoch > head.epoch:
        return origin is not None
    return origin.epoch == head.epoch and origin.boot == boot and origin.counter > head.settled_counter


def _unnamed(objects: Mapping[str, bytes], place: Place, head: ArchiveHead, key: bytes) -> list[str]:
    needed = {place.head} | {place.object(ref) for ref in _named(objects, place, head)}
    if not head.detached or not key:
        needed |= {whole_of(name) for name in objects if is_blob(name)}
    elif head.image:
        image = open_image(Cipher(key), head, [joined(objects, place.object(ref)) for ref in part_refs(head)])
        needed |= {place.blob(row.record.blob_id) for row in image.blobs}
    return sorted(name for name in objects if name.startswith(place.prefix) and whole_of(name) not in needed)


def _named(objects: Mapping[str, bytes], place: Place, head: ArchiveHead) -> Iterator[ObjectRef]:
    yield from head.objects
    yield from part_refs(head)
    yield from (item.object for item in head.garbage)
    at = head.index if head.HasField("index") else None
    while at is not None:
        yield at
        index = open_index(at, joined(objects, place.object(at)))
        yield from index.objects
        at = index.previous if index.HasField("previous") else None


def spent(objects: Mapping[str, bytes], place: Place, head: ArchiveHead, pruned: Pruned) -> list[ObjectRef]:
    """Packs to which HEAD leads, of which every version was pruned, and that still have the edits of one."""
    return [
        ref for ref in _led_to(objects, place, head)
        if is_pack(ref) and ref.first_version and pruned.covers(ref.first_version, ref.last_version)
        and _has_edits(open_pack(ref, joined(objects, place.object(ref))))
    ]  # fmt: skip


def proves(objects: Mapping[str, bytes], place: Place, head: ArchiveHead, sequence: int) -> bool:
    """Whether anything that HEAD leads to says which entry has a sequence: the entry, or the next one."""
    found = {sequence_of(record) for record in head.tail}
    for ref in _led_to(objects, place, head):
        if is_pack(ref) and ref.first_sequence <= sequence + 1 and sequence <= ref.last_sequence:
            found |= {row.sequence for row in open_pack(ref, joined(objects, place.object(ref)))}
    return bool(found & {sequence, sequence + 1})


def _led_to(objects: Mapping[str, bytes], place: Place, head: ArchiveHead) -> Iterator[ObjectRef]:
    yield from head.objects
    at = head.index if head.HasField("index") else None
    while at is not None:
        index = open_index(at, joined(objects, place.object(at)))
        yield from index.objects
        at = index.previous if index.HasField("previous") else None


def _has_edits(rows: Sequence[PackedRow]) -> bool:
    """Whether an entry of a version has its edits, in itself or in pieces beside it."""
    found = [unpack(row.record, row.sequence) for row in rows if row.WhichOneof("place") == "sequence"]
    versions = [entry for entry in found if entry.header.version and entry.header.edit_stored_bytes]
    pieces = {row.parts_id for row in rows if row.WhichOneof("place") == "parts_id"}
    return any(
        entry.header.parts_id in pieces if entry.header.parts_id else not entry.is_husk for entry in versions
    )  # fmt: skip
