"""The danger: a takeover loses a save that was answered as archived, or two machines write one thread and both believe
it is theirs."""

from __future__ import annotations

import pytest
from tests.daemon.process import Fleet, eventually, write_steps

from stateward import errors


def test_a_lost_machine_costs_nothing_that_was_archived(machines: Fleet) -> None:
    """Everything that was answered ARCHIVED is on another machine, at once to read and after the lease to write."""
    first = machines.machine("first")
    digest = write_steps(machines.client(first), "job", 30, archived=True)
    first.kill()
    second = machines.client(machines.machine("second"))
    state = second.thread("job").hydrate()
    assert (state.slots["count"], len(state.logs["messages"]), state.digest) == (30, 30, digest)
    with pytest.raises(errors.NotOwner):
        second.thread("job").archive.attach()
    write_steps(second, "job", 5)
    assert second.thread("job").hydrate().slots["count"] == 35


def test_an_idle_owner_that_was_replaced_is_fenced(machines: Fleet) -> None:
    """What it still commits is set aside, readable under a name of its own, and the live name follows the archive."""
    first = machines.machine("first", archive_check="600")
    old = machines.client(first, retry_timeout=0)
    write_steps(old, "job", 3, archived=True)
    second = machines.client(machines.machine("second"))
    second.thread("job").archive.attach(take_over=True)
    write_steps(second, "job", 2, archived=True)
    state = old.thread("job").hydrate()  # it does not know yet, and is not asked to
    state.slots["mine"] = True
    old.thread("job").save(state)

    def orphan() -> list[str]:
        return [found.name for found in old.threads() if found.name != "job"]

    eventually(orphan)
    (name,) = orphan()
    assert name.startswith("job@")
    kept = old.thread(name).hydrate()
    assert kept.slots["mine"] is True
    assert kept.slots["count"] == 3
    live = old.thread("job").hydrate()
    assert live.slots["count"] == 5
    with pytest.raises((errors.Fenced, errors.NotOwner)):
        old.thread("job").save(live)
    copy = old.thread(name).fork("rescued")
    assert copy.hydrate().slots["mine"] is True


def test_a_restart_goes_on_where_it_was(machines: Fleet) -> None:
    """After kill -9 the same disk ships what it had not shipped, and no other machine has to wait for it."""
    first = machines.machine("first", archive_interval="600")
    client = machines.client(first)
    write_steps(client, "job", 2, archived=True)
    write_steps(client, "job", 3)
    first.kill()
    first.start()
    client = machines.client(first)
    eventually(lambda: client.stats().archive.dirty_threads == 0)
    other = machines.client(machines.machine("other"))
    assert other.thread("job").hydrate().slots["count"] == 5


def test_a_graceful_stop_gives_everything_up(machines: Fleet) -> None:
    """The next machine writes at once, and finds what was only committed."""
    first = machines.machine("first", archive_interval="600")
    write_steps(machines.client(first), "job", 4)
    assert first.stop() == 0
    second = machines.client(machines.machine("second"))
    write_steps(second, "job", 1)
    assert second.thread("job").hydrate().slots["count"] == 5


def test_two_machines_cannot_both_make_a_thread(machines: Fleet) -> None:
    """Of two creations under one name one is refused, before anything is answered."""
    first = machines.client(machines.machine("first"))
    second = machines.client(machines.machine("second"), retry_timeout=0)
    write_steps(first, "job", 1)
    state = second.thread("job").hydrate()
    state.slots["x"] = 1
    with pytest.raises(errors.NotOwner):
        second.thread("job").save(state)


def test_a_long_history_comes_when_it_is_asked_for(machines: Fleet) -> None:
    """Another machine reads the head with little, and older versions all the same."""
    first = machines.machine("first")
    client = machines.client(first)
    write_steps(client, "job", 400, size=1200)
    expected = client.thread("job").hydrate(at=17)
    digests = {item.checkpoint.version: item.checkpoint.digest for item in client.thread("job").history()}
    first.stop()
    second = machines.client(machines.machine("second"))
    state = second.thread("job").hydrate()
    assert state.slots["count"] == 400
    assert second.thread("job").hydrate(at=17).logs["messages"] == expected.logs["messages"]
    assert {item.checkpoint.version: item.checkpoint.digest for item in second.thread("job").history()} == digests
    write_steps(second, "job", 50, size=1200)
    with second.verify() as progress:
        assert [item.finding for item in progress if item.finding is not None] == []


def test_a_deleted_thread_stays_deleted(machines: Fleet) -> None:
    """Another machine finds nothing, the old owner forgets its copy, and the name can be used again."""
    first = machines.machine("first")
    client = machines.client(first)
    write_steps(client, "job", 5, archived=True)
    second = machines.client(machines.machine("second"))
    assert second.thread("job").hydrate().slots["count"] == 5
    client.thread("job").delete()
    assert second.thread("job").hydrate().version == 0
    write_steps(client, "job", 2, archived=True)
    assert second.thread("job").hydrate().slots["count"] == 2


def test_a_watch_ends_where_history_parts(machines: Fleet) -> None:
    """Whoever watched the old owner is told that what came last is no history, and from where to go on."""
    # The old owner ships nothing before it is asked to, and so learns nothing before it has written.
    first = machines.machine("first", archive_interval="600", archive_lease="600")
    old, new = machines.client(first), machines.client(machines.machine("second"))
    write_steps(old, "job", 2, archived=True)
    state = old.thread("job").hydrate()
    seen: list[int] = []
    with old.thread("job").watch() as events:
        new.thread("job").archive.attach(take_over=True)
        write_steps(new, "job", 1, archived=True)
        state.slots["mine"] = True
        old.thread("job").save(state)
        with pytest.raises(errors.Fenced):
            old.thread("job").archive.wait(3)
        with pytest.raises(errors.Fenced) as caught:
            seen.extend(event.sequence for event in events)
    assert seen == [3]
    assert caught.value.metadata["common_sequence"] == "2"


def test_what_was_deleted_here_only_comes_back_whole(machines: Fleet) -> None:
    """Asked for while its old rows are still being removed: their end must not take the new copy's key."""
    first = machines.machine("first")
    client = machines.client(first)
    write_steps(client, "job", 700, archived=False)
    client.thread("job").archive.wait(client.thread("job").info().sequence)
    for _ in range(3):
        assert client.thread("job").delete(local_only=True)
        assert client.thread("job").hydrate().slots["count"] >= 700
        write_steps(client, "job", 1, archived=True)
    first.stop()
    first.start()
    client = machines.client(first)
    assert client.thread("job").hydrate().slots["count"] == 703
    write_steps(client, "job", 1)
    client.thread("job").delete()
    assert client.thread("job").hydrate().version == 0
