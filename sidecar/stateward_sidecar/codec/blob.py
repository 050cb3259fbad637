"""A blob at rest: segments of 1 MiB, each compressed and sealed alone, then an index of their lengths.

    "SB" ‖ format ‖ suite ‖ segment... ‖ index
    segment   nonce ‖ (u8 compression ‖ data) ‖ tag
    index     "SI" ‖ format ‖ suite ‖ nonce ‖ (u64 bytes of the blob ‖ SHA-256 of them ‖ u32 length...) ‖ tag

Each blob has a key of its own, which stands in the thread's own sealed row with size and SHA-256. A segment is bound to
the blob's id, its place, and whether it is the last one. So a read finds a segment that was changed, moved, dropped or
taken from elsewhere. A range is read without the rest: the length of the index follows from the blob's size, and the
index says where each segment is. Nothing in the file names the thread, so a copy of a thread has the same file.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from hashlib import sha256
from itertools import accumulate, pairwise
from typing import cast

from stateward.storage.v1.journal_pb2 import COMPRESSION_UNSPECIFIED, BlobRecord, Compression
from stateward_sidecar.codec.compress import LEVEL, compress, decompress
from stateward_sidecar.codec.seal import (
    KEY_BYTES,
    NONCE_BYTES,
    PREFIX_BYTES,
    TAG_BYTES,
    Bytes,
    Cipher,
    check_prefix,
    length_prefixed,
    new_nonce,
    open_record,
    record_prefix,
    seal_record,
)
from stateward_sidecar.errors import Corrupt

SEGMENT_BYTES = 1 << 20
BLOB_ID_BYTES = 16
MAGIC = b"SB"
INDEX_MAGIC = b"SI"
_PREFIX = record_prefix(MAGIC)
_PLACE = struct.Struct(">Q?")
_INDEX_HEAD = struct.Struct(">Q32s")
_LENGTH = struct.Struct(">I")
_SEGMENT_OVERHEAD_BYTES = NONCE_BYTES + 1 + TAG_BYTES


class BlobCipher:
    """Seals and opens the segments of one blob. Safe to share between threads."""

    __slots__ = ("_cipher", "blob_id")

    def __init__(self, data_key: bytes, blob_id: bytes) -> None:
        self.blob_id = blob_id
        self._cipher = Cipher(data_key)

    @property
    def header(self) -> bytes:
        """The first bytes of the file."""
        return _PREFIX

    def seal_segment(self, index: int, data: bytes, *, is_last: bool, level: int | None = LEVEL) -> bytes:
        """Seals a segment. All but the last one have ``SEGMENT_BYTES``. ``level``: of the compression; None = the
        segment keeps its length."""
        compression, packed = (COMPRESSION_UNSPECIFIED, data) if level is None else compress(data, level=level)
        nonce = new_nonce()
        return nonce + self._cipher.encrypt(nonce, bytes((compression,)) + packed, self._aad(index, is_last))

    def open_segment(self, index: int, sealed: Bytes, size_bytes: int) -> bytes:
        """The reverse of ``seal_segment``, for a blob of ``size_bytes``. Raises Corrupt."""
        length = segment_bytes(index, size_bytes)
        aad = self._aad(index, index == count_segments(size_bytes) - 1)
        plain = self._cipher.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], aad)
        return decompress(cast("Compression", plain[0]), plain[1:], length)

    def seal_index(self, lengths: list[int], size_bytes: int, sha256: bytes) -> bytes:
        """Seals the index. ``lengths`` are the lengths of the sealed segments."""
        plain = _INDEX_HEAD.pack(size_bytes, sha256) + b"".join(map(_LENGTH.pack, lengths))
        return seal_record(self._cipher, INDEX_MAGIC, plain, self.blob_id)

    def open_index(self, record: Bytes, size_bytes: int, sha256: bytes) -> list[int]:
        """Returns where each segment begins in the file, and where the last one ends. Raises Corrupt."""
        plain = open_record(self._cipher, INDEX_MAGIC, record, self.blob_id)
        if len(plain) != _index_plain_bytes(size_bytes) or _INDEX_HEAD.unpack_from(plain) != (size_bytes, sha256):
            raise Corrupt("the index of a blob belongs to another blob")
        lengths = (length for (length,) in _LENGTH.iter_unpack(plain[_INDEX_HEAD.size :]))
        return list(accumulate(lengths, initial=PREFIX_BYTES))

    def _aad(self, index: int, is_last: bool) -> bytes:
        return length_prefixed(_PREFIX, self.blob_id, _PLACE.pack(index, is_last))


def check_header(header: Bytes) -> None:
    """Raises Corrupt unless a file begins like a blob in a format that this version reads."""
    check_prefix(header, MAGIC, PREFIX_BYTES)


def cipher_of(record: BlobRecord) -> BlobCipher:
    """Returns what seals and opens a blob. Raises Corrupt if its record has no key."""
    if len(record.data_key) != KEY_BYTES:
        raise Corrupt(f"the record of blob {record.sha256.hex()} has no key")
    return BlobCipher(record.data_key, record.blob_id)


def open_all(read: Callable[[int, int], bytes], record: BlobRecord) -> Iterator[None]:
    """Opens a sealed blob segment by segment, and yields after each one. Raises Corrupt.

    ``read``: returns the bytes from an offset on, of the given number.
    """
    cipher = cipher_of(record)
    check_header(read(0, PREFIX_BYTES))
    length, digest = index_bytes(record.size_bytes), sha256()
    starts = cipher.open_index(read(record.stored_bytes - length, length), record.size_bytes, record.sha256)
    for number, (start, end) in enumerate(pairwise(starts)):
        digest.update(cipher.open_segment(number, read(start, end - start), record.size_bytes))
        yield
    if digest.digest() != record.sha256:
        raise Corrupt("the bytes of the blob do not match the SHA-256 in its thread")


def open_whole(file: Bytes, record: BlobRecord) -> bytes:
    """Opens a sealed blob that is in memory. Raises Corrupt."""
    cipher, length = cipher_of(record), index_bytes(record.size_bytes)
    check_header(file)
    starts = cipher.open_index(file[max(len(file) - length, 0) :], record.size_bytes, record.sha256)
    if starts[-1] + length != len(file):
        raise Corrupt(f"the file of a blob has {len(file)} bytes, not {starts[-1] + length}")
    found = b"".join(
        cipher.open_segment(number, file[start:end], record.size_bytes)
        for number, (start, end) in enumerate(pairwise(starts))
    )
    if sha256(found).digest() != record.sha256:
        raise Corrupt("the bytes of the blob do not match the SHA-256 in its thread")
    return found


def count_segments(size_bytes: int) -> int:
    """Returns how many segments a blob has. An empty blob has one."""
    return max(1, -(-size_bytes // SEGMENT_BYTES))


def segment_bytes(index: int, size_bytes: int) -> int:
    """Returns how many bytes of the blob a segment holds."""
    return min(SEGMENT_BYTES, size_bytes - index * SEGMENT_BYTES)


def index_bytes(size_bytes: int) -> int:
    """Returns the length of the sealed index."""
    return PREFIX_BYTES + NONCE_BYTES + _index_plain_bytes(size_bytes) + TAG_BYTES


def sealed_bytes_max(size_bytes: int) -> int:
    """Returns the most bytes that a sealed blob needs."""
    segments = count_segments(size_bytes) * _SEGMENT_OVERHEAD_BYTES
    return PREFIX_BYTES + size_bytes + segments + index_bytes(size_bytes)


def _index_plain_bytes(size_bytes: int) -> int:
    return _INDEX_HEAD.size + _LENGTH.size * count_segments(size_bytes)
