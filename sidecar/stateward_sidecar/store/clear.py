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
from collections.abc import Callable
from dataclasses import dataclass, field

import lmdb

from stateward.storage.v1.head_pb2 import ThreadHead
from stateward.v1.thread_pb2 import ACCESS_ORPHAN, ACCESS_REMOTE
from stateward_sidecar.codec.entry import Entry, unpack
from stateward_sidecar.errors import StatewardError
from stateward_sidecar.storage import layout
from stateward_sidecar.storage.queue import Batch, Write
from stateward_sidecar.store import records, replay
from stateward_sidecar.store.context import REQUEST_WINDOW_ENTRIES, REQUEST_WINDOW_S, Context
from stateward_sidecar.store.journal import SECOND_US, label_keys
from stateward_sidecar.store.lineage import Lineage
from stateward_sidecar.store.ranges import Pruned, Ranges
from stateward_sidecar.store.requests import request_key
from stateward_sidecar.store.thread import MAIN, Draft, Thread, rows, write_head
from stateward_sidecar.store.threads import Threads
from stateward_sidecar.store.uncleared import read_uncleared, write_uncleared
from stateward_sidecar.telemetry import log_damage

STEP_S = 0.003
# How many new entries a step may read for the lineage.
ENTRIES_A_STEP = 64


@dataclass(slots=True)
class _Work:
    """The work of one step."""

    txn: lmdb.Transaction
    draft: Draft
    head: ThreadHead
    now_us: int
    archived: int  # entries up to this one may be removed
    lineage: Lineage
    # Changes of the lineage, made after the step is committed.
    freed: Counter[int] = field(default_factory=Counter)
    husks: list[int] = field(default_factory=list)
    dropped: int = 0

    def in_window(self, entry: Entry) -> bool:
        """Returns whether the entry must stay: a retry may ask for it, or it is the first one."""
        header = entry.header
        return (
            header.sequence == 1
            or header.sequence > self.head.tip_sequence - REQUEST_WINDOW_ENTRIES
            or header.create_time_us > self.now_us - REQUEST_WINDOW_S * SECOND_US
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
        number, name, more = thread.number, thread.name, True
        while more:
            # Not as background writes: under load they might never run, and a step is as short as a save.
            write = Write(run=self._step(number, name, lineage), is_alone=True, frees_space=True)
            more = self._context.writer.submit(write, wait=True).wait()

    def _step(self, number: int, name: str, lineage: Lineage) -> Callable[[lmdb.Transaction, Batch], bool]:
        """Returns the write of one step. The write returns whether there is more to do."""

        def run(txn: lmdb.Transaction, batch: Batch) -> bool:
            draft = self._find(txn, batch, number, name)
            if draft is None:
                return False
            if not lineage.read_on(txn, draft, ENTRIES_A_STEP):
                return True
            until = time.perf_counter() + STEP_S
            archived = draft.thread.archived_sequence
            if self._context.archive is None or draft.thread.access == ACCESS_ORPHAN:  # no HEAD will have the entries
                archived = draft.head.tip_sequence
            work = _Work(txn, draft, draft.next_head(), self._context.clock.now_us(), archived, lineage)
            is_done = self._clear_versions(work, until) and _drop_husks(work, until)
            write_head(txn, draft.identity, work.head)
            draft.head = work.head
            self._threads.keep_draft(batch, draft)
            batch.after_commit.append(work.settle)
            return not is_done

        return run

    def _find(self, txn: lmdb.Transaction, batch: Batch, number: int, name: str) -> Draft | None:
        thread = self._threads.by_number(txn, number)
        if thread is None or thread.access == ACCESS_REMOTE or thread.name != name:
            return None
        draft = self._threads.draft(txn, batch, thread.identity.namespace, thread.name)
        return draft if draft is not None and draft.identity.number == number else None

    def _clear_versions(self, work: _Work, until: float) -> bool:
        """Clears edits and index rows, then snapshots. Returns False if the time is over."""
        txn, draft = work.txn, work.draft
        uncleared, last = read_uncleared(txn, draft.identity.number, draft.pruned), 0
        for version in uncleared:
            last = version
            _strip_if_whole(work, version)
            if time.perf_counter() > until:  # after at least one version, so that a slow disk does not stop progress
                break
        rest = Pruned(uncleared.after(last).pairs(), uncleared.effects, uncleared.records)
        if not len(rest):
            effects = _strip_values(work, rest.effects, until)
            rest = Pruned((), effects, _strip_values(work, rest.records, until))
        # Values that are not archived yet wait for a sweep: a HEAD that is being written may still have them.
        later = Pruned((), rest.effects.after(work.archived), rest.records.after(work.archived))
        is_cut = not len(rest) and _count(later) == _count(rest)
        is_done = is_cut and _drop_snapshots(work, until)
        if is_done and not _count(later):
            txn.delete(layout.uncleared_key(draft.identity.number))
        else:
            write_uncleared(txn, draft.identity.number, rest)
        return is_done


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
        record = records.get_entry(work.txn, work.draft.identity.keys, sequence)
        if record is not None:
            entry = unpack(record, sequence)
            if sequence > work.archived or work.in_window(entry):
                return True
            _drop(work, entry)
        work.dropped += 1
        if time.perf_counter() > until:
            break
    return work.dropped == len(lineage.husks)


def _count(left: Pruned) -> int:
    """Returns how many entries of effects and records are left, at most."""
    return len(left.effects) + len(left.records)


def _strip_values(work: _Work, left: Ranges, until: float) -> Ranges:
    """Clears archived entries that count for nothing. Returns those that are left when the time is over."""
    for sequence in left.until(work.archived):
        _strip_if_whole(work, 0, sequence)
        if time.perf_counter() > until:
            return left.after(sequence)
    return left.after(work.archived)


def _strip_if_whole(work: _Work, version: int, sequence: int = 0) -> None:
    """Clears the entry of a version, or of a sequence. A damaged one stays as it is, and Verify reports it."""
    try:
        sequence = sequence or replay.place_of(work.txn, work.draft, version)
        record = records.get_entry(work.txn, work.draft.identity.keys, sequence)
        if record is not None:
            entry = unpack(record, sequence)
            if work.draft.pruned.cuts(entry.header):  # the ranges pass over other entries
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
        husk = entry.husk()
        work.free(len(entry.record) - len(husk))
        records.shrink_entry(txn, identity.keys, header.sequence, husk)
        if header.sequence > 1:  # the first entry describes the thread, and stays
            work.husks.append(header.sequence)
    else:
        _drop(work, entry)


def _drop(work: _Work, entry: Entry) -> None:
    """Removes an entry and the rows that lead to it."""
    identity, txn = work.draft.identity, work.txn
    metadata, header = entry.open_metadata(identity.cipher, identity.uid), entry.header
    if metadata.request_hash:
        _delete_index(work, request_key(identity, metadata.request_hash), header.sequence)
    body = metadata.checkpoint
    if body.checkpoint_id:
        id_hash = identity.hash_id(b"checkpoint", body.branch or MAIN, body.checkpoint_id)
        _delete_index(work, identity.keys.checkpoint_id(id_hash), header.sequence)
    if header.parts_id:  # still there if the entry came whole from the archive
        work.free(_delete_rows(txn, identity.keys.edits_pieces(header.parts_id)))
    records.delete_entry(txn, identity.keys, header.sequence)
    work.free(len(entry.record))


def _delete_index(work: _Work, key: bytes, sequence: int) -> None:
    """Removes an index row, unless it leads to another entry: an id may have been used again."""
    row = work.txn.get(key)
    if row is not None and layout.leading_number(row) == sequence:
        work.txn.delete(key)


def _delete_rows(txn: lmdb.Transaction, prefix: bytes) -> int:
    """Removes all rows with a prefix. Returns the size of their values in bytes."""
    found = [(key, len(value)) for key, value in rows(txn, prefix)]
    for key, _ in found:
        txn.delete(key)
    return sum(size for _, size in found)
