"""The danger: a state in a list is not the one that a hydrate of its version shows, or a list misses one."""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.daemon.wire import Wire, appends, refused, sets
from tests.messages import to_write
from tests.model.plain import PlainState
from tests.model.strategies import ANY_EDITS
from tests.service.conftest import THREAD, Place
from tests.service.test_effects_missing import listed, put

from stateward._operations.threads import spans_of
from stateward._operations.unfolding import Shown, unfold
from stateward.v1.checkpoint_pb2 import VersionRef
from stateward.v1.checkpoint_service_pb2 import (
    HydrateRequest,
    ListCheckpointsRequest,
    ListCheckpointsResponse,
    LogSelection,
    Projection,
    SaveRequest,
)
from stateward.v1.diff_pb2 import DeleteLog, Diff, Edit, SpliceSlot, TrimLog
from stateward.v1.state_pb2 import Log, State, Value
from stateward.v1.thread_service_pb2 import PruneThreadRequest
from stateward.v1.write_pb2 import WriteOptions

COUNT = itertools.count()
MIB = 1 << 20
PARTS = [
    None, Projection(), Projection(slots=["a", "goal"], logs=[LogSelection(log="l"), LogSelection(log="none")]),
    Projection(logs=[LogSelection(log="l", last=2), LogSelection(log="m", last=1), LogSelection(log="a", last=3)]),
]  # fmt: skip


def pages(wire: Wire, **fields: Any) -> Iterator[ListCheckpointsResponse]:
    asked = ListCheckpointsRequest(**{"include_states": True, **fields})
    while True:
        page = wire.checkpoints.ListCheckpoints(asked)
        yield page
        if not page.next_page_token:
            return
        asked.page_token = page.next_page_token


def states(wire: Wire, **fields: Any) -> list[Shown]:
    return [shown for page in pages(wire, **fields) for shown in unfold(page)]


def message(shown: Shown) -> State:
    """The state of a list as a hydrate has it."""
    assert shown.state is not None
    made = State(slots=shown.state.slots, retired_logs=shown.state.retired_logs, partial=shown.state.partial)
    for name, log in shown.state.logs.items():
        made.logs[name].CopyFrom(
            Log(entries=log.entries, first_index=log.first_index, rewritten_version=log.rewritten_version)
        )
    return made


def check(wire: Wire, found: list[Shown], at: dict[str, str], part: Projection | None = None) -> None:
    """Each state is the one of its version."""
    for shown in found:
        asked = HydrateRequest(**at, version=VersionRef(version=shown.checkpoint.version), projection=part)
        assert message(shown) == wire.hydrate(asked)


@pytest.mark.filterwarnings("ignore:Generating overly large repr")
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(ANY_EDITS, min_size=1, max_size=8), part=st.sampled_from(PARTS), size=st.sampled_from([0, 1, 3]))
def test_states_of_any_history(wire: Wire, steps: list[list[Edit]], part: Projection | None, size: int) -> None:
    """Of versions of one branch and of two, with one pruned, from one page and from many."""
    at = {"namespace": "wrong steps", "thread": f"t{next(COUNT)}"}
    state = PlainState().apply(appends("first", log="l"), 1)
    wire.save(SaveRequest(**at, diff=appends("first", log="l"), options=WriteOptions(expected_version=0)))
    for version, edits in enumerate(steps, 2):
        fitting = Diff(edits=state.fit(edits))
        state = state.apply(fitting, version)
        wire.save(SaveRequest(**at, diff=fitting, options=WriteOptions(expected_version=version - 1)))
    last, middle = len(steps) + 1, len(steps) // 2 + 1
    side = {"branch": "side", "expected_version": 0, "parent": VersionRef(version=middle)}
    wire.save(to_write(SaveRequest, **at, diff=appends("aside", log="l"), **side))
    if middle < last:
        gone = spans_of([middle])
        wire.threads.PruneThread(PruneThreadRequest(**at, versions=gone))
    for branch in ("", "main", "side"):
        found = states(wire, **at, branch=branch, projection=part, page_size=size)
        plain = wire.checkpoints.ListCheckpoints(ListCheckpointsRequest(**at, branch=branch))
        assert [shown.checkpoint for shown in found] == list(plain.checkpoints)
        check(wire, found, at, part)


def test_a_page_is_small_and_a_reader_needs_few(place: Place) -> None:
    """Of 300 versions with a state of 2 KiB, the first state of a page is whole, and the others are what changed."""
    place.wire.save(place.request(diff=sets("filling", random.Random(1).randbytes(1000).hex())))
    for number in range(3, 300):
        place.wire.save(place.request(expected_version=number, diff=appends(f"message {number}")))
    at = {"namespace": place.namespace, "thread": THREAD}
    found = list(pages(place.wire, **at, page_size=1000))
    assert [len(page.checkpoints) for page in found] == [200, 100]
    assert sum(content.HasField("state") for page in found for content in page.contents) == 2
    assert sum(sum(content.ByteSize() for content in page.contents) for page in found) < 300 * 100
    check(place.wire, [shown for page in found for shown in unfold(page)][::40], at)


def test_states_and_effects_of_the_versions_that_a_filter_leaves(place: Place) -> None:
    """Ten versions with their states and effects are one call; effects can be had without the states, too."""
    for number in range(2, 40):
        place.wire.save(
            place.request(
                expected_version=number, diff=appends(f"{number}"), checkpoint_id=f"c{number}",
                attributes={"even": {"bool_value": number % 2 == 0}},
            )
        )  # fmt: skip
        put(place, f"c{number}", "a", "b") if number % 3 == 0 else None
    at = {"namespace": place.namespace, "thread": THREAD}
    for with_states in (True, False):
        asked = ListCheckpointsRequest(
            **at, filters=[{"key": "even", "value": {"bool_value": True}}], include_effects=True, page_size=10,
            include_states=with_states,
        )  # fmt: skip
        page = place.wire.checkpoints.ListCheckpoints(asked)
        found = list(unfold(page))
        assert [shown.checkpoint.checkpoint_id for shown in found] == [f"c{number}" for number in range(38, 18, -2)]
        for shown in found:
            assert shown.effects is not None
            assert list(shown.effects) == listed(place, shown.checkpoint.checkpoint_id)
        assert sum(len(shown.effects or ()) for shown in found) == 6
        assert all((shown.state is not None) == with_states for shown in found)
        assert page.next_page_token
    plain = place.wire.checkpoints.ListCheckpoints(ListCheckpointsRequest(**at))
    assert len(plain.contents) == 0


def test_large_states_and_effects(place: Place) -> None:
    """No page grows beyond the size of an answer. A state that is larger is left out, but a part of it can be had."""
    dice = random.Random(2)
    large = Value(data=dice.randbytes(3 * MIB + 1000))
    place.wire.save(place.request(diff=Diff(edits=[Edit(set_slot={"slot": "large", "value": large})])))
    for number in range(3, 9):
        value = Value(data=dice.randbytes(MIB))
        edit = Edit(set_slot={"slot": "large", "value": value})
        place.wire.save(place.request(expected_version=number, diff=Diff(edits=[edit]), checkpoint_id=f"c{number}"))
    put(place, "c4", *map(str, range(5)), size_bytes=900_000)
    put(place, "c5", *map(str, range(2)), size_bytes=900_000)
    at = {"namespace": place.namespace, "thread": THREAD}
    found = list(pages(place.wire, **at, include_effects=True))
    assert all(page.ByteSize() < 3.5 * MIB for page in found)
    assert max(len(page.checkpoints) for page in found) > 1
    shown = {each.checkpoint.version: each for page in found for each in unfold(page)}
    assert list(shown) == list(range(9, 0, -1))
    assert [number for number, each in shown.items() if each.state is None] == [3]
    assert [number for number, each in shown.items() if each.effects is None] == [5]
    assert list(shown[6].effects or ()) == listed(place, "c5")
    check(place.wire, [each for each in shown.values() if each.state is not None], at)
    part = Projection(slots=["goal"])
    small = states(place.wire, **at, projection=part)
    assert len(small) == 9
    check(place.wire, small, at, part)


def test_states_that_take_much_memory(place: Place) -> None:
    """Small edits of a large slot make many large states: a page shows those that memory has room for, and no fewer."""
    dice = random.Random(3)
    data = bytearray(dice.randbytes(2 * MIB))
    place.wire.save(place.request(diff=Diff(edits=[Edit(set_slot={"slot": "s", "value": Value(data=bytes(data))})])))
    for number in range(3, 43):
        before = hashlib.sha256(data).digest()
        data[number] ^= 255
        splice = SpliceSlot(slot="s", base_sha256=before)
        splice.splices.add(offset=number, delete=1, insert=bytes(data[number : number + 1]))
        place.wire.save(place.request(expected_version=number, diff=Diff(edits=[Edit(splice_slot=splice)])))
    at = {"namespace": place.namespace, "thread": THREAD}
    found = list(pages(place.wire, **at))
    assert [len(page.checkpoints) for page in found[:2]] == [16, 16]
    shown = [each for page in found for each in unfold(page)]
    assert [each.checkpoint.version for each in shown] == list(range(43, 0, -1))
    check(place.wire, shown[::10], at)


def test_logs_that_begin_elsewhere(place: Place) -> None:
    """A log that was trimmed at the start, or removed and made again, has its own indexes in every state."""
    trim = Edit(trim_log=TrimLog(log="messages", before_index=2))
    gone = Edit(delete_log=DeleteLog(log="messages"))
    for number, diff in enumerate(
        [
            Diff(edits=[trim]),
            appends("b"),
            Diff(edits=[gone]),
            appends("c", "d"),
            Diff(edits=[gone, *appends("e").edits]),
        ],
        2,
    ):
        place.wire.save(place.request(expected_version=number, diff=diff))
    at = {"namespace": place.namespace, "thread": THREAD}
    check(place.wire, states(place.wire, **at), at)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"thread": "-", "include_states": True}, "include_states"),
        ({"thread": "-", "include_effects": True}, "include_effects"),
        ({"projection": Projection(slots=["a"])}, "projection"),
        ({"projection": Projection(slots=[""]), "include_states": True}, "projection.slots[0]"),
    ],
)
def test_wrong_requests(untouched: Place, fields: dict[str, Any], field: str) -> None:
    asked = ListCheckpointsRequest(**{"namespace": untouched.namespace, "thread": THREAD, **fields})
    refusal = refused(untouched.wire.checkpoints.ListCheckpoints, asked)
    assert (refusal.reason, refusal.field) == ("INVALID_FIELD", field)
