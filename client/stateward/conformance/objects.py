"""The objects of trees that a scripted thread has: what is missing, what comes, what is read, and what a save names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256

from google.protobuf.message import DecodeError

from stateward.conformance.v1.scenario_pb2 import ObjectCalls
from stateward.v1.checkpoint_service_pb2 import SaveRequest
from stateward.v1.workspace_pb2 import (
    TREE_ENTRY_KIND_DIRECTORY,
    TREE_OBJECT_KIND_CHUNK,
    TREE_OBJECT_KIND_DIRECTORY,
    TreeDirectory,
    TreeEntry,
    TreeObject,
)
from stateward.v1.workspace_service_pb2 import (
    FindMissingRequest,
    FindMissingResponse,
    ReadObjectsRequest,
    ReadObjectsResponse,
)

METHODS = ("FindMissing", "WriteObjects", "ReadObjects")
DIGESTS_MAX, OBJECTS_MAX, MESSAGE_BYTES_MAX, CHUNK_BYTES_MAX = 32_768, 8192, 16 << 20, 1 << 20
SAVED_OBJECTS_MAX, SAVED_BYTES_MAX = 1024, 256 << 10
PIECE_BYTES = 8
"""Objects are read in messages of so many bytes."""

Key = tuple[int, bytes]
"""Kind and digest of an object."""


class WrongCall(Exception):
    """The client did something with objects that it may not do. The text says what."""


class Objects:
    """What the thread of a scenario has. Its methods raise WrongCall."""

    def __init__(self) -> None:
        self._has: dict[Key, bytes] = {}
        self._held = frozenset[Key]()
        self.is_new = False
        """Whether the thread does not exist."""
        self.is_broken = False
        """Whether the turn has had its failure."""

    def begin(self, calls: ObjectCalls) -> None:
        """Begins a turn: the thread has what the turn says."""
        self._has = {(each.kind, each.digest or sha256(each.data).digest()): each.data for each in calls.held}
        self._held, self.is_new, self.is_broken = frozenset(self._has), calls.is_new, False

    def missing(self, request: FindMissingRequest, uid: str) -> FindMissingResponse:
        """Answers a FindMissing."""
        _check_count(len(request.directories) + len(request.chunks))
        return FindMissingResponse(
            uid=uid,
            missing_directories=self._bits(TREE_OBJECT_KIND_DIRECTORY, request.directories),
            missing_chunks=self._bits(TREE_OBJECT_KIND_CHUNK, request.chunks),
        )

    def _bits(self, kind: int, digests: Sequence[bytes]) -> bytes:
        bits = bytearray((len(digests) + 7) // 8)
        for index, digest in enumerate(digests):
            if (kind, digest) not in self._has:
                bits[index // 8] |= 1 << index % 8
        return bytes(bits)

    def take(self, objects: Sequence[TreeObject]) -> int:
        """Takes the objects of a message that writes them. Returns their number of bytes."""
        if not 1 <= len(objects) <= OBJECTS_MAX:
            raise WrongCall(f"a message has {len(objects):,} objects, not 1 to {OBJECTS_MAX:,}")
        size_bytes = sum(len(each.data) for each in objects)
        if size_bytes > MESSAGE_BYTES_MAX and len(objects) > 1:
            raise WrongCall(f"the objects of a message have {size_bytes:,} bytes, more than {MESSAGE_BYTES_MAX:,}")
        self._has |= self._checked(objects)
        return size_bytes

    def _checked(self, objects: Iterable[TreeObject]) -> dict[Key, bytes]:
        found: dict[Key, bytes] = {}
        for each in objects:
            what = f"{_kind(each.kind)} {each.digest.hex()}"
            if each.HasField("frame_of_bytes"):
                raise WrongCall(f"{what} is a zstd frame, which the scripted daemon does not read")
            if sha256(each.data).digest() != each.digest:
                raise WrongCall(f"{what} has another digest")
            if each.kind == TREE_OBJECT_KIND_CHUNK and not 1 <= len(each.data) <= CHUNK_BYTES_MAX:
                raise WrongCall(f"{what} has {len(each.data):,} bytes, not 1 to {CHUNK_BYTES_MAX:,}")
            if (each.kind, each.digest) in self._held:
                raise WrongCall(f"the client sent {what}, which the thread has: FindMissing says so")
            found[each.kind, each.digest] = each.data
        return found

    def read(self, request: ReadObjectsRequest) -> Iterator[ReadObjectsResponse]:
        """Yields the objects that are asked for, in small messages: several objects, or a part of one."""
        _check_count(len(request.directories) + len(request.chunks))
        asked = [(TREE_OBJECT_KIND_DIRECTORY, each) for each in request.directories]
        asked += [(TREE_OBJECT_KIND_CHUNK, each) for each in request.chunks]
        for kind, digest in asked:
            if (kind, digest) not in self._has:
                raise WrongCall(f"the client reads {_kind(kind)} {digest.hex()}, which the thread does not have")
        message, room = ReadObjectsResponse(), PIECE_BYTES
        for kind, digest in asked:
            data = self._has[kind, digest]
            while True:
                piece, data = data[:room], data[room:]
                message.objects.add(kind=kind, digest=digest, data=piece)
                message.rest_bytes = len(data)
                room -= len(piece)
                if room and not data:
                    break
                yield message
                message, room = ReadObjectsResponse(), PIECE_BYTES
                if not data:
                    break
        if message.objects:
            yield message

    def check_save(self, request: SaveRequest) -> None:
        """Checks the objects that a save brings, and that the thread then has all objects of the tree."""
        if not request.HasField("workspace"):
            if request.objects:
                raise WrongCall("the save brings objects, and names no tree")
            return
        size_bytes = sum(len(each.data) for each in request.objects)
        if len(request.objects) > SAVED_OBJECTS_MAX or size_bytes > SAVED_BYTES_MAX:
            raise WrongCall(f"the save brings {len(request.objects):,} objects of {size_bytes:,} bytes: too many")
        has = self._has | self._checked(request.objects)
        left: list[tuple[bytes, bytes]] = [(b"", request.workspace.digest)]
        while left:
            path, digest = left.pop()
            data = has.get((TREE_OBJECT_KIND_DIRECTORY, digest))
            if data is None:
                raise WrongCall(f"the thread lacks the directory object of {_shown(path)}")
            for entry in _entries(path, data):
                inner = path + b"/" + entry.name if path else entry.name
                if entry.kind == TREE_ENTRY_KIND_DIRECTORY:
                    left.append((inner, entry.digest))
                    continue
                for chunk in [entry.digest] if entry.digest else [each.digest for each in entry.chunks]:
                    if (TREE_OBJECT_KIND_CHUNK, chunk) not in has:
                        raise WrongCall(f"the thread lacks a chunk of {_shown(inner)}")


def _entries(path: bytes, data: bytes) -> Iterable[TreeEntry]:
    try:
        return TreeDirectory.FromString(data).entries
    except DecodeError:
        raise WrongCall(f"the directory object of {_shown(path)} is no TreeDirectory") from None


def _check_count(count: int) -> None:
    if count > DIGESTS_MAX:
        raise WrongCall(f"the client asks for {count:,} digests, more than {DIGESTS_MAX:,}")


def _kind(kind: int) -> str:
    return "the directory" if kind == TREE_OBJECT_KIND_DIRECTORY else "the chunk"


def _shown(path: bytes) -> str:
    return path.decode(errors="backslashreplace") or "the root"
