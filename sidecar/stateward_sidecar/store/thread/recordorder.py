"""The records of a thread in the order of their keys, in memory.

Rows lie under hashes, so the order is made of all rows when a list first asks for it. Each commit makes a new order of
the last one. An order never changes, so a reader walks through one without a lock. It belongs to a transaction if its
sum is that of the thread's head there.

The items are in chunks, so that a commit copies one chunk and the list of the chunks.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from stateward.storage.v1.head_pb2 import RecordRow

# Objects and places in a list, for each record.
ITEM_OVERHEAD_BYTES = 320
# A chunk of more than twice as many items is divided.
CHUNK = 256
# How many orders are kept. A page needs the order of its transaction, which may be some commits old.
KEPT = 8
_LAST_CHARACTER = "\U0010ffff"


class Item(NamedTuple):
    """What lists know of a record without opening its row."""

    key: str
    revision: int
    expire_time_us: int
    row_key: bytes


@dataclass(frozen=True, slots=True)
class OrderChange:
    """A record as a commit leaves it; without an item it is deleted."""

    key: str
    item: Item | None

    @classmethod
    def put(cls, row_key: bytes, row: RecordRow) -> OrderChange:
        """A record that was written."""
        return cls(row.facts.key, item_of(row_key, row))

    @classmethod
    def gone(cls, key: str) -> OrderChange:
        """A record that was deleted."""
        return cls(key, None)


def item_of(row_key: bytes, row: RecordRow) -> Item:
    """Returns the item of a row."""
    return Item(row.facts.key, row.facts.revision, row.facts.expire_time_us, row_key)


_key = attrgetter("key")
Chunk = list[Item]


class RecordOrder:
    """The items in the order of their keys. Immutable."""

    __slots__ = ("_chunks", "_firsts", "count", "record_sum", "text_bytes")

    def __init__(self, items: Iterable[Item], record_sum: bytes) -> None:
        found = sorted(items)
        self.record_sum = record_sum
        self.count = len(found)
        self.text_bytes = sum(len(item.key) for item in found)
        self._chunks = _divided(found)
        self._firsts = [chunk[0].key for chunk in self._chunks]  # the key of each chunk's first item

    @property
    def size_bytes(self) -> int:
        """About how many bytes it takes in memory."""
        return self.text_bytes + ITEM_OVERHEAD_BYTES * self.count

    def changed(self, changes: Iterable[OrderChange], record_sum: bytes) -> RecordOrder:
        """Returns the order after a commit. If the commit changed a record several times, the last change counts."""
        by_chunk = dict[int, dict[str, Item | None]]()
        for each in changes:
            at = max(bisect_right(self._firsts, each.key) - 1, 0)
            by_chunk.setdefault(at, {})[each.key] = each.item
        made = object.__new__(RecordOrder)
        made.record_sum, made.count, made.text_bytes = record_sum, self.count, self.text_bytes
        made._chunks, made._firsts = self._chunks.copy(), self._firsts.copy()
        for at in sorted(by_chunk, reverse=True):  # from the end, so that the numbers of the others stay
            made._change(at, by_chunk[at])
        return made

    def _change(self, at: int, changes: dict[str, Item | None]) -> None:
        """Replaces a chunk."""
        chunk = self._chunks[at].copy() if self._chunks else []
        for key, item in changes.items():
            place = bisect_left(chunk, key, key=_key)
            is_there = place < len(chunk) and chunk[place].key == key
            chunk[place : place + is_there] = [item] if item is not None else []
            step = (item is not None) - is_there
            self.count += step
            self.text_bytes += step * len(key)
        end = at + 1
        if len(chunk) < CHUNK // 4 and end < len(self._chunks):  # else deletions could leave a chunk for each record
            chunk += self._chunks[end]
            end += 1
        made = _divided(chunk)
        self._chunks[at:end] = made
        self._firsts[at:end] = [each[0].key for each in made]

    def walk(self, prefix: str, after: str | None = None) -> Iterator[Item]:
        """Yields the items whose keys have a prefix, in order. ``after``: only those behind this key."""
        start, end = prefix if after is None else after, end_of(prefix)
        at = max(bisect_right(self._firsts, start) - 1, 0)
        find, until = bisect_left if after is None else bisect_right, len(self._chunks)
        if end is not None:
            until = bisect_left(self._firsts, end)
        for number in range(at, until):
            chunk = self._chunks[number]
            begin = find(chunk, start, key=_key) if number == at else 0
            stop = bisect_left(chunk, end, key=_key) if end is not None and number == until - 1 else len(chunk)
            yield from chunk[begin:stop]


@dataclass(frozen=True, slots=True)
class RecordOrders:
    """The orders that the last commits left, the newest last."""

    recent: tuple[RecordOrder, ...]

    @property
    def newest(self) -> RecordOrder:
        return self.recent[-1]

    @property
    def size_bytes(self) -> int:
        """About how many bytes they take in memory. They share all chunks that no commit changed."""
        small = 2 * CHUNK * 8 + 16 * len(self.newest._chunks)
        return self.newest.size_bytes + (len(self.recent) - 1) * min(self.newest.size_bytes, small)

    def find(self, record_sum: bytes) -> RecordOrder | None:
        """Returns the order with a sum; None if there is none."""
        return next((each for each in reversed(self.recent) if each.record_sum == record_sum), None)

    def changed(self, changes: Iterable[OrderChange], record_sum: bytes) -> RecordOrders:
        """Returns the orders after a commit."""
        return RecordOrders((*self.recent[1 - KEPT :], self.newest.changed(changes, record_sum)))


def _divided(items: Sequence[Item]) -> list[Chunk]:
    if len(items) <= 2 * CHUNK:
        return [list(items)] if items else []
    return [list(items[at : at + CHUNK]) for at in range(0, len(items), CHUNK)]


def end_of(prefix: str) -> str | None:
    """Returns the first text that is greater than all texts with a prefix; None if there is none."""
    trimmed = prefix.rstrip(_LAST_CHARACTER)
    if not trimmed:
        return None
    last = ord(trimmed[-1]) + 1
    if last == 0xD800:  # no text has a surrogate
        last = 0xE000
    return trimmed[:-1] + chr(last)
