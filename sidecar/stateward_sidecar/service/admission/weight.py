"""Counts the items of a message before it is parsed, because two bytes on the wire can be hundreds in memory.

The count walks the wire format along the fields that hold messages or repeat, and makes no objects. It ends when a
limit is passed, so a message with too many items costs no more than the largest allowed one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError

from stateward.v1.state_pb2 import Value
from stateward_sidecar.errors import InvalidField

# The most items of one request: edits, entries, slots, labels, and every other field that is a message or repeats.
ITEMS_MAX = 1_000_000
# The most fields that the walk looks at, including those that do not count.
FIELDS_MAX = 2 * ITEMS_MAX
# The most items of a list in one message. The checks in service/checks/check.py repeat these limits after parsing.
LIST_MAX = {
    "stateward.v1.BatchSaveRequest.saves": 256,
    "stateward.v1.SaveRequest.effects": 1000,
    "stateward.v1.PutEffectsRequest.effects": 1000,
    "stateward.v1.PutEffectsRequest.ack_signals": 1024,
    "stateward.v1.EffectKeys.keys": 1000,
    "stateward.v1.VersionSpans.spans": 100_000,
    "stateward.v1.PutRecordsRequest.writes": 1000,
    "stateward.v1.GetRecordsRequest.keys": 1000,
    "stateward.v1.SaveRequest.ack_signals": 1024,
    "stateward.v1.Diff.edits": 100_000,
}
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_TEXTS = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)
_MEDIA_TYPE, _DATA = (Value.DESCRIPTOR.fields_by_name[name].number << 3 | _BYTES for name in ("media_type", "data"))


@dataclass(slots=True)
class _Field:
    """A field that counts. ``inner``: the plan of its messages; None for texts and bytes."""

    name: str
    limit: int
    inner: _Plan | None
    is_value: bool


@dataclass(slots=True)
class _Plan:
    """The fields of a message type that count, by tag."""

    kind: str
    fields: dict[int, _Field] = field(default_factory=dict)


@cache
def _plan(kind: Any) -> _Plan:
    made = _Plan(kind.name)
    for each in kind.fields:
        is_message = each.type == FieldDescriptor.TYPE_MESSAGE
        if is_message or each.is_repeated:
            limit = LIST_MAX.get(each.full_name, ITEMS_MAX)
            # Packed numbers are not counted: they take at most eight times their bytes.
            wire = _BYTES if is_message or each.type in _TEXTS else _VARINT
            inner = _plan(each.message_type) if is_message else None
            is_value = is_message and each.message_type is Value.DESCRIPTOR
            made.fields[each.number << 3 | wire] = _Field(each.name, limit, inner, is_value)
    return made


def count_items(kind: Any, data: bytes | bytearray) -> int:
    """Counts the messages and repeated values of a message. Raises InvalidField; DecodeError if it is malformed."""
    try:
        return _Count(data).walk(_plan(kind), 0, len(data), "")
    except IndexError:
        raise DecodeError("a message ends too early") from None


class _Count:
    """The count of one message."""

    def __init__(self, data: bytes | bytearray) -> None:
        self._data = data
        self._items = self._fields = 0

    def walk(self, plan: _Plan, at: int, end: int, path: str) -> int:
        data, fields, seen = self._data, plan.fields, dict[int, int]()
        while at < end:
            self._fields += 1
            if self._fields > FIELDS_MAX:
                raise InvalidField(path.rstrip(".") or "request", f"more than {FIELDS_MAX:,} fields in one request")
            tag, at = _varint(data, at) if data[at] > 127 else (data[at], at + 1)
            wire, size = tag & 7, 0
            if wire == _BYTES:
                size, at = _varint(data, at) if data[at] > 127 else (data[at], at + 1)
            elif wire == _VARINT:
                _, at = _varint(data, at)
            elif wire in (_FIXED64, _FIXED32):
                size = 8 if wire == _FIXED64 else 4
            else:
                raise DecodeError("groups are not supported")
            found = fields.get(tag)
            if found is not None:
                count = seen[tag] = seen.get(tag, 0) + 1
                self._items += 1
                if count > found.limit or self._items > ITEMS_MAX:
                    raise _too_many(f"{path}{found.name}", count, found.limit)
                if found.inner is not None and not (found.is_value and self._is_usual(at, at + size)):
                    self.walk(found.inner, at, at + size, f"{path}{found.name}.")
            at += size
        if at != end:
            raise DecodeError("a field reaches beyond its message")
        return self._items

    def _is_usual(self, at: int, end: int) -> bool:
        """Whether a Value has only a short media type and data. Most have, and need no walk."""
        data = self._data
        if at < end and data[at] == _MEDIA_TYPE and data[at + 1] < 128:
            at += 2 + data[at + 1]
        if at >= end or data[at] != _DATA:
            return False
        size, at = _varint(data, at + 1)
        return at + size == end


def fields_of(data: bytes | bytearray) -> Iterator[tuple[int, int, bytes | int]]:
    """Returns number, wire type and content of each field of a message: bytes, or the number of a varint. The bytes of
    a fixed-size field are left out. Raises DecodeError if the message is malformed."""
    at, end = 0, len(data)
    try:
        while at < end:
            tag, at = _varint(data, at)
            wire, found = tag & 7, b""
            if wire == _VARINT:
                number, at = _varint(data, at)
                yield tag >> 3, wire, number
                continue
            if wire == _BYTES:
                size, at = _varint(data, at)
                found = bytes(data[at : at + size])
            elif wire in (_FIXED64, _FIXED32):
                size = 8 if wire == _FIXED64 else 4
            else:
                raise DecodeError("groups are not supported")
            at += size
            if at > end:
                raise DecodeError("a field reaches beyond its message")
            yield tag >> 3, wire, found
    except IndexError:
        raise DecodeError("a message ends too early") from None


def _too_many(path: str, count: int, limit: int) -> InvalidField:
    if count > limit:
        return InvalidField(path, f"more than {limit:,} of them in one message")
    return InvalidField(path, f"more than {ITEMS_MAX:,} edits, entries, slots and other items in one request")


def _varint(data: bytes | bytearray, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > 63:
            raise DecodeError("a number has too many bytes")
