"""Looking at a state without changing anything: what is read through it, the next save would encode and compare."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stateward import values
from stateward._state.log import Log
from stateward.agent.v1 import agent_pb2 as pb
from stateward.state import State


def slot(state: State, name: str) -> Any:
    """The value in a slot that is there."""
    slots = state.slots
    if name in slots._watched:
        return slots._watched[name]
    return _decoded(slots._stored[name], f"slots.{name}", slots._gate.blobs)


def items(state: State, name: str) -> list[Any]:
    """Items that have slots of their own, in order. A slot that holds another kind of value is one item."""
    if name not in state.slots:
        return []
    order = slot(state, name)
    if not isinstance(order, pb.ItemOrder):
        return order if isinstance(order, list) else [order]
    places = (f"{name}/{id_}" for id_ in order.ids)
    return [slot(state, place) for place in places if place in state.slots]


def entry(log: Log, position: int) -> Any:
    """An entry of a log that can be read."""
    if position >= len(log._stored) or log._first + position in log._watched:
        return log[position]
    return _decoded(log._stored[position], f"logs.{log.name}[{position}]", log._gate.blobs)


def newest_first(log: Log) -> Iterator[tuple[int, Any]]:
    """All entries with their positions; none of a log that was not read."""
    if log._readable:
        for position in reversed(range(len(log))):
            yield position, entry(log, position)


def _decoded(value: Any, path: str, blobs: Any) -> Any:
    """What cannot be decoded is shown by its size: a prompt must not fail because of one value."""
    try:
        return values.decode(value, path, blobs)
    except ValueError:
        return values.RawValue(value.media_type, value.data)
