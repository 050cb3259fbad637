"""What the archive asks of object storage.

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

    Every method may raise BucketUnavailable, BucketDenied or BucketRefused; those that write may also raise BucketFull,
    and those that read ObjectCold.
    The error's ``is_unclear`` says that the write may have happened, or may still happen. If a bare bucket raises
    ObjectNotFound, ObjectExists or ObjectChanged, the call had no effect. Raises ValueError if a key or a range is not
    valid.
    """

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
