"""Blobs: bytes that are kept apart from the state, which only names them.

Two ways lead there. `thread.write_blob` gives a `Blob`, which is put into a state like any value and comes back as one.
And a save turns values above the client's `blob_threshold` into blobs by itself; these come back as the values they
were. The media type of the stored value tells the two apart: the client's own end in `MARK`, and what stands before it
is the media type of the value, by which it is decoded.
"""

from __future__ import annotations

import io
import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from stateward.v1 import state_pb2

MARK = "; blob=auto"
MEDIA_TYPE_BYTES_MAX = 255
PREVIEW_BYTES_MAX = 1024
DEFAULT_THRESHOLD_BYTES = 1 << 20
PIECE_BYTES = 1 << 20


class BlobPolicy:
    """From what size on values become blobs, and whether the daemon has any. Of one client."""

    def __init__(self, threshold_bytes: int) -> None:
        if threshold_bytes < 0:
            raise ValueError("blob_threshold is below 0")
        self._threshold_bytes = threshold_bytes
        self.is_supported: bool | None = None  # None = not asked yet

    @property
    def threshold_bytes(self) -> int:
        """Larger values become blobs; 0 = none."""
        return 0 if self.is_supported is False else self._threshold_bytes


class BlobAccess(Protocol):
    """How the blobs of a thread are read. What `read` and `chunks` give is to be awaited where `is_async`."""

    policy: BlobPolicy
    is_async: bool

    def read(self, digest: bytes, offset: int, length: int | None) -> Any:
        """The bytes of a range."""
        ...

    def chunks(self, digest: bytes, offset: int, length: int | None) -> Any:
        """The same as a stream of pieces."""
        ...


@dataclass(frozen=True, slots=True)
class Blob:
    """Bytes that are kept apart from the state, and read when they are asked for.

    With `AsyncClient`, `read` is awaited and `chunks` read with `async for`.
    """

    media_type: str
    sha256: bytes
    size_bytes: int
    preview: bytes = b""
    """The first bytes, at most 1 KiB."""
    access: BlobAccess | None = field(default=None, compare=False, repr=False)

    @property
    def size(self) -> int:
        """Length in bytes."""
        return self.size_bytes

    def read(self, offset: int = 0, length: int | None = None) -> Any:
        """The bytes from `offset` on; `length` None = to the end."""
        return self._reachable().read(self.sha256, offset, length)

    def chunks(self, offset: int = 0, length: int | None = None) -> Any:
        """The same piece by piece, for what does not fit into memory."""
        return self._reachable().chunks(self.sha256, offset, length)

    def open(self) -> BinaryIO:
        """A file that is read from the daemon as it is read, and can seek. Not with `AsyncClient`."""
        access = self._reachable()
        if access.is_async:
            raise TypeError("with AsyncClient use `await blob.read(…)` or `async for chunk in blob.chunks()`")
        return io.BufferedReader(_BlobFile(self, access), PIECE_BYTES)

    def _reachable(self) -> BlobAccess:
        if self.access is None:
            raise RuntimeError("this blob was not read through a thread; use thread.read_blob(blob)")
        return self.access


class _BlobFile(io.RawIOBase):
    """A blob as a file without buffer: each read asks for a range."""

    def __init__(self, blob: Blob, access: BlobAccess) -> None:
        self._blob, self._access = blob, access
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        wanted = min(len(buffer), max(self._blob.size_bytes - self._at, 0))
        data: bytes = self._access.read(self._blob.sha256, self._at, wanted) if wanted else b""
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._blob.size_bytes}[whence]
        if base + offset < 0:
            raise ValueError("the place is before the beginning of the blob")
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at


class StateBlobs:
    """The blobs that one state names: how to read them, and what was fetched already."""

    def __init__(self, access: BlobAccess) -> None:
        self.access = access
        self.fetched: dict[bytes, bytes] = {}

    def fetch(self, ref: state_pb2.BlobRef) -> bytes | None:
        """The bytes of a value that the client made a blob of. None where reading them would have to be awaited."""
        data = self.fetched.get(ref.sha256)
        if data is None and not self.access.is_async:
            data = self.access.read(ref.sha256, 0, None)
        return data


def make_blob(value: state_pb2.Value, threshold_bytes: int) -> state_pb2.Value | None:
    """The value that names a blob in place of a large one; None where it stays as it is."""
    if not threshold_bytes or len(value.data) <= threshold_bytes:
        return None
    media_type = value.media_type + MARK
    if len(media_type.encode()) > MEDIA_TYPE_BYTES_MAX:
        return None
    blob = state_pb2.BlobRef(
        sha256=sha256(value.data).digest(), size_bytes=len(value.data), preview=value.data[:PREVIEW_BYTES_MAX]
    )
    return state_pb2.Value(media_type=media_type, blob=blob)


def is_made(value: state_pb2.Value) -> bool:
    """Whether a stored value names a blob that a client made of a value by itself."""
    return value.WhichOneof("content") == "blob" and value.media_type.endswith(MARK)


def restored(value: state_pb2.Value, data: bytes) -> state_pb2.Value:
    """The value that such a blob was made of."""
    return state_pb2.Value(media_type=value.media_type.removesuffix(MARK), data=data)


def is_blob_of(stored: state_pb2.Value, encoded: state_pb2.Value) -> bool:
    """Whether a stored value names the blob that `encoded` would become."""
    return (
        is_made(stored)
        and stored.media_type == encoded.media_type + MARK
        and stored.blob.size_bytes == len(encoded.data)
        and stored.blob.sha256 == sha256(encoded.data).digest()
    )


@dataclass(frozen=True)
class Content:
    """Bytes that are to be written: how to get them, and what is known of them before."""

    pieces: Callable[[], Iterable[bytes] | AsyncIterator[bytes]]
    size_bytes: int | None = None
    sha256: bytes = b""
    is_repeatable: bool = True
    """False: they can be had only once, so that the write is not tried again."""
    is_blocking: bool = False
    """Whether getting them may take a while."""

    @classmethod
    def nothing(cls, size_bytes: int | None, digest: bytes) -> Content:
        """No bytes: they are there already."""
        return cls(tuple, size_bytes, digest)

    @classmethod
    def of_bytes(cls, data: bytes) -> Content:
        """Bytes in memory."""
        return cls(lambda: slices(data), len(data), sha256(data).digest())

    @classmethod
    def of(cls, source: Any) -> Content:
        """What `write_blob` takes: bytes, a path, a file opened for reading bytes, or an iterator of bytes."""
        match source:
            case bytes() | bytearray() | memoryview():
                return cls.of_bytes(bytes(source))
            case str() | os.PathLike():
                path = Path(source)
                return cls(lambda: _read_path(path), path.stat().st_size, is_blocking=True)
        if hasattr(source, "read"):
            return cls(lambda: iter(lambda: source.read(PIECE_BYTES), b""), is_repeatable=False, is_blocking=True)
        if hasattr(source, "__aiter__") or hasattr(source, "__iter__"):
            return cls(lambda: source, is_repeatable=False)
        raise TypeError(
            f"a blob is written from bytes, a path, a file or an iterator, not from {type(source).__name__}"
        )


def slices(data: bytes) -> Iterator[bytes]:
    """Cuts bytes into messages."""
    view = memoryview(data)
    for at in range(0, len(data), PIECE_BYTES):
        yield bytes(view[at : at + PIECE_BYTES])


def _read_path(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while data := file.read(PIECE_BYTES):
            yield data
