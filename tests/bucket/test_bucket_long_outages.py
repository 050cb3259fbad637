"""The danger: a store that is away holds up each of a thousand reads for as long as the first."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress

import pytest
from tests.daemon.clocks import FakeClock

from stateward_sidecar.bucket.base import Bucket, BucketUnavailable, ObjectNotFound
from stateward_sidecar.bucket.memory import MemoryBucket
from stateward_sidecar.bucket.retrying import Patience, RetryingBucket

PATIENCE_S = 8.0
READS: dict[str, Callable[[Bucket], object]] = {
    "get": lambda bucket: bucket.get("a"), "get_range": lambda bucket: bucket.get_range("a", 0, 1),
    "list": lambda bucket: list(bucket.list("")),
}  # fmt: skip


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_only_the_first_read_waits(read: Callable[[Bucket], object]) -> None:
    """A write tries on, as its caller waits for it alone. What is answered, also with "not found", ends the outage."""
    bucket, clock, is_away = MemoryBucket(), FakeClock(), True

    def refuse(_method: str, key: str) -> None:
        if is_away:
            raise BucketUnavailable(f"{key}: 503")

    bucket.before = refuse
    retrying = RetryingBucket(bucket, clock, Patience(PATIENCE_S, 0.01, 0.05), clock.sleep, random.Random(1))

    def took_s(call: Callable[[Bucket], object]) -> float:
        before = clock.monotonic()
        with pytest.raises(BucketUnavailable):
            call(retrying)
        return clock.monotonic() - before

    assert took_s(read) > PATIENCE_S * 0.9
    assert sum(took_s(read) for _ in range(1000)) == 0
    assert took_s(lambda bucket: bucket.put("b", b"")) > PATIENCE_S * 0.9
    assert took_s(read) == 0
    bucket.objects["there"] = b""
    for key in ("missing", "there"):
        is_away = False
        with suppress(ObjectNotFound):
            retrying.get(key)
        is_away = True
        assert took_s(read) > PATIENCE_S * 0.9
