"""Blobs: bytes that are stored apart from the state, which only names them.

There are two kinds. `thread.blobs.write` returns a `Blob`, which is put into a state like any value and is read as one.
A save also turns values above the client's `blob_threshold` into blobs; these are read as the values that they were.
The media type of the stored value tells the two apart: those that the client made end in `MARK`, and the part before it
is the media type of the original value.
"""

from __future__ import annotations

import io
import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from google.protobuf.message import Message

from stateward._frames import at_the_caller, ends_at_the_caller
from stateward.arguments import whole_number
from stateward.v1 import blob_service_pb2, state_pb2

MARK = "; blob=auto"
MEDIA_TYPE_BYTES_MAX = 255
PREVIEW_BYTES_MAX = 1024
DEFAULT_THRESHOLD_BYTES = 1 << 20
PIECE_BYTES = 1 << 20


class BlobPolicy:
    """The size above which a client turns values into blobs, and whether the daemon supports blobs."""

    def __init__(self, threshold_bytes: int) -> None:
        self._threshold_bytes = whole_number(threshold_bytes, "blob_threshold")
        self.is_supported: bool | None = None  # None = not asked yet

    @property
    def threshold_bytes(self) -> int:
        """Larger values become blobs; 0 = none does."""
        return 0 if self.is_supported is False else self._threshold_bytes


class BlobAccess(Protocol):
    """How the blobs of a thread are read. If `is_async`, the results of `read` and `chunks` must be awaited."""

    policy: BlobPolicy
    is_async: bool

    def read(self, digest: bytes, offset: int, length: int | None) -> Any:
        """Returns the bytes of a range."""
        ...

    def chunks(self, digest: bytes, offset: int, length: int | None) -> Any:
        """Returns the same range as a stream of pieces."""
        ...


@dataclass(frozen=True, slots=True)
class Blob:
    """Bytes that are stored apart from the state, and read on demand.

    With AsyncClient, await `read`, and read `chunks` with `async for`.
    """

    media_type: str
    sha256: bytes
    size_bytes: int
    preview: bytes = b""
    """The first bytes, at most 1 KiB."""
    access: BlobAccess | None = field(default=None, compare=False, repr=False)

    def __repr__(self) -> str:
        return f"Blob({self.media_type!r}, {self.size_bytes:,} bytes, sha256 {self.sha256.hex()[:12]}…)"

    @property
    def size(self) -> int:
        """Length in bytes."""
        return self.size_bytes

    @at_the_caller
    def read(self, offset: int = 0, length: int | None = None) -> Any:
        """Returns `length` bytes from `offset` on; None = up to the end."""
        return self._reachable().read(self.sha256, offset, length)

    @at_the_caller
    def chunks(self, offset: int = 0, length: int | None = None) -> Any:
        """Returns the same bytes piece by piece, for blobs that do not fit into memory."""
        return self._reachable().chunks(self.sha256, offset, length)

    @at_the_caller
    def open(self) -> BinaryIO:
        """Opens the blob as a file that can seek and reads from the daemon on demand. Raises TypeError with
        AsyncClient."""
        access = self._reachable()
        if access.is_async:
            raise TypeError("with AsyncClient use `await blob.read(…)` or `async for chunk in blob.chunks()`")
        return io.BufferedReader(_BlobFile(self, access), PIECE_BYTES)

    def _reachable(self) -> BlobAccess:
        if self.access is None:
            raise RuntimeError("this blob was not read through a thread; use thread.blobs.read(blob)")
        return self.access


@ends_at_the_caller
class _BlobFile(io.RawIOBase):
    """A blob as a file without a buffer: each read asks the daemon for a range."""

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
    """The blobs that one state names: how to read them, and those that were read already."""

    def __init__(self, access: BlobAccess) -> None:
        self.access = access
        self.fetched: dict[bytes, bytes] = {}

    def fetch(self, ref: state_pb2.BlobRef) -> bytes | None:
        """Returns the bytes of a value that the client turned into a blob; None if reading them would have to be
        awaited."""
        data = self.fetched.get(ref.sha256)
        if data is None and not self.access.is_async:
            data = self.access.read(ref.sha256, 0, None)
        return data


def make_blob(value: state_pb2.Value, threshold_bytes: int) -> state_pb2.Value | None:
    """Returns a value that names a blob in place of a large value; None if the value stays as it is."""
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
    """Returns whether a stored value names a blob that a client made of a large value."""
    return value.WhichOneof("content") == "blob" and value.media_type.endswith(MARK)


def restored(value: state_pb2.Value, data: bytes) -> state_pb2.Value:
    """Returns the value that such a blob was made of."""
    return state_pb2.Value(media_type=value.media_type.removesuffix(MARK), data=data)


def is_blob_of(stored: state_pb2.Value, encoded: state_pb2.Value) -> bool:
    """Returns whether a stored value names the blob that `encoded` would become."""
    return (
        is_made(stored)
        and stored.media_type == encoded.media_type + MARK
        and stored.blob.size_bytes == len(encoded.data)
        and stored.blob.sha256 == sha256(encoded.data).digest()
    )


@dataclass(frozen=True)
class Content:
    """Bytes to be written: how to get them, and their size and digest if these are known before."""

    pieces: Callable[[], Iterable[bytes] | AsyncIterator[bytes]]
    size_bytes: int | None = None
    sha256: bytes = b""
    is_repeatable: bool = True
    """False: the bytes can be read only once, so the write is not retried."""
    is_blocking: bool = False
    """Whether reading the bytes may block."""
    method: str = "WriteBlob"

    def begin(self, request: Any) -> Message:
        """Returns the first message of the upload."""
        return blob_service_pb2.WriteBlobRequest(begin=request)

    def parts(self, piece: Any) -> Iterator[Message]:
        """Yields the messages of one of the `pieces`."""
        for part in slices(piece):
            yield blob_service_pb2.WriteBlobRequest(data=part)

    @classmethod
    def nothing(cls, size_bytes: int | None, digest: bytes) -> Content:
        """No bytes: the daemon has them already."""
        return cls(tuple, size_bytes, digest)

    @classmethod
    def of_bytes(cls, data: bytes) -> Content:
        """Bytes in memory."""
        return cls(lambda: slices(data), len(data), sha256(data).digest())

    @classmethod
    def of(cls, source: Any) -> Content:
        """Takes what `blobs.write` takes: bytes, a path, a file opened for reading bytes, or an iterator of bytes."""
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
            f"source takes bytes, a path, a file or an iterator of bytes, not {type(source).__name__}"
        )


def slices(data: bytes) -> Iterator[bytes]:
    """Cuts bytes into pieces of at most PIECE_BYTES."""
    view = memoryview(data)
    for at in range(0, len(data), PIECE_BYTES):
        yield bytes(view[at : at + PIECE_BYTES])


def _read_path(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while data := file.read(PIECE_BYTES):
            yield data
