"""Reads trees: lists them, compares them, and describes what they take.

Entries come in the order of a walk: a directory before what is in it, names in the order of their bytes. That is the
order of paths whose "/" sorts before all other bytes. Each step takes one short transaction. Nothing calls itself. """

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import lmdb

from stateward.v1.checkpoint_pb2 import VersionRef
from stateward.v1.workspace_pb2 import (
    TREE_ENTRY_KIND_DIRECTORY,
    TREE_OBJECT_KIND_CHUNK,
    TREE_OBJECT_KIND_DIRECTORY,
    TreeChange,
    TreeDirectory,
    TreeEntry,
    TreeNode,
    TreeObject,
    TreeRef,
)
from stateward.v1.workspace_service_pb2 import (
    DiffTreesRequest,
    DiffTreesResponse,
    FindMissingRequest,
    FindMissingResponse,
    ReadObjectsRequest,
    ReadObjectsResponse,
    ReadTreeRequest,
    ReadTreeResponse,
    StatWorkspaceRequest,
    StatWorkspaceResponse,
)
from stateward_sidecar.codec.entry import unpack
from stateward_sidecar.codec.objects import IS_DIRECTORY, parse_directory, totals_of
from stateward_sidecar.errors import InvalidField, VersionPruned
from stateward_sidecar.store.blobs.blobrows import list_blobs
from stateward_sidecar.store.journal import replay
from stateward_sidecar.store.journal.finding import resolve_or_head
from stateward_sidecar.store.kinds.objects import Place, object_rows
from stateward_sidecar.store.thread import blocks
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.paging import bare, page_bytes
from stateward_sidecar.store.thread.thread import MAIN, Thread
from stateward_sidecar.store.thread.threads import Threads
from stateward_sidecar.store.trees.naming import names_tree
from stateward_sidecar.store.trees.objectread import ObjectReader, missing_bits, missing_object

# Messages of streams have about so many bytes.
MESSAGE_BYTES = 1 << 20
# What protobuf adds to an entry of an answer.
NODE_BYTES = 16
RECORDS_A_STEP = 500


@dataclass(slots=True)
class _Level:
    """A directory on the way of a walk: its path with "/", its entries, and the next of them."""

    path: bytes
    entries: list[TreeEntry]
    at: int = 0


class Trees:
    """The verbs that read objects and trees."""

    def __init__(self, context: Context, threads: Threads) -> None:
        self._context = context
        self._threads = threads

    # -- objects ---------------------------------------------------------------------------------------------------

    def find_missing(self, request: FindMissingRequest) -> FindMissingResponse:
        """Returns which objects a thread lacks. Raises ThreadNotFound, HistoryElsewhere, Corrupt."""
        with self._context.engine.read() as txn:
            thread = self._threads.get(txn, request.namespace, request.thread)
            reader = ObjectReader(self._context, thread)
            return FindMissingResponse(
                uid=thread.identity.uid_text,
                missing_directories=missing_bits(
                    [reader.find(txn, each, is_directory=True) is None for each in request.directories]
                ),
                missing_chunks=missing_bits(
                    [reader.find(txn, each, is_directory=False) is None for each in request.chunks]
                ),
            )

    def objects(self, request: ReadObjectsRequest) -> Iterator[ReadObjectsResponse]:
        """Yields objects, in messages. Raises ThreadNotFound, BlobNotFound, HistoryElsewhere, Corrupt. Each step may be
        made again from the start: the first one finds everything that is missing."""
        names = [(True, each) for each in request.directories] + [(False, each) for each in request.chunks]
        with self._context.engine.read() as txn:
            thread = self._threads.get(txn, request.namespace, request.thread)
            reader, places = ObjectReader(self._context, thread), list[Place]()
            for is_directory, digest in names:
                place = reader.find(txn, digest, is_directory=is_directory)
                if place is None:
                    raise missing_object(thread.identity, digest)
                places.append(place)
            reader.require(txn, places)
        return self._messages(reader, names)

    def _messages(
        self, reader: ObjectReader, names: list[tuple[bool, bytes]]
    ) -> Iterator[ReadObjectsResponse]:
        answer, size_bytes = ReadObjectsResponse(), 0
        for is_directory, digest in names:
            data = self._context.settled(partial(self._read, reader, digest, is_directory=is_directory))
            kind = TREE_OBJECT_KIND_DIRECTORY if is_directory else TREE_OBJECT_KIND_CHUNK
            if answer.objects and size_bytes + len(data) > MESSAGE_BYTES:
                yield answer
                answer, size_bytes = ReadObjectsResponse(), 0
            for at in range(0, max(len(data), 1), MESSAGE_BYTES):
                part = data[at : at + MESSAGE_BYTES]
                answer.objects.append(TreeObject(kind=kind, digest=digest, data=part))
                answer.rest_bytes = len(data) - at - len(part)
                size_bytes += len(part) + 64
                if answer.rest_bytes:
                    yield answer
                    answer, size_bytes = ReadObjectsResponse(), 0
        if answer.objects or not names:
            yield answer

    def _read(self, reader: ObjectReader, digest: bytes, *, is_directory: bool) -> bytes:
        with self._context.engine.read() as txn:
            return reader.read(txn, digest, is_directory=is_directory)

    # -- lists -----------------------------------------------------------------------------------------------------

    def read(self, request: ReadTreeRequest) -> ReadTreeResponse:
        """Returns a page of a tree. Raises ThreadNotFound, VersionNotFound, VersionPruned, BlobNotFound, InvalidField,
        HistoryElsewhere, Corrupt."""
        limit = page_bytes(request.max_bytes)
        whole = bare(request, "max_bytes")
        after = self._context.tokens.unpack(whole, request.page_token) if request.page_token else b""
        with self._context.engine.read() as txn:
            thread = self._threads.get(txn, request.namespace, request.thread)
            reader = ObjectReader(self._context, thread)
            if after:  # the token has the tree: the head may have moved
                root, after = after[:32], after[32:]
                version, tree = 0, self._describe(txn, reader, root)
                if not request.tree:
                    version, after = int.from_bytes(after[:8], "big"), after[8:]
            else:
                ref = request.version if request.HasField("version") else None
                version, tree = self._tree(txn, thread, reader, ref, request.branch, request.tree, "version")
            answer = ReadTreeResponse(tree=tree, version=version)
            size_bytes, last = 0, b""
            for path, entry in self._walk(txn, reader, tree.digest, request.path, request.depth, after):
                more = len(path) + entry.ByteSize() + NODE_BYTES
                if last and size_bytes + more > limit:
                    position = tree.digest + (b"" if request.tree else version.to_bytes(8, "big")) + last
                    answer.next_page_token = self._context.tokens.pack(whole, position)
                    break
                answer.nodes.append(TreeNode(path=path, entry=entry))
                size_bytes, last = size_bytes + more, path
        return answer

    def _tree(
        self, txn: lmdb.Transaction, thread: Thread, reader: ObjectReader, ref: VersionRef | None, branch: str,
        digest: bytes, field: str,
    ) -> tuple[int, TreeRef]:  # fmt: skip
        """Returns the tree that a request names, and its version; 0 if it names the tree itself."""
        if digest:
            return 0, self._describe(txn, reader, digest)
        version = resolve_or_head(txn, thread, ref, branch or MAIN, field)
        body = replay.open_metadata(thread.identity, replay.read_version(txn, thread, version)).checkpoint
        if not body.HasField("workspace"):
            raise InvalidField(field, f"is version {version}, which names no tree")
        if version in thread.pruned.trees:
            raise VersionPruned(
                f"the tree of version {version} of thread {thread.name!r} was dropped, because the thread's trees took "
                "more than they may", thread=thread.name, version=version,
            )  # fmt: skip
        return version, body.workspace

    def _describe(self, txn: lmdb.Transaction, reader: ObjectReader, digest: bytes) -> TreeRef:
        found = totals_of(_directory(txn, reader, digest))
        return TreeRef(digest=digest, files=found.files, size_bytes=found.size_bytes)

    def _walk(
        self, txn: lmdb.Transaction, reader: ObjectReader, root: bytes, path: bytes, depth: int, after: bytes
    ) -> Iterator[tuple[bytes, TreeEntry]]:
        """Yields paths and entries below a directory, behind a path."""
        digest = root
        for name in path.split(b"/") if path else ():
            entry = _entry(_directory(txn, reader, digest), name)
            if entry is None or entry.kind != TREE_ENTRY_KIND_DIRECTORY:
                raise InvalidField("path", "leads to no directory of the tree")
            digest = entry.digest
        levels = [_Level(path + b"/" if path else b"", list(_directory(txn, reader, digest).entries))]
        behind = after[len(levels[0].path) :].split(b"/") if after else []
        for number, name in enumerate(behind):
            level = levels[-1]
            level.at = next((at for at, each in enumerate(level.entries) if each.name >= name), len(level.entries))
            entry = level.entries[level.at] if level.at < len(level.entries) else None
            if entry is None or entry.name != name:  # the tree of a token is still the same: this cannot be
                break
            level.at += 1
            may_enter = entry.kind == TREE_ENTRY_KIND_DIRECTORY and (not depth or len(levels) < depth)
            if may_enter:
                inner = list(_directory(txn, reader, entry.digest).entries)
                levels.append(_Level(level.path + name + b"/", inner))
            elif number < len(behind) - 1:
                break
        while levels:
            level = levels[-1]
            if level.at == len(level.entries):
                levels.pop()
                continue
            entry = level.entries[level.at]
            level.at += 1
            yield level.path + entry.name, entry
            if entry.kind == TREE_ENTRY_KIND_DIRECTORY and (not depth or len(levels) < depth):
                inner = list(_directory(txn, reader, entry.digest).entries)
                levels.append(_Level(level.path + entry.name + b"/", inner))

    # -- differences -----------------------------------------------------------------------------------------------

    def diff(self, request: DiffTreesRequest) -> Iterator[DiffTreesResponse]:
        """Yields what differs between two trees, in messages. Raises as ``read``."""
        with self._context.engine.read() as txn:
            thread = self._threads.get(txn, request.namespace, request.thread)
            reader, base = ObjectReader(self._context, thread), TreeRef()
            has_base = bool(request.base_tree) or request.HasField("base")
            if has_base:
                ref = request.base if request.HasField("base") else None
                _, base = self._tree(txn, thread, reader, ref, request.branch, request.base_tree, "base")
            ref = request.target if request.HasField("target") else None
            _, target = self._tree(txn, thread, reader, ref, request.branch, request.target_tree, "target")
            is_all_here = reader.has_all_packs(txn)
        answer = DiffTreesResponse(target=target)
        if has_base:
            answer.base.CopyFrom(base)
        if not is_all_here:  # whoever asks fetches what is missing before the first answer
            for _ in self._differences(reader, DiffTreesResponse(), base.digest, target.digest):
                pass
        return self._differences(reader, answer, base.digest, target.digest)

    def _differences(
        self, reader: ObjectReader, answer: DiffTreesResponse, base: bytes, target: bytes
    ) -> Iterator[DiffTreesResponse]:
        size_bytes, is_first = 0, True
        levels = [(b"", iter(self._pairs(reader, base, target)))]
        while levels:
            path, pairs = levels[-1]
            pair = next(pairs, None)
            if pair is None:
                levels.pop()
                continue
            before, after = pair
            if before is not None and after is not None and before == after:
                continue
            inside = [_inside(before), _inside(after)]
            name = (before or after or TreeEntry()).name
            if not all(inside):
                change = TreeChange(path=path + name, before=before, after=after)
                answer.changes.append(change)
                size_bytes += change.ByteSize()
            if any(inside):
                levels.append((path + name + b"/", iter(self._pairs(reader, *inside))))
            if size_bytes > MESSAGE_BYTES:
                yield answer
                answer, size_bytes, is_first = DiffTreesResponse(), 0, False
        if answer.changes or is_first:
            yield answer

    def _pairs(
        self, reader: ObjectReader, base: bytes, target: bytes
    ) -> list[tuple[TreeEntry | None, TreeEntry | None]]:
        """Returns the entries of two directories side by side, in the order of their names."""

        def read() -> list[dict[bytes, TreeEntry]]:
            with self._context.engine.read() as txn:
                return [
                    {entry.name: entry for entry in _directory(txn, reader, digest).entries} if digest else {}
                    for digest in (base, target)
                ]

        if base == target:
            return []
        before, after = self._context.settled(read)
        return [(before.get(name), after.get(name)) for name in sorted({*before, *after})]

    # -- sizes -----------------------------------------------------------------------------------------------------

    def stat(self, request: StatWorkspaceRequest) -> StatWorkspaceResponse:
        """Returns what the trees of a thread take. Raises ThreadNotFound, HistoryElsewhere, Corrupt."""
        answer = StatWorkspaceResponse()
        with self._context.engine.read() as txn:
            thread = self._threads.get(txn, request.namespace, request.thread)
            if thread.floor_sequence:
                raise replay.history_elsewhere(thread.identity)
            packs = [row.record for row in list_blobs(txn, thread.identity) if row.record.is_pack]
            reader, places = ObjectReader(self._context, thread), dict[int, list[int]]()
            for _, place in object_rows(txn, thread.identity):
                places.setdefault(place.sequence, []).append(place.at)
            for sequence, indexes in sorted(places.items()):
                batch = reader.batch(txn, sequence)
                for index in indexes:
                    placed = batch.placed[index]
                    answer.directories += bool(placed.form & IS_DIRECTORY)
                    answer.chunks += not placed.form & IS_DIRECTORY
                    answer.size_bytes += placed.size_bytes
                answer.stored_bytes += 0 if batch.body.pack else batch.body.packed_bytes
        answer.packs = len(packs)
        answer.stored_bytes += sum(each.stored_bytes for each in packs)
        trees = self.named(thread)
        answer.trees, answer.tree_bytes = len(trees), sum(each.size_bytes for each in trees.values())
        return answer

    def named(self, thread: Thread) -> dict[bytes, TreeRef]:
        """Returns the trees that retained versions name, by their digests. Raises Corrupt."""
        found, at, tip = dict[bytes, TreeRef](), 0, thread.head.tip_sequence
        while at < tip:
            at = self._context.settled(lambda at=at: self._look(thread, at, tip, found))  # type: ignore[misc]
        return found

    def _look(self, thread: Thread, after: int, tip: int, found: dict[bytes, TreeRef]) -> int:
        """Adds the trees that the next entries name. Returns the sequence of the last entry."""
        with self._context.engine.read() as txn:
            for number, (sequence, record) in enumerate(blocks.entries(txn, thread.identity.keys, after + 1)):
                if sequence > tip:
                    return tip
                if number >= RECORDS_A_STEP:
                    return sequence - 1
                entry = unpack(record, sequence)
                if names_tree(thread, entry.header):
                    body = replay.open_metadata(thread.identity, entry).checkpoint
                    if body.HasField("workspace"):
                        found[body.workspace.digest] = body.workspace
        return tip


def _directory(txn: lmdb.Transaction, reader: ObjectReader, digest: bytes) -> TreeDirectory:
    return parse_directory(reader.read(txn, digest, is_directory=True))


def _inside(entry: TreeEntry | None) -> bytes:
    """Returns the digest of a directory; empty for anything else."""
    return entry.digest if entry is not None and entry.kind == TREE_ENTRY_KIND_DIRECTORY else b""


def _entry(directory: TreeDirectory, name: bytes) -> TreeEntry | None:
    return next((each for each in directory.entries if each.name == name), None)
