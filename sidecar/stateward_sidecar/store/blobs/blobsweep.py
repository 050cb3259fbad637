"""Removes blobs that nothing names, and files that no row names: those of a crash, and of blobs that an image lacks.

A blob is named if the edits of a retained version put it into the state, or if the snapshot of a retained version holds
it. This is never less than the blobs that retained states name: a blob from before the oldest retained version is in
the snapshot of that version. A segment of a log also stays as long as a state in memory names it. An unnamed blob stays
for a day after it was last written, because its writer may not have saved yet.

An image has all blobs of its thread, so rows of other blobs go: their blobs were collected elsewhere, or written anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import lmdb

from stateward.storage.v1.head_pb2 import BlobRow, ThreadHead
from stateward.storage.v1.journal_pb2 import (
    BlobRecord,
    EntryHeader,
    EntryMetadata,
)
from stateward.v1.thread_pb2 import THREAD_ACCESS_ORPHAN, THREAD_ACCESS_REMOTE
from stateward_sidecar.codec.entry import draft as draft_content
from stateward_sidecar.codec.entry import unpack
from stateward_sidecar.codec.snapshot import from_snapshot
from stateward_sidecar.errors import Corrupt, NotOwner, StatewardError
from stateward_sidecar.storage import layout
from stateward_sidecar.storage.queue import Batch, Write
from stateward_sidecar.store.blobs.blobrows import (
    BLOB_ROWS,
    blob_key,
    blobs_in_edits,
    blobs_in_state,
    delete_blob,
    find_blob,
    list_blobs,
    put_blob,
    segments_in_state,
)
from stateward_sidecar.store.journal import replay
from stateward_sidecar.store.journal.journal import append, commit_entry
from stateward_sidecar.store.journal.opening import is_still_ours
from stateward_sidecar.store.kinds.blob import BLOB_REMOVED
from stateward_sidecar.store.kinds.version import VERSION
from stateward_sidecar.store.thread import blocks
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.thread import Identity, Thread, ThreadDraft, rows
from stateward_sidecar.store.thread.threads import Threads
from stateward_sidecar.store.thread.times import SECOND_US, WRONG_US, blob_written_us
from stateward_sidecar.telemetry import log_damage


def rows_by_key(identity: Identity, image: Sequence[BlobRow]) -> dict[bytes, BlobRow]:
    """Returns the rows of an image by their keys on this disk."""
    return {blob_key(identity, row.record.sha256): row for row in image}


def install_blobs(
    context: Context,
    threads: Threads,
    txn: lmdb.Transaction,
    batch: Batch,
    identity: Identity,
    image: Mapping[bytes, BlobRow],
) -> None:
    """Makes the rows of a thread's blobs those of an image. Removes the files of all others after the commit.

    A row of a segment never changes, so it is not opened if it is there: a long log has thousands.
    """
    wanted = dict(image)
    kept, gone = {bytes(row.record.blob_id) for row in image.values()}, set[bytes]()
    for key, record in list(rows(txn, identity.keys.all_of(b"Q"))):
        if (known := wanted.get(key)) is not None and known.record.is_segment:
            del wanted[key]
            continue
        try:
            old = BLOB_ROWS.open(identity, key, record)
        except Corrupt:  # the image has the row, if the thread has the blob
            old = BlobRow()
        if old.record.blob_id and old.record.blob_id not in kept:
            gone.add(bytes(old.record.blob_id))
        if key not in wanted:
            txn.delete(key)
        elif wanted[key] == old:
            del wanted[key]
    for row in wanted.values():
        put_blob(txn, identity, row)
    if not image:
        txn.delete(layout.blobs_key(identity.number))
    remove_files(context, threads, txn, batch, identity, gone)


def drop_lost_snapshots(
    context: Context, txn: lmdb.Transaction, batch: Batch, draft: ThreadDraft, image: Mapping[bytes, BlobRow]
) -> None:
    """Drops the snapshots of a copy that name segments which the image lacks. Only this disk had them: they were made
    and not shipped, so the next owner collected the segments. Older snapshots and edits lead to the same states."""
    identity, lost = draft.identity, set[bytes]()
    for key, sealed in rows(txn, identity.keys.all_of(b"Q")):
        if key in image:
            continue
        with suppress(Corrupt):  # the row goes, as all that the image lacks
            record = BLOB_ROWS.open(identity, key, sealed).record
            lost |= {bytes(record.sha256)} if record.is_segment else set()
    if not lost:
        return
    for version in sorted(draft.snapshots):
        try:
            content, _ = replay.read_snapshot(txn, identity, version)
            is_lost = not lost.isdisjoint(segments_in_state(from_snapshot(content)))
        except Corrupt:  # Verify names it
            continue
        if is_lost and not _is_dictionary(txn, draft, version):
            for key in [key for key, _ in rows(txn, identity.keys.snapshot_pieces(version))]:
                txn.delete(key)
            draft.snapshots -= {version}
    batch.after_commit.append(partial(context.cache.drop_thread, identity.number))


def _is_dictionary(txn: lmdb.Transaction, draft: ThreadDraft, version: int) -> bool:
    """Whether an entry on this disk is compressed with a snapshot."""
    first = replay.place_of(txn, draft, version)
    entries = replay.read_entries(txn, draft.identity, first + 1)
    return any(entry.header.dictionary_version == version for entry in entries)


def remove_files(
    context: Context, threads: Threads, txn: lmdb.Transaction, batch: Batch, identity: Identity, gone: Iterable[bytes],
    *, origin: str = "",
) -> None:  # fmt: skip
    """Removes files after the commit, except for those that another line of the thread on this disk needs.

    ``origin``: of an orphan, the name of its thread.
    """
    doomed = set(gone)
    if not doomed:
        return
    try:
        for number in other_lines(txn, identity, origin):
            line = threads.by_number(txn, number)
            if line is not None:
                doomed -= {bytes(row.record.blob_id) for row in list_blobs(txn, line.identity)}
    except Corrupt:
        return  # a file too many does no harm
    for each in doomed:
        batch.after_commit.append(partial(context.blob_files.remove, identity.uid, each))


def other_lines(txn: lmdb.Transaction, identity: Identity, origin: str = "") -> list[int]:
    """Returns the numbers of the other lines of a thread on this disk: its orphans, and for an orphan its thread."""
    found = []
    if origin and (row := txn.get(layout.name_key(identity.namespace_keys.names.thread(origin)))) is not None:
        number, uid = layout.unpack_name(row)
        found += [number] if uid == identity.uid else []
    orphans = (layout.tail_thread(key) for key, _ in rows(txn, layout.orphan_prefix(identity.uid)))
    return found + [number for number in orphans if number != identity.number]


KEPT_S = 24 * 3600
# The versions of a thread are searched at most once in this time.
INTERVAL_S = 3600
RECORDS_A_STEP = 500


class BlobSweeper:
    """Collects unnamed blobs. Runs on a worker thread, one sweep at a time."""

    def __init__(self, context: Context, threads: Threads) -> None:
        self._context = context
        self._threads = threads
        self._next_us: dict[int, int] = {}
        # By thread: its newest entry when the versions were searched, and the blobs that they were searched for, if
        # all of them were named. Nothing else is named or unnamed as long as nothing is written.
        self._all_named: dict[int, tuple[int, set[bytes]]] = {}

    def sweep(self, submit: Callable[[Write], object]) -> None:
        """Runs one round. ``submit`` queues a write and waits for it."""
        now = self._context.clock.now_us()
        with self._context.engine.read() as txn:
            numbers = [layout.marked_thread(key) for key, _ in rows(txn, b"Q")]
        self._next_us = {number: time for number, time in self._next_us.items() if time > now}
        self._all_named = {number: self._all_named[number] for number in numbers if number in self._all_named}
        for number in numbers:
            if number not in self._next_us:
                self._next_us[number] = now + INTERVAL_S * SECOND_US
                self._sweep_thread(number, now, submit)

    def _sweep_thread(self, number: int, now_us: int, submit: Callable[[Write], object]) -> None:
        try:
            with self._context.engine.read() as txn:
                thread = self._threads.by_number(txn, number)
                if thread is not None and thread.access == THREAD_ACCESS_REMOTE:
                    self._drop_fetched(txn, thread, now_us)
                if thread is None or not may_collect(txn, thread):
                    return
                rows_ = (row for row in list_blobs(txn, thread.identity) if not row.record.is_pack)  # trees name those
                old = [row for row in rows_ if _is_old(thread.head, row, now_us)]
            searched = thread.head.tip_sequence, {bytes(row.record.blob_id) for row in old}
            if not old or self._all_named.get(number) == searched:
                return
            tip, named, read = self._find_named(thread)
            old = [row for row in old if row.record.sha256 not in named]
            if not old and tip == searched[0]:
                self._all_named[number] = searched
            if any(row.record.is_segment for row in old):
                # A state in memory may have segments of a snapshot that was pruned: see ``Cache.end_sealing``.
                held = self._context.cache.named_segments(number)
                old = [row for row in old if row.record.sha256 not in held]
            hooks = self._context.archive
            if not old or (hooks is not None and hooks.is_away()) or not is_still_ours(self._context, thread):
                return
        except StatewardError as error:
            log_damage("blobs left out of a sweep", error)
            return
        for row in old:
            submit(Write(run=self._remove(thread, row, tip, read, now_us), background=True, frees_space=True))

    def _drop_fetched(self, txn: lmdb.Transaction, thread: Thread, now_us: int) -> None:
        """Removes files of a copy that were fetched for readers, and that nobody has read for a day. The archive has
        them. Orphans, which share the files, keep them."""
        identity, files = thread.identity, self._context.blob_files
        if other_lines(txn, identity):
            return
        for row in list_blobs(txn, identity):
            read_us = files.read_us(identity.uid, row.record.blob_id)
            # A file of the future was read while the clock was wrong.
            if read_us is not None and not now_us - KEPT_S * SECOND_US <= read_us <= now_us + WRONG_US:
                files.remove(identity.uid, row.record.blob_id)

    def _find_named(self, thread: Thread) -> tuple[int, set[bytes], frozenset[int]]:
        """Returns the newest sequence, the blobs that the retained versions up to there name, and the snapshots that
        were read for that. Raises Corrupt."""
        tip, at, named = thread.head.tip_sequence, 0, set[bytes]()
        while at < tip:
            at = self._context.settled(lambda at=at: self._look(thread, at, tip, named))  # type: ignore[misc]
        # After the entries: if a version was pruned meanwhile, its blobs are in a snapshot now.
        with self._context.engine.read() as txn:
            read = thread.snapshots
            for version in read:
                if version not in thread.pruned:
                    content, _ = replay.read_snapshot(txn, thread.identity, version)
                    named |= blobs_in_state(from_snapshot(content))
        return tip, named, read

    def _look(self, thread: Thread, after: int, tip: int, named: set[bytes]) -> int:
        """Adds the blobs that the next entries name. Returns the sequence of the last entry."""
        keys, held = thread.identity.keys, replay.Held()
        with self._context.engine.read() as txn:
            for number, (sequence, record) in enumerate(blocks.entries(txn, keys, after + 1)):
                if sequence > tip:
                    return tip
                if number >= RECORDS_A_STEP:
                    return sequence - 1
                self._check_base(thread, unpack(record, sequence).header)
                named |= self._brought(txn, thread, sequence, record, held)
        return tip

    @staticmethod
    def _check_base(thread: Thread, header: EntryHeader) -> None:
        """Raises MissingSnapshot if only a snapshot says which blobs a retained version names, and it is not here."""
        if not header.version or header.version in thread.pruned or header.version in thread.snapshots:
            return
        if replay.is_cut(thread, header):
            raise replay.MissingSnapshot("the snapshot is missing", thread.name, header.version)

    def _brought(
        self, txn: lmdb.Transaction, thread: Thread | ThreadDraft, sequence: int, record: bytes, held: replay.Held
    ) -> set[bytes]:
        entry, identity = unpack(record, sequence), thread.identity
        header = entry.header
        if header.kind != VERSION.number or header.version in thread.pruned or not header.edit_bytes:
            return set()
        edits = replay.read_edits(txn, identity, entry, self._context.cache, held)
        return blobs_in_edits(replay.parse_edits(edits, identity.name, header.version))

    def _remove(
        self, thread: Thread, doomed: BlobRow, tip: int, read: frozenset[int], now_us: int
    ) -> Callable[[lmdb.Transaction, Batch], bool]:
        """Removes row and file, unless a version since ``tip`` or another snapshot than those that were read may name
        the blob, or it was written again."""
        identity, context = thread.identity, self._context

        def run(txn: lmdb.Transaction, batch: Batch) -> bool:
            draft = self._threads.draft(txn, batch, identity.namespace, identity.name)
            if draft is None or draft.thread is not thread:
                return False
            row = find_blob(txn, identity, doomed.record.sha256)
            if not draft.snapshots <= read:
                return False
            if any(number == identity.number for made in list(context.under_way.values()) for number, _ in made):
                return False  # a snapshot that is being written may name it
            if row is None or row.record.blob_id != doomed.record.blob_id or not _is_old(draft.head, row, now_us):
                return False
            held = replay.Held()
            for sequence in range(tip + 1, draft.head.tip_sequence + 1):
                record = blocks.get_entry(txn, identity.keys, sequence)
                if record is None or row.record.sha256 in self._brought(txn, draft, sequence, record, held):
                    return False
            try:
                draft.check_writable()
            except NotOwner:  # it was given up meanwhile
                return False
            remove_blob(context, txn, batch, draft, row)
            self._threads.keep_draft(batch, draft)
            return True

        return run


def _is_old(head: ThreadHead, row: BlobRow, now_us: int) -> bool:
    return blob_written_us(head, row, now_us) < now_us - KEPT_S * SECOND_US


def remove_blob(context: Context, txn: lmdb.Transaction, batch: Batch, draft: ThreadDraft, row: BlobRow) -> None:
    """Removes the row of a blob with an entry that says so, and the file after the commit. The caller keeps the draft.

    Every other machine learns from the entry that its HEAD is older, and from the image that its row must go. The ship
    of the entry deletes the object.
    """
    record, identity = row.record, draft.identity
    content = draft_content(EntryMetadata(blob=BlobRecord(blob_id=record.blob_id, sha256=record.sha256)))
    # Nobody worked on the thread, so the time of its last change stays.
    entry = append(context, txn, draft, BLOB_REMOVED, content, time_us=draft.head.update_time_us)
    delete_blob(txn, identity, record.sha256)
    entry.head.stored_bytes -= record.stored_bytes
    commit_entry(context, txn, batch, draft, entry, {})
    batch.after_commit.append(lambda: context.blob_files.remove(identity.uid, record.blob_id))


def clear_leftovers(context: Context, threads: Threads, found: dict[bytes, list[int]]) -> None:
    """Removes the blob files that a crash left. Runs at a start, and waits for the writer. Raises ShuttingDown.

    ``found``: the numbers of the threads that have files, by uid. An orphan has the uid of its thread.
    """

    def named(uid: bytes) -> set[bytes] | None:
        blobs: set[bytes] = set()
        try:
            with context.engine.read() as txn:
                for number in found[uid]:
                    thread = threads.by_number(txn, number)
                    if thread is not None:
                        blobs |= {row.record.blob_id for row in list_blobs(txn, thread.identity)}
        except StatewardError as error:
            log_damage("blob files of a thread are not cleared", error)
            return None
        return blobs

    def set_aside(uid: bytes) -> Path | None:
        """Decides in the writer, because a thread may have come back under the uid since the names were read."""

        def run(txn: lmdb.Transaction, batch: Batch) -> Path | None:
            del txn, batch
            has_key = context.keystore.namespace_of(uid) is not None
            return None if has_key else context.blob_files.set_aside(uid)

        gone: Path | None = context.writer.submit(Write(run=run, background=True, frees_space=True), wait=True).wait()
        return gone

    context.blob_files.clear(set(found), set_aside, named)


def may_collect(txn: lmdb.Transaction, thread: Thread) -> bool:
    """Returns whether blobs of the thread may be collected.

    They may not if another sidecar owns the thread, if its history is not all on this disk, or if it has an orphan,
    which shares its files.
    """
    if thread.archive is None:
        return True
    if thread.access in (THREAD_ACCESS_REMOTE, THREAD_ACCESS_ORPHAN) or thread.floor_sequence:
        return False
    try:
        return not other_lines(txn, thread.identity)
    except Corrupt:
        return False
