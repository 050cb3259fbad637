"""The danger: a missing or changed object in the bucket is not named, or hides what else is wrong, until somebody needs
it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from tests.daemon.process import Fleet, eventually, write_long, write_steps

from stateward import Client, errors
from stateward.cli.show.archive_facts import archive_facts
from stateward.testing import Daemon


@pytest.fixture
def busy(machines: Fleet) -> tuple[Daemon, Client]:
    """A sidecar with a long thread, whose entries are in packs and snapshots, and two short ones."""
    daemon = machines.machine("first")
    client = machines.client(daemon)
    write_long(client, "long")
    for name in ("short", "other"):
        write_steps(client, name, 3, archived=True)
    write_steps(client, "gone", 3, archived=True)
    client.thread("gone").delete()
    return daemon, client


def objects(machines: Fleet, ending: str) -> list[Path]:
    """By age."""
    found = (machines.bucket / key for key in machines.objects() if key.endswith(ending))
    return sorted(found, key=lambda path: int(path.stem.rpartition("-")[2]))


def findings(client: Client, thread: str | None = None, percent: float = 0) -> list[tuple[str, str | None, str]]:
    steps = list(client.archive.verify(thread, data_percent=percent))
    return [(step.finding.reason, step.finding.thread, step.finding.message) for step in steps if step.finding]


def flip(path: Path, at: int = -20) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(bytes(data))


def test_a_sound_archive_has_no_findings(machines: Fleet, busy: tuple[Daemon, Client]) -> None:
    """Structure and all data of live threads, tombstones and threads that others wrote."""
    _, client = busy
    write_steps(machines.client(machines.machine("second")), "elsewhere", 2, archived=True)
    seen = list(client.archive.verify())

    def is_quiet() -> bool:
        """Whether nothing was put or removed meanwhile: uploads and deletions end in the background."""
        before = machines.objects().keys()
        seen[:] = list(client.archive.verify())
        return before == machines.objects().keys()

    eventually(is_quiet)
    last = seen[-1]
    assert (last.threads, last.read_bytes) == (5, 0)
    assert last.objects >= len(objects(machines, ".pack"))
    assert findings(client) == []
    assert findings(client, percent=100) == []
    stored = sum(path.stat().st_size for path in objects(machines, ".pack"))
    assert list(client.archive.verify(data_percent=100))[-1].read_bytes >= stored * 0.9


def test_a_missing_pack_is_one_finding(machines: Fleet, busy: tuple[Daemon, Client]) -> None:
    """Named with its thread and entries; the other threads are sound, and so is the rest of this one."""
    _, client = busy
    victim = named(machines, client, ".pack")
    victim.unlink()
    for percent in (0, 100):
        ((reason, thread, message),) = findings(client, percent=percent)
        assert (reason, thread) == ("CORRUPT", "long")
        assert victim.name in message
        assert "missing" in message
    assert findings(client, "short", 100) == []


def test_a_truncated_pack_is_found_without_reading(machines: Fleet, busy: tuple[Daemon, Client]) -> None:
    """Its size is not the one that was put."""
    _, client = busy
    victim = named(machines, client, ".pack")
    victim.write_bytes(victim.read_bytes()[:-1])
    ((_, thread, message),) = findings(client)
    assert thread == "long"
    assert victim.name in message


@pytest.mark.parametrize("ending", [".pack", ".snap"])
def test_a_flipped_bit_is_found_by_reading(machines: Fleet, busy: tuple[Daemon, Client], ending: str) -> None:
    """Looking alone does not see it; reading all data does, and says which version it is about."""
    _, client = busy
    flip(named(machines, client, ending))
    assert findings(client) == []
    steps = [step.finding for step in client.archive.verify(data_percent=100) if step.finding]
    assert len(steps) == 1
    assert (steps[0].reason, steps[0].thread) == ("CORRUPT", "long")
    assert steps[0].version > 0


def test_a_share_of_the_data_is_read(machines: Fleet, busy: tuple[Daemon, Client]) -> None:
    """Half of it costs more than nothing and less than all."""
    _, client = busy
    everything = list(client.archive.verify(data_percent=100))[-1].read_bytes
    shares = [list(client.archive.verify(data_percent=50))[-1].read_bytes for _ in range(6)]
    assert 0 < sum(shares) < 6 * everything


def test_a_lost_head_is_found(machines: Fleet, busy: tuple[Daemon, Client]) -> None:
    """By its objects, or where none are left, by what this disk knows."""
    _, client = busy
    for key in [key for key in machines.objects() if key.endswith("/HEAD")]:
        (machines.bucket / key).unlink()
    assert {(reason, thread) for reason, thread, _ in findings(client)} == {
        ("CORRUPT", "long"), ("CORRUPT", "short"), ("CORRUPT", "other"),
    }  # fmt: skip


def test_a_damaged_head_is_found(machines: Fleet, busy: tuple[Daemon, Client]) -> None:
    """One finding with the thread's name, and nothing more can be said of it."""
    _, client = busy
    flip(head_of(machines, client, "short"))
    ((reason, thread, _),) = findings(client, percent=100)
    assert (reason, thread) == ("CORRUPT", "short")


def test_a_destroyed_key_is_no_corruption(machines: Fleet, busy: tuple[Daemon, Client]) -> None:
    """What is there and cannot be opened is KEY_UNAVAILABLE."""
    _, client = busy
    head = head_of(machines, client, "short")
    name = head.parent.name
    for key in [key for key in machines.objects() if "_keys/t/" in key and name in key]:
        (machines.bucket / key).unlink()
    ((reason, thread, _),) = findings(client)
    assert (reason, thread) == ("KEY_UNAVAILABLE", "short")


def test_pruned_entries_are_no_hole(machines: Fleet, busy: tuple[Daemon, Client]) -> None:
    """What retention removed, here and then in the archive, is not missed."""
    _, client = busy
    client.thread("long").prune(keep_latest_per_branch=20)
    write_steps(client, "long", 40, size=1600, archived=True)
    eventually(lambda: findings(client, percent=100) == [])


def test_a_thread_that_is_not_there_is_not_verified(machines: Fleet, busy: tuple[Daemon, Client]) -> None:
    """Neither a name that never was nor a deleted one is reported as sound."""
    _, client = busy
    for name in ("never", "gone"):
        with pytest.raises(errors.ThreadNotFound):
            findings(client, name)


def test_a_thread_that_is_written_meanwhile_is_sound(machines: Fleet, busy: tuple[Daemon, Client]) -> None:
    """Another sidecar verifies a thread while its owner writes on."""
    _, client = busy
    second = machines.client(machines.machine("second"))
    for _ in range(4):
        write_steps(client, "long", 20, size=1600)
        assert findings(second, percent=30) == []


def head_of(machines: Fleet, client: Client, thread: str) -> Path:
    """Found by writing: names in the bucket say nothing. Now and then another HEAD is written at the same time."""
    changed: list[str] = []
    while len(changed) != 1:
        before = machines.objects()
        write_steps(client, thread, 1, archived=True)
        after = machines.objects()
        changed = [key for key, data in after.items() if key.endswith("/HEAD") and before.get(key) != data]
    return machines.bucket / changed[0]


def named(machines: Fleet, client: Client, ending: str) -> Path:
    """The oldest object of this kind that HEAD still needs."""
    for path in objects(machines, ending):
        data = path.read_bytes()
        path.unlink()
        is_needed = findings(client) != []
        path.write_bytes(data)
        if is_needed:
            return path
    raise AssertionError(f"no {ending} is needed")


@pytest.mark.parametrize("damage", ["missing", "cut off", "flipped"])
def test_a_bad_blob_is_found(machines: Fleet, damage: str) -> None:
    """That it is gone or cut off without reading it, that a bit flipped by reading all of it."""
    client = machines.client(machines.machine("first"))
    state = client.thread("job").hydrate()
    state.slots["picture"] = os.urandom(3 << 20)
    client.thread("job").save(state, durability="archived")
    (path,) = objects_of_blobs(machines)
    assert findings(client, percent=100) == []
    if damage == "missing":
        path.unlink()
    elif damage == "cut off":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        flip(path, 2_500_000)
        assert findings(client) == []
    ((reason, thread, message),) = findings(client, percent=100)
    assert (reason, thread) == ("CORRUPT", "job")
    assert path.name in message


def objects_of_blobs(machines: Fleet) -> list[Path]:
    return [machines.bucket / key for key in machines.objects() if key.endswith(".blob")]


def test_a_head_that_was_set_back(machines: Fleet) -> None:
    """Everything that the older HEAD names is there. Whoever knows of more says so: the owner, and a copy."""
    clients = [machines.client(machines.machine(owner)) for owner in ("owner", "reader", "late")]
    write_steps(clients[0], "job", 2, archived=True)
    clients[2].thread("job").hydrate()
    (path,) = objects_named(machines, "HEAD")
    older = path.read_bytes()
    write_steps(clients[0], "job", 2, archived=True)
    clients[1].thread("job").hydrate()
    for client in clients:
        assert findings(client, "job") == []  # a copy that is behind is none
    path.write_bytes(older)
    for client, found in zip(clients, (1, 1, 0), strict=True):
        for thread in ("job", None):
            told = findings(client, thread)
            assert [(reason, name) for reason, name, _ in told] == [("CORRUPT", "job")] * found
            assert all("HEAD is older than what was archived" in message for *_, message in told)
    clients[0].archive.repair("job")
    assert [findings(client) for client in clients] == [[], [], []]


def test_a_head_that_is_gone(machines: Fleet) -> None:
    """HEAD is all that a small thread has in the bucket."""
    client = machines.client(machines.machine("first"))
    write_steps(client, "job", 2, archived=True)
    (path,) = objects_named(machines, "HEAD")
    path.unlink()
    for thread in ("job", None):
        (told,) = findings(client, thread)
        assert told[:2] == ("CORRUPT", "job")
        assert "HEAD is missing" in told[2]


def objects_named(machines: Fleet, name: str) -> list[Path]:
    return [machines.bucket / key for key in machines.objects() if key.endswith(f"/{name}")]


def test_the_status_of_a_thread_that_was_set_back(machines: Fleet) -> None:
    """`archive status` does not call everything archived while the daemon knows better."""
    daemon = machines.machine("first")
    client = machines.client(daemon)
    write_steps(client, "job", 1, archived=True)
    (path,) = objects_named(machines, "HEAD")
    older = path.read_bytes()
    write_steps(client, "job", 2, archived=True)
    path.write_bytes(older)
    write_steps(client, "job", 1)
    eventually(lambda: client.archive.status().stats.rolled_back == 1)
    # As a daemon that has restarted since: it knows of no entry that waits.
    stats = replace(client.archive.status().stats, dirty_threads=0, lag_entries=0, lag_bytes=0, lag=None)
    facts = dict(archive_facts(stats))
    assert facts["behind by"] == "nothing but the threads that are rolled back"
    assert "older in the bucket than what was archived" in facts["rolled back"]
