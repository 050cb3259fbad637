"""Streaming calls of an asyncio client on the local wire, each on a connection of its own."""

from __future__ import annotations

import asyncio
from collections import deque
from time import monotonic
from typing import Any

from google.protobuf.message import Message

from stateward._io.aio.pipe import Pipe
from stateward._io.channel import Settings
from stateward._io.local import (
    END_OF_MESSAGES,
    ERROR,
    LATE_S,
    MESSAGE,
    Socket,
    check_size,
    frame,
    late,
    read_answer,
    request_frame,
    shape_of,
)
from stateward._io.token import call_metadata
from stateward._operations.streams import END
from stateward.errors import ServerUnavailable


class _Messages(Pipe):
    """The answers of a stream. No more is read than is waited for."""

    def __init__(self, wire: Socket) -> None:
        super().__init__(wire)
        self.frames: deque[tuple[int, bytes]] = deque()
        self.is_lost = False
        self._came: asyncio.Future[None] | None = None

    def _take(self, call: int, kind: int, body: bytes) -> None:
        self.frames.append((kind, body))
        self.read_on(False)
        self._wake()

    def _lose(self) -> None:
        self.is_lost = True
        self._wake()

    def _wake(self) -> None:
        came, self._came = self._came, None
        if came is not None and not came.done():
            came.set_result(None)

    async def next(self) -> tuple[int, bytes] | None:
        """Returns the next frame; None = the connection was ended. A wait may be cancelled, and loses nothing."""
        while not self.frames:
            if self.is_lost or not self.is_open:
                return None
            self.read_on()
            self._came = self._came or self._loop.create_future()
            await asyncio.shield(self._came)
        return self.frames.popleft()

    def cancel(self) -> None:
        """Ends the connection. Whoever waits for it wakes, cancelled."""
        self.close()
        came, self._came = self._came, None
        if came is not None and not self._loop.is_closed():
            came.cancel()


class LocalStream:
    """A streaming call. It begins with its first read or write."""

    def __init__(
        self, path: str, settings: Settings, method: str, request: Message | None, timeout_s: float | None
    ) -> None:
        self._path, self._settings, self._shape = path, settings, shape_of(method)
        self._request, self._timeout_s = request, timeout_s
        self._until_s = None if timeout_s is None else monotonic() + timeout_s
        self._pipe: _Messages | None = None
        self._beginning: asyncio.Task[None] | None = None
        self._is_cancelled = self._is_over = False

    async def begin(self) -> None:
        """Opens the connection and asks. Raises NoFrames if gRPC has to make the call."""
        if self._pipe is None:
            self._beginning = self._beginning or asyncio.get_running_loop().create_task(self._begin())
            await asyncio.shield(self._beginning)

    async def _begin(self) -> None:
        pipe = await _Messages.dial(self._path, self._settings, self._settings.call_timeout_s)
        if self._is_cancelled:
            pipe.close()
            raise asyncio.CancelledError
        metadata = call_metadata(self._settings)
        pipe.write(request_frame(pipe.number_of(self._shape), 1, self._shape, self._request, self._timeout_s, metadata))
        self._pipe = pipe

    async def read(self) -> Any:
        """Returns the next message, or END. A wait may be cancelled and repeated: no message is lost."""
        await self.begin()
        assert self._pipe is not None
        found = await self._next(self._pipe)
        if found is None:
            if self._is_cancelled:
                raise asyncio.CancelledError
            raise ServerUnavailable("the stream to the daemon broke", code="UNAVAILABLE")
        kind, body = found
        if kind == MESSAGE:
            return read_answer(self._shape, kind, body)
        self._is_over = True
        self._pipe.close()
        if kind != ERROR and self._shape.has_many_answers:
            return END
        return read_answer(self._shape, kind, body)

    async def _next(self, pipe: _Messages) -> tuple[int, bytes] | None:
        if self._until_s is None:
            return await pipe.next()
        limit = asyncio.timeout(max(self._until_s - monotonic(), 0.0) + LATE_S)
        try:
            async with limit:
                return await pipe.next()
        except TimeoutError:
            raise late() from None

    async def write(self, message: Message) -> None:
        """Sends a message. The next `read` raises the error of a stream that broke."""
        body = message.SerializeToString()
        check_size(len(body))
        await self._write(frame(MESSAGE, 1, body))

    async def done_writing(self) -> None:
        """Sends no more messages."""
        await self._write(frame(END_OF_MESSAGES, 1))

    async def _write(self, sent: bytes) -> None:
        await self.begin()
        assert self._pipe is not None
        if not self._is_over:
            self._pipe.write(sent)
            await self._pipe.drain()

    def cancel(self) -> None:
        """Ends the call. Whoever waits for it is cancelled."""
        self._is_cancelled = True
        if self._pipe is not None:
            self._pipe.cancel()
        elif self._beginning is not None and not self._beginning.get_loop().is_closed():
            self._beginning.cancel()
