"""The danger: a machine is emptied and something stays behind, or nobody else may go on at once."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

import pytest
from tests.daemon.process import Fleet, eventually, write_steps

from stateward import Client, errors


def test_the_next_machine_goes_on_at_once(machines: Fleet) -> None:
    """After a drain no thread is dirty, and another sidecar writes without waiting for the lease of an hour."""
    first = machines.machine("first", archive_interval="600", archive_lease="3600")
    client = machines.client(first, retry_timeout=0.0)
    for number in range(8):
        write_steps(client, f"job-{number}", 2)
    result = client.drain(grace=20)
    assert (result.detached_threads, result.dirty_threads, result.ready) == (8, 0, False)
    with pytest.raises(errors.ShuttingDown, match="draining"):
        write_steps(client, "job-3", 1)
    assert client.thread("job-3").hydrate().slots["count"] == 2
    second = machines.client(machines.machine("second", archive_lease="3600"))
    for number in range(8):
        write_steps(second, f"job-{number}", 1)
    assert client.thread("job-3").hydrate().slots["count"] == 3
    again = client.drain(grace=20)
    assert (again.detached_threads, again.dirty_threads) == (0, 0)
    assert client.drain(undo=True).ready
    with pytest.raises(errors.NotOwner):
        write_steps(client, "job-3", 1)
    write_steps(client, "new", 1)


def test_writers_in_full_run_lose_nothing(machines: Fleet) -> None:
    """Saves race a drain: each that was answered is in the archive when the drain says that nothing is dirty."""
    first = machines.machine("first", archive_interval="600")
    answered: dict[str, int] = {}
    begun = threading.Barrier(5)

    def write(client: Client, name: str) -> None:
        begun.wait()
        with suppress(errors.ShuttingDown):
            while True:
                write_steps(client, name, 1)
                answered[name] = answered.get(name, 0) + 1

    clients = [machines.client(first, retry_timeout=0.0) for _ in range(4)]
    writers = [threading.Thread(target=write, args=(each, f"job-{at}")) for at, each in enumerate(clients)]
    for each in writers:
        each.start()
    begun.wait()
    eventually(lambda: len(answered) == 4)
    result = machines.client(first).drain(grace=20)
    for each in writers:
        each.join()
    assert (result.detached_threads, result.dirty_threads) == (4, 0)
    first.kill()
    second = machines.client(machines.machine("second"))
    assert {name: second.thread(name).hydrate().slots["count"] for name in answered} == answered


def test_a_bucket_that_is_away_is_not_called_empty(machines: Fleet) -> None:
    """What could not be shipped is counted, reads answer meanwhile, and draining again goes on when it is back."""
    first = machines.machine("first", archive_interval="600")
    client = machines.client(first)
    write_steps(client, "job", 1, archived=True)
    write_steps(client, "job", 2)  # wait for the interval
    aside = machines.bucket.with_name("aside")
    machines.bucket.rename(aside)
    machines.bucket.symlink_to(machines.bucket)
    begun = time.monotonic()
    assert client.drain(grace=0.5).dirty_threads == 1
    assert client.thread("job").hydrate().slots["count"] == 3
    assert time.monotonic() - begun < 12
    machines.bucket.unlink()
    aside.rename(machines.bucket)
    assert client.drain(grace=20).dirty_threads == 0
    assert client.thread("job").hydrate().slots["count"] == 3


def test_what_an_earlier_process_left_is_shipped_too(machines: Fleet) -> None:
    """Threads that nobody touched since a crash are on this disk alone as well."""
    first = machines.machine("first", archive_interval="600")
    write_steps(machines.client(first), "job", 3)
    write_steps(machines.client(first), "other", 3)
    first.kill()
    first.start()
    client = machines.client(first)
    assert client.drain(grace=20).dirty_threads == 0
    first.kill()
    second = machines.client(machines.machine("second"))
    assert [second.thread(name).hydrate().slots["count"] for name in ("job", "other")] == [3, 3]


def test_an_open_writer_is_refused_too(machines: Fleet) -> None:
    """A stream that was open before the drain takes no further save, and what it was told is saved has been shipped."""
    first = machines.machine("first", archive_interval="600")
    client = machines.client(first, retry_timeout=0.0)
    thread = client.thread("job")
    state = thread.hydrate()
    with suppress(errors.ShuttingDown), thread.writer() as writer:
        state.slots["n"] = 1
        writer.save(state)
        assert client.drain(grace=20).dirty_threads == 0
        state.slots["n"] = 2
        with pytest.raises(errors.ShuttingDown, match="draining"):
            writer.save(state)
    assert thread.hydrate().slots["n"] == 1  # through HEAD, as the thread was given up
