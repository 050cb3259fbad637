"""Small things that all parts of the view share: enums by name, times, and reading a slot as a message."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, TypeVar

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from stateward.state import State

M = TypeVar("M", bound=Message)


def enum_number(enum: Any, prefix: str, value: Any) -> Any:
    """The number of an enum's value, given as number or as name without prefix, in any case."""
    if isinstance(value, str):
        name = f"{prefix}_{value.upper()}"
        if name not in enum.keys():  # noqa: SIM118  a wrapper, no dict
            known = ", ".join(each.removeprefix(f"{prefix}_").lower() for each in enum.keys()[1:])
            raise ValueError(f"{value!r} is none of {known}")
        return enum.Value(name)
    return value


def enum_word(enum: Any, prefix: str, number: int) -> str:
    """The name of a value as people read it; of one that is newer than this program its number."""
    if number not in enum.values():
        return str(number)
    return str(enum.Name(number).removeprefix(f"{prefix}_").lower().replace("_", " "))


def stamp(time: datetime | None) -> Timestamp:
    """The message for a time, None = now; a naive one is local."""
    message = Timestamp()
    message.FromDatetime((time or datetime.now(UTC)).astimezone(UTC))
    return message


def read_slot(state: State, name: str, kind: type[M]) -> M | None:
    """The message in a slot, to be read or edited; None = there is none. TypeError for anything else."""
    return None if name not in state.slots else checked(state.slots[name], kind, f"slots.{name}")


def checked(value: Any, kind: type[M], place: str) -> M:
    """The value, if it is such a message; TypeError names its place."""
    if not isinstance(value, kind):
        raise TypeError(f"{place} holds a {type(value).__name__}, not a {kind.DESCRIPTOR.full_name}")
    return value


def write_slot(state: State, name: str, value: Message | None) -> None:
    """Puts a message into a slot; None empties it."""
    if value is not None:
        state.slots[name] = value
    elif name in state.slots:
        del state.slots[name]
