"""The danger: garbage collection deletes an object that some HEAD still needs, or that a repair would need, or leaves
garbage for ever."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from tests.archive.test_archive_verify import findings, flip
from tests.cli.conftest import run
from tests.daemon.inside import daemon_inside
from tests.daemon.process import LONG, Fleet, eventually, write_long, write_steps

from stateward import Client, errors
from stateward.storage.v1.archive_pb2 import ArchiveFormat
from stateward.testing import Daemon
from stateward.v1.archive_service_pb2 import CollectGarbageRequest
from stateward_sidecar.archive.archive import Archive
from stateward_sidecar.archive.fleet.collect import Collector, Verbs
from stateward_sidecar.clock import Clock

NOW = timedelta(0)


def collect(client: Client, *, dry_run: bool = False, older_than: timedelta | None = NOW) -> list[str]:
    """Names of what went, or would go."""
    steps = list(client.archive.collect(dry_run=dry_run, older_than=older_than))
    keys = [step.key for step in steps if step.key]
    assert steps[-1].removed == (0 if dry_run else len(keys))
    return keys


def folder(machines: Fleet) -> Path:
    """Of the only thread."""
    (key,) = (key for key in machines.objects() if key.endswith("/HEAD"))
    return (machines.bucket / key).parent


def put(path: Path, data: bytes = b"x" * 100) -> Path:
    path.write_bytes(data)
    return path


def test_what_a_dead_process_left_goes(machines: Fleet) -> None:
    """Objects of an older epoch, or of another process in HEAD's own epoch, are removed if no HEAD names them.

    Those of a later epoch stay, and those that the owner may name next.
    """
    first = machines.machine("first")
    client = machines.client(first)
    write_long(client, "job")
    first.stop()
    second = machines.client(machines.machine("second"))
    write_steps(second, "job", 20, size=1600, archived=True)  # epoch 2
    eventually(lambda: collect(second) == [])
    where = folder(machines)
    boot = next(name for name in machines.objects() if "/2-" in name).rpartition("/")[2].split("-")[1]
    old = [put(where / name) for name in ("1-00000000000000aa-1.pack", "2-00000000000000aa-1.pack")]
    kept = [
        put(where / name)
        for name in (f"2-{boot}-999999.pack", "3-00000000000000aa-1.snap", "what-is-this", "00ff.blob")
    ]
    expected = [str(path.relative_to(machines.bucket)) for path in old]
    assert sorted(collect(second, dry_run=True)) == expected
    assert all(path.exists() for path in old)
    assert sorted(collect(second)) == expected
    assert not any(path.exists() for path in old)
    assert all(path.exists() for path in kept)
    assert collect(second) == []
    assert findings(second, percent=100) == []


def test_garbage_that_an_owner_left_behind_goes_after_the_grace(machines: Fleet) -> None:
    """Unlinked objects of a thread that nobody writes any more, not before the grace time is over."""
    first = machines.machine("first")
    client = machines.client(first)
    write_long(client, "job")
    client.thread("job").prune(keep_latest_per_branch=2)
    write_steps(client, "job", 3, archived=True)
    first.stop()
    before = set(machines.objects())
    second = machines.client(machines.machine("second"))
    assert collect(second, older_than=None) == []
    gone = collect(second)
    assert gone
    assert before - set(machines.objects()) == set(gone)
    assert findings(second, percent=100) == []
    assert second.thread("job").hydrate().slots["count"] == LONG + 3


def test_a_deletion_that_was_cut_short_is_finished(machines: Fleet) -> None:
    """Objects, blobs and the key of a tombstone go; the tombstone stays, and the name can be used again."""
    first = machines.client(machines.machine("first"))
    write_long(first, "job")
    where = folder(machines)
    saved = {path: path.read_bytes() for path in where.iterdir() if path.is_file() and path.name != "HEAD"}
    keys = [machines.bucket / key for key in machines.objects() if "_keys/t/" in key]
    saved |= {path: path.read_bytes() for path in keys}
    first.thread("job").delete()
    time.sleep(0.3)
    for path, data in saved.items():  # as if the process had died right after the tombstone
        if not path.name.startswith("."):
            put(path, data)
    put(where / ("ab" * 16 + ".blob"))
    collect(first)
    assert [path.name for path in where.iterdir() if not path.name.startswith(".")] == ["HEAD"]
    assert not any(path.exists() for path in keys)
    write_steps(first, "job", 3, archived=True)
    assert collect(first) == []
    assert machines.client(machines.machine("second")).thread("job").hydrate().slots["count"] == 3


def test_the_key_of_an_earlier_thread_of_the_name_goes(machines: Fleet) -> None:
    """A deletion that was cut short before a new thread took the name is finished too, and the new key stays."""
    client = machines.client(machines.machine("first"))
    write_steps(client, "job", 2, archived=True)
    (old,) = (machines.bucket / key for key in machines.objects() if "_keys/t/" in key)
    data = old.read_bytes()
    client.thread("job").delete()
    write_steps(client, "job", 2, archived=True)
    put(old, data)
    assert collect(client) == [str(old.relative_to(machines.bucket))]
    assert machines.client(machines.machine("second")).thread("job").hydrate().slots["count"] == 2


def test_threads_without_a_readable_head_are_not_touched(machines: Fleet) -> None:
    """HEAD is damaged or gone: its objects may be all there is, and a repair needs them."""
    first = machines.machine("first")
    client = machines.client(first)
    write_long(client, "job")
    first.stop()
    client = machines.client(machines.machine("second"))
    write_steps(client, "job", 1, archived=True)
    where = folder(machines)
    flip(where / "HEAD")
    put(where / "1-00000000000000aa-1.pack")
    assert collect(client) == []
    (where / "HEAD").unlink()
    assert collect(client) == []


def test_a_thread_that_cannot_be_read_is_named_after_the_rest(machines: Fleet) -> None:
    """The garbage of the others goes, the list says how many threads failed and why, and the command exits 1."""
    daemon = machines.machine("first")
    client = machines.client(daemon)
    write_steps(client, "damaged", 2, archived=True)
    damaged = folder(machines)
    write_steps(client, "job", 2, archived=True)
    client.thread("job").delete()
    (other,) = {path.parent for path in machines.bucket.rglob("HEAD")} - {damaged}
    left, kept = put(other / ("ab" * 16 + ".blob")), put(damaged / "0-00000000000000aa-1.pack")
    flip(damaged / "HEAD")
    steps = list(client.archive.collect(older_than=NOW))
    assert (left.exists(), kept.exists(), steps[-1].failed) == (False, True, 1)
    (problem,) = (step.problem for step in steps if step.problem)
    assert problem.startswith(f"{damaged.relative_to(machines.bucket)}/: ")
    command = run("--target", daemon.target, "archive", "gc", "--json")
    assert (command.code, json.loads(command.out)["problems"]) == (1, [problem])
    assert problem in run("--target", daemon.target, "archive", "gc").err


def make_expiring(client: Client) -> None:
    for name, ttl in (
        ("old", timedelta(milliseconds=1)),
        ("fresh", timedelta(minutes=90)),
        ("held", timedelta(seconds=1)),
    ):
        write_steps(client, name, 1)
        client.thread(name).update_options(ttl=ttl)
        if name != "held":
            client.thread(name).archive.detach()
    client.thread("held").archive.wait(2)


@contextmanager
def beside(machines: Fleet, like: Daemon, directory: Path) -> Iterator[Archive]:
    """The archive of one more machine, inside this process, whose clock can be moved."""
    key = str(like.key_file)
    with daemon_inside(directory, archive=machines.archive, key_file=key) as inside:
        assert inside.parts.archive is not None
        yield inside.parts.archive


def move_clock(monkeypatch: pytest.MonkeyPatch, hours: int) -> None:
    """The wall clock of this process is set."""
    now_us = Clock().now_us
    monkeypatch.setattr(Clock, "now_us", lambda _: now_us() + hours * 3_600_000_000)


def test_expired_threads_that_nobody_holds_go(
    machines: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An hour after their time, without their owner; those that are held or not long expired stay."""
    first = machines.machine("first", sweep_interval="0")
    make_expiring(machines.client(first))
    second = machines.client(machines.machine("second"))
    assert collect(second) == []  # an hour has not passed
    move_clock(monkeypatch, 2)
    with beside(machines, first, tmp_path) as late:
        verbs = Verbs(lambda name: late.own(*name), late.delete, late.attacher.bury_claim, late.remove_locked)
        collector = Collector(late.state, verbs)
        would = [step.key for step in collector.collect(CollectGarbageRequest(dry_run=True)) if step.key]
        assert len(would) == 1  # small: only its key lies beside HEAD
        assert second.thread("old").hydrate().version == 1
        steps = list(collector.collect(CollectGarbageRequest()))
    assert not set(would) & set(machines.objects())
    assert [step.key for step in steps if step.key] == would
    assert steps[-1].removed == 1
    assert steps[-1].progress.items > steps[-1].removed
    assert second.thread("old").hydrate().version == 0
    assert second.thread("fresh").hydrate().version == 1
    assert second.thread("held").hydrate().version == 1


def test_a_clock_that_jumps_deletes_nothing(
    machines: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wall clock that moved by hours since the start cannot be believed."""
    first = machines.machine("first", sweep_interval="0")
    make_expiring(machines.client(first))
    with beside(machines, first, tmp_path) as late:
        verbs = Verbs(lambda name: late.own(*name), late.delete, late.attacher.bury_claim, late.remove_locked)
        collector = Collector(late.state, verbs)
        move_clock(monkeypatch, 48)
        assert [step.key for step in collector.collect(CollectGarbageRequest()) if step.key] == []
    assert len([item for item in machines.client(first).archive.list() if item.thread]) == 3


def test_a_newer_versions_archive_is_not_touched(machines: Fleet) -> None:
    """_format asks for more than this version knows: nothing is removed."""
    first = machines.machine("first")
    client = machines.client(first)
    write_steps(client, "job", 1, archived=True)
    client.thread("job").delete()
    path = machines.bucket / "v1/_format"
    form = ArchiveFormat.FromString(path.read_bytes())
    form.min_writer = 99
    path.write_bytes(form.SerializeToString())
    with pytest.raises(errors.FeatureUnavailable):
        collect(client)


def test_collecting_while_threads_are_written_loses_nothing(machines: Fleet) -> None:
    """Sidecars take a thread over from each other in the middle of their writing; another one collects all the time."""
    collecting = machines.client(machines.machine("collecting"))
    for turn in range(4):
        writer = machines.client(machines.machine(f"writer-{turn}"))
        if turn:
            writer.thread("job").archive.attach(take_over=True)
        for _ in range(4):
            write_steps(writer, "job", 25, size=1600)
            collect(collecting)
        writer.thread("job").archive.wait(writer.thread("job").info().sequence)
    assert findings(collecting, percent=100) == []
    assert machines.client(machines.machine("last")).thread("job").hydrate().slots["count"] == 400


def test_blobs_go_when_their_owner_gave_them_up_and_no_row_names_them(machines: Fleet) -> None:
    """Those that are named stay, and while anybody holds the thread all of them do."""
    client = machines.client(machines.machine("first"))
    state = client.thread("job").hydrate()
    state.slots["picture"] = os.urandom(2 << 20)
    client.thread("job").save(state, durability="archived")
    where = folder(machines)
    (named,) = where.glob("*.blob")
    stray = put(where / ("ab" * 16 + ".blob"))
    assert collect(client) == []
    client.thread("job").archive.detach()
    assert collect(client, older_than=None) == []
    assert collect(client) == [str(stray.relative_to(machines.bucket))]
    assert named.exists()
