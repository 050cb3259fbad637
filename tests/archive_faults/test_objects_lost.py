"""The danger: one object is lost or damaged, and takes with it what has nothing to do with it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.daemon.process import Fleet, write_steps

from stateward import Client, errors

LAST = 45


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def remove(path: Path) -> None:
    path.unlink()


def objects(fleet: Fleet, ending: str) -> list[Path]:
    """In the order in which they were made."""
    found = (fleet.bucket / key for key in fleet.objects() if key.endswith(ending))
    return sorted(found, key=lambda path: int(path.stem.rpartition("-")[2]))


def outcome(client: Client, version: int | None = None) -> str:
    """What comes of a hydrate: "whole", or the class of the error."""
    try:
        state = client.thread("job").hydrate(at=version, must_exist=True)
    except errors.StatewardError as error:
        return type(error).__name__
    assert len(state.logs["messages"]) == state.slots["count"] == (version or LAST)
    return "whole"


def write_long(fleet: Fleet) -> Client:
    """A thread with packs, snapshots, an index and an image, and one beside it."""
    client = fleet.client(fleet.machine_on("first"), retry_timeout=0)
    write_steps(client, "beside", 2, archived=True)
    write_steps(client, "job", LAST - 1, size=24_000, archived=True)
    for number in range(140):
        client.thread("job").tags.set(os.urandom(100).hex(), 1 + number % 40)
    write_steps(client, "job", 1, size=24_000, archived=True)
    return client


def check_owner_goes_on(client: Client) -> None:
    """What is on a disk needs no object: both levels are promised as ever."""
    write_steps(client, "job", 1)
    write_steps(client, "job", 1, archived=True)


@pytest.mark.slow
@pytest.mark.parametrize("harm", [remove, flip])
@pytest.mark.parametrize("kind", [".pack", ".index", ".snap"])
def test_history_objects(fleet_on_disk: Fleet, harm: Callable[[Path], None], kind: str) -> None:
    """Packs or indexes of the past: each version is whole or CORRUPT, other threads and the owner go on as ever."""
    owner = write_long(fleet_on_disk)
    harmed = {path: path.read_bytes() for path in objects(fleet_on_disk, kind)}
    for path in harmed:
        harm(path)
    other = fleet_on_disk.client(fleet_on_disk.machine_on("other"), retry_timeout=0)
    past = {outcome(other, version) for version in (1, 10, 20)}
    assert past <= {"Corrupt", "whole"}
    assert "Corrupt" in past or not harmed
    assert other.thread("beside").hydrate().version == 2
    assert outcome(owner, 10) == "whole"
    for path, whole in harmed.items():
        path.unlink(missing_ok=True)
        path.write_bytes(whole)
    third = fleet_on_disk.client(fleet_on_disk.machine_on("third"), retry_timeout=0)
    for client in (third, other):  # also where it was missed
        assert {outcome(client, version) for version in (1, 10, 20, LAST)} == {"whole"}
    check_owner_goes_on(owner)


@pytest.mark.slow
def test_objects_of_the_head(fleet_on_disk: Fleet) -> None:
    """The image or the newest snapshot: CORRUPT for reading and taking, never an older state; then whole again."""
    owner = write_long(fleet_on_disk)
    other = fleet_on_disk.client(fleet_on_disk.machine_on("other"), retry_timeout=0)
    images, snapshots = objects(fleet_on_disk, ".image"), objects(fleet_on_disk, ".snap")
    for path in (images[-1], snapshots[-1]):
        whole = path.read_bytes()
        for harm in (remove, flip):
            harm(path)
            assert outcome(other) == "Corrupt"
            with pytest.raises(errors.Corrupt):
                other.thread("job").archive.attach(take_over=True)
            assert other.thread("beside").hydrate().version == 2
            path.unlink(missing_ok=True)
            path.write_bytes(whole)
    assert outcome(other) == "whole"
    check_owner_goes_on(owner)


def test_key_objects(fleet_on_disk: Fleet) -> None:
    """A thread's key removed, swapped, cut or flipped: typed errors elsewhere, the owner and other threads go on."""
    owner = fleet_on_disk.client(fleet_on_disk.machine_on("first"), retry_timeout=0)
    where: dict[str, Path] = {}
    for name in ("removed", "swapped", "cut", "flipped", "sound"):
        write_steps(owner, name, 2, archived=True)
        keys = {fleet_on_disk.bucket / key for key in fleet_on_disk.objects() if "_keys/t/" in key}
        (where[name],) = keys - set(where.values())
    whole = {name: path.read_bytes() for name, path in where.items()}
    where["removed"].unlink()
    where["swapped"].write_bytes(whole["sound"])
    where["cut"].write_bytes(whole["cut"][:20])
    flip(where["flipped"])
    other = fleet_on_disk.client(fleet_on_disk.machine_on("other"), retry_timeout=0)
    for name in ("removed", "swapped", "cut", "flipped"):
        with pytest.raises((errors.KeyUnavailable, errors.Corrupt)):
            other.thread(name).hydrate()
        with pytest.raises((errors.KeyUnavailable, errors.Corrupt)):
            other.thread(name).archive.attach(take_over=True)
    assert other.thread("sound").hydrate().version == 2
    for name, data in whole.items():
        write_steps(owner, name, 1, archived=True)
        where[name].write_bytes(data)
        assert other.thread(name).hydrate().slots["count"] == 3
