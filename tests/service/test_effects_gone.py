"""The danger: an effect outlives its version for ever, or a result that somebody still needs goes."""

from __future__ import annotations

import pytest
from google.protobuf.empty_pb2 import Empty
from tests.daemon.wire import appends, refused, replayed, text
from tests.messages import to_write
from tests.service.conftest import THREAD, Place

from stateward._operations.threads import spans_of
from stateward.v1 import thread_service_pb2 as t
from stateward.v1.checkpoint_pb2 import VersionRef
from stateward.v1.effect_pb2 import EFFECT_STATE_DONE, EFFECT_STATE_NEW, Effect
from stateward.v1.effect_service_pb2 import (
    BeginEffectRequest,
    BeginEffectResponse,
    CompleteEffectRequest,
    DeleteEffectsRequest,
    DeleteEffectsResponse,
    EffectKeys,
    ListEffectsRequest,
    PutEffectsRequest,
)
from stateward.v1.lease_pb2 import Holder
from stateward.v1.lease_service_pb2 import AcquireLeaseRequest


def at(place: Place, **fields: object) -> dict[str, object]:
    return {"namespace": place.namespace, "thread": THREAD, **fields}


def save(place: Place, expected: int, name: str, **fields: object) -> int:
    asked = place.request(expected_version=expected, checkpoint_id=name, diff=appends(name), **fields)
    version: int = place.wire.save(asked).version
    return version


def put(place: Place, anchor: str, key: str, **fields: object) -> None:
    effect = Effect(anchor=anchor, key=key, value=text(f"{anchor} {key}"), **fields)
    place.wire.effects.PutEffects(
        to_write(PutEffectsRequest, **at(place, effects=[effect], request_id=f"{anchor} {key} put"))
    )


def prune(place: Place, *versions: int, **fields: object) -> t.PruneThreadResponse:
    answer: t.PruneThreadResponse = place.wire.threads.PruneThread(
        to_write(t.PruneThreadRequest, **at(place, versions=spans_of(versions), **fields))
    )
    return answer


def left(place: Place, thread: str = THREAD) -> list[str]:
    """The effects that are there; Verify finds nothing, and the thread counts them right."""
    asked = ListEffectsRequest(namespace=place.namespace, thread=thread, page_size=1000)
    found = [f"{each.effect.anchor} {each.effect.key}" for each in place.wire.effects.ListEffects(asked).effects]
    assert place.wire.thread(place.namespace, thread).effects == len(found)
    assert place.findings() == []
    return sorted(found)


def begin(place: Place, anchor: str, key: str, request_id: str = "b", **fields: object) -> BeginEffectResponse:
    holder = Holder(name="h", incarnation="i")
    answer: BeginEffectResponse = place.wire.effects.BeginEffect(
        to_write(
            BeginEffectRequest, **at(place, anchor=anchor, key=key, holder=holder, request_id=request_id, **fields)
        )
    )
    return answer


@pytest.fixture
def line(place: Place) -> Place:
    """Versions 3 to 6 are c3 to c6, each with two effects; one effect has a free anchor."""
    for version in range(3, 7):
        save(place, version - 1, f"c{version}")
        put(place, f"c{version}", "a")
        put(place, f"c{version}", "b")
    put(place, "free", "k")
    return place


def test_effects_go_with_their_versions(line: Place) -> None:
    """Those of other versions stay, and those with a free anchor; an early one, put before its version, goes too."""
    put(line, "c7", "early")
    save(line, 6, "c7")
    put(line, "c7", "late")
    save(line, 7, "c8")
    prune(line, 3, 5, 7)
    assert left(line) == ["c4 a", "c4 b", "c6 a", "c6 b", "free k"]
    prune(line, 4)
    assert left(line) == ["c6 a", "c6 b", "free k"]


def test_what_says_that_it_stays_stays(line: Place) -> None:
    """A result that was put, one that was claimed, and only they; the answer shows it."""
    put(line, "c3", "kept", keep_when_pruned=True)
    claim = begin(line, "c3", "tool", keep_when_pruned=True)
    prune(line, 3, 4)
    assert left(line) == ["c3 kept", "c3 tool", "c5 a", "c5 b", "c6 a", "c6 b", "free k"]
    done = line.wire.effects.CompleteEffect(CompleteEffectRequest(
        **at(line, anchor="c3", key="tool", claim_token=claim.claim_token, state=EFFECT_STATE_DONE, value=text("v"))
    ))  # fmt: skip
    assert done.effect.effect.keep_when_pruned


def test_a_claim_goes_and_its_holder_is_told(line: Place) -> None:
    """CompleteEffect gets CLAIM_LOST; who begins it again gets a claim as for a new effect."""
    claim = begin(line, "c3", "tool")
    prune(line, 3)
    lost = CompleteEffectRequest(
        **at(line, anchor="c3", key="tool", claim_token=claim.claim_token, state=EFFECT_STATE_DONE, value=text("v"))
    )
    assert refused(line.wire.effects.CompleteEffect, lost).reason == "CLAIM_LOST"
    again = begin(line, "c3", "tool", "again")
    assert (again.state, again.effect.attempts) == (EFFECT_STATE_NEW, 1)
    assert again.claim_token > claim.claim_token
    assert left(line)[0] == "c3 tool"


def test_an_effect_put_after_the_prune_is_a_new_one(line: Place) -> None:
    """Its anchor names no version any more, so no prune takes it."""
    prune(line, 3)
    put(line, "c3", "a2")
    prune(line, 4, 5)
    assert left(line) == ["c3 a2", "c6 a", "c6 b", "free k"]


@pytest.mark.parametrize("is_deleted", [False, True])
def test_the_last_version_with_an_id_decides(line: Place, is_deleted: bool) -> None:
    """The same id on two branches, one of them perhaps deleted; the effects go when neither version is left."""
    save(line, 0, "c4", branch="x", parent=VersionRef(version=3))
    save(line, 7, "c5", branch="x")
    save(line, 8, "x9", branch="x")
    if is_deleted:
        line.wire.threads.DeleteBranch(t.DeleteBranchRequest(**at(line, branch="x")))
    prune(line, 4, 5)
    assert left(line)[2:6] == ["c4 a", "c4 b", "c5 a", "c5 b"]
    prune(line, 7)
    assert left(line) == [
        "c3 a", "c3 b", "c5 a", "c5 b", "c6 a", "c6 b", "free k",
    ]  # fmt: skip


def test_a_dry_run_and_a_retry_take_nothing_more(line: Place) -> None:
    """A retry of a prune does not take what was put since."""
    prune(line, 3, dry_run=True)
    assert "c3 a" in left(line)
    first = prune(line, 3, request_id="p")
    put(line, "c3", "new")
    assert prune(line, 3, request_id="p").pruned == first.pruned
    assert "c3 new" in left(line)


def test_a_pruned_head_takes_its_effects_along(line: Place) -> None:
    """With move_heads."""
    prune(line, 6, move_heads=True)
    assert left(line) == ["c3 a", "c3 b", "c4 a", "c4 b", "c5 a", "c5 b", "free k"]


def test_copies_and_backups_carry_what_is_left(line: Place) -> None:
    """A whole copy has no deleted effect, and says of each whether it stays; its own prunes take the others."""
    put(line, "c4", "kept", keep_when_pruned=True)
    prune(line, 3)
    new = f"{THREAD} whole"
    line.wire.threads.ForkThread(
        to_write(t.ForkThreadRequest, **at(line, new_thread=new, all_versions=True, request_id="w"))
    )
    assert left(line, new) == ["c4 a", "c4 b", "c4 kept", "c5 a", "c5 b", "c6 a", "c6 b"]
    asked = t.PruneThreadRequest(namespace=line.namespace, thread=new, versions=spans_of([4, 5]))
    line.wire.threads.PruneThread(asked)
    assert left(line, new) == ["c4 kept", "c6 a", "c6 b"]


def delete(place: Place, anchor: str, *keys: str, request_id: str = "d", **fields: object) -> DeleteEffectsResponse:
    what = {"keys": EffectKeys(keys=keys)} if keys else {"all": Empty()}
    asked = to_write(DeleteEffectsRequest, **at(place, anchor=anchor, **what, request_id=request_id, **fields))
    answer: DeleteEffectsResponse = place.wire.effects.DeleteEffects(asked)
    return answer


def test_effects_are_deleted(line: Place) -> None:
    """Some of an anchor, then all, whether they stay or not; a retry answers the same and takes nothing new."""
    put(line, "c4", "kept", keep_when_pruned=True)
    first = delete(line, "c4", "a", "none", "a")
    assert (first.deleted, first.receipt.sequence, first.receipt.uid) == (1, line.thread().sequence, line.thread().uid)
    assert left(line)[2:4] == ["c4 b", "c4 kept"]
    put(line, "c4", "a2")
    assert delete(line, "c4", "a", "none", "a") == replayed(first)
    assert delete(line, "c4", request_id="all").deleted == 3
    assert delete(line, "free", request_id="free").deleted == 1
    assert left(line) == ["c3 a", "c3 b", "c5 a", "c5 b", "c6 a", "c6 b"]
    before = line.thread().sequence
    none = delete(line, "c4", request_id="none")
    assert (none.deleted, none.receipt.sequence) == (0, before)
    again = to_write(DeleteEffectsRequest, **at(line, anchor="c5", all=Empty(), request_id="d"))
    assert refused(line.wire.effects.DeleteEffects, again).reason == "REQUEST_ID_REUSED"
    prune(line, 4)
    assert left(line) == ["c3 a", "c3 b", "c5 a", "c5 b", "c6 a", "c6 b"]


def test_a_deleted_claim(line: Place) -> None:
    """Its holder gets CLAIM_LOST; the next caller begins a new effect under another idempotency key."""
    claim = begin(line, "free", "tool")
    delete(line, "free", "tool")
    lost = CompleteEffectRequest(
        **at(line, anchor="free", key="tool", claim_token=claim.claim_token, state=EFFECT_STATE_DONE, value=text("v"))
    )
    assert refused(line.wire.effects.CompleteEffect, lost).reason == "CLAIM_LOST"
    assert begin(line, "free", "tool", "again").state == EFFECT_STATE_NEW


def test_a_watch_tells_it(line: Place) -> None:
    """With anchor and count."""
    delete(line, "c4")
    watch = line.wire.threads.Watch(t.WatchRequest(**at(line, after_sequence=line.thread().sequence - 1)), timeout=10)
    event = next(event for answer in watch for event in answer.events)
    assert (event.effects_deleted.anchor, event.effects_deleted.count) == ("c4", 2)
    watch.cancel()


def test_the_lease_guards_a_deletion(line: Place) -> None:
    """As it guards a save."""
    asked = to_write(AcquireLeaseRequest, **at(line, holder=Holder(name="me", incarnation="1"), request_id="lease"))
    token = line.wire.leases.AcquireLease(asked).lease.token
    wrong = to_write(DeleteEffectsRequest, **at(line, anchor="c4", all=Empty(), request_id="d"))
    assert refused(line.wire.effects.DeleteEffects, wrong).reason == "LEASE_HELD"
    assert delete(line, "c4", lease_token=token).deleted == 2


WRONG: dict[str, dict[str, object]] = {
    "what": {"anchor": "c4", "all": None},
    "keys.keys": {"anchor": "c4", "keys": EffectKeys(keys=[str(number) for number in range(1001)]), "all": None},
    "keys.keys[1]": {"anchor": "c4", "keys": EffectKeys(keys=["a", ""]), "all": None},
    "anchor": {"anchor": "c" * 1025},
    "options.request_id": {"anchor": "c4", "request_id": ""},
    "options.lease_token": {"anchor": "c4", "lease_token": -1},
}


@pytest.mark.parametrize("field", WRONG)
def test_refused_before_anything_is_deleted(line: Place, field: str) -> None:
    """The error names the field."""
    before = line.look()
    asked = to_write(DeleteEffectsRequest, **at(line, **{"all": Empty(), "request_id": "d", **WRONG[field]}))
    found = refused(line.wire.effects.DeleteEffects, asked)
    assert (found.reason, found.field) == ("INVALID_FIELD", field)
    assert line.look() == before
