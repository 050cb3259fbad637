"""Objects of workspaces as bytes: directories, and batches of objects in entries and packs.

A directory object is a serialized ``TreeDirectory`` in the one form that docs/protocol.md describes, so that every
client finds the same digest. A batch lists objects that lie together: in its entry, or in a pack. """

from __future__ import annotations

from hashlib import sha256
from itertools import accumulate
from typing import NamedTuple

from google.protobuf.message import DecodeError

from stateward.storage.v1.journal_pb2 import COMPRESSION_UNSPECIFIED, COMPRESSION_ZSTD, ObjectBatch
from stateward.v1.workspace_pb2 import (
    TREE_ENTRY_KIND_DIRECTORY,
    TREE_ENTRY_KIND_FILE,
    TREE_ENTRY_KIND_SYMLINK,
    TreeDirectory,
    TreeEntry,
)
from stateward_sidecar.codec.compress import compress, decompress
from stateward_sidecar.errors import Corrupt

DIGEST_BYTES = 32
CHUNK_BYTES_MAX, DIRECTORY_BYTES_MAX = 1 << 20, 16 << 20
NAME_BYTES_MAX, TARGET_BYTES_MAX = 255, 4095
FILE_BYTES_MAX, FILES_MAX = 1 << 40, 1_000_000
IS_DIRECTORY, IS_ZSTD = 1, 2
# Secret bytes at the beginning of a pack, so that nobody knows its digest who knows what is in it.
SALT_BYTES = 16
# The least size of a pack. Each larger size is an eighth more than the one before it.
PACK_BYTES_MIN = 4096


class Totals(NamedTuple):
    """What is below a directory."""

    files: int
    directories: int
    size_bytes: int


class PackedObject(NamedTuple):
    """An object as it is kept. ``form``: IS_DIRECTORY, IS_ZSTD."""

    digest: bytes
    form: int
    size_bytes: int
    data: bytes


class Placed(NamedTuple):
    """Where an object lies among the bytes of its batch."""

    digest: bytes
    form: int
    size_bytes: int
    start: int
    stop: int


# -- directories -------------------------------------------------------------------------------------------------------


def check_directory(data: bytes) -> TreeDirectory:
    """Parses a directory object. Raises ValueError, which says what is wrong, unless it has its canonical form."""
    try:
        directory = TreeDirectory.FromString(data)
    except DecodeError:
        raise ValueError("is no TreeDirectory") from None
    before = b""
    for index, entry in enumerate(directory.entries):
        try:
            _check_entry(entry)
        except ValueError as error:
            raise ValueError(f"entry {index} {error}") from None
        if entry.name <= before:
            how = "twice" if entry.name == before else "out of order"
            raise ValueError(f"entry {index} is there {how}: entries are in the order of their names as bytes")
        before = entry.name
    directory.DiscardUnknownFields()  # else they are serialized as they came
    if serialize_directory(directory) != data:
        raise ValueError("has not the canonical form: fields in order, none with its default, none unknown")
    return directory


def parse_directory(data: bytes) -> TreeDirectory:
    """Parses a directory object that was checked when it came. Raises Corrupt."""
    try:
        return TreeDirectory.FromString(data)
    except DecodeError:
        raise Corrupt("a directory object cannot be parsed") from None


def serialize_directory(directory: TreeDirectory) -> bytes:
    """Returns the canonical form."""
    return directory.SerializeToString(deterministic=True)


def totals_of(directory: TreeDirectory) -> Totals:
    """Returns what is below a directory, as its entries say."""
    files = directories = size_bytes = 0
    for entry in directory.entries:
        size_bytes += entry.size_bytes
        if entry.kind == TREE_ENTRY_KIND_DIRECTORY:
            files += entry.files
            directories += entry.directories + 1
        else:
            files += 1
    return Totals(files, directories, size_bytes)


def _check_entry(entry: TreeEntry) -> None:
    """Raises ValueError unless an entry has what its kind has, and nothing else."""
    name, kind = entry.name, entry.kind
    if not 1 <= len(name) <= NAME_BYTES_MAX or b"/" in name or b"\0" in name or name in (b".", b".."):
        raise ValueError(f'has no valid name: 1 to {NAME_BYTES_MAX} bytes without "/" and zero bytes, not "." and ".."')
    if kind == TREE_ENTRY_KIND_FILE:
        _check_file(entry)
    elif kind == TREE_ENTRY_KIND_DIRECTORY:
        if len(entry.digest) != DIGEST_BYTES:
            raise ValueError("is a directory, and its digest does not have 32 bytes")
        if entry.mtime_ns or entry.executable or entry.chunks or entry.target:
            raise ValueError("is a directory, and has a time, an executable bit, chunks or a target")
        small = min(entry.size_bytes, entry.files, entry.directories)
        if small < 0 or entry.size_bytes > FILE_BYTES_MAX or entry.files + entry.directories > FILES_MAX:
            raise ValueError(f"is a directory with more than {FILES_MAX} files and directories or 1 TiB, or below 0")
    elif kind == TREE_ENTRY_KIND_SYMLINK:
        if not 1 <= len(entry.target) <= TARGET_BYTES_MAX or b"\0" in entry.target:
            raise ValueError(f"is a symlink without a target of 1 to {TARGET_BYTES_MAX} bytes")
        if entry.size_bytes or entry.executable or entry.chunks or entry.digest or entry.files or entry.directories:
            raise ValueError("is a symlink, and has more than a time and a target")
    else:
        raise ValueError("has no kind that is known")


def _check_file(entry: TreeEntry) -> None:
    if entry.target or entry.files or entry.directories:
        raise ValueError("is a file, and has a target or counts")
    if not 0 <= entry.size_bytes <= FILE_BYTES_MAX:
        raise ValueError(f"has {entry.size_bytes} bytes, not 0 to {FILE_BYTES_MAX}")
    chunks = entry.chunks
    if not chunks:
        wanted = DIGEST_BYTES if entry.size_bytes else 0
        if len(entry.digest) != wanted:
            raise ValueError(f"has {entry.size_bytes} bytes, and a digest of {len(entry.digest)} bytes, not {wanted}")
        if entry.size_bytes > CHUNK_BYTES_MAX:
            raise ValueError(f"has {entry.size_bytes} bytes in one chunk, more than {CHUNK_BYTES_MAX}")
        return
    if entry.digest or len(chunks) == 1:
        raise ValueError("is one chunk: this goes into its digest, and chunks stay empty")
    if any(len(each.digest) != DIGEST_BYTES or not 1 <= each.size_bytes <= CHUNK_BYTES_MAX for each in chunks):
        raise ValueError(f"has a chunk without a digest of 32 bytes and a size of 1 to {CHUNK_BYTES_MAX}")
    if sum(each.size_bytes for each in chunks) != entry.size_bytes:
        raise ValueError("has another size than its chunks together")


def chunks_of(entry: TreeEntry) -> list[tuple[bytes, int]]:
    """Returns the digests and sizes of the chunks of a file, in order."""
    if entry.kind != TREE_ENTRY_KIND_FILE:
        return []
    if entry.digest:
        return [(entry.digest, entry.size_bytes)]
    return [(each.digest, each.size_bytes) for each in entry.chunks]


# -- objects in entries and packs --------------------------------------------------------------------------------------


def pack_object(digest: bytes, data: bytes, *, is_directory: bool) -> PackedObject:
    """Compresses an object."""
    compression, packed = compress(data)
    form = (IS_DIRECTORY if is_directory else 0) | (IS_ZSTD if compression == COMPRESSION_ZSTD else 0)
    return PackedObject(digest, form, len(data), packed)


def unpack_object(form: int, data: bytes, size_bytes: int, digest: bytes) -> bytes:
    """The reverse of ``pack_object``. Raises Corrupt unless the bytes have their digest."""
    compression = COMPRESSION_ZSTD if form & IS_ZSTD else COMPRESSION_UNSPECIFIED
    plain = decompress(compression, data, size_bytes)
    if sha256(plain).digest() != digest:
        raise Corrupt("an object of a workspace has other bytes than its digest says")
    return plain


class ObjectList:
    """Objects that will lie together, without their bytes."""

    __slots__ = ("_digests", "_forms", "_packed_sizes", "_sizes")

    def __init__(self) -> None:
        self._digests, self._forms = bytearray(), bytearray()
        self._sizes, self._packed_sizes = list[int](), list[int]()

    def __len__(self) -> int:
        """How many objects."""
        return len(self._forms)

    @property
    def size_bytes(self) -> int:
        """Their bytes before compression."""
        return sum(self._sizes)

    @property
    def packed_bytes(self) -> int:
        """Their bytes as they are kept."""
        return sum(self._packed_sizes)

    def add(self, packed: PackedObject) -> None:
        """Adds an object behind the others."""
        self._digests += packed.digest
        self._forms.append(packed.form)
        self._sizes.append(packed.size_bytes)
        self._packed_sizes.append(len(packed.data))

    def batch(self, data: bytes = b"") -> ObjectBatch:
        """Returns the list as it is stored. ``data``: their bytes, if they lie in the list itself."""
        return ObjectBatch(
            digests=bytes(self._digests), forms=bytes(self._forms), sizes=self._sizes, packed_sizes=self._packed_sizes,
            data=data,
        )  # fmt: skip


def place_batch(batch: ObjectBatch, start: int) -> list[Placed]:
    """Returns where the objects of a batch lie. ``start``: where the first one begins. Raises Corrupt."""
    digests, forms, count = batch.digests, batch.forms, len(batch.forms)
    if len(digests) != DIGEST_BYTES * count or not count == len(batch.sizes) == len(batch.packed_sizes):
        raise Corrupt("a list of objects has different numbers of digests and sizes")
    ends = list(accumulate(batch.packed_sizes, initial=start))
    names = [digests[at : at + DIGEST_BYTES] for at in range(0, len(digests), DIGEST_BYTES)]
    return list(map(Placed, names, forms, batch.sizes, ends, ends[1:]))


def padded_bytes(size_bytes: int) -> int:
    """Returns the size to which a pack of so many bytes is filled up, so that its size says little."""
    padded = PACK_BYTES_MIN
    while padded < size_bytes:
        padded += padded // 8
    return padded
