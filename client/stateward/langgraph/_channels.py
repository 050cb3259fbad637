"""How the channels of a checkpoint lie in a state, and the edits that lead from one checkpoint's channels to another's.

A channel whose value is a list becomes a log of its elements, so a step that adds a message sends that message. Any
other value becomes a slot. Values are what LangGraph's serializer makes of them; the serializer's type stands in the
media type. A list is serialized once and as a whole. Its bytes are a header and then the elements one after another,
so comparing them with what was stored last also finds an element that was changed in place.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol

from stateward.langgraph._names import CHANNEL, channel_name
from stateward.langgraph._types import dump
from stateward.v1 import diff_pb2, state_pb2

_MEDIA_TYPE = "application/x-langgraph; type="
_LIST_KIND = "msgpack"
_PIECE = 64 << 10


class Serializer(Protocol):
    """The part of LangGraph's SerializerProtocol that is used here."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]: ...
    def loads_typed(self, data: tuple[str, bytes]) -> Any: ...


class LogPart(Protocol):
    """Entries of a log, and the index of the first one: a message, or what a list of states is made into."""

    @property
    def entries(self) -> Sequence[state_pb2.Value]: ...
    @property
    def first_index(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Stored:
    """A value as it is stored."""

    kind: str
    """The type that the serializer gave."""
    data: bytes
    """What the serializer made. For a list: of the whole list."""
    first: int | None = 0
    """Index of the log's first entry; None = unknown, because there may have been a log of this name before."""
    ends: list[int] | None = None
    """For a log: where each element ends in `data`. None = a slot."""


_NO_LIST = Stored("", b"")


def to_value(kind: str, data: bytes) -> state_pb2.Value:
    """Serialized bytes as a value of the contract."""
    return state_pb2.Value(media_type=_MEDIA_TYPE + kind, data=as_bytes(data))


def as_bytes(data: bytes) -> bytes:
    """What a serializer made, as bytes: it may return any buffer, such as the bytearray that it was given."""
    return data if type(data) is bytes else memoryview(data).tobytes()


def from_value(value: state_pb2.Value) -> tuple[str, bytes]:
    """The serializer's type and bytes. Raises ValueError for a value that something else wrote."""
    if not value.media_type.startswith(_MEDIA_TYPE):
        raise ValueError(f"a value has media type {value.media_type!r}; StatewardSaver did not write it")
    return value.media_type[len(_MEDIA_TYPE) :], value.data


def read_channels(slots: Mapping[str, state_pb2.Value], logs: Mapping[str, LogPart]) -> dict[str, Stored]:
    """The channels of a state, by their names (see `_names`)."""
    found = {
        name[len(CHANNEL) :]: Stored(*from_value(value)) for name, value in slots.items() if name.startswith(CHANNEL)
    }
    for name, log in logs.items():
        if name.startswith(CHANNEL):
            found[name[len(CHANNEL) :]] = _extend(Stored(_LIST_KIND, _header(0), log.first_index, []), log)
    return found


def _extend(old: Stored, log: LogPart) -> Stored:
    """A log with further entries after those of `old`. A list without elements has a header, as every list has."""
    assert old.ends is not None, "a slot has no entries"
    pieces, old_ends = [from_value(entry)[1] for entry in log.entries], old.ends
    old_header, header = _header(len(old_ends)), _header(len(old_ends) + len(pieces))
    shift = len(header) - len(old_header)
    ends = [end + shift for end in old_ends] if shift else list(old_ends)
    start = ends[-1] if ends else len(header)
    ends += list(accumulate(map(len, pieces), initial=start))[1:]
    return Stored(_LIST_KIND, b"".join((header, old.data[len(old_header) :], *pieces)), old.first, ends)


def change_channels(
    old: Mapping[str, Stored],
    removed: Iterable[str],
    slots: Mapping[str, state_pb2.Value],
    logs: Mapping[str, LogPart],
) -> dict[str, Stored]:
    """The channels after what changed since `old`, as the contract says at `base_version`."""
    gone = {name[len(CHANNEL) :] for name in removed}
    found = {name: stored for name, stored in old.items() if name not in gone}
    added = {name: log for name, log in logs.items() if found.get(name[len(CHANNEL) :], _NO_LIST).ends is not None}
    found |= read_channels(slots, {name: log for name, log in logs.items() if name not in added})
    for name, log in added.items():
        found[name[len(CHANNEL) :]] = _extend(found[name[len(CHANNEL) :]], log)
    return found


def _header(count: int) -> bytes:
    """The bytes before the elements of a list in MessagePack."""
    if count < 16:
        return bytes([0x90 | count])
    return b"\xdc" + count.to_bytes(2) if count < 1 << 16 else b"\xdd" + count.to_bytes(4)


class Edits:
    """Collects the edits from the channels of one checkpoint to those of another."""

    def __init__(self, serde: Serializer, old: Mapping[str, Stored], *, is_new: bool) -> None:
        """`old`: channels of the parent, whose `first` are known. `is_new`: the parent is the empty state."""
        self._serde, self._old, self._is_new = serde, old, is_new
        self.edits: list[diff_pb2.Edit] = []
        self.channels: dict[str, Stored] = {}

    def has(self, channel: str) -> bool:
        """Whether the parent has a value of the channel."""
        return channel_name(channel) in self._old

    def keep(self, channel: str) -> None:
        """The channel has the value that it had."""
        name = channel_name(channel)
        self.channels[name] = self._old[name]

    def put(self, channel: str, value: Any) -> None:
        """The channel has this value. Raises TypeNotAllowed, and what the serializer raises."""
        channel = channel_name(channel)
        is_list = type(value) is list  # of a list only what is sent is checked: its new elements
        kind, data = self._serde.dumps_typed(value) if is_list else dump(self._serde, value)
        data = as_bytes(data)
        old = self._old.get(channel)
        if old is not None and (kind, data) == (old.kind, old.data):
            self.channels[channel] = old
            return
        stored = None
        if is_list and kind == _LIST_KIND and (value or (old is not None and old.ends is not None)):
            stored = self._put_list(channel, value, data, old)
        if stored is None:
            if is_list:
                dump(self._serde, value)
            if old is not None and old.ends is not None:
                self._delete(channel, old)
            edit = diff_pb2.SetSlot(slot=CHANNEL + channel, value=to_value(kind, data))
            self.edits.append(diff_pb2.Edit(set_slot=edit))
            stored = Stored(kind, data)
        self.channels[channel] = stored

    def finish(self) -> None:
        """Removes the channels that were neither kept nor put."""
        for channel in self._old.keys() - self.channels.keys():
            self._delete(channel, self._old[channel])

    def _delete(self, channel: str, old: Stored) -> None:
        name = CHANNEL + channel
        if old.ends is None:
            self.edits.append(diff_pb2.Edit(delete_slot=diff_pb2.DeleteSlot(slot=name)))
        else:
            self.edits.append(diff_pb2.Edit(delete_log=diff_pb2.DeleteLog(log=name)))

    def _put_list(self, channel: str, value: list[Any], data: bytes, old: Stored | None) -> Stored | None:
        """Adds the edits of a list, and returns how it is stored; None = its elements do not make up its bytes."""
        name, header = CHANNEL + channel, _header(len(value))
        kept, old_header, old_ends, first = 0, header, list[int](), 0 if self._is_new else None
        if old is not None and old.ends is not None:
            old_header, old_ends, first = _header(len(old.ends)), old.ends, old.first
            assert first is not None
            # Nearly always the list has grown. A slice would copy it.
            if data.startswith(memoryview(old.data)[len(old_header) :], len(header)):
                kept = len(old_ends)
            else:
                common = common_prefix(old.data, len(old_header), data, len(header))
                kept = bisect_right(old_ends, common + len(old_header))
        pieces = []
        for element in value[kept:]:
            kind, piece = dump(self._serde, element)
            piece = as_bytes(piece)
            if kind != _LIST_KIND:  # None and bytes have types of their own, but lie in a list as MessagePack
                return None
            pieces.append(piece)
        shift = len(header) - len(old_header)
        ends = [end + shift for end in old_ends[:kept]] if shift else old_ends[:kept]
        start = ends[-1] if ends else len(header)
        if not data.startswith(header) or b"".join(pieces) != data[start:]:
            return None
        if old is not None and old.ends is None:
            self._delete(channel, old)
        if kept < len(old_ends):
            trim = diff_pb2.TrimLog(log=name, from_index=(first or 0) + kept)
            self.edits.append(diff_pb2.Edit(trim_log=trim))
        if pieces:
            entries = [to_value(_LIST_KIND, piece) for piece in pieces]
            append = diff_pb2.Append(log=name, entries=entries, at_index=None if first is None else first + kept)
            self.edits.append(diff_pb2.Edit(append=append))
        return Stored(_LIST_KIND, data, first, [*ends, *list(accumulate(map(len, pieces), initial=start))[1:]])


def common_prefix(a: bytes, a_start: int, b: bytes, b_start: int) -> int:
    """How many bytes from the two starts on are equal. Compares pieces that fit into the processor's cache."""
    size = min(len(a) - a_start, len(b) - b_start)
    low = 0
    while low < size and a[a_start + low : a_start + low + _PIECE] == b[b_start + low : b_start + low + _PIECE]:
        low += _PIECE
    high = min(low + _PIECE, size)  # the first difference lies before it, if it is not there
    while low < high:
        middle = (low + high + 1) // 2
        if a[a_start + low : a_start + middle] == b[b_start + low : b_start + middle]:
            low = middle
        else:
            high = middle - 1
    return min(low, size)
