"""Operations that read trees of files: lists of them, their differences, and the bytes of files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stateward._operations.steps import Call, Collect, Operation, ThreadRef, thread_error, version_ref
from stateward._operations.streams import Reader
from stateward._restoring.paths import Listing, check, listing, shown, wrong
from stateward._workspace.objects import FILE, Chunk, Entry, WrongObject, check_chunk
from stateward.errors import Corrupt, InvalidField
from stateward.models import At
from stateward.v1 import workspace_pb2
from stateward.v1 import workspace_service_pb2 as workspaces

READ_CHUNKS_MAX = 8192
"""The most chunks that one call asks for."""


@dataclass(frozen=True)
class ListedTree:
    """The entries of a tree."""

    tree: workspace_pb2.TreeRef
    version: int
    """The version that names it; 0 = it was asked for by its digest."""
    entries: Listing


class ObjectsReader(Reader[bytes]):
    """The bytes of chunks, in the order in which they are asked for. Each is whole."""

    def __init__(self, ref: ThreadRef, chunks: Sequence[Chunk]) -> None:
        super().__init__("ReadObjects", None)
        self._ref = ref
        self._left = [each.digest for each in chunks]
        self._parts = list[bytes]()

    def request(self) -> Any:
        self._parts.clear()
        return self._ref.about(workspaces.ReadObjectsRequest, chunks=self._left)

    def is_done(self) -> bool:
        return not self._left

    def take(self, message: workspaces.ReadObjectsResponse) -> list[bytes]:
        found = list[bytes]()
        for number, each in enumerate(message.objects, 1):
            self._parts.append(each.data)
            if number < len(message.objects) or not message.rest_bytes:
                found.append(b"".join(self._parts))
                self._parts.clear()
        del self._left[: len(found)]
        return found


class DifferencesReader(Reader[workspace_pb2.TreeChange]):
    """What differs between two trees. It is not resumed after the first message: it would start from the beginning."""

    def __init__(self, request: workspaces.DiffTreesRequest) -> None:
        super().__init__("DiffTrees", request)
        self._begun = False

    def take(self, message: workspaces.DiffTreesResponse) -> list[workspace_pb2.TreeChange]:
        self._begun = True
        return list(message.changes)

    def can_resume(self) -> bool:
        return not self._begun


def list_tree(
    ref: ThreadRef, at: At | None = None, *, tree: bytes = b"", path: bytes = b"", depth: int = 0
) -> Operation[ListedTree]:
    """Returns the entries of the tree of a version (None = the head), or of the tree with a digest.

    `path` chooses a directory of it. All paths are relative to the root of the tree. `depth` is how many levels are
    read; 0 = all.
    """
    request = ref.on_branch(
        workspaces.ReadTreeRequest, version=version_ref(at, called="version"), tree=tree, path=path, depth=depth
    )
    nodes = list[workspace_pb2.TreeNode]()
    while True:
        page: workspaces.ReadTreeResponse = yield Call("ReadTree", request)
        nodes += page.nodes
        if not page.next_page_token:
            return ListedTree(page.tree, page.version, listing(nodes, below=path))
        request.page_token = page.next_page_token


def differences(
    ref: ThreadRef,
    base: At | None = None,
    target: At | None = None,
    *,
    base_tree: bytes = b"",
    target_tree: bytes = b"",
) -> Operation[tuple[Listing, Listing]]:
    """Returns what differs between two trees of the thread: the entries of the base that are others in the target, or
    none, and the reverse. `target` None = `target_tree`, or the head; `base` None = `base_tree`, or the empty tree."""
    request = ref.on_branch(
        workspaces.DiffTreesRequest,
        base=version_ref(base, called="base"),
        target=version_ref(target, called="target"),
        base_tree=base_tree,
        target_tree=target_tree,
    )
    changes: list[workspace_pb2.TreeChange] = yield Collect(DifferencesReader(request))
    before, after = Listing(), Listing()
    for change in changes:
        check(change.path)
        for entries, has, entry in (
            (before, change.HasField("before"), change.before),
            (after, change.HasField("after"), change.after),
        ):
            if has:
                entries[change.path] = _entry(change.path, entry)
    return before, after


def fetch(ref: ThreadRef, chunks: Sequence[Chunk]) -> Operation[list[bytes]]:
    """Reads chunks. Nothing is checked here."""
    found = list[bytes]()
    for at in range(0, len(chunks), READ_CHUNKS_MAX):
        found += yield Collect(ObjectsReader(ref, chunks[at : at + READ_CHUNKS_MAX]))
    if len(found) != len(chunks):
        raise thread_error(Corrupt, ref.thread, f"{len(chunks)} chunks were asked for, and {len(found)} came")
    return found


def read_file(ref: ThreadRef, path: bytes, at: At | None) -> Operation[bytes]:
    """Returns the content of a file of a version. Raises InvalidField if it has no such file."""
    listed = yield from list_tree(ref, at, path=path.rpartition(b"/")[0], depth=1)
    entry = listed.entries.get(path)
    if entry is None or entry.kind != FILE:
        what = f"version {listed.version} of thread {ref.thread!r} has no file {shown(path)!r}"
        raise thread_error(InvalidField, ref.thread, what, reason="INVALID_FIELD", field="path")
    found = yield from fetch(ref, entry.chunks)
    try:
        for chunk, data in zip(entry.chunks, found, strict=True):
            check_chunk(data, chunk)
    except WrongObject as error:
        raise thread_error(Corrupt, ref.thread, f"a chunk of {shown(path)!r} {error}") from None
    return b"".join(found)


def raw_path(path: Any, name: str = "path") -> bytes:
    """Returns the bytes of a path that is given as text, as bytes or as a Path. Raises TypeError, which names `name`,
    for anything else, and ValueError if no path may be so."""
    if not isinstance(path, (str, bytes, os.PathLike)):
        raise TypeError(f"{name} takes a path as text, bytes or a Path, not {path!r:.100}")
    try:
        found = os.fsencode(path)
    except UnicodeEncodeError:
        raise ValueError(f"{name} is {path!a:.100}, which the file system cannot name") from None
    if b"\0" in found:
        raise ValueError(f"{name} is {path!a:.100}; no path has zero bytes")
    return found


def _entry(path: bytes, entry: workspace_pb2.TreeEntry) -> Entry:
    try:
        return Entry.of(entry)
    except WrongObject as error:
        raise wrong(path, f"its entry {error}") from None
