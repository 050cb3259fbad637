"""The danger: the bucket is away, and a worker that ends cannot let go of its lease: the next one waits its term."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.daemon.inside import Inside, daemon_inside
from tests.daemon.wire import TIMEOUT_S

from stateward.v1.checkpoint_pb2 import DURABILITY_ARCHIVED, DURABILITY_COMMITTED
from stateward.v1.lease_service_pb2 import AcquireLeaseRequest, ReleaseLeaseRequest
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.bucket.base import BucketUnavailable


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Inside]:
    """Archives each write before it answers, if the write asks for no other durability."""
    archive = f"file://{tmp_path}/bucket"
    with daemon_inside(tmp_path, archive=archive, archive_interval="60", default_durability="archived") as inside:
        yield inside


def fail(method: str, key: str) -> None:
    raise BucketUnavailable("is away")


def wanted(name: str) -> AcquireLeaseRequest:
    request = AcquireLeaseRequest(thread="job", options=WriteOptions(request_id=name))
    request.holder.name = request.holder.incarnation = name
    request.term.FromSeconds(600)
    return request


def test_the_lease_is_free_at_once(daemon: Inside) -> None:
    """The answer says how durable the release is."""
    leases = daemon.wire.leases
    held = leases.AcquireLease(wanted("first"), timeout=TIMEOUT_S)
    assert held.receipt.durability == DURABILITY_ARCHIVED
    daemon.bucket.before = fail
    request = ReleaseLeaseRequest(thread="job", options=WriteOptions(lease_token=held.lease.token))
    answer = leases.ReleaseLease(request, timeout=TIMEOUT_S)
    assert (answer.released, answer.receipt.durability) == (True, DURABILITY_COMMITTED)
    daemon.bucket.before = lambda method, key: None
    assert leases.AcquireLease(wanted("next"), timeout=TIMEOUT_S).lease.holder.name == "next"


def test_a_caller_that_asks_for_more_gets_more(daemon: Inside) -> None:
    """The release waits for the bucket, as any other write would."""
    leases = daemon.wire.leases
    held = leases.AcquireLease(wanted("first"), timeout=TIMEOUT_S)
    options = WriteOptions(lease_token=held.lease.token, durability=DURABILITY_ARCHIVED)
    answer = leases.ReleaseLease(ReleaseLeaseRequest(thread="job", options=options), timeout=TIMEOUT_S)
    assert (answer.released, answer.receipt.durability) == (True, DURABILITY_ARCHIVED)
