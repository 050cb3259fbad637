"""The danger: a repair writes HEAD over what another machine archived, brings back a deleted thread, or leaves out what
the disk has."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.archive.test_archive_verify import findings, flip, named
from tests.daemon.process import LONG, Fleet, eventually, write_long, write_steps

from stateward import Client, errors
from stateward.models import Access


def long_thread(client: Client, name: str = "job") -> bytes:
    """Entries in packs, snapshots, a tag and a branch."""
    write_long(client, name)
    client.thread(name).tags.set("middle", LONG // 2)
    digest = write_steps(client, name, 1, archived=True)
    client.thread(name).archive.wait(client.thread(name).info().sequence)
    return digest


def head_file(machines: Fleet) -> Path:
    """Of the only thread."""
    (key,) = (key for key in machines.objects() if key.endswith("/HEAD"))
    return machines.bucket / key


def check_whole(machines: Fleet, client: Client, digest: bytes, count: int) -> None:
    """The archive is sound, its owner writes on, and a sidecar with an empty disk has all of it."""
    assert findings(client, percent=100) == []
    other = machines.client(machines.machine("other"))
    state = other.thread("job").hydrate()
    assert (state.digest, state.slots["count"]) == (digest, count)
    assert other.thread("job").hydrate(at="middle").slots["count"] == LONG // 2
    assert other.thread("job").hydrate(at=7).slots["count"] == 7
    write_steps(client, "job", 2, archived=True)
    assert other.thread("job").hydrate().slots["count"] == count + 2


def check_untouched(machines: Fleet, before: dict[str, bytes]) -> None:
    """No object was changed, removed or made, but for those that every ship uploads in the background after HEAD."""
    now = machines.objects()
    assert {key for key, data in before.items() if now.get(key) != data} == set()
    assert {key for key in now.keys() - before.keys() if not key.endswith((".pack", ".snap"))} == set()


@pytest.mark.parametrize("damage", ["removed", "flipped", "emptied"])
def test_a_lost_head_is_written_anew(machines: Fleet, damage: str) -> None:
    """From the disk that wrote it, with everything; a dry run only says what is wrong."""
    client = machines.client(machines.machine("first"))
    digest = long_thread(client)
    path = head_file(machines)
    if damage == "removed":
        path.unlink()
    elif damage == "flipped":
        flip(path)
    else:
        path.write_bytes(b"")
    before = machines.objects()
    (finding,) = client.archive.repair("job", dry_run=True).findings
    assert "HEAD" in finding
    check_untouched(machines, before)
    found = client.archive.repair("job")
    assert len(found.findings) == 2
    assert (found.thread.access, found.thread.archived_sequence) == (Access.OWNED, found.thread.sequence)
    check_whole(machines, client, digest, LONG + 1)


def test_a_head_that_was_rolled_back_is_written_anew(machines: Fleet) -> None:
    """An older copy of HEAD stops the archiving: what asks for ARCHIVED is refused before it is written, as a call and
    as a writer's frame. Repaired, what was committed meanwhile is archived too."""
    first = machines.machine("first")
    client = machines.client(first)
    write_long(client, "job", 20)
    old = head_file(machines).read_bytes()
    long_thread(client)
    head_file(machines).write_bytes(old)
    write_steps(client, "job", 1)
    eventually(lambda: client.stats().archive.rolled_back == 1)
    write_steps(client, "job", 1)
    thread = client.thread("job")
    before = thread.info().version
    state = thread.hydrate()
    with pytest.raises(errors.Corrupt):
        thread.save(state, durability="archived")
    with thread.writer() as writer, pytest.raises(errors.Corrupt):
        writer.save(state, durability="archived")
    assert thread.info().version == before
    assert "older" in client.archive.repair("job", dry_run=True).findings[0]
    client.archive.repair("job")
    assert client.stats().archive.rolled_back == 0
    state = client.thread("job").hydrate()
    check_whole(machines, client, state.digest, LONG + 23)


@pytest.mark.parametrize("ending", [".pack", ".snap"])
@pytest.mark.parametrize("is_missing", [True, False])
def test_missing_and_damaged_objects_are_put_again(machines: Fleet, ending: str, is_missing: bool) -> None:
    """HEAD is fine, and what it names is not: everything goes into new objects."""
    client = machines.client(machines.machine("first"))
    digest = long_thread(client)
    victim = named(machines, client, ending)
    victim.unlink() if is_missing else flip(victim)
    (finding,) = client.archive.repair("job", dry_run=True).findings
    assert victim.name in finding
    client.archive.repair("job")
    check_whole(machines, client, digest, LONG + 1)


@pytest.mark.parametrize("which", ["/t/", "/n/"])
def test_missing_keys_are_put_again(machines: Fleet, which: str) -> None:
    """A thread's key, or its namespace's, from the key store of this disk."""
    client = machines.client(machines.machine("first"))
    digest = long_thread(client)
    (key,) = (key for key in machines.objects() if f"_keys{which}" in key)
    (machines.bucket / key).unlink()
    assert findings(client)[0][0] == "KEY_UNAVAILABLE"
    client.archive.repair("job")
    check_whole(machines, client, digest, LONG + 1)


def test_a_sound_thread_is_left_alone(machines: Fleet) -> None:
    """Nothing is found, and nothing is written."""
    first = machines.machine("first")
    client = machines.client(first)
    long_thread(client)
    second = machines.client(machines.machine("second"))
    second.thread("job").hydrate()
    before = machines.objects()
    assert client.archive.repair("job").findings == ()
    check_untouched(machines, before)


def test_what_another_sidecar_wrote_is_never_overwritten(machines: Fleet) -> None:
    """The thread was taken over: the old owner says so, and writes nothing."""
    first = machines.client(machines.machine("first"))
    write_steps(first, "job", 3, archived=True)
    second = machines.client(machines.machine("second"))
    second.thread("job").archive.attach(take_over=True)
    digest = write_steps(second, "job", 2, archived=True)
    (finding,) = first.archive.repair("job", dry_run=True).findings
    assert "'second'" in finding
    with pytest.raises(errors.NotOwner):
        first.archive.repair("job")
    assert machines.client(machines.machine("third")).thread("job").hydrate().digest == digest


def test_a_deleted_thread_is_not_brought_back(machines: Fleet) -> None:
    """A sidecar that was away has a copy of what was deleted: that is no damage."""
    first = machines.client(machines.machine("first"))
    write_steps(first, "job", 3, archived=True)
    second = machines.client(machines.machine("second"))
    second.thread("job").hydrate()
    first.thread("job").delete()
    with pytest.raises((errors.NotOwner, errors.ThreadNotFound)):
        second.archive.repair("job")
    assert machines.client(machines.machine("third")).thread("job").hydrate().version == 0


def test_a_copy_with_holes_repairs_nothing(machines: Fleet) -> None:
    """A disk without all entries cannot write HEAD anew, and says what it lacks."""
    first = machines.client(machines.machine("first"))
    long_thread(first)
    second = machines.client(machines.machine("second"))
    list(second.archive.list(index=True))
    head_file(machines).unlink()
    with pytest.raises(errors.NotOwner, match="older entries"):
        second.archive.repair("job")
    assert not [key for key in machines.objects() if key.endswith("/HEAD")]


def test_a_whole_copy_repairs_what_its_owner_lost(machines: Fleet) -> None:
    """The owner's machine is gone and HEAD too: a copy that was restored before has everything."""
    first = machines.machine("first")
    digest = long_thread(machines.client(first))
    second = machines.client(machines.machine("second"))
    list(second.archive.restore())
    first.kill()
    head_file(machines).unlink()
    second.archive.repair("job")
    check_whole(machines, second, digest, LONG + 1)


def test_an_owner_that_is_alive_after_all_loses_nothing(machines: Fleet) -> None:
    """A copy wrote HEAD anew: what the owner had beyond it is set aside there, and can be read."""
    # It looks at its HEAD when it is asked to archive, and not before.
    first = machines.client(machines.machine("first", archive_interval="600", archive_lease="600"))
    write_steps(first, "job", 5, archived=True)
    second = machines.client(machines.machine("second"))
    list(second.archive.restore())
    write_steps(first, "job", 2, archived=True)
    head_file(machines).unlink()
    second.archive.repair("job")
    write_steps(second, "job", 4, archived=True)
    with pytest.raises(errors.Fenced):
        write_steps(first, "job", 1, archived=True)
    assert first.thread("job").hydrate().slots["count"] == 9
    (orphan,) = (found.name for found in first.threads() if found.name != "job")
    assert first.thread(orphan).hydrate().slots["count"] == 8


def test_an_owner_that_slept_follows_the_repaired_history(machines: Fleet) -> None:
    """It had archived more than the copy that wrote HEAD anew: that is set aside, and the name follows HEAD."""
    owner = machines.machine("first")
    first = machines.client(owner)
    write_steps(first, "job", 5, archived=True)
    second = machines.client(machines.machine("second"))
    list(second.archive.restore())
    write_steps(first, "job", 2, archived=True)
    owner.kill()
    head_file(machines).unlink()
    second.archive.repair("job")
    write_steps(second, "job", 4, archived=True)
    owner.start()
    first = machines.client(owner)
    assert first.thread("job").hydrate().slots["count"] == 9
    (orphan,) = (found for found in first.threads() if found.name != "job")
    assert first.thread(orphan.name).hydrate().slots["count"] == 7
    assert orphan.orphan is not None
    assert orphan.orphan.common_sequence == 5


def test_a_restart_after_a_repair_goes_on(machines: Fleet) -> None:
    """Killed right after it, the same disk finds its own HEAD."""
    first = machines.machine("first")
    client = machines.client(first)
    digest = long_thread(client)
    head_file(machines).unlink()
    client.archive.repair("job")
    first.kill()
    first.start()
    client = machines.client(first)
    assert client.thread("job").hydrate().digest == digest
    check_whole(machines, client, digest, LONG + 1)


def test_a_missing_blob_is_put_again(machines: Fleet) -> None:
    """From the sealed file on this disk."""
    client = machines.client(machines.machine("first"))
    content = os.urandom(2 << 20)
    state = client.thread("job").hydrate()
    state.slots["picture"] = content
    client.thread("job").save(state, durability="archived")
    (path,) = (machines.bucket / key for key in machines.objects() if key.endswith(".blob"))
    path.unlink()
    client.archive.repair("job")
    assert findings(client, percent=100) == []
    value = machines.client(machines.machine("second")).thread("job").hydrate().slots["picture"]
    assert (value if isinstance(value, bytes) else value.read()) == content
