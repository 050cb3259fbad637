"""The asyncio client's session."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

from stateward._io.aio.background import IS_ASYNC, awaited, running_loop
from stateward._io.aio.connection import Connection
from stateward._io.aio.driving import drive
from stateward._io.aio.stream import AsyncStream, watching
from stateward._io.session import Place, SessionBase
from stateward._operations.steps import Await, Call, Download, Operation, Pause, ThreadRef, Upload
from stateward._operations.streams import BlobReader, Reader
from stateward._operations.uploads import read_request

T = TypeVar("T")


class AsyncSession(SessionBase[Connection]):
    """How the parts of an asyncio client reach the daemon."""

    async def run(self, operation: Operation[T]) -> T:
        """Carries out an operation with retries."""
        return await drive(self.with_retries(operation), self.perform)

    async def perform(self, step: Call | Pause | Await) -> Any:
        """Carries out one step of an operation without retries."""
        match step:
            case Upload():
                answer = await self.connected().upload(step.request, step.content)  # type: ignore[arg-type]
                self.has_met_daemon = True
                return answer
            case Download():
                return b"".join([piece async for piece in self.open(BlobReader(step.request))])  # type: ignore[arg-type]
            case Call():
                answer = await self.connected().call(step.method, step.request, step.deadline_s)
                self.has_met_daemon = True
                return answer
            case Pause():
                await self.connected().pause(step.seconds)
            case Await():
                return await awaited(step.awaitable)
        return None

    def open(self, reader: Reader[T], until: float | None = None) -> AsyncStream[T]:
        """Returns a stream that opens when it is first read."""
        return AsyncStream(self, self.reading(reader), until)

    def watch(self, reader: Reader[T]) -> AsyncStream[T]:
        """Returns a stream of the events from now on."""
        return watching(self.open(reader))

    async def read_list(self, read: Callable[[Any], Operation[list[T]]], request: Any) -> AsyncIterator[T]:
        """Yields the items of a list, page by page. `read` takes the request and sets its next page token."""
        while True:
            for item in await self.run(read(request)):
                yield item
            if not request.page_token:
                return

    async def close(self) -> None:
        """Ends the open streams and the connections. Closing again does nothing."""
        for connection in self._disconnected():
            await connection.close()

    def _place(self) -> Place:
        return Place(os.getpid(), running_loop())

    def _connect(self) -> Connection:
        return Connection(self.settings)

    def _blobs_of(self, name: str) -> AsyncThreadBlobs:
        return AsyncThreadBlobs(self, name)


class AsyncThreadBlobs:
    """Reads the blobs of a thread, for states that refer to them."""

    is_async = IS_ASYNC

    def __init__(self, session: AsyncSession, thread: str) -> None:
        self._session = session
        self._ref = ThreadRef(session.namespace, thread, "")
        self.policy = session.blob_policy

    async def read(self, digest: bytes, offset: int, length: int | None) -> bytes:
        return b"".join([piece async for piece in self.chunks(digest, offset, length)])

    def chunks(self, digest: bytes, offset: int, length: int | None) -> AsyncStream[bytes]:
        return self._session.open(BlobReader(read_request(self._ref, digest, offset, length)))
