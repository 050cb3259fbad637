"""Names of objects in the bucket, and the slices of large ones.

Large objects lie in the bucket in slices, each an object of its own.

    KEY               the first ``SLICE_BYTES``; put last, so that the object is there as a whole or not at all
    KEY.2, KEY.3 …    what follows

One request puts a slice, however large the object is. So a refused or broken request costs one slice, and a process
that dies leaves nothing that only the provider's own tools could find. An upload in parts, which is how object stores
take large objects, does leave that: parts that are billed, and that no list of objects shows.

Names of objects in the bucket. They contain no name that a user chose.

    v1/_format                                           which formats a reader and a writer must know, in clear
    v1/_keys/root                                        the root key, wrapped by the key-encryption key
    v1/_keys/n/<namespace>                               a namespace's keys, wrapped by the root key
    v1/_keys/t/<namespace>/<name>.<epoch>                a thread's data key, wrapped by its namespace's key
    v1/_keys/s/<boot>                                    a sidecar that runs, and the key that it was started with
    v1/t/<namespace>/<name>/HEAD                         the only object that is ever written twice, but for a rotation
    v1/t/<namespace>/<name>/<epoch>-<boot>-<n>.<kind>    immutable; a name is never used twice
    v1/t/<namespace>/<name>/<id>.blob                    immutable; a name is never used twice
    v1/t/<namespace>/<name>/….<number>                   a slice of a large one of these, see above

<namespace> and <name> are keyed hashes of 32 hex digits. HEAD's name holds the hash of the thread's name; the uid is in
HEAD. So a thread is found with one request, a deleted name keeps its HEAD as a tombstone, and if two sidecars make a
thread of the same name, one of them finds that HEAD exists. The name of a key object holds the epoch in which its uid
was made. So a deletion never destroys the key of the next thread of that name.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from stateward.storage.v1.archive_pb2 import (
    OBJECT_KIND_IMAGE,
    OBJECT_KIND_INDEX,
    OBJECT_KIND_PACK,
    OBJECT_KIND_SNAPSHOT,
    ObjectRef,
)

SLICE_BYTES = 5 << 20
_SLICE = re.compile(r"(.+\.[a-z]+)\.[0-9]+")


def slice_name(key: str, number: int) -> str:
    """Returns the name of the slice with this number; the first one is 1."""
    return key if number == 1 else f"{key}.{number}"


def slice_count(size_bytes: int) -> int:
    """Returns how many slices an object of this size has."""
    return max(-(-size_bytes // SLICE_BYTES), 1)


def slice_names(key: str, size_bytes: int) -> list[str]:
    """Returns the names of all slices of an object of this size."""
    return [slice_name(key, number) for number in range(1, slice_count(size_bytes) + 1)]


def whole_of(name: str) -> str:
    """Returns the name of the object that a slice is of; any other name as it is."""
    match = _SLICE.fullmatch(name)
    return match[1] if match is not None else name


def whole_sizes(listed: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Returns the size of each object, by name, from a list of what is in the bucket."""
    sizes: dict[str, int] = defaultdict(int)
    for name, size_bytes in listed:
        sizes[whole_of(name)] += size_bytes
    return dict(sizes)


ROOT = "v1/"
FORMAT_KEY = "v1/_format"
ROOT_KEY = "v1/_keys/root"
NAMESPACE_KEYS = "v1/_keys/n/"
THREAD_KEYS = "v1/_keys/t/"
KEY_USERS = "v1/_keys/s/"
THREADS = "v1/t/"
HEAD = "HEAD"
# Almost every thread is made in this epoch, so its key is requested together with HEAD.
FIRST_EPOCH = 1
_ENDINGS = {
    OBJECT_KIND_PACK: "pack",
    OBJECT_KIND_SNAPSHOT: "snap",
    OBJECT_KIND_INDEX: "index",
    OBJECT_KIND_IMAGE: "image",
}
_OBJECT = re.compile(r"([0-9]+)-([0-9a-f]{16})-([0-9]+)\.[a-z]+")
_BLOB = ".blob"


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a thread in the bucket. It depends on names only, so the next thread of the name has it too."""

    namespace_id: bytes
    name_hash: bytes

    @property
    def prefix(self) -> str:
        """The prefix of all objects of the thread except its key object."""
        return f"{THREADS}{self.namespace_id.hex()}/{self.name_hash.hex()}/"

    @property
    def head(self) -> str:
        """The name of HEAD."""
        return self.prefix + HEAD

    def key(self, created_epoch: int) -> str:
        """Returns the name of the key object of the thread that was made in this epoch."""
        return f"{THREAD_KEYS}{self.namespace_id.hex()}/{self.name_hash.hex()}.{created_epoch}"

    def object(self, ref: ObjectRef) -> str:
        """Returns the name of an immutable object."""
        return f"{self.prefix}{ref.epoch}-{ref.boot:016x}-{ref.counter}.{_ENDINGS[ref.kind]}"

    def blob(self, blob_id: bytes) -> str:
        """Returns the name of a blob."""
        return f"{self.prefix}{blob_id.hex()}{_BLOB}"


def user_key(boot_id: bytes) -> str:
    """Returns the name of the object of a sidecar that runs."""
    return KEY_USERS + boot_id.hex()


def namespace_key(namespace_id: bytes) -> str:
    """Returns the name of a namespace's key object."""
    return NAMESPACE_KEYS + namespace_id.hex()


def namespace_prefix(namespace_id: bytes) -> str:
    """Returns the prefix of the objects of all threads in a namespace, except key objects."""
    return f"{THREADS}{namespace_id.hex()}/"


def place_of(head_key: str) -> Place | None:
    """Returns the place of the thread whose HEAD has this name; None if it is not the name of a HEAD."""
    parts = head_key.removeprefix(THREADS).split("/")
    if not head_key.startswith(THREADS) or len(parts) != 3 or parts[2] != HEAD:
        return None
    try:
        return Place(bytes.fromhex(parts[0]), bytes.fromhex(parts[1]))
    except ValueError:
        return None


def is_blob(object_key: str) -> bool:
    """Returns whether this is the name of a blob, or of a slice of one."""
    return whole_of(object_key).endswith(_BLOB)


class Origin(NamedTuple):
    """Who put an object, as its name tells."""

    epoch: int
    boot: int  # the first bytes of the process's boot id
    counter: int


def origin_of(object_key: str) -> Origin | None:
    """Returns the origin in the name of a pack, snapshot, index or part of an image, or of a slice of one; None for all
    other names."""
    match = _OBJECT.fullmatch(whole_of(object_key).rpartition("/")[2])
    return Origin(int(match[1]), int(match[2], 16), int(match[3])) if match is not None else None
