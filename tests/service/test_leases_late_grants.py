"""The danger: a lease is granted, its answer waits for the archive, and its term ends before its holder knows of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from google.protobuf.duration_pb2 import Duration
from tests.daemon.inside import WAIT_S, Inside, daemon_inside, held_back
from tests.daemon.wire import appends, refused
from tests.messages import to_write

from stateward.v1.checkpoint_pb2 import DURABILITY_ARCHIVED, DURABILITY_COMMITTED
from stateward.v1.checkpoint_service_pb2 import SaveRequest
from stateward.v1.lease_pb2 import Holder
from stateward.v1.lease_service_pb2 import AcquireLeaseRequest, AcquireLeaseResponse
from stateward.v1.thread_service_pb2 import GetThreadRequest
from stateward.v1.write_pb2 import WriteOptions

THREAD = "job"


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Inside]:
    with daemon_inside(tmp_path, archive=f"file://{tmp_path}/bucket", archive_interval="60") as inside:
        inside.wire.save(save("first"))
        yield inside


def save(request_id: str, thread: str = THREAD) -> SaveRequest:
    return to_write(
        SaveRequest, thread=thread, diff=appends("x"), request_id=request_id, durability=DURABILITY_ARCHIVED
    )


def away(daemon: Inside) -> AbstractContextManager[None]:
    """What is put into the bucket hangs."""
    return held_back(daemon, lambda method, _: method in ("put", "create", "replace"))


def asked(who: str, *, archived: bool, term_s: int = 1) -> AcquireLeaseRequest:
    return AcquireLeaseRequest(
        thread=THREAD, holder=Holder(name=who, incarnation="1"), term=Duration(seconds=term_s),
        options=WriteOptions(
            request_id=who, durability=DURABILITY_ARCHIVED if archived else DURABILITY_COMMITTED
        ),
    )  # fmt: skip


def acquire(daemon: Inside, who: str, *, timeout: float, term_s: int = 1) -> AcquireLeaseResponse:
    request = asked(who, archived=True, term_s=term_s)
    answer: AcquireLeaseResponse = daemon.wire.leases.AcquireLease(request, timeout=timeout)
    return answer


def test_nobody_takes_a_lease_whose_grant_is_not_answered_yet(daemon: Inside) -> None:
    """The holder cannot renew it before the answer."""
    with ThreadPoolExecutor(1) as pool:
        with away(daemon):
            first = pool.submit(acquire, daemon, "first", timeout=60.0)
            while not daemon.wire.threads.GetThread(GetThreadRequest(thread=THREAD), timeout=5).HasField("lease"):
                assert not first.done()
            time.sleep(2)
            assert refused(daemon.wire.leases.AcquireLease, asked("other", archived=False)).reason == "LEASE_HELD"
            assert not first.done()
        assert first.result(WAIT_S).receipt.durability == DURABILITY_ARCHIVED


def test_the_term_begins_with_the_answer(daemon: Inside) -> None:
    """The answer says how much of the term is left."""
    with away(daemon):
        granted = acquire(daemon, "first", timeout=3.0, term_s=6)
        assert granted.receipt.durability == DURABILITY_COMMITTED
        found = daemon.wire.threads.GetThread(GetThreadRequest(thread=THREAD), timeout=5)
        assert found.lease.token == granted.lease.token
        assert 3.2 < found.lease.remaining.ToMicroseconds() / 1e6 <= granted.lease.remaining.ToMicroseconds() / 1e6
