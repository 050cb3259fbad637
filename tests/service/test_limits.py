"""The danger: a state that is too large is written all the same, or a save whose deadline has passed is applied after
its caller gave up."""

from __future__ import annotations

import os

import grpc
import pytest
from tests.daemon.wire import appends, refused, sets
from tests.service.conftest import Place

from stateward.v1.admin_service_pb2 import GetServerInfoRequest
from stateward.v1.checkpoint_service_pb2 import HydrateRequest, SaveRequest
from stateward.v1.diff_pb2 import Diff, Edit, SetSlot
from stateward.v1.state_pb2 import State, Value

MIB = 1 << 20
BEHIND = 12


def blob(size: int) -> Value:
    return Value(data=os.urandom(size))


def test_a_state_above_the_limit_is_refused_with_both_sizes(untouched: Place) -> None:
    """STATE_TOO_LARGE says how large the state is and how large it may be, as GetServerInfo does."""
    limit = untouched.wire.admin.GetServerInfo(GetServerInfoRequest()).max_state_bytes
    assert limit == 4 * MIB
    whole = State(slots={"large": blob(limit + 100)})
    found = refused(untouched.wire.checkpoints.Save, untouched.request(diff=None, state=whole))
    assert (found.reason, found.code) == ("STATE_TOO_LARGE", grpc.StatusCode.RESOURCE_EXHAUSTED)
    assert int(found.metadata["size_bytes"]) > int(found.metadata["limit_bytes"]) == limit


def test_a_state_that_grows_above_the_limit_is_refused(place: Place) -> None:
    """The limit holds for what a small diff makes of a state, also unconditionally, and for a new thread."""
    place.wire.save(place.request(diff=Diff(edits=[Edit(set_slot=SetSlot(slot="a", value=blob(3 * MIB)))])))
    diff = Diff(edits=[Edit(set_slot=SetSlot(slot="b", value=blob(3 * MIB)))])
    before, sequence = place.state(), place.thread().sequence
    for fields in ({"expected_version": 3}, {"expected_version": None, "request_id": "r"}):
        assert refused(place.wire.checkpoints.Save, place.request(diff=diff, **fields)).reason == "STATE_TOO_LARGE"
    assert (place.state(), place.thread().sequence, place.thread().version) == (before, sequence, 3)


def test_a_message_above_the_limit_is_refused_by_the_server(untouched: Place) -> None:
    """A message that no state may have is STATE_TOO_LARGE with both sizes, and the connection goes on."""
    whole = State(slots={"large": blob(8 * MIB)})
    request = untouched.request(diff=None, state=whole)
    found = refused(untouched.wire.checkpoints.Save, request)
    assert (found.reason, found.code) == ("STATE_TOO_LARGE", grpc.StatusCode.RESOURCE_EXHAUSTED)
    assert int(found.metadata["size_bytes"]) == request.ByteSize() > int(found.metadata["limit_bytes"]) >= 4 * MIB


def test_a_message_far_above_the_limit_is_never_taken(untouched: Place) -> None:
    """A message of several times the limit is RESOURCE_EXHAUSTED by gRPC itself, and nothing is logged for it."""
    before = untouched.daemon.stderr
    whole = State(slots={"large": blob(24 * MIB)})
    call = untouched.wire.checkpoints.Save.future(untouched.request(diff=None, state=whole), timeout=20)
    assert call.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    untouched.wire.admin.GetServerInfo(GetServerInfoRequest())
    assert untouched.daemon.stderr == before


def test_too_many_edits_are_refused(untouched: Place) -> None:
    """A diff has at most 100,000 edits."""
    edit = sets("goal", "x").edits[0]
    found = refused(untouched.wire.checkpoints.Save, untouched.request(diff=Diff(edits=[edit] * 100_001)))
    assert (found.reason, found.field) == ("INVALID_FIELD", "diff.edits")


def test_a_write_whose_deadline_passes_in_the_queue_is_not_applied(place: Place) -> None:
    """Queued behind large writes until its deadline has passed, a save is dropped: its version never appears."""
    for attempt in range(30):  # on a fast disk the large writes may be through too early: then again, with more of them
        name = f"late-{attempt}"
        place.wire.save(place.request(thread=name, expected_version=0, diff=appends("first")))
        large = [
            place.wire.checkpoints.Save.future(large_save(place, f"large-{attempt}-{number}"), timeout=60)
            for number in range(BEHIND + attempt)
        ]
        late = place.request(thread=name, expected_version=1, diff=appends("late"))
        is_late = place.wire.checkpoints.Save.future(late, timeout=0.04).code() == grpc.StatusCode.DEADLINE_EXCEEDED
        was_queued = not all(call.done() for call in large)
        assert all(call.code() == grpc.StatusCode.OK for call in large)
        whole = HydrateRequest(namespace=place.namespace, thread=name)
        head = place.wire.checkpoints.Hydrate(whole).checkpoint.version
        if is_late and was_queued and head == 1:  # at 2 the writer had taken it in time, and only the answer was late
            break
    else:
        pytest.fail("no late write was dropped: the queue was never long enough, or deadlines are not looked at")
    # A later write goes through the same queue: what was before it has been decided.
    assert place.wire.save(place.request(thread=name, expected_version=1, diff=appends("second"))).version == 2
    found = place.wire.hydrate(HydrateRequest(namespace=place.namespace, thread=name))
    assert [entry.data for entry in found.logs["messages"].entries] == [b"first", b"second"]
    assert place.findings() == []


def large_save(place: Place, thread: str) -> SaveRequest:
    return place.request(thread=thread, expected_version=0, diff=None, state=State(slots={"s": blob(3 * MIB)}))
