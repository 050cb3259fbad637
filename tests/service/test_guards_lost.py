"""The danger: a save passes although the lock that guards it was lost."""

from __future__ import annotations

from typing import Any

import pytest
from tests.daemon.wire import refused
from tests.messages import facts_of
from tests.service.agents import Agent
from tests.service.conftest import THREAD, Place

from stateward.v1 import checkpoint_service_pb2 as c


def guarded(place: Place, thread: str, token: int, **fields: Any) -> c.SaveRequest:
    return place.request(guard=c.LeaseGuard(thread=thread, token=token), **fields)


def test_a_lease_elsewhere_guards_a_save(place: Place) -> None:
    """With the newest token it passes; once somebody else took the lease it fails, and a retry is still answered."""
    first, second = (Agent(place.wire, place.namespace, name, thread="lock") for name in "ab")
    token = first.take()
    request = guarded(place, "lock", token, request_id="r")
    assert place.wire.checkpoints.Save(request).version == 3
    newer = second.take(take_over=True)
    found = refused(place.wire.checkpoints.Save, guarded(place, "lock", token, expected_version=3))
    assert (found.reason, found.metadata["thread"]) == ("LEASE_HELD", "lock")
    for again in (request, guarded(place, "lock", newer, request_id="r")):
        assert place.wire.checkpoints.Save(again).receipt.replayed
    saves = [guarded(place, "lock", newer, expected_version=3), guarded(place, "lock", token, branch="b")]
    saves[1].options.expected_version = 0
    found = refused(place.wire.checkpoints.BatchSave, c.BatchSaveRequest(saves=saves))
    assert (found.reason, found.metadata["item"]) == ("LEASE_HELD", "saves[1]")
    assert place.thread().version == 3
    assert second.release(newer)
    assert (
        refused(place.wire.checkpoints.Save, guarded(place, "lock", newer, expected_version=3)).reason == "LEASE_HELD"
    )


@pytest.mark.parametrize(
    ("guard", "reason", "field"),
    [
        ({"thread": "", "token": 1}, "INVALID_FIELD", "guard.thread"),
        ({"thread": THREAD, "token": 1}, "INVALID_FIELD", "guard.thread"),
        ({"thread": "lock"}, "INVALID_FIELD", "guard.token"),
        ({"thread": "lock", "token": -1}, "INVALID_FIELD", "guard.token"),
        ({"thread": "none", "token": 1}, "THREAD_NOT_FOUND", ""),
    ],
)
def test_a_wrong_guard_is_refused(untouched: Place, guard: dict[str, Any], reason: str, field: str) -> None:
    """A guard names another thread, which exists, and a token."""
    found = refused(untouched.wire.checkpoints.Save, untouched.request(guard=c.LeaseGuard(**guard)))
    assert (found.reason, found.field) == (reason, field)


@pytest.mark.parametrize(
    "fields", [{"on_mismatch": c.ON_MISMATCH_FORK}, {"guard": c.LeaseGuard(thread="lock", token=1)}]
)
def test_a_writer_takes_neither(place: Place, make: Any, fields: dict[str, Any]) -> None:
    """A stream has one branch and a lease of its own; the frame is refused, and the field named."""
    stream = make("agent").open()
    stream.send(**fields)
    assert facts_of(stream.next().refused.status)["field"] == f"save.{next(iter(fields))}"
    stream.end()
