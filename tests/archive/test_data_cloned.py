"""The danger: a data directory is copied, and both copies believe that what the other one writes is theirs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.daemon.driven import LEASE_S, NAMESPACE, Driven, append
from tests.daemon.town import Town

from stateward.v1.archive_service_pb2 import RepairThreadRequest
from stateward.v1.checkpoint_service_pb2 import HydrateRequest
from stateward_sidecar.archive.fleet.repair import Repairer
from stateward_sidecar.errors import Corrupt, Fenced, NotOwner


def machine_with_a_copy(driven: Town, tmp_path: Path) -> tuple[Driven, Path]:
    """A machine with an archived version and one that is only committed, and a copy of its disk."""
    first = driven.machine("host")
    first.put(append(after=0))
    first.ship_now()
    first.put(append(b"only here", after=1))
    first.archive.schedule.write_rows(wait=True)
    first.copy_disk(tmp_path / "copy")
    return first, tmp_path / "copy"


def test_a_copy_waits_for_the_lease(driven: Town, tmp_path: Path) -> None:
    """The other one may live: it keeps its thread, and nothing that it answered is set aside."""
    first, path = machine_with_a_copy(driven, tmp_path)
    copy = driven.machine("host", path)
    assert copy.state().checkpoint.version == 2
    with pytest.raises(NotOwner) as held:
        copy.put(append(after=2))
    assert held.value.metadata["free_in_s"] == f"{LEASE_S:.1f}"
    first.put(append(after=2))
    first.ship_now()
    assert copy.state().checkpoint.version == 3
    with pytest.raises(NotOwner):
        copy.put(append(after=3))
    assert [thread.name for machine in (first, copy) for thread in machine.threads()] == ["job", "job"]


def test_moved_data_lose_nothing(driven: Town, tmp_path: Path) -> None:
    """Nobody else has them: after a lease the thread goes on, with what was never archived; then it is at home."""
    first, path = machine_with_a_copy(driven, tmp_path)
    driven.end(first)
    moved = driven.machine("host", path)
    with pytest.raises(NotOwner):
        moved.put(append(after=2))
    driven.time.sleep(LEASE_S)
    assert moved.put(append(after=2)).version == 3
    moved.ship_now()
    assert [entry.data for entry in moved.state().state.logs["m"].entries] == [b"x", b"only here", b"x"]
    assert moved.restart().put(append(after=3)).version == 4


def test_a_reboot_that_renumbers_devices(driven: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """XFS makes the id of a file system from the number of its device, so the file seems to be a copy. That costs one
    lease, once: what was never archived is there, nothing is set aside, and the thread can be read meanwhile."""
    first = driven.machine("host")
    first.put(append(after=0))
    first.ship_now()
    first.put(append(b"only here", after=1))
    first.archive.schedule.write_rows(wait=True)
    driven.end(first)
    real = os.statvfs
    other = lambda path: os.statvfs_result((*real(path), real(path).f_fsid + 1))  # noqa: E731
    monkeypatch.setattr(os, "statvfs", other)
    again = driven.machine(first.disk.owner_id, first.disk.path)
    assert again.state().checkpoint.version == 2
    with pytest.raises(NotOwner) as held:
        again.put(append(after=2))
    assert held.value.metadata["free_in_s"] == f"{LEASE_S:.1f}"
    driven.time.sleep(LEASE_S)
    assert again.put(append(after=2)).version == 3
    again.ship_now()
    assert [thread.name for thread in again.threads()] == ["job"]
    assert again.restart().put(append(after=3)).version == 4


def objects_of_two_epochs(driven: Town, tmp_path: Path) -> tuple[Path, dict[str, bytes]]:
    """A copy of a disk whose original has archived all of it, and gone on; and the packs that say so."""
    first = driven.machine("host")
    for _ in range(4):
        first.put(append(os.urandom(2000)))
    first.archive.schedule.write_rows(wait=True)
    first.copy_disk(tmp_path / "copy")
    for _ in range(2):
        first.ship_now()
        first.put(append(os.urandom(2000)))
    first.ship_now()
    objects = driven.bucket.objects
    return tmp_path / "copy", {key: data for key, data in objects.items() if key.endswith((".pack", ".index"))}


def test_damaged_objects_are_no_reason_to_set_entries_aside(driven: Town, tmp_path: Path) -> None:
    """Nobody can tell whether what is here is history: it is CORRUPT until the objects can be read, and then it is."""
    path, packs = objects_of_two_epochs(driven, tmp_path)
    copy = driven.machine("host", path)
    driven.bucket.objects.update({key: data[:-1] for key, data in packs.items()})
    for _ in range(2):
        with pytest.raises(Corrupt):
            copy.state()
        assert [thread.name for thread in copy.threads()] == ["job"]
    driven.bucket.objects.update(packs)
    assert copy.state().checkpoint.version == 6
    assert [thread.name for thread in copy.threads()] == ["job"]


def test_objects_that_are_gone_hold_nothing_up(driven: Town, tmp_path: Path) -> None:
    """What they held is nowhere but here: it is set aside, and can be read."""
    path, packs = objects_of_two_epochs(driven, tmp_path)
    copy = driven.machine("host", path)
    for key in packs:
        driven.bucket.delete(key)
    with pytest.raises(Corrupt, match="missing"):
        copy.state()
    (orphan,) = (thread.name for thread in copy.threads() if thread.name != "job")
    request = HydrateRequest(namespace=NAMESPACE, thread=orphan, max_bytes=1 << 20)
    assert copy.hydrate(request).checkpoint.version == 4


def test_a_takeover_does_not_wait(driven: Town, tmp_path: Path) -> None:
    """Who knows that the other copy is dead has the thread at once; who was wrong fences it."""
    first, path = machine_with_a_copy(driven, tmp_path)
    copy = driven.machine("host", path)
    copy.archive.own("default", "job", take_over=True)
    copy.put(append(b"by the copy", after=2))
    copy.ship_now()
    first.put(append(b"late", after=2))
    first.ship_now()
    with pytest.raises((Fenced, NotOwner)):
        first.put(append(after=3))
    assert [entry.data for entry in first.state().state.logs["m"].entries][2:] == [b"by the copy"]


def test_what_waits_for_the_archive_is_tried_again(driven: Town, tmp_path: Path) -> None:
    """Entries of moved data that nobody touches are archived once the lease is over."""
    first, path = machine_with_a_copy(driven, tmp_path)
    driven.end(first)
    moved = driven.machine("host", path)
    with pytest.raises(Exception, match="free in"):
        moved.ship_now()
    driven.time.sleep(LEASE_S)
    moved.ship_now()
    assert driven.machine("other").state().checkpoint.version == 2


def test_a_repair_waits_for_the_lease(driven: Town, tmp_path: Path) -> None:
    """HEAD names an object that is lost: it is not written anew while the other copy may live and use it."""
    first = driven.machine("host")
    for _ in range(6):
        first.put(append(os.urandom(2000)))
        first.ship_now()
    first.archive.schedule.write_rows(wait=True)
    first.copy_disk(tmp_path / "copy")
    pack = next(key for key, _ in driven.bucket.list("v1/t/") if key.endswith(".pack"))
    driven.bucket.delete(pack)
    copy = driven.machine("host", tmp_path / "copy")
    request = RepairThreadRequest(namespace="default", thread="job")
    with pytest.raises(NotOwner, match="another copy of these data may hold it"):
        Repairer(copy.archive.state).repair(request)
    driven.time.sleep(LEASE_S)
    assert Repairer(copy.archive.state).repair(request).findings
    assert copy.state().checkpoint.version == 6
