"""Calls of an asyncio client on the local wire. `blocking.local` is the pair of this file.

Calls of an event loop share one connection, and those that are made in one turn of the loop go out together. A large
call has a connection of its own, and so has a stream (`localstream`).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from time import monotonic
from typing import Any

from google.protobuf.message import Message

from stateward._io.aio.content import messages_of
from stateward._io.aio.localstream import LocalStream
from stateward._io.aio.pipe import Pipe
from stateward._io.channel import Settings, upload_deadline_s
from stateward._io.local import (
    CANCEL,
    ERROR,
    LARGE_BYTES,
    LATE_S,
    Socket,
    broken,
    frame,
    late,
    read_answer,
    read_error,
    request_frame,
    shape_of,
)
from stateward._io.token import call_metadata
from stateward.blobs import Content

CLOSE_S = 5.0
"""How long calls that are under way when a client is closed may still take."""
_APART_MAX = 16
"""The most connections for large calls: each is an open file of client and daemon."""
_CALLS_MAX = 0xFFFFFFFF


class _Calls(Pipe):
    """Unary calls, answered in any order."""

    def __init__(self, wire: Socket) -> None:
        super().__init__(wire)
        self._waiting: dict[int, asyncio.Future[tuple[int, bytes]]] = {}
        self._outbox: dict[int, bytes] = {}
        self._last_number = 0
        self._why: bytes | None = None

    def _take(self, call: int, kind: int, body: bytes) -> None:
        if not call and kind == ERROR:  # why the daemon ends the connection
            self._why = body
        answer = self._waiting.pop(call, None)
        if answer is not None and not answer.done():
            answer.set_result((kind, body))

    def _lose(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            if not answer.done():
                answer.set_exception(broken() if self._why is None else read_error(self._why))

    async def call(self, method: str, request: Message, timeout_s: float, settings: Settings) -> Any:
        """Makes a call."""
        shape = shape_of(method)
        call = self._last_number = self._last_number % _CALLS_MAX + 1
        number, metadata = self.number_of(shape), call_metadata(settings)
        sent = request_frame(number, call, shape, request, timeout_s, metadata)
        answer = self._waiting[call] = self._loop.create_future()
        if len(self._waiting) == 1:
            self.write(sent)
        else:  # others are under way, and more may come in this turn of the loop
            if not self._outbox:
                self._loop.call_soon(self._send)
            self._outbox[call] = sent
        if not self.is_open:
            self._lose()
        timer = self._loop.call_later(timeout_s + LATE_S, _give_up, answer)
        try:
            kind, body = await answer
        finally:
            timer.cancel()
            if self._waiting.pop(call, None) is not None:  # its caller has left, or gave up
                self._leave(call)
        return read_answer(shape, kind, body)

    def _leave(self, call: int) -> None:
        if self._outbox.pop(call, None) is None:
            self.write(frame(CANCEL, call))

    def _send(self) -> None:
        outbox, self._outbox = self._outbox, {}
        self.write(b"".join(outbox.values()))

    async def end(self, grace_s: float) -> None:
        """Ends the connection. Calls under way may still end within the grace time."""
        if grace_s and (waiting := [each for each in self._waiting.values() if not each.done()]):
            await asyncio.wait(waiting, timeout=grace_s)
        self.close()
        self._lose()


def _give_up(answer: asyncio.Future[Any]) -> None:
    if not answer.done():
        answer.set_exception(late())


class LocalWire:
    """The connections of a client on one event loop."""

    def __init__(self, path: str, settings: Settings) -> None:
        self._path, self._settings = path, settings
        self._calls: _Calls | None = None
        self._dialling: asyncio.Task[_Calls] | None = None
        self._places = asyncio.Semaphore(_APART_MAX)
        self._is_open = True

    async def call(self, method: str, request: Message, timeout_s: float) -> Any:
        """Makes one attempt of a unary call. Raises NoFrames if gRPC has to make it."""
        if request.ByteSize() > LARGE_BYTES:
            return await self._call_apart(method, request, timeout_s)
        calls = self._calls
        if calls is None or not calls.is_open:
            until_s = monotonic() + timeout_s
            calls = await self._dialled(timeout_s)
            timeout_s = max(until_s - monotonic(), 1e-3)
        return await calls.call(method, request, timeout_s, self._settings)

    async def _call_apart(self, method: str, request: Message, timeout_s: float) -> Any:
        until_s = monotonic() + timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                await self._places.acquire()
        except TimeoutError:
            raise late() from None
        try:
            calls = await _Calls.dial(self._path, self._settings, max(until_s - monotonic(), 1e-3))
            try:
                return await calls.call(method, request, max(until_s - monotonic(), 1e-3), self._settings)
            finally:
                calls.close()
        finally:
            self._places.release()

    async def _dialled(self, timeout_s: float) -> _Calls:
        """Opens the connection of small calls, once for all that wait for it."""
        if self._dialling is None:
            dialling = _Calls.dial(self._path, self._settings, timeout_s)
            self._dialling = asyncio.get_running_loop().create_task(dialling)
        waited_for = self._dialling
        try:
            self._calls = await asyncio.shield(waited_for)
        finally:
            if waited_for.done() and self._dialling is waited_for:
                self._dialling = None
        return self._calls

    async def upload(self, begin: Message, content: Content) -> Any:
        """Makes one attempt to upload a content. An error of the source of the bytes is raised unchanged."""
        timeout_s = upload_deadline_s(self._settings, content)
        stream = self.open(content.method, None, timeout_s)
        await stream.begin()
        answering = asyncio.ensure_future(stream.read())
        try:
            async for message in messages_of(begin, content):
                if answering.done():  # it is answered or refused: nobody wants the rest
                    break
                await stream.write(message)
            await stream.done_writing()
            return await answering
        finally:
            stream.cancel()
            answering.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await answering

    def open(self, method: str, request: Message | None, timeout_s: float | None = None) -> LocalStream:
        """Starts a streaming call, on a connection of its own. Does not wait. `request`: None = they are written."""
        return LocalStream(self._path, self._settings, method, request, timeout_s)

    async def close(self, grace_s: float | None) -> None:
        """Ends the connection. Calls under way may still end within the grace time; None = they end now."""
        if self._dialling is not None:
            self._dialling.cancel()
        if self._calls is not None:
            await self._calls.end(grace_s or 0.0)
