"""How frozen dataclasses are read from messages: each field from the message's field of the same name, by its type.

`field(metadata={"proto": "holder.name"})` names another field of the message; None = the field keeps its default. An
optional field (`X | None`) is None if the message does not set it, and a member of an enum if it is unspecified.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import Field, fields
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from functools import cache, partial
from operator import attrgetter
from types import NoneType, UnionType
from typing import Any, Self, TypeVar, get_args, get_origin, get_type_hints

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from stateward.attributes import Attribute, read_attributes
from stateward.durations import DurationField
from stateward.v1.error_reason_pb2 import ErrorReason

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Member = TypeVar("Member", bound=IntEnum)
T = TypeVar("T")


class FromProto:
    """A dataclass that is read from a message."""

    @classmethod
    def from_proto(cls, message: Message) -> Self:
        """Reads the message."""
        return cls(*[read(message) for _, read in _readers(cls)])  # type: ignore[arg-type]  # mypy doubts that a class is hashable


def read_fields(kind: Callable[..., T], message: Message, /, **given: Any) -> T:
    """Makes a dataclass from a message. `given` are the fields that the caller has read."""
    return kind(*[given[name] if name in given else read(message) for name, read in _readers(kind)])


def read_time(stamp: Timestamp) -> datetime:
    """Returns a time in UTC. It saves five Python calls of `ToDatetime`, on the path of every save."""
    return _EPOCH + timedelta(seconds=stamp.seconds, microseconds=stamp.nanos // 1000)


def read_map(field: Mapping[str, T]) -> dict[str, T]:
    """Returns a map field as a dict. Most are empty, and copying one takes four Python calls."""
    return dict(field) if field else {}


def read_member(kind: type[Member], number: int) -> Member | int | None:
    """Returns the member; None if unspecified, and the number itself if this client does not know it."""
    try:
        return kind(number) if number else None
    except ValueError:
        return number


def read_reason(number: int) -> str:
    """Returns an ErrorReason without its prefix; "" if unspecified, and the number if this client does not know it."""
    try:
        return ErrorReason.Name(number).removeprefix("ERROR_REASON_") if number else ""
    except ValueError:
        return str(number)


_CONVERTERS: dict[Any, Callable[[Any], Any]] = {
    datetime: read_time,
    timedelta: Duration.ToTimedelta,
    DurationField: Duration.ToTimedelta,
    Mapping: read_map,
    Mapping[str, Attribute]: read_attributes,
    frozenset: frozenset,
}


@cache
def _readers(kind: Any) -> list[tuple[str, Callable[[Any], Any]]]:
    """Returns the dataclass's fields in order, each with the function that reads it from a message."""
    hints = get_type_hints(kind)
    return [(field.name, _reader(field, hints[field.name])) for field in fields(kind)]


def _reader(field: Field[Any], hint: Any) -> Callable[[Any], Any]:
    name = field.metadata.get("proto", field.name)
    if name is None:
        return lambda _: field.default
    kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    get, convert = attrgetter(name), _converter(kinds[0])

    def read(message: Message) -> Any:
        return get(message) if convert is None else convert(get(message))

    def read_optional(message: Message) -> Any:
        return read(message) if message.HasField(name) else None

    if (NoneType in kinds and not _is_enum(kinds[0])) or hint is DurationField:
        return read_optional
    return get if convert is None else read


def _is_enum(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, IntEnum)  # a hint such as Mapping[str, int] is no type


def _converter(kind: Any) -> Callable[[Any], Any] | None:
    """Returns what converts a message's field to a type; None if it has that type already."""
    if get_origin(kind) is tuple:
        convert = _converter(get_args(kind)[0])
        return tuple if convert is None else lambda field: tuple(map(convert, field))
    if _is_enum(kind):
        return partial(read_member, kind)
    return _CONVERTERS.get(kind) or _CONVERTERS.get(get_origin(kind)) or getattr(kind, "from_proto", None)
