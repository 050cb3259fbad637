"""Errors as gRPC statuses: the one table of codes, and what a caller expected of a thread that is not there.

What a caller expected of a thread, for the error that says there is none.

Whoever looks for a thread may find none: the archive, a verb, the writer. Below the calls, all of them raise
ThreadNotFound, because only the request knows which thread its caller means. A caller who names a uid continues
something that existed. To this caller the thread is not unknown but gone, so the error becomes UidMismatch, here and
nowhere else.

The one table from reasons to gRPC status codes, and the status that carries both.

Every error has exactly one ``ErrorInfo`` with all facts. Some have a second detail that generic clients know. The
details are sent in the standard ``grpc-status-details-bin`` trailer. Code and message alone are enough to act on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, TypeVar

from google.protobuf import any_pb2
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc.error_details_pb2 import (
    BadRequest,
    ErrorInfo,
    PreconditionFailure,
    QuotaFailure,
    ResourceInfo,
    RetryInfo,
)
from google.rpc.status_pb2 import Status
from grpc import StatusCode

from stateward.v1.checkpoint_service_pb2 import BatchSaveRequest, SaveRequest
from stateward.v1.thread_service_pb2 import PruneThreadRequest, WaitDurableRequest
from stateward_sidecar.errors import IssuerUnavailable, QuotaExceeded, StatewardError, ThreadNotFound, UidMismatch
from stateward_sidecar.measures import events
from stateward_sidecar.telemetry import log, log_damage

E = TypeVar("E", bound=Exception)

@contextmanager
def saying_expected(request: Any) -> Iterator[None]:
    """Raises what ``as_expected`` returns."""
    try:
        yield
    except ThreadNotFound as error:
        raise as_expected(error, request) from None


def as_expected(error: E, request: Any) -> E | UidMismatch:
    """Returns UidMismatch in place of ThreadNotFound if the request names the uid of the missing thread; else the same
    error. ``request``: any message, or None if it could not be read."""
    if not isinstance(error, ThreadNotFound):
        return error
    name = error.metadata.get("thread", "")
    for thread, uid in _expected(request):
        if thread == name and uid:
            message = f"{error.message} any more: uid {uid} was expected; read the thread before the next write"
            return UidMismatch(message, **{**error.metadata, "expected_uid": uid})
    return error


def _expected(request: Any) -> Iterator[tuple[str, str]]:
    """Yields the threads that a request names, with the uid that each must have; empty = any."""
    for each in request.saves if isinstance(request, BatchSaveRequest) else (request,):
        if isinstance(each, WaitDurableRequest):
            yield each.thread, each.receipt.uid
            continue
        yield getattr(each, "thread", ""), getattr(getattr(each, "options", each), "expected_uid", "")
        if isinstance(each, SaveRequest):
            yield each.guard.thread, each.guard.expected_uid
        elif isinstance(each, PruneThreadRequest):
            yield each.thread, each.plan.uid


DOMAIN = "stateward"
DETAILS_KEY = "grpc-status-details-bin"
# Message and details are in a header block. Clients of gRPC take 8 KiB by default, counted as they are on the wire: the
# message has three bytes for each byte that is no plain ASCII, and the details have four for three. Beyond that, the
# client's gRPC replaces both by a status of its own.
MESSAGE_BYTES_MAX, MESSAGE_WIRE_BYTES_MAX = 1024, 2048
DETAILS_BYTES_MAX = 4096
DESCRIPTION_BYTES_MAX = 256
FACT_BYTES_MAX = 512

CODES: dict[str, StatusCode] = {
    "VERSION_MISMATCH": StatusCode.ABORTED,
    "RECORD_CONFLICT": StatusCode.ABORTED,
    "UID_MISMATCH": StatusCode.ABORTED,
    "WRITER_ABORTED": StatusCode.ABORTED,
    "THREAD_NOT_FOUND": StatusCode.NOT_FOUND,
    "VERSION_NOT_FOUND": StatusCode.NOT_FOUND,
    "BLOB_NOT_FOUND": StatusCode.NOT_FOUND,
    "VERSION_PRUNED": StatusCode.OUT_OF_RANGE,
    "INVALID_FIELD": StatusCode.INVALID_ARGUMENT,
    "REQUEST_ID_REUSED": StatusCode.INVALID_ARGUMENT,
    "CHECKPOINT_ID_REUSED": StatusCode.ALREADY_EXISTS,
    "THREAD_EXISTS": StatusCode.ALREADY_EXISTS,
    "EDIT_CONFLICT": StatusCode.FAILED_PRECONDITION,
    "SCHEMA_MISMATCH": StatusCode.FAILED_PRECONDITION,
    "LEASE_HELD": StatusCode.FAILED_PRECONDITION,
    "NOT_OWNER": StatusCode.FAILED_PRECONDITION,
    "FENCED": StatusCode.FAILED_PRECONDITION,
    "KEY_UNAVAILABLE": StatusCode.FAILED_PRECONDITION,
    "LOCKED": StatusCode.FAILED_PRECONDITION,
    "NO_ARCHIVE": StatusCode.FAILED_PRECONDITION,
    "STALE_ANSWER": StatusCode.FAILED_PRECONDITION,
    "CLAIM_LOST": StatusCode.FAILED_PRECONDITION,
    "STATE_TOO_LARGE": StatusCode.RESOURCE_EXHAUSTED,
    "QUOTA_EXCEEDED": StatusCode.RESOURCE_EXHAUSTED,
    "DISK_FULL": StatusCode.RESOURCE_EXHAUSTED,
    "QUEUE_FULL": StatusCode.RESOURCE_EXHAUSTED,
    "CORRUPT": StatusCode.DATA_LOSS,
    "NEWER_FORMAT": StatusCode.FAILED_PRECONDITION,
    "ARCHIVE_UNAVAILABLE": StatusCode.UNAVAILABLE,
    "SHUTTING_DOWN": StatusCode.UNAVAILABLE,
    "OUTCOME_UNKNOWN": StatusCode.UNAVAILABLE,
    "UNAUTHENTICATED": StatusCode.UNAUTHENTICATED,
    "ISSUER_UNAVAILABLE": StatusCode.UNAVAILABLE,
    "PERMISSION_DENIED": StatusCode.PERMISSION_DENIED,
    "INTERNAL": StatusCode.INTERNAL,
    "DEADLINE_EXCEEDED": StatusCode.DEADLINE_EXCEEDED,
    "FEATURE_UNAVAILABLE": StatusCode.UNIMPLEMENTED,
}
# gRPC's own retries look here for the pause of RetryInfo. They know codes and no reasons, so that a negative pause ends
# them if no other attempt can succeed: see the policy in proto/service_config.json.
PUSHBACK_KEY = "grpc-retry-pushback-ms"
NO_RETRY = "-1"
_RETRY_AFTER_MS = {"QUEUE_FULL": 50, "SHUTTING_DOWN": 500, "OUTCOME_UNKNOWN": 500}


def foreseen(error: Exception, name: str) -> StatewardError:
    """Returns the error to answer with, and logs what an operator must know. ``name``: of the method."""
    if not isinstance(error, StatewardError):
        log.exception("a call failed unexpectedly", method=name)
        return StatewardError("the server failed unexpectedly; see its log")
    if error.reason in ("CORRUPT", "KEY_UNAVAILABLE", "DISK_FULL"):
        log_damage("a call was refused", error, method=name)
    return error


def to_status(error: StatewardError) -> tuple[StatusCode, str, bytes]:
    """Returns code, message and the serialized google.rpc.Status of an error, and counts the refusal."""
    code = CODES[error.reason]
    events.refusals[error.reason] += 1
    message = _cut_message(error.message)
    most, details = FACT_BYTES_MAX, _details(error, code, message, FACT_BYTES_MAX)
    while len(details) > DETAILS_BYTES_MAX and most > 1:
        most //= 2
        details = _details(error, code, message, most)
    return code, message, details


def name_of(code: int) -> str:
    """Returns the name of a gRPC status code."""
    return str(next(each.name for each in StatusCode if each.value[0] == code))


def _details(error: StatewardError, code: StatusCode, message: str, fact_bytes_max: int) -> bytes:
    facts = {key: cut(value, fact_bytes_max) for key, value in error.metadata.items()}
    status = Status(code=code.value[0], message=message)
    info = ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=facts)
    for detail in (info, _extra(error, facts, cut(message, DESCRIPTION_BYTES_MAX))):
        if detail is not None:
            packed = any_pb2.Any()
            packed.Pack(detail)
            status.details.append(packed)
    data: bytes = status.SerializeToString()
    return data


def cut(text: str, bytes_max: int) -> str:
    """Returns the beginning of a text, so that it has no more bytes, and no half characters."""
    data = text.encode(errors="replace")
    return text if len(data) <= bytes_max else data[:bytes_max].decode(errors="ignore")


def _cut_message(message: str) -> str:
    message = cut(message, MESSAGE_BYTES_MAX)
    wire = (1 if " " <= each <= "~" and each != "%" else 3 * len(each.encode(errors="replace")) for each in message)
    for at, size in enumerate(accumulate(wire)):
        if size > MESSAGE_WIRE_BYTES_MAX:
            return message[:at]
    return message


def trailers(error: StatewardError, details: bytes) -> tuple[tuple[str, str | bytes], ...]:
    """Returns the trailing metadata of a failed call. ``details`` as from ``to_status``."""
    found = (DETAILS_KEY, details)
    if pause_ms := _pause_ms(error):
        return (found, (PUSHBACK_KEY, str(pause_ms)))
    return (found, (PUSHBACK_KEY, NO_RETRY)) if CODES[error.reason] is StatusCode.RESOURCE_EXHAUSTED else (found,)


def _pause_ms(error: StatewardError) -> int:
    """Returns the pause before the next attempt; 0 = trying again is of no use, or the caller chooses the pause."""
    if isinstance(error, QuotaExceeded | IssuerUnavailable):
        return error.retry_after_ms
    return _RETRY_AFTER_MS.get(error.reason, 0)


def _extra(error: StatewardError, facts: dict[str, str], message: str) -> Message | None:
    """Returns the second detail; None if no standard one fits."""
    reason, thread = error.reason, facts.get("thread", "")
    detail: Message | None = None
    if reason == "INVALID_FIELD":
        detail = BadRequest(field_violations=[BadRequest.FieldViolation(field=facts["field"], description=message)])
    elif reason in ("VERSION_MISMATCH", "RECORD_CONFLICT", "UID_MISMATCH", "EDIT_CONFLICT", "SCHEMA_MISMATCH"):
        broken = PreconditionFailure.Violation(type=reason, subject=thread, description=message)
        detail = PreconditionFailure(violations=[broken])
    elif reason in ("THREAD_NOT_FOUND", "VERSION_NOT_FOUND", "BLOB_NOT_FOUND", "VERSION_PRUNED", "CORRUPT"):
        detail = ResourceInfo(resource_type="thread", resource_name=thread, description=message)
    elif reason in ("DISK_FULL", "STATE_TOO_LARGE"):
        detail = QuotaFailure(violations=[QuotaFailure.Violation(subject=reason.lower(), description=message)])
    elif pause_ms := _pause_ms(error):
        delay = Duration()
        delay.FromMilliseconds(pause_ms)
        detail = RetryInfo(retry_delay=delay)
    return detail
