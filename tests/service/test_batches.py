"""The danger: a batch of which one item is wrong is written in part, or the error does not say which item."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from tests.daemon.wire import appends, refused
from tests.service.conftest import THREAD, Place

from stateward.v1 import checkpoint_service_pb2 as c
from stateward.v1.checkpoint_pb2 import DURABILITY_ARCHIVED, VersionRef
from stateward.v1.diff_pb2 import DeleteSlot, Diff, Edit
from stateward.v1.thread_service_pb2 import ListThreadsRequest

BAD = 3
CONFLICT = Diff(edits=[Edit(delete_slot=DeleteSlot(slot="none"))])


def batch(place: Place, **bad: Any) -> c.BatchSaveRequest:
    """Two new threads, the thread that is there, then item 3, which ``bad`` makes wrong, and one more."""
    new = {"expected_version": 0}
    saves = [place.request(thread="new-0", **new), place.request(thread="new-1", **new), place.request()]
    return c.BatchSaveRequest(
        saves=[*saves, place.request(**{"thread": "new-3", **new, **bad}), place.request(thread="new-4", **new)]
    )


def threads(place: Place) -> list[str]:
    listed = place.wire.threads.ListThreads(ListThreadsRequest(namespace=place.namespace)).threads
    return sorted(thread.thread for thread in listed)


@pytest.mark.parametrize(
    ("bad", "reason", "field"),
    [
        ({"thread": ""}, "INVALID_FIELD", "saves[3].thread"),
        ({"diff": Diff(edits=[Edit()])}, "INVALID_FIELD", "saves[3].diff.edits[0]"),
        ({"expected_version": None}, "INVALID_FIELD", "saves[3].options.request_id"),
        ({"thread": "new-1"}, "INVALID_FIELD", "saves[3].thread"),
        ({"durability": DURABILITY_ARCHIVED}, "NO_ARCHIVE", None),
        ({"lease_token": 1}, "LEASE_HELD", None),
        ({"expected_version": 7}, "VERSION_MISMATCH", None),
        ({"diff": CONFLICT}, "EDIT_CONFLICT", "saves[3].diff.edits[0].delete_slot.slot"),
        ({"expected_version": None, "request_id": "r", "parent": VersionRef(version=9)}, "THREAD_NOT_FOUND", None),
    ],
)
def test_one_bad_item_stops_the_batch_and_is_named(
    untouched: Place, bad: dict[str, Any], reason: str, field: str | None
) -> None:
    """Whatever is wrong with item 3: nothing of the batch is written, no thread made, and the error says `saves[3]`."""
    found = refused(untouched.wire.checkpoints.BatchSave, batch(untouched, **bad))
    assert found.reason == reason
    assert f"saves[{BAD}]" in found.message
    if field is not None:
        assert found.field == field
    assert threads(untouched) == [THREAD]


def test_an_empty_batch_and_one_too_large_are_refused(untouched: Place) -> None:
    """A batch has 1 to 256 saves."""
    for saves in ([], [untouched.request(thread=f"t{number}", expected_version=0) for number in range(257)]):
        found = refused(untouched.wire.checkpoints.BatchSave, c.BatchSaveRequest(saves=saves))
        assert (found.reason, found.field, found.code) == ("INVALID_FIELD", "saves", grpc.StatusCode.INVALID_ARGUMENT)


def test_a_good_batch_is_written_whole_and_retried_freely(place: Place) -> None:
    """The answers stand in the order of the saves; with request ids, the same batch again writes nothing."""
    request = batch(place)
    for number, save in enumerate(request.saves):
        save.options.request_id = f"item-{number}"
    answers = place.wire.checkpoints.BatchSave(request).saves
    assert [answer.version for answer in answers] == [1, 1, 3, 1, 1]
    again = place.wire.checkpoints.BatchSave(request).saves
    assert [answer.receipt.digest for answer in again] == [answer.receipt.digest for answer in answers]
    assert all(answer.receipt.replayed for answer in again)
    assert threads(place) == sorted([THREAD, "new-0", "new-1", "new-3", "new-4"])


def test_a_batch_does_not_disturb_single_saves_beside_it(place: Place) -> None:
    """Batches that fail, in flight with saves that do not: every save is taken and no batch leaves anything."""
    wrong = batch(place, diff=CONFLICT)
    calls = []
    for number in range(30):
        save = place.request(thread=f"single-{number}", expected_version=0, diff=appends("x"))
        calls.append(place.wire.checkpoints.Save.future(save, timeout=20))
        calls.append(place.wire.checkpoints.BatchSave.future(wrong, timeout=20))
    codes = [call.code() for call in calls]
    assert codes == [grpc.StatusCode.OK, grpc.StatusCode.FAILED_PRECONDITION] * 30
    assert threads(place) == sorted([THREAD, *(f"single-{number}" for number in range(30))])
    assert place.findings() == []


def test_a_refused_batch_leaves_nothing_to_its_neighbours(place: Place) -> None:
    """Saves that are committed in the same moment never build on what a refused batch had begun."""
    calls = []
    for number in range(60):
        item = place.request(expected_version=None, request_id=f"r{number}")
        calls.append((item, place.wire.checkpoints.Save.future(item)))
        begun = place.request(expected_version=None, request_id=f"begun {number}", diff=appends("never"))
        wrong = place.request(thread=f"other {number}", expected_version=9)
        batch = place.wire.checkpoints.BatchSave.future(c.BatchSaveRequest(saves=[begun, wrong]))
        calls.append((None, batch))
    for item, call in calls:
        assert (call.exception() is None) == (item is not None)
    state = place.state()
    assert [value.data for value in state.logs["messages"].entries] == [b"first", b"second"] + [b"third"] * 60
    assert place.thread().version == 62
    assert place.wire.findings() == []


def branch_saves(place: Place, thread: str, *, head: int) -> c.BatchSaveRequest:
    """Three branches of one thread, between saves of other threads; the last branch begins at the second's version."""
    saves = [
        place.request(thread=thread, expected_version=head, checkpoint_id="root"),
        place.request(thread="other", expected_version=0),
        place.request(thread=thread, branch="left", expected_version=0, checkpoint_id="leaf", diff=appends("left")),
        place.request(
            thread=thread, branch="right", expected_version=0, diff=appends("right"), labels={"side": "right"},
            parent=VersionRef(version=head + 1),
        ),
    ]  # fmt: skip
    for number, save in enumerate(saves):
        save.options.request_id = f"branch-{number}"
    return c.BatchSaveRequest(saves=saves)


@pytest.mark.parametrize(("thread", "head"), [(THREAD, 2), ("new", 0)])
def test_branches_of_one_thread_are_saved_together(place: Place, thread: str, head: int) -> None:
    """One version each, in the order of the saves; a retry writes nothing, and Verify finds nothing."""
    request = branch_saves(place, thread, head=head)
    answers = place.wire.checkpoints.BatchSave(request).saves
    assert [answer.version for answer in answers] == [head + 1, 1, head + 2, head + 3]
    assert [answer.parent_version for answer in answers] == [head, 0, 0, head + 1]
    again = place.wire.checkpoints.BatchSave(request).saves
    assert [(each.version, each.receipt.replayed) for each in again] == [(each.version, True) for each in answers]
    found = place.wire.described(place.namespace, thread)
    assert {each.name: each.version for each in found.branches} == {
        "main": head + 1, "left": head + 2, "right": head + 3,
    }  # fmt: skip
    logs = {}
    for name in ("main", "left", "right"):
        state = place.wire.hydrate(c.HydrateRequest(namespace=place.namespace, thread=thread, branch=name))
        logs[name] = list(state.logs["messages"].entries)
    assert logs["left"] == list(appends("left").edits[0].append.entries)
    assert logs["right"] == logs["main"] + list(appends("right").edits[0].append.entries)
    assert place.findings() == []


def test_a_branch_twice_in_a_batch_is_refused(untouched: Place) -> None:
    """An empty branch is main; the error names the second of the two."""
    saves = [untouched.request(), untouched.request(branch="main")]
    found = refused(untouched.wire.checkpoints.BatchSave, c.BatchSaveRequest(saves=saves))
    assert (found.reason, found.field) == ("INVALID_FIELD", "saves[1].thread")


def test_one_bad_branch_stops_the_others_of_its_thread(untouched: Place) -> None:
    """The branch before it is not made, and the next version keeps its number."""
    request = branch_saves(untouched, THREAD, head=2)
    request.saves[3].options.expected_version = 9
    found = refused(untouched.wire.checkpoints.BatchSave, request)
    assert (found.reason, found.metadata["item"]) == ("VERSION_MISMATCH", "saves[3]")
