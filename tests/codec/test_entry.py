"""The danger: an entry that was changed on disk, or moved to another thread or sequence, opens as if it were right."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateward.storage.v1.journal_pb2 import ENTRY_KIND_CHECKPOINT, EntryHeader, EntryMetadata
from stateward_sidecar.codec import parts
from stateward_sidecar.codec.compress import Dictionary
from stateward_sidecar.codec.entry import draft, pack, unpack
from stateward_sidecar.codec.seal import Cipher, open_record, seal_record
from stateward_sidecar.errors import Corrupt

CIPHER = Cipher(b"k" * 32)
UID = b"u" * 16


def pack_entry(edits: bytes, dictionary: Dictionary | None = None, detail: str = "waiting") -> bytes:
    metadata = EntryMetadata()
    metadata.checkpoint.status_detail = detail
    header = EntryHeader(kind=ENTRY_KIND_CHECKPOINT, sequence=7, version=5, previous_digest=b"p" * 16)
    return pack(CIPHER, UID, header, draft(metadata, edits, dictionary))


def read_all(record: bytes) -> bytes:
    entry = unpack(record, 7)
    entry.open_metadata(CIPHER, UID)
    return entry.open_edits(CIPHER, UID)


@given(edits=st.binary(max_size=3000), detail=st.text(max_size=300), with_dictionary=st.booleans())
def test_an_entry_comes_back_as_it_was(edits: bytes, detail: str, with_dictionary: bool) -> None:
    """Opening what was packed gives metadata and edits back, with and without a dictionary."""
    dictionary = Dictionary(3, b"d" * 16, edits[: len(edits) // 2] + b"tail") if with_dictionary else None
    entry = unpack(pack_entry(edits, dictionary, detail), 7)
    named = dictionary if entry.header.dictionary_version else None

    assert entry.open_metadata(CIPHER, UID).checkpoint.status_detail == detail
    assert entry.open_edits(CIPHER, UID, named) == edits


def test_every_changed_bit_is_found() -> None:
    """One bit changed anywhere in a record makes reading it an error."""
    record = pack_entry(b"edits of some length, so that there are a few bytes of each part " * 3)
    for position in range(len(record) * 8):
        damaged = bytearray(record)
        damaged[position // 8] ^= 1 << position % 8
        with pytest.raises(Corrupt):
            read_all(bytes(damaged))


def test_every_truncation_is_found() -> None:
    """A record cut off at any length is an error, or a husk that says so."""
    record = pack_entry(b"edits " * 40)
    husk = unpack(record, 7).husk()
    for length in range(len(record)):
        with pytest.raises(Corrupt):
            read_all(record[:length])
    assert unpack(husk, 7).open_metadata(CIPHER, UID).checkpoint.status_detail == "waiting"


def test_a_record_opens_in_its_own_place_only() -> None:
    """Another thread's uid, another sequence, another dictionary or another key do not open an entry."""
    dictionary = Dictionary(3, b"d" * 16, b"edits " * 100)
    record = pack_entry(b"edits " * 40, dictionary)
    entry = unpack(record, 7)
    with pytest.raises(Corrupt):
        unpack(record, 8)
    with pytest.raises(Corrupt):
        entry.open_metadata(CIPHER, b"v" * 16)
    with pytest.raises(Corrupt):
        entry.open_metadata(Cipher(b"x" * 32), UID)
    with pytest.raises(Corrupt):
        entry.open_edits(CIPHER, UID, Dictionary(3, b"e" * 16, b"edits " * 100))


def test_the_digest_covers_history_metadata_and_edits() -> None:
    """Entries that differ in anything have other digests; equal ones have equal digests."""

    def digest(previous: bytes = b"p" * 16, detail: str = "a", edits: bytes = b"e") -> bytes:
        metadata = EntryMetadata()
        metadata.checkpoint.status_detail = detail
        header = EntryHeader(kind=ENTRY_KIND_CHECKPOINT, sequence=7, version=5, previous_digest=previous)
        pack(CIPHER, UID, header, draft(metadata, edits))
        return header.digest

    assert digest() == digest()
    assert len({digest(), digest(previous=b"q" * 16), digest(detail="b"), digest(edits=b"f")}) == 4


@given(place=st.lists(st.binary(max_size=20), max_size=4), plaintext=st.binary(max_size=200))
def test_a_sealed_row_comes_back(place: list[bytes], plaintext: bytes) -> None:
    """A row opens in the place it was sealed for, and in no place whose parts are cut otherwise."""
    record = seal_record(CIPHER, b"SR", plaintext, *place)

    assert open_record(CIPHER, b"SR", record, *place) == plaintext
    with pytest.raises(Corrupt):
        open_record(CIPHER, b"SR", record, *place, b"")


@pytest.mark.parametrize("size", [0, 1, parts.PIECE_BYTES, parts.PIECE_BYTES + 1, 3 * parts.PIECE_BYTES + 5])
def test_large_content_comes_back_from_its_pieces(size: int) -> None:
    """Content of any size comes back with its digest; a missing, doubled or swapped piece is found."""
    data = os.urandom(size)
    content = parts.pack_snapshot(data)
    rows = [
        parts.seal_piece(CIPHER, parts.SNAPSHOT_MAGIC, content, index, b"d" * 16, UID)
        for index in range(len(content.pieces))
    ]

    assert parts.open_pieces(CIPHER, parts.SNAPSHOT_MAGIC, iter(rows), UID) == (data, b"d" * 16)
    for wrong in (rows[:-1], rows + rows[-1:], rows[::-1] if len(rows) > 1 else []):
        with pytest.raises(Corrupt):
            parts.open_pieces(CIPHER, parts.SNAPSHOT_MAGIC, iter(wrong), UID)
