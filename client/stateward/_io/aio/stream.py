"""The asyncio client's streams. `blocking.stream` is the pair of this file."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any, Generic, Self, TypeVar

from stateward._frames import ends_at_the_caller
from stateward._io.aio.connection import Connection
from stateward._io.aio.driving import drive
from stateward._io.channel import Reaching
from stateward._operations.steps import Pause
from stateward._operations.streams import END, Open, Read, Reading
from stateward.errors import StatewardError
from stateward.v1.thread_service_pb2 import WatchRequest

T = TypeVar("T")


@ends_at_the_caller
class AsyncStream(Generic[T]):
    """An asynchronous iterator over the items of a stream. `async with` opens it, or the first step of `async for`.

    A wait for the next item may be cancelled, as `asyncio.wait_for` does, and repeated: no item is lost. The stream
    ends by itself at `until`, a time of `time.monotonic()`.
    """

    def __init__(self, session: Reaching[Connection], reading: Reading[T], until: float | None = None) -> None:
        self._session = session
        self._until = until
        self._reading = reading
        self._call: Any = None
        self._asked: Any = None
        self._pid = os.getpid()
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

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    @property
    def is_ours(self) -> bool:
        """Whether this process made the stream. A forked child neither reads nor ends its parent's stream."""
        return self._pid == os.getpid()

    async def close(self) -> None:
        """Ends the stream. Closing again does nothing."""
        self._reading.ended = True
        if not self.is_ours:
            return
        self._closed.set()
        if self._call is not None:
            self._call.cancel()

    async def begin(self) -> bool:
        """Opens the stream and reads its first message. False if there is none."""
        return await self._pump()

    async def _pump(self) -> bool:
        if not self.is_ours:
            raise RuntimeError("this stream is the parent process's; open one of your own")
        if self._until is None:
            return await drive(self._reading.next_message(), self._perform)
        limit = asyncio.timeout(max(self._until - time.monotonic(), 0))
        try:
            async with limit:
                return await drive(self._reading.next_message(), self._perform)
        except TimeoutError:
            if not limit.expired():  # the stream raised it, such as DeadlineExceeded
                raise
            await self.close()
            return False

    async def _perform(self, step: Open | Read | Pause) -> Any:
        match step:
            case Open():
                await self._open(step)
            case Read():
                return await self._read()
            case Pause():
                await asyncio.sleep(step.seconds)
        return None

    async def _open(self, step: Open) -> None:
        again, self._asked = self._call is not None, step.request
        if self._call is not None:
            self._call.cancel()
        if hasattr(self._asked, "thread"):
            await self._session.look(step.method, self._asked.namespace, self._asked.thread, again=again)
        connection = self._session.connected()
        self._call = connection.open(step.method, step.request)
        connection.streams.add(self)

    async def _read(self) -> Any:
        try:
            message = await self._call.read()
        except asyncio.CancelledError:  # `close` cancelled the call, or somebody this task
            if self._closed.is_set() and not _is_being_cancelled():
                return END
            raise
        except StatewardError as error:
            self._session.has_met_daemon |= bool(error.reason)
            raise
        self._session.has_met_daemon = True
        if isinstance(self._asked, WatchRequest):
            self._session.hear(self._asked.namespace, self._asked.thread, message)
        return message


def watching(stream: AsyncStream[T]) -> AsyncStream[T]:
    """Returns the stream. It opens when it is first read: a function that is not awaited cannot open it."""
    return stream


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
