"""The operation that empties a machine."""

from __future__ import annotations

from stateward._operations.steps import Call, Operation
from stateward.admin import DrainResult
from stateward.durations import Duration, span
from stateward.v1 import admin_service_pb2 as admin

# Beyond the grace time: the daemon answers a little before the deadline with what it has done.
MARGIN_S = 5.0
# What a call may take where the daemon's own grace time counts, which is not known here.
DEADLINE_S = 3600.0
GRACE_MAX_S = 3600.0


def drain(grace: Duration | None, undo: bool) -> Operation[DrainResult]:
    """Begins draining, or ends it."""
    given = None if grace is None else span(grace, "grace", most=GRACE_MAX_S)
    request = admin.DrainRequest(undo=undo, grace=given)
    deadline_s = None if undo else DEADLINE_S if given is None else given.total_seconds() + MARGIN_S
    return DrainResult.from_proto((yield Call("Drain", request, deadline_s)))
