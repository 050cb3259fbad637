"""Names of objects in the bucket. No name says what a user called anything.

    v1/_format                                           which versions may read and write, in clear
    v1/_keys/root                                        the root key, wrapped by the key-encryption key
    v1/_keys/n/<namespace>                               a namespace's keys, wrapped by the root
    v1/_keys/t/<namespace>/<name>.<epoch>                a thread's data key, wrapped by its namespace's
    v1/t/<namespace>/<name>/HEAD                         the only object that is ever written twice
    v1/t/<namespace>/<name>/<epoch>-<boot>-<n>.<kind>    immutable; a name is never used twice
    v1/t/<namespace>/<name>/<id>.blob                    the same

<namespace> and <name> are keyed hashes, 32 hex digits. HEAD lies under the hash of the thread's name, with the uid
inside: finding a thread takes one request, a name that was deleted keeps its HEAD as a tombstone, and of two sidecars
that make a thread of one name one finds the object there. The key object carries the epoch in which its uid was made,
so that the key of a thread made anew is never destroyed by a deletion of the one before.
"""

from __future__ import annotations

from dataclasses import dataclass

from stateward.storage.v1.archive_pb2 import (
    OBJECT_KIND_IMAGE,
    OBJECT_KIND_INDEX,
    OBJECT_KIND_PACK,
    OBJECT_KIND_SNAPSHOT,
    ObjectRef,
)

ROOT = "v1/"
FORMAT_KEY = "v1/_format"
ROOT_KEY = "v1/_keys/root"
NAMESPACE_KEYS = "v1/_keys/n/"
THREAD_KEYS = "v1/_keys/t/"
THREADS = "v1/t/"
HEAD = "HEAD"
# The epoch in which almost every thread is made: its key is asked for together with HEAD.
FIRST_EPOCH = 1
_ENDINGS = {
    OBJECT_KIND_PACK: "pack",
    OBJECT_KIND_SNAPSHOT: "snap",
    OBJECT_KIND_INDEX: "index",
    OBJECT_KIND_IMAGE: "image",
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where the objects of a thread's name lie."""

    namespace_id: bytes
    name_hash: bytes

    @property
    def prefix(self) -> str:
        """Begins all of them, but for the key's."""
        return f"{THREADS}{self.namespace_id.hex()}/{self.name_hash.hex()}/"

    @property
    def head(self) -> str:
        """HEAD."""
        return self.prefix + HEAD

    def key(self, created_epoch: int) -> str:
        """The wrapped data key of the thread that was made in this epoch."""
        return f"{THREAD_KEYS}{self.namespace_id.hex()}/{self.name_hash.hex()}.{created_epoch}"

    def object(self, ref: ObjectRef) -> str:
        """An immutable object."""
        return f"{self.prefix}{ref.epoch}-{ref.boot:016x}-{ref.counter}.{_ENDINGS[ref.kind]}"

    def blob(self, blob_id: bytes) -> str:
        """A blob."""
        return f"{self.prefix}{blob_id.hex()}.blob"


def namespace_key(namespace_id: bytes) -> str:
    """A namespace's wrapped keys."""
    return NAMESPACE_KEYS + namespace_id.hex()


def namespace_prefix(namespace_id: bytes) -> str:
    """Begins the objects of all its threads."""
    return f"{THREADS}{namespace_id.hex()}/"


def place_of(head_key: str) -> Place | None:
    """The place of a HEAD's key; None for any other key."""
    parts = head_key.removeprefix(THREADS).split("/")
    if not head_key.startswith(THREADS) or len(parts) != 3 or parts[2] != HEAD:
        return None
    try:
        return Place(bytes.fromhex(parts[0]), bytes.fromhex(parts[1]))
    except ValueError:
        return None


def epoch_of(object_key: str) -> int | None:
    """The epoch in an immutable object's key; None for HEAD, blobs and what is no object of ours."""
    name = object_key.rpartition("/")[2]
    epoch, _, rest = name.partition("-")
    return int(epoch) if rest and epoch.isdigit() else None
