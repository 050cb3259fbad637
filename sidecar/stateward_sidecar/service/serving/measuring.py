"""Measures calls, if metrics are on: counts how each call ended and how long it took. Traces them, if traces are on.

A call begins when gRPC hands it over, before its message is read, and ends when its answer was made. A call whose
client has left counts as CANCELLED.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from inspect import isasyncgenfunction
from time import perf_counter
from typing import Any

import grpc
import grpc.aio

from stateward_sidecar.spans import Tracer
from stateward_sidecar.telemetry import log

_NAMES = {code.value[0]: code.name for code in grpc.StatusCode}
Handle = Callable[[Any, grpc.aio.ServicerContext], Any]
# Takes method, code and seconds of a call that has ended.
Note = Callable[[str, str, float], None]


def traced(handle: Handle, method: str, tracer: Tracer) -> Handle:
    """Returns a handler that does the same, in a span."""
    return _traced_stream(handle, method, tracer) if isasyncgenfunction(handle) else _traced(handle, method, tracer)


def _traced(handle: Callable[..., Awaitable[Any]], method: str, tracer: Tracer) -> Handle:
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


def _traced_stream(handle: Callable[..., AsyncIterator[Any]], method: str, tracer: Tracer) -> Handle:
    async def run(request: object, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
        end = tracer.begin_call(method, context.invocation_metadata() or ())
        try:
            async for answer in handle(request, context):
                yield answer
        except BaseException as error:
            end(_code(error, context))
            raise
        end("OK")

    return run


def logged(handle: Handle, method: str) -> Handle:
    """Returns a handler that does the same, and logs each call at its end."""
    return measured(handle, method, _log)


def _log(method: str, code: str, duration_s: float) -> None:
    log.debug("call", method=method, code=code, ms=round(duration_s * 1e3, 3))


def measured(handle: Handle, method: str, note: Note) -> Handle:
    """Returns a handler that does the same, and notes each call at its end."""
    return (
        _measured_stream(handle, method, note)
        if isasyncgenfunction(handle)
        else _measured(handle, method, note)
    )


def _measured(handle: Callable[..., Awaitable[Any]], method: str, note: Note) -> Handle:
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


def _measured_stream(handle: Callable[..., AsyncIterator[Any]], method: str, note: Note) -> Handle:
    async def run(request: object, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
        began = perf_counter()
        try:
            async for answer in handle(request, context):
                yield answer
        except BaseException as error:
            note(method, _code(error, context), perf_counter() - began)
            raise
        note(method, "OK", perf_counter() - began)

    return run


def _code(error: BaseException, context: grpc.aio.ServicerContext) -> str:
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return "CANCELLED"
    code = context.code()
    return str(_NAMES.get(code if isinstance(code, int) else code.value[0], "UNKNOWN"))
