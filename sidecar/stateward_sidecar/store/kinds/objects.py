"""Objects of workspaces: chunks of files, and directories.

An entry has objects in its second part, or says what is in a pack, which is a blob of the thread. Row ``O`` leads from
an object to the entry and to its place there. It is an index, and can be made again from the entries. Its key is a
keyed hash, so nobody who has the disk can look for a file that he knows. It says nothing about sizes. A row that leads
to another object is found when it is followed, because the entry has the object's digest. """

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import NamedTuple

import lmdb
from google.protobuf.message import DecodeError

from stateward.storage.v1.journal_pb2 import (
    ENTRY_KIND_OBJECTS,
    EntryMetadata,
    ObjectBatch,
    ObjectsBody,
)
from stateward.v1.thread_service_pb2 import JournalEvent
from stateward_sidecar.codec.entry import Entry, unpack
from stateward_sidecar.codec.objects import IS_DIRECTORY, SALT_BYTES, Placed, place_batch
from stateward_sidecar.codec.seal import length_prefixed
from stateward_sidecar.errors import Corrupt
from stateward_sidecar.storage import layout
from stateward_sidecar.store.journal import replay
from stateward_sidecar.store.journal.kind import Kind, Watched
from stateward_sidecar.store.thread import blocks
from stateward_sidecar.store.thread.cache import Cache
from stateward_sidecar.store.thread.ranges import Pruned, Ranges
from stateward_sidecar.store.thread.thread import Identity, ThreadDraft, rows


class Place(NamedTuple):
    """The entry that has an object, and the object's place in it."""

    sequence: int
    at: int


@dataclass(slots=True)
class OpenBatch:
    """The objects of an entry."""

    body: ObjectsBody
    placed: list[Placed]
    data: bytes  # empty if they are in a pack


class ObjectsKind(Kind):
    """Objects that were written. They change nothing that a version shows, so a watch is not told."""

    number = ENTRY_KIND_OBJECTS

    def is_own(self, metadata: EntryMetadata) -> bool:
        """Nobody has decided on what no version names yet."""
        return True

    def removed(self, pruned: Pruned) -> Ranges:
        """Those whose objects are elsewhere, or gone."""
        return pruned.objects

    def tell(self, watched: Watched, event: JournalEvent) -> bool:
        """Nothing: a version that names the objects is told."""
        watched.metadata()
        return False

    def index(
        self, txn: lmdb.Transaction, draft: ThreadDraft, entry: Entry, metadata: EntryMetadata, *, is_whole: bool
    ) -> None:
        """The rows of its objects, unless other entries have them, too."""
        if is_whole:
            opened = open_batch(draft.identity, metadata, _second(draft.identity, entry))
            put_rows(txn, draft.identity, entry.header.sequence, keys_of(draft.identity, opened.placed))


OBJECTS = ObjectsKind()


def object_key(identity: Identity, digest: bytes, *, is_directory: bool) -> bytes:
    """Returns the row key of an object."""
    kind = b"directory" if is_directory else b"chunk"
    return identity.keys.object(identity.cipher.digest(length_prefixed(kind, digest)))


def find_place(txn: lmdb.Transaction, key: bytes) -> Place | None:
    """Returns where an object is; None if the thread does not have it. Raises Corrupt."""
    row = txn.get(key)
    return Place(*layout.unpack_object(row)) if row is not None else None


Keyed = list[tuple[bytes, int]]
"""Keys of the rows of an entry's objects with their places, in the order of the keys."""


def keys_of(identity: Identity, placed: list[Placed]) -> Keyed:
    """Returns the keys of the rows of an entry's objects. It is called outside the writer if they may be thousands."""
    return sorted(
        (object_key(identity, each.digest, is_directory=bool(each.form & IS_DIRECTORY)), index)
        for index, each in enumerate(placed)
    )  # fmt: skip


def put_rows(txn: lmdb.Transaction, identity: Identity, sequence: int, keyed: Keyed) -> None:
    """Puts the rows of the objects of an entry, where there are none."""
    txn.put(layout.objects_key(identity.number), layout.PRESENT)
    pack = layout.pack_object
    with txn.cursor() as cursor:
        cursor.putmulti([(key, pack(sequence, index)) for key, index in keyed], overwrite=False)


def move_rows(txn: lmdb.Transaction, sequence: int, keyed: Keyed, source: AbstractSet[int]) -> None:
    """Has the rows of objects lead to a new entry, if they lead to one of the ``source`` now."""
    for key, index in keyed:
        place = find_place(txn, key)
        if place is not None and place.sequence in source:
            txn.put(key, layout.pack_object(sequence, index))


def take_removed(txn: lmdb.Transaction, draft: ThreadDraft, before: Pruned) -> set[bytes]:
    """Removes the rows that lead to entries which the owner of a thread has removed since ``before``.

    Returns their keys. Entries that come later put their own.
    """
    gone, found = draft.pruned.objects, set[bytes]()
    if gone.pairs() != before.objects.pairs():
        found = {key for key, place in object_rows(txn, draft.identity) if place.sequence in gone}
        for key in found:
            txn.delete(key)
    return found


def find_again(txn: lmdb.Transaction, draft: ThreadDraft, gone: AbstractSet[bytes]) -> None:
    """Puts rows that were removed if other entries on this disk have their objects: those that were written twice."""
    if all(txn.get(key) is not None for key in gone):
        return
    identity, found = draft.identity, list[tuple[int, Keyed]]()
    for sequence, record in blocks.entries(txn, identity.keys, 1):
        entry = unpack(record, sequence)
        if entry.header.kind == OBJECTS.number and sequence not in draft.pruned.objects and not entry.is_husk:
            opened = open_batch(identity, replay.open_metadata(identity, entry), _second(identity, entry))
            if wanted := [each for each in keys_of(identity, opened.placed) if each[0] in gone]:
                found.append((sequence, wanted))
    for sequence, keyed in found:  # not before: a row that is put may move the entries that are still to be read
        put_rows(txn, identity, sequence, keyed)


def object_rows(txn: lmdb.Transaction, identity: Identity) -> Iterator[tuple[bytes, Place]]:
    """Yields the rows of all objects of a thread. Raises Corrupt."""
    for key, row in rows(txn, identity.keys.all_of(b"O")):
        yield bytes(key), Place(*layout.unpack_object(row))


def read_batch(txn: lmdb.Transaction, identity: Identity, sequence: int, cache: Cache) -> OpenBatch:
    """Opens the entry that has objects. Raises Corrupt."""
    entry = replay.read_entry(txn, identity, sequence)
    if entry.header.kind != OBJECTS.number:
        raise Corrupt(f"journal entry {sequence} has no objects of workspaces", identity.name)
    metadata = replay.open_metadata(identity, entry)
    return open_batch(identity, metadata, replay.read_edits(txn, identity, entry, cache))


def read_list(txn: lmdb.Transaction, identity: Identity, sequence: int, cache: Cache) -> tuple[ObjectsBody, bytes]:
    """Returns both parts of such an entry, for a copy. Raises Corrupt."""
    entry = replay.read_entry(txn, identity, sequence)
    metadata = replay.open_metadata(identity, entry)
    return metadata.objects, replay.read_edits(txn, identity, entry, cache)


def open_batch(identity: Identity, metadata: EntryMetadata, second: bytes) -> OpenBatch:
    """Parses both parts of an entry. Raises Corrupt."""
    try:
        batch = ObjectBatch.FromString(second)
    except DecodeError:
        raise Corrupt("a list of objects cannot be parsed", identity.name) from None
    body = metadata.objects
    try:
        placed = place_batch(batch, SALT_BYTES if body.pack else 0)
    except Corrupt as error:
        raise error.locate(identity.name) from None
    if not body.pack and placed and placed[-1].stop != len(batch.data):
        raise Corrupt("an entry has other objects than its list says", identity.name)
    return OpenBatch(body, placed, batch.data)


def _second(identity: Identity, entry: Entry) -> bytes:
    """The second part of an entry, which is never in pieces: see ``packs.py``. Raises Corrupt."""
    try:
        return entry.open_edits(identity.cipher, identity.uid)
    except Corrupt as error:
        raise error.locate(identity.name) from None
