"""The danger: a head that goes back or a deleted branch takes something along, or fools a reader."""

from __future__ import annotations

import pytest
from tests.daemon.wire import appends, refused, replayed, sets
from tests.messages import to_write
from tests.service.agents import Agent
from tests.service.conftest import THREAD, Place

from stateward._operations.threads import numbers_of, spans_of
from stateward.v1 import thread_service_pb2 as t
from stateward.v1.backup_service_pb2 import ExportThreadRequest, ImportThreadRequest
from stateward.v1.checkpoint_pb2 import WORK_STATUS_COMPLETED, WORK_STATUS_RUNNING, VersionRef
from stateward.v1.checkpoint_service_pb2 import HydrateRequest, ListCheckpointsRequest, ReadLogRequest
from stateward.v1.lease_pb2 import Holder
from stateward.v1.lease_service_pb2 import AcquireLeaseRequest
from stateward.v1.thread_pb2 import Branch


def at(place: Place, **fields: object) -> dict[str, object]:
    return {"namespace": place.namespace, "thread": THREAD} | fields


def move(place: Place, version: int, **fields: object) -> t.MoveBranchResponse:
    asked = t.MoveBranchRequest(**at(place, version=VersionRef(version=version)))
    asked.MergeFrom(to_write(t.MoveBranchRequest, **fields))
    answer: t.MoveBranchResponse = place.wire.threads.MoveBranch(asked)
    return answer


def delete(place: Place, branch: str, **fields: object) -> t.DeleteBranchResponse:
    answer: t.DeleteBranchResponse = place.wire.threads.DeleteBranch(
        to_write(t.DeleteBranchRequest, **at(place, branch=branch, **fields))
    )
    return answer


def listed(place: Place, branch: str = "", **fields: object) -> list[int]:
    found, asked = [], ListCheckpointsRequest(**at(place, branch=branch, **fields))
    while True:
        page = place.wire.checkpoints.ListCheckpoints(asked)
        found += [each.version for each in page.checkpoints]
        if not page.next_page_token:
            return found
        asked.page_token = page.next_page_token


def branches(place: Place, thread: str = THREAD) -> dict[str, Branch]:
    return {each.name: each for each in place.wire.described(place.namespace, thread).branches}


@pytest.fixture
def line(place: Place) -> Place:
    """Branch main has the versions 1 to 6, and x has 7 to 9, made from 4."""
    for version in range(2, 6):
        diff, status = appends(f"more {version}"), WORK_STATUS_COMPLETED if version == 5 else WORK_STATUS_RUNNING
        place.wire.save(place.request(expected_version=version, diff=diff, status=status, step=version))
    for version in range(6, 9):
        parent = {"parent": VersionRef(version=4)} if version == 6 else {}
        asked = place.request(branch="x", checkpoint_id=f"x{version}", diff=appends("of x"), **parent)
        asked.options.expected_version = version if version > 6 else 0
        place.wire.save(asked)
    return place


def test_main_goes_back(line: Place) -> None:
    """State, status and step are the earlier ones; the next save goes on from there under a new number."""
    digest = line.wire.checkpoints.Hydrate(HydrateRequest(**at(line, version=VersionRef(version=3)))).checkpoint.digest
    answer = move(line, 3, expected_version=6)
    assert (answer.version, answer.version_digest, answer.previous_version) == (3, digest, 6)
    thread = line.thread()
    assert (thread.version, thread.status, thread.step, thread.last_version) == (3, WORK_STATUS_RUNNING, 2, 9)
    assert len(line.state().logs["messages"].entries) == 3
    assert line.wire.save(line.request(expected_version=3, diff=sets("goal", "Rome"))).version == 10
    assert listed(line) == [10, 9, 8, 7, 6, 5, 4, 3, 2, 1]
    assert listed(line, "main") == [10, 6, 5, 4, 3, 2, 1]
    assert branches(line)["main"].moved_version == 10
    assert line.findings() == []


def test_a_writer_of_the_old_head_is_refused(line: Place) -> None:
    """Compare-and-swap: whoever saw the head before it went back must look again."""
    move(line, 3)
    found = refused(line.wire.checkpoints.Save, line.request(expected_version=6))
    assert (found.reason, found.metadata["current_version"]) == ("VERSION_MISMATCH", "3")


def test_a_deleted_branch_is_gone_and_its_versions_stay(line: Place) -> None:
    """It is in no list of branches, its versions are read by number and id, and can be pruned."""
    assert delete(line, "x", expected_version=9).version == 9
    assert set(branches(line)) == {"main"}
    assert refused(line.wire.checkpoints.Hydrate, HydrateRequest(**at(line, branch="x"))).reason == "VERSION_NOT_FOUND"
    for ref in (VersionRef(version=9), VersionRef(checkpoint_id="x8")):
        line.wire.checkpoints.Hydrate(HydrateRequest(**at(line, branch="x", version=ref)))
    assert listed(line, "x") == []
    assert listed(line)[:3] == [9, 8, 7]
    assert line.findings() == []
    pruned = line.wire.threads.PruneThread(t.PruneThreadRequest(**at(line, keep_latest_per_branch=1)))
    assert list(numbers_of(pruned.pruned)) == [1, 2, 3, 4, 5, 7, 8, 9]
    assert line.findings() == []


def test_a_branch_that_is_made_again_is_a_new_one(line: Place) -> None:
    """The versions of the old one are not among its own, neither in lists nor for a prune, and it cannot go to them."""
    delete(line, "x")
    asked = line.request(branch="x", expected_version=0, parent=VersionRef(version=2), diff=appends("again"))
    assert line.wire.save(asked).version == 10
    assert (branches(line)["x"].base_version, branches(line)["x"].first_version) == (2, 10)
    assert branches(line)["main"].first_version == 1
    assert listed(line, "x") == [10]
    found = refused(line.wire.threads.MoveBranch, t.MoveBranchRequest(**at(line, branch="x", version={"version": 9})))
    assert (found.reason, found.field) == ("INVALID_FIELD", "version")
    pruned = line.wire.threads.PruneThread(t.PruneThreadRequest(**at(line, keep_latest_per_branch=6, dry_run=True)))
    assert list(numbers_of(pruned.pruned)) == [7, 8, 9]
    assert line.findings() == []


def test_a_retry_gets_the_first_answer(line: Place) -> None:
    """The same request id moves and deletes once, also with another lease token, whatever happened since."""
    first = move(line, 3, request_id="back")
    line.wire.save(line.request(expected_version=3))
    assert move(line, 3, request_id="back") == replayed(first)
    assert branches(line)["main"].version == 10
    gone = delete(line, "x", request_id="gone")
    line.wire.save(line.request(branch="x", expected_version=0))
    assert delete(line, "x", request_id="gone") == replayed(gone)
    assert branches(line)["x"].version == 11
    asked = to_write(AcquireLeaseRequest, **at(line, holder=Holder(name="me", incarnation="1"), request_id="lease"))
    token = line.wire.leases.AcquireLease(asked).lease.token
    assert move(line, 3, request_id="back", lease_token=token) == replayed(first)
    again = to_write(t.MoveBranchRequest, **at(line, version=VersionRef(version=2), request_id="back"))
    assert refused(line.wire.threads.MoveBranch, again).reason == "REQUEST_ID_REUSED"
    assert refused(line.wire.threads.DeleteBranch, t.DeleteBranchRequest(**at(line, branch="x"))).reason == "LEASE_HELD"
    assert delete(line, "x", lease_token=token).version == 11


WRONG = {
    "move to nothing": ("MoveBranch", {}, "INVALID_FIELD"),
    "move to another branch": ("MoveBranch", {"version": {"version": 7}}, "INVALID_FIELD"),
    "move a branch that is not there": ("MoveBranch", {"branch": "y", "version": {"version": 7}}, "VERSION_NOT_FOUND"),
    "move to no version": ("MoveBranch", {"version": {"version": 70}}, "VERSION_NOT_FOUND"),
    "move another head": ("MoveBranch", {"version": {"version": 2}, "expected_version": 5}, "VERSION_MISMATCH"),
    "move with a wrong token": ("MoveBranch", {"version": {"version": 2}, "lease_token": 5}, "LEASE_HELD"),
    "delete main": ("DeleteBranch", {"branch": "main"}, "INVALID_FIELD"),
    "delete nothing": ("DeleteBranch", {}, "INVALID_FIELD"),
    "delete what is not there": ("DeleteBranch", {"branch": "y"}, "VERSION_NOT_FOUND"),
    "delete another head": ("DeleteBranch", {"branch": "x", "expected_version": 6}, "VERSION_MISMATCH"),
}


@pytest.mark.parametrize("name", WRONG)
def test_refused_before_anything_is_written(line: Place, name: str) -> None:
    """Each with its reason, and nothing is changed."""
    method, fields, reason = WRONG[name]
    before = line.look()
    found = refused(getattr(line.wire.threads, method), to_write(getattr(t, f"{method}Request"), **at(line, **fields)))
    assert found.reason == reason
    assert line.look() == before


def prune(place: Place, *versions: int, **fields: object) -> t.PruneThreadResponse:
    asked = to_write(t.PruneThreadRequest, **at(place, versions=spans_of(versions), move_heads=True, **fields))
    answer: t.PruneThreadResponse = place.wire.threads.PruneThread(asked)
    return answer


def test_a_pruned_head_falls_back(line: Place) -> None:
    """To its newest earlier version that is left; a retry gets the first answer; the next save goes on from there."""
    first = prune(line, 5, 6, 9, request_id="p")
    assert (list(numbers_of(first.pruned)), first.retained_versions) == ([5, 6, 9], 6)
    assert {name: head.version for name, head in branches(line).items()} == {"main": 4, "x": 8}
    thread = line.thread()
    assert (thread.version, thread.status, thread.step) == (4, WORK_STATUS_RUNNING, 3)
    assert line.wire.save(line.request(expected_version=4)).version == 10
    again = prune(line, 5, 6, 9, request_id="p")
    assert (again.pruned, again.receipt.sequence) == (first.pruned, first.receipt.sequence)
    assert branches(line)["main"].moved_version == 10
    assert listed(line, "main") == [10, 4, 3, 2, 1]
    assert len(line.state().logs["messages"].entries) == 5
    assert line.findings() == []


def test_a_branch_without_versions_disappears(line: Place) -> None:
    """Also if its head had gone back; main never does, and a tag protects a head."""
    prune(line, 8, 9)
    assert branches(line)["x"].version == 7
    before = line.look()
    for dry_run in (True, False):
        asked = t.PruneThreadRequest(**at(line, versions=spans_of(range(1, 7)), move_heads=True, dry_run=dry_run))
        found = refused(line.wire.threads.PruneThread, asked)
        assert (found.reason, found.field) == ("INVALID_FIELD", "versions")
    assert line.look() == before
    assert list(numbers_of(prune(line, 6, 7, dry_run=True).pruned)) == [6, 7]
    assert line.look() == before
    prune(line, 7)
    assert set(branches(line)) == {"main"}
    line.wire.threads.SetTag(t.SetTagRequest(**at(line, tag="kept")))
    asked = t.PruneThreadRequest(**at(line, versions=spans_of([6]), move_heads=True))
    assert refused(line.wire.threads.PruneThread, asked).field == "versions"
    by_rule = t.PruneThreadRequest(**at(line, keep_latest_per_branch=1, move_heads=True))
    assert refused(line.wire.threads.PruneThread, by_rule).field == "move_heads"
    assert line.findings() == []


def test_a_prune_takes_no_head_from_a_lease_holder(line: Place) -> None:
    """The holder of the lease moves heads by prunes, and others prune what is no head; a retry needs no valid token."""
    agent = Agent(line.wire, line.namespace, "holder")
    token = agent.take()
    asked = to_write(t.PruneThreadRequest, **at(line, versions=spans_of([5, 6]), move_heads=True, request_id="p"))
    before = branches(line)
    assert refused(line.wire.threads.PruneThread, asked).reason == "LEASE_HELD"
    assert branches(line) == before
    asked.options.lease_token = token + 1
    assert refused(line.wire.threads.PruneThread, asked).reason == "LEASE_HELD"
    assert list(numbers_of(prune(line, 2).pruned)) == [2]
    asked.options.lease_token = token
    assert list(numbers_of(line.wire.threads.PruneThread(asked).pruned)) == [5, 6]
    assert branches(line)["main"].version == 4
    asked.options.lease_token = 0
    assert list(numbers_of(line.wire.threads.PruneThread(asked).pruned)) == [5, 6]
    agent.release(token)
    assert list(numbers_of(prune(line, 4).pruned)) == [4]
    asked.options.lease_token = -1
    assert refused(line.wire.threads.PruneThread, asked).field == "options.lease_token"
    assert line.findings() == []


def test_a_reader_of_a_log_notices(line: Place) -> None:
    """Whoever folds a log sees that the head went back, and starts again also if it looks only after the next saves."""

    def read() -> tuple[int, int, int]:
        page = line.wire.checkpoints.ReadLog(ReadLogRequest(**at(line, log="messages")))
        return page.version, page.rewritten_version, page.end_index

    assert read() == (6, 0, 6)
    move(line, 3)
    assert read() == (3, 0, 3)
    line.wire.save(line.request(expected_version=3))
    assert read() == (10, 10, 4)
    line.wire.save(line.request(expected_version=10))
    move(line, 6)
    assert read() == (6, 6, 6)
    move(line, 11)
    assert read() == (11, 10, 5)


def test_a_reader_notices_a_branch_that_is_made_again(line: Place) -> None:
    """It folded a log of the branch that was deleted; the new one may have as many entries, and they are others."""

    def read() -> tuple[int, int, int]:
        page = line.wire.checkpoints.ReadLog(ReadLogRequest(**at(line, log="messages", branch="x")))
        return page.version, page.rewritten_version, page.end_index

    assert read() == (9, 0, 7)
    delete(line, "x")
    line.wire.save(line.request(branch="x", expected_version=0, parent=VersionRef(version=6), diff=appends("new")))
    assert read() == (10, 10, 7)
    line.wire.save(line.request(branch="x", expected_version=10))
    assert read() == (11, 10, 8)


def test_a_list_over_all_threads_leaves_out_a_deleted_branch(line: Place) -> None:
    """As a list of the thread does, with labels and without; a branch that is made again has its own versions only."""
    line.wire.save(line.request(branch="x", expected_version=9, labels={"at": "x"}))

    def found() -> list[list[int]]:
        everywhere = {"namespace": line.namespace, "thread": "-", "branch": "x"}
        requests = [ListCheckpointsRequest(**everywhere, labels=labels) for labels in ({}, {"at": "x"})]
        answers = [line.wire.checkpoints.ListCheckpoints(request).checkpoints for request in requests]
        return [[each.version for each in answer] for answer in answers]

    assert found() == [[10, 9, 8, 7], [10]]
    delete(line, "x")
    assert found() == [[], []]
    line.wire.save(line.request(branch="x", expected_version=0, labels={"at": "x"}))
    assert found() == [[11], [11]]


def test_a_watch_tells(line: Place) -> None:
    """One event for each move, from the beginning and by a cursor."""
    watch = line.wire.threads.Watch(t.WatchRequest(**at(line)), timeout=20)
    next(watch)
    move(line, 3)
    delete(line, "x")
    found = []
    while len(found) < 2:
        found += [event.heads_moved.heads[0] for event in next(watch).events]
    told = [(each.branch, each.version, each.previous_version) for each in found]
    assert told == [("main", 3, 6), ("x", 0, 9)]


def test_copies_and_backups_have_it(line: Place) -> None:
    """A whole copy and a restored backup have the same heads, and no deleted branch."""
    line.wire.save(line.request(branch="y", expected_version=0))
    delete(line, "x")
    move(line, 3)
    line.wire.threads.ForkThread(t.ForkThreadRequest(**at(line, new_thread="copy", all_versions=True)))
    parts = [part for each in line.wire.backups.ExportThread(ExportThreadRequest(**at(line))) for part in each.parts]
    begin = ImportThreadRequest(begin={"namespace": line.namespace, "thread": "restored"})
    begin.begin.options.request_id = "1"
    line.wire.backups.ImportThread(iter([begin, ImportThreadRequest(parts=parts)]))
    for name in ("copy", "restored"):
        thread, original = line.wire.thread(line.namespace, name), line.thread()
        assert (thread.version, thread.step, thread.status) == (3, original.step, original.status)
        for each, other in zip(branches(line, name).values(), branches(line).values(), strict=True):
            each.version_digest = other.version_digest
            assert each == other
        again = line.request(thread=name, expected_version=3)
        assert line.wire.save(again).version == 11
        assert branches(line, name)["main"].moved_version == 11
    assert line.findings() == []
    for each in parts:
        if each.HasField("end"):
            each.end.ClearField("deleted_branches")
    begin.begin.thread, begin.begin.options.request_id = "wrong", "2"
    calls = iter([begin, ImportThreadRequest(parts=parts)])
    assert refused(line.wire.backups.ImportThread, calls).reason == "INVALID_FIELD"


def test_a_copy_knows_that_a_branch_was_made_again(place: Place) -> None:
    """A thread with one branch, which follows a deleted one of its name: a rule counts as in the original."""
    for number in range(5):
        if number == 3:
            delete(place, "x", thread="one")
        expected = number if number < 3 else 0 if number == 3 else 4
        place.wire.save(place.request(thread="one", branch="x", expected_version=expected))
    place.wire.threads.ForkThread(
        t.ForkThreadRequest(namespace=place.namespace, thread="one", new_thread="copy", all_versions=True)
    )
    for name in ("one", "copy"):
        asked = t.PruneThreadRequest(namespace=place.namespace, thread=name, keep_latest_per_branch=3)
        assert list(numbers_of(place.wire.threads.PruneThread(asked).pruned)) == [1, 2, 3]


def test_a_thread_may_lose_all_its_versions(place: Place) -> None:
    """Its only branch is deleted and pruned: nothing is left to copy, a backup has none, and the next save begins."""
    place.wire.save(place.request(thread="one", branch="x", expected_version=0))
    gone = t.PruneThreadRequest(namespace=place.namespace, thread="one", versions=spans_of([1]), move_heads=True)
    assert list(numbers_of(place.wire.threads.PruneThread(gone).pruned)) == [1]
    for whole in (True, False):
        fork = t.ForkThreadRequest(namespace=place.namespace, thread="one", new_thread="copy", all_versions=whole)
        assert refused(place.wire.threads.ForkThread, fork).reason == "VERSION_NOT_FOUND"
    exported = place.wire.backups.ExportThread(ExportThreadRequest(namespace=place.namespace, thread="one"))
    parts = [part for each in exported for part in each.parts]
    begin = ImportThreadRequest(begin={"namespace": place.namespace, "thread": "restored"})
    begin.begin.options.request_id = "1"
    place.wire.backups.ImportThread(iter([begin, ImportThreadRequest(parts=parts)]))
    for name in ("one", "restored"):
        assert listed(place, thread=name) == []
        assert place.wire.save(place.request(thread=name, expected_version=0)).version == 2
    assert place.findings() == []
