"""The danger: a write that landed while its answer was lost is called a conflict, or is made twice."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.bucket.conftest import NappingClock, raise_once, retrying

from stateward_sidecar.bucket.base import (
    REPLACED_BYTES_MAX,
    Bucket,
    BucketDenied,
    BucketError,
    BucketFull,
    BucketUnavailable,
    Object,
    ObjectChanged,
    ObjectExists,
)
from stateward_sidecar.bucket.memory import MemoryBucket, etag_of
from stateward_sidecar.bucket.retrying import Patience

CALLS: dict[str, Callable[[Bucket], object]] = {
    "get": lambda bucket: bucket.get("old"),
    "get_range": lambda bucket: bucket.get_range("old", 0, 3),
    "put": lambda bucket: bucket.put("new", b"new"),
    "create": lambda bucket: bucket.create("new", b"new"),
    "replace": lambda bucket: bucket.replace("old", b"new", etag_of(b"old")),
    "delete": lambda bucket: bucket.delete("old"),
    "list": lambda bucket: list(bucket.list("")),
}
UNCLEAR = BucketUnavailable("connection reset", is_unclear=True)


def filled() -> MemoryBucket:
    bucket = MemoryBucket()
    bucket.put("old", b"old")
    return bucket


@pytest.mark.parametrize("times", [1, 4])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("method", list(CALLS))
def test_every_call_gets_through(method: str, when: str, times: int) -> None:
    """Whatever was lost, how often, and on which side of the effect: the answer and what is stored are as without."""
    faulty, plain = filled(), filled()
    if (method, when) != ("list", "after"):  # a listing that breaks after its first object raises
        setattr(faulty, when, raise_once(UNCLEAR, method, times))
    assert CALLS[method](retrying(faulty)) == CALLS[method](plain)
    assert faulty.objects == plain.objects


@pytest.mark.parametrize("method", ["create", "replace"])
def test_the_read_back_fails_as_well(method: str) -> None:
    """The answer is lost, and so are the first looks at what became of it."""
    bucket = filled()
    bucket.after = raise_once(UNCLEAR, method)
    bucket.before = raise_once(BucketUnavailable("503"), "get", 3)
    assert CALLS[method](retrying(bucket)) == etag_of(b"new")


@pytest.mark.parametrize(("method", "conflict"), [("create", ObjectExists), ("replace", ObjectChanged)])
def test_a_conflict_that_is_none(method: str, conflict: type[BucketError]) -> None:
    """A store that answers "conflict" while nothing changed is asked again."""
    bucket = filled()
    bucket.before = raise_once(conflict("k"), method, 2)
    assert CALLS[method](retrying(bucket)) == etag_of(b"new")


@pytest.mark.parametrize(
    ("method", "key", "conflict"), [("create", "new", ObjectExists), ("replace", "old", ObjectChanged)]
)
def test_landed_and_replaced_by_another(method: str, key: str, conflict: type[BucketError]) -> None:
    """That cannot be seen from the bytes: the conflict says that it is unclear."""
    bucket = filled()
    lost = raise_once(UNCLEAR, method)

    def replaced_and_lost(called: str, at: str) -> None:
        if called == method:
            bucket.objects[key] = b"another's"
        lost(called, at)

    bucket.after = replaced_and_lost
    with pytest.raises(conflict) as caught:
        CALLS[method](retrying(bucket))
    assert caught.value.is_unclear
    assert bucket.objects[key] == b"another's"


@pytest.mark.parametrize(("method", "conflict"), [("create", ObjectExists), ("replace", ObjectChanged)])
def test_a_clear_conflict(method: str, conflict: type[BucketError]) -> None:
    """Somebody else was first and no answer was lost: a conflict without doubt, and no time is spent."""
    bucket, clock = MemoryBucket(), NappingClock()
    bucket.objects |= {"old": b"another's", "new": b"another's"}
    with pytest.raises(conflict) as caught:
        CALLS[method](retrying(bucket, clock))
    assert not caught.value.is_unclear
    assert clock.naps == []


class FlipsOnce(MemoryBucket):
    """The first read back is damaged on the way."""

    flips = 1

    def get(self, key: str, most_bytes: int = REPLACED_BYTES_MAX) -> Object:
        found = super().get(key, most_bytes)
        if self.flips:
            self.flips -= 1
            return Object(b"nfw", found.etag)
        return found


def test_a_bit_flips_while_reading_back() -> None:
    """Our landed write is not taken for another's."""
    bucket = FlipsOnce()
    bucket.after = raise_once(UNCLEAR, "create")
    assert retrying(bucket).create("new", b"new") == etag_of(b"new")


@pytest.mark.parametrize("error", [BucketDenied("403"), BucketFull("507")])
@pytest.mark.parametrize("method", list(CALLS))
def test_what_trying_again_does_not_help(method: str, error: BucketError) -> None:
    """It is raised at once; after an unclear attempt it is unclear as well."""
    bucket, clock = filled(), NappingClock()
    bucket.before = raise_once(type(error)("no"), method, 99)
    with pytest.raises(type(error)) as caught:
        CALLS[method](retrying(bucket, clock))
    assert (caught.value.is_unclear, clock.naps) == (False, [])
    if method in ("create", "replace", "put"):
        bucket = filled()
        bucket.before = raise_once(type(error)("no"), method, 99)
        first = raise_once(UNCLEAR, method)
        denied = bucket.before
        bucket.before = lambda called, key: (first(called, key), denied(called, key))[0]
        with pytest.raises(type(error)) as caught:
            CALLS[method](retrying(bucket))
        assert caught.value.is_unclear


def test_the_deadline_bounds_the_waiting() -> None:
    """It gives up before the deadline would pass in its sleep; pauses stay in their bounds and differ."""
    bucket, clock = filled(), NappingClock()
    bucket.before = raise_once(BucketUnavailable("503"), "create", 10_000)
    with pytest.raises(BucketUnavailable) as caught:
        retrying(bucket, clock, Patience(deadline_s=60.0, pause_min_s=0.1, pause_max_s=4.0)).create("new", b"new")
    assert not caught.value.is_unclear
    assert 50.0 < sum(clock.naps) <= 60.0
    assert all(0.1 <= nap <= 4.0 for nap in clock.naps)
    assert len(set(clock.naps)) > 5


def test_doubt_is_not_forgotten() -> None:
    """One unclear attempt, then only clear failures: the write may have happened."""
    bucket = filled()
    lost, away = raise_once(UNCLEAR, "put"), raise_once(BucketUnavailable("refused"), "put", 10_000)
    bucket.before = lambda called, key: (lost(called, key), away(called, key))[0]
    with pytest.raises(BucketUnavailable) as caught:
        retrying(bucket).put("new", b"new")
    assert caught.value.is_unclear
