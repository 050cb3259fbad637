"""Calls over one stream, for asyncio clients that make many small ones.

A message on a stream costs client and daemon about half of what a call costs by itself, and calls that are made while a
message is being sent travel together in the next one. Otherwise such a call is as any other.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Callable
from typing import Any

import grpc
from google.protobuf.message import Message

from stateward._io.channel import Settings
from stateward._io.stubs import explain_written
from stateward._operations.failures import error_from_status
from stateward._operations.tracing import trace_parent
from stateward.errors import DeadlineExceeded, ServerUnavailable, StatewardError
from stateward.v1.call_service_pb2 import RunCallsRequest, StreamedCall

FIELDS = {"Save": "save", "PutEffects": "put_effects"}
"""The methods that can be called on a stream."""
CALL_BYTES_MAX = 64 << 10
"""Larger requests are made by themselves, so that small ones do not wait behind them."""
CLOSE_S = 5.0
"""How long calls that are under way when an event loop ends may still take, such as those of other generators."""
_CALLS_MAX, _BYTES_MAX = 256, 512 << 10  # of a message, before the last call in it; the daemon takes 1 MiB
LINGER_S = 0.1
"""How long a stream without calls stays open."""
_ANSWER_S = 0.5
"""How much later than its deadline the daemon's own answer to a late call may come."""


class NotAnswered(Exception):
    """Raised for each call that waits when its stream ends. The end of the stream says nothing about the call, which is
    made again by itself: it has a request id, so it is applied once."""

    def __init__(self, error: StatewardError) -> None:
        """`error`: why the stream ended."""
        super().__init__(str(error))
        self.error = error


class CallStream:
    """A stream of calls, on one event loop. After it has ended, another one is made."""

    def __init__(self, open_stream: Callable[[], Any], settings: Settings, lingers_s: float | None) -> None:
        """`lingers_s`: how long it stays open without calls; None = until it is closed."""
        self._loop, self._pid = asyncio.get_running_loop(), os.getpid()
        self._stream = open_stream()
        self._lingers_s = lingers_s
        self._last_number = 0
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._outbox: dict[int, tuple[StreamedCall, int]] = {}
        self._writing: asyncio.Task[None] | None = None
        self._idle: asyncio.TimerHandle | None = None
        self.is_open = True
        # The reading task has no reference to this object, which can so be collected: then the stream ends.
        self._reading = self._loop.create_task(_read(weakref.ref(self), self._stream, self._waiting, settings))

    async def call(self, field: str, request: Message, size_bytes: int, timeout_s: float) -> Any:
        """Makes a call. `field`: of StreamedCall. Raises the error of the call, and NotAnswered."""
        self._last_number += 1
        number = self._last_number
        call = StreamedCall(call=number, traceparent=trace_parent(), **{field: request})  # type: ignore[arg-type]
        call.timeout.FromMicroseconds(max(int(timeout_s * 1e6), 1))
        answer = self._waiting[number] = self._loop.create_future()
        self._outbox[number] = call, size_bytes
        if self._writing is None:  # a task of its own: a caller's, cancelled while it writes, would end the stream
            self._writing = self._loop.create_task(self._write())
        late = self._loop.call_later(timeout_s + _ANSWER_S, _give_up, answer)
        try:
            return await answer
        finally:
            late.cancel()
            self._waiting.pop(number, None)
            self._outbox.pop(number, None)  # a daemon that hangs takes nothing, and callers give up
            if not self._waiting and self._lingers_s is not None and self._idle is None:
                self._idle = self._loop.call_later(self._lingers_s, self._end_if_idle)

    def _end_if_idle(self) -> None:
        self._idle = None
        if self.is_open and not self._waiting:
            self.is_open = False
            self._writing = self._writing or self._loop.create_task(self._write())

    async def _write(self) -> None:
        try:
            while self._outbox:
                await self._stream.write(RunCallsRequest(calls=self._take()))
            if not self.is_open:
                await self._stream.done_writing()
        except (grpc.RpcError, asyncio.InvalidStateError):
            pass  # the reading task gets the error, and passes it on
        finally:
            self._writing = None

    def _take(self) -> list[StreamedCall]:
        """Takes the calls of the next message."""
        taken, size_bytes = list[StreamedCall](), 0
        while self._outbox and len(taken) < _CALLS_MAX and size_bytes < _BYTES_MAX:
            call, call_bytes = self._outbox.pop(next(iter(self._outbox)))
            taken.append(call)
            size_bytes += call_bytes
        return taken

    async def close(self) -> None:
        """Ends the stream. Calls under way may still end."""
        self.is_open = False
        if waiting := [each for each in self._waiting.values() if not each.done()]:
            await asyncio.wait(waiting, timeout=CLOSE_S)
        self._stream.cancel()

    def __del__(self) -> None:
        if self._pid != os.getpid():  # a forked child never ends the parent's stream
            return
        try:
            self._loop.call_soon_threadsafe(self._stream.cancel)
        except RuntimeError:  # the event loop is closed
            self._stream.cancel()


async def _read(
    owner: weakref.ref[CallStream], stream: Any, waiting: dict[int, asyncio.Future[Any]], settings: Settings
) -> None:
    """Passes answers to those who wait, and the end of the stream to all of them."""
    broken: grpc.RpcError | None = None
    try:
        while (message := await stream.read()) is not grpc.aio.EOF:
            for answer in message.answers:
                future, kind = waiting.get(answer.call), answer.WhichOneof("answer")
                if future is None or future.done():
                    continue  # its caller has left
                if kind == "refused":
                    future.set_exception(error_from_status(answer.refused))
                else:
                    future.set_result(getattr(answer, kind))
    except grpc.RpcError as failure:
        broken = failure
    finally:
        if (made := owner()) is not None:
            made.is_open = False
        for future in waiting.values():
            if not future.done():
                future.set_exception(_why(broken, settings))


def _why(broken: grpc.RpcError | None, settings: Settings) -> NotAnswered:
    """Returns a new exception for each caller whose stream is over."""
    if broken is None:
        return NotAnswered(ServerUnavailable("the stream to the daemon ended", code="UNAVAILABLE"))
    return NotAnswered(explain_written(broken, settings))


def _give_up(answer: asyncio.Future[Any]) -> None:
    if not answer.done():
        answer.set_exception(DeadlineExceeded("the daemon did not answer in time", code="DEADLINE_EXCEEDED"))
