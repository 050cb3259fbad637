"""The danger: a tool that may have been called already is handed out as new, because its claim or its result is
lost."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.daemon.wire import Wire, refused, replayed
from tests.messages import to_write
from tests.service.conftest import THREAD, Place

from stateward.testing import Daemon, run_daemon
from stateward.v1 import effect_service_pb2 as e
from stateward.v1 import effect_service_pb2_grpc as stubs
from stateward.v1.checkpoint_service_pb2 import HydrateRequest, SaveRequest
from stateward.v1.diff_pb2 import Diff
from stateward.v1.effect_pb2 import (
    EFFECT_STATE_DONE,
    EFFECT_STATE_FAILED,
    EFFECT_STATE_IN_PROGRESS,
    EFFECT_STATE_NEW,
    EFFECT_STATE_UNCERTAIN,
    Effect,
    EffectState,
)
from stateward.v1.lease_pb2 import Holder
from stateward.v1.lease_service_pb2 import AcquireLeaseRequest
from stateward.v1.state_pb2 import Value
from stateward.v1.thread_pb2 import ThreadOptions
from stateward.v1.thread_service_pb2 import GetThreadRequest, ListThreadsRequest
from stateward.v1.write_pb2 import WriteOptions

SMALL, LARGE = Value(data=b'"paid"'), Value(data=bytes(range(256)) * 8192)


class Claimant:
    """One process of an agent, talking to one daemon."""

    def __init__(self, wire: Wire, namespace: str, name: str = "agent", thread: str = THREAD) -> None:
        self._stub: stubs.EffectServiceStub = wire.effects
        self.holder = Holder(name=name, incarnation=uuid.uuid4().hex)
        self._place = {"namespace": namespace, "thread": thread}

    def ask(self, key: str = "pay", **fields: Any) -> e.BeginEffectRequest:
        given = {"request_id": uuid.uuid4().hex, "holder": self.holder, **fields}
        return to_write(e.BeginEffectRequest, **self._place, key=key, **given)

    def begin(self, key: str = "pay", **fields: Any) -> e.BeginEffectResponse:
        return self._stub.BeginEffect(self.ask(key, **fields))

    def end(self, token: int, state: EffectState, key: str = "pay", **fields: Any) -> e.CompleteEffectRequest:
        return to_write(e.CompleteEffectRequest, **self._place, key=key, claim_token=token, state=state, **fields)

    def complete(self, *args: Any, **fields: Any) -> e.CompleteEffectResponse:
        return self._stub.CompleteEffect(self.end(*args, **fields))

    def renewal(self, token: int, key: str = "pay", **fields: Any) -> e.RenewEffectRequest:
        return e.RenewEffectRequest(**self._place, key=key, claim_token=token, **fields)

    def renew(self, *args: Any, **fields: Any) -> e.RenewEffectResponse:
        return self._stub.RenewEffect(self.renewal(*args, **fields))

    def list(self, **fields: Any) -> e.ListEffectsResponse:
        return self._stub.ListEffects(e.ListEffectsRequest(**self._place, **fields))

    def put(self, *effects: Effect, request_id: str = "", **fields: Any) -> e.PutEffectsResponse:
        request_id = request_id or uuid.uuid4().hex
        return self._stub.PutEffects(
            to_write(e.PutEffectsRequest, **self._place, effects=effects, request_id=request_id, **fields)
        )


@pytest.fixture
def agent(place: Place) -> Claimant:
    return Claimant(place.wire, place.namespace)


@pytest.fixture
def other(place: Place) -> Claimant:
    return Claimant(place.wire, place.namespace, name="other")


def test_a_result_is_handed_out_again(agent: Claimant, other: Claimant) -> None:
    """NEW once, then IN_PROGRESS for everybody else, then DONE with the value for all."""
    begun = agent.begin(name="stripe")
    assert (begun.state, begun.effect.attempts) == (EFFECT_STATE_NEW, 1)
    meanwhile = other.begin()
    assert (meanwhile.state, meanwhile.claim_token) == (EFFECT_STATE_IN_PROGRESS, 0)
    assert 59 < meanwhile.retry_after.ToSeconds() + 1 <= 61
    assert meanwhile.idempotency_key == begun.idempotency_key != ""
    agent.complete(begun.claim_token, EFFECT_STATE_DONE, value=SMALL)
    for each in (agent.begin(), other.begin(), Claimant.begin(agent)):
        assert (each.state, each.claim_token, each.effect.effect.value) == (EFFECT_STATE_DONE, 0, SMALL)
        assert each.effect.effect.name == "stripe"


def test_a_lost_answer_is_given_again(agent: Claimant) -> None:
    """Begin and complete with the same words write nothing twice, and answer as the first time."""
    request = agent.ask()
    first = agent._stub.BeginEffect(request)
    assert agent._stub.BeginEffect(request) == replayed(first)
    done = agent.complete(first.claim_token, EFFECT_STATE_DONE, value=SMALL)
    assert agent.complete(first.claim_token, EFFECT_STATE_DONE, value=SMALL) == replayed(done)
    found = refused(agent._stub.CompleteEffect, agent.end(first.claim_token, EFFECT_STATE_FAILED))
    assert found.reason == "CLAIM_LOST"
    assert agent.begin().effect.effect.value == SMALL


def test_one_of_many_begins(place: Place) -> None:
    """Sixteen agents at once: one is told NEW."""
    agents = [Claimant(place.wire, place.namespace, name=f"agent {number}") for number in range(16)]
    states: list[int] = []
    threads = [threading.Thread(target=lambda agent=agent: states.append(agent.begin().state)) for agent in agents]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(states) == [EFFECT_STATE_NEW] + [EFFECT_STATE_IN_PROGRESS] * 15


def test_a_restarted_agent_is_told_at_once(place: Place, agent: Claimant, other: Claimant) -> None:
    """Its former process is dead, so its claim is; the old process, should it live, can say nothing any more."""
    begun = agent.begin()
    again = Claimant(place.wire, place.namespace).begin()
    assert (again.state, again.effect.attempts) == (EFFECT_STATE_UNCERTAIN, 2)
    assert again.idempotency_key == begun.idempotency_key
    assert again.claim_token > begun.claim_token
    assert other.begin().state == EFFECT_STATE_IN_PROGRESS
    found = refused(agent._stub.CompleteEffect, agent.end(begun.claim_token, EFFECT_STATE_DONE, value=SMALL))
    assert (found.reason, found.metadata["state"]) == ("CLAIM_LOST", "IN_PROGRESS")
    assert other.begin().state == EFFECT_STATE_IN_PROGRESS


def test_a_claim_ends_with_its_term(agent: Claimant, other: Claimant) -> None:
    """Some seconds without a word; a renewal begins the term anew."""
    term = {"seconds": 3}
    begun = agent.begin(term=term)
    waited = 0.0
    for _ in range(3):
        left = other.begin(term=term)
        assert left.state == EFFECT_STATE_IN_PROGRESS
        threading.Event().wait(1.1)
        waited += 1.1
        agent.renew(begun.claim_token)
    assert waited > 3
    threading.Event().wait(left.retry_after.ToSeconds() + 1.15)
    assert other.begin().state == EFFECT_STATE_UNCERTAIN
    assert agent.begin().state == EFFECT_STATE_IN_PROGRESS


def test_a_claim_ends_with_the_lease_it_was_made_under(place: Place, agent: Claimant, other: Claimant) -> None:
    """Who took the thread's lease since ended it; a claim under the old token is refused before anything is written."""
    acquire = {"namespace": place.namespace, "thread": THREAD}
    first = place.wire.leases.AcquireLease(
        AcquireLeaseRequest(**acquire, holder=agent.holder, options=WriteOptions(request_id="a"))
    )
    token = first.lease.token
    agent.begin(lease_token=token)
    taken = place.wire.leases.AcquireLease(
        AcquireLeaseRequest(**acquire, holder=other.holder, options=WriteOptions(request_id="b"), take_over=True)
    )
    assert other.begin(lease_token=taken.lease.token).state == EFFECT_STATE_UNCERTAIN
    before = place.thread().sequence
    assert refused(agent._stub.BeginEffect, agent.ask("mail", lease_token=token)).reason == "LEASE_HELD"
    assert place.thread().sequence == before


def test_what_is_given_up_says_how(agent: Claimant, other: Claimant) -> None:
    """NEW: nothing happened. UNCERTAIN: nobody knows, and the next one has to find out, without waiting."""
    first = agent.begin()
    agent.complete(first.claim_token, EFFECT_STATE_UNCERTAIN)
    second = other.begin()
    assert second.state == EFFECT_STATE_UNCERTAIN
    other.complete(second.claim_token, EFFECT_STATE_NEW)
    third = agent.begin()
    assert (third.state, third.effect.attempts) == (EFFECT_STATE_NEW, 3)
    assert first.idempotency_key == second.idempotency_key == third.idempotency_key
    agent.complete(third.claim_token, EFFECT_STATE_FAILED, detail="card declined")
    failed = other.begin()
    assert (failed.state, failed.effect.detail, failed.effect.effect.HasField("value")) == (
        EFFECT_STATE_FAILED, "card declined", False,
    )  # fmt: skip
    retried = other.begin(retry_failed=True)
    assert retried.state == EFFECT_STATE_NEW
    assert retried.idempotency_key != first.idempotency_key


def test_results_grow_old(agent: Claimant) -> None:
    """A result counts for as long as its reader says."""
    begun = agent.begin()
    agent.complete(begun.claim_token, EFFECT_STATE_DONE, value=SMALL)
    assert agent.begin(max_age={"seconds": 60}).state == EFFECT_STATE_DONE
    assert agent.begin(max_age={}).state == EFFECT_STATE_NEW


def test_results_are_listed_in_their_order(agent: Claimant) -> None:
    """By sort key under an anchor, by name, by key, with and without values, in pages that end."""
    agent.put(*(Effect(anchor="c1", key=str(n), sort_key=bytes([9 - n]), name="xy"[n % 2], value=SMALL)
                for n in range(7)), Effect(anchor="c2", key="0", value=SMALL))  # fmt: skip
    keys, token = [], ""
    while True:
        page = agent.list(anchor="c1", page_size=3, page_token=token)
        keys += [each.effect.key for each in page.effects]
        assert all(each.effect.value == SMALL for each in page.effects)
        token = page.next_page_token
        if not token:
            break
    assert keys == list("6543210")
    assert [each.effect.key for each in agent.list(anchor="c1", names=["y"]).effects] == list("531")
    (one,) = agent.list(anchor="c2", key="0", without_values=True).effects
    assert not one.effect.HasField("value")
    assert len(agent.list().effects) == 8


def test_what_is_put_follows_its_rule(agent: Claimant) -> None:
    """KEEP leaves the first result, REPLACE takes the newest, one that is being worked on is nobody else's."""
    kept, new = Effect(key="a", value=SMALL), Effect(key="a", value=LARGE)
    assert agent.put(kept).written == 1
    assert agent.put(new).written == 0
    assert agent.begin("a").effect.effect.value == SMALL
    new.on_conflict = Effect.CONFLICT_RULE_REPLACE
    first = agent.put(new, Effect(key="b", value=SMALL), request_id="r1")
    assert (first.written, agent.begin("a").effect.effect.value) == (2, LARGE)
    assert agent.put(new, Effect(key="b", value=SMALL), request_id="r1") == replayed(first)
    agent.begin("c")
    busy = e.PutEffectsRequest(**agent._place, effects=[Effect(key="d", value=SMALL), Effect(key="c", value=SMALL)],
                               options=WriteOptions(request_id="r2"))  # fmt: skip
    assert refused(agent._stub.PutEffects, busy).reason == "CLAIM_LOST"
    assert agent.begin("d").state == EFFECT_STATE_NEW


def test_results_ride_on_a_save(place: Place, agent: Claimant) -> None:
    """Both or none: a save that is refused leaves no effect, also where others are written in the same batch."""
    effects = [Effect(key="x", value=SMALL), Effect(key="y", value=LARGE)]
    assert refused(place.wire.checkpoints.Save, place.request(effects=effects, expected_version=1)).reason == (
        "VERSION_MISMATCH"
    )
    calls = [place.wire.checkpoints.Save.future(place.request(effects=effects, expected_version=1, request_id=str(n)))
             if n % 2 else place.wire.checkpoints.Save.future(
                 place.request(expected_version=None, request_id=str(n), diff=Diff(edits=place.request().diff.edits)))
             for n in range(20)]  # fmt: skip
    assert sorted(call.exception() is None for call in calls) == [False] * 10 + [True] * 10
    assert list(agent.list().effects) == []
    saved = place.wire.save(place.request(effects=effects, expected_version=12, request_id="with"))
    again = place.wire.save(place.request(effects=effects, expected_version=12, request_id="with"))
    assert (saved.version, again.version, again.receipt.replayed) == (13, 13, True)
    assert [each.effect.value for each in agent.list().effects] == [SMALL, LARGE]
    assert place.thread().effects == 2


def test_an_effect_comes_before_its_checkpoint(place: Place) -> None:
    """It makes the thread, which has no version until the first save; that one may still say what the thread is."""
    agent = Claimant(place.wire, place.namespace, thread="early")
    begun = agent.begin()
    at = {"namespace": place.namespace, "thread": "early"}
    assert refused(place.wire.checkpoints.Hydrate, HydrateRequest(**at)).reason == "VERSION_NOT_FOUND"
    listed = place.wire.threads.ListThreads(ListThreadsRequest(namespace=place.namespace)).threads
    assert {each.thread: each.version for each in listed} == {"early": 0, THREAD: 2}
    options = ThreadOptions(labels={"k": "v"}, agent="a")
    place.wire.save(SaveRequest(**at, options=WriteOptions(expected_version=0, create=options), diff=Diff()))
    thread = place.wire.threads.GetThread(GetThreadRequest(**at)).thread
    assert (thread.version, dict(thread.labels), thread.agent) == (1, {"k": "v"}, "a")
    agent.complete(begun.claim_token, EFFECT_STATE_DONE, value=SMALL)
    assert place.wire.findings() == []


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"key": ""}, "key"),
        ({"anchor": "a\n"}, "anchor"),
        ({"holder": None}, "holder.name"),
        ({"holder": Holder(name="n")}, "holder.incarnation"),
        ({"term": {"nanos": 1}}, "term"),
        ({"term": {"seconds": 86_401}}, "term"),
        ({"max_age": {"seconds": -1}}, "max_age"),
        ({"request_id": ""}, "options.request_id"),
        ({"lease_token": -1}, "options.lease_token"),
        ({"sort_key": b"s" * 1025}, "sort_key"),
        ({"create": ThreadOptions(ttl={"seconds": -1})}, "options.create.ttl"),
    ],
)
def test_bad_claims_are_refused(untouched: Place, fields: dict[str, Any], field: str) -> None:
    """By name of the field, and nothing is written."""
    agent = Claimant(untouched.wire, untouched.namespace)
    assert refused(untouched.wire.effects.BeginEffect, agent.ask(**fields)).field == field


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"token": 0, "state": EFFECT_STATE_DONE, "value": SMALL}, "claim_token"),
        ({"token": 1, "state": EFFECT_STATE_DONE}, "value"),
        ({"token": 1, "state": EFFECT_STATE_IN_PROGRESS}, "state"),
        ({"token": 1, "state": 77}, "state"),
        ({"token": 1, "state": EFFECT_STATE_NEW, "value": SMALL}, "value"),
        ({"token": 1, "state": EFFECT_STATE_FAILED, "detail": "d" * 4097}, "detail"),
    ],
)
def test_bad_ends_are_refused(untouched: Place, fields: dict[str, Any], field: str) -> None:
    """By name of the field, and nothing is written."""
    request = Claimant(untouched.wire, untouched.namespace).end(**fields)
    assert refused(untouched.wire.effects.CompleteEffect, request).field == field


@pytest.mark.parametrize(
    ("fields", "field"),
    [({"token": 0}, "claim_token"), ({"token": -1}, "claim_token"), ({"token": 1, "key": ""}, "key")],
)
def test_bad_renewals_are_refused(untouched: Place, fields: dict[str, Any], field: str) -> None:
    """By name of the field."""
    request = Claimant(untouched.wire, untouched.namespace).renewal(**fields)
    assert refused(untouched.wire.effects.RenewEffect, request).field == field


def test_a_lost_claim_is_not_renewed(place: Place, agent: Claimant, other: Claimant) -> None:
    """Another has it, it has ended, or there never was one; the claim of the other goes on as it was."""
    begun = agent.begin(term={"seconds": 1})
    threading.Event().wait(2.1)
    agent.renew(begun.claim_token)  # the term is over, and nobody has asked since
    restarted = Claimant(place.wire, place.namespace)
    taken = restarted.begin()
    for token in (begun.claim_token, taken.claim_token + 1):
        found = refused(agent._stub.RenewEffect, agent.renewal(token))
        assert (found.reason, found.metadata["state"]) == ("CLAIM_LOST", "IN_PROGRESS")
    restarted.complete(taken.claim_token, EFFECT_STATE_DONE, value=SMALL)
    found = refused(agent._stub.RenewEffect, agent.renewal(taken.claim_token))
    assert (found.reason, found.metadata["state"]) == ("CLAIM_LOST", "DONE")
    never = agent.renewal(taken.claim_token, "never")
    assert refused(agent._stub.RenewEffect, never).reason == "CLAIM_LOST"
    assert other.begin().effect.effect.value == SMALL


# -- a daemon of its own --------------------------------------------------------------------------------------------


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[Daemon]:
    with run_daemon(tmp_path / "data") as daemon:
        yield daemon


def test_claims_and_results_survive_the_daemon(killed: Daemon) -> None:
    """Killed after each answer: a claim is still one, with its full term; a result is still there, large or small."""
    wire = Wire(killed.target)
    agent, other = Claimant(wire, "n"), Claimant(wire, "n", name="other")
    claim = agent.begin()
    agent.put(Effect(key="large", value=LARGE), Effect(key="small", value=SMALL))
    killed.kill()
    killed.start()
    wire.close()
    wire = Wire(killed.target)
    agent, other = (Claimant(wire, "n", name=each) for each in ("agent", "other"))
    assert other.begin().state == EFFECT_STATE_IN_PROGRESS
    assert [each.effect.value for each in agent.list(names=[""]).effects if each.effect.HasField("value")] == [
        LARGE, SMALL,
    ]  # fmt: skip
    agent.complete(claim.claim_token, EFFECT_STATE_DONE, value=LARGE)
    killed.kill()
    killed.start()
    wire.close()
    wire = Wire(killed.target)
    assert Claimant(wire, "n").begin().effect.effect.value == LARGE
    assert wire.findings() == []
    wire.close()


def test_a_renewal_needs_no_archive(place: Place, agent: Claimant) -> None:
    """It records nothing: the claim stays as it was, and the journal does not grow."""
    begun = agent.begin()
    before = place.thread().sequence
    renewed = agent.renew(begun.claim_token)
    assert (renewed.effect, renewed.uid) == (begun.effect, begun.receipt.uid)
    assert renewed.effect.state == EFFECT_STATE_IN_PROGRESS
    assert place.thread().sequence == before
