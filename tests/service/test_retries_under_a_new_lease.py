"""The danger: an agent that was restarted holds the next lease, repeats a call that was written, and is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.daemon.wire import appends, refused, replayed, text
from tests.messages import to_write
from tests.service.agents import Agent, new_id
from tests.service.conftest import THREAD, Place

from stateward._operations.threads import spans_of
from stateward.v1 import checkpoint_service_pb2 as c
from stateward.v1 import effect_service_pb2 as e
from stateward.v1 import record_service_pb2 as r
from stateward.v1 import thread_service_pb2 as t
from stateward.v1.checkpoint_pb2 import DURABILITY_COMMITTED, VersionRef
from stateward.v1.effect_pb2 import (
    EFFECT_STATE_DONE,
    EFFECT_STATE_IN_PROGRESS,
    EFFECT_STATE_NEW,
    EFFECT_STATE_UNCERTAIN,
    Effect,
)
from stateward.v1.effect_service_pb2 import EffectKeys
from stateward.v1.lease_pb2 import Holder
from stateward.v1.record_pb2 import RecordWrite
from stateward.v1.signal_service_pb2 import SendSignalRequest
from stateward.v1.write_pb2 import WriteOptions

TOOL = Holder(name="tool", incarnation="1")


@pytest.fixture
def worker(place: Place) -> Callable[[], int]:
    """The same agent, restarted with each call: returns the token of its new lease."""
    return lambda: Agent(place.wire, place.namespace, "worker").take()


def prepare(place: Place, token: int) -> None:
    """An effect, a record and a branch that the calls change."""
    at = {"namespace": place.namespace, "thread": THREAD, "lease_token": token}
    put = Effect(key="old", value=text("1"))
    place.wire.effects.PutEffects(to_write(e.PutEffectsRequest, **at, effects=[put], request_id=new_id()))
    write = RecordWrite(key="old", value=text("1"))
    place.wire.records.PutRecords(to_write(r.PutRecordsRequest, **at, writes=[write], request_id=new_id()))
    save = to_write(
        c.SaveRequest, **at, branch="side", parent=VersionRef(version=2), expected_version=0, diff=appends("s")
    )
    save.options.request_id = new_id()
    place.wire.save(save)


CALLS: dict[str, Callable[[], Any]] = {
    "Save": lambda: c.SaveRequest(diff=appends("more")),
    "PutEffects": lambda: e.PutEffectsRequest(effects=[Effect(key="k", value=text("1"))]),
    "BeginEffect": lambda: e.BeginEffectRequest(key="tool", holder=TOOL),
    "DeleteEffects": lambda: e.DeleteEffectsRequest(keys=EffectKeys(keys=["old"])),
    "PutRecords": lambda: r.PutRecordsRequest(writes=[RecordWrite(key="k", value=text("1"))]),
    "DeleteRecords": lambda: r.DeleteRecordsRequest(prefix="old"),
    "MoveBranch": lambda: t.MoveBranchRequest(version=VersionRef(version=1)),
    "DeleteBranch": lambda: t.DeleteBranchRequest(branch="side"),
    "PruneThread": lambda: t.PruneThreadRequest(versions=spans_of([2, 3]), move_heads=True),
    "SetTag": lambda: t.SetTagRequest(tag="best"),
    "UpdateThread": lambda: t.UpdateThreadRequest(update={"agent": "a"}, update_mask={"paths": ["agent"]}),
    "SendSignal": lambda: SendSignalRequest(name="n"),
}


def make(place: Place, name: str, request: Any, token: int) -> Any:
    request.namespace, request.thread = place.namespace, THREAD
    request.options.lease_token = token
    stubs = place.wire.__dict__.values()
    return next(getattr(stub, name) for stub in stubs if hasattr(stub, name))(request)


@pytest.mark.parametrize("name", CALLS)
def test_the_next_lease_gets_the_first_answer(place: Place, worker: Callable[[], int], name: str) -> None:
    """The same request id under the next lease, and then under one that is lost: the first answer, nothing written."""
    prepare(place, first := worker())
    request = CALLS[name]()
    request.options.request_id = new_id()
    answer = make(place, name, request, first)
    for token in (worker(), first):
        entries = place.wire.entries_written()
        request.options.durability = DURABILITY_COMMITTED
        again = make(place, name, request, token)
        assert again.receipt.replayed
        if name == "BeginEffect":  # the claim goes on under the new lease, which is one entry
            assert (again.state, again.claim_token) == (answer.state, answer.claim_token)
            continue
        assert again == replayed(answer) or name == "UpdateThread"  # which answers with the thread as it is now
        if not name.endswith("Records"):  # values of records are moved together in the background, which writes entries
            assert place.wire.entries_written() == entries


def test_a_batch_is_answered_again(place: Place, worker: Callable[[], int]) -> None:
    """Each item has the token of its own thread."""
    save = place.request(request_id=new_id(), lease_token=worker())
    first = place.wire.checkpoints.BatchSave(c.BatchSaveRequest(saves=[save]))
    save.options.lease_token = worker()
    again = place.wire.checkpoints.BatchSave(c.BatchSaveRequest(saves=[save]))
    assert [each.version for each in again.saves] == [each.version for each in first.saves] == [3]


def test_another_request_is_told_apart(place: Place, worker: Callable[[], int]) -> None:
    """Only the fields that a retry may change are left out."""
    request = e.PutEffectsRequest(effects=[Effect(key="k", value=text("1"))], options=WriteOptions(request_id=new_id()))
    make(place, "PutEffects", request, worker())
    request.effects[0].value.data = b"2"
    request.options.lease_token = worker()
    assert refused(place.wire.effects.PutEffects, request).reason == "REQUEST_ID_REUSED"


def begin(place: Place, request_id: str, token: int, holder: Holder = TOOL) -> e.BeginEffectResponse:
    request = e.BeginEffectRequest(key="tool", holder=holder, options=WriteOptions(request_id=request_id))
    answer: e.BeginEffectResponse = make(place, "BeginEffect", request, token)
    return answer


def test_a_claim_that_is_answered_again_lives(place: Place, worker: Callable[[], int]) -> None:
    """While its holder calls the tool, nobody else is told that the claim is dead; and it can be completed."""
    first = begin(place, "one", worker())
    again = begin(place, "one", token := worker())
    assert (again.claim_token, again.state) == (first.claim_token, EFFECT_STATE_NEW)
    other = Holder(name="other", incarnation="2")
    assert begin(place, "two", token, other).state == EFFECT_STATE_IN_PROGRESS
    assert begin(place, "one", token).claim_token == first.claim_token
    done = e.CompleteEffectRequest(key="tool", claim_token=first.claim_token, state=EFFECT_STATE_DONE, value=text("1"))
    make(place, "CompleteEffect", done, token)
    assert begin(place, "one", token).state == EFFECT_STATE_DONE
    assert place.wire.findings() == []


def test_a_restarted_agent_gets_no_claim_of_its_former_process(place: Place, worker: Callable[[], int]) -> None:
    """The same request id from another incarnation: the tool may have run, so the answer is UNCERTAIN, never NEW."""
    first = begin(place, "one", worker())
    again = begin(place, "one", worker(), Holder(name="tool", incarnation="2"))
    assert again.state == EFFECT_STATE_UNCERTAIN
    assert again.claim_token > first.claim_token
    assert again.idempotency_key == first.idempotency_key


def test_a_claim_that_somebody_took_is_not_given_again(place: Place, worker: Callable[[], int]) -> None:
    """Somebody with the next lease has the claim: the first holder, with a lease after that, is told to wait."""
    first = begin(place, "one", worker())
    other = begin(place, "two", worker(), Holder(name="other", incarnation="2"))
    assert (first.state, other.state) == (EFFECT_STATE_NEW, EFFECT_STATE_UNCERTAIN)
    again = begin(place, "one", 0)
    assert (again.state, again.claim_token) == (EFFECT_STATE_IN_PROGRESS, 0)


def test_a_claim_whose_lease_somebody_took_is_not_given_again(place: Place, worker: Callable[[], int]) -> None:
    """The next lease ended the claim. A retry under the lost lease is refused, although nobody has claimed the effect
    since: otherwise two agents would call the tool."""
    token = worker()
    begin(place, "one", token)
    Agent(place.wire, place.namespace, "other").take(take_over=True)
    request = e.BeginEffectRequest(
        namespace=place.namespace, thread=THREAD, key="tool", holder=TOOL, options=WriteOptions(lease_token=token)
    )
    request.options.request_id = "one"
    assert refused(place.wire.effects.BeginEffect, request).reason == "LEASE_HELD"
    assert begin(place, "two", 0, Holder(name="other", incarnation="2")).state == EFFECT_STATE_UNCERTAIN
