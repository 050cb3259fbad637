"""A state in memory. It is immutable, shares unchanged parts with other states, and is kept as wire bytes.

    StateTree ─ slots    name → serialized Value
              ├ logs     name → LogState ─ Entries: segments on the disk, and a tail in memory (codec/entries.py)
              └ retired  name → the index the next entry of a deleted log gets

The entries of a log have the contiguous indexes [first_index, next_index). An index that is deleted, or trimmed at the
start, is never used again. A trim raises ``first_index``. A deletion retires the log's name with its ``next_index``, at
which a later log of that name begins. A cut from the end frees the cut indexes for reuse and sets
``rewritten_version``, so that a reader that folded entries starts again. For the same reason a log that is made under a
retired name begins with ``rewritten_version`` set.

Joined frames (codec/varints.py) are a log, and a whole state is one join with one copy of its bytes (1 MB in 2,000
entries: 0.1 ms; if the bytes of each log are joined first, 1 ms, most of it page faults).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from stateward.v1.state_pb2 import State
from stateward_sidecar.codec.entries import Entries
from stateward_sidecar.codec.varints import read_varint, varint

_MEDIA_TYPE_TAG = 0x0A
_DATA_TAG = 0x12


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

    ``size_bytes`` is the size of all of it: names in UTF-8 (of slots, logs and retired logs, so that making and
    deleting logs is bounded too), serialized Values of slots, and frames of entries.
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
# The newest entries of a log that stay in memory, and how many bytes of older ones become a segment.
KEPT_BYTES, SEGMENT_BYTES = 128 << 10, 1 << 20
# With less in memory, nothing of a log becomes a segment.
TAIL_BYTES = KEPT_BYTES + SEGMENT_BYTES
# After so many segments of a log the next ones are twice as large, up to this many times: each snapshot names all.
SEGMENTS_OF_A_SIZE, LARGEST_SEGMENTS = 1024, 8


def has_segments(tree: StateTree) -> bool:
    """Whether a log has entries that are on the disk only."""
    return any(log.entries.runs.count for log in tree.logs.values())


def resident_bytes(tree: StateTree) -> int:
    """Returns how much of a state's size is in memory."""
    return tree.size_bytes - sum(
        log.entries.size_bytes - log.entries.loose_bytes for log in tree.logs.values() if log.entries.runs.count
    )


def loose_bytes(tree: StateTree) -> int:
    """Returns how many bytes of entries of logs are in memory."""
    return sum(log.entries.loose_bytes for log in tree.logs.values())


def counted_bytes(tree: StateTree) -> int:
    """Returns the size that the limit on states counts: without segments, and without what will be segments soon."""
    return resident_bytes(tree) - sum(sealable_bytes(log.entries) for log in tree.logs.values())


def sealable_bytes(entries: Entries) -> int:
    """Returns how many bytes of a log's entries in memory are to become segments; 0 = it is too little. The newest
    entries, with at least ``KEPT_BYTES``, stay."""
    if entries.loose_bytes < TAIL_BYTES:
        return 0
    found = entries.loose_bytes - entries.newest_bytes(KEPT_BYTES)
    return found if found >= segment_bytes(entries) else 0


def segment_bytes(entries: Entries) -> int:
    """Returns the least size of the next segment of a log."""
    return SEGMENT_BYTES * min(1 << len(entries.runs.each) // SEGMENTS_OF_A_SIZE, LARGEST_SEGMENTS)


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


def name_field(name: str) -> bytes:
    """Returns field 1 of every message with a name."""
    encoded = name.encode()
    return b"\x0a" + varint(len(encoded)) + encoded


def number_field(tag: bytes, number: int) -> bytes:
    """Returns a varint field; empty if the number is 0."""
    return tag + varint(number) if number else b""


def _entries_of(values: Iterable[object]) -> Entries:
    return Entries.of(value.SerializeToString() for value in values)  # type: ignore[attr-defined]
