"""The records of a thread in the order of their keys, in memory.

Rows lie under hashes, so the order is made of all rows when a list first asks for it. Commits change it in place from
then on. It is true as long as its sum is that of the thread's head: a commit that finds another sum drops the order.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from stateward.storage.v1.head_pb2 import RecordRow

# Objects, tuples and a place in the dict and the list, for each record.
ITEM_OVERHEAD_BYTES = 320
# More changes at once are merged into the list as a whole.
ONE_BY_ONE_MAX = 32
# How many keys one look takes out of the list.
CHUNK = 256
_LAST_CHARACTER = "\U0010ffff"


class Item(NamedTuple):
    """What lists know of a record without opening its row."""

    revision: int
    expire_time_us: int
    row_key: bytes


@dataclass(frozen=True, slots=True)
class OrderChange:
    """A record as a commit leaves it; without an item it is deleted."""

    key: str
    item: Item | None

    @classmethod
    def put(cls, key: str, row_key: bytes, row: RecordRow) -> OrderChange:
        """A record that was written."""
        return cls(key, item_of(row_key, row))

    @classmethod
    def gone(cls, key: str) -> OrderChange:
        """A record that was deleted."""
        return cls(key, None)


def item_of(row_key: bytes, row: RecordRow) -> Item:
    """Returns the item of a row."""
    return Item(row.facts.revision, row.facts.expire_time_us, row_key)


class RecordOrder:
    """The keys in order, with an item for each. Safe for several threads; only one changes it."""

    def __init__(self, items: dict[str, Item], record_sum: bytes) -> None:
        self.record_sum = record_sum
        self.items = items
        self._keys = sorted(items)
        self._lock = threading.Lock()
        self._text_bytes = sum(map(len, self._keys))

    @property
    def size_bytes(self) -> int:
        """About how many bytes it takes in memory."""
        return self._text_bytes + ITEM_OVERHEAD_BYTES * len(self.items)

    def change(self, changes: Iterable[OrderChange], record_sum: bytes) -> None:
        """Takes over what a commit changed."""
        with self._lock:
            added, removed = list[str](), set[str]()
            for each in changes:
                if each.item is not None:
                    if each.key not in self.items:
                        added.append(each.key)
                    self.items[each.key] = each.item
                elif self.items.pop(each.key, None) is not None:
                    removed.add(each.key)
            self._remove(removed)
            self._add(added)
            self._text_bytes += sum(map(len, added)) - sum(map(len, removed))
            self.record_sum = record_sum

    def _add(self, keys: list[str]) -> None:
        if len(keys) > ONE_BY_ONE_MAX:
            self._keys += keys
            self._keys.sort()  # two sorted runs, which sort() merges
        else:
            for key in keys:
                insort(self._keys, key)

    def _remove(self, keys: set[str]) -> None:
        if len(keys) > ONE_BY_ONE_MAX:
            self._keys = [key for key in self._keys if key not in keys]
        else:
            for key in keys:
                del self._keys[bisect_left(self._keys, key)]

    def walk(self, prefix: str, after: str | None = None) -> Iterator[tuple[str, Item]]:
        """Yields the records whose keys have a prefix, in order. ``after``: only those behind this key.

        Other threads may change the order meanwhile. A record that is there all the time is yielded once.
        """
        end = end_of(prefix)
        while True:
            with self._lock:
                at = bisect_left(self._keys, prefix) if after is None else bisect_right(self._keys, after)
                until = bisect_left(self._keys, end) if end is not None else len(self._keys)
                chunk = self._keys[at : min(at + CHUNK, until)]
            for key in chunk:
                item = self.items.get(key)
                if item is not None:
                    yield key, item
            if len(chunk) < CHUNK:
                return
            after = chunk[-1]

    def under(self, prefix: str) -> list[tuple[str, Item]]:
        """Returns all records whose keys have a prefix, in order."""
        end = end_of(prefix)
        with self._lock:
            until = bisect_left(self._keys, end) if end is not None else len(self._keys)
            keys = self._keys[bisect_left(self._keys, prefix) : until]
        items = self.items
        return [(key, item) for key in keys if (item := items.get(key)) is not None]


def end_of(prefix: str) -> str | None:
    """Returns the first text that is greater than all texts with a prefix; None if there is none."""
    trimmed = prefix.rstrip(_LAST_CHARACTER)
    if not trimmed:
        return None
    last = ord(trimmed[-1]) + 1
    if last == 0xD800:  # no text has a surrogate
        last = 0xE000
    return trimmed[:-1] + chr(last)
