"""The danger: a bucket that does not answer for long, and an agent that is stopped, lied to, or told to start anew."""

from __future__ import annotations

import shutil
import time

import pytest
from tests.archive_faults.gate import Gate
from tests.daemon.process import PATIENCE_S, Fleet, eventually, write_steps

from stateward import Client, Durability, errors


def until_away(client: Client) -> None:
    """Waits until the daemon has known for long enough that its bucket is away."""
    eventually(lambda: client.stats().archive.away)
    time.sleep(PATIENCE_S + 0.2)


def test_commits_go_on_and_everything_is_shipped_afterwards(fleet_on_s3: Fleet, gate: Gate) -> None:
    """COMMITTED is answered all the time, ARCHIVED is first not reached and then refused with nothing written."""
    daemon = fleet_on_s3.machine_on("first", gate.url)
    client = fleet_on_s3.client(daemon, call_timeout=1.5, retry_timeout=0)
    write_steps(client, "job", 2, archived=True)
    gate.close()
    state = client.thread("job").hydrate()
    state.slots["count"] = 3
    with pytest.raises(errors.NotArchivedYet):
        client.thread("job").save(state, durability=Durability.ARCHIVED)
    until_away(client)
    state = client.thread("job").hydrate()
    assert state.version == 3
    with pytest.raises(errors.ArchiveUnavailable):
        client.thread("job").save(state, durability=Durability.ARCHIVED)
    assert client.thread("job").hydrate().version == 3
    begun = time.monotonic()
    write_steps(client, "job", 20)
    assert time.monotonic() - begun < 15  # twenty waits for the bucket would take thirty seconds
    stats = client.stats().archive
    assert stats.away
    assert stats.error
    assert stats.lag_entries == 21
    gate.open()
    eventually(lambda: client.stats().archive.dirty_threads == 0)
    daemon.kill()
    other = fleet_on_s3.client(fleet_on_s3.machine_on("other", gate.url))
    assert other.thread("job").hydrate().version == 23


def test_unknown_is_not_new(fleet_on_s3: Fleet, gate: Gate) -> None:
    """Reads and writes of threads that are not on this disk say ARCHIVE_UNAVAILABLE, never "not found" or version 0."""
    client = fleet_on_s3.client(fleet_on_s3.machine_on("first", gate.url), retry_timeout=0)
    write_steps(client, "job", 2, archived=True)
    client.thread("job").archive.detach()
    other = fleet_on_s3.client(fleet_on_s3.machine_on("other", gate.url), retry_timeout=0)
    assert other.thread("job").hydrate().version == 2
    gate.close()
    for name in ("unknown", "job"):  # one that nobody made, and a copy that may be old
        with pytest.raises(errors.ArchiveUnavailable):
            other.thread(name).hydrate()
        with pytest.raises(errors.ArchiveUnavailable):
            other.thread(name).append("messages", {"text": "x"})
    gate.open()
    assert other.thread("unknown").hydrate().version == 0


def test_start_without_the_bucket(fleet_on_s3: Fleet, gate: Gate) -> None:
    """A daemon whose bucket is away starts, serves what was its own, and ships it when the bucket is back."""
    daemon = fleet_on_s3.machine_on("first", gate.url)
    write_steps(fleet_on_s3.client(daemon), "job", 2, archived=True)
    daemon.kill()
    gate.close()
    fleet_on_s3.start(daemon)
    client = fleet_on_s3.client(daemon)
    write_steps(client, "job", 3)
    assert client.thread("job").hydrate().slots["count"] == 5
    gate.open()
    eventually(lambda: client.stats().archive.dirty_threads == 0)
    write_steps(client, "job", 1, archived=True)
    assert client.stats().archive.orphans == 0


def test_archived_is_promised_again(fleet_on_s3: Fleet, gate: Gate) -> None:
    """A bucket that is back is found out, also where nothing waits to be shipped and nobody else asks for it."""
    daemon = fleet_on_s3.machine_on("first", gate.url)
    client = fleet_on_s3.client(daemon, retry_timeout=0)
    write_steps(client, "job", 2, archived=True)
    gate.close()
    with pytest.raises(errors.ArchiveUnavailable):
        client.thread("unknown").hydrate()
    until_away(client)
    gate.open()

    def is_archived() -> bool:
        try:
            write_steps(client, "job", 1, archived=True)
        except errors.ArchiveUnavailable:
            return False
        return True

    eventually(is_archived)


def test_lag_grows_while_it_is_away(fleet_on_s3: Fleet, gate: Gate) -> None:
    """Statistics say how old the oldest unarchived entry is, and how many bytes wait, also after failed ships."""
    daemon = fleet_on_s3.machine_on("first", gate.url, patience_s=0.5)
    client = fleet_on_s3.client(daemon)
    write_steps(client, "job", 2, archived=True)
    gate.close()
    write_steps(client, "job", 1)
    eventually(lambda: client.stats().archive.away)
    time.sleep(1)
    stats = client.stats().archive
    assert stats.lag_bytes > 0
    assert stats.lag is not None
    assert stats.lag.total_seconds() > 1


def test_directory_that_is_not_mounted(fleet_on_disk: Fleet) -> None:
    """An empty directory in place of the archive is an archive that is away: no thread is called rolled back for it."""
    daemon = fleet_on_disk.machine_on("first")
    client = fleet_on_disk.client(daemon)
    write_steps(client, "job", 2, archived=True)
    aside = fleet_on_disk.bucket.with_name("aside")
    fleet_on_disk.bucket.rename(aside)
    fleet_on_disk.bucket.mkdir()
    write_steps(client, "job", 3)
    eventually(lambda: client.stats().archive.error or client.stats().archive.rolled_back)
    shutil.rmtree(fleet_on_disk.bucket)
    aside.rename(fleet_on_disk.bucket)
    eventually(lambda: client.stats().archive.dirty_threads == 0)
    assert client.stats().archive.rolled_back == 0
    daemon.kill()
    other = fleet_on_disk.client(fleet_on_disk.machine_on("other"))
    assert other.thread("job").hydrate().slots["count"] == 5
