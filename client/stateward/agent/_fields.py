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


def is_unread(state: State, name: str) -> bool:
    """Whether there may be a slot of this name that the state was read without."""
    return state.slots._is_unread(name)


def require_read(state: State, name: str) -> None:
    """ValueError for a slot that a partial state was read without: it must not pass for one that is not set."""
    if is_unread(state, name):
        raise ValueError(
            f"this state was read in part, without slot {name!r}; hydrate it with that slot, or the whole state"
        )


def read_slot(state: State, name: str, kind: type[M]) -> M | None:
    """The message in a slot, to be read or edited; None = there is none. TypeError for anything else, ValueError where
    it may be there and was not read."""
    require_read(state, name)
    return None if name not in state.slots else checked(state.slots[name], kind, f"slots.{name}")


def checked(value: Any, kind: type[M], place: str) -> M:
    """The value, if it is such a message; TypeError names its place."""
    if not isinstance(value, kind):
        raise TypeError(f"{place} holds a {type(value).__name__}, not a {kind.DESCRIPTOR.full_name}")
    return value


def write_slot(state: State, name: str, value: Message | None) -> None:
    """Puts a message into a slot; None empties it, and is a ValueError where the slot was not read."""
    if value is not None:
        state.slots[name] = value
        return
    require_read(state, name)
    if name in state.slots:
        del state.slots[name]
