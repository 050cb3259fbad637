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

from google.protobuf.message import Message

from stateward._io.channel import Settings, explain_status, explain_written, grpc
from stateward.errors import DeadlineExceeded, ServerUnavailable, StatewardError
from stateward.v1.call_service_pb2 import RunCallsRequest, StreamedCall

FIELDS = {"Save": "save", "PutEffects": "put_effects"}
"""The methods that can be called on a stream."""
CALL_BYTES_MAX = 64 << 10
"""Larger requests are made by themselves, so that small ones do not wait behind them."""
_CALLS_MAX, _BYTES_MAX = 256, 512 << 10  # of a message; the daemon takes 1 MiB
_ANSWER_S = 0.5
"""How much later than its deadline the daemon's own answer to a late call may come."""


class CallStream:
    """A stream of calls, on one event loop. After it has ended, another one is made."""

    def __init__(self, open_stream: Callable[[], Any], settings: Settings) -> None:
        self._loop, self._pid = asyncio.get_running_loop(), os.getpid()
        self._stream = open_stream()
        self._settings = settings
        self._last_number = 0
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._outbox: list[tuple[StreamedCall, int]] = []
        self._writing: asyncio.Task[None] | None = None
        self.is_open = True
        # The reading task has no reference to this object, which can so be collected: then the stream ends.
        self._reading = self._loop.create_task(_read(weakref.ref(self), self._stream, self._waiting, settings))

    async def call(self, field: str, request: Message, size_bytes: int, timeout_s: float) -> Any:
        """Makes a call. `field`: of StreamedCall. Raises the error of the call, or of the stream."""
        self._last_number += 1
        number = self._last_number
        call = StreamedCall(call=number, **{field: request})  # type: ignore[arg-type]
        call.timeout.FromMicroseconds(max(int(timeout_s * 1e6), 1))
        answer = self._waiting[number] = self._loop.create_future()
        self._outbox.append((call, size_bytes))
        if self._writing is None:  # a task of its own: a caller's, cancelled while it writes, would end the stream
            self._writing = self._loop.create_task(self._write())
        late = self._loop.call_later(timeout_s + _ANSWER_S, _give_up, answer)
        try:
            return await answer
        finally:
            late.cancel()
            self._waiting.pop(number, None)

    async def _write(self) -> None:
        try:
            while self._outbox:
                await self._stream.write(RunCallsRequest(calls=self._take()))
        except (grpc.RpcError, asyncio.InvalidStateError):
            pass  # the reading task gets the error, and passes it on
        finally:
            self._writing = None

    def _take(self) -> list[StreamedCall]:
        """Takes the calls of the next message."""
        taken, size_bytes = list[StreamedCall](), 0
        for call, call_bytes in self._outbox[:_CALLS_MAX]:
            size_bytes += call_bytes
            if taken and size_bytes > _BYTES_MAX:
                break
            taken.append(call)
        del self._outbox[: len(taken)]
        return taken

    async def close(self, grace_s: float = 0.0) -> None:
        """Ends the stream. Calls under way may end within the grace time."""
        self.is_open = False
        if waiting := [each for each in self._waiting.values() if not each.done()]:
            await asyncio.wait(waiting, timeout=grace_s)
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
    """Passes answers to those who wait, and the error of the stream to all of them."""

    def fail() -> StatewardError:
        return ServerUnavailable("the stream to the daemon ended", code="UNAVAILABLE")

    try:
        while (message := await stream.read()) is not grpc.aio.EOF:
            for answer in message.answers:
                future, kind = waiting.get(answer.call), answer.WhichOneof("answer")
                if future is None or future.done():
                    continue  # its caller has left
                if kind == "refused":
                    future.set_exception(explain_status(answer.refused))
                else:
                    future.set_result(getattr(answer, kind))
    except grpc.RpcError as failure:
        found = failure

        def fail() -> StatewardError:
            return explain_written(found, settings)
    finally:
        if (made := owner()) is not None:
            made.is_open = False
        for future in waiting.values():
            if not future.done():
                future.set_exception(fail())


def _give_up(answer: asyncio.Future[Any]) -> None:
    if not answer.done():
        answer.set_exception(DeadlineExceeded("the daemon did not answer in time", code="DEADLINE_EXCEEDED"))
