"""Bringing older history to this disk, when somebody asks for it."""

from __future__ import annotations

from stateward.storage.v1.archive_pb2 import (
    OBJECT_KIND_INDEX,
    OBJECT_KIND_PACK,
    OBJECT_KIND_SNAPSHOT,
    ArchiveHead,
    ObjectRef,
    PackedRow,
)
from stateward.v1.thread_pb2 import ACCESS_ORPHAN
from stateward_sidecar.archive.desk import Desk, Name
from stateward_sidecar.archive.fetch import Fetcher
from stateward_sidecar.archive.packs import is_pack
from stateward_sidecar.archive.places import Place
from stateward_sidecar.codec.entry import unpack
from stateward_sidecar.errors import Corrupt, VersionPruned
from stateward_sidecar.store.install import is_entry, is_snapshot
from stateward_sidecar.store.thread import Thread
from stateward_sidecar.store.threads import not_found

BYTES_AT_ONCE = 8 << 20


class History:
    """Runs on the archive's threads."""

    def __init__(self, desk: Desk, fetcher: Fetcher) -> None:
        self._desk = desk
        self._fetcher = fetcher

    def complete(self, name: Name) -> int:
        """Fetches what this disk lacks of a thread. Returns how many entries came.

        What one damaged or missing object held stays away, with everything older; what is newer is here afterwards.
        Raises Corrupt, naming the object, where nothing more can be had.
        """
        with self._desk.locks.of(name):
            with self._desk.context.engine.read() as txn:
                thread = self._desk.store.threads.get(txn, *name)
            if not thread.floor_sequence:
                return 0
            return self._complete(thread)

    def heal(self, name: Name) -> bool:
        """Fetches snapshots that could not be had when they were wanted. False: there are none that this disk lacks."""
        with self._desk.locks.of(name):
            with self._desk.context.engine.read() as txn:
                thread = self._desk.store.threads.get(txn, *name)
            identity = thread.identity
            if thread.archive is None or thread.access == ACCESS_ORPHAN:
                return False
            place = self._desk.place(identity.namespace_keys, thread.name)
            seen = self._fetcher.look(identity.namespace_keys, place, with_key=False)
            if seen is None or seen.head.uid != identity.uid:
                return False
            refs = [ref for ref in self._missing(place, seen.head, thread)[0] if ref.kind == OBJECT_KIND_SNAPSHOT]
            found = [rows for _, rows in self._fetcher.history(place, refs) if not isinstance(rows, Corrupt)]
            rows = [row for each in found for row in each]
            if not rows:
                return False
            self._desk.installer.add_history(thread, rows)
            floor = thread.floor_sequence, thread.floor_version
            self._desk.installer.finish_history(thread, {row.snapshot_version for row in rows}, floor)
            return True

    def _missing(self, place: Place, head: ArchiveHead, thread: Thread) -> tuple[list[ObjectRef], _Hole]:
        """What HEAD leads to and this disk lacks, oldest first."""
        hole, older = _Hole(thread), list[ObjectRef]()
        if head.HasField("index"):
            try:
                older = self._fetcher.indexed(place, head.index)
            except Corrupt as error:
                hole.add(head.index, error)
        found = [ref for ref in (*older, *head.objects) if ref.kind in (OBJECT_KIND_PACK, OBJECT_KIND_SNAPSHOT)]
        floor, here = thread.floor_sequence, thread.snapshots
        lacking = [
            ref for ref in found
            if (ref.first_sequence <= floor if is_pack(ref) else ref.first_version not in here)
        ]  # fmt: skip
        return lacking, hole

    def _complete(self, thread: Thread) -> int:
        desk, identity = self._desk, thread.identity
        orphan = thread.archive if thread.access == ACCESS_ORPHAN else None
        # What an orphan shares with the thread it comes from is kept there.
        place = desk.place(identity.namespace_keys, orphan.orphan_of if orphan is not None else thread.name)
        seen = self._fetcher.look(identity.namespace_keys, place, with_key=False)
        is_there = seen is not None and seen.head.uid == identity.uid
        if orphan is not None and (not is_there or thread.floor_sequence > orphan.common_sequence):
            raise VersionPruned(
                f"the older history of orphan {thread.name!r} went with thread {orphan.orphan_of!r}",
                thread=thread.name, version=thread.floor_version,
            )  # fmt: skip
        if seen is None or not is_there:
            raise not_found(identity.namespace, thread.name)
        snapshots, last, digest, count = set[int](), 0, b"", 0
        pending: list[PackedRow] = []
        size = 0
        refs, hole = self._missing(place, seen.head, thread)
        for ref, found in self._fetcher.history(place, refs):
            if isinstance(found, Corrupt):
                hole.add(ref, found)
                continue
            for row in found:
                if is_snapshot(row):
                    snapshots.add(row.snapshot_version)
                elif is_entry(row):
                    header = unpack(row.record, row.sequence).header
                    if header.sequence == last + 1 and digest and header.previous_digest != digest:
                        raise Corrupt(
                            f"object {place.object(ref)}: entry {header.sequence} does not continue the one before it",
                            thread.name,
                        )
                    last, digest = header.sequence, header.digest
                    if header.sequence > thread.floor_sequence:
                        continue
                    count += 1
                pending.append(row)
                size += len(row.record)
            if size >= BYTES_AT_ONCE:
                desk.installer.add_history(thread, pending)
                pending, size = [], 0
        desk.installer.add_history(thread, pending)
        if hole.error is not None and hole.last_sequence >= thread.floor_sequence:
            raise hole.error
        desk.installer.finish_history(thread, snapshots, (hole.last_sequence, hole.last_version))
        return count


class _Hole:
    """Up to where nothing can be relied on, because an object is missing or damaged."""

    def __init__(self, thread: Thread) -> None:
        self._end = thread.floor_sequence, thread.floor_version
        self.last_sequence = self.last_version = 0
        self.error: Corrupt | None = None

    def add(self, ref: ObjectRef, error: Corrupt) -> None:
        """One more object that could not be read. Without a snapshot, only what needs it cannot be opened."""
        if ref.kind == OBJECT_KIND_SNAPSHOT:
            return
        self.error = self.error or error
        if ref.kind == OBJECT_KIND_INDEX:  # it may have named anything
            self.last_sequence, self.last_version = self._end
            return
        self.last_sequence = max(self.last_sequence, min(ref.last_sequence, self._end[0]))
        self.last_version = max(self.last_version, min(ref.last_version, self._end[1]))
