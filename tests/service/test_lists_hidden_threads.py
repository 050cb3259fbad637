"""The danger: a list or a count that leaves a thread out, shows it twice, or under a status that it has no longer."""

from __future__ import annotations

import itertools
from pathlib import Path

import lmdb
import pytest
from tests.daemon.wire import Wire, appends
from tests.messages import to_write

from stateward._operations.threads import spans_of
from stateward.testing import Daemon, run_daemon
from stateward.v1 import checkpoint_pb2 as pb
from stateward.v1 import thread_service_pb2 as t
from stateward.v1.blob_service_pb2 import BlobBegin, WriteBlobRequest
from stateward.v1.checkpoint_service_pb2 import SaveRequest
from stateward.v1.effect_service_pb2 import BeginEffectRequest
from stateward.v1.lease_service_pb2 import AcquireLeaseRequest
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.storage import layout
from stateward_sidecar.store.read.listing import IN_VAIN_MAX

STATUSES = (pb.WORK_STATUS_RUNNING, pb.WORK_STATUS_WAITING, pb.WORK_STATUS_COMPLETED, pb.WORK_STATUS_FAILED)


@pytest.fixture
def space(place) -> str:
    """A namespace without threads."""
    place.wire.threads.DeleteThread(t.DeleteThreadRequest(namespace=place.namespace, thread="booking-42"))
    return place.namespace


def save(wire: Wire, space: str, name: str, **fields) -> None:
    wire.save(
        to_write(SaveRequest, namespace=space, thread=name, diff=appends("x"), request_id=f"{name}-{fields}", **fields)
    )


def listed(wire: Wire, space: str, **asked) -> list[str]:
    """Names in all pages."""
    request = t.ListThreadsRequest(namespace=space, **asked)
    names: list[str] = []
    while True:
        page = wire.threads.ListThreads(request)
        names += [each.thread for each in page.threads]
        if not page.next_page_token:
            return names
        request.page_token = page.next_page_token


def counts(wire: Wire, space: str, **asked) -> dict[int, int]:
    answer = wire.threads.CountThreads(t.CountThreadsRequest(namespace=space, **asked))
    return {each.status: each.count for each in answer.counts}


def test_statuses_are_merged(wire, space):
    """A list by several statuses has the threads of each once, in the order of the whole list, whatever the pages."""
    for number in range(20):
        save(wire, space, f"t{number}", status=STATUSES[number % 4])
    whole = listed(wire, space)
    assert len(whole) == 20
    for size in (1, 3, 100):
        for chosen in itertools.chain.from_iterable(itertools.combinations(STATUSES, n) for n in (1, 2, 4)):
            fit = [name for name in whole if STATUSES[int(name[1:]) % 4] in chosen]
            assert listed(wire, space, statuses=[*chosen, chosen[0]], page_size=size) == fit
    assert counts(wire, space) == dict.fromkeys(STATUSES, 5)


def test_a_status_is_left_behind(wire, space):
    """A thread that changes its status within the same second stands under the new one only; so does one without."""
    for status in (*STATUSES, pb.WORK_STATUS_PAUSED):
        save(wire, space, "t", status=status)
        assert counts(wire, space) == {status: 1}
    assert listed(wire, space, statuses=[pb.WORK_STATUS_RUNNING, pb.WORK_STATUS_FAILED]) == []
    save(wire, space, "side", status=pb.WORK_STATUS_FAILED)
    save(wire, space, "side", status=pb.WORK_STATUS_WAITING, branch="other")  # main's status is the thread's
    save(wire, space, "plain")
    assert counts(wire, space) == {pb.WORK_STATUS_PAUSED: 1, pb.WORK_STATUS_FAILED: 1, pb.WORK_STATUS_RUNNING: 1}
    wire.threads.UpdateThread(
        t.UpdateThreadRequest(namespace=space, thread="t", update={"agent": "a"}, update_mask={"paths": ["agent"]})
    )
    wire.threads.SetTag(t.SetTagRequest(namespace=space, thread="t", tag="x"))
    wire.threads.PruneThread(t.PruneThreadRequest(namespace=space, thread="t", versions=spans_of([1])))
    assert counts(wire, space)[pb.WORK_STATUS_PAUSED] == 1
    assert wire.findings() == []


def test_copies_and_deletions_are_counted(wire, space):
    """A fork counts under the status of what was copied, and a deleted thread nowhere."""
    save(wire, space, "t", status=pb.WORK_STATUS_WAITING)
    save(wire, space, "t", status=pb.WORK_STATUS_COMPLETED)
    wire.threads.ForkThread(t.ForkThreadRequest(namespace=space, thread="t", version={"version": 1}, new_thread="one"))
    wire.threads.ForkThread(t.ForkThreadRequest(namespace=space, thread="t", new_thread="all", all_versions=True))
    assert counts(wire, space) == {pb.WORK_STATUS_WAITING: 1, pb.WORK_STATUS_COMPLETED: 2}
    wire.threads.DeleteThread(t.DeleteThreadRequest(namespace=space, thread="t"))
    assert counts(wire, space) == {pb.WORK_STATUS_WAITING: 1, pb.WORK_STATUS_COMPLETED: 1}
    assert listed(wire, space, statuses=[pb.WORK_STATUS_COMPLETED]) == ["all"]
    assert wire.findings() == []


def test_labels_find_a_thread_however_it_was_made(wire, space):
    """By a save, a blob, an effect, a lease or a copy; and not by labels that it no longer has."""
    at, made = {"namespace": space}, {"create": {"labels": {"team": "red", "n": ""}}}
    save(wire, space, "save", **made)
    save(wire, space, "effect in a save", effects=[{"key": "k", "value": {"data": b""}}], **made)
    holder = {"name": "me", "incarnation": "1"}
    wire.effects.BeginEffect(
        to_write(BeginEffectRequest, **at, thread="effect", key="k", holder=holder, request_id="r", **made)
    )  # fmt: skip
    asked = to_write(AcquireLeaseRequest, **at, thread="lease", holder=holder, request_id="r", **made)
    token = wire.leases.AcquireLease(asked).lease.token
    wire.blobs.WriteBlob(iter([WriteBlobRequest(begin=to_write(BlobBegin, **at, thread="blob", **made))]))
    for whole, name in ((False, "copy"), (True, "whole copy")):
        wire.threads.ForkThread(t.ForkThreadRequest(**at, thread="save", new_thread=name, all_versions=whole))
    names = {"save", "effect in a save", "effect", "lease", "blob", "copy", "whole copy"}
    for labels in ({"team": "red"}, {"n": ""}, {"team": "red", "n": ""}):
        assert set(listed(wire, space, labels=labels, page_size=2)) == names
    save(wire, space, "lease", lease_token=token, create={"labels": {"team": "blue"}})  # the first version says others
    assert set(listed(wire, space, labels={"n": ""})) == names - {"lease"}
    assert listed(wire, space, labels={"team": "blue"}) == ["lease"]
    for name in ("blob", "effect"):
        mask, options = {"paths": ["labels"]}, {"labels": {"n": "1"}}
        wire.threads.UpdateThread(t.UpdateThreadRequest(**at, thread=name, update=options, update_mask=mask))
    assert set(listed(wire, space, labels={"team": "red"})) == names - {"lease", "blob", "effect"}
    assert set(listed(wire, space, labels={"n": "1"})) == {"blob", "effect"}
    wire.threads.DeleteThread(t.DeleteThreadRequest(**at, thread="copy"))
    assert set(listed(wire, space, labels={"n": ""})) == {"save", "effect in a save", "whole copy"}
    assert listed(wire, f"{space}, another", labels={"n": ""}) == []
    assert wire.findings() == []


def test_limits_of_time_are_exact(wire, space):
    """Lists and counts agree on the microsecond of a limit, though the index knows seconds only."""
    for number in range(6):
        save(wire, space, f"t{number}", status=pb.WORK_STATUS_FAILED)
    times = {name: wire.thread(space, name).update_time for name in (f"t{number}" for number in range(6))}
    for name, time in times.items():
        later = {each for each, other in times.items() if other.ToMicroseconds() >= time.ToMicroseconds()}
        assert set(listed(wire, space, statuses=[pb.WORK_STATUS_FAILED], updated_after=time)) == later, name
        assert counts(wire, space, updated_after=time) == {pb.WORK_STATUS_FAILED: len(later)}
        earlier = counts(wire, space, updated_before=time)
        assert earlier == ({pb.WORK_STATUS_FAILED: 6 - len(later)} if len(later) < 6 else {})
    assert counts(wire, space, updated_after=times["t1"], updated_before=times["t4"]) == {pb.WORK_STATUS_FAILED: 3}
    assert counts(wire, f"{space}, another") == {}


def test_a_page_is_short_rather_than_late(wire, space):
    """What no index knows makes pages that end early, and all of them together have every thread."""
    saves = [
        SaveRequest(
            namespace=space,
            thread=f"t{number}",
            diff=appends("x"),
            options=WriteOptions(request_id="r"),
            step=int(number == 0),
        )
        for number in range(2 * IN_VAIN_MAX)
    ]
    from stateward.v1.checkpoint_service_pb2 import BatchSaveRequest

    for at in range(0, len(saves), 100):
        wire.checkpoints.BatchSave(BatchSaveRequest(saves=saves[at : at + 100]))
    first = wire.threads.ListThreads(t.ListThreadsRequest(namespace=space, min_step=1))
    assert (len(first.threads), bool(first.next_page_token)) == (0, True)
    assert listed(wire, space, min_step=1) == ["t0"]
    assert len(listed(wire, space, max_step=0)) == 2 * IN_VAIN_MAX - 1


def test_a_place_that_is_lost_or_left_is_found(tmp_path: Path):
    """Verify names a thread that is missing among those of its status, and a place that leads to none."""
    with run_daemon(tmp_path / "data", sweep_interval=0) as daemon:
        findings = _findings_with(daemon, lambda txn, key: txn.delete(key))
        assert findings == ["the thread is missing in the list of its namespace"]
        places = (lambda key: key[:-4] + b"\0\0\0\1", lambda key: key[:-5] + bytes((key[-5] ^ 1,)) + key[-4:])
        for place in places:  # of no thread, and of another second
            wrong = _findings_with(daemon, lambda txn, key, place=place: txn.put(place(key), layout.PRESENT))
            assert "at a wrong place in a list of its namespace" in wrong[-1]
            _change_places(daemon, lambda txn, key: txn.delete(key))


def _findings_with(daemon: Daemon, change) -> list[str]:
    """What Verify says of one failed thread after this was done to its place."""
    wire = Wire(daemon.target)
    save(wire, "s", "t", status=pb.WORK_STATUS_FAILED)
    assert wire.findings() == []
    wire.close()
    _change_places(daemon, change)
    wire = Wire(daemon.target)
    found = [each.message for each in wire.findings()]
    wire.threads.DeleteThread(t.DeleteThreadRequest(namespace="s", thread="t"))
    wire.close()
    return found


def _change_places(daemon: Daemon, change) -> None:
    """Does something to every place in the lists by status, behind the daemon's back."""
    with lmdb.open(str(daemon.data_dir), map_size=1 << 30) as env, env.begin(write=True) as txn:
        for key in [bytes(key) for key, _ in txn.cursor() if bytes(key[:1]) == b"S"]:
            change(txn, key)
