"""The danger: a checkpoint id leads to a version of another branch than the caller means, or to none."""

from __future__ import annotations

from typing import Any

import pytest
from tests.daemon.wire import appends, refused
from tests.service.conftest import THREAD, Place

from stateward.v1 import checkpoint_service_pb2 as c
from stateward.v1.checkpoint_pb2 import Checkpoint, VersionRef
from stateward.v1.thread_service_pb2 import ForkThreadRequest
from stateward.v1.write_pb2 import WriteOptions


def make_branches(place: Place) -> None:
    """Main: 1, 2 "step-2", 5 "same". Left: 3 "same", 4 "leaf", from version 2. Right: 6 "same", from nothing."""
    root = VersionRef(checkpoint_id="step-2", branch="main")
    for fields in (
        {"branch": "left", "expected_version": 0, "parent": root, "checkpoint_id": "same"},
        {"branch": "left", "expected_version": 3, "checkpoint_id": "leaf"},
        {"expected_version": 2, "checkpoint_id": "same"},
        {"branch": "right", "expected_version": 0, "checkpoint_id": "same"},
    ):
        place.wire.save(place.request(**fields))


def find(place: Place, ref: VersionRef, branch: str = "") -> Checkpoint:
    request = c.GetCheckpointRequest(namespace=place.namespace, thread=THREAD, branch=branch, version=ref)
    found: Checkpoint = place.wire.checkpoints.GetCheckpoint(request).checkpoint
    return found


@pytest.mark.parametrize(
    ("branch", "ref", "version"),
    [
        ("", {"checkpoint_id": "same"}, 5),
        ("", {"checkpoint_id": "same", "branch": "left"}, 3),
        ("left", {"checkpoint_id": "same", "branch": "main"}, 5),
        ("left", {"checkpoint_id": "same", "branch": "-"}, 3),
        ("", {"checkpoint_id": "leaf", "branch": "-"}, 4),
        ("none", {"checkpoint_id": "step-2", "branch": "-"}, 2),
        ("none", {"checkpoint_id": "same", "branch": "-"}, 6),
    ],
)
def test_an_id_is_looked_up_where_the_reference_says(
    place: Place, branch: str, ref: dict[str, Any], version: int
) -> None:
    """In the request's branch, in the named one, or in any: there the request's branch is first, then the newest."""
    make_branches(place)
    assert find(place, VersionRef(**ref), branch).version == version
    request = c.HydrateRequest(namespace=place.namespace, thread=THREAD, branch=branch, version=VersionRef(**ref))
    assert place.wire.checkpoints.Hydrate(request).checkpoint.version == version


@pytest.mark.parametrize(
    ("ref", "reason", "field"),
    [
        ({"checkpoint_id": "step-2", "branch": "left"}, "VERSION_NOT_FOUND", ""),
        ({"checkpoint_id": "none", "branch": "-"}, "VERSION_NOT_FOUND", ""),
        ({"version": 1, "branch": "-"}, "INVALID_FIELD", "version.branch"),
        ({"tag": "t", "branch": "left"}, "INVALID_FIELD", "version.branch"),
        ({"checkpoint_id": "step-2", "branch": "a\0"}, "INVALID_FIELD", "version.branch"),
    ],
)
def test_a_wrong_branch_is_named(place: Place, ref: dict[str, Any], reason: str, field: str) -> None:
    """An id that is not there, and a branch beside a number or a tag."""
    request = c.GetCheckpointRequest(namespace=place.namespace, thread=THREAD, version=VersionRef(**ref))
    found = refused(place.wire.checkpoints.GetCheckpoint, request)
    assert (found.reason, found.field) == (reason, field)


def test_a_parent_is_found_on_another_branch(place: Place) -> None:
    """A save may go on from a version of any branch, by its id alone; the retry gets the same answer."""
    make_branches(place)
    request = place.request(
        branch="new", expected_version=0, parent=VersionRef(checkpoint_id="leaf", branch="-"), request_id="r"
    )
    answer, again = (place.wire.checkpoints.Save(request) for _ in range(2))
    assert (answer.parent_version, answer.parent_checkpoint_id) == (4, "leaf")
    assert (again.parent_version, again.parent_checkpoint_id, again.receipt.replayed) == (4, "leaf", True)


def test_every_version_tells_the_id_of_its_parent(place: Place) -> None:
    """Whether the parent is the head, another version, of another branch, or has no id; also on a fork, also pruned."""
    make_branches(place)
    listed = place.wire.checkpoints.ListCheckpoints(
        c.ListCheckpointsRequest(namespace=place.namespace, thread=THREAD)
    ).checkpoints
    expected = {1: "", 2: "", 3: "step-2", 4: "same", 5: "step-2", 6: ""}
    assert {each.version: each.parent_checkpoint_id for each in listed} == expected
    batch = [place.request(expected_version=None, request_id=f"on top {number}") for number in range(3)]
    for request in batch:
        place.wire.save(request)
    assert find(place, VersionRef(version=7)).parent_checkpoint_id == "same"
    assert find(place, VersionRef(version=8)).parent_checkpoint_id == ""
    for whole, known in ((True, "step-2"), (False, "")):
        name = f"copy {whole}"
        place.wire.threads.ForkThread(
            ForkThreadRequest(
                namespace=place.namespace, thread=THREAD, options=WriteOptions(request_id=name), new_thread=name,
                all_versions=whole, version=None if whole else VersionRef(version=5),
            )
        )  # fmt: skip
        request = c.GetCheckpointRequest(
            namespace=place.namespace, thread=name, version=VersionRef(version=5 if whole else 1)
        )
        assert place.wire.checkpoints.GetCheckpoint(request).checkpoint.parent_checkpoint_id == known
    assert place.findings() == []


def test_versions_of_one_commit_tell_the_id_of_their_parent(place: Place) -> None:
    """The parent may be a version of the same batch."""
    saves = [
        place.request(checkpoint_id="first"),
        place.request(branch="b", expected_version=0, parent=VersionRef(checkpoint_id="first", branch="main"),
                      diff=appends("b"), request_id="b"),
    ]  # fmt: skip
    answers = place.wire.checkpoints.BatchSave(c.BatchSaveRequest(saves=saves)).saves
    assert [(each.parent_version, each.parent_checkpoint_id) for each in answers] == [(2, "step-2"), (3, "first")]


def test_a_fork_keeps_the_id(place: Place) -> None:
    """On its main, whatever branch it came from: a framework finds the version by it. The parent's is gone."""
    make_branches(place)
    source = VersionRef(checkpoint_id="leaf", branch="left")
    place.wire.threads.ForkThread(
        ForkThreadRequest(namespace=place.namespace, thread=THREAD, version=source, new_thread="copy")
    )
    request = c.GetCheckpointRequest(
        namespace=place.namespace, thread="copy", version=VersionRef(checkpoint_id="leaf", branch="main")
    )
    found = place.wire.checkpoints.GetCheckpoint(request).checkpoint
    assert (found.version, found.branch, found.parent_checkpoint_id) == (1, "main", "")
