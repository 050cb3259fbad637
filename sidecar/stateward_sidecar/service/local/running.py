"""A call that is not answered yet, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc.aio
from google.rpc.status_pb2 import Status

from stateward_sidecar.errors import DeadlineExceeded
from stateward_sidecar.service.calls.localcall import LocalCall
from stateward_sidecar.service.calls.status import foreseen, to_status
from stateward_sidecar.service.local.eager import Eager
from stateward_sidecar.service.local.frame import ANSWER, CANCEL, ERROR


@dataclass(frozen=True, slots=True)
class LocalMethod:
    """A method that can be called on the local wire."""

    name: str
    """With its package and service."""
    request_name: str
    handle: Callable[[Any, LocalCall], Any]
    """What gRPC would call: returns an awaitable of bytes; of None for a stream, which it has written."""
    bytes_max: int
    """The size of the largest message."""
    takes_stream: bool
    gives_stream: bool
    is_holding: bool
    """Whether a call keeps memory from one message to the next."""
    is_passed: bool
    """Whether small calls take turns by connection, and are committed together."""

    @property
    def is_stream(self) -> bool:
        """Whether a call has a connection of its own."""
        return self.takes_stream or self.gives_stream


class Running:
    """A call under way."""

    __slots__ = (
        "_is_late", "call", "counted_bytes", "drop", "is_left", "method", "number", "size_bytes", "task", "timer",
    )  # fmt: skip

    def __init__(self, number: int, method: LocalMethod, call: LocalCall, size_bytes: int) -> None:
        """``size_bytes``: of a small message, which has no share of memory."""
        self.number, self.method, self.call, self.size_bytes = number, method, call, size_bytes
        self.counted_bytes = 0
        """How much of the memory that all connections share it takes."""
        self.task: Eager | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.drop: Callable[[Running], None] | None = None
        """Ends a call that has not begun."""
        self._is_late = self.is_left = False

    def be_late(self) -> None:
        """Ends the call, because its deadline has passed."""
        self._is_late = True
        self.cancel()

    def leave(self) -> None:
        """Ends the call, because its caller has left."""
        self.is_left = True
        self.cancel()

    def cancel(self) -> None:
        """Ends the call."""
        if self.task is not None:
            self.task.cancel()
        elif self.drop is not None:
            self.drop(self)

    async def run(self) -> tuple[int, bytes]:
        """Runs the handler. Returns the kind and the body of the answer; CANCEL = nobody wants one."""
        try:
            return ANSWER, await self.method.handle(None, self.call) or b""
        except grpc.aio.AbortError:
            return ERROR, self.call.status
        except asyncio.CancelledError:
            return self.ended()
        except Exception as error:  # noqa: BLE001  (the boundary)
            return ERROR, status_of(error, self.method.name)

    def ended(self) -> tuple[int, bytes]:
        """Returns the kind and the body of the answer to a call that was cancelled."""
        if self.is_left:
            return CANCEL, b""
        if self._is_late:
            what = "the deadline passed before the call ended; its outcome is unknown"
            if self.task is None:
                what = "the deadline passed before the call began; nothing was written"
            return ERROR, status_of(DeadlineExceeded(what), self.method.name)
        code: int = grpc.StatusCode.CANCELLED.value[0]
        return ERROR, Status(code=code, message="the daemon has ended the call").SerializeToString()


def status_of(error: Exception, name: str) -> bytes:
    """Returns the `google.rpc.Status` of an error, as the trailer of gRPC has it."""
    known = foreseen(error, name)
    details = to_status(known)[2]
    known.__traceback__ = known.__context__ = None
    return details
