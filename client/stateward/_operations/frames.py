"""The steps of a writer's stream, and the saves that are under way on it."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

from stateward._operations.failures import error_from_status
from stateward._operations.saving import SaveOptions
from stateward._operations.steps import Operation, Pause
from stateward._operations.streams import END as END  # noqa: PLC0414  the answer of Take
from stateward._state.unsaved import Unsaved
from stateward.errors import NotArchivedYet, StatewardError
from stateward.models import Checkpoint
from stateward.state import State
from stateward.v1 import checkpoint_service_pb2 as checkpoints
from stateward.v1 import writer_service_pb2 as writers


@dataclass(frozen=True, slots=True)
class Dial:
    """Opens a stream, and ends the previous one."""


@dataclass(frozen=True, slots=True)
class Put:
    """Sends a message on the open stream; None = there are no more. The next Take raises the error of a failed Put."""

    message: writers.WriteRequest | None


@dataclass(frozen=True, slots=True)
class Take:
    """Waits for the next message for at most so many seconds. The answer is the message, or END."""

    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """Runs an operation. The answer is its result."""

    operation: Operation[Any]


Step = Dial | Put | Take | Run | Pause
Steps = Generator[Step, Any, Any]


@dataclass(slots=True, eq=False)
class Frame:
    """A save that was sent, or is about to be sent, on a writer's stream."""

    number: int
    request: checkpoints.SaveRequest
    state: State
    size_bytes: int
    traceparent: str = ""
    """The span of the caller; empty = none."""
    unsaved: Unsaved | None = None
    """The changes, if the state moves to the new version with the answer; None = the state has moved already."""
    expected: Checkpoint | None = None
    """The version that the state has moved to, as far as it is known before the answer; None = it has not moved."""
    checkpoint: Checkpoint | None = None
    error: StatewardError | None = None
    late: NotArchivedYet | None = None
    is_done: bool = False
    options: SaveOptions = field(default_factory=SaveOptions)
    """What the caller said of the save."""

    def result(self) -> Checkpoint:
        """Returns the saved version. Raises the error that refused it, or NotArchivedYet."""
        if error := self.error or self.late:
            raise error
        assert self.checkpoint is not None
        return self.checkpoint


def message_of(frame: Frame) -> writers.WriteRequest:
    """Returns the message for a frame."""
    message = writers.WriteRequest()
    item = message.save
    item.frame, item.awaited, item.traceparent = frame.number, frame.unsaved is not None, frame.traceparent
    item.save.CopyFrom(frame.request)
    return message


def error_of(refused: writers.WriterRefused) -> StatewardError:
    """Returns the exception for a refused frame."""
    return error_from_status(refused.status)
