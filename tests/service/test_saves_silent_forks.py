"""The danger: a save that lost a race forks twice, forks from another version than its caller had, or overwrites."""

from __future__ import annotations

from typing import Any

import pytest
from tests.daemon.wire import appends, refused
from tests.service.conftest import THREAD, Place

from stateward.v1 import checkpoint_service_pb2 as c
from stateward.v1.checkpoint_pb2 import VersionRef
from stateward.v1.thread_service_pb2 import DeleteBranchRequest

LOST = {"expected_version": 1, "on_mismatch": c.ON_MISMATCH_FORK, "request_id": "lost", "diff": appends("fork")}


def log(place: Place, branch: str) -> list[bytes]:
    request = c.HydrateRequest(namespace=place.namespace, thread=THREAD, branch=branch)
    return [each.data for each in place.wire.hydrate(request).logs["messages"].entries]


def branches(place: Place) -> dict[str, int]:
    return {each.name: each.version for each in place.described().branches}


@pytest.mark.parametrize("name", ["", "mine"])
def test_a_lost_race_makes_a_branch(place: Place, name: str) -> None:
    """The version goes to a new branch, made from the expected version; main stays, and a retry finds the branch."""
    before = log(place, "")
    request = place.request(**LOST, fork_branch=name)
    answer = place.wire.checkpoints.Save(request)
    made = name or "main-fork-3"
    assert (answer.version, answer.parent_version, answer.branch) == (3, 1, made)
    again = place.wire.checkpoints.Save(request)
    assert (again.version, again.branch, again.receipt.digest, again.receipt.replayed) == (
        3,
        made,
        answer.receipt.digest,
        True,
    )
    assert branches(place) == {"main": 2, made: 3}
    assert log(place, "") == before
    assert log(place, made) == [*before, *(each.data for each in appends("fork").edits[0].append.entries)]
    assert place.findings() == []


def test_a_race_that_was_not_lost_makes_none(place: Place) -> None:
    """The head is the expected one: the save goes to its branch, also if it asks for FAIL in so many words."""
    assert place.wire.save(place.request(**{**LOST, "expected_version": 2})).branch == ""
    request = place.request(on_mismatch=c.ON_MISMATCH_FAIL, expected_version=1)
    assert refused(place.wire.checkpoints.Save, request).reason == "VERSION_MISMATCH"
    assert branches(place) == {"main": 3}


@pytest.mark.parametrize("name", ["", "mine"])
def test_a_retry_by_checkpoint_id_finds_the_branch(place: Place, name: str) -> None:
    """Without a request id the checkpoint id tells the retry; another content under that id makes a fork of its own."""
    request = place.request(**{**LOST, "request_id": ""}, checkpoint_id="x", fork_branch=name)
    first, again = (place.wire.checkpoints.Save(request) for _ in range(2))
    assert (again.version, again.branch, again.receipt.replayed) == (first.version, first.branch, True)
    other = c.SaveRequest()
    other.CopyFrom(request)
    other.step, other.fork_branch = 7, "other" if name else ""
    assert place.wire.checkpoints.Save(other).branch == ("other" if name else "main-fork-4")
    assert place.wire.checkpoints.Save(request).branch == first.branch


def test_the_parent_comes_before_the_expectation(place: Place) -> None:
    """A fork is made from `parent` if there is one; from nothing if the branch was not to exist."""
    ref = VersionRef(checkpoint_id="step-2")
    assert place.wire.save(place.request(**LOST, parent=ref)).parent_version == 2
    nothing = {**LOST, "expected_version": 0, "request_id": "nothing"}
    answer = place.wire.checkpoints.Save(place.request(**nothing))
    assert (answer.parent_version, answer.branch) == (0, "main-fork-4")


@pytest.mark.parametrize(
    ("fields", "reason", "field"),
    [
        ({"expected_version": None}, "INVALID_FIELD", "on_mismatch"),
        ({"request_id": ""}, "INVALID_FIELD", "options.request_id"),
        ({"on_mismatch": 9}, "INVALID_FIELD", "on_mismatch"),
        ({"on_mismatch": 0, "fork_branch": "b"}, "INVALID_FIELD", "fork_branch"),
        ({"fork_branch": "main"}, "INVALID_FIELD", "fork_branch"),
        ({"fork_branch": "a\0"}, "INVALID_FIELD", "fork_branch"),
        ({"expected_version": 9}, "VERSION_MISMATCH", ""),
        ({"expected_digest": b"\1" * 16}, "VERSION_MISMATCH", ""),
        ({"expected_version": 2, "expected_digest": b"\1" * 16}, "VERSION_MISMATCH", ""),
        ({"thread": "none"}, "VERSION_MISMATCH", ""),
        ({"lease_token": 7}, "LEASE_HELD", ""),
        ({"parent": VersionRef(version=9)}, "VERSION_NOT_FOUND", ""),
    ],
)
def test_what_cannot_fork_fails(untouched: Place, fields: dict[str, Any], reason: str, field: str) -> None:
    """Wrong fields, an expected version that is not there or has another digest: nothing is written."""
    found = refused(untouched.wire.checkpoints.Save, untouched.request(**{**LOST, **fields}))
    assert (found.reason, found.field) == (reason, field)


def test_a_branch_that_exists_is_not_moved(place: Place) -> None:
    """The named branch belongs to somebody: the save fails and says where that branch is."""
    place.wire.save(place.request(branch="theirs", expected_version=0))
    found = refused(place.wire.checkpoints.Save, place.request(**LOST, fork_branch="theirs"))
    assert (found.reason, found.metadata["branch"], found.metadata["current_version"]) == (
        "VERSION_MISMATCH", "theirs", "3",
    )  # fmt: skip


def test_forks_of_one_batch(place: Place) -> None:
    """Each save of a batch forks by itself, and the names follow the versions."""
    saves = [place.request(**LOST), place.request(branch="b", expected_version=0)]
    answers = place.wire.checkpoints.BatchSave(c.BatchSaveRequest(saves=saves)).saves
    assert [(each.version, each.branch) for each in answers] == [(3, "main-fork-3"), (4, "")]


def test_a_fork_keeps_its_answer_whatever_became_of_the_id(place: Place) -> None:
    """The id is taken on the branch of the save meanwhile, or the fork is deleted: a retry gets the first answer."""
    request = place.request(**{**LOST, "request_id": ""}, checkpoint_id="x", fork_branch="mine")
    first = place.wire.checkpoints.Save(request)
    taken = place.request(expected_version=2, checkpoint_id="x", step=5)
    place.wire.save(taken)
    assert place.wire.checkpoints.Save(request).version == first.version
    place.wire.threads.DeleteBranch(DeleteBranchRequest(namespace=place.namespace, thread=THREAD, branch="mine"))
    again = place.wire.checkpoints.Save(request)
    assert (again.version, again.branch, again.receipt.replayed) == (first.version, "mine", True)
    assert branches(place) == {"main": 4}
    assert place.findings() == []


def test_an_id_of_a_deleted_branch_stays_its_own(place: Place) -> None:
    """A fork that gets the name of a deleted branch must not take over the id of a version that is left."""
    place.wire.save(place.request(branch="mine", expected_version=0, checkpoint_id="x"))
    place.wire.threads.DeleteBranch(DeleteBranchRequest(namespace=place.namespace, thread=THREAD, branch="mine"))
    request = place.request(**LOST, checkpoint_id="x", fork_branch="mine")
    assert refused(place.wire.checkpoints.Save, request).reason == "CHECKPOINT_ID_REUSED"
    assert branches(place) == {"main": 2}
    assert place.findings() == []
