"""Cuts a state into pages that fit into a message.

A page is a fragment of ``stateward.v1.State`` on the wire: slots ascending by name, then logs ascending by name, then
retired logs. A log that continues in the next page has a first index there. A value larger than a page is sent as
``ValueChunk``s, one in each page. A page with a piece of a log's entry also has the log, without entries and with that
entry's index, so that a reader always reads the state first and then the chunk.

Every page but the last has ``partial`` set. The last page has it set if a projection was used. The daemon remembers
nothing between pages: a ``Position`` says where the next page begins, in a state that never changes.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from stateward.v1.checkpoint_service_pb2 import Projection, ValueChunk
from stateward_sidecar.codec.entries import EMPTY_ENTRIES, Entries, LooseRun, SealedRun, Segment
from stateward_sidecar.codec.state import (
    LogState,
    StateTree,
    byte_length,
    find_data,
    has_segments,
    put_log,
    put_retired,
    put_slot,
    wire,
)
from stateward_sidecar.codec.varints import skip_prefix
from stateward_sidecar.errors import InvalidField

SLOTS, LOGS, RETIRED, END = range(4)

# The most bytes of a slot or a log without its name and values: tags, lengths, index and version.
_SLOT_OVERHEAD_BYTES = 16
_LOG_OVERHEAD_BYTES = 40
_RETIRED_OVERHEAD_BYTES = 24
_PARTIAL = b"\x18\x01"
_POSITION = struct.Struct(">BQQ")
# A page of the last entries of a log is made at once if they are in so many segments at hand, at most.
HELD_SEGMENTS = 2


@dataclass(frozen=True, slots=True)
class Selection:
    """The selected slots and logs. None = all. The number of a log = only that many of its last entries. Deleted logs
    are told of if their names are selected."""

    slots: frozenset[str] | None = None
    logs: dict[str, int | None] | None = None

    @property
    def is_everything(self) -> bool:
        """True if nothing is left out."""
        return self.slots is None and self.logs is None


EVERYTHING = Selection()


class Position(NamedTuple):
    """The place where a page begins: the section, a name, a selected entry, and a byte of its data.

    The section END is behind the whole state: such a page has nothing of it.
    """

    section: int
    name: str
    entry: int
    offset_bytes: int

    def pack(self) -> bytes:
        """Returns the position as bytes, for a page token."""
        return _POSITION.pack(self.section, self.entry, self.offset_bytes) + self.name.encode()

    @classmethod
    def unpack(cls, data: bytes) -> Position:
        """The reverse of ``pack``. Raises InvalidField for other bytes."""
        try:
            section, entry, offset_bytes = _POSITION.unpack_from(data)
            name = data[_POSITION.size :].decode()
        except (struct.error, UnicodeDecodeError):
            raise InvalidField("page_token", "this server did not make it") from None
        return cls(section, name, entry, offset_bytes)


@dataclass(frozen=True, slots=True)
class Page:
    """One page: wire bytes of a State, a piece of a large value or None, and the position of the next page or None."""

    state: bytes
    chunk: ValueChunk | None
    next: Position | None


def selection_of(projection: Projection | None) -> Selection:
    """Reads a projection, which selects only what it names. None = everything."""
    if projection is None:
        return EVERYTHING
    logs: dict[str, int | None] = {}
    for position, log in enumerate(projection.logs):
        if log.last < 0:
            raise InvalidField(f"projection.logs[{position}].last", f"{log.last} is below 0")
        logs[log.log] = log.last if log.HasField("last") else None
    return Selection(frozenset(projection.slots), logs)


def project(tree: StateTree, selection: Selection) -> StateTree:
    """Returns the selected part of a state, as a state."""
    if selection.is_everything:
        return tree
    slots = (
        tree.slots
        if selection.slots is None
        else {name: value for name, value in tree.slots.items() if name in selection.slots}
    )
    logs = (
        tree.logs
        if selection.logs is None
        else {name: _last(tree.logs[name], count) for name, count in selection.logs.items() if name in tree.logs}
    )
    return StateTree.of(slots, logs, {name: tree.retired[name] for name in _retired(tree, selection)})


def _retired(tree: StateTree, selection: Selection) -> list[str]:
    return sorted(tree.retired if selection.logs is None else tree.retired.keys() & selection.logs.keys())


def _last(log: LogState, count: int | None) -> LogState:
    if count is None or count >= len(log.entries):
        return log
    first = len(log.entries) - count
    return LogState(log.first_index + first, log.entries.drop_first(first), log.rewritten_version)


def page(tree: StateTree, selection: Selection, position: Position | None, max_bytes: int) -> Page:
    """Cuts the page that begins at ``position``; None = the first page.

    The page has at most about ``max_bytes`` (>= 1). The name of a single value that just fits may exceed that.
    """
    if position is None and selection.is_everything and _bound_wire_bytes(tree) <= max_bytes:
        return Page(wire(tree), None, None)
    places = _list_places(tree, selection)
    cut = _Cut(tree, selection, max_bytes)
    at, entry, offset_bytes = _find(places, position)
    while at < len(places):
        section, name = places[at]
        rest = cut.take(section, name, entry, offset_bytes)
        if rest is None:
            at += 1
        entry, offset_bytes = rest or (0, 0)
        if rest is not None or cut.chunk is not None:
            break
    following = Position(*places[at], entry, offset_bytes) if at < len(places) else None
    if following is not None or not selection.is_everything:
        cut.parts.append(_PARTIAL)
    return Page(b"".join(cut.parts), cut.chunk, following)


def _list_places(tree: StateTree, selection: Selection) -> list[tuple[int, str]]:
    """Lists section and name of all that is selected and exists, in the order of the pages."""
    slots = tree.slots.keys() if selection.slots is None else tree.slots.keys() & selection.slots
    logs = tree.logs.keys() if selection.logs is None else tree.logs.keys() & selection.logs.keys()
    places = [(SLOTS, name) for name in sorted(slots)] + [(LOGS, name) for name in sorted(logs)]
    return places + [(RETIRED, name) for name in _retired(tree, selection)]


def _find(places: list[tuple[int, str]], position: Position | None) -> tuple[int, int, int]:
    """Returns the index of the place, and entry and byte in it."""
    if position is None:
        return 0, 0, 0
    place = (position.section, position.name)
    at = bisect_left(places, place)
    if at < len(places) and places[at] == place:
        return at, position.entry, position.offset_bytes
    return at, 0, 0


def _bound_wire_bytes(tree: StateTree) -> int:
    overhead = _SLOT_OVERHEAD_BYTES * len(tree.slots) + _LOG_OVERHEAD_BYTES * len(tree.logs)
    return tree.size_bytes + overhead + _RETIRED_OVERHEAD_BYTES * len(tree.retired)


def take_fitting(frames: Iterator[bytes], room_bytes: int) -> tuple[list[bytes], int]:
    """Returns the first frames, as many as fit, at least one if there are any; and their bytes."""
    found, size_bytes = list[bytes](), 0
    for item in frames:
        if found and size_bytes + len(item) > room_bytes:
            break
        found.append(item)
        size_bytes += len(item)
    return found, size_bytes


def needs_segments(tree: StateTree, selection: Selection) -> bool:
    """Whether a page may have to read segments."""
    if selection.logs is None:
        return has_segments(tree)
    return any(_reads_segments(tree.logs[name], last) for name, last in selection.logs.items() if name in tree.logs)


def with_segments_at_hand(
    tree: StateTree, selection: Selection, at_hand: Callable[[Segment], Sequence[bytes] | None]
) -> StateTree | None:
    """Returns a state of which a page reads no segment: the last entries of selected logs, as far as they are in
    segments, are taken from those at hand. None if one is not, or if the page may need more than ``HELD_SEGMENTS``."""
    if selection.logs is None:
        return None
    logs = dict(tree.logs)
    for name, last in selection.logs.items():
        log = tree.logs.get(name)
        if log is None or not _reads_segments(log, last):
            continue
        held = _take_held(log.entries, last, at_hand) if last is not None else None
        if held is None:
            return None
        first = len(log.entries) - len(held)
        logs[name] = LogState(log.first_index + first, Entries.of_frames(held), log.rewritten_version)
    return StateTree(tree.slots, logs, tree.retired, tree.size_bytes)


def _take_held(
    entries: Entries, last: int, at_hand: Callable[[Segment], Sequence[bytes] | None]
) -> list[bytes] | None:
    """Returns the last entries of a log, or all of it; None if a segment is not at hand."""
    left, found = last - entries.tail_count, [entries.tail()]
    for run in reversed(entries.runs.each):
        if left <= 0:
            break
        items: Sequence[bytes] | None = run.items if isinstance(run, LooseRun) else None
        if isinstance(run, SealedRun):
            items = at_hand(run.segment) if len(found) <= HELD_SEGMENTS else None
            items = items[run.skip : run.skip + run.count] if items is not None else None
        if items is None:
            return None
        found.append(list(items[-left:]))
        left -= run.count
    return [item for part in reversed(found) for item in part]


def _reads_segments(log: LogState, last: int | None) -> bool:
    return bool(log.entries.runs.count) and (last is None or last > log.entries.tail_count)


class _Cut:
    """A page that is being filled.

    ``take`` returns None if it took everything, else entry and byte at which the next page continues.
    """

    def __init__(self, tree: StateTree, selection: Selection, max_bytes: int) -> None:
        self.parts: list[bytes] = []
        self.chunk: ValueChunk | None = None
        self._tree = tree
        self._selection = selection
        self._max_bytes = max_bytes
        self._room_bytes = max_bytes

    def take(self, section: int, name: str, entry: int, offset_bytes: int) -> tuple[int, int] | None:
        if section == SLOTS:
            return self._take_slot(name, offset_bytes)
        return self._take_log(name, entry, offset_bytes) if section == LOGS else self._take_retired(name)

    def _take_retired(self, name: str) -> tuple[int, int] | None:
        need = _RETIRED_OVERHEAD_BYTES + byte_length(name)
        if self.parts and need > self._room_bytes:
            return 0, 0
        put_retired(self.parts, name, self._tree.retired[name])
        self._room_bytes -= need
        return None

    def _take_slot(self, name: str, offset_bytes: int) -> tuple[int, int] | None:
        value = self._tree.slots[name]
        need = _SLOT_OVERHEAD_BYTES + byte_length(name) + len(value)
        if self.parts and need > self._room_bytes:
            return 0, 0
        if offset_bytes or len(value) > self._max_bytes:
            end = self._take_chunk(ValueChunk(slot=name), value, 0, offset_bytes)
            return None if end is None else (0, end)
        put_slot(self.parts, name, value)
        self._room_bytes -= need
        return None

    def _take_log(self, name: str, entry: int, offset_bytes: int) -> tuple[int, int] | None:
        log = self._tree.logs[name]
        last = self._selection.logs[name] if self._selection.logs is not None else None
        first = 0 if last is None else max(0, len(log.entries) - last)
        entries, at = log.entries, min(first + entry, len(log.entries))
        index = log.first_index + at
        left, head = len(entries) - at, _LOG_OVERHEAD_BYTES + byte_length(name)
        if self.parts and head > self._room_bytes:
            return entry, 0
        frames = entries.frames(at)
        item = next(frames, b"")
        if self.parts and head + len(item) > self._room_bytes:
            return entry, 0
        if left and (offset_bytes or len(item) > self._max_bytes):
            put_log(self.parts, name, LogState(index, EMPTY_ENTRIES, log.rewritten_version))
            chunk = ValueChunk(log=name, index=index)
            end = self._take_chunk(chunk, item, skip_prefix(item), offset_bytes)
            if end is not None:
                return entry, end
            return (entry + 1, 0) if left > 1 else None
        shown, size_bytes = take_fitting(chain((item,), frames) if left else frames, self._room_bytes - head)
        put_log(self.parts, name, LogState(index, Entries.of_frames(shown), log.rewritten_version))
        self._room_bytes -= head + size_bytes
        return (entry + len(shown), 0) if len(shown) < left else None

    def _take_chunk(self, chunk: ValueChunk, value: bytes, at: int, offset_bytes: int) -> int | None:
        """Takes a piece of the Value at byte ``at``. Returns the offset of the next piece; None at the end."""
        span = find_data(value, at)
        if span is None:
            raise InvalidField("max_bytes", "too small for a reference to a blob")
        if offset_bytes and offset_bytes >= span.stop - span.start:
            raise InvalidField("page_token", "it points beyond the end of a value")
        start = span.start + offset_bytes
        stop = min(span.stop, start + self._max_bytes)
        chunk.media_type = span.media_type
        chunk.offset = offset_bytes
        chunk.size_bytes = span.stop - span.start
        chunk.data = value[start:stop]
        self.chunk = chunk
        return None if stop == span.stop else offset_bytes + stop - start
