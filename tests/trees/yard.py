"""Trees of files as a client makes them, from the page of the protocol alone, and a daemon's wire that keeps them.

A tree of a test is a dict: bytes are a file, a dict is a directory, and a `Link` a symlink.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Union

from tests.daemon.wire import TIMEOUT_S, Wire
from tests.messages import to_write

from stateward.testing import Daemon
from stateward.v1.checkpoint_pb2 import Checkpoint
from stateward.v1.checkpoint_service_pb2 import GetCheckpointRequest, SaveRequest, SaveResponse
from stateward.v1.diff_pb2 import Diff, Edit, SetSlot
from stateward.v1.state_pb2 import Value
from stateward.v1.thread_pb2 import ThreadOptions
from stateward.v1.workspace_pb2 import (
    TREE_ENTRY_KIND_DIRECTORY,
    TREE_ENTRY_KIND_FILE,
    TREE_ENTRY_KIND_SYMLINK,
    TREE_OBJECT_KIND_CHUNK,
    TREE_OBJECT_KIND_DIRECTORY,
    TreeChunk,
    TreeDirectory,
    TreeEntry,
    TreeObject,
    TreeObjects,
    TreeRef,
)
from stateward.v1.workspace_service_pb2 import (
    DiffTreesRequest,
    FindMissingRequest,
    ObjectsBegin,
    ReadObjectsRequest,
    ReadTreeRequest,
    StatWorkspaceRequest,
    StatWorkspaceResponse,
    WriteObjectsRequest,
    WriteObjectsResponse,
)
from stateward.v1.write_pb2 import WriteOptions

KIB, MIB = 1 << 10, 1 << 20
CHUNK_BYTES = 256 * KIB
TIME_NS = 1_700_000_000_000_000_000


@dataclass(frozen=True)
class Link:
    """A symlink."""

    target: bytes


Tree = Mapping[bytes, Union[bytes, Link, "Tree"]]


@dataclass
class Made:
    """The objects of a tree, and what names it."""

    ref: TreeRef = field(default_factory=TreeRef)
    directories: dict[bytes, bytes] = field(default_factory=dict)
    chunks: dict[bytes, bytes] = field(default_factory=dict)

    def objects(self) -> list[TreeObject]:
        """All of them."""
        return [directory(data) for data in self.directories.values()] + [chunk(data) for data in self.chunks.values()]


def chunk(data: bytes) -> TreeObject:
    return TreeObject(kind=TREE_OBJECT_KIND_CHUNK, digest=sha256(data).digest(), data=data)


def directory(data: bytes) -> TreeObject:
    return TreeObject(kind=TREE_OBJECT_KIND_DIRECTORY, digest=sha256(data).digest(), data=data)


def file_entry(made: Made, name: bytes, data: bytes, *, executable: bool = False) -> TreeEntry:
    """The entry of a file, whose chunks are added. Files of two chunks and more are cut at even places."""
    entry = TreeEntry(
        name=name, kind=TREE_ENTRY_KIND_FILE, size_bytes=len(data), mtime_ns=TIME_NS, executable=executable
    )
    parts = [data[at : at + CHUNK_BYTES] for at in range(0, len(data), CHUNK_BYTES)]
    for part in parts:
        made.chunks[sha256(part).digest()] = part
    if len(parts) == 1:
        entry.digest = sha256(data).digest()
    elif parts:
        entry.chunks.extend(TreeChunk(digest=sha256(part).digest(), size_bytes=len(part)) for part in parts)
    return entry


def make(tree: Tree) -> Made:
    """Makes the objects of a tree."""
    made = Made()
    entry = _directory_entry(made, b"", tree)
    made.ref.CopyFrom(TreeRef(digest=entry.digest, files=entry.files, size_bytes=entry.size_bytes))
    return made


def _directory_entry(made: Made, name: bytes, tree: Tree) -> TreeEntry:
    entry, listed = TreeEntry(name=name, kind=TREE_ENTRY_KIND_DIRECTORY), TreeDirectory()
    for inner_name, content in sorted(tree.items()):
        if isinstance(content, bytes):
            inner = file_entry(made, inner_name, content)
        elif isinstance(content, Link):
            inner = TreeEntry(name=inner_name, kind=TREE_ENTRY_KIND_SYMLINK, target=content.target, mtime_ns=TIME_NS)
        else:
            inner = _directory_entry(made, inner_name, content)
            entry.files += inner.files
            entry.directories += inner.directories + 1
        entry.files += not isinstance(content, Mapping)
        entry.size_bytes += inner.size_bytes
        listed.entries.append(inner)
    data = listed.SerializeToString(deterministic=True)
    entry.digest = sha256(data).digest()
    made.directories[entry.digest] = data
    return entry


def grown(seed: int, files: int = 40, *, large: bool = False) -> dict[bytes, Any]:
    """A tree of some directories, with names of raw bytes, empty files and links."""
    rng = random.Random(seed)
    root: dict[bytes, Any] = {}
    places: list[dict[bytes, Any]] = [root]
    for number in range(files):
        place = rng.choice(places)
        name = rng.choice([b"f%d", b"\xff\xfe %d", b"n\n%d", "ünï-%d".encode()]) % number
        match rng.randrange(8):
            case 0:
                place[name] = {}
                places.append(place[name])
            case 1:
                place[name] = Link(b"../f%d" % number)
            case 2:
                place[name] = b""
            case 3 if large:
                place[name] = rng.randbytes(rng.randrange(300 * KIB, 700 * KIB))
            case _:
                place[name] = rng.randbytes(rng.randrange(1, 3000)) + b"text " * rng.randrange(400)
    return root


class TreeWire(Wire):
    """All services of a daemon, and short words for what tests do with trees."""

    def __init__(self, daemon: Daemon) -> None:
        super().__init__(daemon.target)
        self.daemon = daemon

    def missing(self, made: Made, thread: str = "t") -> list[TreeObject]:
        """The objects that the thread lacks."""
        names = list(made.directories), list(made.chunks)
        asked = FindMissingRequest(thread=thread, directories=names[0], chunks=names[1])
        found = self.workspaces.FindMissing(asked, timeout=TIMEOUT_S, wait_for_ready=True)
        bits = found.missing_directories, found.missing_chunks
        return [
            kind(content[digest])
            for digests, content, kind, mask in zip(
                names, (made.directories, made.chunks), (directory, chunk), bits, strict=True
            )
            for index, digest in enumerate(digests)
            if mask[index // 8] >> (index % 8) & 1
        ]

    def send(
        self, objects: Sequence[TreeObject], thread: str = "t", *, at_once: int = 100, **options: Any
    ) -> WriteObjectsResponse:
        """Writes objects; makes the thread unless told otherwise."""
        options.setdefault("create", ThreadOptions())

        def messages() -> Iterator[WriteObjectsRequest]:
            yield WriteObjectsRequest(begin=ObjectsBegin(thread=thread, options=WriteOptions(**options)))
            for at in range(0, len(objects), at_once):
                yield WriteObjectsRequest(objects=TreeObjects(objects=objects[at : at + at_once]))

        answer: WriteObjectsResponse = self.workspaces.WriteObjects(messages(), timeout=60, wait_for_ready=True)
        return answer

    def keep(self, made: Made, version: int = 0, thread: str = "t", *, inline: bool = False) -> SaveResponse:
        """Writes what is missing, and saves a version that names the tree."""
        missing = made.objects() if not version else self.missing(made, thread)
        if missing and not inline:
            self.send(missing, thread)
        return self.save(naming(made.ref, version, thread, missing if inline else ()))

    def checkpoint(self, version: int = 0, thread: str = "t") -> Checkpoint:
        """What is known of a version."""
        asked = GetCheckpointRequest(thread=thread)
        if version:
            asked.version.version = version
        found: Checkpoint = self.checkpoints.GetCheckpoint(asked, timeout=TIMEOUT_S, wait_for_ready=True).checkpoint
        return found

    def listed(self, version: int = 0, thread: str = "t", **asked: Any) -> list[tuple[bytes, TreeEntry]]:
        """The paths and entries of a tree, from all pages."""
        request = ReadTreeRequest(thread=thread, **asked)
        if version:
            request.version.version = version
        found = list[tuple[bytes, TreeEntry]]()
        while True:
            page = self.workspaces.ReadTree(request, timeout=TIMEOUT_S, wait_for_ready=True)
            found += [(node.path, node.entry) for node in page.nodes]
            if not page.next_page_token:
                return found
            request.page_token = page.next_page_token

    def fetch(
        self, directories: Sequence[bytes] = (), chunks: Sequence[bytes] = (), thread: str = "t"
    ) -> list[bytes]:
        """The bytes of objects, in the order in which they are asked for."""
        request = ReadObjectsRequest(thread=thread, directories=directories, chunks=chunks)
        found, rest = list[bytes](), b""
        for message in self.workspaces.ReadObjects(request, timeout=60, wait_for_ready=True):
            assert message.ByteSize() < 4 * MIB
            for each in message.objects:
                rest += each.data
                if message.rest_bytes == 0 or each is not message.objects[-1]:
                    assert sha256(rest).digest() == each.digest
                    found.append(rest)
                    rest = b""
        return found

    def restored(self, version: int = 0, thread: str = "t") -> dict[bytes, Any]:
        """The whole tree of a version, read as a restore reads it."""
        root: dict[bytes, Any] = {}
        for path, entry in self.listed(version, thread):
            *parents, name = path.split(b"/")
            place = root
            for parent in parents:
                place = place[parent]
            assert entry.name == name
            if entry.kind == TREE_ENTRY_KIND_DIRECTORY:
                place[name] = {}
            elif entry.kind == TREE_ENTRY_KIND_SYMLINK:
                place[name] = Link(entry.target)
            else:
                digests = [entry.digest] if entry.digest else [each.digest for each in entry.chunks]
                place[name] = b"".join(self.fetch(chunks=digests, thread=thread)) if digests else b""
                assert len(place[name]) == entry.size_bytes
        return root

    def differences(self, thread: str = "t", **asked: Any) -> dict[bytes, str]:
        """What differs: "+", "-" or "~" by path."""
        found = dict[bytes, str]()
        for message in self.workspaces.DiffTrees(DiffTreesRequest(thread=thread, **asked), timeout=60):
            for each in message.changes:
                assert each.path not in found
                found[each.path] = "+" if not each.HasField("before") else "~" if each.HasField("after") else "-"
        return found

    def stat(self, thread: str = "t") -> StatWorkspaceResponse:
        """What the trees take."""
        found: StatWorkspaceResponse = self.workspaces.StatWorkspace(
            StatWorkspaceRequest(thread=thread), timeout=TIMEOUT_S, wait_for_ready=True
        )
        return found

    def files(self) -> list[str]:
        """The files of blobs, packs among them."""
        root = self.daemon.data_dir / "blobs"
        return sorted(path.name for path in root.rglob("*") if path.is_file()) if root.exists() else []


def naming(ref: TreeRef, version: int = 0, thread: str = "t", objects: Sequence[TreeObject] = ()) -> SaveRequest:
    """A save that names a tree."""
    value = Value(media_type="text/plain", data=b"%d" % version)
    return to_write(
        SaveRequest, thread=thread, expected_version=version, workspace=ref, objects=objects,
        request_id=os.urandom(8).hex(), diff=Diff(edits=[Edit(set_slot=SetSlot(slot="s", value=value))]),
    )  # fmt: skip
