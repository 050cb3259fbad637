"""Wraps every call: reads and parses its message, measures it, and turns an error into a status.

Measures calls, if metrics are on: counts how each call ended and how long it took. Traces them, if traces are on.

A call begins when gRPC hands it over, before its message is read, and ends when its answer was made. A call whose
client has left counts as CANCELLED.

Handlers are plain async methods. A message that does not parse is INVALID_FIELD, a message that is too large is
STATE_TOO_LARGE, and a StatewardError becomes its status. Any other error is logged once and becomes INTERNAL without
details.

To gRPC every method is a stream of requests, so the daemon decides when it takes the bytes of a message.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, aclosing, closing, nullcontext
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple, NoReturn, TypeVar, cast

import grpc
import grpc.aio
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from stateward_sidecar import spans
from stateward_sidecar.errors import PermissionDenied, StatewardError, Unauthenticated
from stateward_sidecar.measures import CallMeasures
from stateward_sidecar.service.admission.callers import Callers
from stateward_sidecar.service.admission.grants import needs_of
from stateward_sidecar.service.admission.held import UNASKED, HeldCall, HeldGate
from stateward_sidecar.service.admission.memory import Reserved, Room, Share
from stateward_sidecar.service.admission.order import Turns
from stateward_sidecar.service.calls.evidence import note_denied
from stateward_sidecar.service.calls.exchange import Exchange
from stateward_sidecar.service.calls.method import (
    ASIDE_BYTES,
    RECEIVING_SHARE,
    TIGHT_MESSAGES,
    Method,
    socket_of_call,
)
from stateward_sidecar.service.calls.status import as_expected, foreseen, to_status, trailers
from stateward_sidecar.service.local.running import LocalMethod
from stateward_sidecar.service.methods import METHODS, Kind
from stateward_sidecar.spans import Tracer
from stateward_sidecar.telemetry import log

_NAMES = {code.value[0]: code.name for code in grpc.StatusCode}
Handle = Callable[[Any, grpc.aio.ServicerContext], Awaitable[Any]]
# Takes method, code and seconds of a call that has ended.
Note = Callable[[str, str, float], None]


def traced(handle: Handle, method: str, tracer: Tracer) -> Handle:
    """Returns a handler that does the same, in a span."""

    async def run(request: object, context: grpc.aio.ServicerContext) -> Any:
        end = tracer.begin_call(method, context.invocation_metadata() or ())
        try:
            answer = await handle(request, context)
        except BaseException as error:
            end(_code(error, context))
            raise
        end("OK")
        return answer

    return run


def logged(handle: Handle, method: str) -> Handle:
    """Returns a handler that does the same, and logs each call at its end."""
    return measured(handle, method, _log)


def _log(method: str, code: str, duration_s: float) -> None:
    log.debug("call", method=method, code=code, ms=round(duration_s * 1e3, 3))


def measured(handle: Handle, method: str, note: Note) -> Handle:
    """Returns a handler that does the same, and notes each call at its end."""

    async def run(request: object, context: grpc.aio.ServicerContext) -> Any:
        began = perf_counter()
        try:
            answer = await handle(request, context)
        except BaseException as error:
            note(method, _code(error, context), perf_counter() - began)
            raise
        note(method, "OK", perf_counter() - began)
        return answer

    return run


def _code(error: BaseException, context: grpc.aio.ServicerContext) -> str:
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return "CANCELLED"
    code = context.code()
    return str(_NAMES.get(code if isinstance(code, int) else code.value[0], "UNKNOWN"))


T = TypeVar("T")


def _through(own: Path, handle: Callable[..., Any]) -> Handle:
    """Returns a handler that does the same for calls which come through the socket of a principal."""

    async def run(request: object, context: grpc.aio.ServicerContext) -> Any:
        socket_of_call.set(own)  # in the task of the call
        return await handle(request, context)

    return run


class Made(NamedTuple):
    """What answers the calls of a method, on either wire."""

    handle: Callable[..., Any]
    """Takes None and the context of a call. Returns an awaitable of bytes, or of None for a stream, which it wrote."""
    method: Method

    def for_grpc(self, descriptor: MethodDescriptor, own: Path | None = None) -> grpc.RpcMethodHandler:
        """Returns the handler that gRPC calls. ``own``: the socket of a principal, if the server listens at one."""
        handle = self.handle if own is None else _through(own, self.handle)
        if descriptor.server_streaming:
            return grpc.stream_stream_rpc_method_handler(handle, response_serializer=_serialize)
        return grpc.stream_unary_rpc_method_handler(handle)

    def for_frames(self, descriptor: MethodDescriptor) -> LocalMethod:
        """Returns what the local wire calls."""
        return LocalMethod(
            self.method.name, descriptor.input_type.name, self.handle, self.method.bytes_max,
            descriptor.client_streaming, descriptor.server_streaming, self.method.is_holding,
            METHODS[descriptor.name].is_streamed,
        )  # fmt: skip


def make_handler(
    descriptor: MethodDescriptor,
    verb: Callable[..., Any],
    bytes_max: int,
    door: AbstractContextManager[None],
    room: Room,
    turns: Turns,
    measures: CallMeasures | None = None,
    callers: Callers | None = None,
    held: HeldGate | None = None,
) -> Made:
    """Returns what answers the calls of a method.

    ``measures``: None = metrics are off. ``callers``: None = anybody may call.
    """
    facts = METHODS[descriptor.name]
    is_tight = room.requests.total_bytes < TIGHT_MESSAGES * RECEIVING_SHARE * bytes_max
    method = Method(
        descriptor.full_name, GetMessageClass(descriptor.input_type), bytes_max, door, room, turns,
        is_write=facts.kind is Kind.WORK,
        is_tight=is_tight and bytes_max > ASIDE_BYTES, is_repeatable=facts.may_repeat,
        is_holding=facts.keeps_messages, has_options="options" in descriptor.input_type.fields_by_name,
        may_wait=callers is not None and "wait" in descriptor.input_type.fields_by_name,
        callers=callers, needs=needs_of(descriptor), facts=facts, carries_calls=descriptor.name == "RunCalls",
        held=held if descriptor.name not in UNASKED else None,
    )  # fmt: skip
    if descriptor.server_streaming:
        handle = _exchanging(verb, method) if descriptor.client_streaming else _streaming(verb, method)
    else:
        handle = _taking(verb, method) if descriptor.client_streaming else _unary(verb, method)
    if log.shows_calls:
        handle = logged(handle, descriptor.full_name)
    if spans.tracer is not None:
        handle = traced(handle, f"{descriptor.containing_service.full_name}/{descriptor.name}", spans.tracer)
    if measures is not None:
        handle = measured(handle, descriptor.name, measures.note)
    return Made(handle, method)


def _unary(verb: Callable[..., Awaitable[Message | bytes | Reserved]], method: Method) -> Callable[..., Any]:
    async def handle(_: object, context: grpc.aio.ServicerContext) -> bytes:
        places = None
        try:
            if method.callers is not None and not method.may_wait:
                places = method.enter(context)
            with method.door:  # also while a refusal is sent: a stop waits for it
                held = method.begin_held(context)
                request = None
                method.turns.begin_call()
                try:
                    request, share = await method.read_only(context)
                    if method.callers is not None:
                        method.admit_now(request, context)
                        method.spend(request)
                        method.follow(request)
                    if held is not None and held.refuse(method.needs, request) is not None:
                        await held.pass_in(method.needs, request)
                    again = _with_key(partial(verb, request, context), held, method, request)
                    # Nothing here refers to the answer, so that it can be dropped while it waits for room.
                    work = _to_its_end(again(), share, method.room) if share else again()
                    if method.callers is not None and not method.is_write:
                        work = _admitted_late(work, method, request, context)
                    if held is not None and not held.is_settled:
                        work = _held_late(work, held, method, request)
                    return await method.hand_out(await work, again, context)
                except Exception as error:  # noqa: BLE001  (the boundary)
                    await _abort(context, as_expected(error, request), method.name)
                finally:
                    method.turns.end_call()
                    method.end_held(held)
        except Exception as error:  # noqa: BLE001  (refused at the door, or unknown)
            await _abort(context, error, method.name)
        finally:
            if places is not None:
                places.leave()

    async def handle_waiting(_: object, context: grpc.aio.ServicerContext) -> bytes:
        try:
            with method.holding(context):
                return await handle(_, context)
        except StatewardError as error:
            await _abort(context, error, method.name)

    return handle_waiting if method.may_wait else handle


def _with_key(
    again: Callable[[], Awaitable[T]], held: HeldCall | None, method: Method, request: Message
) -> Callable[[], Awaitable[T]]:
    """Returns what runs the verb of a call, which may have a session key."""
    if held is None or not held.key or not method.is_write:
        return again
    return partial(held.run, method.needs, request, again)


async def _admitted_late(
    work: Awaitable[T], method: Method, request: Message, context: grpc.aio.ServicerContext
) -> T:
    """Returns an answer, unless its caller may not have it any more."""
    answer = await work
    method.admit_now(request, context)
    return answer


async def _held_late(work: Awaitable[T], held: HeldCall, method: Method, request: Message) -> T:
    """Returns an answer, unless it may be of a held thread that was made meanwhile."""
    answer = await work
    held.admit(method.needs, request)
    return answer


async def _to_its_end(work: Awaitable[T], share: Share, room: Room) -> T:
    """Works on a large request to its end, even if its caller leaves, because the work cannot be stopped."""
    working = asyncio.ensure_future(work)
    working.add_done_callback(lambda _: room.give_back(share))
    working.add_done_callback(lambda done: done.cancelled() or done.exception())  # the caller may have left
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        working.add_done_callback(_drop)
        raise


def _drop(made: asyncio.Future[Any]) -> None:
    """Gives back the memory of an answer whose caller has left."""
    if not made.cancelled() and made.exception() is None and isinstance(answer := made.result(), Reserved):
        answer.share.close()


def _taking(verb: Callable[..., Awaitable[Message]], method: Method) -> Callable[..., Any]:
    async def read_all(context: grpc.aio.ServicerContext, held: HeldCall | None) -> AsyncIterator[Message]:
        while True:
            request, share = await method.read(context)
            if request is None:
                return
            with share or nullcontext():
                method.admit(request, is_kept=True)
                if held is not None:
                    await held.pass_in(method.needs, request)
                yield request

    async def handle(_: object, context: grpc.aio.ServicerContext) -> bytes:
        try:
            with method.holding(context), method.door, method.keeping(context) as held:
                try:
                    await method.pace()
                    return _serialize(await verb(read_all(context, held), context))
                except Exception as error:  # noqa: BLE001  (the boundary)
                    await _abort(context, error, method.name)
        except Exception as error:  # noqa: BLE001  (refused at the door, or unknown)
            await _abort(context, error, method.name)

    return handle


def _streaming(verb: Callable[..., AsyncIterator[Message]], method: Method) -> Callable[..., Any]:
    # No generator: while one stands at its `yield`, it does not notice that its call is to end.
    async def handle(_: object, context: grpc.aio.ServicerContext) -> None:
        try:
            with method.holding(context), method.door, method.keeping(context) as held:
                try:
                    method.turns.begin_call(is_open=False)
                    request, share = await method.read_only(context)
                    with share or nullcontext():
                        method.admit(request, is_kept=True)
                        if held is not None:
                            await held.pass_in(method.needs, request)
                        async with aclosing(cast(AsyncGenerator[Message], verb(request, context))) as answers:
                            async for answer in answers:
                                await context.write(answer)
                except Exception as error:  # noqa: BLE001  (the boundary)
                    await _abort(context, error, method.name)
        except Exception as error:  # noqa: BLE001  (refused at the door, or unknown)
            await _abort(context, error, method.name)

    return handle


def _exchanging(verb: Callable[..., Awaitable[None]], method: Method) -> Callable[..., Any]:
    async def handle(_: object, context: grpc.aio.ServicerContext) -> None:
        try:
            with method.holding(context), method.door, method.keeping(context) as held:
                try:
                    with closing(Exchange[Message, Message](method, context, held)) as exchange:
                        await verb(exchange, context)
                except Exception as error:  # noqa: BLE001  (the boundary)
                    await _abort(context, error, method.name)
        except Exception as error:  # noqa: BLE001  (refused at the door, or unknown)
            await _abort(context, error, method.name)

    return handle


def _serialize(answer: Message) -> bytes:
    data: bytes = answer.SerializeToString()
    return data


async def _abort(context: grpc.aio.ServicerContext, error: Exception, name: str) -> NoReturn:
    if isinstance(error, grpc.aio.AbortError | asyncio.CancelledError):
        raise error
    if isinstance(error, grpc.aio.BaseError):
        raise asyncio.CancelledError from error  # the call has ended: nobody gets an answer
    known = foreseen(error, name)
    if isinstance(known, Unauthenticated | PermissionDenied):
        note_denied(known, name, context)
    code, message, details = to_status(known)
    metadata = trailers(known, details)
    # The frames of the traceback hold the request, and the call holds the error until the next garbage collection.
    known.__traceback__ = known.__context__ = None
    try:
        await context.abort(code, message, trailing_metadata=metadata)
    except (grpc.aio.InternalError, grpc.aio.UsageError) as gone:  # it was refused already, or the client left
        raise asyncio.CancelledError from gone
    raise AssertionError  # abort raises
