"""What the archive asks of object storage, and how a bucket fails.

How a bucket fails. There is one class for each reaction of the caller.

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
    │   └── BucketMisconfigured   a variable of the environment cannot work; the message says which, and what to write
    └── BucketUnfit         the probe found that the bucket breaks a promise that the archive relies on

What the archive asks of object storage.

An object is written as a whole, and read as a whole or by range. A reader never sees a part of a write. Only one kind
of object is ever written twice, and only by ``replace``. No key lies below another key (``a/b`` and ``a/b/c``), because
a directory could not hold both.

An etag is opaque. It identifies a content, not a write: the same bytes may get the same etag again (A → B → A). Then a
``replace`` with the etag of the first A succeeds. So every body that is created or replaced carries a new write id.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


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


class BucketMisconfigured(BucketRefused):
    """The store cannot be used with these settings, and was not asked. The message names the variable to change."""


class BucketUnfit(BucketError):
    """The bucket breaks a promise that the archive relies on; the message says which. Use another bucket."""


def check_size(key: str, size_bytes: int, most_bytes: int) -> None:
    """Raises ObjectTooLarge."""
    if size_bytes > most_bytes:
        raise ObjectTooLarge(key, size_bytes, most_bytes)


KEY_CHARACTERS_MAX = 512  # S3 takes 1,024 bytes, the prefix of the bucket's URL included
# No object that is created or replaced is larger, so no such object is read further.
REPLACED_BYTES_MAX = 4 << 20
SEGMENT_CHARACTERS_MAX = 200  # file systems take 255 bytes
# No leading dot: `.` and `..` are other directories, and the directory bucket's own files begin with a dot.
_SEGMENT = re.compile(rf"[A-Za-z0-9_-][A-Za-z0-9._-]{{0,{SEGMENT_CHARACTERS_MAX - 1}}}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Object:
    """An object's bytes and their etag."""

    data: bytes
    etag: str


class Bucket(Protocol):
    """Object storage. All methods block, and may be called from several threads at once.

    ``rewrites_every_s``: how far apart two writes of one object must be; 0 = the store takes them at any rate. It may
    grow while the bucket is in use.

    Every method may raise BucketUnavailable, BucketDenied or BucketRefused; those that write may also raise BucketFull,
    and those that read ObjectCold.
    The error's ``is_unclear`` says that the write may have happened, or may still happen. If a bare bucket raises
    ObjectNotFound, ObjectExists or ObjectChanged, the call had no effect. Raises ValueError if a key or a range is not
    valid.
    """

    rewrites_every_s: float = 0.0

    def get(self, key: str, most_bytes: int = REPLACED_BYTES_MAX) -> Object:
        """Reads an object of at most so many bytes. Raises ObjectNotFound, or ObjectTooLarge before it reads more."""
        ...

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        """Reads ``length`` ≥ 1 bytes from ``offset``, or fewer if the object ends before. Raises ObjectNotFound."""
        ...

    def put(self, key: str, data: bytes) -> None:
        """Writes under a name that is only ever used for these bytes, so that repeating it changes nothing.

        One request. The caller divides large objects, because a larger request has no longer deadline.
        """
        ...

    def put_file(self, key: str, path: Path) -> None:
        """Like ``put``, with the bytes of a file."""
        ...

    def create(self, key: str, data: bytes) -> str:
        """Writes if no object has this name, and returns the etag. Raises ObjectExists."""
        ...

    def replace(self, key: str, data: bytes, etag: str) -> str:
        """Writes if the object still has this etag, and returns the new etag. Raises ObjectChanged."""
        ...

    def delete(self, key: str) -> None:
        """Removes an object if it exists."""
        ...

    def list(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Yields key and size in bytes of all objects below a prefix (empty, or ends with ``/``), in any order.

        For commands and interrupted deletions only: the number of requests grows with the number of objects. The list
        is not a snapshot.
        """
        ...

    def written_at(self, key: str) -> float | None:
        """When an object was last written, by the bucket's clock in seconds since 1970; None if the bucket does not
        tell. Raises ObjectNotFound. For the doctor only."""
        return None

    def keeps_versions(self, key: str) -> bool:
        """Whether the bucket may keep old versions of objects, by what it tells about this object. Raises
        ObjectNotFound. For commands only."""
        return False

    def close(self) -> None:
        """Closes connections and files."""
        ...


def check_key(key: str) -> str:
    """Returns the key if it is valid. Raises ValueError."""
    if len(key) > KEY_CHARACTERS_MAX:
        raise ValueError(f"object key {key[:40]!r}… has {len(key)} characters, more than {KEY_CHARACTERS_MAX}")
    for segment in key.split("/"):
        if not _SEGMENT.fullmatch(segment):
            raise ValueError(
                f"object key {key!r}: {segment!r} is not valid; write 1 to {SEGMENT_CHARACTERS_MAX} of A-Z a-z 0-9 "
                "_ - and dots (not at the start)"
            )
    return key


def check_prefix(prefix: str) -> str:
    """Returns the prefix if it is empty or a key with a slash. Raises ValueError."""
    if prefix:
        if not prefix.endswith("/"):
            raise ValueError(f"object prefix {prefix!r} does not end with a slash")
        check_key(prefix[:-1])
    return prefix


def check_range(offset: int, length: int) -> None:
    """Raises ValueError unless the range has at least one byte."""
    if offset < 0 or length < 1:
        raise ValueError(f"range of {length} bytes from {offset} is empty")
