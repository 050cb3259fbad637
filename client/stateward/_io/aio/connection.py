"""The asyncio client's channel to the daemon, and driving an operation over it. `blocking.connection` is its pair."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Generator
from typing import Any, TypeVar

from google.protobuf.message import Message

from stateward._io.channel import Settings, bind_methods, channel_options, explain, grpc, upload_deadline_s
from stateward.blobs import Content, slices
from stateward.errors import StatewardError
from stateward.v1.blob_service_pb2 import BlobBegin, WriteBlobRequest

S = TypeVar("S")
T = TypeVar("T")


async def drive(steps: Generator[S, Any, T], perform: Callable[[S], Awaitable[Any]]) -> T:
    """Carries steps out until they return."""
    try:
        step = next(steps)
        while True:
            try:
                answer = await perform(step)
            except StatewardError as error:
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        steps.close()  # of a task that was cancelled


class Connection:
    """A channel of one process and one event loop. gRPC opens it with the first call."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._pid = os.getpid()
        self._loop = asyncio.get_running_loop()
        if settings.credentials is None:
            self._channel = grpc.aio.insecure_channel(settings.target, options=channel_options(settings))
        else:
            self._channel = grpc.aio.secure_channel(
                settings.target, settings.credentials, options=channel_options(settings)
            )
        self._methods = bind_methods(self._channel)

    def is_ours(self) -> bool:
        """Whether this process and this loop made it."""
        return self._pid == os.getpid() and self._loop is asyncio.get_running_loop()

    async def call(self, method: str, request: Message, deadline_s: float | None) -> Any:
        """One attempt of a unary call; without a deadline of its own it has the client's."""
        timeout = self._settings.call_timeout_s if deadline_s is None else deadline_s
        try:
            return await self._methods[method](request, timeout=timeout)
        except grpc.RpcError as failure:
            raise explain(failure, self._settings) from failure

    async def upload(self, begin: BlobBegin, content: Content) -> Any:
        """One attempt to write a blob. An error of whoever gives the bytes is raised as it is."""
        call = self._methods["WriteBlob"](timeout=upload_deadline_s(self._settings, content))
        try:
            try:
                await call.write(WriteBlobRequest(begin=begin))
                async for piece in _each(content):
                    for part in slices(piece):
                        await call.write(WriteBlobRequest(data=part))
                await call.done_writing()
            except asyncio.InvalidStateError:
                pass  # it was answered already
            return await call
        except grpc.RpcError as failure:
            raise explain(failure, self._settings) from failure
        finally:
            call.cancel()

    def open(self, method: str, request: Message) -> Any:
        """A stream's call. Does not wait."""
        return self._methods[method](request)

    async def close(self) -> None:
        await self._channel.close()


async def _each(content: Content) -> AsyncIterator[bytes]:
    pieces = content.pieces()
    if isinstance(pieces, AsyncIterable):
        async for piece in pieces:
            yield piece
        return
    iterator = iter(pieces)

    def step() -> bytes | None:
        return next(iterator, None)

    # A file is not read on the event loop.
    while (found := await asyncio.to_thread(step) if content.is_blocking else step()) is not None:
        yield found
