"""What a save sends, and the gate that keeps a state still meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stateward.v1 import diff_pb2, state_pb2

if TYPE_CHECKING:
    from stateward._log import Log


@dataclass
class Collected:
    """What changed in a state, and what its `rebase` needs when that was saved."""

    diff: diff_pb2.Diff
    slots: dict[str, state_pb2.Value] = field(default_factory=dict)
    """New encodings of slots."""
    watched_slots: dict[str, Any] = field(default_factory=dict)
    """The objects that were looked at."""
    deleted_slots: set[str] = field(default_factory=set)
    logs: dict[str, CollectedLog] = field(default_factory=dict)


@dataclass
class CollectedLog:
    """What changed in one log."""

    log: Log
    watched: list[int]
    """Indexes of the stored entries that were looked at."""
    replaced: dict[int, state_pb2.Value]
    """New encodings of those that differ, by index."""
    added: list[state_pb2.Value]


class Gate:
    """Closed while a save is under way, which another task could otherwise pull the ground from under."""

    closed = False

    def require_open(self) -> None:
        """RuntimeError while a save is under way."""
        if self.closed:
            raise RuntimeError(
                "this state is being saved: until that is done it can only be read, appended to, and given new slots"
            )
