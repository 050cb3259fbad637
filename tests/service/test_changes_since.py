"""The danger: a client that asks for the changes since its version gets edits of another line or pruned base, and
builds a wrong state."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.daemon.wire import Wire, appends, refused, sets
from tests.model.plain import PlainState
from tests.model.strategies import ANY_EDITS
from tests.service.conftest import THREAD, Place

from stateward.v1.checkpoint_pb2 import VersionRef
from stateward.v1.checkpoint_service_pb2 import HydrateRequest, HydrateResponse, Projection, SaveRequest
from stateward.v1.diff_pb2 import DeleteSlot, Diff, Edit
from stateward.v1.state_pb2 import State, Value
from stateward.v1.thread_service_pb2 import PruneThreadRequest
from stateward.v1.write_pb2 import WriteOptions

COUNT = itertools.count()
FILLING_BYTES = 50_000


def known(place: Place, number: int, **fields: object) -> HydrateRequest:
    """A hydrate by somebody who has a version."""
    at = HydrateRequest(namespace=place.namespace, thread=THREAD, version=VersionRef(version=number))
    digest = place.wire.checkpoints.Hydrate(at).checkpoint.digest
    asked = HydrateRequest(
        namespace=place.namespace, thread=THREAD, known_version=number, known_digest=digest, include_signals=True
    )
    asked.MergeFrom(HydrateRequest(**fields))  # type: ignore[arg-type]
    return asked


def answer(place: Place, asked: HydrateRequest) -> HydrateResponse:
    found: HydrateResponse = place.wire.checkpoints.Hydrate(asked, timeout=20)
    return found


def test_nothing_changed(place: Place) -> None:
    """The version that the client has: no state comes, also if it is asked for by its number."""
    for fields in ({}, {"version": VersionRef(version=2)}, {"branch": "main"}):
        found = answer(place, known(place, 2, **fields))
        assert (found.base_version, found.checkpoint.version) == (2, 2)
        assert not found.state.slots
        assert not found.state.logs
        assert not found.next_page_token


def test_only_what_changed_comes(place: Place) -> None:
    """Of a log the new entries, of a slot its value, and the names that are gone."""
    before = place.state()
    place.wire.save(place.request(diff=appends("third")))
    gone = Diff(edits=[Edit(delete_slot=DeleteSlot(slot="goal"))])
    place.wire.save(place.request(expected_version=3, diff=gone))
    place.wire.save(place.request(expected_version=4, diff=sets("plan", "see Paris")))
    asked = known(place, 2)
    found = answer(place, asked)
    assert [entry.data for entry in found.state.logs["messages"].entries] == [b"third"]
    assert found.state.logs["messages"].first_index == 2
    assert list(found.state.slots) == ["plan"]
    assert (list(found.removed_slots), list(found.removed_logs)) == (["goal"], [])
    assert place.wire.hydrate_since(asked, before) == place.state()


@pytest.mark.parametrize("case", ["wrong digest", "pruned", "later", "other branch", "too far", "too much"])
def test_the_whole_state_comes_where_the_known_version_is_no_base(place: Place, case: str) -> None:
    """Never edits of another line, and never more work than the state itself."""
    asked = known(place, 2)
    if case == "wrong digest":
        asked.known_digest = bytes(16)
    elif case == "pruned":
        place.wire.save(place.request())
        place.wire.threads.PruneThread(
            PruneThreadRequest(namespace=place.namespace, thread=THREAD, keep_latest_per_branch=1)
        )
    elif case == "later":
        asked.version.version = 1
    elif case == "other branch":
        side = {"branch": "side", "parent": VersionRef(version=1), "expected_version": 0}
        place.wire.save(place.request(**side))
        asked.branch = "side"
    elif case == "too far":
        for version in range(2, 103):
            place.wire.save(place.request(expected_version=version, diff=sets("n", str(version))))
    else:
        for version in range(2, 5):
            place.wire.save(place.request(expected_version=version, diff=sets("goal", "x" * 100 * (5 - version))))
        place.wire.save(place.request(expected_version=5, diff=sets("goal", "")))
    found = answer(place, asked)
    assert found.base_version == 0
    whole = HydrateRequest()
    whole.CopyFrom(asked)
    whole.known_version, whole.known_digest = 0, b""
    assert found.state == answer(place, whole).state
    assert found.state.logs["messages"].entries


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"known_version": -1}, "known_version"),
        ({"known_version": 0}, "known_version"),
        ({"known_digest": b""}, "known_digest"),
        ({"known_digest": b"short"}, "known_digest"),
        ({"projection": Projection(slots=["goal"])}, "projection"),
    ],
)
def test_a_wrong_known_version_is_refused(untouched: Place, fields: dict[str, object], field: str) -> None:
    asked = known(untouched, 2)
    for name, value in fields.items():
        if isinstance(value, Projection):
            asked.projection.CopyFrom(value)
        else:
            setattr(asked, name, value)
    refusal = refused(untouched.wire.checkpoints.Hydrate, asked)
    assert (refusal.reason, refusal.field) == ("INVALID_FIELD", field)


def test_pages_of_changes(place: Place) -> None:
    """A change that is larger than a page comes in pages that belong together, and a prune between them is refused."""
    before = place.state()
    many = [f"entry {number} " * 40 for number in range(30)]
    place.wire.save(place.request(diff=appends(*many)))
    large = Diff(edits=[*sets("goal", "y" * 5000).edits, *sets("empty", "").edits])
    place.wire.save(place.request(expected_version=3, diff=large))
    asked = known(place, 2, max_bytes=1024)
    assert place.wire.hydrate_since(asked, before) == place.state()
    first = answer(place, asked)
    assert first.base_version == 2
    assert first.next_page_token
    place.wire.save(place.request(expected_version=4))
    place.wire.threads.PruneThread(
        PruneThreadRequest(namespace=place.namespace, thread=THREAD, keep_latest_per_branch=1)
    )
    asked.page_token = first.next_page_token
    assert refused(place.wire.checkpoints.Hydrate, asked).reason == "VERSION_PRUNED"


def test_a_base_that_is_pruned_between_two_pages_is_refused(place: Place) -> None:
    """The version that is read stays, but what it is based on goes: the next page cannot follow the first one."""
    place.wire.save(place.request(diff=appends(*("entry " * 100 for _ in range(30)))))
    asked = known(place, 2, max_bytes=1024)
    asked.page_token = answer(place, asked).next_page_token
    place.wire.threads.PruneThread(
        PruneThreadRequest(namespace=place.namespace, thread=THREAD, keep_latest_per_branch=1)
    )
    refusal = refused(place.wire.checkpoints.Hydrate, asked)
    assert (refusal.reason, refusal.field) == ("INVALID_FIELD", "page_token")


@pytest.mark.filterwarnings("ignore:Generating overly large repr")
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(ANY_EDITS, min_size=1, max_size=8), max_bytes=st.sampled_from([0, 1024]))
def test_a_known_state_and_its_changes_are_the_whole(wire: Wire, steps: list[list[Edit]], max_bytes: int) -> None:
    """Whatever was saved between: from every earlier version, and along a branch that leaves main in the middle."""
    at = {"namespace": "changes since", "thread": f"t{next(COUNT)}"}
    filling = Edit(set_slot={"slot": "filling", "value": Value(media_type="text/plain", data=b"f" * FILLING_BYTES)})
    sizes = [0, 0]  # of the edits that made each version
    state = PlainState().apply(Diff(edits=[filling]), 1)
    wire.save(SaveRequest(**at, diff=Diff(edits=[filling]), options=WriteOptions(expected_version=0)))
    for version, edits in enumerate(steps, 2):
        fitting = Diff(edits=state.fit(edits))
        state = state.apply(fitting, version)
        sizes.append(fitting.ByteSize())
        wire.save(SaveRequest(**at, diff=fitting, options=WriteOptions(expected_version=version - 1)))
    last, middle = len(steps) + 1, len(steps) // 2 + 1
    wire.save(
        SaveRequest(
            **at,
            branch="side",
            diff=appends("aside", log="l"),
            options=WriteOptions(expected_version=0),
            parent=VersionRef(version=middle),
        )
    )
    wholes, digests = {}, {}
    for version in range(1, last + 2):
        asked = HydrateRequest(**at, version=VersionRef(version=version))
        wholes[version] = wire.hydrate(asked)
        digests[version] = wire.checkpoints.Hydrate(asked).checkpoint.digest
    for base in range(1, last + 1):
        for branch, head in (("main", last), ("side", last + 1)):
            asked = HydrateRequest(
                **at, branch=branch, known_version=base, known_digest=digests[base], max_bytes=max_bytes
            )
            found = wire.hydrate_since(asked, wholes[base])
            assert comparable(found) == comparable(wholes[head])
            is_base = branch == "main" or base <= middle
            is_small = sum(sizes[base + 1 : (last if branch == "main" else middle) + 1]) < FILLING_BYTES
            assert not is_base or not is_small or wire.checkpoints.Hydrate(asked).base_version == base


def comparable(state: State) -> State:
    """Without the mark of a projection."""
    copy = State()
    copy.CopyFrom(state)
    copy.partial = False
    return copy


def test_the_names_of_what_was_removed_are_few(place: Place) -> None:
    """They are all on the first page, so a client whose slots nearly all went gets the whole state."""
    names = [f"{number:04d}".ljust(250, "x") for number in range(600)]
    made = sets("filling", "x" * 500_000)
    for name in names:
        made.MergeFrom(sets(name, "x"))
    place.wire.save(place.request(expected_version=2, diff=made))
    asked = known(place, 3)
    gone = Diff(edits=[Edit(delete_slot=DeleteSlot(slot=name)) for name in names])
    place.wire.save(place.request(expected_version=3, diff=gone))
    found = answer(place, asked)
    assert found.base_version == 0
    assert found.state == place.state()
