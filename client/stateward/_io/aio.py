"""Where the asyncio client meets gRPC: driving steps, a connection, and a stream. The twin of `_sync_io`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from google.protobuf.message import Message

from stateward._blobs import Content, slices
from stateward._channel import Settings, bind_methods, channel_options, explain, grpc, upload_deadline_s
from stateward._operations import Pause
from stateward._streams import END, Open, Read, Reading
from stateward.errors import StatewardError
from stateward.v1.blob_service_pb2 import BlobBegin, WriteBlobRequest

if TYPE_CHECKING:
    from stateward._async import AsyncClient

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
        timeout = self._settings.deadline_s if deadline_s is None else deadline_s
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


class AsyncStream(Generic[T]):
    """What a stream brings, one by one. Opened by `async with` or by the first step of `async for`.

    Waiting for the next may be cancelled, as `asyncio.wait_for` does, and taken up again: nothing is lost.
    """

    def __init__(self, client: AsyncClient, reading: Reading[T]) -> None:
        self._client = client
        self._reading = reading
        self._call: Any = None
        self._closed = asyncio.Event()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        while not self._reading.ready:
            if not await self._pump():
                raise StopAsyncIteration
        return self._reading.ready.popleft()

    async def __aenter__(self) -> Self:
        await self._pump()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the stream. Closing again does nothing."""
        self._reading.ended = True
        self._closed.set()
        if self._call is not None:
            self._call.cancel()

    async def _pump(self) -> bool:
        return await drive(self._reading.next_message(), self._perform)

    async def _perform(self, step: Open | Read | Pause) -> Any:
        match step:
            case Open():
                self._open(step)
            case Read():
                return await self._read()
            case Pause():
                await asyncio.sleep(step.seconds)
        return None

    def _open(self, step: Open) -> None:
        if self._call is not None:
            self._call.cancel()
        self._call = self._client._connected().open(step.method, step.request)
        self._client._streams.add(self)

    async def _read(self) -> Any:
        try:
            message = await self._call.read()
        except asyncio.CancelledError:  # of the call by `close`, or of this task
            if self._closed.is_set() and not _is_being_cancelled():
                return END
            raise
        except grpc.RpcError as failure:
            raise explain(failure, self._client._settings) from failure
        self._client._has_met_daemon = True
        return END if message is grpc.aio.EOF else message


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
