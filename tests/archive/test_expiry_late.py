"""The danger: an expired thread never goes from disk or bucket, or one that somebody still uses goes because of an old
copy, or a clock."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path

import pytest
from tests.daemon.inside import daemon_inside
from tests.daemon.process import Fleet, eventually, write_steps

from stateward import Access, Client, ThreadInfo
from stateward.storage.v1.head_pb2 import ThreadHead
from stateward_sidecar.archive.ship.ship import Shipper

# Long enough for another machine to get hold of a thread before, also on a busy one.
SOON = timedelta(seconds=4)
LATER = timedelta(hours=1)


def finish(client: Client, name: str, ttl: timedelta = SOON) -> ThreadInfo:
    """A finished thread that has been archived and is nobody's; it expires soon."""
    write_steps(client, name, 1)
    thread = client.thread(name)
    thread.finish(thread.hydrate(), ttl=ttl)
    eventually(lambda: found(client, name).access == Access.REMOTE)
    return found(client, name)


def found(client: Client, name: str) -> ThreadInfo:
    """As the list shows it: what is on this disk, without asking the bucket."""
    return next(info for info in client.threads() if info.name == name)


def names(client: Client) -> list[str]:
    return [info.name for info in client.threads()]


def thread_keys(machines: Fleet) -> list[str]:
    return [key for key in machines.objects() if "_keys/t/" in key]


def wait_until_over(info: ThreadInfo, more_s: float = 0.5) -> None:
    assert info.expire_time is not None
    time.sleep(max(info.expire_time.timestamp() - time.time(), 0) + more_s)


def test_a_finished_thread_goes_by_itself(machines: Fleet) -> None:
    """From disk and bucket, told as the end of its TTL; a tombstone stays, and its name can be used again."""
    client = machines.client(machines.machine("first", sweep_interval="0.1"))
    other = machines.client(machines.machine("other", sweep_interval="0"))
    with client.watch() as events:
        finish(client, "job")
        assert other.thread("job").hydrate().version == 2
        eventually(lambda: names(client) == [])
        deleted = next(event for event in events if event.kind == "deleted")
    assert deleted.what == "ttl"
    assert thread_keys(machines) == []
    assert [key for key in machines.objects() if key.endswith("/HEAD")]
    assert other.thread("job").hydrate().version == 0
    write_steps(client, "job", 1, archived=True)
    assert other.thread("job").hydrate().version == 1


def test_a_machine_that_only_read_a_copy_lets_it_expire(machines: Fleet) -> None:
    """The machine that finished it is gone: whoever has a copy sees to it, and it goes from the bucket too."""
    first = machines.machine("first", sweep_interval="0")
    reader = machines.client(machines.machine("reader", sweep_interval="0.1"))
    finish(machines.client(first), "job")
    assert reader.thread("job").hydrate().version == 2
    first.stop()
    eventually(lambda: names(reader) == [])
    assert thread_keys(machines) == []


def test_two_machines_let_it_expire_at_the_same_time(machines: Fleet) -> None:
    """One of them puts the tombstone, and both copies go."""
    first, second = (machines.client(machines.machine(name, sweep_interval="0.05")) for name in ("first", "second"))
    for number in range(2):
        finish(first, f"job-{number}", 2 * SOON)
    for number in range(2):
        assert second.thread(f"job-{number}").hydrate().version == 2
    eventually(lambda: names(first) == names(second) == [])
    assert thread_keys(machines) == []


def test_a_thread_that_somebody_attached_stays_until_it_is_given_up(machines: Fleet) -> None:
    """Its old owner's copy does not go, nor does the thread; when it is given up as it was, it does."""
    client = machines.client(machines.machine("first", sweep_interval="0.1"))
    holder = machines.client(machines.machine("holder", sweep_interval="0"))
    info = finish(client, "job")
    holder.thread("job").archive.attach()
    wait_until_over(info)
    assert len(thread_keys(machines)) == 1
    assert holder.thread("job").hydrate(must_exist=True).version == 2
    assert names(client) == ["job"]
    holder.thread("job").archive.detach()
    eventually(lambda: names(client) == [])
    assert thread_keys(machines) == []


def test_a_copy_of_a_thread_that_went_on_elsewhere_is_renewed(machines: Fleet) -> None:
    """It has a later time now: the copy shows it, and neither goes."""
    client = machines.client(machines.machine("first", sweep_interval="0.1"))
    other = machines.client(machines.machine("other", sweep_interval="0"))
    info = finish(client, "job")
    other.thread("job").update_options(ttl=LATER)
    other.thread("job").archive.detach()
    wait_until_over(info, 0)
    eventually(lambda: found(client, "job").expire_time == found(other, "job").expire_time)
    assert client.thread("job").hydrate(must_exist=True).version == 2
    assert [step.finding for step in client.verify() if step.finding] == []


def test_a_thread_that_was_taken_from_an_idle_owner_stays(machines: Fleet) -> None:
    """It holds the thread still, as far as it knows; HEAD tells, and from then on it has a copy."""
    client = machines.client(machines.machine("idle", sweep_interval="0.1"))
    other = machines.client(machines.machine("other", sweep_interval="0"))
    write_steps(client, "job", 1)
    client.thread("job").update_options(ttl=SOON)
    client.thread("job").archive.wait(2)
    info = found(client, "job")
    other.thread("job").archive.attach(take_over=True)
    other.thread("job").update_options(ttl=LATER)
    other.thread("job").archive.wait(3)
    assert found(client, "job").access == Access.OWNED
    wait_until_over(info, 0)
    eventually(lambda: found(client, "job").expire_time == found(other, "job").expire_time)
    assert other.thread("job").hydrate(must_exist=True).version == 1
    write_steps(other, "job", 1, archived=True)


def test_an_unfinished_thread_expires_after_its_last_save(machines: Fleet) -> None:
    """The TTL is counted from the last save, whoever waits for what: an unfinished one goes the same way."""
    client = machines.client(machines.machine("first", sweep_interval="0.1"))
    for name, status in (("held", "running"), ("asks", "waiting")):
        write_steps(client, name, 1, archived=True)
        state = client.thread(name).hydrate()
        if status == "waiting":
            client.thread(name).save(state, status=status, wait_id="q")
        client.thread(name).update_options(ttl=SOON)
    eventually(lambda: names(client) == [])
    assert thread_keys(machines) == []


def test_a_bucket_that_is_away_delays_it(machines: Fleet, tmp_path: Path) -> None:
    """Nothing goes meanwhile, saves go on, few requests are made for many threads; and once it is back they go."""
    client = machines.client(machines.machine("first", sweep_interval="0.05"))
    write_steps(client, "other", 1, archived=True)
    for number in range(4):
        write_steps(client, f"job-{number}", 1)
        client.thread(f"job-{number}").finish(client.thread(f"job-{number}").hydrate(), ttl=2 * SOON)
    eventually(lambda: client.stats().archive.owned_threads == 1)  # HEAD says so of the others
    info = found(client, "job-3")
    away = machines.bucket.rename(tmp_path / "away")
    before = client.stats().archive.requests
    wait_until_over(info, 0.6)
    assert client.stats().archive.requests - before < 2 * 4  # one thread at a time asks; each would be two requests
    assert len([name for name in names(client) if name.startswith("job")]) == 4
    write_steps(client, "other", 1)
    away.rename(machines.bucket)
    eventually(lambda: names(client) == ["other"])
    eventually(lambda: len(thread_keys(machines)) == 1)


def test_what_is_saved_while_a_thread_is_being_deleted_stays(
    machines: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bucket is slow: a change that lands between the look at the time and the tombstone moves the time."""
    first = machines.machine("first", sweep_interval="0")
    client = machines.client(first)
    write_steps(client, "job", 1)
    client.thread("job").update_options(ttl=timedelta(milliseconds=1))
    client.thread("job").archive.detach()
    info = client.thread("job").info()
    assert info.expire_time is not None
    real, moved = Shipper.ship, []
    key = str(first.key_file)
    with daemon_inside(tmp_path, archive=machines.archive, key_file=key) as daemon:
        inside = daemon.parts.archive
        assert inside is not None
        inside.own("default", "job")
        thread = inside.holds("default", "job")
        assert thread is not None

        def ship_and_move(self: Shipper, hold: object, **options: bool) -> None:
            real(self, hold, **options)  # type: ignore[arg-type]
            head = ThreadHead()
            head.CopyFrom(thread.head)
            head.save_time_us += 3_600_000_000
            thread.head = head
            moved.append(True)

        monkeypatch.setattr(Shipper, "ship", ship_and_move)
        expire = inside.state.hooks.expire
        assert not expire(("default", "job"), thread.identity.uid, int(info.expire_time.timestamp()))
        assert moved
        monkeypatch.undo()
        assert inside.holds("default", "job") is not None
    assert len(thread_keys(machines)) == 1
    assert client.thread("job").hydrate(must_exist=True).version == 1


def test_a_thread_whose_head_was_set_back_stays(machines: Fleet) -> None:
    """Somebody may have gone on from the older HEAD: nothing is deleted until a person has looked."""
    client = machines.client(machines.machine("first", sweep_interval="0.1"))
    write_steps(client, "job", 1, archived=True)
    (path,) = machines.bucket.rglob("HEAD")
    old = path.read_bytes()
    client.thread("job").update_options(ttl=SOON)
    client.thread("job").archive.wait(2)
    write_steps(client, "job", 1, archived=True)
    info = found(client, "job")
    path.write_bytes(old)
    write_steps(client, "job", 1)
    eventually(lambda: client.stats().archive.rolled_back == 1)
    wait_until_over(info, 1.0)
    assert len(thread_keys(machines)) == 1
    assert names(client) == ["job"]


def test_an_idle_owner_never_deletes_the_next_thread_of_the_name(machines: Fleet) -> None:
    """Its thread was deleted and made anew elsewhere: what it deletes is what it knew, whose key is gone already."""
    client = machines.client(machines.machine("idle", archive_lease="60"))
    write_steps(client, "job", 1, archived=True)
    other = machines.client(machines.machine("other"))
    other.thread("job").archive.attach(take_over=True)
    other.thread("job").delete()
    write_steps(other, "job", 3, archived=True)
    client.thread("job").delete()
    assert len(thread_keys(machines)) == 1
    third = machines.client(machines.machine("third"))
    assert third.thread("job").hydrate(must_exist=True).slots["count"] == 3
