"""The danger: a watch passes over events without a word, so whoever follows it never learns of a change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import grpc
from tests.daemon.wire import appends, refused
from tests.service.conftest import THREAD, Place

from stateward.v1 import thread_service_pb2 as t


def watch(place: Place, **fields: Any) -> Any:
    request = t.WatchRequest(**{"namespace": place.namespace, "thread": THREAD, **fields})
    return place.wire.threads.Watch(request, timeout=20)


def events(stream: Any, count: int) -> list[t.JournalEvent]:
    """So many events; the stream is ended."""
    found: list[t.JournalEvent] = []
    for answer in stream:
        found += answer.events
        if len(found) >= count:
            break
    stream.cancel()
    return found


def opened(stream: Iterator[t.WatchResponse]) -> str:
    """Waits until a watch has begun; returns its cursor."""
    first = next(stream)
    assert not first.events
    return first.cursor


def test_a_watch_of_nobody_is_refused(untouched: Place) -> None:
    """Watching a thread that does not exist is THREAD_NOT_FOUND."""
    request = t.WatchRequest(namespace=untouched.namespace, thread="nobody")
    found = refused(untouched.wire.threads.Watch, request)
    assert (found.reason, found.code) == ("THREAD_NOT_FOUND", grpc.StatusCode.NOT_FOUND)


def test_every_entry_comes_once_and_in_order(place: Place) -> None:
    """From the beginning, through what is saved while the watch is open, to the deletion: 1, 2, 3 … without hole."""
    stream = watch(place, after_sequence=0)
    opened(stream)
    for version in range(2, 12):
        place.wire.save(place.request(expected_version=version, diff=appends(f"{version}")))
    at = {"namespace": place.namespace, "thread": THREAD}
    place.wire.threads.SetTag(t.SetTagRequest(**at, tag="x"))
    place.wire.threads.PruneThread(t.PruneThreadRequest(**at, keep_latest_per_branch=3))
    found: list[t.JournalEvent] = []
    while len(found) < 14:  # a deletion destroys what was not told yet
        found += next(stream).events
    place.wire.threads.DeleteThread(t.DeleteThreadRequest(**at))
    found += [event for answer in stream for event in answer.events]  # the stream ends by itself
    assert [event.sequence for event in found] == list(range(1, 16))
    assert [event.WhichOneof("what") for event in found[-3:]] == ["tag_set", "pruned", "deleted"]


def test_a_watch_goes_on_after_its_cursor(place: Place) -> None:
    """A cursor of the middle gives exactly what came after it, for one thread and for a namespace."""
    stream = watch(place, thread="-")
    opened(stream)
    for version in range(2, 8):
        place.wire.save(place.request(expected_version=version, diff=appends(f"{version}")))
    seen = events(stream, 6)
    assert [event.sequence for event in seen] == [3, 4, 5, 6, 7, 8]
    again = events(watch(place, thread="-", after_cursor=seen[2].cursor), 3)
    assert [event.sequence for event in again] == [6, 7, 8]
    one = events(watch(place, after_sequence=0), 8)
    assert [event.sequence for event in events(watch(place, after_cursor=one[4].cursor), 3)] == [6, 7, 8]


def test_pruned_versions_still_have_their_events(place: Place) -> None:
    """Right after a prune, a watch from the beginning still shows every place: only the edits are gone."""
    for version in range(2, 6):
        place.wire.save(place.request(expected_version=version, diff=appends(f"{version}")))
    at = {"namespace": place.namespace, "thread": THREAD}
    place.wire.threads.PruneThread(t.PruneThreadRequest(**at, keep_latest_per_branch=1))
    found = events(watch(place, after_sequence=0, include_diff=True), 7)
    assert [event.sequence for event in found] == list(range(1, 8))
    assert [event.HasField("diff") for event in found] == [False] * 5 + [True, False]


def test_a_cursor_of_an_earlier_creation_ends_with_its_deletion(place: Place) -> None:
    """A watch of a deleted thread ends with the deletion, and never goes on in the next thread of that name."""
    cursor = events(watch(place, after_sequence=0), 2)[-1].cursor
    at = {"namespace": place.namespace, "thread": THREAD}
    place.wire.threads.DeleteThread(t.DeleteThreadRequest(**at))
    place.wire.save(place.request(expected_version=0))
    found = [event for answer in watch(place, after_cursor=cursor) for event in answer.events]
    assert [event.WhichOneof("what") for event in found] == ["deleted"]


def test_a_cursor_from_the_future_is_refused(untouched: Place) -> None:
    """A cursor beyond the newest place, as after a restored backup, is refused: waiting there would lose events."""
    uid = untouched.thread().uid
    for fields in (
        {"after_cursor": f"t.{uid}.99"},
        {"thread": "-", "after_cursor": f"n.{10**12}"},
    ):
        request = t.WatchRequest(**{"namespace": untouched.namespace, "thread": THREAD, **fields})
        call = untouched.wire.threads.Watch(request, timeout=30)
        with suppress(grpc.RpcError):
            list(call)
        assert call.code() == grpc.StatusCode.INVALID_ARGUMENT
