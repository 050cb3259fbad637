"""The danger: a changed, swapped or old row in the store is read as the present, or as another thread's data, and
Verify does not name it."""

from __future__ import annotations

from itertools import combinations

import pytest
from tests.faults.rig import HEALTHY, Judge, Made, kind, read_rows, victims
from tests.storage.test_blocks_hidden_entries import damage

from stateward.storage.v1.journal_pb2 import EntryHeader
from stateward_sidecar.errors import StartError
from stateward_sidecar.storage.layout import tail_number
from stateward_sidecar.store.thread.blocks import pack_row, unpack_row

# Some hundred restarts, and six times as many for `soak`.
pytestmark = pytest.mark.slow

KINDS = [
    "D", "E", "G", "K", "L", "N", "S", "TA", "TB", "TC", "TE", "TG", "TI", "TJ", "TP", "TR", "TS", "TV", "TX", "U", "W",
]  # fmt: skip
# Clear records of the whole store: where damage is felt at all, the daemon does not start.
STORE_KINDS = ["Mformat", "Mthread"]
# Tables of which a row that is gone cannot be missed by who looks for it: Verify misses it.
UNMISSED = {"N": "THREAD_NOT_FOUND", "TC": "VERSION_NOT_FOUND", "TR": "VERSION_MISMATCH"}


def test_the_data_have_rows_of_every_kind(judge: Judge) -> None:
    """What is not in the data is not tested: a new kind of row must come into the rig."""
    assert {kind(key) for key in judge.rows} == {*KINDS, *STORE_KINDS}


SHORT_BYTES = 24  # rows up to here are fields in clear, mostly: each byte may be read by somebody


def places(which: str, size: int, step: int = 5) -> list[int]:
    """Bytes that are hit: all sorts of header fields, and ciphertext, and the tag.

    With wide steps, each kind begins them elsewhere: rows that are sealed have one layout, and the kinds together hit
    each byte of it.
    """
    begin = 5 if size <= SHORT_BYTES or step == 5 else 5 + 4 * KINDS.index(which) % step
    first = range(min(size, 5)) if begin == 5 else [each for each in range(5) if each == 4 or (each + begin) % 2]
    return sorted({*first, *range(begin, min(size, 80), step), size // 2, size - 1})


@pytest.fixture(params=[1, pytest.param(6, marks=[pytest.mark.soak, pytest.mark.timeout(900)])])
def many(request: pytest.FixtureRequest) -> int:
    """How many rows of a kind are damaged beside the last one; each costs a restart for each place in it."""
    return int(request.param)


def some(judge: Judge, which: str, count: int = 6) -> list[tuple[bytes, bytes]]:
    """Rows of a kind, from the first to the last, at most about so many."""
    rows = [(key, value) for key, value in judge.rows.items() if kind(key) == which]
    return rows[:: -(-len(rows) // count)] + rows[-1:]


@pytest.mark.parametrize("which", KINDS)
def test_a_flipped_bit_is_found(made: Made, judge: Judge, which: str, many: int) -> None:
    """One bit anywhere in a row: its thread reads right or is CORRUPT by name; what is felt, Verify finds."""
    for number, (key, value) in enumerate(some(judge, which, many)):
        # Rows of a kind have one layout, so the quick run looks less closely at the second one.
        step = 5 if many > 1 or len(value) <= SHORT_BYTES else 15
        for place in places(which, len(value), step)[:: 3 if number and many == 1 else 1]:
            changed = bytearray(value)
            changed[place] ^= 1 << (place * 5 + 1) % 8
            judged = judge.judge(victims(made, key, value), {key: bytes(changed)})
            assert judged.faults == [], (key, place)
            assert judged.findings or not judged.is_felt, (key, place)


@pytest.mark.parametrize("which", KINDS)
def test_a_row_of_another_length_is_found(made: Made, judge: Judge, which: str, many: int) -> None:
    """A row that lost its end, or has more than it had, is found as a flipped bit is."""
    for number, (key, value) in enumerate(some(judge, which, many)):
        cuts = [value[:size] for size in sorted({0, 1, len(value) // 2, len(value) - 1}) if size < len(value)]
        # The quick run looks less closely at the second row, as above.
        for changed in (*cuts, value + b"\0")[:: 3 if number and many == 1 else 1]:
            judged = judge.judge(victims(made, key, value), {key: changed})
            assert judged.faults == [], (key, len(value), len(changed))
            assert judged.findings or not judged.is_felt, (key, len(value), len(changed))


@pytest.mark.parametrize("which", KINDS)
def test_swapped_rows_are_found(made: Made, judge: Judge, which: str, many: int) -> None:
    """Two rows of one kind that changed places, of two threads or two versions, never show one for the other."""
    rows = some(judge, which)
    # The quick run swaps neighbours, also the last with the first: of one thread, and of two.
    pairs = list(combinations(rows, 2)) if many > 1 else list(zip(rows, rows[1:] + rows[:1], strict=True))
    for (key, value), (other, theirs) in pairs:
        if value == theirs:
            continue
        damaged = victims(made, key, value) | victims(made, other, theirs)
        judged = judge.judge(damaged, {key: theirs, other: value})
        assert judged.faults == [], (key, other)
        assert judged.findings or not judged.is_felt, (key, other)


@pytest.mark.parametrize("which", [each for each in KINDS if each != "D"])
def test_a_row_that_is_gone_is_found(made: Made, judge: Judge, which: str, many: int) -> None:
    """A lost row is CORRUPT for who reads it; where only an index knew of it, Verify finds that."""
    for key, value in some(judge, which, 16 if many > 1 else 8):
        damaged = victims(made, key, value)
        judged = judge.judge(damaged, {key: None})
        allowed = UNMISSED.get(which)
        assert [fault for fault in judged.faults if not (allowed and f": {allowed} instead of" in fault)] == [], key
        assert judged.findings or not judged.is_felt, key


@pytest.mark.parametrize("which", KINDS)
def test_an_older_row_is_found(made: Made, judge: Judge, which: str, many: int) -> None:
    """A row that held something else before, or was there before, put back alone, is never taken for the present."""
    older = [(key, value) for key, values in made.older.items() if kind(key) == which for value in values]
    # Three threads lived the same steps, of other lengths: the quick run takes every other step of each, and the last.
    for key, value in older if many > 1 else older[(len(older) + 1) % 2 :: 2]:
        judged = judge.judge(victims(made, key, judge.rows.get(key, value)), {key: value})
        assert judged.faults == [], (key, key in judge.rows)
        assert judged.findings or not judged.is_felt, (key, key in judge.rows)


@pytest.mark.parametrize("which", STORE_KINDS)
def test_damaged_records_of_the_store_do_no_harm(judge: Judge, which: str) -> None:
    """The clear records: the daemon refuses to start, or everything reads as before."""
    for key, value in judge.rows.items():
        for place in range(len(value)) if kind(key) == which else ():
            changed = bytearray(value)
            changed[place] ^= 1 << place * 7 % 8
            try:
                judged = judge.judge(set(), {key: bytes(changed)})
            except StartError:
                continue
            assert judged.faults == [], (key, place)


@pytest.mark.parametrize("fault", ["swallow", "offset"])
def test_a_wrong_frame_is_found(made: Made, judge: Judge, fault: str) -> None:
    """A fault before the newest entry of a block: no other entry is read for one that it hides, and Verify finds it."""
    tried = 0
    for key, value in judge.rows.items():
        first = tail_number(key) if kind(key) == "TJ" else 0
        found = list(unpack_row(first, memoryview(value))) if first else []
        for at in range(0, len(found) - 2, 4):
            changed = damage([(sequence - first, record) for sequence, record in found], fault, at, 3)
            judged = judge.judge(victims(made, key, value), {key: changed})
            assert judged.faults == [], (key, at)
            assert judged.findings or not judged.is_felt, (key, at)
            tried += 1
    assert tried > 4


def test_a_parent_that_leads_round_in_a_circle_is_found(made: Made, judge: Judge) -> None:
    """The parent in an entry's clear header is believed by nobody: a circle ends in CORRUPT, not in endless reading."""
    tried = 0
    entries = [
        (key, value, sequence, record)
        for key, value in judge.rows.items()
        if kind(key) == "TJ"
        for sequence, record in unpack_row(tail_number(key), memoryview(value))
    ]
    for key, value, sequence, record in entries:
        length = int.from_bytes(record[4:6], "big")
        header = EntryHeader.FromString(record[6 : 6 + length])
        if not header.version or header.version in (1, 2, 3):
            continue
        header.parent_version = header.version + 1
        head = header.SerializeToString()
        changed = record[:4] + len(head).to_bytes(2, "big") + head + record[6 + length :]
        row = [(each, changed if each == sequence else old) for key_, _, each, old in entries if key_ == key]
        judged = judge.judge(victims(made, key, value), {key: pack_row(tail_number(key), row)})
        assert judged.faults == [], key
        assert judged.findings
        tried += 1
    assert tried > 8


def test_a_thread_without_head_is_not_cleared_away(made: Made, judge: Judge) -> None:
    """A start removes unfinished copies; a thread of which only the head is lost is damaged, and its journal stays."""
    for key, value in judge.rows.items():
        if kind(key) != "TA" or victims(made, key, value) == {HEALTHY}:
            continue
        judge.judge(victims(made, key, value), {key: None})  # opens, recovers, closes
        left = {row for row in read_rows(judge.scratch) if row[:5] == key[:5]}
        assert left == {row for row in judge.rows if row[:5] == key[:5]} - {key}
