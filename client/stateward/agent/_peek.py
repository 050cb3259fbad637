"""Reads a state without marking its values as read: the next save would encode and compare values read through it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stateward import values
from stateward._state.log import Log
from stateward.agent.v1 import agent_pb2 as pb
from stateward.state import State


def slot(state: State, name: str) -> Any:
    """Returns the value in a slot that is set."""
    slots = state.slots
    if name in slots._watched:
        return slots._watched[name]
    return _decoded(slots._stored[name], f"slots.{name}", slots._gate.blobs)


def items(state: State, name: str) -> list[Any]:
    """Returns the items that have their own slots, in order. If the slot holds another type, its value is the item."""
    if name not in state.slots:
        return []
    order = slot(state, name)
    if not isinstance(order, pb.ItemOrder):
        return order if isinstance(order, list) else [order]
    places = (f"{name}/{id_}" for id_ in order.ids)
    return [slot(state, place) for place in places if place in state.slots]


def entry(log: Log, position: int) -> Any:
    """Returns an entry of a log that was read."""
    if position >= len(log._stored) or log._first + position in log._watched:
        return log[position]
    return _decoded(log._stored[position], f"logs.{log.name}[{position}]", log._gate.blobs)


def newest_first(log: Log) -> Iterator[tuple[int, Any]]:
    """Yields all entries with their positions; nothing if the log was not read."""
    if log._readable:
        for position in reversed(range(len(log))):
            yield position, entry(log, position)


def _decoded(value: Any, path: str, blobs: Any) -> Any:
    """Returns a RawValue if a value cannot be decoded: a prompt must not fail because of one value."""
    try:
        found = values.decode(value, path, blobs)
    except ValueError:
        return values.RawValue(value.media_type, value.data)
    return found.value if isinstance(found, values.Json5) else found
