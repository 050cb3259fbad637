"""Checks requests about trees of files, like service/checks/check.py."""

from __future__ import annotations

from collections.abc import Sequence

from stateward.v1.checkpoint_service_pb2 import SaveRequest
from stateward.v1.workspace_pb2 import TreeObject
from stateward.v1.workspace_service_pb2 import FindMissingRequest, ReadObjectsRequest, ReadTreeRequest
from stateward_sidecar.codec.objects import DIGEST_BYTES, DIRECTORY_BYTES_MAX, NAME_BYTES_MAX
from stateward_sidecar.errors import InvalidField

DIGESTS_MAX, OBJECTS_MAX, PATH_BYTES_MAX, DEPTH_MAX = 32_768, 8192, 64 << 10, 256
SAVED_OBJECTS_MAX, SAVED_BYTES_MAX = 1024, 256 << 10
# Bytes of a message before compression: a few frames may stand for more than there is memory.
MESSAGE_BYTES_MAX = DIRECTORY_BYTES_MAX


def check_workspace(request: SaveRequest) -> None:
    """Checks the tree that a save names, and the objects that it brings."""
    if not request.HasField("workspace"):
        raise InvalidField("objects", "are allowed only with workspace, the tree that they belong to")
    tree = request.workspace
    check_digest(tree.digest, "workspace.digest")
    for name in ("files", "size_bytes"):
        if getattr(tree, name) < 0:
            raise InvalidField(f"workspace.{name}", f"{getattr(tree, name)} is negative")
    if request.objects:
        if len(request.objects) > SAVED_OBJECTS_MAX:
            raise InvalidField("objects", f"are more than {SAVED_OBJECTS_MAX}: use WriteObjects")
        size_bytes = _bytes_of(request.objects)
        if size_bytes > SAVED_BYTES_MAX:
            raise InvalidField("objects", f"have {size_bytes} bytes, more than {SAVED_BYTES_MAX}: use WriteObjects")


def _bytes_of(objects: Sequence[TreeObject]) -> int:
    return sum(max(len(each.data), each.frame_of_bytes) for each in objects)


def check_digest(digest: bytes, field: str) -> None:
    """Checks the SHA-256 of an object."""
    if len(digest) != DIGEST_BYTES:
        raise InvalidField(field, f"has {len(digest)} bytes, not the {DIGEST_BYTES} of a SHA-256")


def check_digests(request: FindMissingRequest | ReadObjectsRequest) -> None:
    """Checks the digests of a request."""
    count = len(request.directories) + len(request.chunks)
    if count > DIGESTS_MAX:
        raise InvalidField("chunks", f"and directories are {count} digests, more than {DIGESTS_MAX}")
    for name in ("directories", "chunks"):
        digests: Sequence[bytes] = getattr(request, name)
        for index, each in enumerate(digests):
            if len(each) != DIGEST_BYTES:
                check_digest(each, f"{name}[{index}]")


def check_objects(objects: Sequence[TreeObject], field: str) -> None:
    """Checks how many objects a message has, and how large they are together."""
    if not 1 <= len(objects) <= OBJECTS_MAX:
        raise InvalidField(field, f"are {len(objects)}, not 1 to {OBJECTS_MAX}")
    if (size_bytes := _bytes_of(objects)) > MESSAGE_BYTES_MAX and len(objects) > 1:
        raise InvalidField(field, f"have {size_bytes} bytes together, more than {MESSAGE_BYTES_MAX}")


def check_read_tree(request: ReadTreeRequest) -> None:
    """Checks the path and the depth of a ReadTree."""
    if not 0 <= request.depth <= DEPTH_MAX:
        raise InvalidField("depth", f"{request.depth} is not between 0 and {DEPTH_MAX}")
    if len(request.path) > PATH_BYTES_MAX:
        raise InvalidField("path", f"has {len(request.path)} bytes, more than {PATH_BYTES_MAX}")
    for name in request.path.split(b"/") if request.path else ():
        if not 1 <= len(name) <= NAME_BYTES_MAX or b"\0" in name or name in (b".", b".."):
            raise InvalidField("path", 'is not made of valid names, joined by "/"')


def check_choice(tree: bytes, field: str, *, has_version: bool, version_field: str) -> None:
    """Checks a tree that is named by its digest, in place of a version."""
    if not tree:
        return
    check_digest(tree, field)
    if has_version:
        raise InvalidField(field, f"is not allowed with {version_field}")
