"""Objects that a client sends: their checks, before any of them is taken."""

from __future__ import annotations

import time
from collections.abc import Iterable
from hashlib import sha256

import zstandard

from stateward.storage.v1.journal_pb2 import COMPRESSION_ZSTD
from stateward.v1.workspace_pb2 import TREE_OBJECT_KIND_CHUNK, TREE_OBJECT_KIND_DIRECTORY, TreeObject
from stateward_sidecar.codec.compress import decompress
from stateward_sidecar.codec.objects import CHUNK_BYTES_MAX, DIRECTORY_BYTES_MAX, check_directory
from stateward_sidecar.errors import Corrupt, InvalidField
from stateward_sidecar.store.trees.treecheck import Named

# A worker that takes thousands of objects gives the interpreter away after so many.
OBJECTS_A_TURN = 16


def open_objects(objects: Iterable[TreeObject], field: str) -> dict[Named, bytes]:
    """Returns the bytes of objects, each once. Raises InvalidField, which names the object, if one of them is wrong."""
    found = dict[Named, bytes]()
    for index, each in enumerate(objects):
        is_directory = each.kind == TREE_OBJECT_KIND_DIRECTORY
        name = is_directory, each.digest
        if index % OBJECTS_A_TURN == 0:
            time.sleep(0)  # the event loop has its turn now, and not after a switch interval
        if name not in found:
            found[name] = _open(each, f"{field}[{index}]", is_directory=is_directory)
    return found


def _open(each: TreeObject, field: str, *, is_directory: bool) -> bytes:
    if not is_directory and each.kind != TREE_OBJECT_KIND_CHUNK:
        raise InvalidField(f"{field}.kind", "is neither a chunk nor a directory")
    if len(each.digest) != 32:
        raise InvalidField(f"{field}.digest", f"has {len(each.digest)} bytes, not the 32 of a SHA-256")
    limit = DIRECTORY_BYTES_MAX if is_directory else CHUNK_BYTES_MAX
    size_bytes = each.frame_of_bytes if each.HasField("frame_of_bytes") else len(each.data)
    if not (0 if is_directory else 1) <= size_bytes <= limit:
        part = "frame_of_bytes" if each.HasField("frame_of_bytes") else "data"
        raise InvalidField(f"{field}.{part}", f"has {size_bytes} bytes; a {'directory' if is_directory else 'chunk'} "
                           f"has {0 if is_directory else 1} to {limit}")  # fmt: skip
    data = _inflated(each, field) if each.HasField("frame_of_bytes") else each.data
    digest = sha256(data).digest()
    if digest != each.digest:
        raise InvalidField(f"{field}.digest", f"is not that of the bytes, which is {digest.hex()}")
    if is_directory:
        try:
            check_directory(data)
        except ValueError as error:
            raise InvalidField(f"{field}.data", str(error)) from None
    return data


def _inflated(each: TreeObject, field: str) -> bytes:
    try:
        return decompress(COMPRESSION_ZSTD, each.data, each.frame_of_bytes)
    except (Corrupt, zstandard.ZstdError) as error:
        raise InvalidField(f"{field}.data", f"is no zstd frame of {each.frame_of_bytes} bytes: {error}") from None
