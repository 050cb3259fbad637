"""What is true of blobs: a HEAD that lands names only blobs that the bucket has, and all that its versions name.

Whoever is told that bytes exist can read them.
This is looked at for each HEAD, because its machine may be lost right after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256

from stateward.storage.v1.archive_pb2 import ArchiveHead
from stateward.storage.v1.head_pb2 import BlobRow
from stateward_sidecar.archive.objects.image import open_image, part_refs
from stateward_sidecar.archive.requests.places import Place
from stateward_sidecar.codec.seal import Cipher
from stateward_sidecar.store.thread.ranges import Pruned

_PREFIX = "blob "


class BlobBook:
    """Contents by their SHA-256, and what may be missing because somebody destroyed it."""

    def __init__(self) -> None:
        self.contents: dict[bytes, bytes] = {}
        # Objects that somebody destroyed, and how far HEAD was: while they are put again, their owner signs it anew.
        self.destroyed: dict[str, int] = {}

    def write(self, content: bytes) -> str:
        """Notes a content. Returns what a state shows in its place."""
        digest = sha256(content).digest()
        self.contents[digest] = content
        return shown(digest)

    def check_head(
        self, objects: Mapping[str, bytes], place: Place, head: ArchiveHead, key: bytes, slots: Mapping[int, str],
    ) -> None:  # fmt: skip
        """``slots``: what the states of the versions that HEAD leads to show."""
        image = open_image(Cipher(key), head, [objects[place.object(ref)] for ref in part_refs(head)])
        for row in image.blobs:
            is_sign = self.destroyed.get(place.blob(row.record.blob_id)) == head.tip_sequence
            assert is_sign or is_there(objects, place, row), "HEAD names a blob that the bucket lacks"
        known, pruned = {bytes(row.record.sha256) for row in image.blobs}, Pruned.from_message(image.pruned)
        for version, slot in slots.items():
            digest = named(slot)
            is_known = digest is None or digest in known or version in pruned
            assert is_known, f"HEAD's version {version} names a blob that HEAD does not have"


def is_there(objects: Mapping[str, bytes], place: Place, row: BlobRow) -> bool:
    """Whether the bucket has the bytes of a blob."""
    return len(objects.get(place.blob(row.record.blob_id), b"")) == row.record.stored_bytes


def shown(digest: bytes) -> str:
    """What a state shows in the place of a blob."""
    return _PREFIX + digest.hex()


def named(slot: str | None) -> bytes | None:
    """The SHA-256 of the blob that a slot shows; None if it is none."""
    return bytes.fromhex(slot.removeprefix(_PREFIX)) if slot is not None and slot.startswith(_PREFIX) else None
