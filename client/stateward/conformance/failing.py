"""Errors of the scripted daemon: the status and the details that a scenario asks for."""

from __future__ import annotations

from typing import NoReturn

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc import error_details_pb2, status_pb2

from stateward.conformance.v1.scenario_pb2 import Failure

DOMAIN = "stateward"
DETAILS_KEY = "grpc-status-details-bin"
PUSHBACK_KEY = "grpc-retry-pushback-ms"
NO_RETRY = "-1"


def refuse(context: grpc.ServicerContext, message: str) -> NoReturn:
    """Ends a call that no scenario asks for. Clients do not repeat it."""
    context.abort(grpc.StatusCode.INTERNAL, f"conformance: {message}")
    raise AssertionError


def fail(context: grpc.ServicerContext, failure: Failure) -> NoReturn:
    """Ends a call as the scenario says."""
    message = f"scripted: {failure.reason or failure.code}"
    code = grpc.StatusCode[failure.code]
    if failure.reason:
        context.set_trailing_metadata(_trailers(failure, code, message))
    context.abort(code, message)
    raise AssertionError


def _trailers(failure: Failure, code: grpc.StatusCode, message: str) -> tuple[tuple[str, str | bytes], ...]:
    trailers: list[tuple[str, str | bytes]] = []
    if failure.HasField("retry_delay"):
        trailers.append((PUSHBACK_KEY, str(failure.retry_delay.ToMilliseconds())))
    elif code is grpc.StatusCode.RESOURCE_EXHAUSTED:  # as the daemon does
        trailers.append((PUSHBACK_KEY, NO_RETRY))
    return (*trailers, (DETAILS_KEY, status_of(failure, message).SerializeToString()))


def status_of(failure: Failure, message: str) -> status_pb2.Status:
    """Returns the status of an error."""
    status = status_pb2.Status(code=grpc.StatusCode[failure.code].value[0], message=message)
    if failure.unknown_detail:
        status.details.add(type_url="type.googleapis.com/example.later.Detail", value=b"\x0a\x01x")
    domain = failure.domain or DOMAIN
    info = error_details_pb2.ErrorInfo(reason=failure.reason, domain=domain, metadata=failure.metadata)
    details = [info]
    if failure.HasField("retry_delay"):
        details.append(error_details_pb2.RetryInfo(retry_delay=failure.retry_delay))
    for detail in details:
        packed = AnyMessage()
        packed.Pack(detail)
        status.details.append(packed)
    return status
