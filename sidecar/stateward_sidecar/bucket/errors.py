"""How a bucket fails. There is one class for each reaction of the caller.

None of these errors reaches a client as it is: the code that uses the bucket says what the failure means for its call.

Exception
└── BucketError             base; ``is_unclear`` says that the call may have had its effect
    ├── ObjectNotFound      no object has this name
    ├── ObjectExists        create: an object has this name already
    ├── ObjectChanged       replace: the object was changed or deleted since it was read
    ├── ObjectTooLarge      get: the object has more bytes than any that Stateward writes there
    ├── ObjectCold          the object is in a storage class that must be restored before it can be read
    ├── BucketUnavailable   no answer, or the bucket asks to try again later
    ├── BucketDenied        credentials or permissions are missing
    ├── BucketFull          no room is left, or a quota is reached
    ├── BucketRefused       the bucket does not support the request, does not exist, or must not be used any more
    └── BucketUnfit         the probe found that the bucket breaks a promise that the archive relies on
"""

from __future__ import annotations


class BucketError(Exception):
    """Base class. ``is_unclear``: a write may have happened, or may still happen, although the call failed."""

    def __init__(self, message: str, *, is_unclear: bool = False, **metadata: object) -> None:
        super().__init__(message)
        self.message = message
        self.metadata = {key: str(value) for key, value in metadata.items()}
        self.is_unclear = is_unclear


class ObjectNotFound(BucketError):
    """No object has this name."""

    def __init__(self, key: str) -> None:
        super().__init__(f"the bucket has no object {key}", key=key)


class ObjectExists(BucketError):
    """An object has this name already. Read it.

    ``is_unclear`` from the retrying wrapper: an earlier attempt of this call may have landed and been replaced since.
    """

    def __init__(self, key: str, *, is_unclear: bool = False) -> None:
        super().__init__(f"the bucket already has an object {key}", key=key, is_unclear=is_unclear)


class ObjectTooLarge(BucketError):
    """The object has more bytes than the caller asked for, so nobody of Stateward wrote it. Nothing of it was read."""

    def __init__(self, key: str, size_bytes: int, most_bytes: int) -> None:
        super().__init__(f"the object {key} has {size_bytes} bytes, more than {most_bytes}", key=key)


class ObjectCold(BucketError):
    """The object is in a storage class for archives, and cannot be read before somebody restores it. Nothing is wrong
    with credentials, nor with other objects."""

    def __init__(self, key: str) -> None:
        super().__init__(
            f"the object {key} is in a storage class that must be restored before it can be read: restore it (S3: "
            "RestoreObject, Azure: Set Blob Tier), and exempt this archive from the lifecycle rule that moved it",
            key=key,
        )


class ObjectChanged(BucketError):
    """The object has another etag than the one given, or was deleted. Read it again.

    ``is_unclear`` from the retrying wrapper: an earlier attempt of this call may have landed and been replaced since.
    """

    def __init__(self, key: str, *, is_unclear: bool = False) -> None:
        super().__init__(f"the object {key} was changed or deleted meanwhile", key=key, is_unclear=is_unclear)


class BucketUnavailable(BucketError):
    """The bucket cannot be reached, is overloaded, or did not answer in time. Try again later."""


class BucketMissing(BucketUnavailable):
    """The whole directory of a bucket is missing, as if it were not mounted. Reads fail at once: a missing mount
    does not come back within seconds."""


class BucketDenied(BucketError):
    """The bucket denies access. Correct the credentials or permissions; trying again does not help."""


class BucketFull(BucketError):
    """No room is left, or a quota is reached. Nothing was written. Free space, then try again."""


class BucketRefused(BucketError):
    """The bucket does not exist, does not know this kind of request, or failed in a way that needs a restart."""


class BucketUnfit(BucketError):
    """The bucket breaks a promise that the archive relies on; the message says which. Use another bucket."""


def check_size(key: str, size_bytes: int, most_bytes: int) -> None:
    """Raises ObjectTooLarge."""
    if size_bytes > most_bytes:
        raise ObjectTooLarge(key, size_bytes, most_bytes)
