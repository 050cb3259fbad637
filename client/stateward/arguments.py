"""Checks arguments that a message takes only in a certain form, so that an error names the argument."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from stateward.v1.write_pb2 import WriteOptions

M = TypeVar("M", bound=Message)
V = TypeVar("V")

OPTIONS = frozenset(WriteOptions.DESCRIPTOR.fields_by_name)
"""What every write has, see the contract."""
INT32_MAX, INT64_MAX = (1 << 31) - 1, (1 << 63) - 1


def text(value: Any, name: str) -> str:
    """Returns a text. Raises TypeError for anything else, and ValueError if UTF-8 cannot hold it. Both name `name`."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is a text, not {value!r:.100}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name} is {value!a:.100}; UTF-8 cannot hold a lone surrogate") from None
    return value


def whole_number(value: Any, name: str, *, most: int = INT64_MAX) -> int:
    """Returns a whole number. Raises TypeError for anything else, and ValueError if it is not between 0 and `most`."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} is a whole number, not {value!r:.100}")
    number = operator.index(value)
    if not 0 <= number <= most:
        raise ValueError(f"{name} is {number}; it must be 0 to {most:,}")
    return number


def several(values: Any, name: str, what: str) -> list[Any]:
    """Returns the items of an argument that takes several. Raises TypeError, which names `name` and says `what` it
    takes a list of, for anything else: one text is no list of its characters."""
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise TypeError(f"{name} takes a list of {what}, not {values!r:.100}")
    return list(values)


def instance(value: V, name: str, kind: type | tuple[type, ...], what: str) -> V:
    """Returns a value of a kind. Raises TypeError, which names `name` and says `what` it takes, for anything else."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} takes {what}, not {value!r:.100}")
    return value


def function(value: V, name: str) -> V:
    """Returns what can be called. Raises TypeError, which names `name`, for anything else."""
    if not callable(value):
        raise TypeError(f"{name} takes a function, not {value!r:.100}")
    return value


_ARGUMENTS = {
    "thread": "the name of a thread", "branch": "the name of a branch", "ack_signals": "ack",
    "include_effects": "effects", "include_records": "records", "refresh_ttl": "refresh", "from_index": "start",
    "expected_tagged_version": "expected",
}  # fmt: skip
"""What the arguments of methods call the fields of messages."""
_TYPES = {FieldDescriptor.CPPTYPE_STRING: "text", FieldDescriptor.CPPTYPE_BOOL: "bool"} | dict.fromkeys(
    (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT), "number"
)  # fmt: skip


def message(kind: Callable[..., M], fields: Mapping[str, Any]) -> M:
    """Returns a message with these fields. Those that every write has come into its `options`. Raises TypeError or
    ValueError that names the first field whose value does not fit, and says what it takes: the error of protobuf names
    none."""
    given: Mapping[str, Any] = fields
    if _is_write(kind) and (common := {name: fields[name] for name in OPTIONS if name in fields}):
        given = {name: value for name, value in fields.items() if name not in OPTIONS}
        given = {**given, "options": _make(WriteOptions, common)}
    return _make(kind, given)


def _make(kind: Callable[..., M], given: Mapping[str, Any]) -> M:
    try:
        return kind(**given)
    except (TypeError, ValueError, AttributeError):
        for name, value in given.items():
            _refuse(kind, name, value)
        raise


@cache
def _is_write(kind: Any) -> bool:
    field = kind.DESCRIPTOR.fields_by_name.get("options")
    return field is not None and field.message_type is WriteOptions.DESCRIPTOR


def _refuse(kind: Callable[..., Message], name: str, value: Any) -> None:
    try:
        kind(**{name: value})
    except (TypeError, ValueError, AttributeError) as error:
        field = kind.DESCRIPTOR.fields_by_name.get(name)  # type: ignore[attr-defined]
        argument = _ARGUMENTS.get(name, name)
        if field is None:
            return
        if type(error) is ValueError and isinstance(value, (str, int, float)):
            raise ValueError(f"{argument} is {value!r:.100}; {error}") from None
        raise TypeError(f"{argument} takes {_wanted(field)}, not {value!r:.100}") from None


def _wanted(field: FieldDescriptor) -> str:
    """Says in words what a field takes."""
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        value = _type(field.message_type.fields_by_name["value"])
        return "a dict of texts" if value == "text" else f"a dict of texts to {value}s"
    return f"a list of {_type(field)}s" if field.is_repeated else f"a {_type(field)}"


def _type(field: FieldDescriptor) -> str:
    if field.message_type is not None:
        return field.message_type.name
    return _TYPES.get(field.cpp_type, "whole number")
