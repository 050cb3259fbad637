"""A thread's rows in the archive, cut so that a ship uploads only the rows that changed.

HEAD carries the thread's head, the head of main, and all other rows if these are few. Else the rows lie in parts:

    "SQ" ‖ format ‖ suite ‖ nonce ‖ sealed(u8 compression ‖ u64 length ‖ ThreadImage)     place: uid, digest of the part

Where a part ends follows from the rows themselves and not from their number. So a row that is added, changed or removed
changes the part that it is in, and all others stay as they are, also on a machine that takes the thread over. A part
that HEAD already names is not uploaded again. The digest of a part says what is in it, and an object name is used once:
content that comes back gets a new object, because the old one may be being deleted.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

from google.protobuf.message import DecodeError

from stateward.storage.v1.archive_pb2 import ArchiveHead, ObjectRef, ThreadImage
from stateward.storage.v1.journal_pb2 import Compression, PrunedVersions, VersionRange
from stateward.v1.thread_pb2 import Tag
from stateward_sidecar.codec.compress import compress, decompress
from stateward_sidecar.codec.seal import Cipher, length_prefixed, open_record, seal_record
from stateward_sidecar.errors import Corrupt
from stateward_sidecar.store.thread.ranges import Pruned
from stateward_sidecar.store.thread.thread import MAIN
from stateward_sidecar.store.travel.outbox import Moment

KIB = 1 << 10
# Rows up to this size lie in HEAD.
IMAGE_BYTES_MAX = 12 * KIB
# The size of a part. It doubles while there would be more than ``PARTS_MAX`` parts.
PART_BYTES, PARTS_MAX = 16 * KIB, 48
IMAGE_MAGIC, PART_MAGIC = b"ST", b"SQ"
_PLAIN = struct.Struct(">BQ")
_U64 = struct.Struct(">Q")
_DIGEST_LABEL = b"image part"

Label: TypeAlias = Any  # names a row within its group
Rows: TypeAlias = Iterable[tuple[Label, Any]]
Encode: TypeAlias = Callable[[Label, Any], bytes]


@dataclass(frozen=True, slots=True)
class Part:
    """Rows that lie in one object."""

    digest: bytes
    encode: Encode
    rows: list[tuple[Label, Any]]

    def pack(self) -> bytes:
        """Returns the rows as a serialized ThreadImage."""
        return b"".join(self.encode(label, row) for label, row in self.rows)


@dataclass(slots=True)
class Cut:
    """A thread's rows at one moment: those that lie in HEAD, and the parts with the others, in order."""

    inline: ThreadImage
    parts: list[Part]
    part_bytes: int


@dataclass(slots=True)
class _Group:
    """The rows of one kind, and where they were cut."""

    encode: Encode
    source: object = None  # what the rows were made from; it never changes in place
    known: dict[Label, tuple[Any, int, bytes]] = field(default_factory=dict)  # row, size in bytes, digest; in order
    size_bytes: int = 0
    part_bytes: int = 0
    parts: list[Part] = field(default_factory=list)

    def take(self, cipher: Cipher, source: object, rows: Callable[[], Rows]) -> None:
        """Makes these the rows of the group. Encodes only rows that changed."""
        if self.source is source and source is not None:
            return
        known = dict[Label, tuple[Any, int, bytes]]()
        is_same = True
        for label, row in rows():
            old = self.known.get(label)
            if old is None or (old[0] is not row and old[0] != row):
                data = self.encode(label, row)
                old, is_same = (row, len(data), cipher.digest(length_prefixed(data))), False
            known[label] = old
        if not is_same or len(known) != len(self.known):
            self.part_bytes = 0
            self.size_bytes = sum(size for _, size, _ in known.values())
        self.source, self.known = source, known

    def cut(self, cipher: Cipher, part_bytes: int) -> list[Part]:
        """Returns the rows in parts of about this size."""
        if self.part_bytes != part_bytes:
            self.part_bytes = part_bytes
            self.parts = [
                Part(cipher.digest(length_prefixed(_DIGEST_LABEL, *digests)), self.encode, rows)
                for rows, digests in _cut(self.known, part_bytes)
            ]
        return self.parts

    def inline(self) -> bytes:
        """Returns all rows as a serialized ThreadImage."""
        return b"".join(self.encode(label, row) for label, (row, _, _) in self.known.items())


class Cutter:
    """Cuts the rows of one thread, again and again. Remembers what it has encoded. Used under the lock of the name."""

    def __init__(self) -> None:
        self._branches = _Group(lambda _, row: ThreadImage(branches=[row]).SerializeToString())
        self._tags = _Group(lambda name, row: ThreadImage(tags=[Tag(name=name, version=row)]).SerializeToString())
        self._pruned = _Group(_encode_range)
        self._blobs = _Group(lambda _, row: ThreadImage(blobs=[row]).SerializeToString())
        self._signals = _Group(lambda _, row: ThreadImage(signals=[row]).SerializeToString())

    def cut(self, cipher: Cipher, moment: Moment, part_bytes: int) -> Cut:
        """Returns the rows of a moment. ``part_bytes``: how large the parts of the last HEAD are; 0 = it has none."""
        thread = moment.thread
        branches = [item for item in sorted(thread.branches.items()) if item[0] != MAIN]
        self._branches.take(cipher, None, lambda: branches)
        self._tags.take(cipher, thread.tags, lambda: sorted(thread.tags.items()))
        self._pruned.take(cipher, thread.pruned, lambda: _ranges(thread.pruned))
        self._blobs.take(
            cipher, moment.blobs,
            lambda: sorted(((row.sequence, bytes(row.record.blob_id)), row) for row in moment.blobs),
        )  # fmt: skip
        self._signals.take(cipher, thread.signals, lambda: sorted(thread.signals.items()))
        inline = ThreadImage(head=moment.head)
        main = thread.branches.get(MAIN)
        if main is not None:
            inline.branches.add().CopyFrom(main)
        groups = [self._branches, self._tags, self._pruned, self._blobs, self._signals]
        total = sum(group.size_bytes for group in groups)
        left = IMAGE_BYTES_MAX if total <= IMAGE_BYTES_MAX else IMAGE_BYTES_MAX // 3
        apart = list[_Group]()
        for group in sorted(groups, key=lambda group: group.size_bytes):
            if apart or group.size_bytes > left:
                apart.append(group)
            else:
                left -= group.size_bytes
                inline.MergeFromString(group.inline())
        if not apart:
            return Cut(inline, [], 0)
        size = _part_bytes(sum(group.size_bytes for group in apart), part_bytes)
        return Cut(inline, [part for group in groups if group in apart for part in group.cut(cipher, size)], size)


def _encode_range(label: tuple[str, int], last: int) -> bytes:
    kind, first = label
    pruned = PrunedVersions(**{kind: [VersionRange(first=first, last=last)]})
    return ThreadImage(pruned=pruned).SerializeToString()


def _ranges(pruned: Pruned) -> Iterator[tuple[tuple[str, int], int]]:
    message = pruned.to_message()
    for descriptor, ranges in message.ListFields():
        for item in ranges:
            yield (descriptor.name, item.first), item.last


def _part_bytes(total: int, before: int) -> int:
    """Returns the size of parts: as before if that gives a fair number of them, because another size changes all."""
    is_fair = total <= before * PARTS_MAX and (before == PART_BYTES or total > before * PARTS_MAX // 8)
    if before >= PART_BYTES and is_fair:
        return before
    size = PART_BYTES
    while total > size * PARTS_MAX // 2:
        size *= 2
    return size


def _cut(
    known: dict[Label, tuple[Any, int, bytes]], part_bytes: int
) -> Iterator[tuple[list[tuple[Label, Any]], list[bytes]]]:
    """Yields parts: rows, and their digests. A part ends after a row whose digest says so, which is the more likely the
    larger the row is. A large row is a part of its own."""
    rows, digests, size = list[tuple[Label, Any]](), list[bytes](), 0
    for label, (row, row_bytes, digest) in known.items():
        is_large = row_bytes * 2 >= part_bytes
        if rows and (is_large or size + row_bytes > 4 * part_bytes):
            yield rows, digests
            rows, digests, size = [], [], 0
        rows.append((label, row))
        digests.append(digest)
        size += row_bytes
        if is_large or int.from_bytes(digest[:4], "big") < (row_bytes << 32) // part_bytes:
            yield rows, digests
            rows, digests, size = [], [], 0
    if rows:
        yield rows, digests


# -- bytes ------------------------------------------------------------------------------------------------------------


def seal_image(cipher: Cipher, uid: bytes, image: ThreadImage) -> bytes:
    """Returns the rows that HEAD carries, compressed and sealed."""
    plain = image.SerializeToString(deterministic=True)
    return seal_record(cipher, IMAGE_MAGIC, _pack(plain), uid, _U64.pack(image.head.tip_sequence))


def seal_part(cipher: Cipher, uid: bytes, part: Part) -> bytes:
    """Returns the bytes of a part's object."""
    return seal_record(cipher, PART_MAGIC, _pack(part.pack()), uid, part.digest)


def open_inline(cipher: Cipher, head: ArchiveHead) -> ThreadImage:
    """Opens the rows that HEAD carries: the thread's head, the head of main, and perhaps others. Raises Corrupt."""
    plain = open_record(cipher, IMAGE_MAGIC, head.image, head.uid, _U64.pack(head.tip_sequence))
    return _open(ThreadImage(), plain)


def open_image(cipher: Cipher, head: ArchiveHead, parts: Sequence[bytes]) -> ThreadImage:
    """Opens an image. ``parts``: the bytes of the objects that HEAD names as its parts, in order. Raises Corrupt."""
    image = open_inline(cipher, head)
    for part, data in zip(head.image_parts, parts, strict=True):
        _open(image, open_record(cipher, PART_MAGIC, data, head.uid, part.digest))
    return image


def part_refs(head: ArchiveHead) -> list[ObjectRef]:
    """Returns the objects with the parts of an image, in order."""
    return [part.object for part in head.image_parts]


def _pack(plain: bytes) -> bytes:
    compression, packed = compress(plain)
    return _PLAIN.pack(compression, len(plain)) + packed


def _open(image: ThreadImage, plain: bytes) -> ThreadImage:
    """Adds the rows of a part."""
    compression, size = _PLAIN.unpack_from(plain)
    try:
        image.MergeFromString(decompress(cast("Compression", compression), plain[_PLAIN.size :], size))
    except DecodeError:
        raise Corrupt("the image of a thread cannot be read") from None
    return image
