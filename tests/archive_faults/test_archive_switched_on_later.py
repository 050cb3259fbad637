"""The danger: data that were made without the archive, before it or in between, and are taken for something else."""

from __future__ import annotations

from typing import Any

import pytest
from tests.daemon.process import Fleet, eventually, write_steps

from stateward import Client, Durability
from stateward.testing import Daemon

ARCHIVE_FLAGS = ("archive", "archive_interval", "archive_lease")


def switch_off(daemon: Daemon, *, graceful: bool = False) -> dict[str, Any]:
    """Starts a daemon again without its archive; returns what it takes to switch it on."""
    if graceful:
        daemon.stop()
    else:
        daemon.kill()
    flags = {name: daemon._flags.pop(name) for name in ARCHIVE_FLAGS}
    daemon.start()
    return flags


def switch_on(daemon: Daemon, flags: dict[str, Any]) -> None:
    daemon.stop()
    daemon._flags.update(flags)
    daemon.start()


def names(client: Client) -> list[str]:
    return sorted(found.name for found in client.threads())


@pytest.mark.slow
def test_threads_from_before(fleet_on_disk: Fleet) -> None:
    """All threads of a data directory are shipped once it gets an archive, also those that nobody touches."""
    daemon = fleet_on_disk.machine_on("first")
    flags = {name: daemon._flags.pop(name) for name in ARCHIVE_FLAGS}
    daemon.stop()
    for path in sorted(daemon.data_dir.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    fleet_on_disk.bucket.rename(fleet_on_disk.bucket.with_name("unused"))
    daemon.start()
    client = fleet_on_disk.client(daemon)
    for number in range(8):
        write_steps(client, f"job-{number}", 3 + number, size=3000)
    switch_on(daemon, flags)
    client = fleet_on_disk.client(daemon)
    eventually(lambda: client.stats().archive.heads >= 16)
    daemon.kill()
    other = fleet_on_disk.client(fleet_on_disk.machine_on("other"))
    for number in range(8):
        state = other.thread(f"job-{number}").hydrate(must_exist=True)
        assert (state.slots["count"], len(state.logs["messages"])) == (3 + number, 3 + number)


def test_switched_off_and_on(fleet_on_disk: Fleet) -> None:
    """What was committed without the archive is shipped when it is back, also where nobody touches it."""
    daemon = fleet_on_disk.machine_on("first")
    write_steps(fleet_on_disk.client(daemon), "job", 2, archived=True)
    flags = switch_off(daemon)
    client = fleet_on_disk.client(daemon)
    write_steps(client, "job", 3)
    write_steps(client, "new", 4)
    switch_on(daemon, flags)
    other = fleet_on_disk.client(fleet_on_disk.machine_on("other"))
    eventually(lambda: other.thread("new").hydrate().version == 4)
    eventually(lambda: other.thread("job").hydrate().version == 5)


def test_one_name_for_two_threads(fleet_on_disk: Fleet) -> None:
    """A thread made without the archive, whose name another sidecar's thread has there, is set aside and not lost."""
    daemon = fleet_on_disk.machine_on("first")
    write_steps(fleet_on_disk.client(daemon), "other", 2, archived=True)
    flags = switch_off(daemon)
    write_steps(fleet_on_disk.client(daemon), "job", 5)
    second = fleet_on_disk.client(fleet_on_disk.machine_on("second"))
    write_steps(second, "job", 2, archived=True)
    switch_on(daemon, flags)
    client = fleet_on_disk.client(daemon)
    eventually(lambda: client.stats().archive.requests > 3)
    state = client.thread("job").hydrate()
    if state.slots["count"] == 5:  # not compared yet: a write is
        second.thread("job").archive.detach()
        state.slots["touched"] = True
        try:
            client.thread("job").save(state, durability=Durability.ARCHIVED)
        except Exception as error:  # noqa: BLE001  (any refusal will do: what counts is what is left)
            print(error)
    eventually(lambda: any(name.startswith("job@") for name in names(client)))
    orphan = next(name for name in names(client) if name.startswith("job@"))
    kept = client.thread(orphan).hydrate()
    assert (kept.slots["count"], len(kept.logs["messages"])) == (5, 5)
    assert client.thread("job").hydrate().slots["count"] == 2
    assert client.thread(orphan).fork("rescued").hydrate().slots["count"] == 5
