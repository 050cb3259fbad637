"""The danger: edits that were compressed with a dictionary do not open again, or take more room than they must."""

from __future__ import annotations

import os
import random

import pytest
import zstandard

from stateward_sidecar.codec import compress
from stateward_sidecar.codec.compress import Dictionary


def talk(size: int, seed: int) -> bytes:
    """Messages that repeat words and phrases of the ones before them."""
    dice = random.Random(seed)
    words = [random.Random(number).randbytes(3).hex() for number in range(500)]
    phrases = [" ".join(dice.choices(words, k=5)) for _ in range(200)]
    text = ""
    while len(text) < size:
        text += '{"role": "tool", "content": "' + dice.choice(phrases) + " " + dice.choice(words) + '"}\n'
    return text[:size].encode()


@pytest.mark.parametrize("content", [0, 1, 100, 20_000, 300_000, 9 << 20])
@pytest.mark.parametrize("size", [1, 500, 30_000, 65_536, 65_537, 2 << 20])
def test_whatever_was_compressed_opens_with_the_same_content(content: int, size: int) -> None:
    """With another object made from the same snapshot, as after a start: small edits and large ones, which are
    compressed in another way."""
    snapshot = talk(min(content, 100_000), 1) * (-(-content // 100_000) or 1)
    edits = talk(min(size, 100_000), 2) * -(-size // 100_000)
    frame = Dictionary(3, b"d" * 16, snapshot[:content]).compress(edits)
    assert Dictionary(3, b"d" * 16, snapshot[:content]).decompress(frame, len(edits)) == edits


def test_what_an_older_version_compressed_opens() -> None:
    """With one of zstd's own levels."""
    snapshot, edits = talk(50_000, 1), talk(2_000, 2)
    content = zstandard.ZstdCompressionDict(snapshot, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    content.precompute_compress(level=3)
    older = zstandard.ZstdCompressor(level=3, dict_data=content, write_content_size=False, write_checksum=False)
    assert Dictionary(3, b"d" * 16, snapshot).decompress(older.compress(edits), len(edits)) == edits


def test_small_edits_are_looked_for_with_care() -> None:
    """They take less than at the level of everything else."""
    for size in (20_000, 100_000, 500_000):
        snapshot, edits = talk(size, 1), [talk(1_000, seed) for seed in range(2, 50)]
        usual = zstandard.ZstdCompressor(
            level=compress.LEVEL, write_content_size=False, write_checksum=False,
            dict_data=zstandard.ZstdCompressionDict(snapshot, dict_type=zstandard.DICT_TYPE_RAWCONTENT),
        )  # fmt: skip
        careful = Dictionary(3, b"d" * 16, snapshot)
        sizes = [sum(len(each.compress(edit)) for edit in edits) for each in (careful, usual)]
        assert sizes[0] < sizes[1] * 0.98, (size, sizes)


FAR = [(30_000, 0.9), (200_000, 0.9), (500_000, 0.5), (600_000, 0.9), (1 << 20, 0.9)]


@pytest.mark.parametrize(("size", "share"), FAR)
def test_a_dictionary_finds_what_is_far_back_in_it(size: int, share: float) -> None:
    """Its tables have room for places all over it."""
    parts = [os.urandom(2000) for _ in range(size // 2000)]
    dictionary = Dictionary(3, b"d" * 16, b"".join(parts))
    assert sum(len(dictionary.compress(part)) < 200 for part in parts) > share * len(parts)


def test_large_edits_use_the_dictionary() -> None:
    """They are compressed quickly, and with its content."""
    snapshot = os.urandom(300_000)
    assert len(Dictionary(3, b"d" * 16, snapshot).compress(snapshot[50_000:250_000])) < 1000
