"""The danger: a disk that is older than the archive, that has a twin, or whose daemon died before it wrote it down."""

from __future__ import annotations

import shutil

import pytest
from tests.archive_faults.gate import Gate
from tests.daemon.process import Fleet, eventually, until_written_down, write_steps

from stateward import Client, Durability, errors
from stateward.testing import Daemon


def names(client: Client) -> list[str]:
    return sorted(found.name for found in client.threads())


def count(client: Client, thread: str = "job") -> int:
    return int(client.thread(thread).hydrate().slots["count"])


def set_back(daemon: Daemon, copy: str) -> None:
    """Puts an older copy of the disk in the place of a daemon's that does not run."""
    shutil.rmtree(daemon.data_dir)
    shutil.copytree(daemon.data_dir.with_name(copy), daemon.data_dir)


def copy_disk(daemon: Daemon, copy: str) -> None:
    shutil.copytree(daemon.data_dir, daemon.data_dir.with_name(copy))


def test_kill_right_after_the_first_ship(fleet_on_disk: Fleet) -> None:
    """A process that dies before it wrote down that it took its own thread again loses nothing to an orphan."""
    daemon = fleet_on_disk.machine_on("first", archive_interval="600")
    write_steps(fleet_on_disk.client(daemon), "job", 2, archived=True)
    for _ in range(2):
        daemon.kill()
        fleet_on_disk.start(daemon)
        client = fleet_on_disk.client(daemon)
        write_steps(client, "job", 1, archived=True)
        write_steps(client, "job", 2)
    daemon.kill()
    fleet_on_disk.start(daemon)
    client = fleet_on_disk.client(daemon)
    assert count(client) == 8
    assert names(client) == ["job"]


def test_older_copy_pulls_forward(fleet_on_disk: Fleet) -> None:
    """A disk that is set back finds what it lacks in the archive, and goes on from there, without an orphan."""
    daemon = fleet_on_disk.machine_on("first")
    client = fleet_on_disk.client(daemon)
    write_steps(client, "job", 5, archived=True)
    copy_disk(daemon, "early")
    write_steps(client, "job", 10, archived=True)
    daemon.kill()
    set_back(daemon, "early")
    fleet_on_disk.start(daemon)
    client = fleet_on_disk.client(daemon)
    write_steps(client, "job", 1, archived=True)
    assert count(client) == 16
    daemon.kill()  # once more, now over several processes
    set_back(daemon, "early")
    fleet_on_disk.start(daemon)
    client = fleet_on_disk.client(daemon)
    assert count(client) == 16
    write_steps(client, "job", 1, archived=True)
    assert names(client) == ["job"]
    assert count(fleet_on_disk.client(fleet_on_disk.machine_on("other"))) == 17


@pytest.mark.parametrize("lives_on", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_older_copy_goes_on_without_the_bucket(fleet_on_s3: Fleet, gate: Gate, lives_on: bool) -> None:
    """What a disk that is set back commits while the bucket is away is set aside; the thread follows the archive."""
    daemon = fleet_on_s3.machine_on("first", gate.url)
    client = fleet_on_s3.client(daemon)
    write_steps(client, "job", 5, archived=True)
    until_written_down(daemon)
    copy_disk(daemon, "early")
    if not lives_on:
        daemon.kill()
        fleet_on_s3.start(daemon)
        client = fleet_on_s3.client(daemon)
    write_steps(client, "job", 10, archived=True)
    daemon.kill()
    set_back(daemon, "early")
    gate.close()
    fleet_on_s3.start(daemon)
    client = fleet_on_s3.client(daemon)
    state = client.thread("job").hydrate()
    assert state.slots["count"] == 5
    state.slots["mine"] = True
    client.thread("job").save(state)
    gate.open()
    eventually(lambda: names(client) != ["job"])
    orphan = next(name for name in names(client) if name != "job")
    assert client.thread(orphan).hydrate().slots["mine"] is True
    assert count(client) == 15
    # The process that wrote the rest is not known to this disk, and may live.
    client.thread("job").archive.attach(wait=5)
    write_steps(client, "job", 1, archived=True)


def test_cloned_disk(fleet_on_disk: Fleet) -> None:
    """Of two daemons on copies of one disk, under one owner id, each answer ARCHIVED is in one history for good."""
    first = fleet_on_disk.machine_on("same")
    write_steps(fleet_on_disk.client(first), "job", 3, archived=True)
    first.kill()
    second = fleet_on_disk.machine_on("same")
    second.kill()
    shutil.rmtree(second.data_dir)
    shutil.copytree(first.data_dir, second.data_dir)
    for daemon in (first, second):
        fleet_on_disk.start(daemon)
    clients = [fleet_on_disk.client(daemon, retry_timeout=0) for daemon in (first, second)]
    states = [client.thread("job").hydrate() for client in clients]
    archived: list[str] = []
    refused = 0
    for step in range(12):
        who = step % 2
        try:
            states[who].slots[f"{who}-{step}"] = True
            clients[who].thread("job").save(states[who], durability=Durability.ARCHIVED)
            archived.append(f"{who}-{step}")
        except (errors.OwnershipLost, errors.VersionMismatch):
            refused += 1
            states[who] = clients[who].thread("job").hydrate()
    assert refused > 0
    other = fleet_on_disk.client(fleet_on_disk.machine_on("other"))
    final = other.thread("job").hydrate()
    assert [name for name in archived if name not in final.slots] == []
