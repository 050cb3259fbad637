"""The procedures of trees of the client of generated stubs. It keeps the files in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Any

import grpc
from tests.conformance.raw_values import text

from stateward.v1 import thread_pb2, workspace_pb2, workspace_service_pb2
from stateward.v1.write_pb2 import WriteOptions

FILE, DIRECTORY, SYMLINK = 1, 2, 3
CHUNK_OBJECT, DIRECTORY_OBJECT = 1, 2
TIME_NS, OLD_NS = 1_700_000_000_123_456_789, -1_000_000_001
DIGESTS_MAX, OBJECTS_MAX, MESSAGE_BYTES = 32_768, 8192, 1 << 20
SAVED_OBJECTS_MAX, SAVED_BYTES_MAX = 1024, 256 << 10
Key = tuple[int, bytes]


class WrongTree(Exception):
    """A tree or an object is not as docs/protocol.md says."""


class Trees:
    """Works with the stubs and the requests of RawClient."""

    def __getattr__(self, name: str) -> Any:  # what RawClient adds
        raise AttributeError(name)

    def write_tree(self) -> None:
        files = {
            b"B": b"", b"a/run.sh": b"#!/bin/sh\n", b"a.txt": b"text", b"old": b"old", b"\xff": b"raw",
            **{b"n/%d" % number: b"%d" % number for number in range(9)},
            **{name.encode(): name.encode() for name in ("\uff5e", "\U0001f600")},
        }  # fmt: skip
        entries = {path: self.file_entry(path, data) for path, data in files.items()}
        link = workspace_pb2.TreeEntry(name=b"link", kind=SYMLINK, mtime_ns=TIME_NS, target=b"../B")
        self.write(entries | {b"a/link": link}, [b"a/empty"], files)

    def write_large(self) -> None:
        data = b"".join(sha256(b"%d" % number).digest() for number in range(93_750))
        self.write({b"large": self.file_entry(b"large", data)}, [], {b"large": data})

    def write_many(self) -> None:
        files = {b"%d" % number: b"%d" % number for number in range(33_000)}
        self.write({path: self.file_entry(path, data) for path, data in files.items()}, [], files)

    def read_tree(self) -> None:
        try:
            nodes = self.list_tree()
            found = self.read_objects([digest for node in nodes for digest, _ in chunks_of(node.entry)])
            fields: list[Any] = []
            for node in nodes:
                entry = node.entry
                kind = {FILE: "file", DIRECTORY: "directory", SYMLINK: "symlink"}[entry.kind]
                content = b"".join(found[digest] for digest, _ in chunks_of(entry)) or entry.target
                fields += [node.path, kind, int(entry.executable), entry.mtime_ns, content]
            raw = [each if isinstance(each, bytes) else str(each).encode() for each in fields]
            self.report("seen", sha256(b"".join(b"%d:%b" % (len(each), each) for each in raw)).hexdigest())
        except WrongTree:
            self.report("error", "CORRUPT")

    def diff_trees(self) -> None:
        request = workspace_service_pb2.DiffTreesRequest(thread=self.thread)
        request.base.version, request.target.version = 1, 2
        seen: list[str] = []
        while not self.compare(request, seen):
            pass
        self.report("seen", ",".join(seen))

    # -- writing ------------------------------------------------------------------------------------------------------

    def file_entry(self, path: bytes, data: bytes) -> workspace_pb2.TreeEntry:
        entry = workspace_pb2.TreeEntry(
            name=path.rpartition(b"/")[2], kind=FILE, size_bytes=len(data), executable=path.endswith(b".sh"),
            mtime_ns=OLD_NS if path == b"old" else TIME_NS,
        )  # fmt: skip
        parts = self.cut(data)
        if len(parts) == 1:
            entry.digest = sha256(data).digest()
        elif parts:
            for part in parts:
                entry.chunks.add(digest=sha256(part).digest(), size_bytes=len(part))
        return entry

    def cut(self, data: bytes) -> list[bytes]:
        return list(self.code.cut(data))

    def write(
        self, entries: dict[bytes, workspace_pb2.TreeEntry], empty: list[bytes], files: dict[bytes, bytes]
    ) -> None:
        """Writes the tree of these entries by their paths, and the version that names it."""
        objects: dict[Key, bytes] = {}
        for data in files.values():
            for part in self.cut(data):
                objects[CHUNK_OBJECT, sha256(part).digest()] = part
        places: dict[bytes, list[workspace_pb2.TreeEntry]] = {path: [] for path in empty}
        for path, entry in entries.items():
            places.setdefault(path.rpartition(b"/")[0], []).append(entry)
        places.setdefault(b"", [])
        made = workspace_pb2.TreeEntry()
        for path in sorted(places, reverse=True):  # what is below comes first
            digest, data = self.name(places[path])
            objects[DIRECTORY_OBJECT, digest] = data
            made = workspace_pb2.TreeEntry(name=path.rpartition(b"/")[2], kind=DIRECTORY, digest=digest)
            for each in places[path]:
                made.size_bytes += each.size_bytes
                made.files += each.files if each.kind == DIRECTORY else 1
                made.directories += each.directories + 1 if each.kind == DIRECTORY else 0
            if path:
                places[path.rpartition(b"/")[0]].append(made)
        tree = workspace_pb2.TreeRef(digest=made.digest, files=made.files, size_bytes=made.size_bytes)
        while not self.send_tree(tree, objects):
            pass

    def name(self, entries: list[workspace_pb2.TreeEntry]) -> tuple[bytes, bytes]:
        digest, data = self.code.name_directory(entries)
        return digest, data

    def send_tree(self, tree: workspace_pb2.TreeRef, objects: dict[Key, bytes]) -> bool:
        """Returns False if an object has gone meanwhile."""
        missing = self.missing(list(objects))
        few = [self.object_of(key, objects[key]) for key in missing]
        size_bytes = sum(len(each.data) for each in few)
        if len(few) > SAVED_OBJECTS_MAX or size_bytes > SAVED_BYTES_MAX:
            self.send_objects(few)
            few = []
        request = self.save_request(
            self.set_slot("seen", text(tree.digest.hex())), workspace=tree, objects=few, expected_uid=""
        )
        try:
            self.code.call(self.checkpoints.Save, request)
        except grpc.RpcError as error:
            reason, facts = self.code.read_error(error)[:2]
            if (reason, facts.get("field")) != ("INVALID_FIELD", "workspace"):
                raise
            return False
        return True

    def missing(self, keys: Sequence[Key]) -> list[Key]:
        found = []
        for at in range(0, len(keys), self.digests_max()):
            part = keys[at : at + self.digests_max()]
            asked = [[digest for kind, digest in part if kind == each] for each in (DIRECTORY_OBJECT, CHUNK_OBJECT)]
            request = workspace_service_pb2.FindMissingRequest(
                thread=self.thread, directories=asked[0], chunks=asked[1]
            )
            try:
                answer = self.code.call(self.workspaces.FindMissing, request)
            except grpc.RpcError as error:
                if not self.is_new(error):
                    raise
                return list(keys)
            for kind, digests, mask in (
                (DIRECTORY_OBJECT, asked[0], answer.missing_directories),
                (CHUNK_OBJECT, asked[1], answer.missing_chunks),
            ):
                found += [(kind, each) for index, each in enumerate(digests) if self.is_set(mask, index)]
        return found

    def digests_max(self) -> int:
        return DIGESTS_MAX

    def is_set(self, mask: bytes, index: int) -> int:
        return mask[index // 8] >> index % 8 & 1

    def object_of(self, key: Key, data: bytes) -> workspace_pb2.TreeObject:
        return workspace_pb2.TreeObject(kind=key[0], digest=key[1], data=data)  # type: ignore[arg-type]

    def send_objects(self, objects: Sequence[workspace_pb2.TreeObject]) -> None:
        while True:
            try:
                self.workspaces.WriteObjects(self.messages(objects), timeout=self.stream_s)
            except grpc.RpcError as error:
                self.pause(error)
            else:
                return
            keys = [(each.kind, each.digest) for each in objects]
            missing = set(self.missing(keys))
            objects = [each for each in objects if (each.kind, each.digest) in missing]

    def messages(self, objects: Sequence[workspace_pb2.TreeObject]) -> Iterator[Any]:
        options = WriteOptions(create=thread_pb2.ThreadOptions())
        begin = workspace_service_pb2.ObjectsBegin(thread=self.thread, options=options)
        yield workspace_service_pb2.WriteObjectsRequest(begin=begin)
        part: list[workspace_pb2.TreeObject] = []
        for each in objects:
            size_bytes = sum(len(one.data) for one in part) if len(each.data) > 100 else 0
            if part and (size_bytes + len(each.data) > MESSAGE_BYTES or len(part) == self.objects_max()):
                yield self.message(part)
                part = []
            part.append(each)
        if part:
            yield self.message(part)

    def objects_max(self) -> int:
        return OBJECTS_MAX

    def message(self, objects: Sequence[workspace_pb2.TreeObject]) -> workspace_service_pb2.WriteObjectsRequest:
        return workspace_service_pb2.WriteObjectsRequest(objects=workspace_pb2.TreeObjects(objects=objects))

    # -- reading ------------------------------------------------------------------------------------------------------

    def list_tree(self) -> list[workspace_pb2.TreeNode]:
        request = workspace_service_pb2.ReadTreeRequest(thread=self.thread)
        nodes: list[workspace_pb2.TreeNode] = []
        while True:
            page = self.code.call(self.workspaces.ReadTree, request)
            nodes += page.nodes
            if self.is_last_page(page):
                break
            request.page_token = page.next_page_token
        self.check_tree(nodes)
        return nodes

    def is_last_page(self, page: workspace_service_pb2.ReadTreeResponse) -> bool:
        return not page.next_page_token

    def check_tree(self, nodes: Sequence[workspace_pb2.TreeNode]) -> None:
        directories = {b""}
        for node in nodes:
            parent, _, name = node.path.rpartition(b"/")
            if parent not in directories or name in (b"", b".", b"..") or b"\0" in name or name != node.entry.name:
                raise WrongTree(node.path)
            if node.entry.kind == DIRECTORY:
                directories.add(node.path)

    def read_objects(self, chunks: list[bytes]) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = {}
        data = b""
        while left := [each for each in chunks if each not in found]:
            request = workspace_service_pb2.ReadObjectsRequest(thread=self.thread, chunks=left)
            data = self.after_break(data)
            try:
                for message in self.workspaces.ReadObjects(request, timeout=self.stream_s):
                    for number, each in enumerate(message.objects, 1):
                        data += each.data
                        if number < len(message.objects) or not self.rest(message):
                            self.check_object(each.digest, data)
                            found[each.digest], data = data, b""
            except grpc.RpcError as error:
                self.pause(error)
        return found

    def after_break(self, half: bytes) -> bytes:
        """What the next stream begins with."""
        return b""

    def rest(self, message: Any) -> Any:
        """How much of the last object of a message is still to come; of records, which were not answered."""
        return message.rest_bytes if hasattr(message, "rest_bytes") else super().rest(message)  # type: ignore[misc]

    def check_object(self, digest: bytes, data: bytes) -> None:
        if sha256(data).digest() != digest:
            raise WrongTree(digest)

    def compare(self, request: workspace_service_pb2.DiffTreesRequest, seen: list[str]) -> bool:
        """Reads one stream. Returns False if it broke."""
        seen.clear()
        try:
            for message in self.workspaces.DiffTrees(request, timeout=self.stream_s):
                seen += [self.change(each) for each in message.changes]
                if self.is_over(message):
                    break
        except grpc.RpcError as error:
            self.pause(error)
            return False
        return True

    def is_over(self, message: workspace_service_pb2.DiffTreesResponse) -> bool:
        return False

    def change(self, change: workspace_pb2.TreeChange) -> str:
        sign = "+" if not change.HasField("before") else "~" if change.HasField("after") else "-"
        return sign + change.path.decode()


def chunks_of(entry: workspace_pb2.TreeEntry) -> list[tuple[bytes, int]]:
    """Digests and sizes of the chunks of a file; none for anything else."""
    if entry.kind != FILE:
        return []
    return [(entry.digest, entry.size_bytes)] if entry.digest else [(e.digest, e.size_bytes) for e in entry.chunks]
