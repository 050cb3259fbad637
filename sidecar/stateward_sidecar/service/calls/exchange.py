"""Calls whose client and daemon send many messages, and the stream of a writer.

Both directions of a call whose client and daemon send many messages.

What a writer's stream is made of: the stream, its frames, and what links a frame with the one before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, NoReturn, TypeVar, cast

import grpc.aio
from google.protobuf.message import Message

from stateward.v1.checkpoint_service_pb2 import SaveRequest, SaveResponse
from stateward.v1.writer_service_pb2 import OpenWriter, WriteRequest, WriteResponse, WriterReset
from stateward_sidecar.errors import QueueFull, WriterAborted
from stateward_sidecar.service.admission.held import HeldCall
from stateward_sidecar.service.admission.memory import Share
from stateward_sidecar.service.calls.localcall import LocalCall
from stateward_sidecar.service.calls.method import Method
from stateward_sidecar.storage.queue import Write
from stateward_sidecar.store.versions.save import SaveWrite

Q = TypeVar("Q", bound=Message)
A = TypeVar("A", bound=Message)
T = TypeVar("T")


class Exchange(Generic[Q, A]):
    """Takes requests and sends answers. At most one task reads and one task writes at a time."""

    def __init__(self, method: Method, context: grpc.aio.ServicerContext, held: HeldCall | None = None) -> None:
        self._method = method
        self.held = held
        """Asks for the keys of held threads."""
        self.context = self._context = context
        # Of the last message: until it is opened, and from then on.
        self._arrived: Share | None = None
        self._share: Share | None = None

    async def read(self) -> Q | None:
        """Returns the next message; None after the last one. A large one keeps its share until the next one comes."""
        data = await self.receive()
        return None if data is None else await self.open(data)

    async def receive(self) -> bytes | None:
        """Returns the bytes of the next message; None after the last one. Gives the memory of the last one back."""
        self.close()
        if not isinstance(self._context, LocalCall):
            return await self._method.receive(self._context)
        if (arrived := await self._context.take()) is None:
            return None
        data, self._arrived = arrived
        return cast(bytes, data)

    async def open(self, data: bytes) -> Q:
        """Returns the message that these bytes are. Raises InvalidField, QueueFull."""
        arrived, self._arrived = self._arrived, None
        self.close()
        opening = self._method.open(data) if arrived is None else self._method.open_counted(data, arrived)
        found, self._share = await opening
        self._method.admit(found, is_kept=True)
        if self.held is not None:
            await self.held.pass_in(self._method.needs, found)
        return cast(Q, found)  # the method has a class of its own

    async def pace(self) -> None:
        """Counts a save, and waits until its principal may make it."""
        await self._method.pace()

    async def aside(self, data: bytes, verb: Callable[[bytes], T]) -> T:
        """Runs a verb with the bytes of a message: of a large one on the parser thread."""
        return await self._method.aside(data, verb)

    def close(self) -> None:
        """Gives the memory of the last message back."""
        for share in (self._share, self._arrived):
            if share is not None:
                share.close()
        self._share = self._arrived = None

    def take_share(self) -> Share | None:
        """Hands over the memory of the last message, for the caller to close; None = the message is small."""
        share, self._share = self._share, None
        return share

    def keep(self) -> Callable[[], None] | None:
        """Hands over the memory of the last message. Returns what gives it back; None = the message is small."""
        share = self.take_share()
        return partial(self._method.room.give_back, share) if share is not None else None

    async def write(self, answer: A) -> None:
        """Sends a message."""
        await self._context.write(answer)


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
    share: Share | None = None  # the memory of a large message, until nothing of it is needed
    before: Frame | None = None
    began_s: float = 0.0  # if metrics are on
    span: object = None  # if the frame has one of its own, as what ends it with a code
    end_span: Callable[[str], None] | None = None

    @property
    def is_done(self) -> bool:
        """Whether the frame can be answered without waiting."""
        return self.error is not None or (not self.is_archived and self.future is not None and self.future.done())

    def lighten(self, _: object = None) -> None:
        """Drops everything but the answer: a client that reads no answers must not keep what it sent in memory. Ignores
        its argument, so that it can be a callback."""
        self.save = self.request = self.before = None
        if self.write is not None:
            self.write.run, self.write.is_retry, self.write.prepare, self.write.result = _never, None, None, None
        if self.share is not None:
            self.share.close()
            self.share = None

    def let_go(self) -> None:
        """Drops what an answered frame no longer needs, so that the next frame does not keep all earlier ones alive."""
        self.lighten()
        self.future = self.span = None

    def leave(self) -> None:
        """Drops everything when the stream is over. A write that is under way keeps its memory until its end."""
        if self.future is None or self.future.done():
            self.lighten()
        else:
            self.future.add_done_callback(self.lighten)

    def give_way(self) -> None:
        """Lets others have the memory of a frame that may have to be written again, while its turn to be answered does
        not come, because the client reads no answers."""
        if self.share is not None:
            self.share.slow_down(self.share.size_bytes, self._refuse)

    def _refuse(self) -> None:
        self.error = QueueFull("others need the memory of this frame, and no answers are read; try again", queued=0)
        asyncio.get_running_loop().call_soon(self.lighten)


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
    fewer: asyncio.Event = field(default_factory=asyncio.Event)  # set when one of them is answered
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
