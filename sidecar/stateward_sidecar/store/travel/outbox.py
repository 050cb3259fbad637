"""Reads threads for the archive: the rows of a thread at one moment, and its entries in order.

Everything is copied in short transactions. Entries and snapshots that are not archived are never pruned, so a later
step can still read them. Archived entries may be read again, for a new HEAD or a larger pack. If they were pruned since
the moment, they may be cleared, and the rows of the moment say that they are whole: ``Cleared``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import lmdb

from stateward.storage.v1.archive_pb2 import PackedRow
from stateward.storage.v1.head_pb2 import BlobRow, ThreadHead
from stateward.storage.v1.journal_pb2 import (
    BlobRecord,
    EntryHeader,
    PrunedVersions,
)
from stateward_sidecar.codec.entry import Entry, entry_digest, unpack
from stateward_sidecar.codec.seal import content_hash
from stateward_sidecar.errors import Corrupt
from stateward_sidecar.storage import layout
from stateward_sidecar.store.blobs.blobrows import OpenedBlobs
from stateward_sidecar.store.journal import finding, replay
from stateward_sidecar.store.journal.requests import may_be_removed
from stateward_sidecar.store.kinds.blob import BLOB, BLOB_REMOVED
from stateward_sidecar.store.kinds.table import is_cut
from stateward_sidecar.store.thread import blocks
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.ranges import Pruned
from stateward_sidecar.store.thread.thread import Identity, Thread, load_head, load_thread, rows
from stateward_sidecar.store.thread.threads import Threads

# How many bytes of entries one transaction reads.
CHUNK_BYTES = 4 << 20
# How many headers one transaction reads.
ENTRIES_A_STEP = 500


class Cleared(Exception):
    """Entries or snapshots that the thread had at the moment were pruned since. The caller takes a new moment."""


@dataclass(frozen=True, slots=True)
class Moment:
    """The committed state of a thread at one moment."""

    thread: Thread  # a copy, or read for this moment only; nobody changes it
    head: ThreadHead  # without main, which is among the thread's branches
    blobs: list[BlobRow]
    is_clearing: bool = False  # something was pruned, and a sweep of this disk will clear it

    @property
    def tip_sequence(self) -> int:
        return self.head.tip_sequence


@dataclass(frozen=True, slots=True)
class Shipment:
    """Entries and their pieces, in order, as rows of a pack."""

    rows: list[PackedRow]
    headers: list[EntryHeader]
    size_bytes: int

    def after(self, sequence: int) -> Shipment:
        """Returns the entries after a sequence, with their pieces."""
        if not self.headers or self.headers[0].sequence > sequence:
            return self
        headers = [header for header in self.headers if header.sequence > sequence]
        parts = {header.parts_id for header in headers if header.parts_id}
        rows = [row for row in self.rows if row.sequence > sequence or row.parts_id in parts]
        return Shipment(rows, headers, sum(len(row.record) for row in rows))


@dataclass(frozen=True, slots=True)
class WrittenBlob:
    """A blob that an entry completed or renewed."""

    record: BlobRecord
    is_again: bool  # an earlier entry completed it


class Outbox:
    """Reads for the archive. Runs on the threads of the archive."""

    def __init__(self, context: Context, threads: Threads) -> None:
        self._context = context
        self._threads = threads

    def moment(self, identity: Identity, opened: OpenedBlobs | None = None) -> Moment | None:
        """Returns the thread as it is now; None if it was deleted. Raises Corrupt.

        ``opened``: its blobs as the caller opened them last.
        """
        context = self._context
        thread, blobs = self._copy_hot(identity), list[BlobRow]()
        with context.engine.read() as txn:
            if txn.get(identity.keys.head) is None:
                return None
            # Rows of blobs are on disk only. If a commit came after the copy, they are newer: a blob that was removed
            # since would be missing in a HEAD whose versions name it.
            stored = load_head(txn, identity)
            if thread is None or stored.tip_sequence > thread.head.tip_sequence:
                thread = load_thread(txn, context.keystore, identity.namespace_keys, identity.number, identity.uid)
            if txn.get(layout.blobs_key(identity.number)) is not None:
                blobs = (opened or OpenedBlobs()).list(txn, identity, stored.tip_sequence)
            # Without the whole history nothing is cleared here.
            is_clearing = not thread.floor_sequence and txn.get(layout.uncleared_key(identity.number)) is not None
        head = ThreadHead()
        head.CopyFrom(thread.head)
        head.ClearField("main")
        return Moment(thread, head, blobs, is_clearing)

    def tip(self, identity: Identity) -> int:
        """Returns the newest entry of a thread; 0 if it was deleted. Raises Corrupt."""
        with self._context.engine.read() as txn:
            return load_head(txn, identity).tip_sequence if txn.get(identity.keys.head) is not None else 0

    def is_marked(self, identity: Identity) -> bool:
        """Returns whether the thread has a row in the outbox."""
        with self._context.engine.read() as txn:
            return txn.get(layout.outbox_key(identity.number)) is not None

    def blobs(self, moment: Moment, headers: Iterable[EntryHeader]) -> tuple[list[WrittenBlob], set[bytes]]:
        """Returns the blobs that the entries completed or renewed, if the thread has them at this moment. Returns also
        the ids of those that the entries removed."""
        wanted = [each for each in headers if each.kind in (BLOB.number, BLOB_REMOVED.number)]
        written, gone, identity = list[WrittenBlob](), set[bytes](), moment.thread.identity
        if not wanted:
            return written, gone
        # Entries that are archived may be read again, and may be gone by now.
        named = {row.record.blob_id: row.sequence for row in moment.blobs}
        with self._context.engine.read() as txn:
            for header in wanted:
                found = blocks.get_entry(txn, identity.keys, header.sequence)
                if found is None:
                    continue
                record = replay.open_metadata(identity, unpack(found, header.sequence)).blob
                if header.kind == BLOB_REMOVED.number:
                    gone.add(bytes(record.blob_id))
                elif record.blob_id in named:
                    written.append(WrittenBlob(record, is_again=named[record.blob_id] != header.sequence))
        return written, gone

    def _copy_hot(self, identity: Identity) -> Thread | None:
        """Returns a copy of a thread that is in memory; else None. It shares the messages, which never change."""
        live = self._threads.in_memory(identity.number)
        if live is None:
            return None
        with self._context.writer.publishing:  # else some parts might be newer than others
            if live.is_deleted or live.identity.uid != identity.uid:
                return None
            return Thread(
                live.identity, live.head, live.branches.copy(), live.tags, live.pruned, live.snapshots, live.signals,
                archive=live.archive,
            )  # fmt: skip

    def entries(self, thread: Thread, after: int, until: int) -> Iterator[Shipment]:
        """Yields the entries after ``after`` up to ``until``, some megabytes at a time. Raises Corrupt, Cleared.

        Each entry is opened, and its digest is checked. Entries are missing only if they were pruned after they were
        archived, or if the archive alone has them.
        """
        while after < until:
            shipment = self._chunk(thread, after, until)
            if not shipment.headers:
                return
            yield shipment
            after = shipment.headers[-1].sequence

    def _chunk(self, thread: Thread, after: int, until: int) -> Shipment:
        context, identity = self._context, thread.identity
        found, headers, size, at = list[PackedRow](), list[EntryHeader](), 0, after
        held: replay.Held = {}
        with context.engine.read() as txn:
            now = _pruned_since(txn, thread)
            for sequence, record in blocks.entries(txn, identity.keys, after + 1):
                if size >= CHUNK_BYTES:
                    break
                if min(sequence, until + 1) != at + 1:
                    self._check_gap(txn, thread, min(sequence - 1, until), now)
                if sequence > until:
                    break
                entry, at = unpack(record, sequence), sequence
                if now is not None and is_cut(now, entry.header) and not is_cut(thread.pruned, entry.header):
                    raise Cleared
                # A pruned version may be here as a whole entry from the archive, but without its dictionary.
                if not entry.is_husk and not is_cut(thread.pruned, entry.header):
                    _prove(identity, entry, replay.read_edits(txn, identity, entry, context.cache, held))
                found.append(PackedRow(sequence=sequence, record=entry.record))
                if entry.header.parts_id and not is_cut(thread.pruned, entry.header):
                    for index, (_, piece) in enumerate(rows(txn, identity.keys.edits_pieces(entry.header.parts_id))):
                        found.append(PackedRow(parts_id=entry.header.parts_id, index=index, record=bytes(piece)))
                        size += len(piece)
                headers.append(entry.header)
                size += len(entry.record)
            else:
                if at < until:
                    self._check_gap(txn, thread, until, now)
        return Shipment(found, headers, size)

    @staticmethod
    def _check_gap(txn: lmdb.Transaction, thread: Thread, last: int, now: Pruned | None) -> None:
        """Raises Corrupt if an entry is missing that must be on this disk, else the archive would lose it, too."""
        if last <= thread.floor_sequence:
            return
        if now is not None:
            raise Cleared  # the moment may not know of the prune that removed it
        if not may_be_removed(thread, last):
            if may_be_removed(thread, last, load_head(txn, thread.identity).tip_sequence):
                raise Cleared  # when the moment was taken, a retry could still ask for it
            raise Corrupt(f"journal entry {last} is missing", thread.name)

    def snapshot(self, thread: Thread, version: int) -> list[bytes]:
        """Returns the sealed pieces of a snapshot, after opening them; empty if it was removed. Raises Corrupt, and
        Cleared if its version was pruned since the moment."""
        identity = thread.identity
        with self._context.engine.read() as txn:
            found = [bytes(piece) for _, piece in rows(txn, identity.keys.snapshot_pieces(version))]
            if found:
                replay.read_snapshot(txn, identity, version)
        if not found and version not in thread.pruned:
            raise Cleared
        return found

    def dictionaries(self, thread: Thread, wanted: set[int]) -> set[int]:
        """Returns the snapshots among ``wanted`` that an entry on this disk needs as dictionary. Reads headers only."""
        keys, found, at = thread.identity.keys, set[int](), 0
        with self._context.engine.read() as txn:
            at = replay.place_of(txn, thread, min(wanted))
        while at < thread.head.tip_sequence and found != wanted:
            with self._context.engine.read() as txn:
                last = at
                for sequence, record in blocks.entries(txn, keys, at + 1):
                    header = unpack(record, sequence).header
                    last = header.sequence
                    if header.dictionary_version in wanted and header.version not in thread.pruned:
                        found.add(header.dictionary_version)
                    if last - at >= ENTRIES_A_STEP:
                        break
            if last == at:
                break
            at = last
        return found

    def digest_at(self, identity: Identity, sequence: int) -> bytes:
        """Returns the digest of an entry; empty if neither the entry nor the entry after it is on this disk.

        A prune or a move of records may have removed the entry at HEAD's tip before anything newer was archived.
        """
        with self._context.engine.read() as txn:
            return finding.digest_at(txn, identity, sequence) or finding.digest_before(txn, identity, sequence + 1)

    def may_need(self, thread: Thread, first: int, last: int) -> bool:
        """Returns whether a thread, as it was read, may need any entry from ``first`` to ``last``: one is on this disk,
        or was removed by a prune since then."""
        with self._context.engine.read() as txn:
            found = next(blocks.entries(txn, thread.identity.keys, first), None)
            return (found is not None and found[0] <= last) or _pruned_since(txn, thread) is not None


def _pruned_since(txn: lmdb.Transaction, thread: Thread) -> Pruned | None:
    """Returns what is pruned by now, if more was pruned since the thread was read; else None. Raises Corrupt."""
    key = thread.identity.keys.pruned()
    record = txn.get(key)
    if record is None:
        return None
    now = Pruned.from_message(PrunedVersions.FromString(thread.identity.open_row(key, record)))
    return None if now.is_same(thread.pruned) else now


def _prove(identity: Identity, entry: Entry, edits: bytes) -> None:
    """Raises Corrupt unless the entry matches its digest: a fault of memory or disk must not reach the archive."""
    metadata = entry.open_metadata_bytes(identity.cipher, identity.uid)
    if entry_digest(identity.cipher, entry.header, metadata, content_hash(edits)) != entry.header.digest:
        raise Corrupt("a journal entry does not match its digest", identity.name, entry.header.version)
