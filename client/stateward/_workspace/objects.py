"""Directory objects, in the one form that docs/protocol.md describes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256

from google.protobuf.message import DecodeError

from stateward.v1 import workspace_pb2

FILE = workspace_pb2.TREE_ENTRY_KIND_FILE
DIRECTORY = workspace_pb2.TREE_ENTRY_KIND_DIRECTORY
SYMLINK = workspace_pb2.TREE_ENTRY_KIND_SYMLINK

DIGEST_BYTES = 32
CHUNK_BYTES_MAX, DIRECTORY_BYTES_MAX = 1 << 20, 16 << 20
NAME_BYTES_MAX, TARGET_BYTES_MAX = 255, 4095
FILE_BYTES_MAX, ENTRIES_MAX = 1 << 40, 1_000_000


class WrongObject(ValueError):
    """An object, or an entry of a directory, is not as docs/protocol.md says. The text is the end of a sentence about
    the object."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a file."""

    digest: bytes
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a directory. A field that does not belong to its kind has its default."""

    name: bytes
    kind: int
    """FILE, DIRECTORY or SYMLINK."""
    executable: bool = False
    size_bytes: int = 0
    """Of a file; of all files below a directory."""
    mtime_ns: int = 0
    digest: bytes = b""
    """Of a directory: that of its object. Of a file: empty. `chunks` has what it consists of."""
    chunks: tuple[Chunk, ...] = ()
    """The parts of a file in order; a file of one chunk has one, an empty file none."""
    target: bytes = b""
    files: int = 0
    """Files and symlinks below a directory."""
    directories: int = 0
    """Directories below a directory."""

    @classmethod
    def file(
        cls, name: bytes, size_bytes: int, mtime_ns: int, chunks: tuple[Chunk, ...], *, executable: bool = False
    ) -> Entry:
        """The entry of a file."""
        return cls(name, FILE, executable, size_bytes, mtime_ns, chunks=chunks)

    @classmethod
    def symlink(cls, name: bytes, target: bytes, mtime_ns: int) -> Entry:
        """The entry of a symlink."""
        return cls(name, SYMLINK, mtime_ns=mtime_ns, target=target)

    @classmethod
    def of(cls, message: workspace_pb2.TreeEntry) -> Entry:
        """Takes an entry from a message. Raises WrongObject unless it has what its kind has, and nothing else."""
        check_entry(message)
        chunks = tuple(Chunk(each.digest, each.size_bytes) for each in message.chunks)
        digest = message.digest
        if message.kind == FILE and digest:
            chunks, digest = (Chunk(digest, message.size_bytes),), b""
        return cls(
            message.name,
            message.kind,
            message.executable,
            message.size_bytes,
            message.mtime_ns,
            digest,
            chunks,
            message.target,
            message.files,
            message.directories,
        )

    def message(self) -> workspace_pb2.TreeEntry:
        """Returns the entry as a message."""
        message = workspace_pb2.TreeEntry(
            name=self.name,
            kind=self.kind,  # type: ignore[arg-type]
            executable=self.executable,
            size_bytes=self.size_bytes,
            mtime_ns=self.mtime_ns,
            digest=self.digest,
            target=self.target,
            files=self.files,
            directories=self.directories,
        )
        if len(self.chunks) == 1:
            message.digest = self.chunks[0].digest
        else:
            for each in self.chunks:
                message.chunks.add(digest=each.digest, size_bytes=each.size_bytes)
        return message


@dataclass(frozen=True, slots=True)
class Directory:
    """A directory object: its entries in the order of their names, its bytes, and what is below it."""

    entries: tuple[Entry, ...]
    data: bytes
    digest: bytes
    files: int
    directories: int
    size_bytes: int

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> Directory:
        """Makes the object of a directory from its entries, in any order. Raises WrongObject if one of them is wrong,
        if two have the same name, or if the object is too large."""
        ordered = tuple(sorted(entries, key=lambda entry: entry.name))
        message = workspace_pb2.TreeDirectory(entries=[entry.message() for entry in ordered])
        _check_entries(message)
        data = message.SerializeToString(deterministic=True)
        if len(data) > DIRECTORY_BYTES_MAX:
            raise WrongObject(f"has {len(data)} bytes, more than {DIRECTORY_BYTES_MAX}")
        return cls._made(ordered, data, sha256(data).digest())

    @classmethod
    def parse(cls, data: bytes, digest: bytes) -> Directory:
        """Reads a directory object that somebody else made. Raises WrongObject unless its bytes have this digest and
        the one form that is allowed."""
        if len(data) > DIRECTORY_BYTES_MAX:
            raise WrongObject(f"has {len(data)} bytes, more than {DIRECTORY_BYTES_MAX}")
        if sha256(data).digest() != digest:
            raise WrongObject("has other bytes than its digest says")
        try:
            message = workspace_pb2.TreeDirectory.FromString(data)
        except DecodeError:
            raise WrongObject("is no directory object") from None
        _check_entries(message)
        message.DiscardUnknownFields()  # else they are serialized as they came
        if message.SerializeToString(deterministic=True) != data:
            raise WrongObject("has not the canonical form: fields in order, none with its default, none unknown")
        return cls._made(tuple(map(Entry.of, message.entries)), data, digest)

    @classmethod
    def _made(cls, entries: tuple[Entry, ...], data: bytes, digest: bytes) -> Directory:
        files = directories = size_bytes = 0
        for entry in entries:
            size_bytes += entry.size_bytes
            if entry.kind == DIRECTORY:
                files += entry.files
                directories += entry.directories + 1
            else:
                files += 1
        return cls(entries, data, digest, files, directories, size_bytes)

    def entry(self, name: bytes) -> Entry:
        """Returns the entry that its parent has of this directory."""
        return Entry(
            name,
            DIRECTORY,
            size_bytes=self.size_bytes,
            digest=self.digest,
            files=self.files,
            directories=self.directories,
        )

    def ref(self) -> workspace_pb2.TreeRef:
        """Returns the name of the tree that has this directory as its root."""
        return workspace_pb2.TreeRef(digest=self.digest, files=self.files, size_bytes=self.size_bytes)


def check_chunk(data: bytes, chunk: Chunk) -> None:
    """Raises WrongObject unless the bytes are those of the chunk."""
    if len(data) != chunk.size_bytes:
        raise WrongObject(f"has {len(data)} bytes, not {chunk.size_bytes}")
    if sha256(data).digest() != chunk.digest:
        raise WrongObject("has other bytes than its digest says")


def is_name(name: bytes) -> bool:
    """Returns whether an entry may have this name."""
    return 1 <= len(name) <= NAME_BYTES_MAX and b"/" not in name and b"\0" not in name and name not in (b".", b"..")


def check_entry(entry: workspace_pb2.TreeEntry) -> None:
    """Raises WrongObject unless an entry has what its kind has, and nothing else."""
    if not is_name(entry.name):
        raise WrongObject(
            f'has no valid name: 1 to {NAME_BYTES_MAX} bytes without "/" and zero bytes, not "." and ".."'
        )
    if entry.kind == FILE:
        _check_file(entry)
    elif entry.kind == DIRECTORY:
        _check_directory(entry)
    elif entry.kind == SYMLINK:
        if not 1 <= len(entry.target) <= TARGET_BYTES_MAX or b"\0" in entry.target:
            raise WrongObject(f"is a symlink without a target of 1 to {TARGET_BYTES_MAX} bytes")
        if entry.size_bytes or entry.executable or entry.chunks or entry.digest or entry.files or entry.directories:
            raise WrongObject("is a symlink, and has more than a time and a target")
    else:
        raise WrongObject("has no kind that is known")


def _check_entries(directory: workspace_pb2.TreeDirectory) -> None:
    before = b""
    for index, entry in enumerate(directory.entries):
        try:
            check_entry(entry)
        except WrongObject as error:
            raise WrongObject(f"has an entry {index} that {error}") from None
        if entry.name <= before:
            how = "twice" if entry.name == before else "out of order"
            raise WrongObject(f"has entry {index} {how}: entries are in the order of their names as bytes")
        before = entry.name


def _check_directory(entry: workspace_pb2.TreeEntry) -> None:
    if len(entry.digest) != DIGEST_BYTES:
        raise WrongObject(f"is a directory, and its digest does not have {DIGEST_BYTES} bytes")
    if entry.mtime_ns or entry.executable or entry.chunks or entry.target:
        raise WrongObject("is a directory, and has a time, an executable bit, chunks or a target")
    if min(entry.size_bytes, entry.files, entry.directories) < 0:
        raise WrongObject("is a directory, and has a number below 0")
    if entry.size_bytes > FILE_BYTES_MAX or entry.files + entry.directories > ENTRIES_MAX:
        raise WrongObject(f"is a directory with more than {ENTRIES_MAX} files and directories, or with more than 1 TiB")


def _check_file(entry: workspace_pb2.TreeEntry) -> None:
    if entry.target or entry.files or entry.directories:
        raise WrongObject("is a file, and has a target or counts")
    if not 0 <= entry.size_bytes <= FILE_BYTES_MAX:
        raise WrongObject(f"is a file of {entry.size_bytes} bytes, not 0 to {FILE_BYTES_MAX}")
    chunks = entry.chunks
    if not chunks:
        wanted = DIGEST_BYTES if entry.size_bytes else 0
        if len(entry.digest) != wanted:
            raise WrongObject(
                f"is a file of {entry.size_bytes} bytes with a digest of {len(entry.digest)} bytes, not {wanted}"
            )
        if entry.size_bytes > CHUNK_BYTES_MAX:
            raise WrongObject(f"is a file of {entry.size_bytes} bytes in one chunk, more than {CHUNK_BYTES_MAX}")
        return
    if entry.digest or len(chunks) == 1:
        raise WrongObject("is a file of one chunk: this goes into its digest, and chunks stay empty")
    if any(len(each.digest) != DIGEST_BYTES or not 1 <= each.size_bytes <= CHUNK_BYTES_MAX for each in chunks):
        raise WrongObject(f"has a chunk without a digest of {DIGEST_BYTES} bytes and a size of 1 to {CHUNK_BYTES_MAX}")
    if sum(each.size_bytes for each in chunks) != entry.size_bytes:
        raise WrongObject("is a file of another size than its chunks together")
