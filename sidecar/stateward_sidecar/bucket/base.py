"""What the archive asks of object storage.

Objects are written whole and read whole or by range; a reader never sees a part of a write. Only one kind of object
is ever written twice, and only by ``replace``. No key lies below another one (``a/b`` and ``a/b/c``): directories
cannot hold both.

An etag is opaque and names a content, not a write: the same bytes may get the same etag again (A → B → A), and then a
``replace`` with the etag of the first A succeeds. So every body that is created or replaced carries a fresh write id.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

KEY_CHARACTERS_MAX = 512  # S3 takes 1,024 bytes, the prefix of the bucket's URL included
SEGMENT_CHARACTERS_MAX = 200  # file systems take 255 bytes
# No leading dot: `.` and `..` lead elsewhere, and the directory bucket's own files begin with one.
_SEGMENT = re.compile(rf"[A-Za-z0-9_-][A-Za-z0-9._-]{{0,{SEGMENT_CHARACTERS_MAX - 1}}}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Object:
    """An object's bytes, and the etag of exactly these."""

    data: bytes
    etag: str


class Bucket(Protocol):
    """Object storage. All methods block, and may be called from several threads at once.

    Every method may raise BucketUnavailable, BucketDenied and BucketRefused; those that write BucketFull too. The
    error's ``is_unclear`` says whether the write may have happened, or may still happen, all the same. ObjectNotFound,
    ObjectExists and ObjectChanged of a bare bucket mean that this call had no effect. Keys that are no keys, and
    ranges that are none, raise ValueError.
    """

    def get(self, key: str) -> Object:
        """Reads an object. Raises ObjectNotFound."""
        ...

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        """Reads ``length`` ≥ 1 bytes from ``offset``; fewer, or none, where the object ends. Raises ObjectNotFound."""
        ...

    def put(self, key: str, data: bytes) -> None:
        """Writes under a name that is used for these bytes only, ever: doing it again changes nothing."""
        ...

    def put_file(self, key: str, path: Path) -> None:
        """The same with the bytes of a file, which may be large, and in parts where the bucket takes those."""
        ...

    def create(self, key: str, data: bytes) -> str:
        """Writes if there is no object of this name, and returns its etag. Raises ObjectExists."""
        ...

    def replace(self, key: str, data: bytes, etag: str) -> str:
        """Writes if the object is still the one with this etag, and returns the new one. Raises ObjectChanged."""
        ...

    def delete(self, key: str) -> None:
        """Removes an object; one that is missing is fine."""
        ...

    def list(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Key and size in bytes of everything below a prefix (empty, or ends with ``/``), in no promised order.

        For commands only: it costs requests by the number of objects, and is no snapshot.
        """
        ...

    def close(self) -> None:
        """Lets go of what the bucket holds here."""
        ...


def check_key(key: str) -> str:
    """Returns the key if it is one. Raises ValueError."""
    if len(key) > KEY_CHARACTERS_MAX:
        raise ValueError(f"object key {key[:40]!r}… has {len(key)} characters, more than {KEY_CHARACTERS_MAX}")
    for segment in key.split("/"):
        if not _SEGMENT.fullmatch(segment):
            raise ValueError(
                f"object key {key!r}: {segment!r} is no segment; write 1 to {SEGMENT_CHARACTERS_MAX} of A-Z a-z 0-9 "
                "_ - and, not at the start, dots"
            )
    return key


def check_prefix(prefix: str) -> str:
    """Returns the prefix if it is one: empty, or a key and a slash. Raises ValueError."""
    if prefix:
        if not prefix.endswith("/"):
            raise ValueError(f"object prefix {prefix!r} does not end with a slash")
        check_key(prefix[:-1])
    return prefix


def check_range(offset: int, length: int) -> None:
    """Raises ValueError unless the range has at least one byte."""
    if offset < 0 or length < 1:
        raise ValueError(f"range of {length} bytes from {offset} has no byte")
