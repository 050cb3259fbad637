"""The danger: a bucket that takes conditional writes and ignores the condition."""

from __future__ import annotations

import pytest
from tests.bucket.conftest import raise_once

from stateward_sidecar.bucket.base import (
    REPLACED_BYTES_MAX,
    Bucket,
    BucketRefused,
    BucketUnavailable,
    BucketUnfit,
    Object,
    ObjectChanged,
    ObjectNotFound,
)
from stateward_sidecar.bucket.memory import MemoryBucket, etag_of
from stateward_sidecar.bucket.probe import PREFIX, probe_bucket


class IgnoresCreate(MemoryBucket):
    def create(self, key: str, data: bytes) -> str:
        self.put(key, data)
        return etag_of(data)


class IgnoresReplace(MemoryBucket):
    def replace(self, key: str, data: bytes, etag: str) -> str:
        self.put(key, data)
        return etag_of(data)


class ReplacesMissing(MemoryBucket):
    def replace(self, key: str, data: bytes, etag: str) -> str:
        if key not in self.objects:
            self.put(key, data)
            return etag_of(data)
        return super().replace(key, data, etag)


class RefusesReplace(MemoryBucket):
    def replace(self, key: str, data: bytes, etag: str) -> str:
        raise ObjectChanged(key)


class KnowsNoConditions(MemoryBucket):
    def create(self, key: str, data: bytes) -> str:
        raise BucketRefused("501 Not Implemented")


class OtherEtag(MemoryBucket):
    def get(self, key: str, most_bytes: int = REPLACED_BYTES_MAX) -> Object:
        return Object(super().get(key, most_bytes).data, "other")


class ShowsLate(MemoryBucket):
    def get(self, key: str, most_bytes: int = REPLACED_BYTES_MAX) -> Object:
        raise ObjectNotFound(key)


def test_probe_passes_and_tidies_up(bucket: Bucket) -> None:
    """Every bucket here passes, and nothing is left behind."""
    probe_bucket(bucket)
    assert list(bucket.list(PREFIX)) == []


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        (IgnoresCreate, "overwrites an object that exists"),
        (IgnoresReplace, "changed meanwhile"),
        (ReplacesMissing, "creates a deleted object again"),
        (RefusesReplace, "refuses If-Match"),
        (KnowsNoConditions, "501 Not Implemented"),
        (OtherEtag, "another ETag"),
        (ShowsLate, "right after it was written"),
    ],
)
def test_probe_says_what_is_wrong(kind: type[MemoryBucket], fault: str) -> None:
    """The sentence names the fault, and the probe's object is gone."""
    bucket = kind()
    with pytest.raises(BucketUnfit, match=fault):
        probe_bucket(bucket)
    assert bucket.objects == {}


@pytest.mark.parametrize("method", ["create", "replace"])
def test_a_write_that_is_refused_once(method: str) -> None:
    """A passing 400 says nothing of conditions: the write is repeated, and the bucket passes."""
    bucket = MemoryBucket()
    bucket.before = raise_once(BucketRefused("400 Bad Request"), method)
    probe_bucket(bucket)
    assert bucket.objects == {}


def test_a_write_that_was_refused_and_lands() -> None:
    """A gateway refuses a write that the store took: the repeated write meets it. The bucket is not called unfit."""
    refused: list[str] = []

    class Lands(MemoryBucket):
        def create(self, key: str, data: bytes) -> str:
            etag = super().create(key, data)
            if not refused:
                refused.append(key)
                raise BucketRefused("400 Bad Request")
            return etag

    bucket = Lands()
    with pytest.raises(BucketRefused, match="400 Bad Request"):
        probe_bucket(bucket)
    assert refused
    assert bucket.objects == {}


def test_a_bucket_that_is_away_is_not_called_unfit() -> None:
    """Then nothing is known of it."""
    bucket = MemoryBucket()

    def away(method: str, key: str) -> None:
        raise BucketUnavailable("away")

    bucket.before = away
    with pytest.raises(BucketUnavailable):
        probe_bucket(bucket)
