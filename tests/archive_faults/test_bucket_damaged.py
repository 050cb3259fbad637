"""The danger: the bucket is set back, loses parts or has damaged ones, and the archive believes what it sees."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.daemon.process import Fleet, eventually, until_written_down, write_steps

from stateward import Client, errors

SET_BACK = ("set back", "deleted")
DAMAGED = ("swapped", "cut", "flipped")
NAMES = (*SET_BACK, *DAMAGED, "sound")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def heads(fleet: Fleet) -> set[Path]:
    return {fleet.bucket / key for key in fleet.objects() if key.endswith("/HEAD")}


def write_threads(fleet: Fleet, client: Client) -> dict[str, Path]:
    """Two versions in a thread of each name. Returns where their HEADs are."""
    found: dict[str, Path] = {}
    for name in NAMES:
        write_steps(client, name, 2, archived=True)
        (found[name],) = heads(fleet) - set(found.values())
    return found


def damage(where: dict[str, Path], older: bytes) -> dict[str, bytes]:
    """Does to each thread's HEAD what its name says. Returns what lies there afterwards."""
    where["set back"].write_bytes(older)
    where["deleted"].unlink()
    where["swapped"].write_bytes(where["sound"].read_bytes())
    where["cut"].write_bytes(where["cut"].read_bytes()[:60])
    flip(where["flipped"])
    return lying(where)


def lying(where: dict[str, Path]) -> dict[str, bytes]:
    return {name: path.read_bytes() for name, path in where.items() if path.exists() and name != "sound"}


@pytest.mark.parametrize(
    "is_stopped", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["while it runs", "while it is stopped"]
)
def test_heads_that_are_not_what_was_written(fleet_on_disk: Fleet, is_stopped: bool) -> None:
    """COMMITTED goes on, nothing of these threads is shipped, statistics count them, and sound ones are archived."""
    daemon = fleet_on_disk.machine_on("first")
    client = fleet_on_disk.client(daemon, retry_timeout=0)
    where = write_threads(fleet_on_disk, client)
    older, whole = where["set back"].read_bytes(), {name: where[name].read_bytes() for name in DAMAGED}
    write_steps(client, "set back", 1, archived=True)
    write_steps(client, "deleted", 1, archived=True)
    if is_stopped:
        until_written_down(daemon)
        daemon.kill()
    there = damage(where, older)
    if is_stopped:
        fleet_on_disk.start(daemon)
        client = fleet_on_disk.client(daemon, retry_timeout=0)
    for name in NAMES:
        write_steps(client, name, 1 if name in SET_BACK else 2)
    eventually(lambda: client.stats().archive.rolled_back == len(SET_BACK))
    write_steps(client, "sound", 1, archived=True)
    assert lying(where) == there
    assert client.stats().archive.dirty_threads == len(SET_BACK) + len(DAMAGED)
    for name in SET_BACK + DAMAGED:
        with pytest.raises(errors.NotArchivedYet):
            client.thread(name).archive.wait(client.thread(name).info().sequence, timeout=0.3)
        assert client.thread(name).hydrate().slots["count"] == 4
    other = fleet_on_disk.client(fleet_on_disk.machine_on("other"), retry_timeout=0)
    for name in DAMAGED:
        with pytest.raises(errors.Corrupt):
            other.thread(name).hydrate()
        with pytest.raises(errors.Corrupt):
            other.thread(name).append("messages", {})
    assert other.thread("set back").hydrate().slots["count"] == 2  # it cannot know better
    assert other.thread("sound").hydrate().slots["count"] == 5
    for name in DAMAGED:  # put right by whoever did it: nothing else is needed
        where[name].write_bytes(whole[name])
    eventually(lambda: client.stats().archive.dirty_threads == len(SET_BACK))
    for name in DAMAGED:
        assert other.thread(name).hydrate().slots["count"] == 4


def test_archived_is_refused_at_once(fleet_on_disk: Fleet) -> None:
    """Who finds out is told COMMITTED without waiting; from then on ARCHIVED is refused before anything is written."""
    client = fleet_on_disk.client(fleet_on_disk.machine_on("first"), call_timeout=20)
    write_steps(client, "job", 2, archived=True)
    (head,) = heads(fleet_on_disk)
    head.unlink()
    begun = time.monotonic()
    with pytest.raises(errors.NotArchivedYet) as late:
        write_steps(client, "job", 1, archived=True)
    with pytest.raises(errors.NotArchivedYet):
        client.thread("job").archive.wait(late.value.checkpoint)
    with pytest.raises(errors.Corrupt, match="repair"):
        write_steps(client, "job", 1, archived=True)
    with pytest.raises(errors.Corrupt, match="repair"):
        client.thread("job").archive.detach()
    assert time.monotonic() - begun < 10
    write_steps(client, "job", 1)
    assert client.thread("job").hydrate().version == 4
    client.archive.repair("job")
    write_steps(client, "job", 1, archived=True)
