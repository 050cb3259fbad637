"""Handoffs: work that one agent leaves for another, with what the other one must know."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from stateward.models import Checkpoint, Status

SLOT = "handoff"
"""The slot of the thread that holds it."""
_ID_START = "handoff:"


@dataclass(frozen=True)
class Handoff:
    """Work that is handed over, as it stands in the slot "handoff"."""

    thread: str
    """The thread to go on with."""
    id: str
    """Random; what the thread waits for until somebody takes it (`wait_id`)."""
    to: str
    """Whom it is for: the name of an agent, or of a kind of agent."""
    sender: str
    """Who handed it over; may be empty."""
    summary: str
    """What was done and found so far."""
    pending_steps: tuple[Any, ...]
    """What is left to do, in order."""
    dependencies: tuple[Any, ...]
    """What must be there, or have happened, before."""
    data: Any
    """Whatever else the other one needs."""
    time: datetime
    """When it was handed over."""
    taken_by: str = ""
    """Who took it; empty = nobody yet."""
    taken_time: datetime | None = None

    def is_open(self, checkpoint: Checkpoint) -> bool:
        """Whether it can be taken: nobody did, and who gave it away did not go on with it."""
        waits = checkpoint.status == Status.WAITING and checkpoint.wait_id == self.id
        return waits and not self.taken_by

    def to_slot(self) -> dict[str, Any]:
        """As it is stored."""
        stored = asdict(self)
        del stored["thread"]
        stored["time"] = self.time.isoformat()
        stored["taken_time"] = None if self.taken_time is None else self.taken_time.isoformat()
        return stored

    @classmethod
    def from_slot(cls, thread: str, stored: Any) -> Handoff | None:
        """The handoff in a slot; None where something else stands there."""
        if not isinstance(stored, dict) or not str(stored.get("id", "")).startswith(_ID_START):
            return None
        taken_time = stored.get("taken_time")
        return cls(
            thread=thread,
            id=stored["id"],
            to=stored["to"],
            sender=stored["sender"],
            summary=stored["summary"],
            pending_steps=tuple(stored["pending_steps"]),
            dependencies=tuple(stored["dependencies"]),
            data=stored["data"],
            time=datetime.fromisoformat(stored["time"]),
            taken_by=stored["taken_by"],
            taken_time=None if taken_time is None else datetime.fromisoformat(taken_time),
        )


def new_id(unique: str, to: str) -> str:
    """An id that lists can be filtered by without reading the thread."""
    return f"{_ID_START}{unique}:{to}"


def is_for(wait_id: str, to: str | None) -> bool:
    """Whether what a thread waits for is that somebody takes it: this one, or anybody."""
    if not wait_id.startswith(_ID_START):
        return False
    return to is None or wait_id.removeprefix(_ID_START).partition(":")[2] == to


def now() -> datetime:
    """The time, in UTC."""
    return datetime.now(UTC)
