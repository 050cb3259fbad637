"""Immutable objects (packs of entries, snapshots, indexes), and what HEAD must say of them.

    "SK" ‖ format ‖ 0 ‖ serialized ArchivePack or ArchiveIndex

Records are sealed one by one and bound to the thread, byte for byte as on disk. Entries are not in blocks. Every
reference to an object holds the object's length and hash.

Checks a thread in the archive as far as HEAD, its image and its indexes tell. No I/O.

The journal must have no gap, and the snapshots that entries need must be there.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import TypeVar

from google.protobuf.message import DecodeError

from stateward.storage.v1.archive_pb2 import (
    OBJECT_KIND_PACK,
    OBJECT_KIND_SNAPSHOT,
    ArchiveHead,
    ArchiveIndex,
    ArchivePack,
    ObjectKind,
    ObjectRef,
    PackedRow,
    ThreadImage,
)
from stateward.storage.v1.journal_pb2 import EntryHeader
from stateward_sidecar.codec.entry import Entry, sequence_of, unpack
from stateward_sidecar.codec.seal import Cipher, content_hash
from stateward_sidecar.codec.varints import varint
from stateward_sidecar.errors import Corrupt, StatewardError, newer_format
from stateward_sidecar.store.thread.ranges import Pruned, Ranges

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


@dataclass(frozen=True, slots=True)
class Flaw:
    """Something that is wrong with a thread in the archive."""

    message: str
    version: int = 0  # 0 = unknown
    sequence: int = 0  # 0 = unknown
    reason: str = Corrupt.reason


def flaw_of(error: StatewardError, version: int = 0, sequence: int = 0) -> Flaw:
    """Returns an error as a flaw. If ``version`` is 0, the version comes from the error's metadata."""
    return Flaw(error.message, version or int(error.metadata.get("version", 0)), sequence, error.reason)


@dataclass(frozen=True, slots=True)
class _Span:
    """Consecutive entries, and the versions among them (0 = none)."""

    first: int
    last: int
    first_version: int
    last_version: int


def open_tail(head: ArchiveHead, cipher: Cipher) -> list[Entry]:
    """Opens the entries in HEAD and returns them.

    Raises Corrupt if they are out of order, if one does not continue the one before it, or if they do not end at HEAD's
    tip.
    """
    entries = [unpack(record, sequence_of(record)) for record in head.tail]
    before: Entry | None = None
    for entry in entries:
        entry.open_metadata_bytes(cipher, head.uid)
        if before is not None:
            if entry.header.sequence <= before.header.sequence:
                raise Corrupt("the entries in HEAD are out of order")
            is_next = entry.header.sequence == before.header.sequence + 1
            if is_next and entry.header.previous_digest != before.header.digest:
                raise Corrupt(f"entry {entry.header.sequence} in HEAD does not continue the one before it")
        before = entry
    if before is not None and (before.header.sequence, before.header.digest) != (head.tip_sequence, head.tip_digest):
        raise Corrupt(
            f"the last entry in HEAD ({before.header.sequence}) differs from HEAD's tip ({head.tip_sequence})"
        )
    return entries


def find_holes(
    head: ArchiveHead, image: ThreadImage, refs: Sequence[ObjectRef], tail: Sequence[Entry], start: int, version: int
) -> Iterator[Flaw]:
    """Yields the gaps in the journal: entries that are neither in an object nor in HEAD, and were not pruned.

    ``refs``: all objects, including those in indexes. ``start``: entries up to this sequence are not checked.
    ``version``: the highest version among these.
    """
    packed = [ref for ref in refs if is_pack(ref) and ref.last_sequence > start]
    spans = [_Span(ref.first_sequence, ref.last_sequence, ref.first_version, ref.last_version) for ref in packed]
    spans += [_Span(entry.header.sequence, entry.header.sequence, *(2 * [entry.header.version])) for entry in tail]
    spans.sort(key=lambda span: (span.first, span.last))
    end = head.tip_sequence + 1
    spans.append(_Span(end, end, head.last_version + 1, 0))
    pruned = Ranges.from_message(image.pruned).pairs()
    is_any = not Pruned.from_message(image.pruned).is_empty
    for at, span in enumerate(spans):
        if span.first > start + 1:
            following = next(item.first_version for item in spans[at:] if item.first_version)
            first, last = version + 1, following - 1
            is_pruned = any(low <= first and last <= high for low, high in pruned) if first <= last else is_any
            if not is_pruned:
                yield Flaw(f"entries {start + 1} to {span.first - 1} are missing: no object has them", first, start + 1)
        start, version = max(start, span.last), max(version, span.last_version)


def find_missing_snapshots(
    head: ArchiveHead, image: ThreadImage, refs: Sequence[ObjectRef], tail: Sequence[Entry]
) -> Iterator[Flaw]:
    """Yields the snapshots that entries need, and that neither an object nor HEAD has.

    Dictionaries of the entries in HEAD are left out, because these entries are opened.
    """
    there = {ref.first_version for ref in refs if ref.kind == OBJECT_KIND_SNAPSHOT} | {head.snapshot_version}
    pruned = Ranges.from_message(image.pruned).pairs()
    for ref in refs:
        # A reference does not say which entry needs which dictionary, and pruned entries need none. So packs that have
        # pruned versions are skipped.
        if is_pack(ref) and not any(low <= ref.last_version and ref.first_version <= high for low, high in pruned):
            for version in sorted(set(ref.snapshots) - there):
                there.add(version)
                yield Flaw(
                    f"the snapshot of version {version} is missing: no object has it, and entries "
                    f"{ref.first_sequence} to {ref.last_sequence} cannot be read without it",
                    version, ref.first_sequence,
                )  # fmt: skip
    for header in (entry.header for entry in tail):
        is_kept = not any(low <= header.version <= high for low, high in pruned)
        if header.whole and is_kept and header.version not in there:
            yield Flaw(
                f"the snapshot of version {header.version}, which has its state, is missing: no object has it",
                header.version, header.sequence,
            )  # fmt: skip
