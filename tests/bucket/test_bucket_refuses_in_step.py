"""The danger: a bucket refuses every n-th request, and a call of n requests never gets through."""

from __future__ import annotations

import random

import pytest
from tests.daemon.clocks import FakeClock

from stateward_sidecar.bucket.base import BucketUnavailable, ObjectChanged, ObjectExists
from stateward_sidecar.bucket.memory import MemoryBucket
from stateward_sidecar.bucket.retrying import Patience, RetryingBucket


@pytest.mark.parametrize("every", [2, 3, 4])
@pytest.mark.parametrize("first", range(4))
def test_a_conflict_is_told_all_the_same(every: int, first: int) -> None:
    """A write that meets another one is followed by two reads; a refused read is repeated by itself."""
    bucket, clock, requests = MemoryBucket(), FakeClock(), first
    bucket.objects["a/HEAD"] = b"another"

    def refuse(_method: str, key: str) -> None:
        nonlocal requests
        requests += 1
        if requests % every == 0:
            raise BucketUnavailable(f"{key}: 503", is_unclear=True)

    bucket.before = refuse
    retrying = RetryingBucket(bucket, clock, Patience(deadline_s=8.0), clock.sleep, random.Random(first))
    with pytest.raises(ObjectExists):
        retrying.create("a/HEAD", b"mine")
    with pytest.raises(ObjectChanged):
        retrying.replace("a/HEAD", b"mine", "an old etag")
