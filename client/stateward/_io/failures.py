"""What a failed call becomes: the exception for its status code and its facts.

The facts are in gRPC's standard `grpc-status-details-bin` trailer, which is read without the package grpcio-status.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import NamedTuple

from stateward._operations.reasons import BY_REASON
from stateward.errors import (
    Corrupt,
    DeadlineExceeded,
    FeatureUnavailable,
    Internal,
    InvalidRequest,
    PermissionDenied,
    ServerUnavailable,
    StateTooLarge,
    StatewardError,
    Unauthenticated,
)

DOMAIN = "stateward"
_KEY = "grpc-status-details-bin"


class Details(NamedTuple):
    """What the daemon said besides code and message."""

    reason: str = ""
    """The ErrorReason without its prefix; "" = the error is not the daemon's."""
    metadata: dict[str, str] = {}  # noqa: RUF012  never changed
    retry_delay: timedelta | None = None
    """How long it asks to wait; None = it does not."""


def read_details(trailers: Iterable[tuple[str, str | bytes]]) -> Details:
    """The details in trailing metadata."""
    from google.rpc import error_details_pb2, status_pb2  # noqa: PLC0415  only a failing program needs them

    found = Details()
    for key, value in trailers:
        if key != _KEY or not isinstance(value, bytes):
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


# For errors that gRPC itself makes, or something between here and the daemon. NOT_FOUND is left out on purpose: only
# the daemon may say that a thread does not exist, because its agent then starts from nothing.
BY_CODE: Mapping[str, type[StatewardError]] = {
    "UNAVAILABLE": ServerUnavailable,
    "CANCELLED": ServerUnavailable,  # by the daemon, which stops; who cancels a call here never sees it
    "DEADLINE_EXCEEDED": DeadlineExceeded,
    "INVALID_ARGUMENT": InvalidRequest,
    "RESOURCE_EXHAUSTED": StateTooLarge,  # a message above the 64 MiB that this client sends
    "UNIMPLEMENTED": FeatureUnavailable,
    "DATA_LOSS": Corrupt,
    "UNAUTHENTICATED": Unauthenticated,
    "PERMISSION_DENIED": PermissionDenied,
    "INTERNAL": Internal,
    "UNKNOWN": Internal,
}


def error_from_rpc(code: str, message: str, trailers: Iterable[tuple[str, str | bytes]]) -> StatewardError:
    """The exception for a failed call, from its status code, message and trailing metadata."""
    reason, metadata, retry_delay = read_details(trailers)
    kind = BY_REASON.get(reason) or BY_CODE.get(code, StatewardError)
    return kind(message or code, reason=reason, code=code, metadata=metadata, retry_delay=retry_delay)
