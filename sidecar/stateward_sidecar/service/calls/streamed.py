"""CallService: calls over one stream.

For a call by itself, gRPC's own work is about half of the daemon's. A message on a stream costs half of that, and many
calls can share a message. Everything else is as for a call by itself: admission, turns, errors, measures.

One task reads, and each call has a task of its own. A task whose call ends sends the answer, together with those of the
calls that end meanwhile, unless another task is sending. A call is unanswered until gRPC has taken its answer, so a
client that reads no answers is soon not read, either.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic, perf_counter
from typing import Any, TypeVar

import grpc.aio
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.rpc.status_pb2 import Status

from stateward.v1.call_service_pb2 import CallAnswer, RunCallsRequest, RunCallsResponse, StreamedCall
from stateward_sidecar import spans
from stateward_sidecar.errors import (
    DeadlineExceeded,
    InvalidField,
    PermissionDenied,
    QueueFull,
    ShuttingDown,
    StatewardError,
)
from stateward_sidecar.service.admission.grants import Caller, Need, needs_of
from stateward_sidecar.service.admission.order import Turns, flow_of
from stateward_sidecar.service.admission.streams import Crowd, Held
from stateward_sidecar.service.calls.calls import Calls
from stateward_sidecar.service.calls.evidence import note_denied
from stateward_sidecar.service.calls.exchange import Exchange as StreamExchange
from stateward_sidecar.service.calls.method import caller_of_call, message_bytes, spend
from stateward_sidecar.service.calls.status import as_expected, foreseen, to_status
from stateward_sidecar.service.checks import check
from stateward_sidecar.service.checks.apart import numbers_of, without_wrong_calls
from stateward_sidecar.service.methods import METHODS, verb_name
from stateward_sidecar.telemetry import log

T = TypeVar("T")
CALLS_MAX = 256
"""The most calls of a message, the most answers of one, and the most unanswered calls of a stream that still reads."""
Exchange = StreamExchange[RunCallsRequest, RunCallsResponse]


@dataclass(frozen=True, slots=True)
class Verb:
    """A method that can be called on a stream."""

    service: str
    name: str
    run: Callable[[Any, Any], Awaitable[Message]] | None
    """None = this daemon does not know the method."""
    needs: tuple[Need, ...] = ()
    """What a caller needs."""

    @property
    def path(self) -> str:
        """The name of the method in traces, as for a call by itself."""
        return f"stateward.v1.{self.service}/{self.name}"

    @property
    def full_name(self) -> str:
        """The name of the method in the log, as for a call by itself."""
        return f"stateward.v1.{self.service}.{self.name}"


UNKNOWN = Verb("CallService", "RunCalls", None)


def verbs_of(services: Mapping[ServiceDescriptor, object]) -> dict[str, Verb]:
    """Returns the methods that can be called on a stream, by the field of StreamedCall that has their request."""
    return {
        verb_name(method): Verb(descriptor.name, method.name, getattr(service, verb_name(method)), needs_of(method))
        for descriptor, service in services.items()
        for method in descriptor.methods
        if METHODS[method.name].is_streamed
    }


class Deadline:
    """What verbs ask the context of a call for."""

    __slots__ = ("_until_s",)

    def __init__(self, timeout_s: float | None) -> None:
        self._until_s = None if timeout_s is None else monotonic() + timeout_s

    def time_remaining(self) -> float | None:
        """Seconds until the deadline, at least 0; None = there is no deadline."""
        return None if self._until_s is None else max(self._until_s - monotonic(), 0.0)


class CallService:
    """Runs calls that come on streams."""

    def __init__(self, calls: Calls, turns: Turns, verbs: Mapping[str, Verb]) -> None:
        """``verbs``: by the field of StreamedCall that has their request."""
        self._calls, self._turns, self._verbs = calls, turns, verbs
        self._reading: set[asyncio.Task[None]] = set()
        self._crowd = Crowd()
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

    def __init__(self, calls: Calls, turns: Turns, verbs: Mapping[str, Verb], exchange: Exchange, crowd: Crowd) -> None:
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
        while (data := await self._exchange.receive()) is not None:
            taken, wrong = await self._open(data)
            held = Held(self._exchange.keep())
            try:
                for call in taken:
                    while self._unanswered and not self._crowd.has_place():
                        self._crowd.wait(self)
                        await self._wait_for_fewer()
                    self._begin(call, held, wrong.get(call.call), is_only=len(taken) == 1)
            finally:
                held.let_go()
            while self._unanswered >= CALLS_MAX:
                await self._wait_for_fewer()

    async def _open(self, data: bytes) -> tuple[Sequence[StreamedCall], Mapping[int, StatewardError]]:
        """Returns the calls of a message, and the errors of those that cannot be taken.

        Raises InvalidField if they cannot be told apart, and the client must learn which of them were not taken.
        """
        try:
            request = await self._exchange.open(data)
            self._check([call.call for call in request.calls])
            return request.calls, {}
        except _Unnumbered:
            raise
        except QueueFull as full:
            numbers, wrong = await self._told_apart(data, numbers_of, full), full
            self._check(numbers)
            return [StreamedCall(call=number) for number in numbers], dict.fromkeys(numbers, wrong)
        except InvalidField as invalid:
            return await self._without_wrong(data, invalid)

    async def _without_wrong(
        self, data: bytes, invalid: InvalidField
    ) -> tuple[Sequence[StreamedCall], Mapping[int, StatewardError]]:
        kept, numbers, errors = await self._told_apart(data, without_wrong_calls, invalid)
        if not errors:  # then the message is wrong as a whole
            raise invalid
        self._check(numbers)
        try:
            calls = list((await self._exchange.open(kept)).calls)
        except QueueFull as full:
            return [StreamedCall(call=number) for number in numbers], {**dict.fromkeys(numbers, full), **errors}
        return [*calls, *(StreamedCall(call=number) for number in errors)], errors

    async def _told_apart(self, data: bytes, verb: Callable[[bytes], T], error: StatewardError) -> T:
        """Takes a message apart on the parser thread, one message at a time. Raises ``error`` if that is impossible."""
        try:
            return await self._exchange.aside(data, verb)
        except DecodeError:
            raise error from None

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
        """Cancels running calls, and drops answers that the client never took."""
        for running in self._running:
            running.cancel()
        self._note_answered(self._unanswered)

    def _note_answered(self, calls: int) -> None:
        calls = min(calls, self._unanswered)  # fewer if the stream is over
        self._unanswered -= calls
        self._crowd.leave(calls)
        self.wake()

    def _check(self, numbers: Sequence[int]) -> None:
        if not 0 < len(numbers) <= CALLS_MAX:
            raise _Unnumbered("calls", f"has {len(numbers)} calls; a message has 1 to {CALLS_MAX}")
        for number in numbers:
            if number <= self._last_number:
                raise _Unnumbered("calls.call", f"{number} is not larger than {self._last_number} before it")
            self._last_number = number

    def _begin(self, call: StreamedCall, held: Held, error: StatewardError | None, *, is_only: bool) -> None:
        held.hold()
        self._unanswered += 1
        self._crowd.enter()
        running = asyncio.get_running_loop().create_task(self._run(call, held, error, is_only=is_only))
        self._running.add(running)

        def end(done: asyncio.Task[None]) -> None:
            self._running.discard(done)
            held.let_go()
            if not done.cancelled():
                done.exception()  # the stream broke while the answer was sent

        running.add_done_callback(end)

    async def _run(self, call: StreamedCall, held: Held, error: StatewardError | None, *, is_only: bool) -> None:
        """Runs a call as if it had come by itself, and sends its answer. ``error``: why it cannot be taken."""
        began_s = perf_counter()
        end_span: Callable[[str], None] = _ended
        field = call.WhichOneof("request") or ""
        answer, verb, code = CallAnswer(call=call.call), self._verbs.get(field, UNKNOWN), "OK"
        request = None
        try:
            if error is not None:
                raise error
            if verb.run is None:
                raise InvalidField("calls.request", "is required: one request, of a method that this daemon knows")
            request = getattr(call, field)
            spans.call_id.set(request.options.request_id)
            if spans.tracer is not None:
                end_span = spans.tracer.begin_call(verb.path, (("traceparent", call.traceparent),))
            if not is_only:
                message_bytes.set(request.ByteSize())
            getattr(answer, field).CopyFrom(await self._in_time(verb, request, call, held))
        except asyncio.CancelledError:
            end_span("CANCELLED")
            self._note(verb, "CANCELLED", began_s)
            raise
        except Exception as failure:  # noqa: BLE001  (the boundary)
            known = foreseen(as_expected(failure, request), verb.full_name)
            if isinstance(known, PermissionDenied):
                note_denied(known, verb.full_name, self._exchange.context)
            status, _, details = to_status(known)
            code = status.name
            answer.refused.CopyFrom(Status.FromString(details))
        end_span(code)
        self._note(verb, code, began_s)
        await self._send(answer)

    async def _in_time(self, verb: Verb, request: Any, call: StreamedCall, held: Held) -> Message:
        """Runs a call until its deadline. Raises DeadlineExceeded, and the errors of the verb."""
        timeout_s = None
        if call.HasField("timeout"):
            check.check_duration(call.timeout, "calls.timeout")
            timeout_s = call.timeout.ToMicroseconds() / 1e6
        limit = asyncio.timeout(timeout_s)
        try:
            async with limit:
                return await self._admitted(verb, request, Deadline(timeout_s), held)
        except TimeoutError:
            if not limit.expired():
                raise
            raise DeadlineExceeded("the deadline passed before the call ended; its outcome is unknown") from None

    async def _admitted(self, verb: Verb, request: Any, deadline: Deadline, held: Held) -> Message:
        facts, places = METHODS[verb.name], None
        if (caller := caller_of_call.get()) is not None:
            caller.admit(verb.needs, request)
            if caller.principal.allowance is not None:
                places = caller.principal.allowance.places_of(facts)
                places.enter()
        stream = self._exchange.held
        inner = stream.inner() if stream is not None else None
        try:
            if inner is not None:
                await inner.pass_in(verb.needs, request)
            if places is not None and caller is not None and facts.stores:
                spend(caller, request)
            assert verb.run is not None
            run: Callable[[], Awaitable[Message]] = partial(verb.run, request, deadline)
            if inner is not None and inner.key:
                run = partial(inner.run, verb.needs, request, run)
            return await self._passed(verb, request, run, held, caller)
        finally:
            if places is not None:
                places.leave()
            if inner is not None:
                inner.close()

    async def _passed(
        self, verb: Verb, request: Any, run: Callable[[], Awaitable[Message]], held: Held, caller: Caller | None
    ) -> Message:
        self._calls.ownership.gate.admit(METHODS[verb.name])
        self._turns.begin_call()
        try:
            if not self._turns.passes(is_write=True):
                await self._turns.wait_in_line(flow_of(request, verb.name), is_write=True)
                if caller is not None:  # the file of principals may have changed meanwhile
                    caller.admit(verb.needs, request)
            return await held.to_its_end(run())
        finally:
            self._turns.end_call()

    def _note(self, verb: Verb, code: str, began_s: float) -> None:
        took_s = perf_counter() - began_s
        if self._calls.measures is not None:
            self._calls.measures.note(verb.name, code, took_s)
        if log.shows_calls:
            log.debug("call", method=verb.full_name, code=code, ms=round(took_s * 1e3, 3))

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


class _Unnumbered(InvalidField):
    """Calls cannot be told apart. Ends the stream."""


def _ended(_: str) -> None:
    """Ends the span of a call, if traces are off."""
