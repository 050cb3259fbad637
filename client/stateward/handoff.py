"""Handoffs: work that one agent passes to another, with the facts that the other agent needs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from stateward._frames import at_the_caller
from stateward.arguments import instance
from stateward.models import Checkpoint, Status

SLOT = "handoff"
"""Name of the slot that holds the handoff."""
_ID_START = "handoff:"


@dataclass(frozen=True)
class Handoff:
    """Work that is handed over, as the slot "handoff" stores it."""

    thread: str
    """The thread to continue."""
    id: str
    """Random id; the thread's `wait_id` until an agent takes the handoff."""
    to: str
    """The receiver: the name of an agent, or of a kind of agent."""
    sender: str
    """The agent that handed the work over; may be empty."""
    summary: str
    """The work and its results so far."""
    pending_steps: tuple[Any, ...]
    """The remaining steps, in order."""
    dependencies: tuple[Any, ...]
    """Conditions that must be met before the work continues."""
    data: Any
    """Any other data that the receiver needs."""
    time: datetime
    """Time of the handoff."""
    taken_by: str = ""
    """The agent that took the handoff; empty = none yet."""
    taken_time: datetime | None = None

    @at_the_caller
    def is_open(self, checkpoint: Checkpoint) -> bool:
        """Whether the handoff can be taken: no agent has taken it, and its sender has not continued the thread."""
        instance(checkpoint, "checkpoint", Checkpoint, "a Checkpoint")
        waits = checkpoint.status == Status.WAITING and checkpoint.wait_id == self.id
        return waits and not self.taken_by

    def to_slot(self) -> dict[str, Any]:
        """Returns the handoff as the slot stores it."""
        stored = asdict(self)
        del stored["thread"]
        stored["time"] = self.time.isoformat()
        stored["taken_time"] = None if self.taken_time is None else self.taken_time.isoformat()
        return stored

    @classmethod
    def from_slot(cls, thread: str, stored: Any) -> Handoff | None:
        """Returns the handoff in a slot; None = the slot holds another value."""
        if not isinstance(stored, dict) or not str(stored.get("id", "")).startswith(_ID_START):
            return None
        taken_time = stored.get("taken_time")
        return cls(
            **{name: stored[name] for name in ("id", "to", "sender", "summary", "data", "taken_by")},
            thread=thread,
            pending_steps=tuple(stored["pending_steps"]),
            dependencies=tuple(stored["dependencies"]),
            time=datetime.fromisoformat(stored["time"]),
            taken_time=None if taken_time is None else datetime.fromisoformat(taken_time),
        )


def new_id(unique: str, to: str) -> str:
    """Returns an id that contains the receiver, so that lists can be filtered without reading the threads."""
    return f"{_ID_START}{unique}:{to}"


def handed_to(wait_id: str) -> str | None:
    """Returns the receiver of the handoff that a thread waits for; None = the wait id is not of a handoff."""
    return wait_id.removeprefix(_ID_START).partition(":")[2] if wait_id.startswith(_ID_START) else None


def is_for(wait_id: str, to: str | None) -> bool:
    """Whether a thread waits for a receiver: for `to`, or for any receiver if `to` is None."""
    receiver = handed_to(wait_id)
    return receiver is not None and to in (None, receiver)
