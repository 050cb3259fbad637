"""The danger: a held thread is lost with its machine, or a caller without its session key makes another machine show
it, take it, or take it for damage."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.daemon.process import FAST, Fleet, Pair, eventually

from stateward import Client
from stateward.errors import InvalidField, Locked, NotOwner, StatewardError, ThreadNotFound
from stateward.models import Durability, Status
from stateward.options import ThreadOptions
from stateward.testing import Daemon

RIGHT, WRONG, OTHER = os.urandom(32), os.urandom(32), os.urandom(32)
SOON = {**FAST, "held_for": "0.3s", "sweep_interval": "0.2", "archive_check": "0.1"}


@contextmanager
def pair(directory: Path, **flags: str) -> Iterator[Pair]:
    made = Pair(directory, **flags)
    try:
        made.first, made.second = made.machine("first"), made.machine("second")
        yield made
    finally:
        made.close()


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Pair]:
    """Two machines that lock a held thread soon after its last call."""
    with pair(tmp_path, **SOON) as made:
        yield made


def locks(daemon: Daemon) -> int:
    return daemon.stderr.count("a held thread was locked")


def save(client: Client, text: str, key: bytes = RIGHT, name: str = "h", **options: object) -> str:
    """Returns the uid."""
    held = client.thread(name, session_key=key)
    held.append("m", text, **options)  # type: ignore[arg-type]
    return held.info().uid


def said(client: Client, key: bytes = RIGHT, name: str = "h") -> list[object]:
    return list(client.thread(name, session_key=key).hydrate().logs["m"])


def named(machines: Fleet, ending: str) -> dict[str, bytes]:
    return {key: data for key, data in machines.objects().items() if key.endswith(ending) or f"/{ending}/" in key}


def left(machines: Fleet) -> list[str]:
    """What the bucket has of threads but their HEADs."""
    return [key for key in machines.objects() if not key.endswith("HEAD") and not key.endswith("_format")
            and "_keys/root" not in key and "_keys/n/" not in key and "_keys/s/" not in key]  # fmt: skip


def findings(client: Client) -> list[object]:
    found = [each.finding for each in client.archive.verify(data_percent=100) if each.finding]
    return found + [each.finding for each in client.verify() if each.finding]


def test_another_machine_takes_it_with_the_key(two: Pair) -> None:
    """After a stop and after a kill, with everything that was archived; whoever has not the key takes nothing."""
    first, second = two.client(two.first), two.client(two.second)
    for number in range(60):
        save(first, f"{number} " * 300, request_id=str(number))
    first.thread("h", session_key=RIGHT).records.put("k", 1)
    first.thread("h", session_key=RIGHT).blobs.write(b"b" * 5000)
    first.thread("h", session_key=RIGHT).append("m", "last", durability=Durability.ARCHIVED)
    before = said(first)
    two.first.kill()
    heads = named(two, "HEAD")
    for key in (None, WRONG):
        thread = second.thread("h", session_key=key)
        for call in (thread.hydrate, thread.info, lambda t=thread: t.append("m", "no"), lambda t=thread: t.fork("c"),
                     lambda t=thread: t.archive.attach(take_over=True), thread.archive.detach):  # fmt: skip
            with pytest.raises(Locked):
                call()  # type: ignore[operator]
    assert named(two, "HEAD") == heads
    assert list(second.threads()) == []
    held = second.thread("h", session_key=RIGHT)
    held.archive.attach(take_over=True)
    assert said(second) == before
    assert held.records.get("k").value == 1  # type: ignore[union-attr]
    save(second, "second", durability=Durability.ARCHIVED)
    with pytest.raises(Locked):
        second.thread("h").hydrate()
    two.first.start()
    third = two.client(two.first)
    with pytest.raises(Locked):
        third.thread("h").hydrate()
    assert said(third)[-1] == "second"
    assert findings(third) == findings(second) == []


def test_it_is_shipped_before_it_is_locked(tmp_path: Path) -> None:
    """Also if the archive would have had it much later."""
    with pair(tmp_path, **{**SOON, "archive_interval": "60", "archive_lease": "120"}) as two:
        first = two.client(two.first)
        for number in range(5):
            save(first, str(number))
        eventually(lambda: locks(two.first) > 0)
        assert first.archive.status().stats.dirty_threads == 0
        two.first.kill()
        held = two.client(two.second).thread("h", session_key=RIGHT)
        held.archive.attach(take_over=True)
        assert len(held.hydrate().logs["m"]) == 5


def test_a_bucket_that_is_away_delays_it_and_no_more(two: Pair) -> None:
    """The thread is locked, what the archive lacks is counted, and shipped once a call has opened the thread."""
    first = two.client(two.first)
    save(first, "one", durability=Durability.ARCHIVED)
    save(first, "two")
    two.go_away()
    save(first, "three")
    eventually(lambda: locks(two.first) > 0)
    assert "is_shipped=False" in two.first.stderr.replace('"is_shipped": false', "is_shipped=False")
    two.come_back()
    eventually(lambda: first.archive.status().stats.dirty_threads == 1)
    heads = named(two, "HEAD")
    with first.thread("h", session_key=RIGHT).watch(after_sequence=0) as events:  # keeps it open
        next(iter(events))
        eventually(lambda: named(two, "HEAD") != heads)
        eventually(lambda: first.archive.status().stats.dirty_threads == 0)
    assert two.first.stop() == 0
    assert said(two.client(two.second)) == ["one", "two", "three"]


def test_locked_and_dirty_at_the_stop(two: Pair) -> None:
    """A stop does not wait for what nobody can ship, and the next start has it still."""
    first = two.client(two.first)
    save(first, "one")
    two.go_away()
    save(first, "two")
    eventually(lambda: locks(two.first) > 0)
    began = time.monotonic()
    two.first.stop()
    assert time.monotonic() - began < 25
    two.come_back()
    two.first.start()
    first = two.client(two.first)
    eventually(lambda: first.archive.status().stats.dirty_threads == 1)
    assert said(first) == ["one", "two"]
    eventually(lambda: first.archive.status().stats.dirty_threads == 0)


def test_a_detach_locks_it(tmp_path: Path) -> None:
    """At once, however long threads are held, and so does a save that says that the thread waits."""
    with pair(tmp_path, **{**SOON, "held_for": "10m"}) as two:
        first = two.client(two.first)
        save(first, "one")
        first.thread("h", session_key=RIGHT).archive.detach()
        eventually(lambda: locks(two.first) == 1)
        first.thread("h", session_key=RIGHT).append("m", "two", status=Status.WAITING)
        eventually(lambda: locks(two.first) == 2)
        assert said(two.client(two.second)) == ["one", "two"]
        save(two.client(two.second), "three")


def test_a_locked_thread_is_deleted_everywhere(two: Pair) -> None:
    """By whoever may delete, with and without a copy, without its key; and nothing of it is left."""
    first, second = two.client(two.first), two.client(two.second)
    for name in ("here", "elsewhere", "copied"):
        save(first, name, name=name)
        first.thread(name, session_key=RIGHT).blobs.write(os.urandom(3000))
        first.thread(name, session_key=RIGHT).append("m", "last", durability=Durability.ARCHIVED)
        if name != "here":
            first.thread(name, session_key=RIGHT).archive.detach()
    said(second, name="copied")
    time.sleep(1)
    with pytest.raises(Locked):
        second.thread("copied").delete(expected_version=7)
    for client, name in ((first, "here"), (second, "elsewhere"), (second, "copied")):
        assert client.thread(name).delete()
        assert not client.thread(name).delete(missing_ok=True)
        for each in (first, second):
            with pytest.raises(ThreadNotFound):
                each.thread(name, session_key=RIGHT).info()
    eventually(lambda: not left(two))
    assert not [key for key in two.objects() if "_keys/t/" in key]
    save(first, "again", OTHER, name="here")
    assert said(first, OTHER, name="here") == ["again"]
    assert findings(first) == findings(second) == []


def test_another_sidecar_works_on_it(two: Pair) -> None:
    """It is not deleted by one that does not own it, until it is free."""
    first, second = two.client(two.first), two.client(two.second)
    save(first, "0", durability=Durability.ARCHIVED)
    is_over = threading.Event()

    def work() -> int:
        count = 1
        while not is_over.wait(0.05):
            save(first, str(count), durability=Durability.ARCHIVED)
            count += 1
        return count

    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(work)
        try:
            for _ in range(3):
                with pytest.raises(NotOwner):
                    second.thread("h").delete()
        finally:
            is_over.set()
        assert len(said(first)) == working.result()
    assert second.thread("h").delete()


def test_a_locked_thread_expires_everywhere(two: Pair) -> None:
    """Its row in the list of those that expire, and HEAD, say when."""
    first = two.client(two.first)
    for name in ("a", "b"):
        save(first, name, name=name, create=ThreadOptions(ttl=1))
    eventually(lambda: locks(two.first) >= 2 or first.stats().threads == 0)
    eventually(lambda: first.stats().threads == 0)
    eventually(lambda: not left(two))
    with pytest.raises(ThreadNotFound):
        two.client(two.second).thread("a", session_key=RIGHT).info()


def test_a_copy_of_a_thread_that_others_deleted(two: Pair) -> None:
    """It does not hide the next thread of the name from whoever may open that one, whether it is held or not."""
    first, second = two.client(two.first), two.client(two.second)
    for key in (OTHER, None):
        save(first, "old", RIGHT)
        first.thread("h", session_key=RIGHT).archive.detach()
        assert said(second) == ["old"]
        first.thread("h", session_key=RIGHT).delete()
        second_made = first.thread("h", session_key=key)
        second_made.append("m", "new", durability=Durability.ARCHIVED)
        eventually(lambda: locks(two.second) > 0)
        time.sleep(0.5)
        assert list(second.thread("h", session_key=key).hydrate().logs["m"]) == ["new"]
        with pytest.raises((Locked, InvalidField)):
            second.thread("h", session_key=RIGHT).hydrate()
        first.thread("h").delete()
    assert findings(second) == []


def test_an_orphan_needs_the_key_too(two: Pair) -> None:
    """What a machine has that another one replaced is readable with the key alone."""
    first, second = two.client(two.first), two.client(two.second)
    save(first, "one", durability=Durability.ARCHIVED)
    with two.slow():
        save(first, "lost")
        two.first.kill()
    held = second.thread("h", session_key=RIGHT)
    held.archive.attach(take_over=True)
    save(second, "two", durability=Durability.ARCHIVED)
    two.first.start()
    first = two.client(two.first)
    assert said(first) == ["one", "two"]
    assert [each.name for each in first.threads()] == []
    (orphan,) = [each for each in ("h@@1", "h@@2") if _is_there(first, each)]
    with pytest.raises(Locked):
        first.thread(orphan).hydrate()
    assert said(first, name=orphan) == ["one", "lost"]
    time.sleep(1)
    assert [each.name for each in first.threads()] == []
    with pytest.raises(Locked):
        first.thread(orphan).hydrate()
    assert said(first) == ["one", "two"]
    time.sleep(1)
    assert first.thread(orphan).delete()
    assert said(first) == ["one", "two"]
    assert findings(first) == []


def _is_there(client: Client, name: str) -> bool:
    try:
        client.thread(name, session_key=RIGHT).info()
    except ThreadNotFound:
        return False
    return True


def test_commands_over_the_archive_pass_over_it(two: Pair) -> None:
    """Verify, restore, garbage and lists, without the key, find nothing wrong, and do it no harm."""
    first = two.client(two.first)
    for number in range(40):
        save(first, f"{number} " * 300)
    first.thread("plain").append("m", 1)
    first.thread("h", session_key=RIGHT).append("m", "last", durability=Durability.ARCHIVED)
    eventually(lambda: locks(two.first) > 0)
    second = two.client(two.second)
    assert findings(second) == findings(first) == []
    listed = list(second.archive.list(index=True))
    assert [each.problem for each in listed] == ["", ""]
    assert sorted(each.thread.name for each in listed if each.thread) == ["", "plain"]
    for told in second.archive.restore():
        assert told.problem == ""
    assert [each.problem for each in second.archive.collect(older_than=0) if each.problem] == []
    assert len(said(second)) == 41
    assert findings(second) == []


def test_two_clients_make_one_thread_on_two_machines(two: Pair) -> None:
    """It belongs to one of them, with its key; what the other one wrote is not in it."""
    keys = [os.urandom(32) for _ in range(4)]
    daemons = [two.first, two.second] * 2

    def make(key: bytes, daemon: Daemon, name: str) -> bool:
        with daemon.client() as client:
            try:
                client.thread(name, session_key=key).append("m", key.hex(), request_id=key.hex())
            except StatewardError:
                return False
            return True

    with ThreadPoolExecutor(4) as pool:
        for number in range(5):
            name = f"race-{number}"
            made = list(pool.map(make, keys, daemons, [name] * 4))
            assert sum(made) <= 1
            if not any(made):
                continue
            winner = made.index(True)
            assert said(two.client(daemons[winner]), keys[winner], name) == [keys[winner].hex()]
            # Before the bucket has a version, the other machine may answer that there is none yet.
            save(two.client(daemons[winner]), "archived", keys[winner], name, durability=Durability.ARCHIVED)
            for key, daemon, is_made in zip(keys, daemons, made, strict=True):
                if not is_made:
                    with pytest.raises(StatewardError):
                        said(two.client(daemon), key, name)


def test_a_thread_that_was_made_without_an_archive(tmp_path: Path) -> None:
    """Its slot goes to the bucket as it is."""
    with pair(tmp_path, **SOON) as two:
        two.first.stop()
        archive = two.first._flags.pop("archive")
        flags = {name: two.first._flags.pop(name) for name in list(two.first._flags) if name.startswith("archive")}
        two.first.start()
        save(two.client(two.first), "alone")
        two.first.stop()
        two.first._flags.update(archive=archive, **flags)
        two.first.start()
        first = two.client(two.first)
        with pytest.raises(Locked):
            first.thread("h").hydrate()
        save(first, "archived", durability=Durability.ARCHIVED)
        two.first.stop()
        assert said(two.client(two.second)) == ["alone", "archived"]
