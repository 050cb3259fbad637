"""CallService: calls over one stream.

For a call by itself, gRPC's own work is about half of the daemon's. A message on a stream costs half of that, and many
calls can share a message. Everything else is as for a call by itself: admission, turns, errors, measures.

One task reads, and each call has a task of its own. A task whose call ends sends the answer, together with those of the
calls that end meanwhile, unless another task is sending. A call is unanswered until gRPC has taken its answer, so a
client that reads no answers is soon not read, either.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from time import monotonic, perf_counter
from typing import Any, Protocol

import grpc.aio
from google.protobuf.message import Message
from google.rpc.status_pb2 import Status

from stateward.v1.call_service_pb2 import CallAnswer, RunCallsRequest, RunCallsResponse, StreamedCall
from stateward_sidecar import spans
from stateward_sidecar.errors import DeadlineExceeded, InvalidField, ShuttingDown
from stateward_sidecar.service import check
from stateward_sidecar.service.calls import Calls
from stateward_sidecar.service.method import message_bytes
from stateward_sidecar.service.status import foreseen, to_status
from stateward_sidecar.service.turns import Turns, flow_of
from stateward_sidecar.telemetry import log

CALLS_MAX = 256
"""The most calls of a message, the most answers of one, and the most unanswered calls of a stream that still reads."""
ALL_CALLS_MAX = 4096
"""The most unanswered calls of all streams. Beyond it, each stream may have one."""


class Exchange(Protocol):
    """Both directions of the stream. At most one task reads and one task writes at a time."""

    async def read(self) -> RunCallsRequest | None:
        """Returns the next message; None after the last one."""

    def keep(self) -> Callable[[], None] | None:
        """Hands over the memory of the last message. Returns what gives it back; None = the message is small."""

    async def write(self, answer: RunCallsResponse) -> None:
        """Sends a message."""


@dataclass(frozen=True, slots=True)
class Verb:
    """A method that can be called on a stream."""

    service: str
    name: str
    run: Callable[[Any, Any], Awaitable[Message]]

    @property
    def path(self) -> str:
        """The name of the method in traces, as for a call by itself."""
        return f"stateward.v1.{self.service}/{self.name}"

    @property
    def full_name(self) -> str:
        """The name of the method in the log, as for a call by itself."""
        return f"stateward.v1.{self.service}.{self.name}"


class Deadline:
    """What verbs ask the context of a call for."""

    __slots__ = ("_until_s",)

    def __init__(self, timeout_s: float | None) -> None:
        self._until_s = None if timeout_s is None else monotonic() + timeout_s

    def time_remaining(self) -> float | None:
        """Seconds until the deadline, at least 0; None = there is no deadline."""
        return None if self._until_s is None else max(self._until_s - monotonic(), 0.0)


class _Held:
    """The memory of a message: until all its calls have been begun, and their work has ended."""

    __slots__ = ("_give_back", "_holders")

    def __init__(self, give_back: Callable[[], None] | None) -> None:
        self._give_back, self._holders = give_back, 1

    def hold(self) -> None:
        """Something more needs the message."""
        self._holders += 1

    def let_go(self, *_: object) -> None:
        """Something needs it no longer. Ignores its arguments, so that it can be a callback."""
        self._holders -= 1
        if not self._holders and self._give_back is not None:
            self._give_back()

    async def to_its_end(self, work: Awaitable[Message]) -> Message:
        """Works on a call of a large message to its end, even if its caller leaves, because the work cannot be
        stopped."""
        if self._give_back is None:
            return await work
        working = asyncio.ensure_future(work)
        self.hold()
        working.add_done_callback(self.let_go)
        working.add_done_callback(lambda done: done.cancelled() or done.exception())  # the caller may have left
        return await asyncio.shield(working)


class _Crowd:
    """The unanswered calls of all streams, which are bounded together."""

    def __init__(self) -> None:
        self._count = 0
        self._waiting: dict[_Stream, None] = {}

    def has_place(self) -> bool:
        """Whether a stream that has unanswered calls may begin another one."""
        return self._count < ALL_CALLS_MAX

    def enter(self) -> None:
        """A call begins."""
        self._count += 1

    def leave(self, calls: int) -> None:
        """Calls have been answered, or their stream is over. Wakes the streams that have waited longest."""
        self._count -= calls
        for stream in list(self._waiting)[: max(ALL_CALLS_MAX - self._count, 0)]:
            stream.wake()

    def wait(self, stream: _Stream) -> None:
        """A stream begins to wait, behind the others."""
        self._waiting[stream] = None

    def go(self, stream: _Stream) -> None:
        """A stream no longer waits."""
        self._waiting.pop(stream, None)


class CallService:
    """Runs calls that come on streams."""

    def __init__(self, calls: Calls, turns: Turns, verbs: Mapping[str, Verb]) -> None:
        """``verbs``: by the field of StreamedCall that has their request."""
        self._calls, self._turns, self._verbs = calls, turns, verbs
        self._reading: set[asyncio.Task[None]] = set()
        self._crowd = _Crowd()
        self._is_stopping = False

    def close(self) -> None:
        """Takes no more calls, because the daemon stops. Taken calls are still answered."""
        self._is_stopping = True
        for reading in self._reading:
            reading.cancel()

    async def run_calls(self, exchange: Exchange, context: grpc.aio.ServicerContext) -> None:
        stream = _Stream(self._calls, self._turns, self._verbs, exchange, self._crowd)
        reading = asyncio.ensure_future(stream.take_all())
        self._reading.add(reading)
        try:
            if self._is_stopping:
                reading.cancel()
            await asyncio.wait([reading])
            await stream.settle()
            if reading.cancelled():
                raise ShuttingDown("the daemon is stopping; make the calls again when it is back")
            reading.result()  # raises the error that ended the stream
        finally:
            self._reading.discard(reading)
            reading.cancel()
            stream.cancel()


class _Stream:
    """The state of a stream."""

    def __init__(
        self, calls: Calls, turns: Turns, verbs: Mapping[str, Verb], exchange: Exchange, crowd: _Crowd
    ) -> None:
        self._calls, self._turns, self._verbs, self._exchange, self._crowd = calls, turns, verbs, exchange, crowd
        self._running: set[asyncio.Task[None]] = set()
        self._last_number = 0
        self._answers: list[CallAnswer] = []
        self._is_sending = False
        # Calls whose answer gRPC has not taken yet.
        self._unanswered = 0
        # Set while the reading task waits until there are fewer.
        self._fewer: asyncio.Future[None] | None = None

    async def take_all(self) -> None:
        """Takes messages until the client ends the stream, and begins their calls."""
        while (request := await self._exchange.read()) is not None:
            self._check(request)
            held = _Held(self._exchange.keep())
            try:
                for call in request.calls:
                    while self._unanswered and not self._crowd.has_place():
                        self._crowd.wait(self)
                        await self._wait_for_fewer()
                    self._begin(call, held, is_only=len(request.calls) == 1)
            finally:
                held.let_go()
            while self._unanswered >= CALLS_MAX:
                await self._wait_for_fewer()

    async def _wait_for_fewer(self) -> None:
        """Waits until a call of this stream is answered, or the crowd wakes this stream."""
        self._fewer = asyncio.get_running_loop().create_future()
        try:
            await self._fewer
        finally:
            self._fewer = None
            self._crowd.go(self)

    def wake(self) -> None:
        """Lets the reading task look again, if it waits."""
        if self._fewer is not None and not self._fewer.done():
            self._fewer.set_result(None)

    async def settle(self) -> None:
        """Waits until all calls are answered."""
        while self._running:
            await asyncio.wait(self._running)

    def cancel(self) -> None:
        """Ends the calls whose client has left, and forgets those that it has not taken the answers of."""
        for running in self._running:
            running.cancel()
        self._note_answered(self._unanswered)

    def _note_answered(self, calls: int) -> None:
        calls = min(calls, self._unanswered)  # fewer if the stream is over
        self._unanswered -= calls
        self._crowd.leave(calls)
        self.wake()

    def _check(self, request: RunCallsRequest) -> None:
        if not 0 < len(request.calls) <= CALLS_MAX:
            raise InvalidField("calls", f"has {len(request.calls)} calls; a message has 1 to {CALLS_MAX}")
        for call in request.calls:
            if call.call <= self._last_number:
                raise InvalidField("calls.call", f"{call.call} is not larger than {self._last_number} before it")
            self._last_number = call.call

    def _begin(self, call: StreamedCall, held: _Held, *, is_only: bool) -> None:
        held.hold()
        self._unanswered += 1
        self._crowd.enter()
        running = asyncio.get_running_loop().create_task(self._run(call, held, is_only=is_only))
        self._running.add(running)

        def end(done: asyncio.Task[None]) -> None:
            self._running.discard(done)
            held.let_go()
            if not done.cancelled():
                done.exception()  # the stream broke while the answer was sent

        running.add_done_callback(end)

    async def _run(self, call: StreamedCall, held: _Held, *, is_only: bool) -> None:
        """Runs a call as if it had come by itself, and sends its answer."""
        began_s = perf_counter()
        end_span: Callable[[str], None] = _ended
        field = call.WhichOneof("request") or ""
        answer, verb, code = CallAnswer(call=call.call), self._verbs.get(field), "OK"
        name = verb.name if verb is not None else "RunCalls"
        full_name = verb.full_name if verb is not None else "stateward.v1.CallService.RunCalls"
        try:
            if verb is None:
                raise InvalidField("calls.request", "is required: one request, of a method that this daemon knows")
            request = getattr(call, field)
            spans.call_id.set(request.request_id)
            if spans.tracer is not None:
                end_span = spans.tracer.begin_call(verb.path, (("traceparent", call.traceparent),))
            if not is_only:
                message_bytes.set(request.ByteSize())
            getattr(answer, field).CopyFrom(await self._in_time(verb, request, call, held))
        except asyncio.CancelledError:
            end_span("CANCELLED")
            self._note(name, full_name, "CANCELLED", began_s)
            raise
        except Exception as error:  # noqa: BLE001  (the boundary)
            status, _, details = to_status(foreseen(error, full_name))
            code = status.name
            answer.refused.CopyFrom(Status.FromString(details))
        end_span(code)
        self._note(name, full_name, code, began_s)
        await self._send(answer)

    async def _in_time(self, verb: Verb, request: Any, call: StreamedCall, held: _Held) -> Message:
        """Runs a call until its deadline. Raises DeadlineExceeded, and the errors of the verb."""
        if not call.HasField("timeout"):
            return await self._admitted(verb, request, Deadline(None), held)
        check.check_duration(call.timeout, "calls.timeout")
        timeout_s = call.timeout.ToMicroseconds() / 1e6
        task, is_late = asyncio.current_task(), False
        assert task is not None

        def end() -> None:
            nonlocal is_late
            is_late = True
            task.cancel()

        late = asyncio.get_running_loop().call_later(timeout_s, end)
        try:
            return await self._admitted(verb, request, Deadline(timeout_s), held)
        except asyncio.CancelledError:
            if not is_late or task.uncancel():
                raise
            raise DeadlineExceeded("the deadline passed before the call ended; its outcome is unknown") from None
        finally:
            late.cancel()

    async def _admitted(self, verb: Verb, request: Any, deadline: Deadline, held: _Held) -> Message:
        self._calls.holding.gate.admit(verb.name)
        self._turns.note_arrival()
        await self._turns.wait(flow_of(request, verb.name), is_write=True)
        return await held.to_its_end(verb.run(request, deadline))

    def _note(self, name: str, full_name: str, code: str, began_s: float) -> None:
        if self._calls.measures is not None:
            self._calls.measures.note(name, code, perf_counter() - began_s)
        if log.shows_calls:
            log.debug("call", method=full_name, code=code, ms=round((perf_counter() - began_s) * 1e3, 3))

    async def _send(self, answer: CallAnswer) -> None:
        """Sends an answer, alone or with others that are there when it is its turn."""
        self._answers.append(answer)
        if self._is_sending:
            return
        self._is_sending = True
        try:
            await asyncio.sleep(0)  # calls that were committed together end in the same turn of the loop
            while self._answers:
                answers, self._answers = self._answers[:CALLS_MAX], self._answers[CALLS_MAX:]
                try:
                    await self._exchange.write(RunCallsResponse(answers=answers))
                finally:
                    self._note_answered(len(answers))
        finally:
            self._is_sending = False


def _ended(_: str) -> None:
    """Ends the span of a call, if traces are off."""
