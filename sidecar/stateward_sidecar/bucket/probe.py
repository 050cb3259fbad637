"""Proves that a bucket honours conditional writes, before the archive relies on them."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from contextlib import suppress

from stateward_sidecar.bucket.base import (
    Bucket,
    BucketError,
    BucketRefused,
    BucketUnavailable,
    BucketUnfit,
    ObjectChanged,
    ObjectExists,
    ObjectNotFound,
)

PREFIX = "_probe/"


def probe_bucket(bucket: Bucket) -> None:
    """Creates, replaces, reads and deletes two objects with random names, and leaves nothing behind.

    Returns if the bucket behaves as promised. Raises BucketUnfit if the bucket was seen to break a promise, and says
    which; or another BucketError if the bucket cannot be used at all. Makes about a dozen requests, one by one.
    """
    name = PREFIX + secrets.token_hex(16)
    keys = f"{name}-1", f"{name}-2"
    written: list[str] = []
    try:
        _probe(bucket, *keys, written.append)
    finally:
        _tidy_up(bucket, written)


def _probe(bucket: Bucket, kept: str, deleted: str, note: Callable[[str], None]) -> None:
    """The writes of the two objects alternate: Google takes one write a second of each."""
    first, second, third = (f"{number} {secrets.token_hex(16)}".encode() for number in (1, 2, 3))
    first_etag = _create(bucket, kept, first, note)
    deleted_etag = _create(bucket, deleted, first, note)
    _expect(bucket, kept, first, first_etag)
    try:
        second_etag = _conditional(bucket, kept, note, lambda: bucket.replace(kept, second, first_etag))
    except ObjectChanged:
        raise BucketUnfit("the bucket refuses If-Match with the right ETag, so nothing could be updated") from None
    if second_etag == first_etag:
        raise BucketUnfit("the bucket gives two contents the same ETag, so nobody can tell which was written last")
    _expect_conflict(bucket, deleted, second)
    bucket.delete(deleted)
    with suppress(ObjectNotFound):
        bucket.get(deleted)
        raise BucketUnfit("the bucket still returns an object after it was deleted")
    _expect_change(bucket, kept, third, first_etag, "overwrites an object that was changed meanwhile (If-Match)")
    _expect(bucket, kept, second, second_etag)
    _expect_change(bucket, deleted, third, deleted_etag, "creates a deleted object again on If-Match")


def _tidy_up(bucket: Bucket, written: Iterable[str]) -> None:
    """Deletes the objects. Waits for a bucket that is away once at most, and not at all if nothing was written."""
    for key in written:
        try:
            bucket.delete(key)
        except BucketUnavailable:
            return
        except BucketError:
            continue


def _create(bucket: Bucket, key: str, data: bytes, note: Callable[[str], None]) -> str:
    def create() -> str:
        try:
            etag = bucket.create(key, data)
        except BucketError as error:
            if error.is_unclear:
                note(key)
            raise
        note(key)
        return etag

    return _conditional(bucket, key, note, create)


def _conditional(bucket: Bucket, key: str, note: Callable[[str], None], write: Callable[[], str]) -> str:
    """Makes a conditional write. If the bucket refuses it, an unconditional write tells whether the condition was the
    reason. The conditional write is then repeated, because a gateway may have refused only that one request."""
    try:
        return write()
    except BucketRefused as error:
        try:
            bucket.put(f"{key}-3", b"without a condition")
        except BucketError:
            raise error from None
        note(f"{key}-3")
        return _repeated(key, note, write, error)


def _repeated(key: str, note: Callable[[str], None], write: Callable[[], str], refusal: BucketRefused) -> str:
    try:
        return write()
    except BucketRefused as error:
        raise BucketUnfit(
            f"the bucket takes writes, but does not support conditional writes: {error.message}"
        ) from error
    except (ObjectExists, ObjectChanged):  # the refused write landed
        note(key)
        raise refusal from None


def _expect_conflict(bucket: Bucket, key: str, data: bytes) -> None:
    try:
        bucket.create(key, data)
    except ObjectExists:
        return
    raise BucketUnfit("the bucket overwrites an object that exists (If-None-Match: *), so two writers could both win")


def _expect_change(bucket: Bucket, key: str, data: bytes, stale: str, fault: str) -> None:
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
