"""Wraps every call: reads and parses its message, and turns an error into a status.

Handlers are plain async methods. A message that does not parse is INVALID_FIELD, a message that is too large is
STATE_TOO_LARGE, and a StatewardError becomes its status. Any other error is logged once and becomes INTERNAL without
details.

To gRPC every method is a stream of requests, so the daemon decides when it takes the bytes of a message.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, closing, nullcontext
from functools import partial
from typing import Any, NoReturn, TypeVar

import grpc
import grpc.aio
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from stateward_sidecar import spans
from stateward_sidecar.measures import CallMeasures
from stateward_sidecar.service.admission.budget import Reserved, Share
from stateward_sidecar.service.admission.room import Room
from stateward_sidecar.service.admission.tokens import Tokens
from stateward_sidecar.service.admission.turns import Turns
from stateward_sidecar.service.calls.exchange import Exchange
from stateward_sidecar.service.calls.expected import as_expected
from stateward_sidecar.service.calls.method import ASIDE_BYTES, RECEIVING_SHARE, TIGHT_MESSAGES, Method
from stateward_sidecar.service.calls.status import foreseen, to_status, trailers
from stateward_sidecar.service.methods import METHODS, Kind
from stateward_sidecar.service.serving.measuring import logged, measured, traced
from stateward_sidecar.telemetry import log

T = TypeVar("T")


def make_handler(
    descriptor: MethodDescriptor,
    verb: Callable[..., Any],
    bytes_max: int,
    door: AbstractContextManager[None],
    room: Room,
    turns: Turns,
    measures: CallMeasures | None = None,
    tokens: Tokens | None = None,
) -> grpc.RpcMethodHandler:
    """Returns the handler that gRPC calls for a method.

    ``measures``: None = metrics are off. ``tokens``: None = calls need none.
    """
    facts = METHODS[descriptor.name]
    is_tight = room.requests.total_bytes < TIGHT_MESSAGES * RECEIVING_SHARE * bytes_max
    method = Method(
        descriptor.full_name, GetMessageClass(descriptor.input_type), bytes_max, door, room, turns,
        is_write=facts.kind is Kind.WORK,
        is_single=not descriptor.client_streaming, is_tight=is_tight and bytes_max > ASIDE_BYTES,
        is_repeatable=facts.may_repeat,
        is_holding=facts.keeps_messages, has_options="options" in descriptor.input_type.fields_by_name,
        tokens=tokens,
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
    if descriptor.server_streaming:
        return grpc.stream_stream_rpc_method_handler(handle, response_serializer=_serialize)
    return grpc.stream_unary_rpc_method_handler(handle)


def _unary(verb: Callable[..., Awaitable[Message | bytes | Reserved]], method: Method) -> Callable[..., Any]:
    async def handle(_: object, context: grpc.aio.ServicerContext) -> bytes:
        try:
            if method.tokens is not None:
                method.identify(context)
            with method.door:  # also while a refusal is sent, so that a stop waits for it
                request = None
                method.turns.begin_call()
                try:
                    request, share = await method.read_only(context)
                    again = partial(verb, request, context)
                    # Nothing here refers to the answer, so that it can be dropped while it waits for room.
                    work = _to_its_end(again(), share, method.room) if share else again()
                    return await method.hand_out(await work, again, context)
                except Exception as error:  # noqa: BLE001  (the boundary)
                    await _abort(context, as_expected(error, request), method.name)
                finally:
                    method.turns.end_call()
        except Exception as error:  # noqa: BLE001  (refused at the door, or unknown)
            await _abort(context, error, method.name)

    return handle


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
    async def read_all(context: grpc.aio.ServicerContext) -> AsyncIterator[Message]:
        while True:
            request, share = await method.read(context)
            if request is None:
                return
            with share or nullcontext():
                yield request

    async def handle(_: object, context: grpc.aio.ServicerContext) -> bytes:
        try:
            method.identify(context)
            with method.door:
                try:
                    return _serialize(await verb(read_all(context), context))
                except Exception as error:  # noqa: BLE001  (the boundary)
                    await _abort(context, error, method.name)
        except Exception as error:  # noqa: BLE001  (refused at the door, or unknown)
            await _abort(context, error, method.name)

    return handle


def _streaming(verb: Callable[..., AsyncIterator[Message]], method: Method) -> Callable[..., Any]:
    async def handle(_: object, context: grpc.aio.ServicerContext) -> AsyncIterator[Message]:
        try:
            method.identify(context)
            with method.door:
                try:
                    method.turns.note_arrival()
                    request, share = await method.read_only(context)
                    with share or nullcontext():
                        async for answer in verb(request, context):
                            yield answer
                except Exception as error:  # noqa: BLE001  (the boundary)
                    await _abort(context, error, method.name)
        except Exception as error:  # noqa: BLE001  (refused at the door, or unknown)
            await _abort(context, error, method.name)

    return handle


def _exchanging(verb: Callable[..., Awaitable[None]], method: Method) -> Callable[..., Any]:
    async def handle(_: object, context: grpc.aio.ServicerContext) -> None:
        try:
            method.identify(context)
            with method.door:
                try:
                    with closing(Exchange[Message, Message](method, context)) as exchange:
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
    code, message, details = to_status(known)
    metadata = trailers(known, details)
    # The frames of the traceback hold the request, and the call holds the error until the next garbage collection.
    known.__traceback__ = known.__context__ = None
    try:
        await context.abort(code, message, trailing_metadata=metadata)
    except grpc.aio.InternalError as gone:  # the core has refused the call already, or the client left
        raise asyncio.CancelledError from gone
    raise AssertionError  # abort raises
