"""Fetches older history to this disk when a call asks for it, or a retry may.

Selects the rows of an object that belong below a copy: rows that this disk lacks, of the copy's own line.

Fetches the entries that a retry may ask for, before anything is written to a thread.

A copy that was made for a reader may lack them, and another sidecar may have answered a request id that it lacks. So a
writer needs the thread's last 1,024 entries first. Their states stay in the archive.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from stateward.storage.v1.archive_pb2 import (
    OBJECT_KIND_INDEX,
    OBJECT_KIND_PACK,
    OBJECT_KIND_SNAPSHOT,
    ArchiveHead,
    ObjectRef,
    PackedRow,
)
from stateward.storage.v1.journal_pb2 import EntryHeader
from stateward.v1.thread_pb2 import THREAD_ACCESS_ORPHAN
from stateward_sidecar.archive.objects.fetch import HISTORY_AT_ONCE, Fetcher, headers_of, tail_rows
from stateward_sidecar.archive.objects.holds import ArchiveState, Name
from stateward_sidecar.archive.objects.packs import is_pack, snapshot_rows
from stateward_sidecar.archive.own.pulse import Pulse
from stateward_sidecar.archive.own.reconcile import Reconciler
from stateward_sidecar.archive.requests.places import Place
from stateward_sidecar.codec.entry import unpack
from stateward_sidecar.errors import ArchiveUnavailable, Corrupt, VersionPruned
from stateward_sidecar.store.journal.finding import digest_before
from stateward_sidecar.store.journal.replay import gone_with_thread
from stateward_sidecar.store.journal.requests import window_start
from stateward_sidecar.store.kinds.effect import are_effects_whole, has_all_pieces
from stateward_sidecar.store.kinds.record import are_records_whole
from stateward_sidecar.store.thread.ranges import Pruned, Ranges
from stateward_sidecar.store.thread.thread import Thread
from stateward_sidecar.store.thread.threads import not_found
from stateward_sidecar.store.travel.fetched import is_entry, is_snapshot
from stateward_sidecar.telemetry import log
from stateward_sidecar.tracebacks import told


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


BYTES_AT_ONCE = 8 << 20
# More than the indexes of any thread have together.
INDEXES_BYTES = 64 << 20


class HistoryChanged(ArchiveUnavailable):
    """HEAD has less history than the copy on this disk says: the owner has pruned since the copy was made, or this
    process was the owner and was replaced. The copy must be renewed first, else it would miss entries that it does not
    know to be gone."""


class History:
    """Runs on the archive's workers."""

    def __init__(self, state: ArchiveState, fetcher: Fetcher, reconciler: Reconciler) -> None:
        self._state = state
        self._fetcher = fetcher
        self._pulse = Pulse(state, reconciler)

    def complete(self, name: Name) -> int:
        """Fetches the entries and snapshots of a thread that this disk lacks. Returns the number of fetched entries.

        If an object is damaged or missing, fetches only what is newer. Raises Corrupt, naming the object, if nothing
        newer is left to fetch, and HistoryChanged.
        """
        with self._state.locks.of(name):
            with self._state.context.engine.read() as txn:
                thread = self._state.store.threads.get(txn, *name)
            if not thread.floor_sequence:
                return 0
            return self._complete(thread)

    def heal(self, name: Name) -> bool:
        """Fetches snapshots that an earlier fetch could not read. Returns False if it fetched none."""
        with self._state.locks.of(name):
            with self._state.context.engine.read() as txn:
                thread = self._state.store.threads.get(txn, *name)
            identity = thread.identity
            if thread.archive is None or thread.access == THREAD_ACCESS_ORPHAN:
                return False
            place = self._state.place(identity.namespace_keys, thread.name)
            seen = self._fetcher.look(identity.namespace_keys, place, with_key=False)
            if seen is None or not seen.leads_to(thread):
                return False
            refs = [ref for ref in self._missing(place, seen.head, thread)[0] if ref.kind == OBJECT_KIND_SNAPSHOT]
            found = [rows for _, rows in self.read(thread, place, refs) if not isinstance(rows, Corrupt)]
            rows = [row for each in found for row in each]
            if not rows:
                return False
            self._state.installer.add_history(thread, rows)
            floor = thread.floor_sequence, thread.floor_version
            self._state.installer.finish_history(thread, {row.snapshot_version for row in rows}, floor)
            return True

    def read(
        self, thread: Thread, place: Place, refs: Sequence[ObjectRef]
    ) -> Iterator[tuple[ObjectRef, list[PackedRow] | Corrupt]]:
        """Yields the rows of each pack and snapshot, or the error if the object is missing or damaged. The owner of the
        thread shows meanwhile that it lives."""
        for at in range(0, len(refs), HISTORY_AT_ONCE):
            some = refs[at : at + HISTORY_AT_ONCE]
            size = sum(ref.size_bytes for ref in some)
            yield from self._pulse.fetch(thread, size, partial(self._read, place, some))

    def _read(self, place: Place, refs: Sequence[ObjectRef]) -> list[tuple[ObjectRef, list[PackedRow] | Corrupt]]:
        return list(self._fetcher.history(place, refs))

    def indexed(self, thread: Thread, place: Place, index: ObjectRef) -> list[ObjectRef]:
        """The same for ``Fetcher.indexed``: a chain of indexes may be long."""
        return self._pulse.fetch(thread, INDEXES_BYTES, partial(self._fetcher.indexed, place, index))

    def _missing(self, place: Place, head: ArchiveHead, thread: Thread) -> tuple[list[ObjectRef], _Hole]:
        """Returns the packs and snapshots that HEAD leads to and this disk lacks, and up to where they are damaged."""
        hole, older = _Hole(thread), list[ObjectRef]()
        if head.HasField("index"):
            try:
                older = self.indexed(thread, place, head.index)
            except Corrupt as error:
                hole.add(head.index, error)
        found = [ref for ref in (*older, *head.objects) if ref.kind in (OBJECT_KIND_PACK, OBJECT_KIND_SNAPSHOT)]
        floor, here = thread.floor_sequence, thread.snapshots
        # An orphan shares only the history below its floor, and HEAD may have new versions since a copy was made.
        last = thread.floor_version if thread.access == THREAD_ACCESS_ORPHAN else thread.head.last_version
        lacking = [
            ref for ref in found
            if (ref.first_sequence <= floor if is_pack(ref) else ref.first_version not in here)
            and (is_pack(ref) or ref.first_version <= last)
        ]  # fmt: skip
        return lacking, hole

    def _complete(self, thread: Thread) -> int:
        state = self._state
        place, head = self._source(thread)
        refs, hole = self._missing(place, head, thread)
        chain = Chain(thread, self._following(thread))
        cleared = self.check_known(thread, place, head)
        if thread.access == THREAD_ACCESS_ORPHAN and not self._is_kept(thread, place, head, refs, chain, cleared):
            raise _gone(thread)
        snapshots, count = set[int](), 0
        pending: list[PackedRow] = []
        size = 0
        carried = ObjectRef(), _carried(thread, head, refs)
        for ref, found in itertools.chain(self.read(thread, place, refs), [carried]):
            if isinstance(found, Corrupt):
                hole.add(ref, found)
                continue
            for row in chain.missing(found, place.object(ref) if ref.kind else place.head):
                if is_snapshot(row):
                    snapshots.add(row.snapshot_version)
                count += is_entry(row)
                pending.append(row)
                size += len(row.record)
            if size >= BYTES_AT_ONCE:
                state.installer.add_history(thread, pending)
                pending, size = [], 0
        state.installer.add_history(thread, pending)
        if hole.error is not None and hole.last_sequence >= thread.floor_sequence:
            raise hole.error
        gone = self._went(thread, cleared)
        state.installer.finish_history(thread, snapshots, (hole.last_sequence, hole.last_version), gone)
        return count

    def check_known(self, thread: Thread, place: Place, head: ArchiveHead) -> Pruned:
        """Returns what HEAD says was pruned; nothing if HEAD is the one that this disk's copy is from. Raises
        HistoryChanged if more of the history that this disk lacks was pruned than a copy knows."""
        cleared = self._cleared_since(thread, place, head)
        is_more = any(itertools.starmap(_has_more, _below_floor(thread, cleared)))
        if is_more and thread.access != THREAD_ACCESS_ORPHAN:
            raise HistoryChanged(f"entries of thread {thread.name!r} were pruned since this copy was made; try again")
        return cleared

    def _cleared_since(self, thread: Thread, place: Place, head: ArchiveHead) -> Pruned:
        state, row = self._state, thread.archive
        hold = state.holds.get(thread.number)
        known = [hold.head.write_id] if hold is not None else []
        if row is not None and thread.access != THREAD_ACCESS_ORPHAN:
            known.append(row.head.write_id)
        if head.write_id in known:
            return Pruned()
        return Pruned.from_message(self._fetcher.image(place, head, thread.identity.cipher).pruned)

    def _went(self, thread: Thread, cleared: Pruned) -> tuple[bool, bool]:
        """Returns whether rows of records and of effects are missing, because the thread that the orphan comes from
        cleared their entries."""
        effects, records = itertools.starmap(_has_more, _below_floor(thread, cleared)[1:3])
        with self._state.context.engine.read() as txn:
            return (
                records and not are_records_whole(txn, thread),
                effects and not (are_effects_whole(txn, thread) and has_all_pieces(txn, thread, cleared.effects)),
            )

    def _source(self, thread: Thread) -> tuple[Place, ArchiveHead]:
        """Returns the HEAD that leads to the older history. An orphan's is the HEAD of the thread it comes from."""
        identity, row = thread.identity, thread.archive
        orphan = row if thread.access == THREAD_ACCESS_ORPHAN else None
        place = self._state.place(identity.namespace_keys, orphan.orphan_of if orphan is not None else thread.name)
        seen = self._fetcher.look(identity.namespace_keys, place, with_key=False)
        is_there = seen is not None and seen.leads_to(thread)
        if orphan is not None and (not is_there or thread.floor_sequence > orphan.common_sequence):
            raise _gone(thread)
        if seen is None or not is_there:
            if row is not None and row.rolled_back:
                raise Corrupt("its HEAD was set back, and the archive lacks the older history", thread.name)
            raise not_found(identity.namespace, thread.name)
        if seen.head.tip_sequence < thread.floor_sequence:
            if orphan is not None:
                raise _gone(thread)
            raise Corrupt("its HEAD was set back to before the entries that this disk has", thread.name)
        return place, seen.head

    def _is_kept(
        self, orphan: Thread, place: Place, head: ArchiveHead, refs: Sequence[ObjectRef], chain: Chain, pruned: Pruned
    ) -> bool:
        """Whether the archive has the older history of an orphan: nothing of it was pruned since, and the entry at the
        floor is the one that goes on here. HEAD may be of a third line by now."""
        if _has_more(*_below_floor(orphan, pruned)[0]):
            return False
        wanted = [ref for ref in refs if is_pack(ref) and ref.first_sequence <= chain.floor <= ref.last_sequence]
        found = [rows for _, rows in self._fetcher.history(place, wanted) if not isinstance(rows, Corrupt)]
        return all(chain.is_ours(header) for rows in (*found, tail_rows(head)) for header in headers_of(rows))

    def _following(self, thread: Thread) -> bytes:
        """Returns the digest of the entry at the floor, as the entry above it says; empty if that one was pruned."""
        with self._state.context.engine.read() as txn:
            return digest_before(txn, thread.identity, thread.floor_sequence + 1)


def _carried(thread: Thread, head: ArchiveHead, refs: Sequence[ObjectRef]) -> list[PackedRow]:
    """Returns the older entries and the older snapshot that HEAD itself carries. A HEAD that was set back may carry
    what was in objects when this copy was made. Entries that are in packs may need the snapshot."""
    packed = max((ref.last_sequence for ref in refs if is_pack(ref)), default=0)
    entries = [row for row in tail_rows(head) if packed < row.sequence <= thread.floor_sequence]
    if head.snapshot_version > thread.floor_version or head.snapshot_version in thread.snapshots:
        return entries
    return [*snapshot_rows(head.snapshot_version, head.snapshot_pieces), *entries]


def _gone(orphan: Thread) -> VersionPruned:
    return gone_with_thread(orphan, "older history")


def _below_floor(thread: Thread, theirs: Pruned) -> list[tuple[Ranges, Ranges]]:
    """Returns pairs of what HEAD says is cleared of the history that this disk lacks, and what this disk's copy says:
    first the versions, then each of ``Pruned.entries``."""
    pairs = zip(theirs.entries(), thread.pruned.entries(), strict=True)
    entries = [(cleared.until(thread.floor_sequence), known) for cleared, known in pairs]
    return [(theirs.until(thread.floor_version), thread.pruned), *entries]


def _has_more(theirs: Ranges, ours: Ranges) -> bool:
    return len(theirs) > len(theirs.common(ours))


class _Hole:
    """The newest entry and version whose history is unreadable, because an object is missing or damaged."""

    def __init__(self, thread: Thread) -> None:
        self._end = thread.floor_sequence, thread.floor_version
        self.last_sequence = self.last_version = 0
        self.error: Corrupt | None = None

    def add(self, ref: ObjectRef, error: Corrupt) -> None:
        """Notes an object that could not be read. A snapshot is ignored, because only its own readers need it."""
        if ref.kind == OBJECT_KIND_SNAPSHOT:
            return
        self.error = self.error or error
        if ref.kind == OBJECT_KIND_INDEX:  # the index may have named any object
            self.last_sequence, self.last_version = self._end
            return
        self.last_sequence = max(self.last_sequence, min(ref.last_sequence, self._end[0]))
        self.last_version = max(self.last_version, min(ref.last_version, self._end[1]))


class Window:
    """Fetches missing entries of the window. Runs on the archive's workers."""

    def __init__(self, state: ArchiveState, fetcher: Fetcher, history: History) -> None:
        self._state = state
        self._fetcher = fetcher
        self._history = history

    def complete(self, name: Name) -> None:
        """Fetches the entries of the window that this disk lacks. Raises HistoryChanged, Corrupt and others."""
        with self._state.locks.of(name):
            with self._state.context.engine.read() as txn:
                thread = self._state.store.threads.get(txn, *name)
            keys = thread.identity.namespace_keys
            place = self._state.place(keys, thread.name)
            seen = self._fetcher.look(keys, place, with_key=False)
            if seen is None or not seen.leads_to(thread):
                raise not_found(*name)
            if thread.floor_sequence:
                self._history.check_known(thread, place, seen.head)
            self.fill(thread, place, seen.head)

    def fill(self, thread: Thread, place: Place, head: ArchiveHead) -> None:
        """Does the same with a HEAD that was read, under the lock of the thread's name.

        A thread continues without entries that the archive has lost. Their retries count as new.
        """
        floor, start = thread.floor_sequence, window_start(head.tip_sequence)
        if floor <= start or floor <= thread.lost_sequence:
            return
        lost = self._fetch(thread, place, head, floor, start) if start else self._fetch_all(thread)
        if lost is not None:
            log.error(
                "the archive has lost entries that a retry may ask for", uid=thread.identity.uid_text,
                error=told(lost),
            )  # fmt: skip
            live = self._live(thread)
            thread.lost_sequence = live.lost_sequence = live.floor_sequence

    def _fetch_all(self, thread: Thread) -> Corrupt | None:
        try:
            self._history.complete((thread.identity.namespace, thread.name))
        except Corrupt as error:
            return error
        is_whole = not self._live(thread).floor_sequence
        return None if is_whole else Corrupt("an object is missing or damaged", thread.name)

    def _fetch(self, thread: Thread, place: Place, head: ArchiveHead, floor: int, start: int) -> Corrupt | None:
        """Puts the entries in (start, floor] on this disk. Returns the error if one of them could not be read."""
        refs = list(head.objects)
        if head.HasField("index") and head.index.last_sequence > start:
            refs = [*self._history.indexed(thread, place, head.index), *refs]
        packs = [ref for ref in refs if is_pack(ref) and ref.first_sequence <= floor and ref.last_sequence > start]
        chain = Chain(thread, self._following(thread), after=start)
        for ref, found in self._history.read(thread, place, packs):
            if isinstance(found, Corrupt):
                return found
            self._state.installer.add_history(thread, list(chain.missing(found, place.object(ref))))
        self._state.installer.finish_history(thread, set(), (start, thread.floor_version))
        return None

    def _live(self, thread: Thread) -> Thread:
        with self._state.context.engine.read() as txn:
            return self._state.store.threads.by_number(txn, thread.number) or thread

    def _following(self, thread: Thread) -> bytes:
        """Returns the digest of the entry at the floor, as the entry above it says; empty if that one was pruned."""
        with self._state.context.engine.read() as txn:
            return digest_before(txn, thread.identity, thread.floor_sequence + 1)
