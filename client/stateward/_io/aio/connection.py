"""The asyncio client's channel to the daemon. `blocking.connection` is the pair of this file."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from google.protobuf.message import Message

from stateward._io.aio.calls import CALL_BYTES_MAX, CLOSE_S, FIELDS, LINGER_S, CallStream, NotAnswered
from stateward._io.channel import (
    Settings,
    bind_methods,
    explain,
    explain_written,
    grpc,
    open_channel,
    upload_deadline_s,
)
from stateward._io.token import call_metadata, token_metadata
from stateward.blobs import Content, slices
from stateward.v1.blob_service_pb2 import BlobBegin, WriteBlobRequest

T = TypeVar("T")
TOLD_S = 1.0
"""How much later than a write that breaks the daemon's reason may come."""


class Connection:
    """A channel of one process and one event loop. gRPC connects with the first call."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self.streams: weakref.WeakSet[Any] = weakref.WeakSet()
        """The open streams. `close` ends them."""
        self._channel = open_channel(grpc.aio, settings)
        self._methods = bind_methods(self._channel)
        self._calls: CallStream | None = None
        self._under_way = 0
        # An event loop that ends, as in `asyncio.run`, closes the asynchronous generators that were started on it. If
        # another such generator makes a connection after that, the channel ends with this object.
        self._lifetime: Any = _lifetime(self._channel, self.streams)
        if not getattr(self._loop, "_asyncgens_shutdown_called", False):
            with suppress(StopIteration):
                self._lifetime.__anext__().send(None)

    @property
    def is_open(self) -> bool:
        """Whether calls can be made: neither `close` nor the end of the event loop has started to close it."""
        return not (self._lifetime.ag_running or self._lifetime.ag_frame is None or self._loop.is_closed())

    async def pause(self, seconds: float) -> None:
        """Waits."""
        await asyncio.sleep(seconds)

    async def call(self, method: str, request: Message, deadline_s: float | None) -> Any:
        """Makes one attempt of a unary call. A call without a deadline has the client's."""
        timeout_s = self._settings.call_timeout_s if deadline_s is None else deadline_s
        field = FIELDS.get(method)
        if field is None:
            return await self._call_alone(method, request, timeout_s)
        self._under_way += 1
        try:
            if self._under_way > self._settings.streams_beside and (size := request.ByteSize()) <= CALL_BYTES_MAX:
                until_s = self._loop.time() + timeout_s
                try:
                    return await self._streamed().call(field, request, size, timeout_s)
                except NotAnswered as over:
                    timeout_s = until_s - self._loop.time()
                    if not self.is_open or timeout_s <= 0:
                        raise over.error from None
            return await self._call_alone(method, request, timeout_s)
        finally:
            self._under_way -= 1

    async def _call_alone(self, method: str, request: Message, timeout_s: float) -> Any:
        try:
            return await self._methods[method](request, timeout=timeout_s, metadata=call_metadata(self._settings.token))
        except grpc.RpcError as failure:
            raise explain(failure, self._settings) from None

    def _streamed(self) -> CallStream:
        """Returns the open stream of calls, and opens one if there is none."""
        if self._calls is None or not self._calls.is_open:
            lingers_s = LINGER_S if self._settings.streams_beside else None
            self._calls = CallStream(self._open_calls, self._settings, lingers_s)
            self.streams.add(self._calls)
        return self._calls

    def _open_calls(self) -> Any:
        # Its calls name their own spans.
        return self._methods["RunCalls"](metadata=token_metadata(self._settings.token))

    async def upload(self, begin: BlobBegin, content: Content) -> Any:
        """Makes one attempt to write a blob. An error of the source of the bytes is raised unchanged."""
        call = self._methods["WriteBlob"](
            timeout=upload_deadline_s(self._settings, content), metadata=call_metadata(self._settings.token)
        )
        told: list[grpc.RpcError] = []
        call.add_done_callback(partial(_note, told))
        try:
            broken = await self._send(call, begin, content)
            try:  # around this alone: a source may raise TimeoutError, too
                async with asyncio.timeout(TOLD_S if broken is not None else None):
                    return await call
            except TimeoutError:
                assert broken is not None
                raise explain_written(broken, self._settings) from broken
        except grpc.RpcError as failure:
            if not call.done():  # it is of the source
                raise
            raise explain_written(_first_told(told, failure), self._settings) from None
        finally:
            call.cancel()

    @staticmethod
    async def _send(call: Any, begin: BlobBegin, content: Content) -> grpc.RpcError | None:
        """Sends a blob, until the daemon has answered or refused the call. Returns the error of a write that broke."""
        async for message in _messages(begin, content):
            try:
                await call.write(message)
            except asyncio.InvalidStateError:
                return None
            except grpc.RpcError as failure:
                return failure
        with suppress(asyncio.InvalidStateError, grpc.RpcError):
            await call.done_writing()
        return None

    def open(self, method: str, request: Message) -> Any:
        """Starts a streaming call. Does not wait."""
        return self._methods[method](request, metadata=call_metadata(self._settings.token))

    async def close(self) -> None:
        """Ends the streams and the connection. Any event loop may call it."""
        if self._loop.is_running() and self._loop is not asyncio.get_running_loop():
            closing = asyncio.run_coroutine_threadsafe(self._lifetime.aclose(), self._loop)
            with suppress(TimeoutError, asyncio.CancelledError):  # that loop is ending and closes the connection itself
                await asyncio.wait_for(asyncio.wrap_future(closing), 2 * CLOSE_S)
        elif not self._loop.is_closed():  # else the channel ends with this object
            await self._lifetime.aclose()


async def _lifetime(channel: Any, streams: weakref.WeakSet[Any]) -> AsyncGenerator[None, None]:
    """Closes a channel when the generator is closed. Has no reference to the Connection, which refers to it."""
    pid, loop = os.getpid(), asyncio.get_running_loop()
    try:
        yield
    finally:
        if pid == os.getpid():  # a forked child never closes the parent's channels
            for stream in list(streams):
                await stream.close()
            await channel.close(CLOSE_S if loop is asyncio.get_running_loop() else None)


def _note(told: list[grpc.RpcError], call: Any) -> None:
    """Notes a status of a call.

    A daemon refuses an upload without reading the rest. A write that is under way then breaks, and gRPC puts INTERNAL
    in the place of the daemon's status, before or after it came.
    """
    code, details, trailers = map(_at_once, (call.code(), call.details(), call.trailing_metadata()))
    told.append(grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailers, details))


def _at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """Returns the result of a coroutine that does not wait."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise AssertionError("the status of a call that is over has to be waited for")


def _first_told(told: list[grpc.RpcError], failure: grpc.RpcError) -> grpc.RpcError:
    """Returns the first error that is not gRPC's own INTERNAL."""
    own = (grpc.StatusCode.OK, grpc.StatusCode.INTERNAL)
    return next((each for each in told if each.code() not in own or each.trailing_metadata()), failure)


async def _messages(begin: BlobBegin, content: Content) -> AsyncIterator[WriteBlobRequest]:
    yield WriteBlobRequest(begin=begin)
    async for piece in _each(content):
        for part in slices(piece):
            yield WriteBlobRequest(data=part)


async def _each(content: Content) -> AsyncIterator[bytes]:
    pieces = content.pieces()
    if isinstance(pieces, AsyncIterable):
        async for piece in pieces:
            yield piece
        return
    iterator = iter(pieces)

    def step() -> bytes | None:
        return next(iterator, None)

    # Files are read on another thread, so that they do not block the event loop.
    while (found := await asyncio.to_thread(step) if content.is_blocking else step()) is not None:
        yield found
