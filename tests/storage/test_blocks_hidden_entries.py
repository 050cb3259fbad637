"""The danger: damage in a block hides entries from who looks for them, and swallows what is put behind it."""

from __future__ import annotations

import itertools
import struct
from contextlib import suppress

import lmdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.storage.test_blocks_of_entries import KEYS, PUT, SIZE_MIN, env, record, txn

from stateward_sidecar.codec.entry import unpack
from stateward_sidecar.errors import Corrupt
from stateward_sidecar.store.thread import blocks
from stateward_sidecar.store.thread.blocks import Records

__all__ = ["env", "txn"]  # the fixtures


def block(frames: Records, lengths: dict[int, int] | None = None) -> bytes:
    """A block that begins with entry 3, of frames as they are given: offset and record. ``lengths``: wrong ones."""
    wrong = lengths or {}
    parts = [struct.pack(">HH", at, wrong.get(number, len(each))) + each for number, (at, each) in enumerate(frames)]
    end = 9 + sum(map(len, parts))
    return struct.pack(">3sHHH", blocks.BLOCK, frames[-1][0], end - len(parts[-1]), end) + b"".join(parts)


FRAMES = [(sequence - 3, each) for sequence, each in PUT.items()]
SWALLOWED = PUT[5] + struct.pack(">HH", 3, 90) + PUT[6]
HIDING = {
    "a length takes in the next entry": block([*FRAMES[:2], (2, SWALLOWED), *FRAMES[4:]]),
    "a length is too short": block(FRAMES, {2: 80}),
    "a length is too long": block(FRAMES, {2: 100}),
    "a sequence is too low": block([*FRAMES[:3], (2, PUT[6]), *FRAMES[4:]]),
    "a sequence is too high": block([*FRAMES[:3], (4, PUT[6]), *FRAMES[4:]]),
    "a sequence is in the gap of others": block([FRAMES[0], (1, PUT[6]), *FRAMES[4:]]),
    "two frames are swapped": block([*FRAMES[:2], FRAMES[3], FRAMES[2], *FRAMES[4:]]),
    "two records are swapped": block([*FRAMES[:2], (2, PUT[6]), (3, PUT[5]), *FRAMES[4:]]),
}


@pytest.mark.parametrize("row", HIDING.values(), ids=HIDING.keys())
def test_damage_hides_no_entry(txn: lmdb.Transaction, row: bytes) -> None:
    """An entry in the middle of a block is never called missing. It is read as it was put, or the read is CORRUPT."""
    txn.put(KEYS.entry(3), row)
    found_corrupt = 0
    for sequence, put in PUT.items():
        try:
            found = blocks.get_entry(txn, KEYS, sequence)
            assert found is not None
            assert unpack(found, sequence).record == put
        except Corrupt:
            found_corrupt += 1
    assert 0 < found_corrupt < len(PUT)
    for first in (3, 5, 6):
        with pytest.raises(Corrupt):
            _ = [unpack(found, sequence) for sequence, found in blocks.entries(txn, KEYS, first)]


@pytest.mark.parametrize("row", HIDING.values(), ids=HIDING.keys())
def test_what_is_appended_to_a_damaged_block_is_found_again(txn: lmdb.Transaction, row: bytes) -> None:
    """Also after the next append; else nothing is appended."""
    txn.put(KEYS.entry(3), row)
    with suppress(Corrupt):
        for sequence in range(9, 12):
            blocks.put_entry(txn, KEYS, sequence, record(sequence, 90), follows=True)
            assert blocks.get_entry(txn, KEYS, 9) == record(9, 90)
            *_, newest = blocks.unpack_row(3, memoryview(txn.get(KEYS.entry(3))))
            assert newest == (sequence, record(sequence, 90))


DAMAGES = st.tuples(
    st.sampled_from(["swallow", "length", "offset", "frames", "records"]), st.integers(0, 30), st.integers(-200, 200)
)


def damage(frames: Records, kind: str, at: int, by: int) -> bytes:
    """A block of frames, with one fault before its newest frame."""
    at %= len(frames) - 2
    (one, first), (other, second) = frames[at], frames[at + 1]
    changed, wrong = list(frames), dict[int, int]()
    if kind == "swallow":
        changed[at : at + 2] = [(one, first + struct.pack(">HH", other, len(second)) + second)]
    elif kind == "length":
        wrong = {at: max(0, len(first) + by)}
    elif kind == "offset":
        changed[at] = max(0, one + by), first
    elif kind == "frames":
        changed[at : at + 2] = [(other, second), (one, first)]
    else:
        changed[at : at + 2] = [(one, second), (other, first)]
    return block(changed, wrong)


@settings(max_examples=150)
@given(steps=st.lists(st.tuples(st.integers(SIZE_MIN, 400), st.integers(1, 3)), min_size=3, max_size=18), fault=DAMAGES)
def test_no_damage_changes_what_is_there(
    env: lmdb.Environment, steps: list[tuple[int, int]], fault: tuple[str, int, int]
) -> None:
    """Any fault in a block with holes: each entry reads as it was put, or the read is CORRUPT; none is missing."""
    sequences = list(itertools.accumulate((step for _, step in steps), initial=2))[1:]
    truth = {sequence: record(sequence, size) for sequence, (size, _) in zip(sequences, steps, strict=True)}
    txn = env.begin(write=True, buffers=True)
    try:
        txn.put(KEYS.entry(3), damage([(sequence - 3, each) for sequence, each in truth.items()], *fault))
        for sequence in range(3, sequences[-1] + 2):
            with suppress(Corrupt):
                found = blocks.get_entry(txn, KEYS, sequence)
                assert (unpack(found, sequence).record if found is not None else None) == truth.get(sequence)
            with suppress(Corrupt):
                read = {number: unpack(each, number).record for number, each in blocks.entries(txn, KEYS, sequence)}
                assert read == {number: each for number, each in truth.items() if number >= sequence}
    finally:
        txn.abort()
