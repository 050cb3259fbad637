"""Clears pruned versions, in steps that hold the writer for a few milliseconds each.

A prune is one small transaction. After it nobody reads the versions, and a row lists those that still have their rows.
This module removes edits and index rows, then the snapshots that no version needs, then old husks. After a crash the
next start finds the row and continues.

An entry that a retry may ask for is first cut down to its header and metadata (a husk), and removed later.
"""

from __future__ import annotations

import time
from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from itertools import islice
from typing import TypeVar

import lmdb

from stateward.storage.v1.head_pb2 import ThreadHead
from stateward.v1.thread_pb2 import THREAD_ACCESS_ORPHAN, THREAD_ACCESS_REMOTE
from stateward_sidecar.codec.entry import Entry, unpack
from stateward_sidecar.errors import StatewardError
from stateward_sidecar.storage import layout
from stateward_sidecar.storage.queue import Batch, Write
from stateward_sidecar.store.clean.lineage import Lineage, read_uncleared, write_uncleared
from stateward_sidecar.store.journal import replay
from stateward_sidecar.store.journal.journal import label_keys
from stateward_sidecar.store.journal.requests import delete_request, request_key
from stateward_sidecar.store.kinds.table import is_cut
from stateward_sidecar.store.thread import blocks
from stateward_sidecar.store.thread.context import REQUEST_WINDOW_ENTRIES, REQUEST_WINDOW_S, Context
from stateward_sidecar.store.thread.ranges import Pruned, Ranges
from stateward_sidecar.store.thread.thread import MAIN, Thread, ThreadDraft, rows, write_head
from stateward_sidecar.store.thread.threads import Threads
from stateward_sidecar.store.thread.times import SECOND_US, made_us
from stateward_sidecar.telemetry import log_damage

T = TypeVar("T")
Place = tuple[int, str]  # number and name of a thread
STEP_S = 0.003
# How many entries a step may clear.
ITEMS_A_STEP = 256
# How many new entries a step may read for the lineage.
ENTRIES_A_STEP = 64


@dataclass(slots=True)
class _Work:
    """The work of one step."""

    txn: lmdb.Transaction
    draft: ThreadDraft
    head: ThreadHead
    now_us: int
    archived: int  # entries up to this one may be removed
    lineage: Lineage
    # Changes of the lineage, made after the step is committed.
    freed: Counter[int] = field(default_factory=Counter)
    husks: list[int] = field(default_factory=list)
    dropped: int = 0

    def in_window(self, entry: Entry) -> bool:
        """Returns whether the entry must stay: a retry may ask for it, or it is the first one, or it is in an orphan
        only, where a caller still learns that it was FENCED."""
        header, row = entry.header, self.draft.archive
        return (
            header.sequence == 1
            or (row is not None and row.access == THREAD_ACCESS_ORPHAN and header.sequence > row.common_sequence)
            or header.sequence > self.head.tip_sequence - REQUEST_WINDOW_ENTRIES
            or made_us(self.head, header.sequence, header.create_time_us, self.now_us)
            > self.now_us - REQUEST_WINDOW_S * SECOND_US
        )

    def free(self, stored_bytes: int) -> None:
        """Subtracts bytes from the stored size in the head."""
        self.head.stored_bytes = max(self.head.stored_bytes - stored_bytes, 0)

    def settle(self) -> None:
        """Updates the lineage after the commit."""
        lineage = self.lineage
        lineage.users -= self.freed
        del lineage.husks[: self.dropped]
        for sequence in self.husks:
            insort(lineage.husks, sequence)


class _Outcome(Enum):
    """What a call that clears does next."""

    OVER = auto()
    MORE = auto()
    CHANGED = auto()  # the row names other entries now


@dataclass(frozen=True, slots=True)
class _Walk:
    """What a call clears. The row is read once: with thousands of ranges, a step would take longer for it than for its
    work. A crash leaves the row as it is, and entries that are cleared already are passed over."""

    uncleared: Pruned
    archived: int
    loose: Ranges  # all entries of tags and the like that count for nothing
    others: Sequence[int]  # entries of signals, tags, settings, leases, blobs and moved heads that are to be cleared

    def items(self) -> Iterator[tuple[int, int]]:
        """Yields the versions, as (version, 0), and the archived entries, as (0, sequence).

        Values that are not archived yet wait for a sweep: a HEAD that is being written may still have them.
        """
        yield from ((version, 0) for version in self.uncleared)
        for left in (self.uncleared.effects, self.uncleared.records, self.uncleared.objects):
            yield from ((0, sequence) for sequence in left.until(self.archived))
        yield from ((0, sequence) for sequence in self.others if sequence <= self.archived)

    def now(self) -> Pruned:
        """Returns what this call clears."""
        left = self.uncleared
        return Pruned(left.pairs(), *(each.until(self.archived) for each in left.entries()))

    def cleared(self) -> Pruned:
        """Returns ``now``, and the entries of branches whose last version is cleared by it."""
        return self.now().with_loose(self.loose.until(self.archived))

    def later(self) -> Pruned:
        """Returns what a later sweep clears."""
        return Pruned((), *(each.after(self.archived) for each in self.uncleared.entries()))


class Clearer:
    """Clears pruned versions. Waits for the writer, so not for the event loop."""

    def __init__(self, context: Context, threads: Threads) -> None:
        self._context = context
        self._threads = threads

    def clear(self, thread: Thread, lineage: Lineage) -> None:
        """Clears all pruned versions of a thread. Only one call for each thread at a time.

        Ends early if the thread is set aside meanwhile: a sweep continues with the orphan. Raises ShuttingDown or
        DiskFull.
        """
        outcome, place = _Outcome.CHANGED, (thread.number, thread.name)
        while outcome is _Outcome.CHANGED:
            if (walk := self._look(place, lineage)) is None:
                return
            items, chunk, is_any = walk.items(), list[tuple[int, int]](), False
            while chunk := [*chunk, *islice(items, ITEMS_A_STEP - len(chunk))]:
                done = self._submit(self._step(place, lineage, chunk))
                if done is None:
                    return
                del chunk[:done]
                is_any = is_any or done > 0
            outcome = _Outcome.MORE
            while outcome is _Outcome.MORE:
                outcome = self._submit(self._end(place, lineage, walk, is_any=is_any))
            lineage.forget(walk.cleared())

    def _submit(self, run: Callable[[lmdb.Transaction, Batch], T]) -> T:
        # Not as background writes: under load they might never run, and a step is as short as a save.
        answer: T = self._context.writer.submit(Write(run=run, is_alone=True, frees_space=True), wait=True).wait()
        return answer

    def _look(self, place: Place, lineage: Lineage) -> _Walk | None:
        """Returns what there is to clear; None if this sidecar may not change the thread."""
        with self._context.engine.read() as txn:
            thread = self._find(txn, place)
            if thread is None:
                return None
            uncleared = read_uncleared(txn, thread.number, thread.pruned)
        signals = (sequence for sequence in lineage.signals if sequence in uncleared.signals)
        loose = (sequence for sequence in lineage.loose if sequence in uncleared.loose)
        others = sorted([*signals, *loose, *lineage.over(thread.pruned.loose)])
        return _Walk(uncleared, self._archived(thread), thread.pruned.loose, others)

    def _find(self, txn: lmdb.Transaction, place: Place) -> Thread | None:
        number, name = place
        thread = self._threads.by_number(txn, number)
        return None if thread is None or thread.access == THREAD_ACCESS_REMOTE or thread.name != name else thread

    def _archived(self, thread: Thread) -> int:
        if self._context.archive is None or thread.access == THREAD_ACCESS_ORPHAN:  # no HEAD will have the entries
            return thread.head.tip_sequence
        return thread.archived_sequence

    def _step(
        self, place: Place, lineage: Lineage, chunk: Sequence[tuple[int, int]]
    ) -> Callable[[lmdb.Transaction, Batch], int | None]:
        """Returns the write of one step, which clears edits and index rows.

        The write returns how many items of the chunk are cleared; None if no more of them may be cleared now.
        """

        def run(txn: lmdb.Transaction, batch: Batch) -> int | None:
            work = self._begin(txn, batch, place, lineage)
            if work is None:
                return None
            until, done = time.perf_counter() + STEP_S, 0
            if not lineage.read_on(txn, work.draft, ENTRIES_A_STEP):
                return done
            for version, sequence in chunk:
                if sequence > work.archived:  # the bucket was set back
                    return None
                _strip_if_whole(work, version, sequence)
                done += 1
                if time.perf_counter() > until:  # after at least one, so that a slow disk does not stop progress
                    break
            self._keep(txn, batch, work)
            return done

        return run

    def _end(
        self, place: Place, lineage: Lineage, walk: _Walk, *, is_any: bool
    ) -> Callable[[lmdb.Transaction, Batch], _Outcome]:
        """Returns the write that removes snapshots, then the row, then husks. ``is_any``: something was cleared."""

        def run(txn: lmdb.Transaction, batch: Batch) -> _Outcome:
            work = self._begin(txn, batch, place, lineage)
            if work is None:
                return _Outcome.OVER
            until, later = time.perf_counter() + STEP_S, walk.later()
            if not lineage.read_on(txn, work.draft, ENTRIES_A_STEP):
                return _Outcome.MORE
            if not read_uncleared(txn, work.draft.identity.number, work.draft.pruned).is_same(walk.uncleared):
                return _Outcome.CHANGED
            is_done = _drop_snapshots(work, until)
            if is_done:
                was_there = self._finish_row(txn, work.draft.identity.number, later)
                if is_any or was_there:
                    self._tell(txn, batch, work, walk.now())
            is_done = is_done and _drop_husks(work, until)
            self._keep(txn, batch, work)
            return _Outcome.OVER if is_done else _Outcome.MORE

        return run

    @staticmethod
    def _finish_row(txn: lmdb.Transaction, number: int, later: Pruned) -> bool:
        """Leaves in the row what a later sweep clears. Returns whether it removed the row."""
        if later.is_empty:
            return bool(txn.delete(layout.uncleared_key(number)))
        write_uncleared(txn, number, later)
        return False

    def _tell(self, txn: lmdb.Transaction, batch: Batch, work: _Work, cleared: Pruned) -> None:
        """Puts the thread into the outbox, because the archive still has what is cleared here."""
        hooks, thread = self._context.archive, work.draft.thread
        if (hooks is None and not self._context.had_archive) or thread.access == THREAD_ACCESS_ORPHAN:
            return
        txn.put(layout.outbox_key(thread.number), layout.PRESENT)
        batch.after_commit.append(lambda: setattr(thread, "in_outbox", True))
        if hooks is not None:
            batch.after_commit.append(partial(hooks.cleared, thread.number, cleared))

    def _begin(self, txn: lmdb.Transaction, batch: Batch, place: Place, lineage: Lineage) -> _Work | None:
        thread = self._find(txn, place)
        draft = self._threads.draft(txn, batch, thread.identity.namespace, thread.name) if thread is not None else None
        if draft is None or draft.identity.number != place[0]:
            return None
        now_us = self._context.clock.now_us()
        return _Work(txn, draft, draft.next_head(), now_us, self._archived(draft.thread), lineage)

    def _keep(self, txn: lmdb.Transaction, batch: Batch, work: _Work) -> None:
        write_head(txn, work.draft.identity, work.head)
        work.draft.head = work.head
        self._threads.keep_draft(batch, work.draft)
        batch.after_commit.append(work.settle)


def _drop_snapshots(work: _Work, until: float) -> bool:
    """Removes snapshots of pruned versions that no version needs as dictionary. Returns False if the time is over."""
    draft, lineage = work.draft, work.lineage
    wanted = {branch.snapshot_version for branch in draft.all_branches().values()}
    doomed = [
        version
        for version in draft.snapshots
        if version in draft.pruned and version not in wanted and lineage.users[version] <= work.freed[version]
    ]
    gone = set[int]()
    for version in doomed:
        work.free(_delete_rows(work.txn, draft.identity.keys.snapshot_pieces(version)))
        gone.add(version)
        if time.perf_counter() > until:
            break
    draft.snapshots -= gone
    return len(gone) == len(doomed)


def _drop_husks(work: _Work, until: float) -> bool:
    """Removes husks and prune entries that no retry may ask for any more. Returns False if the time is over."""
    lineage = work.lineage
    for sequence in lineage.husks[:ENTRIES_A_STEP]:
        try:
            record = blocks.get_entry(work.txn, work.draft.identity.keys, sequence)
            if record is not None:
                entry = unpack(record, sequence)
                if sequence > work.archived or work.in_window(entry):
                    return True
                _drop(work, entry)
        except StatewardError as error:  # it stays, and all others still go
            log_damage("an entry of a pruned version is not removed", error, uid=work.draft.identity.uid_text)
        work.dropped += 1
        if time.perf_counter() > until:
            break
    return work.dropped == len(lineage.husks)


def _strip_if_whole(work: _Work, version: int, sequence: int) -> None:
    """Clears the entry of a version, or of a sequence. A damaged one stays as it is, and Verify reports it."""
    try:
        sequence = sequence or replay.place_of(work.txn, work.draft, version)
        record = blocks.get_entry(work.txn, work.draft.identity.keys, sequence)
        if record is not None:
            entry = unpack(record, sequence)
            if is_cut(work.draft.pruned, entry.header):  # the ranges pass over other entries
                _strip(work, entry)
    except StatewardError as error:
        log_damage("a pruned version is not cleared", error, uid=work.draft.identity.uid_text)


def _strip(work: _Work, entry: Entry) -> None:
    """Removes the edits of a version, or the values of effects or records.

    Removes the whole entry if no retry may ask for it any more.
    """
    identity, txn, header = work.draft.identity, work.txn, entry.header
    metadata = entry.open_metadata(identity.cipher, identity.uid)
    pieces_bytes = _delete_rows(txn, identity.keys.edits_pieces(header.parts_id)) if header.parts_id else 0
    if pieces_bytes or not (header.parts_id or entry.is_husk):
        work.freed[header.dictionary_version] += bool(header.version)
    work.free(pieces_bytes)
    for key in label_keys(identity, header, metadata.checkpoint.labels):
        txn.delete(key)
    if header.sequence > work.archived or work.in_window(entry):
        if header.edit_bytes:
            husk = entry.husk()
            work.free(len(entry.record) - len(husk))
            blocks.shrink_entry(txn, identity.keys, header.sequence, husk)
        if header.sequence > 1:  # the first entry describes the thread, and stays
            work.husks.append(header.sequence)
    else:
        _drop(work, entry)


def _drop(work: _Work, entry: Entry) -> None:
    """Removes an entry and the rows that lead to it."""
    identity, txn = work.draft.identity, work.txn
    metadata, header = entry.open_metadata(identity.cipher, identity.uid), entry.header
    blocks.delete_entry(txn, identity.keys, header.sequence)
    if metadata.request_hash:
        delete_request(txn, request_key(identity, metadata.request_hash), header.sequence)
    body = metadata.checkpoint
    if body.checkpoint_id:
        id_hash = identity.hash_id(b"checkpoint", body.branch or MAIN, body.checkpoint_id)
        _delete_named(work, identity.keys.checkpoint_id(id_hash), header.sequence)
    if header.parts_id:  # still there if the entry came whole from the archive
        work.free(_delete_rows(txn, identity.keys.edits_pieces(header.parts_id)))
    work.free(len(entry.record))
    if header.version:
        _drop_place(work, header.version)


def _drop_place(work: _Work, version: int) -> None:
    """Removes the row that says where a version and those after it are, once no entry of them is left.

    The first row of a thread stays: a place that is guessed by it is never too late.
    """
    keys, txn = work.draft.identity.keys, work.txn
    found = replay.places_near(txn, work.draft, version)
    if found is None:
        return
    first, following, offset = found
    left = next(blocks.entries(txn, keys, first + offset), None)
    if work.draft.pruned.covers(first, following - 1) and (left is None or left[0] >= following + offset):
        txn.delete(keys.version_offset(first))


def _delete_named(work: _Work, key: bytes, sequence: int) -> None:
    """Removes the row of a checkpoint id, unless it leads to another entry: the id may have been used again."""
    row = work.txn.get(key)
    if row is not None and layout.leading_number(row) == sequence:
        work.txn.delete(key)


def _delete_rows(txn: lmdb.Transaction, prefix: bytes) -> int:
    """Removes all rows with a prefix. Returns the size of their values in bytes."""
    found = [(key, len(value)) for key, value in rows(txn, prefix)]
    for key, _ in found:
        txn.delete(key)
    return sum(size for _, size in found)
