"""The danger: the look into the bucket at the end of a history passes over what nobody needs."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import pytest
from tests.daemon.driven import KEY, append
from tests.daemon.town import Town, town
from tests.histories.contents import Directory, look

from stateward.v1.thread_service_pb2 import PruneThreadRequest
from stateward_sidecar.archive.ship import ship
from stateward_sidecar.store.store import KEYS_FILE


@pytest.fixture
def ended(tmp_path: Path) -> tuple[Path, Path, bytes]:
    """Bucket, disk and key after a machine made a thread, gave it up, and collected."""
    with town(tmp_path) as made:
        machine = made.machine("first")
        for _ in range(20):
            machine.put(append(os.urandom(300)))
            machine.ship_now()
        machine.prune(PruneThreadRequest(namespace="default", thread="job", keep_latest_per_branch=1))
        machine.archive.detach("default", "job")
        machine.collect(0)
        bucket = write_down(made, tmp_path / "bucket")
        disk = machine.disk.path
        made.end(machine)
    return bucket, disk, KEY


def test_what_was_pruned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that prunes and clears, and whose ships take nothing out of the packs."""
    monkeypatch.setattr(ship, "trim", lambda *_: None)
    with town(tmp_path) as made:
        machine = made.machine("first")
        for _ in range(20):
            machine.put(append(os.urandom(300)))
            machine.ship_now()
        machine.prune(PruneThreadRequest(namespace="default", thread="job", keep_latest_per_branch=1))
        machine.archive.detach("default", "job")
        bucket = write_down(made, tmp_path / "bucket")
        made.end(machine)
    found = look(Directory(bucket), machine.disk.path, KEY)
    assert found
    assert all("were pruned" in each for each in found)


def write_down(made: Town, bucket: Path) -> Path:
    """The bucket as a directory."""
    for name, data in made.bucket.objects.items():
        path = bucket / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return bucket


def folder(bucket: Path) -> Path:
    """Where the thread lies."""
    (head,) = bucket.rglob("HEAD")
    return head.parent


def test_a_clean_bucket(ended: tuple[Path, Path, bytes]) -> None:
    """Nothing is found."""
    bucket, disk, key = ended
    assert (disk / KEYS_FILE).exists()
    assert look(Directory(bucket), disk, key) == []


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("v1/t/{place}/1-0000000000000001-1.pack", "nothing leads to"),
        ("v1/t/{place}/1-0000000000000001-1.pack.2", "nothing leads to"),
        ("v1/t/{place}/00000000000000000000000000000001.blob", "nothing leads to"),
        ("v1/_keys/t/{place}.7", "is the key of no thread"),
        ("v1/t/{namespace}/{other}/1-0000000000000001-1.pack", "is in a place without HEAD"),
    ],
)
def test_what_nobody_needs(ended: tuple[Path, Path, bytes], name: str, found: str) -> None:
    """An object that a dead process put, a slice, a blob, a key, and what a name left that never became a thread."""
    bucket, disk, key = ended
    at = folder(bucket).relative_to(bucket / "v1" / "t")
    path = bucket / name.format(place=at, namespace=at.parent, other=secrets.token_hex(16))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    (text,) = look(Directory(bucket), disk, key)
    assert found in text
