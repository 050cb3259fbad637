"""The danger: one damaged thread stops the restore of all others, or a restore counts as whole although something did
not come."""

from __future__ import annotations

import os

import pytest
from tests.archive.test_archive_verify import flip, named
from tests.daemon.process import LONG, Fleet, write_long, write_steps

from stateward import Client, errors
from stateward.archive import RestoreProgress
from stateward.models import Access


def restore(client: Client, thread: str | None = None, *, dry_run: bool = False) -> list[RestoreProgress]:
    return list(client.archive.restore(thread, dry_run=dry_run))


def fill(client: Client) -> dict[str, dict[int, bytes]]:
    """Some threads, one with a history in packs and indexes. Returns the digests of all versions."""
    write_long(client, "long")
    for number in range(20):
        write_steps(client, f"job-{number}", 2)
    client.thread("long").tags.set("middle", LONG // 2)
    for found in client.threads():
        client.thread(found.name).archive.wait(found.sequence)
    return digests(client)


def digests(client: Client) -> dict[str, dict[int, bytes]]:
    return {
        found.name: {item.version: item.digest for item in client.thread(found.name).checkpoints.list()}
        for found in client.threads()
    }


def test_everything_comes_without_being_taken(machines: Fleet) -> None:
    """All versions of all threads are on the other disk, and the owner still writes."""
    first = machines.client(machines.machine("first"))
    expected = fill(first)
    second_machine = machines.machine("second")
    second = machines.client(second_machine)
    steps = restore(second)
    last = steps[-1]
    assert (last.total_threads, last.threads) == (21, 21)
    assert [step.problem for step in steps if step.problem] == []
    assert last.entries == LONG + 1 + 40
    assert last.read_bytes > 0
    assert {found.access for found in second.threads()} == {Access.REMOTE}
    assert digests(second) == expected
    assert second.thread("long").hydrate(at="middle").slots["count"] == LONG // 2
    assert [item.finding for item in second.verify() if item.finding] == []
    write_steps(first, "long", 1, archived=True)


def test_deleted_threads_are_not_counted(machines: Fleet) -> None:
    """What is left of a deleted thread in the archive is no thread that was restored."""
    first = machines.client(machines.machine("first"))
    for name in ("kept", "gone"):
        write_steps(first, name, 1, archived=True)
    first.thread("gone").delete()
    last = restore(machines.client(machines.machine("second")))[-1]
    assert (last.total_threads, last.threads) == (1, 1)


def test_a_second_run_reads_next_to_nothing(machines: Fleet) -> None:
    """What is here is known by its HEAD; what was written since comes."""
    first = machines.client(machines.machine("first"))
    fill(first)
    second = machines.client(machines.machine("second"))
    restore(second, "long")
    assert [found.name for found in second.threads()] == ["long"]
    once = restore(second)[-1]
    assert once.entries == 40
    again = restore(second)[-1]
    assert (again.entries, again.read_bytes, again.threads) == (0, 0, 21)
    write_steps(first, "job-3", 2, archived=True)
    assert restore(second)[-1].entries == 2
    assert second.thread("job-3").hydrate().slots["count"] == 4


def test_a_dry_run_brings_nothing(machines: Fleet) -> None:
    """It counts what would come, and this disk stays as it is."""
    fill(machines.client(machines.machine("first")))
    second = machines.client(machines.machine("second"))
    assert restore(second, dry_run=True)[-1].entries == LONG + 41
    assert list(second.threads()) == []
    restore(second)
    assert restore(second, dry_run=True)[-1].entries == 0


def test_damaged_threads_keep_nothing_back(machines: Fleet) -> None:
    """Each is a problem with its name, and the others are here."""
    first = machines.client(machines.machine("first"))
    fill(first)
    pack = named(machines, first, ".pack")
    flip(pack)
    heads = [machines.bucket / key for key in machines.objects() if key.endswith("/HEAD")]
    flip(next(head for head in heads if head.parent not in pack.parents))
    second = machines.client(machines.machine("second"))
    steps = restore(second)
    problems = [step for step in steps if step.problem]
    assert len(problems) == 2
    assert "long" in {step.thread for step in problems}
    restored = {found.name for found in second.threads()}
    assert len(restored - {"long"}) == 19
    for name in restored - {"long"}:
        assert second.thread(name).hydrate().slots["count"] == 2


def test_a_copy_that_was_indexed_becomes_whole(machines: Fleet) -> None:
    """An index first, a restore later: nothing is missing."""
    expected = fill(machines.client(machines.machine("first")))
    second = machines.client(machines.machine("second"))
    list(second.archive.list(index=True))
    restore(second)
    assert digests(second) == expected


def test_own_threads_are_left_alone(machines: Fleet) -> None:
    """What this sidecar holds, and has not archived yet, is not replaced by what is in the archive."""
    client = machines.client(machines.machine("first", archive_interval="600"))
    write_steps(client, "mine", 2, archived=True)
    write_steps(client, "mine", 2)
    assert restore(client)[-1].entries == 0
    assert client.thread("mine").info().version == 4
    write_steps(client, "mine", 1)


def test_a_thread_that_is_not_there_is_an_error(machines: Fleet) -> None:
    """Never made, or deleted: nobody shall believe that it was restored."""
    client = machines.client(machines.machine("first"))
    write_steps(client, "gone", 2, archived=True)
    client.thread("gone").delete()
    for name in ("gone", "never"):
        with pytest.raises(errors.ThreadNotFound):
            restore(client, name)


def test_deleted_threads_do_not_come_back(machines: Fleet) -> None:
    """A tombstone is looked at and brings nothing."""
    first = machines.client(machines.machine("first"))
    write_steps(first, "gone", 2, archived=True)
    first.thread("gone").delete()
    second = machines.client(machines.machine("second"))
    assert restore(second)[-1].entries == 0
    assert list(second.threads()) == []


def test_blobs_come_too(machines: Fleet) -> None:
    """A restore that was whole needs no bucket to read a large value again."""
    first = machines.client(machines.machine("first"))
    content = os.urandom(3 << 20)
    state = first.thread("job").hydrate()
    state.slots["picture"] = content
    first.thread("job").save(state, durability="archived")
    second = machines.client(machines.machine("second"))
    assert restore(second, dry_run=True)[-1].read_bytes > 3 << 20
    assert restore(second)[-1].read_bytes > 3 << 20
    assert restore(second)[-1].read_bytes == 0
    (path,) = (machines.bucket / key for key in machines.objects() if key.endswith(".blob"))
    path.unlink()
    value = second.thread("job").hydrate().slots["picture"]
    assert (value if isinstance(value, bytes) else value.read()) == content
