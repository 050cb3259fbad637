"""From a failed call to an exception, by its status code and details.

The details are in gRPC's standard `grpc-status-details-bin` trailer, which is read without the package grpcio-status.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, NamedTuple

from stateward._operations.reasons import BY_REASON
from stateward.errors import (
    Corrupt,
    DeadlineExceeded,
    FeatureUnavailable,
    Internal,
    InvalidRequest,
    PermissionDenied,
    QuotaExceeded,
    RateExceeded,
    ServerUnavailable,
    StateTooLarge,
    StatewardError,
    Unauthenticated,
)

DOMAIN = "stateward"
DETAILS_KEY = "grpc-status-details-bin"


class Details(NamedTuple):
    """What the daemon sent besides code and message."""

    reason: str = ""
    """The ErrorReason without its prefix; "" = the daemon did not make this error."""
    metadata: dict[str, str] = {}  # noqa: RUF012  never changed
    retry_delay: timedelta | None = None
    """How long the daemon asks the client to wait; None = it does not."""


def read_details(trailers: Iterable[tuple[str, str | bytes]]) -> Details:
    """Returns the details in the trailing metadata."""
    from google.rpc import error_details_pb2, status_pb2  # noqa: PLC0415  only a failing program needs them

    found = Details()
    for key, value in trailers:
        if key != DETAILS_KEY or not isinstance(value, bytes):
            continue
        for detail in status_pb2.Status.FromString(value).details:
            if detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
                info = error_details_pb2.ErrorInfo.FromString(detail.value)
                if info.domain == DOMAIN:
                    found = found._replace(reason=info.reason, metadata=dict(info.metadata))
            elif detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
                delay = error_details_pb2.RetryInfo.FromString(detail.value).retry_delay
                found = found._replace(retry_delay=delay.ToTimedelta())
    return found


# For errors that gRPC, or something between client and daemon, makes. NOT_FOUND is left out on purpose: only the daemon
# may say that a thread does not exist, because the agent then starts from an empty state.
BY_CODE: Mapping[str, type[StatewardError]] = {
    "UNAVAILABLE": ServerUnavailable,
    "CANCELLED": ServerUnavailable,  # by a daemon that stops; a caller that cancels its own call never sees it
    "DEADLINE_EXCEEDED": DeadlineExceeded,
    "INVALID_ARGUMENT": InvalidRequest,
    "RESOURCE_EXHAUSTED": StateTooLarge,  # a message larger than the 64 MiB that this client sends
    "UNIMPLEMENTED": FeatureUnavailable,
    "DATA_LOSS": Corrupt,
    "UNAUTHENTICATED": Unauthenticated,
    "PERMISSION_DENIED": PermissionDenied,
    "INTERNAL": Internal,
    "UNKNOWN": Internal,
}


_INNER = {"version.": "at", "options.": ""}
"""Messages of requests, by the argument that stands for them; "" = each of their fields is an argument."""


def error_from_rpc(code: str, message: str, trailers: Iterable[tuple[str, str | bytes]]) -> StatewardError:
    """Returns the exception for a failed call, from its status code, message and trailing metadata."""
    reason, metadata, retry_delay = read_details(trailers)
    for inner, whole in _INNER.items():
        if not (field := metadata.get("field", "")).startswith(inner):
            continue
        argument = whole or field.removeprefix(inner)  # callers know the argument, not the message in it
        metadata, message = {**metadata, "field": argument}, message.replace(f"{field}:", f"{argument}:", 1)
    kind = BY_REASON.get(reason) or BY_CODE.get(code, StatewardError)
    if kind is QuotaExceeded and retry_delay:  # a limit of time
        kind = RateExceeded
    return kind(message or code, reason=reason, code=code, metadata=metadata, retry_delay=retry_delay)


def error_from_status(status: Any) -> StatewardError:
    """Returns the exception for a google.rpc.Status that came as part of an answer."""
    from google.rpc import code_pb2  # noqa: PLC0415  only a failing program needs it

    code = code_pb2.Code.Name(status.code) if status.code in code_pb2.Code.values() else ""
    return error_from_rpc(code, status.message, ((DETAILS_KEY, status.SerializeToString()),))
