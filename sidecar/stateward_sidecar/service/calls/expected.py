"""What a caller expected of a thread, for the error that says there is none.

Whoever looks for a thread may find none: the archive, a verb, the writer. Below the calls, all of them raise
ThreadNotFound, because only the request knows which thread its caller means. A caller who names a uid continues
something that existed. To this caller the thread is not unknown but gone, so the error becomes UidMismatch, here and
nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from stateward.v1.checkpoint_service_pb2 import BatchSaveRequest, SaveRequest
from stateward.v1.thread_service_pb2 import PruneThreadRequest, WaitDurableRequest
from stateward_sidecar.errors import ThreadNotFound, UidMismatch

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
