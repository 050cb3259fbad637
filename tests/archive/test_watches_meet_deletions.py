"""The danger: a watch ends, or calls a thread deleted, although the thread only left this disk; or it tells events of a
namespace twice, or out of order, when the thread comes back."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.archive.test_threads_deleted_here import delete_here
from tests.archive.test_watches_travel import watch as watch_remotely
from tests.daemon.driven import NAME, NAMESPACE, Driven, append
from tests.daemon.process import Fleet, write_steps
from tests.daemon.town import Town, twins

from stateward.v1.thread_service_pb2 import DeleteThreadRequest, JournalEvent, WatchRequest
from stateward_sidecar.errors import Fenced, StatewardError, ThreadNotFound
from stateward_sidecar.store.read.watch import Watch

SAVES, BYTES = 60, 2000


def watch(machine: Driven, thread: str = "job", **fields: Any) -> Watch:
    """A watch of the thread, or with "-" of its namespace from the beginning."""
    if thread == "-":
        fields["after_cursor"] = "n.0"
    return machine.store.watcher.open(WatchRequest(namespace="default", thread=thread, **fields))


def read(machine: Driven, opened: Watch) -> list[JournalEvent]:
    """All events that are there."""
    found: list[JournalEvent] = []
    while not opened.is_over and (events := machine.store.read(machine.store.watcher.read, opened)):
        found += events
    return found


def told(events: list[JournalEvent]) -> list[tuple[str, int, str | None]]:
    return [(event.thread, event.sequence, event.WhichOneof("what")) for event in events]


def lose(machine: Driven, other: Driven, opened: Watch) -> list[StatewardError]:
    """Another machine takes the thread, and this one finds out. The watch reads when the copy has just been set aside;
    returns what it raised."""
    raised: list[StatewardError] = []
    set_aside = machine.archive.state.orphans.set_aside

    def aside(*arguments: Any) -> Any:
        result = set_aside(*arguments)
        try:
            assert not read(machine, opened)
            assert not opened.is_over, "the watch ended without a word"
        except StatewardError as error:
            raised.append(error)
        return result

    machine.archive.state.orphans.set_aside = aside  # type: ignore[method-assign]
    other.archive.own("default", "job", take_over=True)
    other.put(append())
    other.ship_now()
    with suppress(StatewardError):
        machine.ship_now()
    machine.archive.state.orphans.set_aside = set_aside  # type: ignore[method-assign]
    assert len(raised) == 1
    return raised


@pytest.mark.parametrize("earlier", ["local", "orphan"])
@pytest.mark.parametrize("is_told", [True, False])
def test_an_earlier_deletion_under_the_uid_is_not_the_end(driven: Town, earlier: str, *, is_told: bool) -> None:
    """Of this disk's copy, or of an orphan: when the thread is taken over, the watch is FENCED if it told what is no
    history, and else goes on in the new copy."""
    here, other = driven.machine("here"), driven.machine("other")
    here.put(append(after=0))
    here.ship_now()
    if earlier == "local":
        here.delete(DeleteThreadRequest(namespace="default", thread="job", local_only=True))
    else:
        opened = watch(here)
        here.put(append())
        lose(here, other, opened)
        here.delete(DeleteThreadRequest(namespace="default", thread="job@@1"))
        here.archive.own("default", "job", take_over=True)
    for _ in range(3):
        here.put(append())
    here.ship_now()
    opened = watch(here)
    at = opened.cursor
    here.put(append())
    if is_told:
        assert [event.sequence for event in read(here, opened)] == [at + 1]
    (error,) = lose(here, other, opened)
    if is_told:
        assert isinstance(error, Fenced)
        assert (error.metadata["orphan"][:5], error.metadata["common_sequence"]) == ("job@@", str(at))
        return
    assert isinstance(error, ThreadNotFound), "the service asks the archive then"
    here.state()
    assert told(read(here, opened)) == [("job", at + 1, "checkpoint")]


def test_a_copy_that_came_back_is_watched_on(driven: Town) -> None:
    """Deleted here and fetched again between two reads: no event is lost, told twice, or called fenced."""
    here = driven.machine("here")
    here.put(append(after=0))
    here.ship_now()
    opened = watch(here)
    delete_here(here)
    here.put(append())
    assert told(read(here, opened)) == [("job", 2, "checkpoint")]


def test_a_copy_that_came_back_without_what_was_told_is_fenced(driven: Town) -> None:
    """What was not archived went with the copy: a watch that told it must not go on as if it were history."""
    here = driven.machine("here")
    here.put(append(after=0))
    here.ship_now()
    here.put(append())
    opened = watch(here)
    delete_here(here)
    here.put(append())
    here.put(append())
    with pytest.raises(Fenced):
        read(here, opened)


def test_an_orphan_is_told_of_its_own_deletion(driven: Town) -> None:
    """Not of that of its thread, which has the same uid."""
    here, other = driven.machine("here"), driven.machine("other")
    here.put(append(after=0))
    here.ship_now()
    opened = watch(here)
    here.put(append())
    lose(here, other, opened)
    aside = watch(here, "job@@1")
    other.archive.detach("default", "job")
    here.put(append())
    assert here.delete(DeleteThreadRequest(namespace="default", thread="job")).receipt.uid
    assert told(read(here, aside)) == [("job@@1", 3, "deleted")]


def test_a_namespace_is_told_each_entry_once_through_a_takeover(driven: Town) -> None:
    """What both lines share is told before or after the copy is set aside, as entries of the thread; never twice."""
    here, other = driven.machine("here"), driven.machine("other")
    for _ in range(5):
        here.put(append())
    here.ship_now()
    quick, slow = watch(here, "-"), watch(here, "-")
    events = read(here, quick)
    opened = watch(here)
    here.put(append())
    events += read(here, quick)
    lose(here, other, opened)
    here.state()
    events += read(here, quick)
    shared = [("job", sequence, "checkpoint") for sequence in range(1, 6)]
    assert told(events) == [*shared, ("job", 6, "checkpoint"), ("job", 6, "checkpoint")]
    late = read(here, slow)
    assert told(late) == [*shared, ("job@@1", 6, "checkpoint"), ("job", 6, "checkpoint")]
    assert {event.checkpoint.thread for event in late[:5]} == {"job"}


def test_a_namespace_is_told_of_a_line_that_parted_earlier(tmp_path: Path) -> None:
    """An orphan shares entries with a line that the bucket lost since: those of the new line are told all the same."""
    with twins(tmp_path) as pair:
        here, other = pair.a, pair.b
        here.put("1")
        here.archive_all()
        pair.back_up()
        here.put("2")
        here.put("3")
        here.archive_all()
        here.put("lost")
        other.take()
        other.put("4")
        other.archive_all()
        with suppress(StatewardError):
            here.archive_all()
        assert here.words() == ["1", "2", "3", "4"]
        opened = here.store.watcher.open(WatchRequest(namespace=NAMESPACE, thread="-"))
        pair.set_back()
        third = pair.machine("third")
        third.take()
        for word in ("5", "6", "7"):
            third.put(word)
        third.archive_all()
        pair.wait_for_lease()
        assert here.words() == ["1", "5", "6", "7"]
        assert len(here.orphans()) == 2
        found = [event for event in read(here, opened) if event.thread == NAME]
        assert [event.sequence for event in found] == [2, 3, 4]


def test_older_history_that_is_fetched_later_is_no_event(driven: Town) -> None:
    """A reader of an old version fetches entries below those that were told: in each thread the sequences rise."""
    owner, reader = driven.machine("owner"), driven.machine("reader")
    for number in range(SAVES):
        owner.put(append(bytes([number]) * BYTES + number.to_bytes(4, "big") * (BYTES // 4)))
        if number % 10 == 9:
            owner.ship_now()
    reader.state()
    opened = watch(reader, "-")
    events = read(reader, opened)
    assert 0 < len(events) < SAVES, "the reader has only the newest part"
    reader.archive.complete("default", "job")
    with reader.store.context.engine.read() as txn:
        found = reader.store.threads.find(txn, "default", "job")
    assert found is not None
    assert found.floor_sequence == 0
    owner.put(append())
    owner.ship_now()
    driven.time.sleep(60)
    reader.state()
    events += read(reader, opened)
    sequences = [event.sequence for event in events]
    assert sequences == list(range(sequences[0], SAVES + 2))


def test_a_copy_deleted_on_this_disk_does_not_end_a_watch(machines: Fleet) -> None:
    """The daemon asks the archive, and goes on after its last event. A watch of the namespace is told the cause."""
    machine = machines.machine("a")
    client = machines.client(machine)
    write_steps(client, "t", 3, archived=True)
    stream, all_threads = watch_remotely(machine), client.watch()
    assert not next(stream).events
    client.thread("t").delete(local_only=True)
    write_steps(client, "t", 1)
    found = next(stream).events
    assert [(event.sequence, event.WhichOneof("what")) for event in found] == [(4, "checkpoint")]
    event = next(all_threads)
    assert (event.kind, event.what, event.sequence) == ("deleted", "local", 4)
    client.thread("t").delete()
    rest = [event for answer in stream for event in answer.events]
    assert [(event.WhichOneof("what"), event.deleted.cause) for event in rest] == [("deleted", "request")]
    stream.cancel()
    all_threads.close()
