"""The danger: a copy has the versions, and not the results that belong to them; or has claims of others."""

from __future__ import annotations

import pytest
from tests.daemon.wire import appends, text
from tests.service.conftest import THREAD, Place

from stateward._operations.threads import spans_of
from stateward.v1.admin_service_pb2 import VerifyRequest
from stateward.v1.checkpoint_pb2 import VersionRef
from stateward.v1.effect_pb2 import EFFECT_STATE_DONE, EFFECT_STATE_NEW, Effect
from stateward.v1.effect_service_pb2 import BeginEffectRequest, ListEffectsRequest, PutEffectsRequest
from stateward.v1.lease_pb2 import Holder
from stateward.v1.thread_service_pb2 import ForkThreadRequest, PruneThreadRequest
from stateward.v1.write_pb2 import WriteOptions


def put(place: Place, anchor: str, *keys: str) -> None:
    """Results of tasks, as a framework records them."""
    made = [
        Effect(anchor=anchor, key=key, name="channel", sort_key=b"1", value=text(f"{anchor} {key}")) for key in keys
    ]
    place.wire.effects.PutEffects(
        PutEffectsRequest(
            namespace=place.namespace, thread=THREAD, effects=made, options=WriteOptions(request_id=f"{anchor} {keys}")
        )
    )


def effects(place: Place, thread: str) -> dict[tuple[str, str], bytes]:
    """All results of a thread."""
    asked = ListEffectsRequest(namespace=place.namespace, thread=thread, page_size=1000)
    found = place.wire.effects.ListEffects(asked).effects
    assert all(each.state == EFFECT_STATE_DONE and not each.claim_token for each in found)
    return {(each.effect.anchor, each.effect.key): each.effect.value.data for each in found}


@pytest.fixture
def anchored(place: Place) -> Place:
    """Three versions with ids, results for each, one for no version, and a call that is under way."""
    for number, name in enumerate(("c3", "c4", "c5"), 2):
        place.wire.save(place.request(expected_version=number, checkpoint_id=name, diff=appends(name)))
        put(place, name, "a", "b")
    put(place, "a tool", "k")
    begin = BeginEffectRequest(
        namespace=place.namespace, thread=THREAD, anchor="c5", key="open", holder=Holder(name="h", incarnation="i"),
        options=WriteOptions(request_id="r"),
    )  # fmt: skip
    assert place.wire.effects.BeginEffect(begin).state == EFFECT_STATE_NEW
    return place


def test_a_whole_copy_has_the_results_of_its_versions(anchored: Place) -> None:
    """Not those of pruned versions, not free ones, and no claim; Verify finds nothing in the copy."""
    place, new = anchored, f"{THREAD} whole"
    gone = PruneThreadRequest(namespace=place.namespace, thread=THREAD, versions=spans_of([3]))
    place.wire.threads.PruneThread(gone)
    place.wire.threads.ForkThread(
        ForkThreadRequest(
            namespace=place.namespace,
            thread=THREAD,
            new_thread=new,
            all_versions=True,
            options=WriteOptions(request_id="w"),
        )
    )
    wanted = {(anchor, key): f"{anchor} {key}".encode() for anchor in ("c4", "c5") for key in "ab"}
    assert effects(place, new) == wanted
    assert place.wire.thread(place.namespace, new).effects == len(wanted)
    asked = VerifyRequest(namespace=place.namespace, thread=new)
    assert [each.finding for each in place.wire.admin.Verify(asked) if each.HasField("finding")] == []


def test_a_copy_of_one_version_has_its_results(anchored: Place) -> None:
    """Of version 4 only, under the anchor that they had."""
    place, new = anchored, f"{THREAD} one"
    ref = VersionRef(version=4)
    place.wire.threads.ForkThread(
        ForkThreadRequest(
            namespace=place.namespace, thread=THREAD, new_thread=new, version=ref, options=WriteOptions(request_id="o")
        )
    )
    assert effects(place, new) == {("c4", key): f"c4 {key}".encode() for key in "ab"}
