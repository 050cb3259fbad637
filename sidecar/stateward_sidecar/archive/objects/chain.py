"""Selects the rows of an object that belong below a copy: rows that this disk lacks, of the copy's own line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stateward.storage.v1.archive_pb2 import PackedRow
from stateward.storage.v1.journal_pb2 import EntryHeader
from stateward_sidecar.codec.entry import unpack
from stateward_sidecar.errors import Corrupt
from stateward_sidecar.store.thread.thread import Thread
from stateward_sidecar.store.travel.fetched import is_entry, is_snapshot


class Chain:
    """Checks that fetched entries form one chain that ends where this disk's copy begins."""

    def __init__(self, thread: Thread, following: bytes, after: int = 0) -> None:
        """``following`` is the digest of the entry at the floor, as the entry above it says; empty if unknown. Entries
        up to the sequence ``after`` are left out."""
        self.floor = thread.floor_sequence
        self._after = after
        self._name = thread.name
        self._following = following
        self._last, self._digest = 0, b""
        self._parts = set[int]()  # part ids of selected entries: their pieces come right after them

    def is_ours(self, header: EntryHeader) -> bool:
        """Returns False if the entry is at the floor but is not the one that this disk continues."""
        return header.sequence != self.floor or self._following in (b"", header.digest)

    def missing(self, found: Iterable[PackedRow], key: str) -> Iterator[PackedRow]:
        """Yields the rows of one object that this disk lacks. Raises Corrupt, naming the object.

        Leaves out entries above the floor. A pack may continue beyond the copy's tip, and its entries would then lie
        after the tip.
        """
        for row in found:
            if is_entry(row):
                if self._take(unpack(row.record, row.sequence).header, key):
                    yield row
            elif is_snapshot(row) or row.parts_id in self._parts:
                yield row

    def _take(self, header: EntryHeader, key: str) -> bool:
        if header.sequence == self._last + 1 and self._digest and header.previous_digest != self._digest:
            raise Corrupt(f"object {key}: entry {header.sequence} does not continue the one before it", self._name)
        if not self.is_ours(header):
            raise Corrupt(f"object {key}: entry {header.sequence} belongs to another line", self._name)
        self._last, self._digest = header.sequence, header.digest
        if not self._after < header.sequence <= self.floor:
            return False
        self._parts.add(header.parts_id)
        return True
