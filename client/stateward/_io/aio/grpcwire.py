"""Calls of an asyncio client over gRPC. `blocking.grpcwire` is the pair of this file."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from stateward._io.aio.calls import CALL_BYTES_MAX, FIELDS, LINGER_S, CallStream, NotAnswered
from stateward._io.aio.content import messages_of
from stateward._io.channel import Settings, upload_deadline_s
from stateward._io.stubs import bind_methods, explain, explain_written, open_channel
from stateward._io.token import call_metadata, token_metadata
from stateward._operations.streams import END
from stateward.blobs import Content

T = TypeVar("T")
TOLD_S = 1.0
"""How much later than a write that breaks the daemon's reason may come."""


class GrpcWire:
    """A channel of one event loop. gRPC connects with the first call."""

    def __init__(self, settings: Settings, streams: weakref.WeakSet[Any]) -> None:
        """`streams`: the open streams of the connection."""
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._streams = streams
        self._channel = open_channel(grpc.aio, settings)
        self._methods = bind_methods(self._channel)
        self._calls: CallStream | None = None
        self._under_way = 0
        self._is_open = True

    async def call(self, method: str, request: Message, timeout_s: float) -> Any:
        """Makes one attempt of a unary call."""
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
                    if not self._is_open or timeout_s <= 0:
                        raise over.error from None
            return await self._call_alone(method, request, timeout_s)
        finally:
            self._under_way -= 1

    async def _call_alone(self, method: str, request: Message, timeout_s: float) -> Any:
        try:
            return await self._methods[method](request, timeout=timeout_s, metadata=call_metadata(self._settings))
        except grpc.RpcError as failure:
            raise explain(failure, self._settings) from None

    def _streamed(self) -> CallStream:
        """Returns the open stream of calls, and opens one if there is none."""
        if self._calls is None or not self._calls.is_open:
            lingers_s = LINGER_S if self._settings.streams_beside else None
            self._calls = CallStream(self._open_calls, self._settings, lingers_s)
            self._streams.add(self._calls)
        return self._calls

    def _open_calls(self) -> Any:
        # Its calls name their own spans.
        return self._methods["RunCalls"](metadata=token_metadata(self._settings))

    async def upload(self, begin: Message, content: Content) -> Any:
        """Makes one attempt to upload a content. An error of the source of the bytes is raised unchanged."""
        call = self._methods[content.method](
            timeout=upload_deadline_s(self._settings, content), metadata=call_metadata(self._settings)
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
    async def _send(call: Any, begin: Message, content: Content) -> grpc.RpcError | None:
        """Sends a content, until the daemon answers or refuses the call. Returns the error of a write that broke."""
        async for message in messages_of(begin, content):
            try:
                await call.write(message)
            except asyncio.InvalidStateError:
                return None
            except grpc.RpcError as failure:
                return failure
        with suppress(asyncio.InvalidStateError, grpc.RpcError):
            await call.done_writing()
        return None

    def open(self, method: str, request: Message | None) -> GrpcStream:
        """Starts a streaming call. Does not wait. `request`: None = the requests are written."""
        call = self._methods[method](request, metadata=call_metadata(self._settings))
        return GrpcStream(self, call, self._settings, is_written=request is None)

    async def close(self, grace_s: float | None) -> None:
        """Ends the channel. Calls under way may still end within the grace time."""
        self._is_open = False
        await self._channel.close(grace_s)


class GrpcStream:
    """A streaming call."""

    def __init__(self, wire: GrpcWire, call: Any, settings: Settings, *, is_written: bool) -> None:
        self._wire = wire  # whose channel ends with its last reference
        self._call, self._settings = call, settings
        self._explain = explain_written if is_written else explain

    async def read(self) -> Any:
        """Returns the next message, or END. A wait may be cancelled and repeated: no message is lost."""
        try:
            message = await self._call.read()
        except grpc.RpcError as failure:
            raise self._explain(failure, self._settings) from None
        return END if message is grpc.aio.EOF else message

    async def write(self, message: Message) -> None:
        """Sends a message. The next `read` raises the error of a stream that broke."""
        with suppress(grpc.RpcError, asyncio.InvalidStateError):
            await self._call.write(message)

    async def done_writing(self) -> None:
        """Sends no more messages."""
        with suppress(grpc.RpcError, asyncio.InvalidStateError):
            await self._call.done_writing()

    def cancel(self) -> None:
        """Ends the call."""
        self._call.cancel()


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
