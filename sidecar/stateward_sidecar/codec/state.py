"""A state in memory. It is immutable, shares unchanged parts with other states, and is kept as wire bytes.

    StateTree ─ slots    name → serialized Value
              ├ logs     name → LogState ─ Entries, a view of a shared list of framed values
              └ retired  name → the index the next entry of a deleted log gets

The entries of a log have the contiguous indexes [first_index, next_index). An index that is deleted, or trimmed at the
start, is never used again. A trim raises ``first_index``. A deletion retires the log's name with its ``next_index``, at
which a later log of that name begins. A cut from the end frees the cut indexes for reuse and sets
``rewritten_version``, so that a reader that folded entries starts again. For the same reason a log that is made under a
retired name begins with ``rewritten_version`` set.

A *framed* value is one element of ``Log.entries`` on the wire: tag, varint length, serialized Value. Joined frames are
a log, and a whole state is one join with one copy of its bytes (1 MB in 2,000 entries: 0.1 ms; if the bytes of each log
are joined first, 1 ms, most of it page faults).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import overload

from stateward.v1.state_pb2 import State

# A view that keeps more dropped entries than it shows, and more than this, is copied. Otherwise a window that moves
# along a log would keep every entry that it ever showed.
_COMPACT_SLACK_ENTRIES = 64
# To find the end of a shared list and to grow it are two steps. Without the lock, two threads that append to one view
# could both take its end.
_GROWING = threading.Lock()
_ONE_BYTE = tuple(bytes((number,)) for number in range(128))
_MEDIA_TYPE_TAG = 0x0A
_DATA_TAG = 0x12


class Entries:
    """The framed values of a log, oldest first: an immutable view of a list that later views share.

    An append to the view that ends where its list ends grows the list, because older views do not read past their own
    end. An append to any other view copies the pointers first. ``size_bytes`` is the sum of the frames' lengths.
    """

    __slots__ = ("_items", "_start", "_stop", "size_bytes")

    def __init__(self, items: list[bytes], start: int, stop: int, size_bytes: int) -> None:
        self._items = items
        self._start = start
        self._stop = stop
        self.size_bytes = size_bytes

    @classmethod
    def of(cls, values: Iterable[bytes]) -> Entries:
        """Makes entries of serialized Values."""
        items = [frame(value) for value in values]
        return cls(items, 0, len(items), sum(map(len, items)))

    def __len__(self) -> int:
        return self._stop - self._start

    def __iter__(self) -> Iterator[bytes]:
        return iter(self[:])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Entries):
            return NotImplemented
        return self is other or self[:] == other[:]

    __hash__ = None  # type: ignore[assignment]  # compared by content, which may be megabytes

    @overload
    def __getitem__(self, key: int) -> bytes: ...

    @overload
    def __getitem__(self, key: slice) -> list[bytes]: ...

    def __getitem__(self, key: int | slice) -> bytes | list[bytes]:
        """Returns one frame by its position, or a new list of consecutive ones."""
        if isinstance(key, slice):
            start, stop, step = key.indices(self._stop - self._start)
            if step != 1:
                raise ValueError("entries are sliced with step 1 only")
            return self._items[self._start + start : self._start + max(start, stop)]
        return self._items[range(self._start, self._stop)[key]]

    def append_many(self, items: list[bytes]) -> Entries:
        """Returns these entries and ``items`` (framed) after them. O(items) for the newest view of a list."""
        draft = EntriesDraft(self)
        draft.append_many(items)
        return draft.seal()

    def replace(self, position: int, item: bytes) -> Entries:
        """Returns these entries with ``item`` at ``position``. Copies the pointers."""
        draft = EntriesDraft(self)
        draft.replace(position, item)
        return draft.seal()

    def drop_first(self, count: int) -> Entries:
        """Returns these entries without the first ``count``. O(count)."""
        draft = EntriesDraft(self)
        draft.drop_first(count)
        return draft.seal()

    def keep_first(self, count: int) -> Entries:
        """Returns the first ``count`` of these entries. O(dropped)."""
        draft = EntriesDraft(self)
        draft.keep_first(count)
        return draft.seal()


class EntriesDraft:
    """Entries while one diff changes them, at first those of ``base``. The pointers are copied at most once for any
    number of edits.

    The caller checks that counts and positions are in range. After ``seal`` the draft must not be used.
    """

    __slots__ = ("_items", "_private", "_start", "_stop", "size_bytes")

    def __init__(self, base: Entries) -> None:
        self._items = base._items
        self._start = base._start
        self._stop = base._stop
        self._private = False  # True if no other view has this list
        self.size_bytes = base.size_bytes

    def __len__(self) -> int:
        return self._stop - self._start

    def append_many(self, items: list[bytes]) -> None:
        """Adds framed values at the end."""
        if not self._private and not self._grow_shared(items):
            self._own()
        if self._private:
            self._items.extend(items)
        self._stop += len(items)
        self.size_bytes += sum(map(len, items))

    def replace(self, position: int, item: bytes) -> None:
        """Replaces a framed value."""
        if not self._private:
            self._own()
        at = self._start + position
        self.size_bytes += len(item) - len(self._items[at])
        self._items[at] = item

    def drop_first(self, count: int) -> None:
        """Drops values at the start."""
        self.size_bytes -= sum(map(len, self._items[self._start : self._start + count]))
        self._start += count

    def keep_first(self, count: int) -> None:
        """Drops the values after the first ``count``."""
        stop = self._start + count
        self.size_bytes -= sum(map(len, self._items[stop : self._stop]))
        self._stop = stop
        if self._private:
            del self._items[stop:]

    def seal(self) -> Entries:
        """Ends the draft and returns its entries."""
        if len(self._items) > 2 * (self._stop - self._start) + _COMPACT_SLACK_ENTRIES:
            self._own()
        return Entries(self._items, self._start, self._stop, self.size_bytes)

    def _grow_shared(self, items: list[bytes]) -> bool:
        # An empty view gets a list of its own, because its list may be that of EMPTY_ENTRIES, which all share.
        if self._start == self._stop:
            return False
        with _GROWING:
            if len(self._items) != self._stop:
                return False
            self._items.extend(items)
            return True

    def _own(self) -> None:
        self._items = self._items[self._start : self._stop]
        self._start, self._stop, self._private = 0, len(self._items), True


EMPTY_ENTRIES = Entries([], 0, 0, 0)


@dataclass(frozen=True, slots=True)
class LogState:
    """A log: the index of its first entry, its entries, and the last version that rewrote it (0 = none)."""

    first_index: int
    entries: Entries
    rewritten_version: int = 0

    @property
    def next_index(self) -> int:
        """The index of the next entry."""
        return self.first_index + len(self.entries)


@dataclass(frozen=True, slots=True)
class StateTree:
    """A whole state. The dicts of a tree never change.

    ``size_bytes`` is the size that the limit on states counts: names in UTF-8 (of slots, logs and retired logs, so that
    making and deleting logs is bounded too), serialized Values of slots, and frames of entries.
    """

    slots: dict[str, bytes]
    logs: dict[str, LogState]
    retired: dict[str, int]
    size_bytes: int

    @classmethod
    def of(cls, slots: dict[str, bytes], logs: dict[str, LogState], retired: dict[str, int]) -> StateTree:
        """Makes a tree and counts its size. The tree owns the dicts from then on."""
        size = sum(byte_length(name) + len(value) for name, value in slots.items())
        size += sum(byte_length(name) + log.entries.size_bytes for name, log in logs.items())
        size += sum(map(byte_length, retired))
        return cls(slots, logs, retired, size)


EMPTY = StateTree({}, {}, {}, 0)


def wire(tree: StateTree) -> bytes:
    """Serializes a whole tree as ``stateward.v1.State``, names ascending."""
    parts: list[bytes] = []
    for name in sorted(tree.slots):
        put_slot(parts, name, tree.slots[name])
    for name in sorted(tree.logs):
        put_log(parts, name, tree.logs[name])
    for name in sorted(tree.retired):
        put_retired(parts, name, tree.retired[name])
    return b"".join(parts)


def to_message(tree: StateTree) -> State:
    """Makes the message that ``wire`` serializes."""
    return State.FromString(wire(tree))


def from_message(state: State) -> StateTree:
    """Makes a tree of a message. An absent first index is 0, and no logs are retired."""
    slots = {name: value.SerializeToString() for name, value in state.slots.items()}
    logs = {
        name: LogState(log.first_index, _entries_of(log.entries), log.rewritten_version)
        for name, log in state.logs.items()
    }
    return StateTree.of(slots, logs, {})


def put_slot(parts: list[bytes], name: str, value: bytes) -> None:
    """Adds one entry of ``State.slots``. It has the same bytes as a ``NamedValue`` of ``Snapshot.slots``."""
    head = name_field(name) + b"\x12" + varint(len(value))
    parts += (b"\x0a", varint(len(head) + len(value)), head, value)


def put_log(parts: list[bytes], name: str, log: LogState) -> None:
    """Adds one entry of ``State.logs``. It always has the first index, and never a rewritten version of 0."""
    first = b"\x08" + varint(log.first_index)
    rewritten = number_field(b"\x18", log.rewritten_version)
    log_bytes = len(first) + log.entries.size_bytes + len(rewritten)
    head = name_field(name) + b"\x12" + varint(log_bytes)
    parts += (b"\x12", varint(len(head) + log_bytes), head, first)
    parts += log.entries[:]
    parts.append(rewritten)


def put_retired(parts: list[bytes], name: str, next_index: int) -> None:
    """Adds one entry of ``State.retired_logs``; none for a log that begins at 0, as a new one does."""
    if next_index:
        entry = name_field(name) + number_field(b"\x10", next_index)
        parts += (b"\x22", varint(len(entry)), entry)


def frame(value: bytes) -> bytes:
    """Returns a serialized Value as an element of ``Log.entries``."""
    return b"\x12" + varint(len(value)) + value


def unframe(item: bytes) -> bytes:
    """Returns the serialized Value in a frame."""
    return item[skip_prefix(item) :]


def skip_prefix(item: bytes) -> int:
    """Returns the place in a frame at which the serialized Value begins."""
    return read_varint(item, 1)[1]


def varint(number: int) -> bytes:
    """Encodes a number >= 0 in base 128, lowest digits first, as protobuf does."""
    if number < 0x80:
        return _ONE_BYTE[number]
    if number < 0x4000:  # most numbers: lengths of chat messages
        return bytes((number & 0x7F | 0x80, number >> 7))
    digits = bytearray()
    while number > 0x7F:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    digits.append(number)
    return bytes(digits)


@dataclass(frozen=True, slots=True)
class DataSpan:
    """The place of the data in a serialized Value: bytes ``start`` to ``stop``, after the field of the media type."""

    media_type_field: bytes
    start: int
    stop: int

    @property
    def media_type(self) -> str:
        """The text of the media type."""
        if not self.media_type_field:
            return ""
        return self.media_type_field[read_varint(self.media_type_field, 1)[1] :].decode()


def find_data(value: bytes, at: int = 0) -> DataSpan | None:
    """Finds the data in a serialized Value that begins at byte ``at``, without copying it.

    Returns None if the Value holds a blob or a number. Relies on the order of fields by number, in which every protobuf
    serializer writes them.
    """
    begin = at
    if at < len(value) and value[at] == _MEDIA_TYPE_TAG:
        length, at = read_varint(value, at + 1)
        at += length
    media_type_field = value[begin:at]
    if at >= len(value) or value[at] != _DATA_TAG:
        return None
    length, at = read_varint(value, at + 1)
    return DataSpan(media_type_field, at, at + length)


def byte_length(name: str) -> int:
    """Returns the number of bytes of a name in UTF-8."""
    return len(name) if name.isascii() else len(name.encode())


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Returns the number at byte ``at``, and the place after it."""
    number = shift = 0
    while data[at] > 0x7F:
        number |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
    return number | data[at] << shift, at + 1


def name_field(name: str) -> bytes:
    """Returns field 1 of every message with a name."""
    encoded = name.encode()
    return b"\x0a" + varint(len(encoded)) + encoded


def number_field(tag: bytes, number: int) -> bytes:
    """Returns a varint field; empty if the number is 0."""
    return tag + varint(number) if number else b""


def _entries_of(values: Iterable[object]) -> Entries:
    return Entries.of(value.SerializeToString() for value in values)  # type: ignore[attr-defined]
