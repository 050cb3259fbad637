"""Wrong clients: trees of files, and their objects."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any

import grpc
from tests.conformance.raw_client import RawClient
from tests.conformance.raw_trees import Key
from tests.conformance.wrong import wrong

from stateward.v1 import workspace_pb2

# -- writing ----------------------------------------------------------------------------------------------------------


@wrong("write-tree/new-thread", "the tree that the client made is not the right one")
class SortsAsGit(RawClient):
    """A directory is sorted as if its name ended in a slash."""

    def name(self, entries: list[workspace_pb2.TreeEntry]) -> tuple[bytes, bytes]:
        entries.sort(key=lambda each: each.name + b"/" * (each.kind == 2))
        data = workspace_pb2.TreeDirectory(entries=entries).SerializeToString(deterministic=True)
        return sha256(data).digest(), data


@wrong("write-tree/new-thread", "the tree that the client made is not the right one")
class SortsAsUtf16(RawClient):
    """As JavaScript and Java compare strings."""

    def name(self, entries: list[workspace_pb2.TreeEntry]) -> tuple[bytes, bytes]:
        entries.sort(key=lambda each: each.name.decode("utf-8", "surrogateescape").encode("utf-16-be", "surrogatepass"))
        data = workspace_pb2.TreeDirectory(entries=entries).SerializeToString(deterministic=True)
        return sha256(data).digest(), data


@wrong("write-tree/some-missing", "which the thread has")
class SendsEverything(RawClient):
    def is_set(self, mask: bytes, index: int) -> int:
        return 1


@wrong("write-tree/some-missing", "the thread lacks", "which the thread has")
class ReadsBitsFromTheLeft(RawClient):
    def is_set(self, mask: bytes, index: int) -> int:
        return mask[index // 8] >> (7 - index % 8) & 1


@wrong("write-tree/none-missing", "the client called Save")
class DoesNotAsk(RawClient):
    def missing(self, keys: Sequence[Key]) -> list[Key]:
        return []


@wrong("write-tree/objects-gone", "the thread lacks")
class BelievesForEver(RawClient):
    answer: list[Key] | None = None

    def missing(self, keys: Sequence[Key]) -> list[Key]:
        found = super().missing(keys)
        self.answer = found if self.answer is None else self.answer
        return self.answer


@wrong("write-tree/objects-gone", "the client called Save")
class GivesUpTheTree(RawClient):
    def send_tree(self, tree: Any, objects: Any) -> bool:
        try:
            if super().send_tree(tree, objects):
                return True
        except grpc.RpcError:
            pass
        self.report("error", "INVALID_FIELD")
        return True


@wrong("write-large/new", "the tree that the client made is not the right one")
class CutsEvenly(RawClient):
    def cut(self, data: bytes) -> list[bytes]:
        return [data[at : at + (256 << 10)] for at in range(0, len(data), 256 << 10)]


class SavesAllObjects(RawClient):
    """Sends every object in the save, however large they are."""

    def send_objects(self, objects: Sequence[workspace_pb2.TreeObject]) -> None:
        self.kept = objects

    def save_request(self, edit: Any, **fields: Any) -> Any:
        return super().save_request(edit, **{**fields, "objects": self.kept})


wrong("write-large/new", "the save brings 12 objects")(SavesAllObjects)
wrong("write-many/two-questions", "the save brings 33,001 objects")(SavesAllObjects)


@wrong("write-large/broken", "the thread lacks")
class TakesABreakForTheEnd(RawClient):
    def send_objects(self, objects: Sequence[workspace_pb2.TreeObject]) -> None:
        with suppress(grpc.RpcError):
            self.workspaces.WriteObjects(self.messages(objects), timeout=self.stream_s)


@wrong("write-large/cut", "slot is 'error', not 'seen'", pause_after=lambda error, attempt: None)
class GivesUpAtACut:
    pass


@wrong("write-many/two-questions", "asks for 33,001 digests, more than 32,768")
class AsksForAllAtOnce(RawClient):
    def digests_max(self) -> int:
        return 40_000


@wrong("write-many/two-questions", "a message has 9,000 objects, not 1 to 8,192")
class SendsManyInAMessage(RawClient):
    def objects_max(self) -> int:
        return 9000


# -- reading ----------------------------------------------------------------------------------------------------------


@wrong("read-tree/pages", "the client called ReadObjects", "the client called Save")
class EndsAtAPageWithoutNodes(RawClient):
    def is_last_page(self, page: Any) -> bool:
        return not page.nodes


@wrong("read-tree/pages", "slot is 'error', not 'seen'")
class TakesPiecesForObjects(RawClient):
    def rest(self, answer: Any) -> Any:
        return 0


@wrong("read-tree/broken", "slot is 'error', not 'seen'")
class KeepsHalfAnObject(RawClient):
    def after_break(self, half: bytes) -> bytes:
        return half


@wrong("read-tree/cut", "slot is 'error', not 'seen'", pause_after=lambda error, attempt: None)
class ReadsOnce:
    pass


@wrong("read-tree/other-bytes", "slot is 'seen', not 'error'")
class BelievesDigests(RawClient):
    def check_object(self, digest: bytes, data: bytes) -> None:
        pass


class BelievesPaths(RawClient):
    def check_tree(self, nodes: Sequence[workspace_pb2.TreeNode]) -> None:
        pass


wrong("read-tree/outside", "slot is 'seen', not 'error'")(BelievesPaths)
wrong("read-tree/below-a-symlink", "slot is 'seen', not 'error'")(BelievesPaths)


@wrong("read-tree/dropped", "slot is 'seen', not 'error'")
class TakesADroppedTreeForAnEmptyOne(RawClient):
    def list_tree(self) -> list[workspace_pb2.TreeNode]:
        try:
            return super().list_tree()
        except grpc.RpcError:
            return []


@wrong("diff-trees/pages", "diff.edits[0]")
class EndsAtAMessageWithoutChanges(RawClient):
    def is_over(self, message: Any) -> bool:
        return not message.changes


@wrong("diff-trees/away", "the client called Save", pause_after=lambda error, attempt: None)
class ComparesOnce:
    pass
