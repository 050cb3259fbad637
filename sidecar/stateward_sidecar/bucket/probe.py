"""Proves that a bucket honours conditional writes, before the archive relies on them."""

from __future__ import annotations

import secrets
from contextlib import suppress

from stateward_sidecar.bucket.base import (
    Bucket,
    BucketError,
    BucketRefused,
    BucketUnfit,
    ObjectChanged,
    ObjectExists,
    ObjectNotFound,
)

PREFIX = "_probe/"


def probe_bucket(bucket: Bucket) -> None:
    """Creates, replaces, reads and deletes one object with a random name, and leaves nothing behind.

    Returns if the bucket behaves as promised. Raises BucketUnfit, which says what is wrong, or another BucketError if
    the bucket cannot be used at all. Makes about ten requests, one after the other.
    """
    key = PREFIX + secrets.token_hex(16)
    try:
        _probe(bucket, key)
    except BucketRefused as error:
        raise BucketUnfit(f"the bucket does not support conditional writes, or is missing: {error.message}") from error
    finally:
        with suppress(BucketError):
            bucket.delete(key)


def _probe(bucket: Bucket, key: str) -> None:
    first, second, third = (f"{number} {secrets.token_hex(16)}".encode() for number in (1, 2, 3))
    first_etag = bucket.create(key, first)
    _probe_create(bucket, key, second)
    _expect(bucket, key, first, first_etag)
    try:
        second_etag = bucket.replace(key, second, first_etag)
    except ObjectChanged:
        raise BucketUnfit("the bucket refuses If-Match with the right ETag, so nothing could be updated") from None
    if second_etag == first_etag:
        raise BucketUnfit("the bucket gives two contents the same ETag, so nobody can tell which was written last")
    _probe_replace(bucket, key, third, first_etag, "overwrites an object that was changed meanwhile (If-Match)")
    _expect(bucket, key, second, second_etag)
    bucket.delete(key)
    with suppress(ObjectNotFound):
        bucket.get(key)
        raise BucketUnfit("the bucket still returns an object after it was deleted")
    _probe_replace(bucket, key, third, second_etag, "creates a deleted object again on If-Match")


def _probe_create(bucket: Bucket, key: str, data: bytes) -> None:
    try:
        bucket.create(key, data)
    except ObjectExists:
        return
    raise BucketUnfit("the bucket overwrites an object that exists (If-None-Match: *), so two writers could both win")


def _probe_replace(bucket: Bucket, key: str, data: bytes, stale: str, fault: str) -> None:
    try:
        bucket.replace(key, data, stale)
    except ObjectChanged:
        return
    raise BucketUnfit(f"the bucket {fault}, so writers could overwrite each other")


def _expect(bucket: Bucket, key: str, data: bytes, etag: str) -> None:
    try:
        found = bucket.get(key)
    except ObjectNotFound:
        raise BucketUnfit("the bucket does not show an object right after it was written") from None
    if found.data != data:
        raise BucketUnfit("the bucket returns other bytes than those that were written last")
    if found.etag != etag:
        raise BucketUnfit("the bucket gives another ETag on reading than on writing")
