"""The danger: somebody with access to the disk swaps or cuts sealed segments, and the daemon opens them as the user's
bytes."""

from __future__ import annotations

from hashlib import sha256
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateward_sidecar.codec import blob as codec
from stateward_sidecar.codec.blob import SEGMENT_BYTES, BlobCipher, count_segments, index_bytes, sealed_bytes_max
from stateward_sidecar.codec.seal import PREFIX_BYTES
from stateward_sidecar.errors import Corrupt

KEY, BLOB_ID = b"k" * 32, b"b" * 16
SIZES = (0, 1, SEGMENT_BYTES - 1, SEGMENT_BYTES, SEGMENT_BYTES + 1, 3 * SEGMENT_BYTES + 5)


def cipher(key: bytes = KEY, blob_id: bytes = BLOB_ID) -> BlobCipher:
    return BlobCipher(key, blob_id)


def seal(data: bytes, sealer: BlobCipher) -> bytes:
    """A whole file."""
    last = count_segments(len(data)) - 1
    segments = [
        sealer.seal_segment(index, data[index * SEGMENT_BYTES : (index + 1) * SEGMENT_BYTES], is_last=index == last)
        for index in range(last + 1)
    ]
    index = sealer.seal_index(list(map(len, segments)), len(data), sha256(data).digest())
    return sealer.header + b"".join(segments) + index


def read(file: bytes, data: bytes, opener: BlobCipher, wanted: range | None = None) -> bytes:
    """The segments of a file, as a reader finds them that knows size and SHA-256."""
    codec.check_header(file[:PREFIX_BYTES])
    tail = index_bytes(len(data))
    starts = opener.open_index(file[max(len(file) - tail, 0) :], len(data), sha256(data).digest())
    if starts[-1] + tail != len(file):
        raise Corrupt("the length is wrong")
    places = list(pairwise(starts))
    chosen = wanted if wanted is not None else range(len(places))
    return b"".join(opener.open_segment(index, file[slice(*places[index])], len(data)) for index in chosen)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["random", "zeros"])
def test_what_was_sealed_is_read(size: int, kind: str) -> None:
    """Whole and segment by segment, at sizes around the border of a segment; never larger than was promised."""
    data = random_like(size) if kind == "random" else bytes(size)
    file = seal(data, cipher())
    assert read(file, data, cipher()) == data
    assert len(file) <= sealed_bytes_max(size)
    for index in range(count_segments(size)):
        part = data[index * SEGMENT_BYTES : (index + 1) * SEGMENT_BYTES]
        assert read(file, data, cipher(), range(index, index + 1)) == part


def random_like(size: int) -> bytes:
    block = b"".join(sha256(number.to_bytes(4, "big")).digest() for number in range(4096))
    return (block * (size // len(block) + 1))[:size]


@given(at=st.integers(min_value=0), bit=st.integers(0, 7))
def test_no_bit_can_be_changed(at: int, bit: int) -> None:
    """One flipped bit anywhere is found by whoever reads it all."""
    data = random_like(5000)
    file = bytearray(seal(data, cipher()))
    file[at % len(file)] ^= 1 << bit
    with pytest.raises(Corrupt):
        read(bytes(file), data, cipher())


@given(cut=st.integers(min_value=1))
def test_a_cut_off_file_is_found(cut: int) -> None:
    """However much is missing at the end."""
    data = random_like(5000)
    file = seal(data, cipher())
    with pytest.raises(Corrupt):
        read(file[: -(cut % len(file)) or len(file) - 1], data, cipher())


def test_a_segment_belongs_to_its_place() -> None:
    """A segment of another place, blob or key does not open, nor one that is last where others follow."""
    data = random_like(2 * SEGMENT_BYTES)
    first = data[:SEGMENT_BYTES]
    sealed = cipher().seal_segment(0, first, is_last=False)
    assert cipher().open_segment(0, sealed, len(data)) == first
    wrong = [
        (cipher(), 1, len(data)),
        (cipher(blob_id=b"x" * 16), 0, len(data)),
        (cipher(key=b"x" * 32), 0, len(data)),
        (cipher(), 0, SEGMENT_BYTES),  # a blob of one segment: this one is not its last
    ]
    for opener, index, size in wrong:
        with pytest.raises(Corrupt):
            opener.open_segment(index, sealed, size)


def test_an_index_belongs_to_its_blob() -> None:
    """The index of another blob, or of other content, does not open."""
    data = random_like(10)
    digest = sha256(data).digest()
    record = cipher().seal_index([39], 10, digest)
    assert cipher().open_index(record, 10, digest) == [PREFIX_BYTES, PREFIX_BYTES + 39]
    for opener, size, found in (
        (cipher(blob_id=b"x" * 16), 10, digest),
        (cipher(key=b"x" * 32), 10, digest),
        (cipher(), 11, digest),
        (cipher(), 10, sha256(b"").digest()),
    ):
        with pytest.raises(Corrupt):
            opener.open_index(record, size, found)


def test_an_unknown_format_is_named() -> None:
    """A file of a later format is no garbage."""
    file = bytearray(seal(b"x", cipher()))
    file[2] = 9
    with pytest.raises(Corrupt, match="format 9"):
        codec.check_header(bytes(file[:PREFIX_BYTES]))
