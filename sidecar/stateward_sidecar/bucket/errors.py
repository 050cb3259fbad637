"""How a bucket fails. One class for each reaction of the caller.

None of them leaves the daemon as it is: whoever uses a bucket says what the failure means for the call it serves.

Exception
└── BucketError             base; ``is_unclear`` says whether the call may have had its effect all the same
    ├── ObjectNotFound      no object of this name
    ├── ObjectExists        create: the name is taken
    ├── ObjectChanged       replace: the object is not the one that was read, or is gone
    ├── BucketUnavailable   no answer, or one that asks to come back: try again later
    ├── BucketDenied        credentials or permissions are missing
    ├── BucketFull          no room, or a quota is used up
    ├── BucketRefused       the bucket does not do that, does not exist, or must not be used any more
    └── BucketUnfit         the probe found that it does not keep what the archive builds on
"""

from __future__ import annotations


class BucketError(Exception):
    """Base of all. ``is_unclear``: a write may have happened, or may still happen, although the call failed."""

    def __init__(self, message: str, *, is_unclear: bool = False, **metadata: object) -> None:
        super().__init__(message)
        self.message = message
        self.metadata = {key: str(value) for key, value in metadata.items()}
        self.is_unclear = is_unclear


class ObjectNotFound(BucketError):
    """No object of this name."""

    def __init__(self, key: str) -> None:
        super().__init__(f"the bucket has no object {key}", key=key)


class ObjectExists(BucketError):
    """The name is taken. Read what is there.

    ``is_unclear`` from the retrying wrapper: an earlier attempt of this call may have landed and been replaced since.
    """

    def __init__(self, key: str, *, is_unclear: bool = False) -> None:
        super().__init__(f"the bucket already has an object {key}", key=key, is_unclear=is_unclear)


class ObjectChanged(BucketError):
    """The object is not the one whose etag was given, or is gone. Read it again.

    ``is_unclear`` from the retrying wrapper: an earlier attempt of this call may have landed and been replaced since.
    """

    def __init__(self, key: str, *, is_unclear: bool = False) -> None:
        super().__init__(f"the object {key} was changed or deleted meanwhile", key=key, is_unclear=is_unclear)


class BucketUnavailable(BucketError):
    """The bucket cannot be reached, is overloaded, or did not answer in time. Try again later."""


class BucketDenied(BucketError):
    """The bucket does not let us. Correct credentials or permissions; trying again does not help."""


class BucketFull(BucketError):
    """No room is left, or a quota is used up. Nothing was written; free space, then try again."""


class BucketRefused(BucketError):
    """The bucket does not exist, does not know this kind of request, or failed in a way that needs a restart."""


class BucketUnfit(BucketError):
    """The bucket does not keep a promise the archive builds on; the message says which. Use another one."""
