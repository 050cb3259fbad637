"""The danger: an answer says more or less than what happened: a failed refresh takes the place of what was read, and a
delete counts what nobody could see."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.empty_pb2 import Empty
from tests.daemon.inside import Inside, daemon_inside
from tests.daemon.wire import refused, text

from stateward.v1.admin_service_pb2 import DrainRequest
from stateward.v1.record_pb2 import RecordWrite
from stateward.v1.record_service_pb2 import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    GetRecordsRequest,
    ListRecordsRequest,
    PutRecordsRequest,
    PutRecordsResponse,
)
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar import errors

PLACE = {"namespace": "default", "thread": "store"}


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Inside]:
    with daemon_inside(tmp_path) as daemon:
        yield daemon


@pytest.fixture
def ahead(daemon: Inside, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that the daemon's clock is ahead."""
    clock, seconds = daemon.parts.store.context.clock, [0.0]
    now_us = clock.now_us
    monkeypatch.setattr(clock, "now_us", lambda: now_us() + int(seconds[0] * 1e6))
    return seconds


def put(daemon: Inside, *writes: RecordWrite, request_id: str = "") -> PutRecordsResponse:
    request = PutRecordsRequest(
        **PLACE, writes=writes, options=WriteOptions(request_id=request_id or os.urandom(8).hex())
    )
    answer: PutRecordsResponse = daemon.wire.records.PutRecords(request)
    return answer


def value(key: str, seconds: int = 0) -> RecordWrite:
    return RecordWrite(key=key, value=text(key), ttl={"seconds": seconds} if seconds else None)


def delete_all(daemon: Inside, prefix: str, request_id: str) -> DeleteRecordsResponse:
    request = DeleteRecordsRequest(**PLACE, prefix=prefix, options=WriteOptions(request_id=request_id))
    answer: DeleteRecordsResponse = daemon.wire.records.DeleteRecords(request)
    return answer


def rows(daemon: Inside) -> int:
    with daemon.parts.store.context.engine.read() as txn:
        thread = daemon.parts.store.threads.find(txn, "default", "store")
    assert thread is not None
    return thread.head.records


def test_a_delete_counts_what_was_there(daemon: Inside, ahead: list[float]) -> None:
    """Expired records count as missing, by key and by prefix, also in the answer of a retry; they are removed now."""
    put(daemon, value("a"), *(value(key, 10) for key in ("b", "c1", "c2", "d")), value("c3"))
    ahead[0] = 11
    deletes = [RecordWrite(key=key, delete=Empty()) for key in ("a", "b", "never")]
    for _ in range(2):
        assert put(daemon, *deletes, request_id="r1").deleted == 1
        assert delete_all(daemon, "c", "r2").deleted == 1
    assert put(daemon, RecordWrite(key="d", delete=Empty())).deleted == 0
    assert delete_all(daemon, "b", "r3").deleted == 0
    assert rows(daemon) == 0
    ahead[0] = 0  # what was deleted does not come back with a clock that is set back
    assert list(daemon.wire.records.ListRecords(ListRecordsRequest(**PLACE)).records) == []
    assert daemon.wire.findings("default") == []


FAILURES: list[errors.StatewardError] = [
    errors.NotOwner("another sidecar has it"), errors.DiskFull("no space"), errors.QueueFull("too many"),
    errors.ShuttingDown("draining"), errors.ArchiveUnavailable("no answer"), errors.ThreadNotFound("deleted"),
]  # fmt: skip


@pytest.mark.parametrize("failure", FAILURES, ids=lambda error: error.reason)
def test_a_refresh_that_fails_leaves_what_was_read(
    daemon: Inside, ahead: list[float], monkeypatch: pytest.MonkeyPatch, failure: errors.StatewardError
) -> None:
    """The records come, with the times that they have; the next refresh begins them anew."""
    put(daemon, value("a", 100))
    ahead[0] = 50

    def fail(*arguments: Any) -> Any:
        raise failure

    with monkeypatch.context() as patch:
        patch.setattr(daemon.parts.store.record_puts, "refresh", lambda *arguments: fail)
        before = seen(daemon)
        assert seen(daemon, refresh_ttl=True) == before
    ahead[0] = 60
    after = seen(daemon, refresh_ttl=True)
    assert [key for key, _ in after] == ["a", "a"]
    assert 59 < after[0][1] - before[0][1] < 80


def seen(daemon: Inside, **fields: Any) -> list[tuple[str, float]]:
    """Keys and times of the records, as both reads answer them."""
    records = daemon.wire.records
    got = records.GetRecords(GetRecordsRequest(**PLACE, keys=["a"], **fields)).records
    listed = records.ListRecords(ListRecordsRequest(**PLACE, **fields)).records
    return [(each.key, each.expire_time.ToNanoseconds() / 1e9) for each in (*got, *listed)]


def test_a_drained_daemon_answers_reads_that_refresh(daemon: Inside, ahead: list[float]) -> None:
    """Reads go on, and writes do not."""
    put(daemon, value("a", 100))
    ahead[0] = 50
    before = seen(daemon)
    daemon.wire.admin.Drain(DrainRequest())
    assert seen(daemon, refresh_ttl=True) == before
    request = PutRecordsRequest(**PLACE, writes=[value("b")], options=WriteOptions(request_id="r"))
    assert refused(daemon.wire.records.PutRecords, request).reason == "SHUTTING_DOWN"
