"""Bringing older history to this disk, when somebody asks for it."""

from __future__ import annotations

from stateward.storage.v1.archive_pb2 import PackedRow
from stateward_sidecar.archive.desk import Desk, Name
from stateward_sidecar.archive.fetch import Fetcher
from stateward_sidecar.codec.entry import unpack
from stateward_sidecar.errors import Corrupt
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
        """Fetches everything of a thread that this disk lacks. Returns how many entries came.

        What one damaged or missing object held stays away, and the rest comes: the error says which one it was.
        """
        with self._desk.locks.of(name):
            with self._desk.context.engine.read() as txn:
                thread = self._desk.store.threads.get(txn, *name)
            if not thread.floor_sequence:
                return 0
            return self._complete(thread)

    def _complete(self, thread: Thread) -> int:
        desk, identity = self._desk, thread.identity
        place = desk.place(identity.namespace_keys, thread.name)
        seen = self._fetcher.look(identity.namespace_keys, place, with_key=False)
        if seen is None or seen.head.uid != identity.uid:
            raise not_found(identity.namespace, thread.name)
        snapshots, last, digest, count = set[int](), 0, b"", 0
        pending: list[PackedRow] = []
        size = 0
        for ref, found in self._fetcher.history(place, seen.head):
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
        desk.installer.finish_history(thread, snapshots)
        return count
