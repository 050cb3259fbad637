"""Large content as rows of at most 1 MiB, each sealed and bound to its place.

Two users: snapshots, and edits that are too large for one row. The content is compressed as a whole, cut, and each
piece sealed with how many there are, so that a missing, foreign or swapped piece is found.

    magic ‖ format ‖ suite ‖ nonce ‖ (u8 compression ‖ u64 uncompressed bytes ‖ u32 pieces ‖ digest ‖ piece) ‖ tag
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import cast

from stateward.storage.v1.journal_pb2 import Compression
from stateward_sidecar.codec.compress import SNAPSHOT_LEVEL, Dictionary, compress, decompress
from stateward_sidecar.codec.seal import Bytes, Cipher, open_record, seal_record
from stateward_sidecar.errors import Corrupt

SNAPSHOT_MAGIC = b"SS"
EDITS_MAGIC = b"SP"
_HEAD = struct.Struct(">BQI16s")
_INDEX = struct.Struct(">I")
# A multiple of the page size less the record's overhead, so that a row wastes no page.
PIECE_BYTES = (1 << 20) - 128


class Content:
    """Compressed content that waits to be sealed piece by piece."""

    __slots__ = ("compression", "pieces", "size_bytes")

    def __init__(self, compression: Compression, packed: bytes, size_bytes: int) -> None:
        self.compression = compression
        self.size_bytes = size_bytes
        view = memoryview(packed)
        self.pieces = [view[at : at + PIECE_BYTES] for at in range(0, max(len(packed), 1), PIECE_BYTES)]

    @property
    def stored_bytes(self) -> int:
        """About what it takes at rest."""
        return sum(len(piece) + 64 for piece in self.pieces)


def pack_snapshot(snapshot: bytes) -> Content:
    """Compresses a snapshot; never against anything, so that it stands alone."""
    compression, packed = compress(snapshot, level=SNAPSHOT_LEVEL)
    return Content(compression, packed, len(snapshot))


def seal_piece(cipher: Cipher, magic: bytes, content: Content, index: int, digest: bytes, *place: Bytes) -> bytes:
    """Seals one piece. ``digest`` is that of the version the content belongs to (zeros where there is none yet)."""
    head = _HEAD.pack(content.compression, content.size_bytes, len(content.pieces), digest)
    return seal_record(cipher, magic, head + content.pieces[index], _INDEX.pack(index), *place)


def piece_digest(cipher: Cipher, magic: bytes, first: Bytes, *place: Bytes) -> bytes:
    """The digest that the first piece carries. Raises Corrupt."""
    digest: bytes = _HEAD.unpack_from(open_record(cipher, magic, first, _INDEX.pack(0), *place))[3]
    return digest


def open_pieces(
    cipher: Cipher, magic: bytes, rows: Iterator[Bytes], *place: Bytes, dictionary: Dictionary | None = None
) -> tuple[bytes, bytes]:
    """The reverse: returns the content and its digest. Raises Corrupt where a piece is missing or foreign."""
    packed: list[bytes] = []
    head: tuple[int, int, int, bytes] | None = None
    for index, row in enumerate(rows):
        plain = open_record(cipher, magic, row, _INDEX.pack(index), *place)
        found = _HEAD.unpack_from(plain)
        if head is not None and found != head:
            raise Corrupt("pieces of different contents stand under one name")
        head = found
        packed.append(plain[_HEAD.size :])
    if head is None or len(packed) != head[2]:
        raise Corrupt(f"{len(packed)} of {head[2] if head else 'all'} pieces are there")
    compression, size_bytes, _, digest = head
    return decompress(cast("Compression", compression), b"".join(packed), size_bytes, dictionary), digest
