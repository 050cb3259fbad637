"""A bucket that keeps objects on purpose: it denies every deletion. Everything but deletions works on."""

from __future__ import annotations

import os

import pytest
from tests.archive.driven import Town, append
from tests.archive_model.sidecar import NAMESPACE

from stateward.v1.thread_service_pb2 import DeleteThreadRequest
from stateward_sidecar.bucket.errors import BucketDenied
from stateward_sidecar.errors import ArchiveUnavailable


def deny(key: str) -> None:
    raise BucketDenied(f"{key} is locked")


def test_saves_go_on(driven: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """Garbage stays; the bucket is not taken for one that is away, and HEADs are written."""
    machine = driven.machine("first")
    monkeypatch.setattr(machine.bucket, "delete", deny)
    for _ in range(60):
        machine.put(append(os.urandom(200)))
        machine.ship_now()
        driven.time.sleep(120)
        assert not machine.wire.away_s
        assert not machine.wire.refuses
    other = driven.machine("second")
    other.archive.own(NAMESPACE, "job", take_over=True)
    assert other.thread().head.last_version == 60


def test_a_deletion_says_that_it_failed(driven: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key is still there: the caller must know it. Nobody can read or write the thread any more."""
    machine = driven.machine("first")
    machine.put(append())
    machine.ship_now()
    monkeypatch.setattr(machine.bucket, "delete", deny)
    request = DeleteThreadRequest(namespace=NAMESPACE, thread="job")
    with pytest.raises(ArchiveUnavailable, match="refuses to delete"):
        machine.delete(request)
    monkeypatch.undo()
    machine.delete(DeleteThreadRequest(namespace=NAMESPACE, thread="job", allow_missing=True))
    assert not [key for key in driven.net.bucket.objects if "_keys/t/" in key]
