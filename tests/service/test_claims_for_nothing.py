"""The danger: a write that expects something of a missing thread fails, and leaves objects in the archive."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.daemon.inside import Inside, daemon_inside
from tests.daemon.wire import Refusal, refused

from stateward.v1.blob_service_pb2 import BlobBegin, WriteBlobRequest
from stateward.v1.effect_service_pb2 import BeginEffectRequest, PutEffectsRequest
from stateward.v1.lease_pb2 import Holder
from stateward.v1.lease_service_pb2 import AcquireLeaseRequest
from stateward.v1.record_service_pb2 import PutRecordsRequest
from stateward.v1.write_pb2 import WriteOptions

THREAD, HOLDER = "missing", Holder(name="me", incarnation="1")


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Inside]:
    with daemon_inside(tmp_path, archive=f"file://{tmp_path}/bucket") as inside:
        yield inside


def acquire(daemon: Inside, options: WriteOptions) -> Refusal:
    request = AcquireLeaseRequest(thread=THREAD, holder=HOLDER, options=options)
    return refused(daemon.wire.leases.AcquireLease, request)


def begin(daemon: Inside, options: WriteOptions) -> Refusal:
    request = BeginEffectRequest(thread=THREAD, key="pay", holder=HOLDER, options=options)
    return refused(daemon.wire.effects.BeginEffect, request)


def put_effects(daemon: Inside, options: WriteOptions) -> Refusal:
    request = PutEffectsRequest(thread=THREAD, options=options)
    request.effects.add(key="pay", value={"data": b"x"})
    return refused(daemon.wire.effects.PutEffects, request)


def put_records(daemon: Inside, options: WriteOptions) -> Refusal:
    request = PutRecordsRequest(thread=THREAD, options=options)
    request.writes.add(key="k", value={"data": b"x"})
    return refused(daemon.wire.records.PutRecords, request)


def write_blob(daemon: Inside, options: WriteOptions) -> Refusal:
    options.create.SetInParent()
    begun = BlobBegin(thread=THREAD, options=options)
    return refused(daemon.wire.blobs.WriteBlob, iter([WriteBlobRequest(begin=begun), WriteBlobRequest(data=b"x")]))


@pytest.mark.parametrize("write", [acquire, begin, put_effects, put_records, write_blob])
@pytest.mark.parametrize("expected", [{"expected_version": 4}, {"lease_token": 5}])
def test_nothing_is_claimed(
    daemon: Inside, write: Callable[[Inside, WriteOptions], Refusal], expected: dict[str, Any]
) -> None:
    if write is acquire and "lease_token" in expected:
        pytest.skip("it has no lease token")
    made: list[str] = []
    daemon.bucket.before = lambda method, key: made.append(key) if method in ("create", "replace", "put") else None
    reason = write(daemon, WriteOptions(request_id="r", **expected)).reason
    assert reason == ("VERSION_MISMATCH" if "expected_version" in expected else "LEASE_HELD")
    assert made == []
