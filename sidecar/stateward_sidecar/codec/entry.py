"""A journal entry as it is stored: clear header, sealed metadata, sealed edits.

    "SJ" ‖ format ‖ suite ‖ u16 header length ‖ EntryHeader ‖ nonce ‖ metadata ‖ tag ‖ edits ‖ tag

Both parts are bound to the header and to the thread's uid, and the edits also to the dictionary's digest. The header
carries the digest of the entry before it. The two parts use one random nonce that differs in its last bit. When a
version is pruned, its edits are cut off and the rest stays as it was (a *husk*), so that digests, request ids and
watches still work.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TypeVar

from google.protobuf.message import DecodeError

from stateward.storage.v1.journal_pb2 import COMPRESSION_UNSPECIFIED, Compression, EntryHeader, EntryMetadata
from stateward_sidecar.codec.compress import METADATA_LEVEL, Dictionary, compress, decompress
from stateward_sidecar.codec.seal import (
    FORMAT,
    NONCE_BYTES,
    SUITE_AES_256_GCM,
    TAG_BYTES,
    Bytes,
    Cipher,
    check_prefix,
    content_hash,
    length_prefixed,
    new_nonce,
)
from stateward_sidecar.errors import Corrupt

M = TypeVar("M", EntryHeader, EntryMetadata)
MAGIC = b"SJ"
_PREFIX = struct.Struct(">2sBBH")
_DIGESTED = struct.Struct(">qqqqqq")
METADATA_PART, EDITS_PART = 0, 1
_NO_EDITS_HASH = content_hash(b"")
_METADATA_PLACE = length_prefixed(bytes((METADATA_PART,)), b"")
_EDITS_PLACE = length_prefixed(bytes((EDITS_PART,)), b"")  # of edits without dictionary
# Larger sealed edits are stored in rows of their own (codec/parts.py).
INLINE_EDITS_MAX = 1 << 20


@dataclass(slots=True)
class EntryContent:
    """The content of an entry, as far as it can be prepared outside the writer."""

    metadata: bytes  # a serialized EntryMetadata
    metadata_compression: Compression
    packed_metadata: bytes
    edits: bytes  # a serialized Diff; empty for entries that are not checkpoints
    edits_hash: bytes
    edit_compression: Compression
    packed_edits: bytes
    dictionary: Dictionary | None

    @property
    def size_bytes(self) -> int:
        """Approximate size at rest."""
        return len(self.packed_metadata) + len(self.packed_edits) + 256


def draft(metadata: EntryMetadata, edits: bytes = b"", dictionary: Dictionary | None = None) -> EntryContent:
    """Serializes and compresses the content of an entry."""
    plain = metadata.SerializeToString(deterministic=True)
    metadata_compression, packed_metadata = compress(plain, level=METADATA_LEVEL)
    edit_compression, packed_edits = compress(edits, dictionary) if edits else (COMPRESSION_UNSPECIFIED, edits)
    return EntryContent(
        plain, metadata_compression, packed_metadata,
        edits, content_hash(edits) if edits else _NO_EDITS_HASH, edit_compression, packed_edits, dictionary,
    )  # fmt: skip


def pack(cipher: Cipher, uid: bytes, header: EntryHeader, content: EntryContent) -> bytes:
    """Completes the header with digest and sizes, and returns the record.

    The caller has set kind, epoch, sequence, version, parent_version, create_time_us and previous_digest. Edits that
    are too large for one row are left out; ``header.parts_id`` then says where the caller stores them.
    """
    header.digest = entry_digest(cipher, header, content.metadata, content.edits_hash)
    header.metadata_bytes = len(content.metadata)
    header.metadata_compression = content.metadata_compression
    header.metadata_stored_bytes = len(content.packed_metadata) + TAG_BYTES
    header.edit_bytes = len(content.edits)
    header.edit_compression = content.edit_compression
    if content.dictionary is not None and content.edit_compression:
        header.dictionary_version = content.dictionary.version
    inline = bool(content.edits) and not header.parts_id
    if inline:
        header.edit_stored_bytes = len(content.packed_edits) + TAG_BYTES
    head = header.SerializeToString()
    clear = _PREFIX.pack(MAGIC, FORMAT, SUITE_AES_256_GCM, len(head)) + head
    nonce = new_nonce()
    nonce = nonce[:-1] + bytes((nonce[-1] & 0xFE,))
    place = length_prefixed(clear, uid)
    metadata = cipher.encrypt(nonce, content.packed_metadata, place + _METADATA_PLACE)
    if not inline:
        return b"".join((clear, nonce, metadata))
    edits_place = place + _EDITS_PLACE
    if content.dictionary is not None and header.dictionary_version:
        edits_place = place + length_prefixed(bytes((EDITS_PART,)), content.dictionary.digest)
    edits = cipher.encrypt(_part_nonce(nonce, EDITS_PART), content.packed_edits, edits_place)
    return b"".join((clear, nonce, metadata, edits))


@dataclass(slots=True)
class Entry:
    """A record that was unpacked, but not opened."""

    header: EntryHeader
    record: bytes
    _clear_end: int

    @property
    def inline_bytes(self) -> int:
        """Length of the whole record according to its header."""
        return self._edits_start + (0 if self.header.parts_id else self.header.edit_stored_bytes)

    @property
    def is_husk(self) -> bool:
        """True if the edits were cut off."""
        return bool(self.header.edit_bytes) and not self.header.parts_id and len(self.record) == self._edits_start

    @property
    def _edits_start(self) -> int:
        return self._clear_end + NONCE_BYTES + self.header.metadata_stored_bytes

    def husk(self) -> bytes:
        """The record without its edits."""
        return self.record[: self._edits_start]

    def open_metadata(self, cipher: Cipher, uid: bytes) -> EntryMetadata:
        """Opens the first part. Raises Corrupt."""
        return _parse(EntryMetadata, self.open_metadata_bytes(cipher, uid))

    def open_metadata_bytes(self, cipher: Cipher, uid: bytes) -> bytes:
        """Opens the first part. Returns the bytes that the digest covers. Raises Corrupt."""
        header = self.header
        sealed = memoryview(self.record)[self._clear_end + NONCE_BYTES : self._edits_start]
        packed = cipher.decrypt(self._nonce(METADATA_PART), sealed, _place(self._clear, uid, METADATA_PART, b""))
        return decompress(header.metadata_compression, packed, header.metadata_bytes)

    def open_packed(self, cipher: Cipher, uid: bytes, dictionary_digest: bytes = b"") -> tuple[bytes, bytes]:
        """Opens both parts, and leaves them compressed. The second is empty if the record has none. Raises Corrupt."""
        sealed = memoryview(self.record)
        metadata = cipher.decrypt(
            self._nonce(METADATA_PART), sealed[self._clear_end + NONCE_BYTES : self._edits_start],
            _place(self._clear, uid, METADATA_PART, b""),
        )  # fmt: skip
        if len(sealed) == self._edits_start:
            return metadata, b""
        place = _place(self._clear, uid, EDITS_PART, dictionary_digest)
        return metadata, cipher.decrypt(self._nonce(EDITS_PART), sealed[self._edits_start :], place)

    def open_edits(self, cipher: Cipher, uid: bytes, dictionary: Dictionary | None = None) -> bytes:
        """Opens the second part: a serialized Diff. The caller passes the dictionary that the header names."""
        header = self.header
        sealed = memoryview(self.record)[self._edits_start :]
        if len(sealed) != header.edit_stored_bytes:
            raise Corrupt(f"an entry has {len(sealed)} bytes of edits where {header.edit_stored_bytes} were stored")
        if not header.edit_bytes:
            return b""
        place = _place(self._clear, uid, EDITS_PART, dictionary.digest if dictionary else b"")
        packed = cipher.decrypt(self._nonce(EDITS_PART), sealed, place)
        return decompress(header.edit_compression, packed, header.edit_bytes, dictionary)

    @property
    def _clear(self) -> bytes:
        return self.record[: self._clear_end]

    def _nonce(self, part: int) -> bytes:
        return _part_nonce(self.record[self._clear_end : self._clear_end + NONCE_BYTES], part)


def reseal(
    entry: Entry, old: tuple[Cipher, bytes], new: tuple[Cipher, bytes], previous_digest: bytes, edits: bytes | None,
    dictionaries: tuple[bytes, bytes], metadata: bytes | None,
) -> tuple[EntryHeader, bytes]:  # fmt: skip
    """Returns the header and the record of an entry under another key and uid: the same content of the same size.

    ``edits``: the second part as the digest covers it; None = it was cut off, or shall be. ``dictionaries``: the
    digests of its dictionary there and here. ``metadata``: other metadata than the entry has. Raises Corrupt.
    """
    cipher, uid = new
    kept = entry if edits is not None else Entry(entry.header, entry.husk(), entry._clear_end)
    packed, packed_edits = kept.open_packed(*old, dictionaries[0])
    header = EntryHeader()
    header.CopyFrom(entry.header)
    header.previous_digest = previous_digest
    if metadata is None:
        metadata = decompress(header.metadata_compression, packed, header.metadata_bytes)
    else:
        header.metadata_compression, packed = compress(metadata, level=METADATA_LEVEL)
        header.metadata_bytes, header.metadata_stored_bytes = len(metadata), len(packed) + TAG_BYTES
    if edits is None:  # its digest cannot be made again, and nobody can compare it
        header.digest = cipher.digest(length_prefixed(b"cut", entry.header.digest))
    else:
        header.digest = entry_digest(cipher, header, metadata, content_hash(edits))
    head = header.SerializeToString()
    clear = _PREFIX.pack(MAGIC, FORMAT, SUITE_AES_256_GCM, len(head)) + head
    nonce = new_nonce()
    nonce = nonce[:-1] + bytes((nonce[-1] & 0xFE,))
    parts = [clear, nonce, cipher.encrypt(nonce, packed, _place(clear, uid, METADATA_PART, b""))]
    if edits is not None and header.edit_bytes and not header.parts_id:
        place = _place(clear, uid, EDITS_PART, dictionaries[1])
        parts.append(cipher.encrypt(_part_nonce(nonce, EDITS_PART), packed_edits, place))
    return header, b"".join(parts)


def sequence_of(record: Bytes) -> int:
    """Returns the sequence in a record's header. Raises Corrupt."""
    check_prefix(record, MAGIC, _PREFIX.size + NONCE_BYTES + TAG_BYTES)
    end = _PREFIX.size + _PREFIX.unpack_from(record)[3]
    return _parse(EntryHeader, bytes(record[_PREFIX.size : end])).sequence


def unpack(record: Bytes, sequence: int) -> Entry:
    """Unpacks a record. Raises Corrupt unless it is an entry of this sequence."""
    check_prefix(record, MAGIC, _PREFIX.size + NONCE_BYTES + TAG_BYTES)
    length = _PREFIX.unpack_from(record)[3]
    end = _PREFIX.size + length
    header = _parse(EntryHeader, bytes(record[_PREFIX.size : end]))
    if header.sequence != sequence:
        raise Corrupt(f"journal entry {sequence} holds the record of entry {header.sequence}")
    if len(record) < end + NONCE_BYTES + header.metadata_stored_bytes:
        raise Corrupt(f"journal entry {sequence} is cut off after {len(record)} bytes")
    entry = Entry(header, bytes(record), end)
    if len(record) != entry.inline_bytes and not entry.is_husk:
        raise Corrupt(f"journal entry {sequence} has {len(record)} bytes, not {entry.inline_bytes}")
    return entry


def stored_bytes(entry: Entry) -> int:
    """Returns the size of an entry at rest; of a pruned version, its size before."""
    header = entry.header
    clear_bytes = len(entry.record) if header.parts_id else len(entry.husk())
    return clear_bytes + header.edit_stored_bytes


def entry_digest(cipher: Cipher, header: EntryHeader, metadata: bytes, edits_hash: bytes) -> bytes:
    """Returns the history digest. It covers this entry as stored and, by ``previous_digest``, all entries before."""
    numbers = _DIGESTED.pack(
        header.epoch, header.sequence, header.kind, header.version, header.parent_version, header.create_time_us
    )
    return cipher.digest(length_prefixed(header.previous_digest, numbers, metadata, edits_hash))


def _place(clear: bytes, uid: bytes, part: int, dictionary_digest: bytes) -> bytes:
    return length_prefixed(clear, uid, bytes((part,)), dictionary_digest)


def _part_nonce(nonce: bytes, part: int) -> bytes:
    return nonce[:-1] + bytes((nonce[-1] ^ part,))


def _parse(kind: type[M], data: bytes) -> M:
    try:
        return kind.FromString(data)
    except DecodeError:
        raise Corrupt(f"stored bytes are not a {kind.__name__}") from None
