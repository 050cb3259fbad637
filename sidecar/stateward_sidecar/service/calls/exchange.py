"""Both directions of a call whose client and daemon send many messages."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar, cast

import grpc.aio
from google.protobuf.message import Message

from stateward_sidecar.service.admission.budget import Share
from stateward_sidecar.service.calls.method import Method

Q = TypeVar("Q", bound=Message)
A = TypeVar("A", bound=Message)
T = TypeVar("T")


class Exchange(Generic[Q, A]):
    """Takes requests and sends answers. At most one task reads and one task writes at a time."""

    def __init__(self, method: Method, context: grpc.aio.ServicerContext) -> None:
        self._method = method
        self._context = context
        self._share: Share | None = None

    async def read(self) -> Q | None:
        """Returns the next message; None after the last one. A large one keeps its share until the next one comes."""
        data = await self.receive()
        return None if data is None else await self.open(data)

    async def receive(self) -> bytes | None:
        """Returns the bytes of the next message; None after the last one. Gives the memory of the last one back."""
        self.close()
        return await self._method.receive(self._context)

    async def open(self, data: bytes) -> Q:
        """Returns the message that these bytes are. Raises InvalidField, QueueFull."""
        self.close()
        found, self._share = await self._method.open(data)
        return cast(Q, found)  # the method has a class of its own

    async def aside(self, data: bytes, verb: Callable[[bytes], T]) -> T:
        """Runs a verb with the bytes of a message: of a large one on the parser thread."""
        return await self._method.aside(data, verb)

    def close(self) -> None:
        """Gives the memory of the last message back."""
        if self._share is not None:
            self._share.close()
            self._share = None

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
