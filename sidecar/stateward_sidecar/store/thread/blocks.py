"""Where journal entries lie: several in a row, as many as fill two pages, or more if they are large.

Rows that come between others leave LMDB's pages half empty, because a full page is divided in the middle. So
consecutive entries share a row, a block, which grows until two pages are full. If the next entry does not fit and more
than an eighth of the pages is empty, the block grows on, up to six pages. Its key has the sequence of its first entry.
LMDB gives a row of more than 2,030 bytes whole pages of its own. A block above 1 KiB has such pages at once, so that it
does not divide the pages of other rows while it grows. An entry that is too large for a block has a row of its own.

    block   "SJ" ‖ u8 2 ‖ u16 newest sequence − first ‖ u16 place of the newest frame ‖ u16 where it ends
            ‖ for each entry a frame: u16 sequence − first ‖ u16 length ‖ record ‖ zeros

The third byte of a record is 1, so it tells a block from a record. Nothing is appended to a block unless its head and
its frames agree: a new entry behind a wrong length could not be found again. The frames are not sealed. So a missing
entry counts as missing only if the records beside the gap belong to their frames.
"""

from __future__ import annotations

import struct
from bisect import bisect
from collections.abc import Iterator, Sequence

import lmdb

from stateward_sidecar.codec.entry import unpack
from stateward_sidecar.errors import Corrupt
from stateward_sidecar.storage import layout

# A value with this many bytes less than some pages fills them.
PAGE_BYTES, PAGE_HEADER_BYTES = 4096, 16
FULL_BYTES = 2 * PAGE_BYTES - PAGE_HEADER_BYTES
# Entries of half a page or more leave much of two pages empty: messages that come twenty in a save left 23 %, now 7 %.
# Each append writes the whole block, so a well filled one does not grow.
BLOCK_BYTES_MAX, EMPTY_SHARE = 6 * PAGE_BYTES - PAGE_HEADER_BYTES, 8
SMALL_BYTES_MAX = 1024  # smaller blocks lie beside other rows
BLOCK = b"SJ\x02"
_BLOCK = struct.Struct(">3sHHH")
_FRAME = struct.Struct(">HH")
RECORD_BYTES_MAX = BLOCK_BYTES_MAX - _BLOCK.size - _FRAME.size
SPAN_MAX = 0xFFFF

Records = list[tuple[int, bytes]]  # sequence and record, ascending


def has_entry(txn: lmdb.Transaction, keys: layout.ThreadKeys, sequence: int) -> bool:
    """Returns whether a journal entry is on this disk. Raises Corrupt."""
    return get_entry(txn, keys, sequence) is not None


def get_entry(txn: lmdb.Transaction, keys: layout.ThreadKeys, sequence: int) -> bytes | None:
    """Returns the record of a journal entry; None if there is none. Raises Corrupt."""
    found = _row_at(txn, keys, sequence)
    if found is None:
        return None
    first, value = found
    if not _is_block(value):
        return bytes(value) if first == sequence else None
    last, place, end = _newest(first, value)
    if sequence >= last:
        return bytes(value[place + _FRAME.size : end]) if sequence == last else None
    wanted, at = sequence - first, _BLOCK.size
    while at < place:
        offset, length = _FRAME.unpack_from(value, at)
        at += _FRAME.size + length
        if offset >= wanted or at > place:
            if offset == wanted and at <= place:
                return bytes(value[at - length : at])
            break
    _check_gap(first, value, sequence)
    return None


def entries(txn: lmdb.Transaction, keys: layout.ThreadKeys, first: int) -> Iterator[tuple[int, bytes]]:
    """Yields the entries from a sequence on: sequence and record. Raises Corrupt."""
    found = _row_at(txn, keys, first)
    has_entry(txn, keys, first)  # raises if damage hides the first one; ``_check_gap`` says how
    start, last = keys.entry(found[0] if found is not None else first), 0
    for key, value in rows_from(txn, start, keys.all_of(b"J")):
        for sequence, record in unpack_row(layout.tail_number(key), value):
            if sequence <= last:
                raise twice(sequence)
            last = sequence
            if sequence >= first:
                yield sequence, record


def rows(txn: lmdb.Transaction, keys: layout.ThreadKeys, first: int) -> Iterator[tuple[int, memoryview]]:
    """Yields the rows that begin at a sequence or later: the sequence at which each begins, and its value."""
    return ((layout.tail_number(key), value) for key, value in rows_from(txn, keys.entry(first), keys.all_of(b"J")))


def put_entry(
    txn: lmdb.Transaction, keys: layout.ThreadKeys, sequence: int, record: bytes, *, follows: bool = False
) -> bool:
    """Puts an entry. Returns False, and puts nothing, if the thread has an entry of this sequence.

    ``follows``: the entry before it must be here, and nothing later. Raises Corrupt, also if that is not so.
    """
    found, last = _row_at(txn, keys, sequence), 0
    if found is not None:
        first, value = found
        last, place, end = _newest(first, value)
    if follows and (found is None or last != sequence - 1):
        raise Corrupt(f"the journal does not end with entry {sequence - 1}")
    if found is not None:
        if sequence <= last:
            return _put_between(txn, keys, first, value, sequence, record)
        size = end + _FRAME.size + len(record)
        is_block = place > 0
        if sequence == last + 1 and is_block and _may_grow(value, end, size) and sequence - first <= SPAN_MAX:
            _places(first, value, last, place)  # raises if the new entry could not be found again
            head, frame = _BLOCK.pack(BLOCK, sequence - first, end, size), _FRAME.pack(sequence - first, len(record))
            txn.put(keys.entry(first), _padded(b"".join((head, value[_BLOCK.size : end], frame, record))))
            return True
    txn.put(keys.entry(sequence), pack_row(sequence, [(sequence, record)]))
    return True


def shrink_entry(txn: lmdb.Transaction, keys: layout.ThreadKeys, sequence: int, record: bytes) -> None:
    """Replaces an entry by a shorter record. Raises Corrupt if there is no such entry."""
    _change(txn, keys, sequence, [(sequence, record)])


def delete_entry(txn: lmdb.Transaction, keys: layout.ThreadKeys, sequence: int) -> None:
    """Removes an entry. Raises Corrupt if there is no such entry."""
    _change(txn, keys, sequence, [])


def rows_from(txn: lmdb.Transaction, start: bytes, prefix: bytes) -> Iterator[tuple[bytes, memoryview]]:
    """Yields the rows with a prefix from a key on, in ascending order. A value is valid until the next step."""
    cursor = txn.cursor()
    if cursor.set_range(start):
        for key, value in cursor:
            if key[: len(prefix)] != prefix:
                return
            yield bytes(key), memoryview(value)


def _row_at(txn: lmdb.Transaction, keys: layout.ThreadKeys, sequence: int) -> tuple[int, memoryview] | None:
    """Returns the last row that begins at or before an entry: its first sequence, and its value."""
    key, cursor = keys.entry(sequence), txn.cursor()
    if cursor.set_range(key) and bytes(cursor.key()) == key:
        return sequence, memoryview(cursor.value())
    is_there = cursor.prev() if cursor.key() else cursor.last()
    first = keys.sequence_of(cursor.key()) if is_there else None
    return (first, memoryview(cursor.value())) if first is not None else None


def _is_block(value: memoryview) -> bool:
    return value[: len(BLOCK)] == BLOCK


def _newest(first: int, value: memoryview) -> tuple[int, int, int]:
    """Returns the sequence of the newest entry in a row, where its frame begins (0 = the row is no block), and where it
    ends. Raises Corrupt."""
    if value[: len(BLOCK)] != BLOCK:
        return first, 0, len(value)
    if len(value) >= _BLOCK.size:
        _, span, place, end = _BLOCK.unpack_from(value)
        if _BLOCK.size <= place <= end - _FRAME.size and end <= len(value):
            offset, length = _FRAME.unpack_from(value, place)
            if offset == span and place + _FRAME.size + length == end:
                return first + span, place, end
    raise _unreadable(first)


def unpack_row(first: int, value: memoryview) -> Iterator[tuple[int, bytes]]:
    """Yields the entries of a row. Raises Corrupt."""
    if not _is_block(value):
        yield first, bytes(value)
        return
    for sequence, start, end in _frames(first, value):
        yield sequence, bytes(value[start:end])


def _frames(first: int, value: memoryview) -> Iterator[tuple[int, int, int]]:
    """Yields the frames of a block: sequence, and where the record begins and ends. Raises Corrupt."""
    last, place, newest_end = _newest(first, value)
    yield from _places(first, value, last, place)
    yield last, place + _FRAME.size, newest_end


def _places(first: int, value: memoryview, last: int, place: int) -> list[tuple[int, int, int]]:
    """Returns the frames of a block before its newest one, which has sequence ``last`` and begins at ``place``. A list,
    because each save asks for it, and a generator would cost a call for each entry. Raises Corrupt."""
    found, sequence, at = list[tuple[int, int, int]](), first - 1, _BLOCK.size
    while at < place:
        offset, length = _FRAME.unpack_from(value, at)
        start, at = at + _FRAME.size, at + _FRAME.size + length
        if not sequence < first + offset < last or at > place:
            raise _unreadable(first)
        sequence = first + offset
        found.append((sequence, start, at))
    return found


def _check_gap(first: int, value: memoryview, sequence: int) -> None:
    """Raises Corrupt unless a block lacks an entry. A wrong length or sequence in a frame beside it could hide it."""
    found = list(unpack_row(first, value))
    at = bisect(found, (sequence, b""))
    for number, record in found[max(at - 1, 0) : at + 1]:
        unpack(record, number)


def twice(sequence: int) -> Corrupt:
    """Returns the error for an entry that comes again, or after a later one: two rows overlap."""
    return Corrupt(f"journal entry {sequence} is in two rows")


def _unreadable(first: int) -> Corrupt:
    return Corrupt(f"the block that begins with journal entry {first} cannot be read")


def _may_grow(value: memoryview, end: int, size: int) -> bool:
    """Whether a block that ends at a place in its row takes an entry that makes it this long."""
    return size <= FULL_BYTES or (size <= BLOCK_BYTES_MAX and (len(value) - end) * EMPTY_SHARE > len(value))


def pack_row(first: int, found: Sequence[tuple[int, bytes]]) -> bytes:
    """Returns the row of some entries."""
    if len(found) == 1 and len(found[0][1]) > RECORD_BYTES_MAX:
        return found[0][1]
    frames = [_FRAME.pack(sequence - first, len(record)) + record for sequence, record in found]
    end = _BLOCK.size + sum(map(len, frames))
    return _padded(_BLOCK.pack(BLOCK, found[-1][0] - first, end - len(frames[-1]), end) + b"".join(frames))


def _padded(block: bytes) -> bytes:
    if len(block) <= SMALL_BYTES_MAX:
        return block
    pages = -(-(len(block) + PAGE_HEADER_BYTES) // PAGE_BYTES)
    return block.ljust(pages * PAGE_BYTES - PAGE_HEADER_BYTES, b"\0")


def _put_between(
    txn: lmdb.Transaction, keys: layout.ThreadKeys, first: int, value: memoryview, sequence: int, record: bytes
) -> bool:
    """Puts an entry into the range of a block. The entries after it move to a block of their own."""
    found: Records = list(unpack_row(first, value))
    if any(number == sequence for number, _ in found):
        return False
    before = [each for each in found if each[0] < sequence]
    after = [each for each in found if each[0] > sequence]
    txn.delete(keys.entry(first))
    for part in (before, [(sequence, record)], after):
        if part:
            txn.put(keys.entry(part[0][0]), pack_row(part[0][0], part))
    return True


def _change(txn: lmdb.Transaction, keys: layout.ThreadKeys, sequence: int, to: Records) -> None:
    """Puts ``to`` in the place of an entry."""
    row = _row_at(txn, keys, sequence)
    found: Records = list(unpack_row(*row)) if row is not None else []
    if row is None or all(number != sequence for number, _ in found):
        raise Corrupt(f"journal entry {sequence} is missing")
    first = row[0]
    kept = [each for each in found if each[0] < sequence] + to + [each for each in found if each[0] > sequence]
    packed = pack_row(first, kept) if kept else b""
    if len(packed) < len(row[1]):
        # LMDB keeps all pages of a row that it has written in this transaction, also for a shorter value.
        txn.delete(keys.entry(first))
    if kept:
        txn.put(keys.entry(first), packed)
