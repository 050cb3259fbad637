"""The danger: records that have expired take the places of new ones, and a steady load is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.daemon.inside import Inside, daemon_inside
from tests.daemon.wire import refused, text

from stateward.v1.record_pb2 import RecordWrite
from stateward.v1.record_service_pb2 import ListRecordsRequest, PutRecordsRequest
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.store.items import recordputs

PLACE = {"namespace": "default", "thread": "cache"}


def asked(*keys: str, seconds: int = 2) -> PutRecordsRequest:
    writes = [RecordWrite(key=key, value=text("x" * 100), ttl={"seconds": seconds}) for key in keys]
    return PutRecordsRequest(**PLACE, writes=writes, options=WriteOptions(request_id=os.urandom(8).hex()))


def put(daemon: Inside, *keys: str, seconds: int = 2) -> None:
    daemon.wire.records.PutRecords(asked(*keys, seconds=seconds))


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A scope is full with 20 records. The seconds are those that the daemon's clock is ahead."""
    monkeypatch.setattr(recordputs, "RECORDS_MAX", 20)
    return [0.0]


def move_clock(daemon: Inside, monkeypatch: pytest.MonkeyPatch, ahead: list[float]) -> None:
    clock = daemon.parts.store.context.clock
    now_us = clock.now_us
    monkeypatch.setattr(clock, "now_us", lambda: now_us() + int(ahead[0] * 1e6))


@pytest.mark.parametrize("many", [1, 4])
def test_short_lived_records_are_never_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: list[float], many: int
) -> None:
    """However many are written, if few live at a time; no sweep runs meanwhile."""
    with daemon_inside(tmp_path) as daemon:
        move_clock(daemon, monkeypatch, ahead)
        for number in range(60):
            put(daemon, *(f"{number}.{each}" for each in range(many)))
            ahead[0] += 1
        listed = daemon.wire.records.ListRecords(ListRecordsRequest(**PLACE)).records
        assert len(listed) <= 2 * many
        assert {record.key for record in listed} >= {f"59.{each}" for each in range(many)}


def test_living_records_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: list[float]) -> None:
    """What lives keeps its place, and a clock that jumped gives no places away."""
    with daemon_inside(tmp_path) as daemon:
        move_clock(daemon, monkeypatch, ahead)
        put(daemon, *(f"a{number}" for number in range(10)), seconds=1000)
        put(daemon, *(f"b{number}" for number in range(10)), seconds=2)
        assert refused(daemon.wire.records.PutRecords, asked("new")).reason == "QUOTA_EXCEEDED"
        ahead[0] = 3
        put(daemon, "new", seconds=10_000)
        put(daemon, *(f"c{number}" for number in range(9)), seconds=1000)
        ahead[0] = 5000  # by more than an hour at once
        assert refused(daemon.wire.records.PutRecords, asked("newer")).reason == "QUOTA_EXCEEDED"
        ahead[0] = 3
        assert len(daemon.wire.records.ListRecords(ListRecordsRequest(**PLACE)).records) == 20
