"""Helpers that all parts of the view share: enums by name, times, and slots read as messages."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, TypeVar

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from stateward.state import State

M = TypeVar("M", bound=Message)


def enum_number(enum: Any, prefix: str, value: Any) -> Any:
    """Returns the number of an enum's value, given as a number or as a name without prefix, in upper or lower case."""
    if isinstance(value, str):
        name = f"{prefix}_{value.upper()}"
        if name not in enum.keys():  # noqa: SIM118  a wrapper, no dict
            known = ", ".join(each.removeprefix(f"{prefix}_").lower() for each in enum.keys()[1:])
            raise ValueError(f"{value!r} is not one of {known}")
        return enum.Value(name)
    return value


def enum_word(enum: Any, prefix: str, number: int) -> str:
    """Returns the name of a value for people, or its number if this program does not know the value."""
    if number not in enum.values():
        return str(number)
    return str(enum.Name(number).removeprefix(f"{prefix}_").lower().replace("_", " "))


def stamp(time: datetime | None) -> Timestamp:
    """Returns the message for a time; None = now. A naive time is local time."""
    message = Timestamp()
    message.FromDatetime((time or datetime.now(UTC)).astimezone(UTC))
    return message


def is_unread(state: State, name: str) -> bool:
    """Whether the state was read without this slot, so that the slot may exist."""
    return state.slots._is_unread(name)


def require_read(state: State, name: str) -> None:
    """Raises ValueError if a partial state was read without the slot: unread must not look like unset."""
    if is_unread(state, name):
        raise ValueError(
            f"this state was read in part, without slot {name!r}; hydrate it with that slot, or the whole state"
        )


def read_slot(state: State, name: str, kind: type[M]) -> M | None:
    """Returns the message in a slot, to be read or edited; None = the slot is not set. Raises TypeError if the slot
    holds another type, and ValueError if the state was read without the slot."""
    require_read(state, name)
    return None if name not in state.slots else checked(state.slots[name], kind, f"slots.{name}")


def checked(value: Any, kind: type[M], place: str) -> M:
    """Returns the value if it is such a message. Otherwise raises TypeError, which names the value's place."""
    if not isinstance(value, kind):
        raise TypeError(f"{place} holds a {type(value).__name__}, not a {kind.DESCRIPTOR.full_name}")
    return value


def write_slot(state: State, name: str, value: Message | None) -> None:
    """Puts a message into a slot; None removes the slot. Raises ValueError if None is given for an unread slot."""
    if value is not None:
        state.slots[name] = value
        return
    require_read(state, name)
    if name in state.slots:
        del state.slots[name]
