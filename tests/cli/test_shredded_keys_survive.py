"""The danger: a deleted thread's key is still somewhere, and the command says that it is gone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.conftest import run
from tests.daemon.process import eventually

from stateward.testing import Daemon, run_daemon
from stateward_sidecar.archive.objects.keys import slot_of
from stateward_sidecar.storage.keyslots import HEAD, SLOT_BYTES
from stateward_sidecar.storage.keywraps import THREAD


@pytest.fixture
def archived(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon with an archive in a directory."""
    archive = f"file://{tmp_path / 'bucket'}"
    with run_daemon(tmp_path / "data", archive=archive, archive_interval="0.1") as daemon:
        yield daemon


def wrapped_keys(data: Path) -> dict[str, bytes]:
    """The wrapped data keys in the key store, by uid."""
    keys = (data / "keys").read_bytes()
    slots = (keys[at : at + SLOT_BYTES] for at in range(0, len(keys), SLOT_BYTES))
    return {HEAD.unpack_from(slot)[2].hex(): slot[HEAD.size : HEAD.size + 60] for slot in slots if slot[0] == THREAD}


def archived_key(bucket: Path, uid: str) -> bytes:
    """The wrapped data key in the bucket, which is wrapped for itself."""
    slots = (slot_of(path.read_bytes()) for path in (bucket / "v1" / "_keys" / "t").rglob("*.1"))
    (found,) = (slot for slot in slots if HEAD.unpack_from(slot)[2].hex() == uid)
    return found[HEAD.size : HEAD.size + 60]


def holding(found: bytes, *directories: Path) -> list[str]:
    """The files that have some bytes."""
    files = (path for directory in directories for path in directory.rglob("*") if path.is_file())
    return [str(path) for path in files if found in path.read_bytes()]


def test_no_byte_of_a_deleted_key_is_left(archived: Daemon, tmp_path: Path) -> None:
    """The wrapped key lies in key store and bucket, and nowhere after the deletion; its rows go with the compaction."""
    data, bucket = archived.data_dir, tmp_path / "bucket"
    with archived.client() as client:
        for name in ("kept", "gone"):
            client.thread(name).append("log", name * 1000, request_id=name, durability="archived")
        uid = client.thread("gone").info().uid
        keys = [wrapped_keys(data)[uid], archived_key(bucket, uid)]
        assert [len(holding(key, data, bucket)) for key in keys] == [1, 1]
        with_rows = [path for path in holding(bytes.fromhex(uid), data) if path.endswith("data.mdb")]
        assert with_rows
        client.thread("gone").delete()
        eventually(lambda: not any(holding(key, data, bucket) for key in keys))
        answer = run("--target", archived.target, "compact")
        assert (answer.code, "writes waited for" in answer.out) == (0, True)
        assert wrapped_keys(data).keys() == {client.thread("kept").info().uid}
        assert not any(holding(key, data, bucket) for key in keys)
        assert client.thread("kept").hydrate().logs["log"]
    found = run("--target", archived.target, "verify", "--shredded", "--json").json["threads"]
    deleted = found[0].pop("deleted")
    assert found == [{"uid": uid, "namespace": "default", "thread": "gone", "here": "gone", "bucket": "gone"}]
    assert deleted.endswith("+00:00")


def test_keys_that_are_left_are_told(archived: Daemon, tmp_path: Path) -> None:
    """Somebody put the key object back, as a copy of the bucket would: the command fails and names the uid."""
    with archived.client() as client:
        client.thread("gone").append("log", "x", request_id="x", durability="archived")
        uid = client.thread("gone").info().uid
        (place,) = (tmp_path / "bucket" / "v1" / "_keys" / "t").rglob("*.1")
        key = place.read_bytes()
        client.thread("gone").delete()
        eventually(lambda: not place.exists())
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(key)
    answer = run("--target", archived.target, "verify", "--shredded")
    assert answer.code == 1
    assert uid in answer.out
    assert "STILL THERE" in answer.out
    assert "1 thread of 1 may still have a key" in answer.error


def test_without_an_archive(own_daemon: Daemon) -> None:
    """The disk alone is asked, also when nothing was deleted."""
    assert run("--target", own_daemon.target, "verify", "--shredded").out == "no deletion is remembered\n"
    with own_daemon.client() as client:
        client.thread("gone").append("log", "x", request_id="x")
        client.thread("gone").delete()
    answer = run("--target", own_daemon.target, "verify", "--shredded")
    assert answer.code == 0
    assert "the keys of 1 deleted thread are gone" in answer.out


@pytest.mark.parametrize("more", [["t"], ["--archive"], ["--read-data", "5%"]])
def test_the_option_stands_alone(own_daemon: Daemon, more: list[str]) -> None:
    """It is about all deleted threads."""
    assert run("--target", own_daemon.target, "verify", "--shredded", *more).code == 2
