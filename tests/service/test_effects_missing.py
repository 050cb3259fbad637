"""The danger: a version is read without its effects, with those of another version, or with the same effect twice."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.daemon.wire import appends, text
from tests.service.conftest import THREAD, Place

from stateward.v1.checkpoint_pb2 import VersionRef
from stateward.v1.checkpoint_service_pb2 import HydrateRequest, HydrateResponse, Projection, ReadHistoryRequest
from stateward.v1.effect_pb2 import Effect, RecordedEffect
from stateward.v1.effect_service_pb2 import ListEffectsRequest, PutEffectsRequest
from stateward.v1.write_pb2 import WriteOptions

PAGE = 1024
SAVES = 150


def put(place: Place, anchor: str, *keys: str, size_bytes: int = 5) -> None:
    """Results whose order is not that of their keys."""
    made = [
        Effect(anchor=anchor, key=key, sort_key=key[::-1].encode(), value=text(f"{anchor} {key} ".ljust(size_bytes)))
        for key in keys
    ]
    asked = PutEffectsRequest(
        namespace=place.namespace, thread=THREAD, effects=made, options=WriteOptions(request_id=f"{anchor} {keys}")
    )
    place.wire.effects.PutEffects(asked)


def listed(place: Place, anchor: str) -> list[RecordedEffect]:
    asked = ListEffectsRequest(namespace=place.namespace, thread=THREAD, anchor=anchor, page_size=1000)
    return list(place.wire.effects.ListEffects(asked).effects)


def pages(place: Place, **fields: Any) -> list[HydrateResponse]:
    asked = HydrateRequest(namespace=place.namespace, thread=THREAD, include_effects=True, **fields)
    found = [place.wire.checkpoints.Hydrate(asked)]
    while found[-1].next_page_token:
        asked.page_token = found[-1].next_page_token
        found.append(place.wire.checkpoints.Hydrate(asked))
    return found


def shown(answers: list[HydrateResponse]) -> list[RecordedEffect]:
    return [effect for answer in answers for effect in answer.effects]


def test_one_call_has_the_state_and_its_effects(place: Place) -> None:
    """Of the head and of other versions, with the values, in the order of a list; not those of other anchors."""
    put(place, "step-2", *"bca")
    put(place, "", "free")
    place.wire.save(place.request(checkpoint_id="step-3", diff=appends("third")))
    put(place, "step-3", "x")
    for fields, anchor in (({}, "step-3"), ({"version": VersionRef(checkpoint_id="step-2")}, "step-2")):
        (answer,) = pages(place, **fields)
        assert answer.checkpoint.checkpoint_id == anchor
        assert list(answer.effects) == listed(place, anchor)
        assert answer.effects[0].effect.value.data
        assert answer.state.logs["messages"].entries
    assert shown(pages(place, version=VersionRef(version=1))) == []  # it has no checkpoint id
    asked = HydrateRequest(namespace=place.namespace, thread=THREAD)
    assert list(place.wire.checkpoints.Hydrate(asked).effects) == []


def test_effects_come_also_if_nothing_or_little_of_the_state_does(place: Place) -> None:
    """With a version that the client has, and with a projection."""
    place.wire.save(place.request(checkpoint_id="step-3", diff=appends("third")))
    put(place, "step-3", "x", "y")
    for number in (2, 3):
        at = HydrateRequest(namespace=place.namespace, thread=THREAD, version=VersionRef(version=number))
        digest = place.wire.checkpoints.Hydrate(at).checkpoint.digest
        (answer,) = pages(place, known_version=number, known_digest=digest)
        assert (answer.base_version, list(answer.effects)) == (number, listed(place, "step-3"))
    (answer,) = pages(place, projection=Projection(slots=["goal"]))
    assert (answer.state.partial, list(answer.state.slots), len(answer.effects)) == (True, ["goal"], 2)


@pytest.mark.parametrize("fields", [{}, {"projection": Projection(slots=["goal"])}])
def test_pages_of_effects_follow_the_state(place: Place, fields: dict[str, Any]) -> None:
    """Each comes once, behind the state, and a page is no larger than asked, unless one effect is."""
    place.wire.save(place.request(checkpoint_id="step-3", diff=appends(*(f"{n} ".ljust(300) for n in range(8)))))
    put(place, "step-3", *(f"{number}" for number in range(40)), size_bytes=200)
    put(place, "step-3", "large", size_bytes=3 * PAGE)
    place.wire.save(place.request(branch="side", parent=VersionRef(version=3), expected_version=0, checkpoint_id="s"))
    answers = pages(place, max_bytes=PAGE, **fields)
    assert shown(answers) == listed(place, "step-3")
    assert len(answers) > 10
    of_state = [index for index, answer in enumerate(answers) if answer.state.slots or answer.state.logs]
    of_effects = [index for index, answer in enumerate(answers) if answer.effects]
    assert of_state[-1] <= of_effects[0]
    assert sorted({*of_state, *of_effects}) == list(range(len(answers)))
    for answer in answers:
        size_bytes = answer.state.ByteSize() + sum(each.ByteSize() for each in answer.effects)
        assert size_bytes <= PAGE + 100 or len(answer.effects) == 1
    assert answers[-1].state.partial == bool(fields)


def test_an_effect_that_comes_between_two_pages(place: Place) -> None:
    """It is shown if it lies behind the page, and no other is shown twice."""
    put(place, "step-2", *(f"{number:02}" for number in range(20)), size_bytes=200)
    asked = HydrateRequest(namespace=place.namespace, thread=THREAD, include_effects=True, max_bytes=PAGE)
    first = place.wire.checkpoints.Hydrate(asked)
    assert first.effects
    early, late = Effect(anchor="step-2", key="early", sort_key=b""), Effect(anchor="step-2", key="late", sort_key=b"z")
    for effect in (early, late):
        effect.value.CopyFrom(text("new"))
    place.wire.effects.PutEffects(
        PutEffectsRequest(
            namespace=place.namespace, thread=THREAD, effects=[early, late], options=WriteOptions(request_id="between")
        )
    )
    found = list(first.effects)
    while first.next_page_token:
        asked.page_token = first.next_page_token
        first = place.wire.checkpoints.Hydrate(asked)
        found += first.effects
    assert found == [each for each in listed(place, "step-2") if each.effect.key != "early"]


def test_a_version_is_never_read_without_the_effects_of_its_commit(place: Place) -> None:
    """While a writer saves versions with effects, every head that a reader sees has its own."""

    def save(number: int) -> None:
        made = [Effect(anchor=f"v{number}", key="k", value=text("result"))]
        place.wire.save(place.request(expected_version=number, checkpoint_id=f"v{number}", effects=made))

    def save_all() -> None:
        for number in range(3, SAVES):
            save(number)

    save(2)
    with ThreadPoolExecutor() as pool:
        saving = pool.submit(save_all)
        seen = set()
        while not saving.done():
            (answer,) = pages(place)
            (effect,) = answer.effects
            assert effect.effect.anchor == answer.checkpoint.checkpoint_id
            seen.add(answer.checkpoint.version)
        saving.result()
    assert len(seen) > SAVES // 10


def test_effects_of_a_history(place: Place) -> None:
    """Each version of a line comes with its own. Those that are too large are left out, and it says so."""
    for number in range(2, 6):
        place.wire.save(place.request(expected_version=number, checkpoint_id=f"c{number}"))
        put(place, f"c{number}", "b", "a")
    put(place, "c4", *"123", size_bytes=1_500_000)
    for direction in ("READ_ORDER_OLDEST_FIRST", "READ_ORDER_NEWEST_FIRST"):
        asked = ReadHistoryRequest(
            namespace=place.namespace,
            thread=THREAD,
            order=direction,
            include_effects=True,
            oldest=VersionRef(version=2),
        )
        found = list(place.wire.checkpoints.ReadHistory(asked))
        assert [answer.checkpoint.checkpoint_id for answer in found if answer.effects_omitted] == ["c4"]
        for answer in found:
            anchor = answer.checkpoint.checkpoint_id
            assert list(answer.effects) == ([] if anchor == "c4" else listed(place, anchor))
    asked.include_effects = False
    assert not any(answer.effects for answer in place.wire.checkpoints.ReadHistory(asked))
