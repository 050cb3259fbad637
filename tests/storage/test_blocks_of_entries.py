"""The danger: an entry that shares a row with others is read as one of them, or is lost when the row is shortened."""

from __future__ import annotations

from collections.abc import Iterator

import lmdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateward.storage.v1.journal_pb2 import EntryHeader
from stateward_sidecar.codec.seal import NONCE_BYTES
from stateward_sidecar.errors import Corrupt
from stateward_sidecar.storage import layout
from stateward_sidecar.store.thread import blocks

SIZE_MIN = 50  # of a record in these tests
KEYS, OTHER = layout.ThreadKeys(7), layout.ThreadKeys(8)


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> Iterator[lmdb.Environment]:
    with lmdb.open(str(tmp_path_factory.mktemp("records")), map_size=1 << 28, sync=False) as env:
        yield env


@pytest.fixture
def txn(env: lmdb.Environment) -> Iterator[lmdb.Transaction]:
    txn = env.begin(write=True, buffers=True)
    yield txn
    txn.abort()


def record(sequence: int, size: int) -> bytes:
    """A record with the header of an entry; nobody opens the rest."""
    for version in (0, 1):  # a header of one length more, because a longer number may take a byte more
        for rest in range(size - 40, size):
            head = EntryHeader(sequence=sequence, version=version, metadata_stored_bytes=rest).SerializeToString()
            if 6 + len(head) + NONCE_BYTES + rest == size:
                return (b"SJ\x01\x01" + len(head).to_bytes(2, "big") + head).ljust(size, b"r")
    raise AssertionError(size)


def all_of(txn: lmdb.Transaction, keys: layout.ThreadKeys = KEYS) -> dict[int, bytes]:
    found = list(blocks.entries(txn, keys, 1))
    assert [sequence for sequence, _ in found] == sorted({sequence for sequence, _ in found})
    return dict(found)


def rows(txn: lmdb.Transaction) -> list[int]:
    """The lengths of the rows."""
    return [len(value) for _, value in blocks.rows(txn, KEYS, 1)]


def test_small_entries_fill_pages(txn: lmdb.Transaction) -> None:
    """A hundred entries of 400 bytes take a twentieth as many rows, and each row is as long as two pages."""
    for sequence in range(1, 101):
        assert blocks.put_entry(txn, KEYS, sequence, record(sequence, 400))
    assert len(rows(txn)) == 5
    assert set(rows(txn)) == {blocks.FULL_BYTES}
    assert all_of(txn) == {sequence: record(sequence, 400) for sequence in range(1, 101)}


def test_a_block_takes_its_second_page_when_it_needs_it(txn: lmdb.Transaction) -> None:
    """A short thread does not pay for two pages."""
    lengths = []
    for sequence in range(1, 21):
        blocks.put_entry(txn, KEYS, sequence, record(sequence, 400))
        lengths.append(rows(txn)[-1])
    assert sorted(set(lengths)) == [413, 817, 4080, 8176]


@pytest.mark.parametrize("size", [2100, 2800, 3000, 4600, 5500, 7000, 9000])
def test_large_entries_fill_pages_too(txn: lmdb.Transaction, size: int) -> None:
    """Two pages have room for one or two of them, and a half or a third would stay empty. A block that is well filled
    does not grow, because each append writes it whole."""
    truth = {sequence: record(sequence, size) for sequence in range(1, 41)}
    written = 0
    for sequence, each in truth.items():
        assert blocks.put_entry(txn, KEYS, sequence, each, follows=sequence > 1)
        written += rows(txn)[-1]
    whole = sum(length + blocks.PAGE_HEADER_BYTES for length in rows(txn))
    assert whole % blocks.PAGE_BYTES == 0
    assert whole < 40 * size * 1.2
    assert written < 40 * size * 5.5
    assert max(rows(txn)) <= blocks.BLOCK_BYTES_MAX
    assert all_of(txn) == truth
    for sequence in range(1, 41, 2):
        truth[sequence] = record(sequence, 500)
        blocks.shrink_entry(txn, KEYS, sequence, truth[sequence])
    assert all_of(txn) == truth


def test_a_small_block_has_no_page_of_its_own(txn: lmdb.Transaction) -> None:
    """Thousands of threads with one short entry each do not take a page each."""
    blocks.put_entry(txn, KEYS, 1, record(1, 300))
    assert rows(txn)[0] < 320


@pytest.mark.parametrize("size", [blocks.RECORD_BYTES_MAX, blocks.RECORD_BYTES_MAX + 1, 70_000])
def test_a_large_entry_has_a_row_of_its_own(txn: lmdb.Transaction, size: int) -> None:
    """Between small ones, and nothing of it is changed."""
    for sequence, length in enumerate([300, size, 300, 300], 1):
        blocks.put_entry(txn, KEYS, sequence, record(sequence, length))
    assert all_of(txn) == {1: record(1, 300), 2: record(2, size), 3: record(3, 300), 4: record(4, 300)}
    assert len(rows(txn)) == 3
    assert blocks.get_entry(txn, KEYS, 2) == record(2, size)


def test_a_large_entry_that_was_cleared_keeps_its_row(txn: lmdb.Transaction) -> None:
    """It is small now. Entries behind it share a row of theirs."""
    for sequence in (1, 2, 3):
        blocks.put_entry(txn, KEYS, sequence, record(sequence, 30_000))
    for sequence in (1, 2):
        blocks.shrink_entry(txn, KEYS, sequence, record(sequence, 500))
    for sequence in (4, 5):
        assert blocks.put_entry(txn, KEYS, sequence, record(sequence, 500))
    assert not blocks.put_entry(txn, KEYS, 2, b"SJ\x01")
    blocks.shrink_entry(txn, KEYS, 3, record(3, 100))
    blocks.delete_entry(txn, KEYS, 1)
    sizes = {2: 500, 3: 100, 4: 500, 5: 500}
    assert all_of(txn) == {sequence: record(sequence, size) for sequence, size in sizes.items()}


def test_entries_that_are_cleared_give_their_pages_back(env: lmdb.Environment) -> None:
    """A prune clears many entries of a block in one transaction, in which LMDB keeps the pages of a row that it has
    written."""
    with env.begin(write=True, buffers=True) as txn:
        before = env.stat()["overflow_pages"]
        for sequence in range(1, 61):
            blocks.put_entry(txn, KEYS, sequence, record(sequence, 4600))
    with env.begin(write=True, buffers=True) as txn:
        for sequence in range(1, 61):
            blocks.shrink_entry(txn, KEYS, sequence, record(sequence, 160))
    with env.begin(write=True, buffers=True) as txn:
        assert env.stat()["overflow_pages"] - before <= len(rows(txn)) <= 15
        for sequence in range(1, 61):
            blocks.delete_entry(txn, KEYS, sequence)
    assert env.stat()["overflow_pages"] == before


def test_entries_of_other_threads_and_tables_are_not_seen(txn: lmdb.Transaction) -> None:
    """Not where a thread has no entries, and not before its first or after its last one."""
    blocks.put_entry(txn, OTHER, 5, record(5, 50))
    txn.put(KEYS.branch(b"b" * 16), b"a branch")
    txn.put(KEYS.request(b"r" * 8), b"a request")
    assert all_of(txn) == {}
    assert blocks.get_entry(txn, KEYS, 5) is None
    blocks.put_entry(txn, KEYS, 5, record(5, 60))
    assert [blocks.has_entry(txn, KEYS, sequence) for sequence in (1, 4, 5, 6, 1 << 40)] == [
        False,
        False,
        True,
        False,
        False,
    ]
    assert all_of(txn, OTHER) == {5: record(5, 50)}


def test_what_is_not_there_cannot_be_changed(txn: lmdb.Transaction) -> None:
    blocks.put_entry(txn, KEYS, 5, record(5, 60))
    for sequence in (4, 6):
        with pytest.raises(Corrupt):
            blocks.delete_entry(txn, KEYS, sequence)


def test_a_damaged_block_is_corrupt(txn: lmdb.Transaction) -> None:
    """Every wrong count, place and length in it, and every end that is missing: CORRUPT, or what was put."""
    put = {sequence: record(sequence, 90) for sequence in range(3, 9)}
    for sequence, each in put.items():
        blocks.put_entry(txn, KEYS, sequence, each)
    ((first, row),) = ((first, bytes(row)) for first, row in blocks.rows(txn, KEYS, 1))
    damaged = [row[:size] for size in range(1, len(row))]
    for place in [*range(2, 13), *range(103, 107), *range(9 + 5 * 94, 9 + 5 * 94 + 4)]:
        damaged += [row[:place] + bytes([row[place] ^ 1 << bit]) + row[place + 1 :] for bit in range(8)]
    found_corrupt = 0
    for each in damaged:
        txn.put(KEYS.entry(first), each)
        try:
            found = all_of(txn)
        except Corrupt:
            found_corrupt += 1
        else:
            assert set(found) <= {first} or all(found.get(s, r)[:3] == r[:3] for s, r in put.items())
    assert found_corrupt > len(damaged) // 2


def test_nothing_is_appended_to_a_damaged_block(txn: lmdb.Transaction) -> None:
    """Its head and its newest frame: an append at a wrong place would destroy entries, or lose the new one."""
    for sequence in range(3, 9):
        blocks.put_entry(txn, KEYS, sequence, record(sequence, 90))
    ((first, row),) = ((first, bytes(row)) for first, row in blocks.rows(txn, KEYS, 1))
    newest = 9 + 5 * 94
    for place in [*range(3, 9), *range(newest, newest + 4)]:
        for bit in range(8):
            damaged = row[:place] + bytes([row[place] ^ 1 << bit]) + row[place + 1 :]
            txn.put(KEYS.entry(first), damaged)
            with pytest.raises(Corrupt):
                blocks.put_entry(txn, KEYS, 9, record(9, 90))
            assert bytes(txn.get(KEYS.entry(first))) == damaged


PUT = {sequence: record(sequence, 90) for sequence in range(3, 9)}


def test_an_entry_follows_the_newest_one(txn: lmdb.Transaction) -> None:
    """The block was set back to an earlier copy of itself, is gone, or has later entries: nothing is put."""
    for sequence in range(3, 9):
        blocks.put_entry(txn, KEYS, sequence, PUT[sequence])
    for sequence in (8, 10, 11):
        with pytest.raises(Corrupt, match=f"does not end with entry {sequence - 1}"):
            blocks.put_entry(txn, KEYS, sequence, record(sequence, 90), follows=True)
    txn.delete(KEYS.entry(3))
    with pytest.raises(Corrupt):
        blocks.put_entry(txn, KEYS, 9, record(9, 90), follows=True)
    assert rows(txn) == []


def test_rows_do_not_overlap(txn: lmdb.Transaction) -> None:
    """An old copy of a block beside the block that has its last entries now: no entry is read twice."""
    txn.put(KEYS.entry(3), blocks.pack_row(3, list(PUT.items())))
    txn.put(KEYS.entry(7), blocks.pack_row(7, [(7, PUT[7]), (8, PUT[8]), (9, record(9, 90))]))
    with pytest.raises(Corrupt, match="in two rows"):
        all_of(txn)
    assert blocks.get_entry(txn, KEYS, 8) == PUT[8]


def test_a_block_keeps_its_key_as_long_as_it_can_count(txn: lmdb.Transaction) -> None:
    """Its first entries were removed. An entry that is too far from the key for a frame begins a new block."""
    key = KEYS.entry(1)
    for far in (blocks.SPAN_MAX, blocks.SPAN_MAX + 1):  # the newest entry that fits, and one more
        txn.put(key, blocks.pack_row(1, [(far, record(far, 90))]))
        assert blocks.put_entry(txn, KEYS, far + 1, record(far + 1, 90), follows=True)
        assert all_of(txn) == {far: record(far, 90), far + 1: record(far + 1, 90)}
        assert len(rows(txn)) == far - blocks.SPAN_MAX + 1
        assert blocks.get_entry(txn, KEYS, far - 1) is None
    # Between the key and the first entry: what is put there is found, and the rest has a key of its own.
    for sequence in (1, 40_000, 2):
        assert blocks.put_entry(txn, KEYS, sequence, record(sequence, 90))
    there = (1, 2, 40_000, far, far + 1)
    assert all_of(txn) == {sequence: record(sequence, 90) for sequence in there}
    assert not blocks.put_entry(txn, KEYS, far, record(far, 90))


def test_the_newest_entry_of_a_block_is_removed(txn: lmdb.Transaction) -> None:
    """The next one begins a block, and whoever says what it follows is refused."""
    for sequence in range(3, 9):
        blocks.put_entry(txn, KEYS, sequence, PUT[sequence])
    blocks.delete_entry(txn, KEYS, 8)
    with pytest.raises(Corrupt):
        blocks.put_entry(txn, KEYS, 9, record(9, 90), follows=True)
    assert blocks.put_entry(txn, KEYS, 9, record(9, 90))
    assert len(rows(txn)) == 2
    assert blocks.put_entry(txn, KEYS, 8, PUT[8])
    assert all_of(txn) == {**PUT, 9: record(9, 90)}


@pytest.mark.parametrize("end", [1023, 1024, 1025, 4079, 4080, 4081, 8175, 8176])
def test_a_block_that_just_fits_a_page(txn: lmdb.Transaction, end: int) -> None:
    """Its last entry makes it so long. A husk in its middle makes it shorter, and nothing is left of its zeros."""
    for sequence in range(3, 8):
        blocks.put_entry(txn, KEYS, sequence, record(sequence, 150))
    size = end - 9 - 5 * 154 - 4
    blocks.put_entry(txn, KEYS, 8, record(8, size))
    truth = {sequence: record(sequence, 150) for sequence in range(3, 8)} | {8: record(8, size)}
    assert rows(txn) == [end if end <= 1024 else 4080 if end <= 4080 else 8176]
    assert all_of(txn) == truth
    truth[5] = record(5, 60)
    blocks.shrink_entry(txn, KEYS, 5, truth[5])
    assert all_of(txn) == truth
    assert rows(txn) == [end - 90 if end - 90 <= 1024 else 4080 if end - 90 <= 4080 else 8176]
    truth[9] = record(9, 90)
    assert blocks.put_entry(txn, KEYS, 9, truth[9], follows=True)
    assert all_of(txn) == truth


SIZES = st.one_of(st.integers(SIZE_MIN, 700), st.integers(900, 1100), st.integers(3900, 4200), st.integers(8000, 8300))
SIZES = st.one_of(SIZES, st.integers(2500, 9000), st.integers(24_400, 24_700))
VERBS = st.sampled_from(["append", "append", "append", "skip", "before", "shrink", "delete", "again"])
STEPS = st.lists(st.tuples(VERBS, st.integers(0, 1 << 30), SIZES), max_size=60)


@settings(max_examples=150)
@given(steps=STEPS)
def test_whatever_is_done_each_entry_reads_as_it_was_put(
    env: lmdb.Environment, steps: list[tuple[str, int, int]]
) -> None:
    """Appends, holes, entries that come later than their followers, husks and removals, against a dictionary."""
    truth: dict[int, bytes] = {}
    txn = env.begin(write=True, buffers=True)
    try:
        for verb, dice, size in steps:
            there = sorted(truth)
            last = there[-1] if there else 10
            if verb in ("append", "skip"):
                sequence = last + (1 if verb == "append" else 2 + dice % 5)
                assert blocks.put_entry(txn, KEYS, sequence, record(sequence, size))
                truth[sequence] = record(sequence, size)
            elif verb == "before":
                sequence = 1 + dice % last
                assert blocks.put_entry(txn, KEYS, sequence, record(sequence, size)) is (sequence not in truth)
                truth.setdefault(sequence, record(sequence, size))
            elif there:
                sequence = there[dice % len(there)]
                if verb == "again":
                    assert not blocks.put_entry(txn, KEYS, sequence, b"SJ\x01")
                elif verb == "shrink":
                    truth[sequence] = record(sequence, max(SIZE_MIN, size % len(truth[sequence])))
                    blocks.shrink_entry(txn, KEYS, sequence, truth[sequence])
                else:
                    del truth[sequence]
                    blocks.delete_entry(txn, KEYS, sequence)
            assert all_of(txn) == truth
        for sequence in range(1, max(truth, default=1) + 3):
            assert blocks.get_entry(txn, KEYS, sequence) == truth.get(sequence)
            assert dict(blocks.entries(txn, KEYS, sequence)) == {s: r for s, r in truth.items() if s >= sequence}
        assert all(
            len(value) <= blocks.BLOCK_BYTES_MAX or value[:2] == b"SJ" for _, value in blocks.rows(txn, KEYS, 1)
        )
    finally:
        txn.abort()
