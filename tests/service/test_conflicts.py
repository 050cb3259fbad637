"""The danger: a save that does not fit what is stored is applied in part, or its refusal does not say where the thread
is by now."""

from __future__ import annotations

import hashlib
from typing import Any

import grpc
import pytest
from tests.daemon.wire import appends, refused, sets, state, text
from tests.messages import to_write
from tests.service.conftest import THREAD, Place

from stateward._operations.threads import numbers_of, spans_of
from stateward.v1 import checkpoint_service_pb2 as c
from stateward.v1 import thread_service_pb2 as t
from stateward.v1.checkpoint_pb2 import VersionRef
from stateward.v1.diff_pb2 import (
    Append,
    DeleteLog,
    DeleteSlot,
    Diff,
    Edit,
    ReplaceEntry,
    Splice,
    SpliceSlot,
    TrimLog,
)
from stateward.v1.state_pb2 import Log, State

GOOD = sets("goal", "Rome").edits[0]
PARIS = hashlib.sha256(b"Paris").digest()

# Each follows a good edit, which must not stay either.
EDITS: dict[str, tuple[Edit, str]] = {
    "delete a missing slot": (Edit(delete_slot=DeleteSlot(slot="none")), "delete_slot.slot"),
    "splice a missing slot": (
        Edit(splice_slot=SpliceSlot(slot="none", base_sha256=PARIS, splices=[Splice(insert=b"x")])), "splice_slot.slot",
    ),
    "splice the wrong base": (
        Edit(splice_slot=SpliceSlot(slot="goal", base_sha256=PARIS, splices=[Splice(insert=b"x")])),
        "splice_slot.base_sha256",
    ),
    "splice beyond the end": (
        Edit(
            splice_slot=SpliceSlot(
                slot="goal", base_sha256=hashlib.sha256(b"Rome").digest(), splices=[Splice(offset=3, delete=2)]
            )
        ),
        "splice_slot.splices[0]",
    ),
    "append elsewhere": (Edit(append=Append(log="messages", entries=[text("x")], at_index=3)), "append.at_index"),
    "append into nothing": (Edit(append=Append(log="new", entries=[text("x")], at_index=1)), "append.at_index"),
    "replace in a missing log": (Edit(replace_entry=ReplaceEntry(log="none", value=text("x"))), "replace_entry.log"),
    "replace beyond the end": (
        Edit(replace_entry=ReplaceEntry(log="messages", index=2, value=text("x"))), "replace_entry.index",
    ),
    "trim a missing log": (Edit(trim_log=TrimLog(log="none", keep_last=1)), "trim_log.log"),
    "trim before what is beyond": (Edit(trim_log=TrimLog(log="messages", before_index=3)), "trim_log.before_index"),
    "trim from what is beyond": (Edit(trim_log=TrimLog(log="messages", from_index=3)), "trim_log.from_index"),
    "delete a missing log": (Edit(delete_log=DeleteLog(log="none")), "delete_log.log"),
}  # fmt: skip


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_that_does_not_fit_leaves_nothing(untouched: Place, name: str) -> None:
    """EDIT_CONFLICT names the edit's index and field, and the good edit before it is not applied either."""
    edit, field = EDITS[name]
    found = refused(untouched.wire.checkpoints.Save, untouched.request(diff=Diff(edits=[GOOD, edit])))
    assert (found.reason, found.code) == ("EDIT_CONFLICT", grpc.StatusCode.FAILED_PRECONDITION)
    assert (found.metadata["edit"], found.field) == ("1", f"diff.edits[1].{field}")


def test_a_full_state_whose_log_begins_elsewhere_is_refused(untouched: Place) -> None:
    """A full state must have each log's first index as stored, or leave it out."""
    moved = State(logs={"messages": Log(first_index=1, entries=[text("x")])})
    found = refused(untouched.wire.checkpoints.Save, untouched.request(diff=None, state=moved))
    assert found.reason in ("EDIT_CONFLICT", "INVALID_FIELD")
    assert "first_index" in found.field


def test_a_version_mismatch_says_where_the_thread_is(untouched: Place) -> None:
    """VERSION_MISMATCH carries current version and digest, so that the loser need not ask for them."""
    head = untouched.thread()
    for fields in ({"expected_version": 1}, {"expected_version": 3}, {"expected_version": 0}):
        found = refused(untouched.wire.checkpoints.Save, untouched.request(**fields))
        assert (found.reason, found.code) == ("VERSION_MISMATCH", grpc.StatusCode.ABORTED)
        assert found.metadata["current_version"] == "2"
        assert bytes.fromhex(found.metadata["current_digest"]) == head.version_digest
        assert found.metadata["expected_version"] == str(fields["expected_version"])


def test_the_right_version_with_another_history_is_a_mismatch(untouched: Place) -> None:
    """`expected_digest` tells two histories of the same length apart."""
    found = refused(untouched.wire.checkpoints.Save, untouched.request(expected_digest=b"x" * 16))
    assert (found.reason, found.metadata["current_version"]) == ("VERSION_MISMATCH", "2")


def test_creating_twice_is_a_mismatch_and_so_is_a_missing_thread(untouched: Place) -> None:
    """Version 0 must not exist; a positive version of nothing is a mismatch at version 0, never a new thread."""
    assert (
        refused(untouched.wire.checkpoints.Save, untouched.request(expected_version=0)).metadata["current_version"]
        == "2"
    )
    found = refused(untouched.wire.checkpoints.Save, untouched.request(thread="nobody", expected_version=3))
    assert (found.reason, found.metadata["current_version"]) == ("VERSION_MISMATCH", "0")
    missing = refused(
        untouched.wire.threads.GetThread, t.GetThreadRequest(namespace=untouched.namespace, thread="nobody")
    )
    assert (missing.reason, missing.code) == ("THREAD_NOT_FOUND", grpc.StatusCode.NOT_FOUND)
    assert missing.metadata["thread"] == "nobody"


@pytest.mark.parametrize("expected", [0, None])
def test_a_parent_that_cannot_exist_makes_no_thread(untouched: Place, expected: int | None) -> None:
    """A save whose parent is a version of a thread that does not exist is refused, not begun from the empty state."""
    for parent in (VersionRef(version=5), VersionRef(tag="t"), VersionRef(checkpoint_id="c")):
        save = untouched.request(thread="nobody", expected_version=expected, parent=parent, request_id="r")
        found = refused(untouched.wire.checkpoints.Save, save)
        assert found.reason in ("THREAD_NOT_FOUND", "VERSION_NOT_FOUND")
        assert found.code == grpc.StatusCode.NOT_FOUND


def versions(place: Place, ref: VersionRef) -> list[tuple[str, Any]]:
    """Every call that takes a version."""
    at = {"namespace": place.namespace, "thread": THREAD}
    difference = c.DiffCheckpointsRequest(**at, base=ref)
    return [
        ("checkpoints.Hydrate", c.HydrateRequest(**at, version=ref)),
        ("checkpoints.GetCheckpoint", c.GetCheckpointRequest(**at, version=ref)),
        ("checkpoints.ListCheckpoints", c.ListCheckpointsRequest(**at, before=ref)),
        ("checkpoints.ReadHistory", c.ReadHistoryRequest(**at, version=ref)),
        ("checkpoints.DiffCheckpoints", difference),
        ("checkpoints.Save", place.request(parent=ref)),
        ("threads.SetTag", t.SetTagRequest(**at, tag="x", version=ref)),
        ("threads.ForkThread", t.ForkThreadRequest(**at, new_thread="copy", version=ref)),
    ]


@pytest.mark.parametrize(
    "ref",
    [VersionRef(version=3), VersionRef(version=(1 << 63) - 1), VersionRef(tag="no"), VersionRef(checkpoint_id="no")],
)
def test_a_version_that_never_was_is_not_found(untouched: Place, ref: VersionRef) -> None:
    """A version in the future, an unknown tag and an unknown checkpoint id are VERSION_NOT_FOUND in every call."""
    for path, request in versions(untouched, ref):
        service, method = path.split(".")
        found = refused(getattr(getattr(untouched.wire, service), method), request)
        assert (method, found.reason, found.code) == (method, "VERSION_NOT_FOUND", grpc.StatusCode.NOT_FOUND)
        assert found.metadata["thread"] == THREAD


def test_a_branch_that_never_was_is_not_found(untouched: Place) -> None:
    """Reading a branch that does not exist is VERSION_NOT_FOUND and does not make it."""
    request = c.HydrateRequest(namespace=untouched.namespace, thread=THREAD, branch="none")
    assert refused(untouched.wire.checkpoints.Hydrate, request).reason == "VERSION_NOT_FOUND"


def test_a_pruned_version_is_out_of_range(place: Place) -> None:
    """A version that was pruned is VERSION_PRUNED in every call, and what stays reads as before."""
    before = place.state()
    at = {"namespace": place.namespace, "thread": THREAD}
    pruned = place.wire.threads.PruneThread(t.PruneThreadRequest(**at, keep_latest_per_branch=1))
    assert list(numbers_of(pruned.pruned)) == [1]
    for path, request in versions(place, VersionRef(version=1)):
        service, method = path.split(".")
        found = refused(getattr(getattr(place.wire, service), method), request)
        assert (method, found.reason, found.code) == (method, "VERSION_PRUNED", grpc.StatusCode.OUT_OF_RANGE)
        assert (found.metadata["thread"], found.metadata["version"]) == (THREAD, "1")
    assert place.state() == before
    assert place.findings() == []


def test_heads_and_tagged_versions_cannot_be_pruned_by_number(place: Place) -> None:
    """Naming a head or a tagged version to Prune is refused as a whole: the others named stay as well."""
    at = {"namespace": place.namespace, "thread": THREAD}
    place.wire.save(place.request())
    place.wire.threads.SetTag(t.SetTagRequest(**at, tag="keep", version=VersionRef(version=2)))
    for kept in (2, 3):
        found = refused(place.wire.threads.PruneThread, t.PruneThreadRequest(**at, versions=spans_of([1, kept])))
        assert (found.reason, found.field) == ("INVALID_FIELD", "versions")
    found = refused(place.wire.threads.PruneThread, t.PruneThreadRequest(**at, versions=spans_of([1, 9])))
    assert found.reason == "VERSION_NOT_FOUND"
    assert place.thread().retained_versions == 3


def test_a_tag_moves_only_from_where_it_is_expected(untouched: Place) -> None:
    """`expected_tagged_version` is compare-and-swap: a tag that is not there, or elsewhere, is VERSION_MISMATCH."""
    at = {"namespace": untouched.namespace, "thread": THREAD, "tag": "approved"}
    found = refused(untouched.wire.threads.SetTag, t.SetTagRequest(**at, expected_tagged_version=1))
    assert (found.reason, found.metadata["current_version"], found.metadata["expected_version"]) == (
        "VERSION_MISMATCH",
        "0",
        "1",
    )
    assert refused(untouched.wire.threads.DeleteTag, t.DeleteTagRequest(**at)).reason == "VERSION_NOT_FOUND"


def test_a_tag_is_made_and_moved_under_expectation(place: Place) -> None:
    """Expectation 0 makes a tag once; the right expectation moves it, the old one no longer does."""
    at = {"namespace": place.namespace, "thread": THREAD, "tag": "approved"}
    make = t.SetTagRequest(**at, expected_tagged_version=0, version=VersionRef(version=1))
    assert place.wire.threads.SetTag(make).tag.version == 1
    assert refused(place.wire.threads.SetTag, make).metadata["current_version"] == "1"
    assert place.wire.threads.SetTag(t.SetTagRequest(**at, expected_tagged_version=1)).tag.version == 2
    assert (
        refused(place.wire.threads.SetTag, t.SetTagRequest(**at, expected_tagged_version=1)).metadata["current_version"]
        == "2"
    )


def test_another_creation_of_the_name_is_not_touched(untouched: Place) -> None:
    """With the uid of another creation, every change of a thread is UID_MISMATCH."""
    at = {"namespace": untouched.namespace, "thread": THREAD, "expected_uid": "0" * 32}
    mask = {"paths": ["agent"]}
    for call, request in (
        (untouched.wire.threads.DeleteThread, to_write(t.DeleteThreadRequest, **at)),
        (untouched.wire.threads.PruneThread, to_write(t.PruneThreadRequest, **at, keep_latest_per_branch=1)),
        (untouched.wire.threads.UpdateThread, to_write(t.UpdateThreadRequest, **at, update_mask=mask)),
        (untouched.wire.threads.SetTag, to_write(t.SetTagRequest, **at, tag="x")),
        (untouched.wire.threads.DeleteTag, to_write(t.DeleteTagRequest, **at, tag="x")),
    ):
        found = refused(call, request)
        assert (found.reason, found.metadata["thread"]) == ("UID_MISMATCH", THREAD)


def test_changes_under_a_wrong_version_are_refused(untouched: Place) -> None:
    """Delete, Prune and Update compare `expected_version` with main's head."""
    at = {"namespace": untouched.namespace, "thread": THREAD, "expected_version": 1}
    for call, request in (
        (untouched.wire.threads.DeleteThread, to_write(t.DeleteThreadRequest, **at)),
        (untouched.wire.threads.PruneThread, to_write(t.PruneThreadRequest, **at, keep_latest_per_branch=1)),
        (untouched.wire.threads.UpdateThread, to_write(t.UpdateThreadRequest, **at, update_mask={"paths": ["agent"]})),
    ):
        found = refused(call, request)
        assert (found.reason, found.metadata["current_version"]) == ("VERSION_MISMATCH", "2")


def test_a_copy_never_replaces_a_thread(untouched: Place) -> None:
    """Forking onto a name that is taken, also onto the source itself, is THREAD_EXISTS."""
    request = t.ForkThreadRequest(namespace=untouched.namespace, thread=THREAD, new_thread=THREAD)
    found = refused(untouched.wire.threads.ForkThread, request)
    assert (found.reason, found.code) == ("THREAD_EXISTS", grpc.StatusCode.ALREADY_EXISTS)


def test_a_thread_of_another_namespace_is_not_seen(untouched: Place) -> None:
    """The same name in another namespace is another thread, and not there."""
    request = c.HydrateRequest(namespace=untouched.namespace + "2", thread=THREAD)
    assert refused(untouched.wire.checkpoints.Hydrate, request).reason == "THREAD_NOT_FOUND"
    assert (
        refused(untouched.wire.admin.Verify, t.GetThreadRequest(namespace="none", thread=THREAD)).reason
        == "THREAD_NOT_FOUND"
    )


def test_a_full_state_replaces_without_expectation_only_when_told_to(place: Place) -> None:
    """`overwrite` with a request id is the one way to save a full state on whatever is there."""
    fields: dict[str, Any] = {"expected_version": None, "diff": None, "state": state("only"), "request_id": "r"}
    assert refused(place.wire.checkpoints.Save, place.request(**fields)).field == "options.expected_version"
    assert place.wire.save(place.request(**fields, overwrite=True)).version == 3
    assert [entry.data for entry in place.state().logs["messages"].entries] == [b"only"]
    assert not place.state().slots


def test_an_unconditional_append_goes_on_top_of_whatever_is_there(place: Place) -> None:
    """Without expectation a request id is required, and Append lands after entries the caller never saw."""
    found = refused(place.wire.checkpoints.Save, place.request(expected_version=None))
    assert found.field == "options.request_id"
    place.wire.save(place.request(diff=appends("third")))
    assert place.wire.save(place.request(expected_version=None, request_id="r", diff=appends("fourth"))).version == 4
    assert [entry.data for entry in place.state().logs["messages"].entries] == [
        b"first",
        b"second",
        b"third",
        b"fourth",
    ]
