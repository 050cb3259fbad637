"""The danger: a store that takes one write a second of each object is asked more often, and refuses half of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace

import pytest
from tests.bucket.conftest import NappingClock, raise_once, retrying
from tests.bucket.gcs import gcs_environment
from tests.bucket.gcs_front import Front

from stateward_sidecar.bucket import pacing
from stateward_sidecar.bucket.base import BucketUnavailable, ObjectExists
from stateward_sidecar.bucket.memory import MemoryBucket
from stateward_sidecar.bucket.open import open_bucket
from stateward_sidecar.bucket.pacing import FORGOTTEN_AFTER_S, PacedBucket
from stateward_sidecar.bucket.probe import probe_bucket
from stateward_sidecar.clock import Clock


def too_many() -> BucketUnavailable:
    return BucketUnavailable("slow down", status=429)


def paced(every_s: float) -> tuple[PacedBucket, MemoryBucket, NappingClock]:
    inner, clock = MemoryBucket(), NappingClock()
    inner.rewrites_every_s = every_s
    return PacedBucket(inner, clock, clock.sleep), inner, clock


@pytest.fixture
def strict(gcs_front: Front) -> Iterator[Front]:
    """Google's limit is enforced."""
    gcs_front.one_a_second = True
    gcs_front.answers.clear()
    yield gcs_front
    gcs_front.one_a_second = False


def test_writes_of_one_object_are_kept_apart() -> None:
    """The second write of an object waits, the first of another one and everything else do not."""
    bucket, _, clock = paced(1.0)
    etag = bucket.create("a/HEAD", b"1")
    bucket.create("b/HEAD", b"1")
    bucket.put("a/1.pack", b"x")
    bucket.put("a/1.pack", b"x")
    bucket.get("a/HEAD")
    bucket.delete("a/1.pack")
    assert clock.naps == []
    etag = bucket.replace("a/HEAD", b"2", etag)
    assert clock.naps == [1.0]
    clock.now += 0.75
    bucket.replace("a/HEAD", b"3", etag)
    assert clock.naps == [1.0, 0.25]


def test_a_store_without_the_limit_is_not_held_back() -> None:
    """Nobody waits, also if one 429 came long after the last write."""
    bucket, inner, clock = paced(0.0)
    etag = bucket.create("a/HEAD", b"1")
    etag = bucket.replace("a/HEAD", b"2", etag)
    clock.now += 5
    inner.before = raise_once(too_many(), "replace")
    with pytest.raises(BucketUnavailable):
        bucket.replace("a/HEAD", b"3", etag)
    bucket.replace("a/HEAD", b"3", etag)
    assert clock.naps == []


def test_the_limit_is_learnt() -> None:
    """A store that answers 429 to the second write within a second is paced from then on."""
    bucket, inner, clock = paced(0.0)
    etag = bucket.create("a/HEAD", b"1")
    inner.before = raise_once(too_many(), "replace")
    with pytest.raises(BucketUnavailable):
        bucket.replace("a/HEAD", b"2", etag)
    assert bucket.rewrites_every_s == 1.0
    bucket.replace("a/HEAD", b"2", etag)
    assert clock.naps == [1.0]


def test_a_refused_write_teaches_nothing() -> None:
    """Only a write that landed counts: two 429 in a row may come from any limit of the store."""
    bucket, inner, clock = paced(0.0)
    inner.before = raise_once(too_many(), "create", 3)
    for _ in range(3):
        with pytest.raises(BucketUnavailable):
            bucket.create("a/HEAD", b"1")
        clock.now += 0.1
    assert bucket.rewrites_every_s == 0.0


def test_what_was_learnt_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten minutes without a 429 end the pause; the pause of Google never ends. The log says once that it began."""
    warnings: list[str] = []
    monkeypatch.setattr(pacing, "log", SimpleNamespace(warning=warnings.append))
    for every_s, later_s in ((0.0, 0.0), (1.0, 1.0)):
        bucket, inner, clock = paced(every_s)
        etag = bucket.create("a/HEAD", b"1")
        inner.before = raise_once(too_many(), "replace", 2)
        for _ in range(2):
            with pytest.raises(BucketUnavailable):
                bucket.replace("a/HEAD", b"2", etag)
        assert bucket.rewrites_every_s == 1.0
        clock.now += FORGOTTEN_AFTER_S - 10
        etag = bucket.replace("a/HEAD", b"2", etag)
        assert bucket.rewrites_every_s == 1.0
        clock.now += 20
        bucket.replace("a/HEAD", b"3", etag)
        assert bucket.rewrites_every_s == later_s
    assert len(warnings) == 1  # of the store whose limit was not known


def test_anothers_write_costs_one_429() -> None:
    """The second attempt after a 429 waits for the whole pause, and not for the first tenth of a second."""
    inner, clock = MemoryBucket(), NappingClock()
    inner.rewrites_every_s = 1.0
    etag = inner.create("a/HEAD", b"by another machine")
    bucket = retrying(PacedBucket(inner, clock, clock.sleep), clock)
    attempts: list[float] = []

    def hook(method: str, key: str) -> None:
        if method == "replace":
            attempts.append(clock.now)
            if clock.now - attempts[0] < 1.0:
                raise too_many()

    inner.before = hook
    bucket.replace("a/HEAD", b"mine", etag)
    assert len(attempts) == 2
    assert bucket.rewrites_every_s == 1.0


def test_threads_that_write_one_object_take_turns() -> None:
    """Eight threads write one object; no two writes lie closer together than the pause."""
    inner, lock, times = MemoryBucket(), threading.Lock(), []
    inner.rewrites_every_s = 0.05
    bucket = PacedBucket(inner, Clock())

    def note(method: str, key: str) -> None:
        with lock:
            times.append(Clock().monotonic())

    inner.before = note

    def create(number: int) -> None:
        with suppress(ObjectExists):  # one of eight wins
            bucket.create("a/HEAD", b"%d" % number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(times) == 8
    assert min(later - earlier for earlier, later in zip(sorted(times), sorted(times)[1:], strict=False)) > 0.045


def test_the_probe_meets_no_429(strict: Front) -> None:
    """It passes with one write a second, and the store refuses nothing of it."""
    bucket = open_bucket("gs://stateward/strict-probe", gcs_environment(strict.url), Clock())
    probe_bucket(bucket)
    assert strict.answers["PUT", 429] == 0
    assert list(bucket.list("_probe/")) == []
