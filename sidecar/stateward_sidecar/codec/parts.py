"""Stores large content as rows of at most 1 MiB, each sealed and bound to its place.

Snapshots, and edits that are too large for one row, are stored in this way. The content is compressed as a whole and
cut. Each piece is sealed with the number of pieces, so that a read finds a missing, foreign or swapped piece.

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
        """Approximate size at rest."""
        return sum(len(piece) + 64 for piece in self.pieces)


def pack_snapshot(snapshot: bytes) -> Content:
    """Compresses a snapshot without a dictionary, so that it is self-contained."""
    compression, packed = compress(snapshot, level=SNAPSHOT_LEVEL)
    return Content(compression, packed, len(snapshot))


def seal_piece(cipher: Cipher, magic: bytes, content: Content, index: int, digest: bytes, *place: Bytes) -> bytes:
    """Seals one piece. ``digest`` is the digest of the content's version (zeros if there is none yet)."""
    head = _HEAD.pack(content.compression, content.size_bytes, len(content.pieces), digest)
    return seal_record(cipher, magic, head + content.pieces[index], _INDEX.pack(index), *place)


def piece_digest(cipher: Cipher, magic: bytes, first: Bytes, *place: Bytes) -> bytes:
    """Returns the digest in the first piece. Raises Corrupt."""
    digest: bytes = _HEAD.unpack_from(open_record(cipher, magic, first, _INDEX.pack(0), *place))[3]
    return digest


def reseal_piece(
    old: tuple[Cipher, bytes], new: tuple[Cipher, bytes], magic: bytes, piece: Bytes, index: int, place: bytes,
    digest: bytes,
) -> bytes:  # fmt: skip
    """Returns a piece under another key and uid. ``digest``: of its version there; empty = it has none. Raises
    Corrupt."""
    plain = open_record(old[0], magic, piece, _INDEX.pack(index), old[1], place)
    if digest:
        compression, size_bytes, pieces, _ = _HEAD.unpack_from(plain)
        plain = _HEAD.pack(compression, size_bytes, pieces, digest) + plain[_HEAD.size :]
    return seal_record(new[0], magic, plain, _INDEX.pack(index), new[1], place)


def open_pieces(
    cipher: Cipher, magic: bytes, rows: Iterator[Bytes], *place: Bytes, dictionary: Dictionary | None = None
) -> tuple[bytes, bytes]:
    """Opens all pieces. Returns the content and its digest. Raises Corrupt if a piece is missing or foreign."""
    packed: list[bytes] = []
    head: tuple[int, int, int, bytes] | None = None
    for index, row in enumerate(rows):
        plain = open_record(cipher, magic, row, _INDEX.pack(index), *place)
        found = _HEAD.unpack_from(plain)
        if head is not None and found != head:
            raise Corrupt("pieces of different contents are stored under one name")
        head = found
        packed.append(plain[_HEAD.size :])
    if head is None or len(packed) != head[2]:
        raise Corrupt(f"{len(packed)} of {head[2] if head else 'all'} pieces are present")
    compression, size_bytes, _, digest = head
    return decompress(cast("Compression", compression), b"".join(packed), size_bytes, dictionary), digest
