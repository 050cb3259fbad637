"""Operations that take snapshots of a directory: what changed goes to the thread, and a version may then name it.

The thread is asked which objects it lacks, the bytes of these are sent, and few of them travel in the save. The walk
holds only a part of the bytes at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from google.protobuf.message import Message

from stateward._operations.steps import Call, Operation, ThreadRef, Upload, Work, thread_error
from stateward._restoring.running import require_none
from stateward._workspace import index as indexes
from stateward._workspace.chunking import chunker
from stateward._workspace.git import ask_dirty, read_head
from stateward._workspace.root import Root
from stateward._workspace.walking import Walk
from stateward.arguments import function
from stateward.blobs import Content
from stateward.errors import ThreadNotFound, UidMismatch
from stateward.models import Tree, WorkspaceUsage
from stateward.v1 import workspace_pb2, workspace_service_pb2
from stateward.workspaces import GitHead, Rules, Snapshot

T = TypeVar("T")
CHUNK, DIRECTORY = workspace_pb2.TREE_OBJECT_KIND_CHUNK, workspace_pb2.TREE_OBJECT_KIND_DIRECTORY
DIGESTS_MAX = 32_768
SAVED_OBJECTS_MAX, SAVED_BYTES_MAX = 1024, 256 << 10
"""So many objects travel in a save."""
MESSAGE_BYTES, MESSAGE_OBJECTS_MAX = 1 << 20, 4096
BELIEVED_S = 1800.0
"""How long the client believes what the daemon said is there. The daemon keeps it for an hour."""
Freeze = Callable[[], AbstractContextManager[Any]]


@dataclass(eq=False)
class Source:
    """The directory of a workspace, and what is remembered between its snapshots."""

    root: bytes
    rules: Rules
    index: indexes.Index | None = None
    uid: str = ""
    """The creation of the thread that was asked last."""
    chunks: set[bytes] = field(default_factory=set)
    """What that thread was heard to have."""
    directories: set[bytes] = field(default_factory=set)
    believed_until: float = 0.0

    def forget(self) -> None:
        """Forgets what the thread has."""
        self.chunks.clear()
        self.directories.clear()
        self.believed_until = 0.0

    @property
    def index_path(self) -> Path | None:
        """Where the index lies; None = nowhere."""
        cache = indexes.cache_home()
        return None if cache is None else indexes.index_path(self.root, cache)

    def load(self) -> indexes.Index:
        """Returns the index of the last snapshot."""
        if self.index is None:
            path = self.index_path
            self.index = indexes.Index() if path is None else indexes.load(path)
        return self.index

    def keep(self, walk: Walk) -> None:
        """Keeps the index of a snapshot for the next one."""
        if walk.has_changed:
            self.index = walk.index()
            if (path := self.index_path) is not None:
                indexes.store(path, self.index)


@dataclass(eq=False)
class Sending:
    """What one snapshot sends."""

    ref: ThreadRef
    source: Source
    pending: list[workspace_pb2.TreeObject] = field(default_factory=list)
    pending_bytes: int = 0
    sent: int = 0
    sent_bytes: int = 0
    is_there: bool = True
    """Whether the thread exists."""

    def missing(
        self, directories: Sequence[bytes], chunks: Sequence[bytes]
    ) -> Operation[tuple[set[bytes], set[bytes]]]:
        """Returns which of these objects the thread lacks."""
        if not self.is_there:
            return set(directories), set(chunks)
        request = self.ref.about(
            workspace_service_pb2.FindMissingRequest, directories=directories, chunks=chunks
        )
        try:
            found: workspace_service_pb2.FindMissingResponse = yield Call("FindMissing", request)
        except ThreadNotFound:
            if self.ref.held.uid:
                what = f"uid {self.ref.held.uid} was expected; read the thread before the next snapshot"
                raise thread_error(UidMismatch, self.ref.thread, what, reason="UID_MISMATCH") from None
            self.is_there = False
            self.source.forget()
            return set(directories), set(chunks)
        if found.uid != self.source.uid:
            self.source.uid = found.uid
            self.source.forget()
        if not self.source.believed_until:
            self.source.believed_until = time.monotonic() + BELIEVED_S
        no_directories = set(_picked(directories, found.missing_directories))
        no_chunks = set(_picked(chunks, found.missing_chunks))
        self.source.directories.update(each for each in directories if each not in no_directories)
        self.source.chunks.update(each for each in chunks if each not in no_chunks)
        return no_directories, no_chunks

    def offer(self, kind: int, objects: dict[bytes, bytes]) -> Operation[None]:
        """Sends those of some objects that the thread lacks; if they are few, later."""
        known = self.source.chunks if kind == CHUNK else self.source.directories
        asked = [digest for digest in objects if digest not in known]
        if not asked:
            return
        for part in _parts(asked):
            args = ((), part) if kind == CHUNK else (part, ())
            missing = (yield from self.missing(*args))[kind == CHUNK]
            for digest in part:
                if digest in missing:
                    data = objects[digest]
                    each = workspace_pb2.TreeObject(kind=kind, digest=digest, data=data)  # type: ignore[arg-type]
                    self.pending.append(each)
                    self.pending_bytes += len(data)
                    self.sent += 1
                    self.sent_bytes += len(data)
        if self.pending_bytes > SAVED_BYTES_MAX or len(self.pending) > SAVED_OBJECTS_MAX:
            yield from self.flush()

    def flush(self) -> Operation[None]:
        """Writes the objects that wait."""
        objects, self.pending, size_bytes, self.pending_bytes = self.pending, [], self.pending_bytes, 0
        begin = self.ref.to_write(workspace_service_pb2.ObjectsBegin, lease_token=self.ref.held.for_call())
        if not self.ref.held.uid:
            begin.options.create.SetInParent()
        content = _Objects(lambda: _messages(objects), size_bytes)
        answer: workspace_service_pb2.WriteObjectsResponse = yield Upload("WriteObjects", begin, content=content)
        self.is_there = True
        if self.source.uid != answer.receipt.uid:
            self.source.forget()
            self.source.uid = answer.receipt.uid
        if not self.source.believed_until:
            self.source.believed_until = time.monotonic() + BELIEVED_S
        for each in objects:
            (self.source.chunks if each.kind == CHUNK else self.source.directories).add(each.digest)


@dataclass(frozen=True)
class _Objects(Content):
    """Objects that are uploaded."""

    method: str = "WriteObjects"

    def begin(self, request: Any) -> Message:
        return workspace_service_pb2.WriteObjectsRequest(begin=request)

    def parts(self, piece: Any) -> Iterator[Message]:
        yield workspace_service_pb2.WriteObjectsRequest(objects=workspace_pb2.TreeObjects(objects=piece))


def _messages(objects: Iterable[workspace_pb2.TreeObject]) -> Iterator[Any]:
    """Yields the objects of each message."""
    piece, size_bytes = list[workspace_pb2.TreeObject](), 0
    for each in objects:
        if piece and (size_bytes + len(each.data) > MESSAGE_BYTES or len(piece) == MESSAGE_OBJECTS_MAX):
            yield piece
            piece, size_bytes = [], 0
        piece.append(each)
        size_bytes += len(each.data)
    if piece:
        yield piece


def snapshot(
    ref: ThreadRef, source: Source, freeze: Freeze | None, doubted: Container[bytes] = ()
) -> Operation[Snapshot]:
    """Takes a snapshot: sends what the thread lacks, unless it is little and travels in the save. Reads the files in
    `doubted` even if they look unchanged."""
    if freeze is not None:
        function(freeze, "freeze")
    if time.monotonic() > source.believed_until:
        source.forget()
    root, git = yield Work(lambda: _opened(source))
    sending = Sending(ref, source)
    try:
        walk = Walk(root, source.rules, (yield Work(source.load)), doubted)
        with freeze() if freeze is not None else nullcontext():
            yield Work(walk.look)
            yield from _ask_unchanged(sending, walk)
            contents = walk.contents()
            while (batch := (yield Work(lambda: next(contents, None)))) is not None:
                yield from sending.offer(CHUNK, batch)
    finally:
        root.close()
    yield from sending.offer(DIRECTORY, (yield Work(lambda: dict(walk.make()))))
    yield from _offer_unchanged(sending, walk)
    yield Work(lambda: source.keep(walk))
    made = walk.root
    return Snapshot(
        tree=Tree(made.digest, made.files, made.size_bytes),
        read=walk.read,
        read_bytes=walk.read_bytes,
        sent=sending.sent,
        sent_bytes=sending.sent_bytes,
        torn=tuple(walk.torn),
        left_out=tuple(sorted(walk.left_out, key=lambda each: each.path)),
        collisions=tuple(walk.collisions),
        git=git,
        namespace=ref.namespace,
        thread=ref.thread,
        objects=tuple(sending.pending),
        forget=source.forget,
    )


def send(ref: ThreadRef, source: Source, objects: Sequence[workspace_pb2.TreeObject]) -> Operation[None]:
    """Sends objects that would travel in the save of a snapshot."""
    if objects:
        sending = Sending(ref, source, list(objects), sum(len(each.data) for each in objects))
        yield from sending.flush()


def usage(ref: ThreadRef) -> Operation[WorkspaceUsage]:
    """Returns what the files of a thread take."""
    found = yield Call("StatWorkspace", ref.about(workspace_service_pb2.StatWorkspaceRequest))
    return WorkspaceUsage.from_proto(found)


def _opened(source: Source) -> tuple[Root, GitHead | None]:
    require_none(source.root)
    chunker()  # before anything is read
    head = read_head(source.root)
    if head is not None and source.rules.git == "status":
        head = replace(head, dirty=ask_dirty(source.root))
    return Root(source.root), head


def _ask_unchanged(sending: Sending, walk: Walk) -> Operation[None]:
    """Asks whether the thread has the chunks of files that have not changed. Those that it lacks are read."""
    known = sending.source.chunks
    yield from sending.missing((), ())  # is the thread still the one that was heard?
    asked = yield Work(lambda: list({digest for digest in walk.unchanged_chunks() if digest not in known}))
    missing: set[bytes] = set()
    for part in _parts(asked):
        missing |= (yield from sending.missing((), part))[1]
    if missing:
        yield Work(lambda: walk.read_again(missing))


def _offer_unchanged(sending: Sending, walk: Walk) -> Operation[None]:
    """Sends the directories that have not changed, if the thread lacks them."""
    places = {
        place.made.digest: at
        for at, place in enumerate(walk.places)
        if place.made is not None and place.made is place.known
    }
    asked = [digest for digest in places if digest not in sending.source.directories]
    for part in _parts(asked):
        missing = (yield from sending.missing(part, ()))[0]
        if missing:
            made = [walk.directory(places[digest]) for digest in part if digest in missing]
            yield from sending.offer(DIRECTORY, {each.digest: each.data for each in made})


def _parts(digests: Sequence[T]) -> Iterator[Sequence[T]]:
    for at in range(0, len(digests), DIGESTS_MAX):
        yield digests[at : at + DIGESTS_MAX]


def _picked(digests: Sequence[bytes], mask: bytes) -> Iterator[bytes]:
    """Yields those whose bit is set."""
    if mask.strip(b"\0"):
        for at, digest in enumerate(digests):
            if mask[at // 8] >> at % 8 & 1:
                yield digest
