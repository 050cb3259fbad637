"""The danger: an event of a log that is read twice or not at all, and a reader that waits for ever."""

from __future__ import annotations

import time
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from tests.daemon.wire import Wire, appends, refused
from tests.service.conftest import THREAD, Place

from stateward.testing import run_daemon
from stateward.v1.admin_service_pb2 import GetStatsRequest
from stateward.v1.checkpoint_pb2 import VersionRef
from stateward.v1.checkpoint_service_pb2 import ReadLogRequest, ReadLogResponse, SaveRequest
from stateward.v1.diff_pb2 import AddNumber, Append, DeleteLog, Diff, Edit, ReplaceEntry, SetSlot, TrimLog
from stateward.v1.state_pb2 import Value
from stateward.v1.thread_service_pb2 import (
    DeleteThreadRequest,
    ForkThreadRequest,
    MoveBranchRequest,
    SetTagRequest,
    WatchRequest,
)
from stateward.v1.write_pb2 import WriteOptions

PATIENCE_S = 20


def duration(seconds: float) -> Duration:
    return Duration(seconds=int(seconds), nanos=int(seconds % 1 * 1e9))


def asked(place: Place, **fields: Any) -> ReadLogRequest:
    return ReadLogRequest(**{"namespace": place.namespace, "thread": THREAD, "log": "events", **fields})


def read(place: Place, **fields: Any) -> ReadLogResponse:
    found: ReadLogResponse = place.wire.checkpoints.ReadLog(asked(place, **fields), timeout=PATIENCE_S)
    return found


def waiting(wire: Wire, request: ReadLogRequest) -> Any:
    """A read that waits, once the daemon has taken it."""
    request.wait.CopyFrom(duration(PATIENCE_S))
    before = wire.admin.GetStats(GetStatsRequest()).watches
    call = wire.checkpoints.ReadLog.future(request, timeout=PATIENCE_S)
    until = time.monotonic() + PATIENCE_S
    while wire.admin.GetStats(GetStatsRequest()).watches <= before and time.monotonic() < until:
        assert not call.done(), "it did not wait"
    return call


def change(place: Place, *edits: Edit, branch: str = "") -> int:
    """Saves edits on top of the head; returns the version."""
    heads = {each.name: each.version for each in place.described().branches}
    request = place.request(diff=Diff(edits=edits), branch=branch, expected_version=heads.get(branch or "main", 0))
    return place.wire.save(request).version


def events(*values: bytes, log: str = "events") -> Edit:
    return Edit(append=Append(log=log, entries=[Value(data=value) for value in values]))


def data(page: ReadLogResponse) -> list[bytes]:
    return [value.data for value in page.entries]


def place_of(page: ReadLogResponse) -> tuple[int, int, int, int]:
    return page.first_index, page.next_index, page.end_index, page.rewritten_version


@pytest.mark.parametrize("limits", [{}, {"page_size": 3}, {"max_bytes": 1024}, {"max_bytes": 1024, "page_size": 2}])
def test_pages_hold_every_event_once(place: Place, limits: dict[str, int]) -> None:
    """However small the pages, together they are the log from the asked index on, also where its start was trimmed."""
    values = [b"%d-" % number * (number * 50 % 700) or b"x" for number in range(30)]
    values[20] = b"large" * 1000
    change(place, events(*values))
    trimmed = change(place, Edit(trim_log=TrimLog(log="events", before_index=4)))
    found, index, pages = [], 0, 0
    while True:
        page = read(place, from_index=index, **limits)
        assert page.entries, "a page has at least one entry, however large it is"
        assert (page.first_index, page.next_index) == (max(index, 4), max(index, 4) + len(page.entries))
        assert (page.end_index, page.rewritten_version, page.version) == (30, trimmed, trimmed)
        found += data(page)
        index, pages = page.next_index, pages + 1
        if index == page.end_index:
            break
    assert found == values[4:]
    assert (pages > 1) == bool(limits)
    assert data(read(place, from_index=27)) == values[27:]


def test_what_is_not_there_is_empty(place: Place) -> None:
    """A log without entries, an index at or beyond the end and an older version answer with where a reader stands."""
    assert place_of(read(place)) == (0, 0, 0, 0)
    assert place_of(read(place, from_index=7)) == (7, 7, 0, 0)
    version = change(place, events(b"a", b"b"))
    assert place_of(read(place, from_index=2)) == (2, 2, 2, 0)
    change(place, events(b"c"))
    old = read(place, version=VersionRef(version=version))
    assert (data(old), place_of(old), old.version) == ([b"a", b"b"], (0, 2, 2, 0), version)
    assert place_of(read(place, version=VersionRef(version=1))) == (0, 0, 0, 0)


def test_a_rewritten_log_says_so(place: Place) -> None:
    """Whoever folded events learns that some were replaced, cut or deleted, also before the log is made anew."""
    first = change(place, events(b"a", b"b", b"c"))
    edits = (
        Edit(replace_entry=ReplaceEntry(log="events", index=1, value=Value(data=b"B"))),
        Edit(trim_log=TrimLog(log="events", from_index=2)),
        Edit(delete_log=DeleteLog(log="events")),
    )
    for number, edit in enumerate(edits, 1):
        change(place, edit)
        assert read(place).rewritten_version == first + number
    deleted = read(place)
    assert place_of(deleted) == (2, 2, 2, first + 3)
    assert change(place, events(b"new")) == first + 4
    assert (data(read(place)), place_of(read(place))) == ([b"new"], (2, 3, 3, first + 4))


def test_a_waiting_read_gets_the_next_event(place: Place) -> None:
    """What is appended ends the wait at once; what happens elsewhere does not."""
    change(place, events(b"a"))
    call = waiting(place.wire, asked(place, from_index=1))
    started = time.monotonic()
    change(place, events(b"elsewhere", log="other"))
    change(place, events(b"elsewhere"), branch="other")
    place.wire.save(
        SaveRequest(namespace=place.namespace, thread="other", options=WriteOptions(request_id="r"), diff=appends("x"))
    )
    assert not call.done()
    change(place, events(b"b"))
    assert data(call.result()) == [b"b"]
    assert time.monotonic() - started < PATIENCE_S / 2


def test_a_wait_ends_with_what_is_there(place: Place) -> None:
    """When the time is over, when the caller's is, and when the log is cut below the index that is waited for."""
    change(place, events(b"a", b"b"))
    assert place_of(read(place, from_index=2, wait=duration(0.02))) == (2, 2, 2, 0)
    found = place.wire.checkpoints.ReadLog(asked(place, from_index=2, wait=duration(60)), timeout=3)
    assert place_of(found) == (2, 2, 2, 0)
    assert data(read(place, from_index=1, wait=duration(60))) == [b"b"]
    call = waiting(place.wire, asked(place, from_index=2))
    started = time.monotonic()
    cut = change(place, Edit(trim_log=TrimLog(log="events", from_index=1)))
    assert place_of(call.result()) == (2, 2, 1, cut)
    assert time.monotonic() - started < PATIENCE_S / 2


def test_a_wait_ends_when_the_head_goes_back(place: Place) -> None:
    """The log is shorter then; the reader learns it at once, and not when its time is over."""
    change(place, events(b"1"))
    last = change(place, events(b"2"))
    call = waiting(place.wire, asked(place, from_index=2))
    started = time.monotonic()
    back = {"namespace": place.namespace, "thread": THREAD, "version": {"version": last - 1}}
    place.wire.threads.MoveBranch(MoveBranchRequest(**back))
    assert place_of(call.result())[1:3] == (2, 1)
    assert call.result().version == last - 1
    assert time.monotonic() - started < PATIENCE_S / 2


def test_a_wait_ends_with_the_thread(place: Place) -> None:
    """A thread that is deleted while somebody waits for it is UID_MISMATCH, and does not leave him waiting."""
    call = waiting(place.wire, asked(place))
    place.wire.threads.DeleteThread(DeleteThreadRequest(namespace=place.namespace, thread=THREAD))
    assert "UID_MISMATCH" in str(call.exception().trailing_metadata())


def test_a_page_of_another_thread_of_the_name_is_refused(place: Place) -> None:
    """Whoever names the thread of the page before never gets entries of the thread that was made under its name."""
    change(place, events(b"a"))
    first = read(place)
    assert first.uid == place.thread().uid
    place.wire.threads.DeleteThread(DeleteThreadRequest(namespace=place.namespace, thread=THREAD))
    place.wire.save(place.request(expected_version=0, diff=Diff(edits=[events(b"x", b"y")])))
    for fields in ({}, {"wait": duration(PATIENCE_S)}):
        found = refused(place.wire.checkpoints.ReadLog, asked(place, from_index=1, expected_uid=first.uid, **fields))
        assert found.reason == "UID_MISMATCH"


def test_a_wait_does_not_hold_up_the_stop() -> None:
    """A daemon that stops answers who waits with what is there, and ends in time."""
    with run_daemon() as daemon:
        wire = Wire(daemon.target)
        wire.save(SaveRequest(thread=THREAD, options=WriteOptions(request_id="r"), diff=appends("x", log="events")))
        call = waiting(wire, ReadLogRequest(thread=THREAD, log="events", from_index=1))
        started = time.monotonic()
        daemon.stop()
        assert time.monotonic() - started < PATIENCE_S / 2
        assert place_of(call.result()) == (1, 1, 1, 0)
        wire.close()


@pytest.mark.soak  # 200 MB go over the socket
def test_an_entry_that_no_message_holds_is_refused() -> None:
    """An entry beyond 60 MiB is STATE_TOO_LARGE with its size, and the entries around it can be read."""
    with run_daemon(max_state_size="80MiB") as daemon:
        wire = Wire(daemon.target)
        diff = Diff(edits=[events(b"a", b"x" * (61 << 20), b"c")])
        wire.save(SaveRequest(thread=THREAD, options=WriteOptions(request_id="r"), diff=diff))
        request = ReadLogRequest(thread=THREAD, log="events", max_bytes=64 << 20)
        assert place_of(wire.checkpoints.ReadLog(request)) == (0, 1, 3, 0)
        found = refused(wire.checkpoints.ReadLog, ReadLogRequest(thread=THREAD, log="events", from_index=1))
        assert (found.reason, int(found.metadata["limit_bytes"])) == ("STATE_TOO_LARGE", 60 << 20)
        assert place_of(wire.checkpoints.ReadLog(ReadLogRequest(thread=THREAD, log="events", from_index=2))) == (
            2,
            3,
            3,
            0,
        )
        wire.close()


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no log": ({"log": ""}, "log"),
    "negative index": ({"from_index": -1}, "from_index"),
    "negative count": ({"page_size": -1}, "page_size"),
    "too few bytes": ({"max_bytes": 10}, "max_bytes"),
    "no wait": ({"wait": Duration()}, "wait"),
    "long wait": ({"wait": duration(61)}, "wait"),
    "wait for the past": ({"wait": duration(1), "version": VersionRef(version=1)}, "version"),
    "no version": ({"version": VersionRef()}, "version"),
    "no uid": ({"expected_uid": "x"}, "expected_uid"),
    "known version without digest": ({"known_version": 1}, "known_digest"),
    "known digest without version": ({"known_digest": b"x" * 16}, "known_version"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_read_is_refused_by_field(untouched: Place, name: str) -> None:
    """A read that makes no sense is INVALID_FIELD at once."""
    fields, field = WRONG[name]
    found = refused(untouched.wire.checkpoints.ReadLog, asked(untouched, **fields))
    assert (found.reason, found.field) == ("INVALID_FIELD", field)


def watched(place: Place, count: int, thread: str = THREAD, **fields: Any) -> list[Any]:
    """So many events from the beginning, each as what it is and the names its edits touch."""
    request = WatchRequest(**{"namespace": place.namespace, "thread": thread, "after_sequence": 0, **fields})
    stream = place.wire.threads.Watch(request, timeout=PATIENCE_S)
    found: list[Any] = []
    for answer in stream:
        for event in answer.events:
            kinds = [edit.WhichOneof("edit") for edit in event.diff.edits]
            found.append((event.checkpoint.version or event.WhichOneof("what"), kinds, event.cursor))
        if len(found) >= count:
            break
    stream.cancel()
    return found


def test_a_watch_tells_chosen_changes_only(place: Place) -> None:
    """Versions that change none of the chosen slots and logs are passed over, and so are the edits beside the chosen
    ones; a reader that goes on from a cursor misses nothing."""
    count = Edit(add_number=AddNumber(slot="hits", delta=1))
    goal = Edit(set_slot=SetSlot(slot="goal", value=Value(data=b"x")))
    change(place, events(b"a"), count)
    for _ in range(300):  # more than one read looks at
        place.wire.save(place.request(expected_version=None, request_id=f"r{_}", diff=Diff(edits=[goal])))
    place.wire.threads.SetTag(SetTagRequest(namespace=place.namespace, thread=THREAD, tag="x"))
    last = change(place, count, goal)
    hits = watched(place, 3, slots=["hits"], include_diff=True)
    assert [each[:2] for each in hits] == [(3, ["add_number"]), ("tag_set", []), (last, ["add_number"])]
    both = watched(place, 3, slots=["hits"], logs=["events"], include_diff=True)
    assert both[0][:2] == (3, ["append", "add_number"])
    assert [each[:2] for each in watched(place, 2, logs=["events"])] == [(3, []), ("tag_set", [])]
    on = watched(place, 2, slots=["hits"], after_sequence=None, after_cursor=hits[0][2])
    assert [each[0] for each in on] == ["tag_set", last]


def test_a_watch_of_chosen_changes_tells_of_a_copied_state(place: Place) -> None:
    """The first version of a fork has no edits, and may have any slot and log: it is never passed over."""
    change(place, events(b"a"))
    request = ForkThreadRequest(namespace=place.namespace, thread=THREAD, new_thread="copy of a log")
    place.wire.threads.ForkThread(request, timeout=PATIENCE_S)
    place.wire.threads.SetTag(SetTagRequest(namespace=place.namespace, thread="copy of a log", tag="x"))
    for fields in ({"slots": ["hits"]}, {"logs": ["events"], "include_diff": True}):
        told = watched(place, 2, "copy of a log", **fields)
        assert [each[:2] for each in told] == [(1, []), ("tag_set", [])]


def test_a_watch_of_wrong_names_is_refused(untouched: Place) -> None:
    """Names that no slot or log can have are INVALID_FIELD, as are more of them than a daemon compares."""
    for fields, field in (
        ({"slots": [""]}, "slots[0]"),
        ({"logs": ["a", "\n"]}, "logs[1]"),
        ({"slots": ["x"] * 1001}, "slots"),
    ):
        request = WatchRequest(namespace=untouched.namespace, thread=THREAD, **fields)
        assert refused(untouched.wire.threads.Watch, request).field == field
