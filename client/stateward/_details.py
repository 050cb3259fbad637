"""The facts of an error: gRPC's standard `grpc-status-details-bin` trailer, read without the package grpcio-status."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

DOMAIN = "stateward"
_KEY = "grpc-status-details-bin"


class Details(NamedTuple):
    """What the daemon said besides code and message."""

    reason: str = ""
    """The ErrorReason without its prefix; "" = the error is not the daemon's."""
    metadata: dict[str, str] = {}  # noqa: RUF012  never changed
    delay_s: float | None = None
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
                found = found._replace(delay_s=delay.seconds + delay.nanos / 1e9)
    return found
