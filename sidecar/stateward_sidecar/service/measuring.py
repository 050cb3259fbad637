"""Measures calls, if metrics are on: counts how each call ended and how long it took.

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

from stateward_sidecar.measures import CallMeasures

_NAMES = {code.value[0]: code.name for code in grpc.StatusCode}
Handle = Callable[[Any, grpc.aio.ServicerContext], Any]


def measured(handle: Handle, method: str, measures: CallMeasures) -> Handle:
    """Returns a handler that does the same, and counts its calls."""
    return (
        _measured_stream(handle, method, measures)
        if isasyncgenfunction(handle)
        else _measured(handle, method, measures)
    )


def _measured(handle: Callable[..., Awaitable[Any]], method: str, measures: CallMeasures) -> Handle:
    async def run(request: object, context: grpc.aio.ServicerContext) -> Any:
        began = perf_counter()
        try:
            answer = await handle(request, context)
        except BaseException as error:
            measures.note(method, _code(error, context), perf_counter() - began)
            raise
        measures.note(method, "OK", perf_counter() - began)
        return answer

    return run


def _measured_stream(handle: Callable[..., AsyncIterator[Any]], method: str, measures: CallMeasures) -> Handle:
    async def run(request: object, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
        began = perf_counter()
        try:
            async for answer in handle(request, context):
                yield answer
        except BaseException as error:
            measures.note(method, _code(error, context), perf_counter() - began)
            raise
        measures.note(method, "OK", perf_counter() - began)

    return run


def _code(error: BaseException, context: grpc.aio.ServicerContext) -> str:
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return "CANCELLED"
    code = context.code()
    return str(_NAMES.get(code if isinstance(code, int) else code.value[0], "UNKNOWN"))
