"""Immutable objects: packs of entries, snapshots, indexes.

    "SK" ‖ format ‖ 0 ‖ serialized ArchivePack or ArchiveIndex

Records are sealed one by one and bound to the thread, byte for byte as on disk. Entries are not in blocks. Every
reference to an object holds the object's length and hash.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from io import BytesIO
from typing import TypeVar

from google.protobuf.message import DecodeError

from stateward.storage.v1.archive_pb2 import (
    OBJECT_KIND_PACK,
    OBJECT_KIND_SNAPSHOT,
    ArchiveIndex,
    ArchivePack,
    ObjectKind,
    ObjectRef,
    PackedRow,
)
from stateward.storage.v1.journal_pb2 import EntryHeader
from stateward_sidecar.codec.seal import content_hash
from stateward_sidecar.codec.state import varint
from stateward_sidecar.errors import Corrupt, newer_format

M = TypeVar("M", ArchivePack, ArchiveIndex)
FORMAT = 1
_PREFIX = b"SK" + bytes((FORMAT, 0))
HASH_BYTES = 16


class Names:
    """Makes object names. The first bytes of the boot id and a count make each name unique, whatever the epoch."""

    def __init__(self, boot_id: bytes) -> None:
        self.boot = int.from_bytes(boot_id[:8], "big")
        self._lock = threading.Lock()
        self.last = 0  # the count in the newest name

    def ref(self, kind: ObjectKind, epoch: int, data: bytes) -> ObjectRef:
        """Returns a reference, with a new name, to an object that is about to be written."""
        with self._lock:
            self.last += 1
            counter = self.last
        return ObjectRef(
            kind=kind, epoch=epoch, boot=self.boot, counter=counter, size_bytes=len(data),
            sha256=content_hash(data)[:HASH_BYTES],
        )  # fmt: skip


def pack_entries(
    names: Names, epoch: int, rows: Iterable[PackedRow], headers: Sequence[EntryHeader]
) -> tuple[ObjectRef, bytes]:
    """Returns the reference and the bytes of a pack. ``rows`` holds consecutive entries and their pieces."""
    data = _pack(rows)
    ref = names.ref(OBJECT_KIND_PACK, epoch, data)
    versions = [header.version for header in headers if header.version]
    ref.first_sequence, ref.last_sequence = headers[0].sequence, headers[-1].sequence
    if versions:
        ref.first_version, ref.last_version = min(versions), max(versions)
    ref.snapshots.extend(sorted(snapshots_of(headers)))
    return ref, data


def snapshots_of(headers: Iterable[EntryHeader]) -> set[int]:
    """Returns the versions of the snapshots that entries need: as dictionaries, or because a version is whole."""
    needed = set[int]()
    for header in headers:
        needed |= {header.dictionary_version, header.version if header.whole else 0}
    return needed - {0}


def pack_snapshot(names: Names, epoch: int, version: int, pieces: Sequence[bytes]) -> tuple[ObjectRef, bytes]:
    """Returns the reference and the bytes of a snapshot's object."""
    data = _pack(snapshot_rows(version, pieces))
    ref = names.ref(OBJECT_KIND_SNAPSHOT, epoch, data)
    ref.first_version = ref.last_version = version
    return ref, data


def snapshot_rows(version: int, pieces: Sequence[bytes]) -> list[PackedRow]:
    """Returns the pieces of a snapshot as rows."""
    return [PackedRow(snapshot_version=version, index=index, record=piece) for index, piece in enumerate(pieces)]


def is_pack(ref: ObjectRef) -> bool:
    """Returns True if an object is a pack of entries."""
    return bool(ref.kind == OBJECT_KIND_PACK)


def pack_index(index: ArchiveIndex) -> bytes:
    """Returns the bytes of an index."""
    return _PREFIX + index.SerializeToString()


def open_pack(ref: ObjectRef, data: bytes) -> list[PackedRow]:
    """Returns the rows of a pack or snapshot. Raises Corrupt, NewerFormat."""
    return list(_open(ArchivePack, ref, data).rows)


def open_index(ref: ObjectRef, data: bytes) -> ArchiveIndex:
    """Returns an index. Raises Corrupt."""
    return _open(ArchiveIndex, ref, data)


def check_object(ref: ObjectRef, data: bytes) -> None:
    """Raises Corrupt unless ``data`` has the length and hash that the reference names."""
    if len(data) != ref.size_bytes or content_hash(data)[:HASH_BYTES] != ref.sha256:
        raise Corrupt(
            f"an object of {len(data)} bytes differs from its reference ({ref.size_bytes} bytes) in length or hash"
        )


def _pack(rows: Iterable[PackedRow]) -> bytes:
    """Returns the bytes of an ArchivePack. Encodes row by row, because one message of all rows and its encoding would
    need five times their memory."""
    out = BytesIO()
    out.write(_PREFIX)
    for row in rows:
        data = row.SerializeToString()
        out.write(b"\x0a" + varint(len(data)))
        out.write(data)
    return out.getvalue()


def packed_bytes(rows: Iterable[PackedRow]) -> int:
    """Returns the size of a pack with these rows, in bytes."""
    sizes = (row.ByteSize() for row in rows)
    return len(_PREFIX) + sum(1 + len(varint(size)) + size for size in sizes)


def _open(kind: type[M], ref: ObjectRef, data: bytes) -> M:
    check_object(ref, data)
    if data[:2] == _PREFIX[:2] and data[2] > FORMAT:
        raise newer_format("an object that HEAD names", data[2], FORMAT)
    if data[: len(_PREFIX)] != _PREFIX:
        raise Corrupt(f"an object begins with {data[:4].hex()}; this version knows only {_PREFIX.hex()}")
    try:
        return kind.FromString(data[len(_PREFIX) :])
    except DecodeError:
        raise Corrupt(f"an object cannot be read as {kind.__name__}") from None
