"""The danger: in a bucket that denies deletions saves stop, or a deletion counts as done although the key is still
there."""

from __future__ import annotations

import os

import pytest
from google.protobuf.duration_pb2 import Duration
from tests.daemon.driven import NAMESPACE, append
from tests.daemon.town import Town

from stateward.v1.archive_service_pb2 import CollectGarbageRequest
from stateward.v1.thread_service_pb2 import DeleteThreadRequest
from stateward_sidecar.archive.fleet.collect import Collector, Verbs
from stateward_sidecar.bucket.base import BucketDenied
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
    assert not [key for key in driven.bucket.objects if "_keys/t/" in key]


def test_a_collection_says_that_it_failed(driven: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it may not delete is counted as no removal, and named with the reason; the bucket is not taken for away."""
    machine = driven.machine("first")
    for _ in range(30):
        machine.put(append(os.urandom(300)))
        machine.ship_now()
    monkeypatch.setattr(machine.bucket, "delete", deny)
    driven.time.sleep(7200)
    archive = machine.archive
    verbs = Verbs(
        lambda name: archive.own(*name), archive.delete, archive.attacher.bury_claim, archive.remove_locked
    )
    answers = list(Collector(machine.archive.state, verbs).collect(CollectGarbageRequest(grace=Duration())))
    assert answers[-1].failed == 1
    assert answers[-1].removed == 0
    assert [answer.problem for answer in answers if "refuses to delete" in answer.problem]
    assert not machine.wire.away_s
    assert machine.put(append()).version == 31


def test_an_expired_thread_stays_where_deletions_are_denied(driven: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tombstone is written, so nobody reads it any more; its key goes as soon as deletions are allowed again."""
    machine = driven.machine("first")
    request = append(after=0)
    request.options.create.ttl.FromSeconds(600)
    machine.put(request)
    machine.ship_now()
    monkeypatch.setattr(machine.bucket, "delete", deny)
    driven.time.sleep(7200)
    for _ in range(2):
        machine.sweep()
        machine.wire.background()
    assert not machine.wire.away_s
    monkeypatch.undo()
    driven.time.sleep(60)
    machine.sweep()
    machine.wire.background()
    machine.collect(0)
    assert machine.find("job") is None
    assert not [key for key in driven.bucket.objects if "_keys/t/" in key]
