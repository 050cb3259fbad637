"""What a writer's stream is made of: the stream, its frames, and what links a frame with the one before it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

import grpc.aio

from stateward.v1.checkpoint_service_pb2 import SaveRequest, SaveResponse
from stateward.v1.writer_service_pb2 import OpenWriter, WriteRequest, WriteResponse, WriterReset
from stateward_sidecar.errors import WriterAborted
from stateward_sidecar.service.exchange import Exchange
from stateward_sidecar.storage.queue import Write
from stateward_sidecar.store.save import SaveWrite

# The most unanswered frames of one stream. The client's next frames wait in gRPC's window.
FRAMES_MAX = 256


@dataclass(slots=True)
class Frame:
    """A frame that was taken and is not answered yet."""

    number: int
    save: SaveWrite | None = None
    write: Write | None = None
    future: asyncio.Future[SaveResponse] | None = None
    error: Exception | None = None
    is_archived: bool = False
    reset: WriterReset | None = None
    request: SaveRequest | None = None  # of a frame that was queued without asking the archive
    before: Frame | None = None
    began_s: float = 0.0  # if metrics are on
    span: object = None  # if the frame has one of its own, as what ends it with a code
    end_span: Callable[[str], None] | None = None

    @property
    def is_done(self) -> bool:
        """Whether the frame can be answered without waiting."""
        return self.error is not None or (not self.is_archived and self.future is not None and self.future.done())

    def let_go(self) -> None:
        """Drops what an answered frame no longer needs, so that the next frame does not keep all earlier ones alive."""
        self.save = self.future = self.request = self.before = self.span = None
        if self.write is not None:
            self.write.run, self.write.is_retry, self.write.result = _never, None, None


@dataclass(slots=True)
class Stream:
    """The state of a stream."""

    place: OpenWriter
    token: int
    exchange: Exchange[WriteRequest, WriteResponse]
    context: grpc.aio.ServicerContext
    taken: asyncio.Queue[Frame | None] = field(default_factory=asyncio.Queue)
    room: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(FRAMES_MAX))
    in_line: int = 0  # frames that the answering task still has to answer
    last_number: int = 0
    before: Frame | None = None  # since the last reset
    queued: asyncio.Future[SaveResponse] | None = None  # of the newest frame; when it is done, all before it are done


def check_turn(before: Frame | None, ahead: Write | None = None) -> None:
    """Raises WriterAborted if the frame before was refused, in the given write or else in its newest one."""
    if before is None:
        return
    ahead = ahead or before.write
    if before.error is not None or (ahead is not None and ahead.error is not None):
        raise WriterAborted("an earlier frame was refused; reset the writer", frame=before.number)


def _never(*_: object) -> NoReturn:
    raise AssertionError("an answered frame is not run again")
