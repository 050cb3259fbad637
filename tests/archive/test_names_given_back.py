"""The danger: a name that was claimed for a write that failed keeps its key and its HEAD in the bucket for ever."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
from tests.daemon.driven import CALLER, LEASE_S, NAME, NAMESPACE, Driven, append
from tests.daemon.inside import WAIT_S, Inside, daemon_inside
from tests.daemon.process import eventually
from tests.daemon.town import Town, twins
from tests.daemon.unthreaded import run

from stateward.errors import QuotaExceeded
from stateward.testing import run_daemon
from stateward.v1.backup_service_pb2 import ImportBegin, ImportThreadRequest, ThreadPart
from stateward.v1.checkpoint_service_pb2 import BatchSaveRequest, SaveRequest
from stateward.v1.thread_pb2 import THREAD_ACCESS_ORPHAN
from stateward.v1.thread_service_pb2 import DeleteThreadRequest
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.bucket.base import BucketError
from stateward_sidecar.errors import DiskFull, NotOwner, ThreadNotFound, VersionMismatch
from stateward_sidecar.store.versions.save import SaveWrite


def keys(objects: Iterator[str]) -> list[str]:
    """The keys of threads."""
    return [key for key in objects if "_keys/t/" in key and not key.endswith(".lock")]


def save(name: str, *, after: int | None = None) -> SaveRequest:
    request = append(after=after)
    request.thread = name
    return request


def batch(machine: Driven, *saves: SaveRequest) -> None:
    run(machine.checkpoints.batch_save(BatchSaveRequest(saves=saves), CALLER))


def test_a_batch_with_one_wrong_item_claims_nothing(driven: Town) -> None:
    """The names of all others are claimed only if all items are right."""
    machine = driven.machine("first")
    machine.put(append())
    before = set(driven.bucket.objects)
    for items in ([save("new"), save("newer"), save("job", after=7)], [save("new"), save("typo", after=5)]):
        with pytest.raises(VersionMismatch):
            batch(machine, *items)
    assert set(driven.bucket.objects) == before
    batch(machine, save("new"), save("newer"))
    assert machine.find("new") is not None


def broken(self: SaveWrite, *_: object, **__: object) -> None:
    raise DiskFull("no room")


def test_a_save_that_fails_after_its_claim_gives_the_name_back(driven: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its key is gone, a tombstone stays as after a deletion, and anybody may use the name at once."""
    machine, other = driven.machine("first"), driven.machine("other")
    with monkeypatch.context() as patched:
        patched.setattr(SaveWrite, "_put_version", broken)
        with pytest.raises(DiskFull):
            machine.put(append(after=0))
    assert not keys(iter(driven.bucket.objects))
    assert not machine.archive.has_claimed(NAMESPACE, "job")
    other.put(append(after=0))
    other.ship_now()
    assert machine.state().checkpoint.version == 1


def test_a_blob_that_may_make_no_thread_claims_nothing(tmp_path: Path) -> None:
    """Its namespace has all the threads that it may have. As for any other write, nothing of it comes to the bucket."""
    (tmp_path / "access.toml").touch(mode=0o600)
    (tmp_path / "access.toml").write_text(
        f'[[principal]]\nname = "me"\nuid = {os.getuid()}\ngrants = ["read,write */*"]\n\n'
        '[[namespace]]\nname = "*"\nthreads = 1\n'
    )
    bucket = tmp_path / "bucket"
    flags = {"access": tmp_path / "access.toml", "archive": f"file://{bucket}"}
    with run_daemon(tmp_path / "data", **flags) as daemon, daemon.client() as client:
        client.thread("first").append("m", 1)
        client.thread("first").blobs.write(b"x" * 100)
        before = {each for each in bucket.rglob("*") if each.is_file()}
        with pytest.raises(QuotaExceeded):
            client.thread("second").blobs.write(b"y" * 100)
        client.thread("first").archive.wait(client.thread("first").append("m", 2))
        left = {each for each in bucket.rglob("*") if each.is_file()} - before
        assert [each for each in left if each.name == "HEAD"] == []


@pytest.mark.parametrize("method", ["replace", "delete"])
def test_whoever_gives_it_back_makes_the_thread_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Also if the bucket was away when the name was given back, before the tombstone or after it."""
    with twins(tmp_path) as pair:

        def away(asked: str, _key: str) -> None:
            if asked == method:
                raise BucketError("away")

        pair.bucket.before = away
        with monkeypatch.context() as patched:
            patched.setattr(SaveWrite, "_put_version", broken)
            with pytest.raises(DiskFull):
                pair.a.put("lost", after=0)
        pair.mend()
        pair.wait_for_lease()
        pair.a.put("one", after=0)
        pair.a.archive_all()
        assert len(keys(iter(pair.bucket.objects))) == 1
        assert pair.b.words() == ["one"]


def test_a_name_that_another_held_is_not_given_back(tmp_path: Path) -> None:
    """The first owner may have saved under the claim: nothing of its disk is deleted."""
    with twins(tmp_path) as pair:
        pair.a.put("one")
        with pytest.raises(NotOwner):
            pair.b.archive.own(NAMESPACE, NAME)
        pair.wait_for_lease()
        pair.b.archive.own(NAMESPACE, NAME)
        pair.b.archive.unclaim(NAMESPACE, NAME)
        pair.a.archive_all()
        assert pair.a.orphans() == [f"{NAME}@@1"]


def lose_claim(driven: Town, machine: Driven) -> None:
    """Another machine collects garbage, and gives the name back under which nothing was archived."""
    other = driven.machine("other")
    other.collect(0)
    assert keys(iter(driven.bucket.objects)), "its owner was not silent for a lease"
    driven.time.sleep(LEASE_S + 1)
    other.collect(0)
    assert not keys(iter(driven.bucket.objects))


@pytest.mark.parametrize("again", [0, 1, 2])
def test_what_was_saved_under_a_claim_that_is_given_back_is_set_aside(driven: Town, again: int) -> None:
    """Its owner could not ship for an hour. Others have made, and left, the name since, or a thread."""
    machine, third = driven.machine("first"), driven.machine("third")
    machine.put(append(after=0))
    lose_claim(driven, machine)
    for number in range(again):
        third.archive.own(NAMESPACE, "job")
        if number:
            third.put(append(after=0))
            third.ship_now()
        else:
            lose_claim(driven, third)
            third.restart()
    machine.ship_now()
    for _ in range(2):
        with suppress(ThreadNotFound):
            machine.state()
    assert [found.name for found in machine.threads() if found.access == THREAD_ACCESS_ORPHAN] == ["job@@1"]
    assert third.put(append(after=1 if again > 1 else 0)).version == (2 if again > 1 else 1)


def test_a_claim_that_was_given_back_long_ago(driven: Town) -> None:
    """The name had a thread since, which was deleted, and was claimed and given back once more. What was saved under
    the first claim is set aside all the same: nobody deleted that."""
    machine, third = driven.machine("first"), driven.machine("third")
    machine.put(append(after=0))
    lose_claim(driven, machine)
    for _ in range(2):
        third.put(append(after=0))
        third.ship_now()
        third.delete(DeleteThreadRequest(namespace=NAMESPACE, thread="job"))
        third.wire.background()
        third.archive.own(NAMESPACE, "job")
        lose_claim(driven, third)
        third.restart()
    machine.ship_now()
    assert [found.name for found in machine.threads() if found.access == THREAD_ACCESS_ORPHAN] == ["job@@1"]


def test_the_next_process_of_a_disk_gives_back_what_the_last_one_claimed(driven: Town) -> None:
    """Nobody else can save under it, so no lease is waited for."""
    machine = driven.machine("first")
    machine.archive.own(NAMESPACE, "job")
    machine.collect(0)
    assert keys(iter(driven.bucket.objects)), "a name in use was given back"
    machine.restart()
    machine.collect(3600)
    assert keys(iter(driven.bucket.objects)), "it was given back before its time"
    machine.collect(0)
    assert not keys(iter(driven.bucket.objects))
    assert machine.put(append(after=0)).version == 1


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Inside]:
    with daemon_inside(tmp_path, archive=f"file://{tmp_path}/bucket") as inside:
        yield inside


def test_an_import_that_fails_gives_its_name_back(daemon: Inside, tmp_path: Path) -> None:
    """Its key is gone, and the next import of the name passes."""
    begin = ImportThreadRequest(
        begin=ImportBegin(namespace="default", thread="copy", options=WriteOptions(request_id="r"))
    )
    wrong = ImportThreadRequest(parts=[ThreadPart()])
    archive = daemon.parts.archive
    assert archive is not None
    for _ in range(3):
        with pytest.raises(grpc.RpcError):
            daemon.wire.backups.ImportThread(iter([begin, wrong]), timeout=WAIT_S)
        eventually(lambda: not archive.has_claimed("default", "copy"))
        eventually(lambda: not keys(str(each) for each in (tmp_path / "bucket").rglob("*") if each.is_file()))
