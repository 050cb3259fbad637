"""Around every call: its message is read and parsed, and an error becomes its status.

Handlers are plain async methods. Bytes that are no message are INVALID_FIELD, a message that is too large is
STATE_TOO_LARGE, a StatewardError becomes its status, and anything else is logged once and leaves as INTERNAL, which
says nothing.

Every method is a stream of requests to gRPC: so the daemon decides when the bytes of a message are taken.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc
import grpc.aio
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from stateward_sidecar.errors import InvalidField, StateTooLarge, StatewardError
from stateward_sidecar.service.status import DETAILS_KEY, to_status
from stateward_sidecar.telemetry import log, log_damage


@dataclass(frozen=True, slots=True)
class Method:
    """What surrounds the calls of a method."""

    name: str
    request_class: type[Message]
    # The largest message.
    bytes_max: int
    # Entered before the message is read; raises what refuses the call.
    door: AbstractContextManager[None]

    async def read(self, context: grpc.aio.ServicerContext) -> Message | None:
        """The next message of a call; None after the last one. Raises InvalidField, StateTooLarge."""
        data = await context.read()
        return None if data is grpc.aio.EOF else self.parse(data)

    async def read_only(self, context: grpc.aio.ServicerContext) -> Message:
        """The message of a call that has one. Raises InvalidField, StateTooLarge."""
        request = await self.read(context)
        if request is None:
            raise InvalidField("request", "no message came")
        return request

    def parse(self, data: bytes) -> Message:
        """The message that some bytes hold. Raises InvalidField, StateTooLarge."""
        if len(data) > self.bytes_max:
            what = f"the {self.request_class.DESCRIPTOR.name} has {len(data)} bytes, more than the limit of"
            raise StateTooLarge(len(data), self.bytes_max, f"{what} {self.bytes_max}")
        try:
            return self.request_class.FromString(data)
        except DecodeError:
            raise InvalidField("request", f"the bytes are no {self.request_class.DESCRIPTOR.name}") from None


def make_handler(
    descriptor: MethodDescriptor, verb: Callable[..., Any], bytes_max: int, door: AbstractContextManager[None]
) -> grpc.RpcMethodHandler:
    """The handler that gRPC calls for a method."""
    method = Method(descriptor.full_name, GetMessageClass(descriptor.input_type), bytes_max, door)
    if descriptor.server_streaming:
        handle = _exchanging(verb, method) if descriptor.client_streaming else _streaming(verb, method)
        return grpc.stream_stream_rpc_method_handler(handle, response_serializer=_serialize)
    handle = _taking(verb, method) if descriptor.client_streaming else _unary(verb, method)
    return grpc.stream_unary_rpc_method_handler(handle, response_serializer=_serialize)


def _unary(verb: Callable[..., Awaitable[Message | bytes]], method: Method) -> Callable[..., Any]:
    async def handle(_: object, context: grpc.aio.ServicerContext) -> Message | bytes:
        try:
            with method.door:  # until the refusal has left, too: a stop waits for it
                try:
                    return await verb(await method.read_only(context), context)
                except Exception as error:  # noqa: BLE001  (the boundary)
                    await _abort(context, error, method.name)
        except Exception as error:  # noqa: BLE001  (refused at the door)
            await _abort(context, error, method.name)

    return handle


def _taking(verb: Callable[..., Awaitable[Message]], method: Method) -> Callable[..., Any]:
    async def read_all(context: grpc.aio.ServicerContext) -> AsyncIterator[Message]:
        while (request := await method.read(context)) is not None:
            yield request

    async def handle(_: object, context: grpc.aio.ServicerContext) -> Message:
        try:
            with method.door:
                try:
                    return await verb(read_all(context), context)
                except Exception as error:  # noqa: BLE001  (the boundary)
                    await _abort(context, error, method.name)
        except Exception as error:  # noqa: BLE001  (refused at the door)
            await _abort(context, error, method.name)

    return handle


def _streaming(verb: Callable[..., AsyncIterator[Message]], method: Method) -> Callable[..., Any]:
    async def handle(_: object, context: grpc.aio.ServicerContext) -> AsyncIterator[Message]:
        try:
            with method.door:
                try:
                    async for answer in verb(await method.read_only(context), context):
                        yield answer
                except Exception as error:  # noqa: BLE001  (the boundary)
                    await _abort(context, error, method.name)
        except Exception as error:  # noqa: BLE001  (refused at the door)
            await _abort(context, error, method.name)

    return handle


class Exchange:
    """Both directions of a call. One reads and one writes at a time."""

    def __init__(self, method: Method, context: grpc.aio.ServicerContext) -> None:
        self._method = method
        self._context = context

    async def read(self) -> Message | None:
        """The next message; None after the last one."""
        return await self._method.read(self._context)

    async def write(self, answer: Message) -> None:
        """Sends a message."""
        await self._context.write(answer)


def _exchanging(verb: Callable[..., Awaitable[None]], method: Method) -> Callable[..., Any]:
    async def handle(_: object, context: grpc.aio.ServicerContext) -> None:
        try:
            with method.door:
                try:
                    await verb(Exchange(method, context), context)
                except Exception as error:  # noqa: BLE001  (the boundary)
                    await _abort(context, error, method.name)
        except Exception as error:  # noqa: BLE001  (refused at the door)
            await _abort(context, error, method.name)

    return handle


def _serialize(answer: Message | bytes) -> bytes:
    return answer if isinstance(answer, bytes) else answer.SerializeToString()


async def _abort(context: grpc.aio.ServicerContext, error: Exception, name: str) -> NoReturn:
    if isinstance(error, grpc.aio.AbortError | asyncio.CancelledError):
        raise error
    if isinstance(error, grpc.aio.BaseError):
        raise asyncio.CancelledError from error  # the call is gone: nobody hears an answer
    if not isinstance(error, StatewardError):
        log.exception("a call failed in an unforeseen way", method=name)
        error = StatewardError("the server failed in an unforeseen way; its log has more")
    elif error.reason in ("CORRUPT", "KEY_UNAVAILABLE", "DISK_FULL"):
        log_damage("a call was refused", error, method=name)
    code, message, details = to_status(error)
    try:
        await context.abort(code, message, trailing_metadata=((DETAILS_KEY, details),))
    except grpc.aio.InternalError as gone:  # refused by the core already, or its client left
        raise asyncio.CancelledError from gone
    raise AssertionError  # abort raises
