"""The asyncio writer: carries out what `Writing` yields. The twin of `_sync_writer`, which has the docs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from stateward import _async_io, _sync_writer
from stateward._channel import explain, grpc
from stateward._frames import END, Dial, Put, Run, Step, Steps, Take
from stateward._operations import ThreadRef
from stateward._saving import SaveOptions
from stateward._shell import documented_as
from stateward.errors import Internal, ServerUnavailable
from stateward.models import Checkpoint, ThreadOptions
from stateward.state import State
from stateward.writer import HandleShell, WriterShell

if TYPE_CHECKING:
    from stateward._async import AsyncClient


@documented_as(_sync_writer.SaveHandle)
class AsyncSaveHandle(HandleShell):
    """A version that a writer has sent. Waiting for it may be cancelled and taken up again."""

    async def result(self) -> Checkpoint:
        checkpoint: Checkpoint = await self._writer._drive(lambda writing: writing.wait(self._frame))
        return checkpoint


@documented_as(_sync_writer.Writer)
class AsyncWriter(WriterShell):
    """Saves over one stream that holds the thread's lease: the fastest way to save.

    `save` is answered before it returns. `send` returns at once, and the state may be changed and sent again; `flush`
    waits for all. When a version is refused, those sent after it are refused too (WriterAborted), so nothing lands on
    a hole: `send` and `flush` raise what refused it until `reset` gives the state to go on from.

    A stream that breaks is opened again, and what was not answered is sent again: nothing is lost or written twice.
    Once somebody else has taken the lease, everything that was not written raises LeaseHeld.

    Belongs to one task, like a State. Leaving the `async with` block waits for what was sent and gives the lease back.
    """

    def __init__(self, client: AsyncClient, ref: ThreadRef, **options: Any) -> None:
        super().__init__(client, ref, **options)
        self._lock = asyncio.Lock()
        self._call: _Call | None = None

    async def __aenter__(self) -> Self:
        try:
            await self._run(self._writing.open())
        except BaseException:
            await self._drop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close(is_quiet=error is not None)

    async def close(self) -> None:
        await self._close(is_quiet=False)

    async def save(self, state: State, **options: Unpack[SaveOptions]) -> Checkpoint:
        checkpoint: Checkpoint = await self._drive(lambda writing: writing.save(state, options))
        return checkpoint

    async def send(self, state: State, **options: Unpack[SaveOptions]) -> AsyncSaveHandle:
        return AsyncSaveHandle(self, await self._drive(lambda writing: writing.send(state, options)))

    async def flush(self) -> None:
        await self._drive(lambda writing: writing.flush())

    async def reset(self) -> State:
        state: State = await self._drive(lambda writing: writing.reset())
        return state

    async def _drive(self, begin: Callable[[Any], Steps]) -> Any:
        self._require_ours()
        return await self._run(begin(self._writing))

    async def _run(self, steps: Steps) -> Any:
        async with self._lock:
            return await _async_io.drive(steps, self._perform)

    async def _close(self, *, is_quiet: bool) -> None:
        if self._is_closed or not self.is_ours:
            return
        try:
            await self._run(self._writing.close(is_quiet=is_quiet))
        finally:
            self._is_closed = True
            await self._drop()

    async def _drop(self) -> None:
        if self._call is not None:
            await self._call.close()

    async def _perform(self, step: Step) -> Any:
        match step:
            case Put():
                if self._call is not None:
                    await self._call.put(step.message)
            case Take():
                assert self._call is not None
                return await self._call.take(step.seconds)
            case Dial():
                await self._drop()
                self._call = _Call(self._client)
            case Run():
                return await self._client._run(step.operation)
            case _:
                await asyncio.sleep(step.seconds)
        return None


class _Call:
    """One stream. A wait that is cancelled leaves it as it is: the next one goes on waiting for the same message."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._stream = client._connected().open("Write", None)  # type: ignore[arg-type]
        self._reading: asyncio.Future[Any] | None = None
        client._streams.add(self)

    async def put(self, message: Any) -> None:
        """Sends a message; None = there will be no more. What fails shows at the next `take`."""
        try:
            if message is None:
                await self._stream.done_writing()
            else:
                await self._stream.write(message)
        except (grpc.RpcError, asyncio.InvalidStateError):
            pass

    async def take(self, seconds: float | None) -> Any:
        """The next message, or END."""
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._stream.read())
        done, _ = await asyncio.wait([self._reading], timeout=seconds)
        if not done:
            await self.close()
            raise ServerUnavailable("the daemon did not answer in time", code="DEADLINE_EXCEEDED")
        reading, self._reading = self._reading, None
        if reading.cancelled():
            raise ServerUnavailable("the writer's stream was ended here", code="CANCELLED")
        try:
            message = reading.result()
        except grpc.RpcError as failure:
            found = explain(failure, self._client._settings)
            if isinstance(found, Internal) and not found.reason:
                # gRPC's word for a write on a stream that had just broken; the daemon's own errors have a reason.
                raise ServerUnavailable("the writer's stream broke", code=found.code) from failure
            raise found from failure
        self._client._has_met_daemon = True
        return END if message is grpc.aio.EOF else message

    async def close(self) -> None:
        self._stream.cancel()
        if self._reading is not None:
            await asyncio.wait([self._reading])
            if not self._reading.cancelled():
                self._reading.exception()  # it is known: the stream was ended


@documented_as(_sync_writer.ThreadWriting)
class AsyncThreadWriting:
    """Part of `AsyncThread`."""

    _client: AsyncClient
    _ref: ThreadRef

    def writer(
        self,
        *,
        term: float = 30.0,
        wait: float | None = None,
        take_over: bool = False,
        create: ThreadOptions | None = None,
    ) -> AsyncWriter:
        return AsyncWriter(self._client, self._ref, term=term, wait=wait, take_over=take_over, create=create)
