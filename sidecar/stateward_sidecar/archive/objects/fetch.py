"""Reads a thread from the bucket: HEAD and key in one round trip, the objects that HEAD names in a second one.

A fetch reads what a hydrate of main's head needs: the newest snapshot, the packs since then, and the snapshots that
their entries need. For a writer, it also reads the entries that a retry may ask for. Older history is fetched on demand
(``history``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from stateward.storage.v1.archive_pb2 import (
    OBJECT_KIND_SNAPSHOT,
    ArchiveHead,
    ArchiveIndex,
    ArchiveRow,
    ObjectRef,
    PackedRow,
    ThreadImage,
)
from stateward.storage.v1.journal_pb2 import EntryHeader
from stateward_sidecar.archive.objects.heads import open_head
from stateward_sidecar.archive.objects.image import open_image, open_inline, part_refs
from stateward_sidecar.archive.objects.keys import ThreadKey, open_thread
from stateward_sidecar.archive.objects.packs import (
    check_object,
    is_pack,
    open_index,
    open_pack,
    snapshot_rows,
    snapshots_of,
)
from stateward_sidecar.archive.requests.metered import Wire
from stateward_sidecar.archive.requests.places import FIRST_EPOCH, Place
from stateward_sidecar.bucket.base import Object, ObjectNotFound
from stateward_sidecar.codec.entry import sequence_of, unpack
from stateward_sidecar.codec.seal import Cipher
from stateward_sidecar.errors import Corrupt, KeyUnavailable, Locked
from stateward_sidecar.storage.namespacekeys import NamespaceKeys
from stateward_sidecar.store.journal.requests import window_start
from stateward_sidecar.store.kinds.pruned import PRUNED
from stateward_sidecar.store.thread.ranges import Ranges
from stateward_sidecar.store.thread.thread import Thread
from stateward_sidecar.store.travel.install import Incoming

# Objects of older history that are read, and held in memory, at the same time.
HISTORY_AT_ONCE = 8
NEVER = float("-inf")


class Missing(Corrupt):
    """An object that HEAD names is missing. A retry does not help."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A HEAD as it was read."""

    head: ArchiveHead
    etag: str
    # The key of the thread in HEAD; None if it was not read, or is destroyed.
    key: ThreadKey | None
    # When HEAD was requested, in seconds on the boot-time clock.
    asked_at: float = NEVER
    # The name is only claimed, for a held thread, and the session key does not open its key.
    is_locked: bool = False

    @property
    def is_empty(self) -> bool:
        """True if the name is claimed, and nothing was saved yet."""
        return self.head.tip_sequence == 0

    def leads_to(self, thread: Thread) -> bool:
        """Returns True if HEAD is of this very thread, and it was not deleted. Its tombstone still has its uid."""
        return self.head.uid == thread.identity.uid and not self.head.deleted

    def is_new_to(self, thread: Thread | None) -> bool:
        """Returns True if HEAD is empty and the copy on this disk has nothing from the archive either. If the copy has
        something, the bucket was set back."""
        has_more = thread is not None and thread.archive is not None and thread.archive.head.tip_sequence > 0
        return self.is_empty and not has_more


@dataclass(frozen=True, slots=True)
class Fetched:
    """A thread's rows at HEAD's tip, and the entries and snapshots that belong to them."""

    image: ThreadImage
    rows: list[PackedRow]
    key: ThreadKey
    have: int  # last sequence of the copy that these rows continue

    def incoming(self, namespace: NamespaceKeys, row: ArchiveRow, is_first: bool = False) -> Incoming:
        """Returns this in the form that the installer puts on this disk."""
        return Incoming(
            namespace, self.key.uid, self.key.data_key, self.image, row, self.rows, self.have, is_first, self.key.held
        )


class Fetcher:
    """Reads from the bucket."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def look(
        self, namespace: NamespaceKeys, place: Place, *, with_key: bool, session_key: bytes = b""
    ) -> Seen | None:
        """Reads HEAD, and the thread's key at the same time. Returns None if there is no HEAD.

        Raises Corrupt, KeyUnavailable, and Locked if the thread is held and this is not its session key.
        """
        look = partial(self._look, namespace, place, with_key=with_key, session_key=session_key)
        try:
            seen = look()
        except (Corrupt, KeyUnavailable) as error:
            if isinstance(error, Locked) and not session_key:
                raise
            return look()  # a bit may have flipped on the way
        if with_key and seen is not None and seen.key is None and not seen.head.deleted and not seen.is_locked:
            return look()  # during a deletion: the next HEAD is a tombstone
        return seen

    def _look(self, namespace: NamespaceKeys, place: Place, *, with_key: bool, session_key: bytes) -> Seen | None:
        now = self._wire.now()
        if not with_key:
            found = self._wire.find(place.head)
            return Seen(open_head(namespace, place, found.data), found.etag, None, now) if found is not None else None
        guess = place.key(FIRST_EPOCH)
        found, guessed = self._wire.together(lambda: self._wire.find(place.head), lambda: self._wire.find(guess))
        if found is None:
            return None
        head = open_head(namespace, place, found.data)
        if (guessed is None or head.created_epoch != FIRST_EPOCH) and not head.deleted:
            # One more request: the name was deleted before, or the thread was made between the two requests.
            guessed = self._wire.find(place.key(head.created_epoch))
        try:
            key = _open_key(namespace, guessed, session_key) if not head.deleted else None
        except Locked:
            if head.tip_sequence:
                raise
            return Seen(head, found.etag, None, now, is_locked=True)
        if key is not None and key.uid != head.uid:
            raise Corrupt("HEAD and the key object belong to different threads")
        return Seen(head, found.etag, key, now)

    def fetch(self, place: Place, seen: Seen, have: int, *, for_writer: bool) -> Fetched:
        """Reads what is needed to continue from a copy that has the entries up to ``have``.

        Raises Corrupt, KeyUnavailable.
        """
        if seen.key is None:
            raise KeyUnavailable("the thread's key is not in the archive")
        head = seen.head
        cipher = Cipher(seen.key.data_key)
        tail = tail_rows(head)
        refs = list(head.objects)
        window = window_start(head.tip_sequence) if for_writer else head.tip_sequence
        branches = open_inline(cipher, head).branches
        base = next((branch.snapshot_version for branch in branches if branch.name == "main"), 0)
        index = head.index if head.HasField("index") and (not have or head.index.last_sequence > have) else None
        if index is not None and (not base or base <= index.last_version or index.last_sequence > window):
            refs = [*self.indexed(place, index), *refs]
        chosen = _needed(head, refs, tail, base, have, window)
        if head.HasField("index") and len(refs) == len(head.objects) and _lacks_snapshot(head, chosen, tail, base):
            refs = [*self.indexed(place, head.index), *refs]
            chosen = _needed(head, refs, tail, base, have, window)
        parts = part_refs(head)
        objects = self._objects(place, [*parts, *chosen])
        image = open_image(cipher, head, objects[: len(parts)])
        rows = [row for ref, data in zip(chosen, objects[len(parts) :], strict=True) for row in open_pack(ref, data)]
        if image.pruned.ranges:
            # A retained version whose parent was pruned can only be read with its own snapshot.
            pruned, headers = Ranges.from_message(image.pruned), headers_of([*rows, *tail])
            alone = {header.version for header in headers if header.parent_version in pruned}
            is_pruned_now = have and any(header.kind == PRUNED.number for header in headers)
            known = {ref.first_version for ref in refs if ref.kind == OBJECT_KIND_SNAPSHOT} | {head.snapshot_version}
            lacks = any(version not in known and version not in pruned for version in alone)
            if head.HasField("index") and len(refs) == len(head.objects) and (lacks or is_pruned_now):
                refs = [*self.indexed(place, head.index), *refs]
            if is_pruned_now:
                alone |= {ref.first_version for ref in refs}  # snapshots of entries that are on this disk
            rows += self.read(
                place,
                [
                    ref for ref in refs
                    if ref.kind == OBJECT_KIND_SNAPSHOT and ref not in chosen
                    and ref.first_version in alone and ref.first_version not in pruned
                ],
            )  # fmt: skip
        if head.snapshot_version:
            rows += snapshot_rows(head.snapshot_version, head.snapshot_pieces)
        return Fetched(image, [*rows, *tail], seen.key, have)

    def image(self, place: Place, head: ArchiveHead, cipher: Cipher) -> ThreadImage:
        """Returns the thread's rows at HEAD's tip. Raises Corrupt."""
        return open_image(cipher, head, self._objects(place, part_refs(head)))

    def history(self, place: Place, refs: Sequence[ObjectRef]) -> Iterable[tuple[ObjectRef, list[PackedRow] | Corrupt]]:
        """Yields the rows of each pack and snapshot, or the error if the object is missing or damaged.

        Reads ``HISTORY_AT_ONCE`` objects at a time.
        """

        def read(ref: ObjectRef) -> list[PackedRow] | Corrupt:
            try:
                return open_pack(ref, self._object(place, ref))
            except Corrupt as error:
                return error

        for at in range(0, len(refs), HISTORY_AT_ONCE):
            some = refs[at : at + HISTORY_AT_ONCE]
            yield from zip(some, self._wire.together(*(partial(read, ref) for ref in some)), strict=True)

    def index(self, place: Place, ref: ObjectRef) -> ArchiveIndex:
        """Returns one index. Raises Corrupt."""
        return open_index(ref, self._object(place, ref))

    def indexed(self, place: Place, index: ObjectRef) -> list[ObjectRef]:
        """Returns the objects that a chain of indexes names, oldest first. Raises Corrupt."""
        refs: list[ObjectRef] = []
        at: ObjectRef | None = index
        while at is not None:
            found = self.index(place, at)
            refs = [*found.objects, *refs]
            at = found.previous if found.HasField("previous") else None
        return refs

    def read(self, place: Place, refs: list[ObjectRef]) -> list[PackedRow]:
        """Reads packs and snapshots in one round trip, and returns their rows. Raises Corrupt."""
        return [row for ref, data in zip(refs, self._objects(place, refs), strict=True) for row in open_pack(ref, data)]

    def _objects(self, place: Place, refs: list[ObjectRef]) -> list[bytes]:
        return self._wire.together(*(partial(self._object, place, ref) for ref in refs))

    def _object(self, place: Place, ref: ObjectRef) -> bytes:
        key = place.object(ref)
        error: Corrupt | None = None
        for _ in range(2):  # a bit may flip on the way
            try:
                data = self._wire.read(key, ref.size_bytes)
                check_object(ref, data)
            except ObjectNotFound:
                raise Missing(f"object {key}, which HEAD names, is missing in the archive") from None
            except Corrupt as found:
                error = found
            else:
                return data
        assert error is not None
        raise Corrupt(f"{key}: {error.message}")


def _wanted(packs: list[ObjectRef], base: int, have: int, window: int) -> list[ObjectRef]:
    """Returns the packs to read, without a gap between them: for an empty disk (``have`` is 0) all since the snapshot
    ``base`` or since ``window``, whichever is older; else all with entries after ``have``."""
    if have:
        return [ref for ref in packs if ref.last_sequence > have]
    first = [ref.first_sequence for ref in packs if ref.last_version >= base or ref.last_sequence > window]
    return [ref for ref in packs if ref.last_sequence >= min(first)] if first else []


def _needed(
    head: ArchiveHead, refs: list[ObjectRef], tail: list[PackedRow], base: int, have: int, window: int
) -> list[ObjectRef]:
    """Returns the packs to read, the snapshot at ``base``, and the snapshots that the entries to read need."""
    wanted = _wanted([ref for ref in refs if is_pack(ref)], base, have, window)
    snapshots = _snapshots_of(head, wanted, tail, base)
    return [*wanted, *(ref for ref in refs if ref.kind == OBJECT_KIND_SNAPSHOT and ref.first_version in snapshots)]


def _lacks_snapshot(head: ArchiveHead, chosen: list[ObjectRef], tail: list[PackedRow], base: int) -> bool:
    """Returns True if the chosen packs or the tail need a snapshot that is not among the chosen objects."""
    found = {ref.first_version for ref in chosen if ref.kind == OBJECT_KIND_SNAPSHOT}
    return bool(_snapshots_of(head, [ref for ref in chosen if is_pack(ref)], tail, base) - found)


def _snapshots_of(head: ArchiveHead, packs: list[ObjectRef], tail: list[PackedRow], base: int) -> set[int]:
    """Returns the versions of the snapshots that packs and tail need, without the one that HEAD carries."""
    needed = {base} | {version for ref in packs for version in ref.snapshots} | snapshots_of(headers_of(tail))
    return needed - {0, head.snapshot_version}


def tail_rows(head: ArchiveHead) -> list[PackedRow]:
    """Returns the newest entries, which HEAD itself carries."""
    return [PackedRow(sequence=sequence_of(record), record=record) for record in head.tail]


def headers_of(rows: Iterable[PackedRow]) -> list[EntryHeader]:
    """Returns the headers of the entries among ``rows``."""
    return [unpack(row.record, row.sequence).header for row in rows if row.WhichOneof("place") == "sequence"]


def _open_key(namespace: NamespaceKeys, found: Object | None, session_key: bytes) -> ThreadKey | None:
    return open_thread(found.data, namespace, session_key) if found is not None else None
