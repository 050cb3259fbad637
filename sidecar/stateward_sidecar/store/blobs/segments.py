"""Segments: pieces of about 1 MiB of logs, which lie where blobs lie.

When a snapshot is made, the older entries of a log that has grown become segments: immutable files, sealed, each with a
row and an entry of the journal like a blob that a client wrote. The snapshot names them, and so does the state in
memory from then on. So they are shipped once, fetched when they are read, verified, shared by copies, and swept when no
snapshot of a retained version names them. A segment begins with secret bytes, so that nobody can name it by guessing
what is in it.

The journal still has every edit. A segment that a crash or a full disk prevents is made with the next snapshot.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import lmdb

from stateward.storage.v1.head_pb2 import BlobRow
from stateward.storage.v1.journal_pb2 import BlobRecord, EntryMetadata
from stateward_sidecar.codec import blob as codec
from stateward_sidecar.codec import state
from stateward_sidecar.codec.compress import SEGMENT_LEVEL
from stateward_sidecar.codec.entries import Entries, LooseRun, Run, Runs, SealedRun, Segment, Source
from stateward_sidecar.codec.entry import draft as draft_content
from stateward_sidecar.codec.state import LogState, StateTree
from stateward_sidecar.codec.varints import split_frames
from stateward_sidecar.errors import Corrupt, NotOwner, StatewardError
from stateward_sidecar.storage.queue import Batch, Write
from stateward_sidecar.store.blobs.blobread import elsewhere, missing_file, note_read
from stateward_sidecar.store.blobs.blobrows import blobs_in_frames, find_blob, put_blob
from stateward_sidecar.store.blobs.blobwrite import Sealing
from stateward_sidecar.store.journal.admitting import get_same
from stateward_sidecar.store.journal.journal import all_or_none, append, commit_entry
from stateward_sidecar.store.kinds.blob import BLOB
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.thread import Identity, Thread
from stateward_sidecar.store.thread.threads import Threads

SALT_BYTES = 16


class SegmentReader:
    """Reads the segments of a thread on this disk. Keeps the last ones in the cache."""

    def __init__(self, context: Context, threads: Threads, identity: Identity) -> None:
        self._context = context
        self._threads = threads
        self._identity = identity

    def __call__(self, segment: Segment, ahead: Sequence[Segment]) -> Sequence[bytes]:
        """Returns the frames of a segment. Raises HistoryElsewhere, which also names those of ``ahead`` that are in the
        archive only; ThreadNotFound; Corrupt."""
        cache, identity = self._context.cache, self._identity
        frames = cache.segment(identity.number, segment.digest)
        if frames is None:
            try:
                frames = self._read(segment, ahead)
            except Corrupt as error:
                raise error.locate(identity.name) from None
            cache.put_segment(identity.number, segment.digest, frames, segment.size_bytes)
        return frames

    def _read(self, segment: Segment, ahead: Sequence[Segment]) -> list[bytes]:
        context, identity = self._context, self._identity
        with context.engine.read() as txn:
            row = find_blob(txn, identity, segment.digest)
            thread = self._threads.by_number(txn, identity.number)
        if row is None:
            # A state in memory may name what the snapshots on the disk no longer do.
            context.cache.drop_thread(identity.number)
            raise Corrupt(f"segment {segment.digest.hex()} of a log is missing")
        note_read(context, identity, row.record)
        try:
            data = context.blob_files.path(identity.uid, row.record.blob_id).read_bytes()
        except FileNotFoundError:
            raise self._missing(thread, row.record, ahead) from None
        frames = _frames(data, row.record)
        if len(frames) != segment.count:
            raise Corrupt(f"segment {segment.digest.hex()} has {len(frames)} entries, not {segment.count}")
        return frames

    def _missing(self, thread: Thread | None, record: BlobRecord, ahead: Sequence[Segment]) -> StatewardError:
        if thread is None:  # a copy that is being made
            return Corrupt(f"the file of segment {record.sha256.hex()} is missing")
        error = missing_file(self._context, thread, record)
        if "blobs" not in error.metadata:
            return error
        with self._context.engine.read() as txn:
            rows = [find_blob(txn, self._identity, each.digest) for each in ahead]
        files, uid = self._context.blob_files, self._identity.uid
        more = [row.record.sha256 for row in rows if row is not None and not files.is_here(uid, row.record.blob_id)]
        return elsewhere(thread, record.sha256, *more)


def _frames(data: bytes, record: BlobRecord) -> list[bytes]:
    try:
        return split_frames(codec.open_whole(data, record), SALT_BYTES)
    except ValueError as error:
        raise Corrupt(f"segment {record.sha256.hex()}: {error}") from None


class Sealed(NamedTuple):
    """A state, and the blobs that were written for its new segments."""

    tree: StateTree
    records: list[BlobRecord]


def seal_segments(context: Context, identity: Identity, tree: StateTree, source: Source) -> Sealed:
    """Makes segments of the older entries of logs that have grown. The files are durable, and no row names them yet.

    Raises DiskFull; FileNotFoundError if the thread was deleted meanwhile.
    """
    records, logs = list[BlobRecord](), dict(tree.logs)
    try:
        for name, log in tree.logs.items():
            if is_due(log.entries):
                logs[name] = LogState(
                    log.first_index, _seal_log(context, identity, log.entries, source, records), log.rewritten_version
                )
    except BaseException:
        discard(context, identity, records)
        raise
    return Sealed(StateTree(tree.slots, logs, tree.retired, tree.size_bytes), records)


def discard(context: Context, identity: Identity, records: Sequence[BlobRecord]) -> None:
    """Removes files that no row names."""
    for record in records:
        context.blob_files.remove(identity.uid, record.blob_id)


def is_due(entries: Entries) -> bool:
    """Whether so many entries of a log are in memory that the older ones become segments."""
    return state.sealable_bytes(entries) > 0


def has_due(tree: StateTree) -> bool:
    """Whether this holds for a log of a state."""
    return tree.size_bytes >= state.TAIL_BYTES and any(is_due(log.entries) for log in tree.logs.values())


def _seal_log(
    context: Context, identity: Identity, entries: Entries, source: Source, records: list[BlobRecord]
) -> Entries:
    runs, tail = list[Run](), entries.tail()
    for run in _pieces(entries, tail):
        runs.append(run if isinstance(run, SealedRun) else _seal_run(context, identity, run, source, records))
    made = Runs(runs)
    return Entries.of_frames(tail[len(tail) - (len(entries) - made.count) :], made)


def _pieces(entries: Entries, tail: list[bytes]) -> Iterator[Run]:
    """Yields the runs that a log is to have: its segments, and what becomes segments, cut anew. The newest entries are
    left out."""
    waiting, waiting_bytes, size_bytes = list[bytes](), 0, state.segment_bytes(entries)
    for run in entries.runs.each:
        if isinstance(run, SealedRun):
            if waiting:
                yield LooseRun(waiting, waiting_bytes)
                waiting, waiting_bytes = [], 0
            yield run
            continue
        left_bytes = run.size_bytes
        for item in run.items:
            waiting.append(item)
            waiting_bytes += len(item)
            left_bytes -= len(item)
            # An entry that was replaced by a larger one splits no crumb off.
            if waiting_bytes >= size_bytes and not 0 < left_bytes < size_bytes // 2:
                yield LooseRun(waiting, waiting_bytes)
                waiting, waiting_bytes = [], 0
    left_bytes = entries.size_bytes - entries.runs.size_bytes
    for item in tail:
        left_bytes -= len(item)
        if left_bytes < state.KEPT_BYTES:
            break
        waiting.append(item)
        waiting_bytes += len(item)
        if waiting_bytes >= size_bytes:
            yield LooseRun(waiting, waiting_bytes)
            waiting, waiting_bytes = [], 0
    # What is left of the tail stays there, and what is left of a run becomes a small segment.
    from_runs = entries.runs.each and isinstance(entries.runs.each[-1], LooseRun)
    if waiting and from_runs:
        yield LooseRun(waiting, waiting_bytes)


def _seal_run(
    context: Context, identity: Identity, run: LooseRun, source: Source, records: list[BlobRecord]
) -> SealedRun:
    content = b"".join((os.urandom(SALT_BYTES), *run.items))
    sealing = Sealing(context, identity, SEGMENT_LEVEL)
    try:
        for at in range(0, len(content), codec.SEGMENT_BYTES):
            sealing.add(content[at : at + codec.SEGMENT_BYTES])
        record = sealing.finish("")
    except BaseException:
        sealing.discard()
        raise
    record.is_segment, record.preview = True, b""
    records.append(record)
    segment = Segment(record.sha256, run.count, run.size_bytes, tuple(sorted(blobs_in_frames(run.items))), source)
    return SealedRun(segment, 0, run.count, run.size_bytes)


def put_segments(context: Context, threads: Threads, identity: Identity, records: Sequence[BlobRecord]) -> Write:
    """Returns the write that names the files of segments: rows and entries. It raises NotOwner, ThreadNotFound or
    UidMismatch if the thread is no longer ours."""
    contents = [draft_content(EntryMetadata(blob=record)) for record in records]

    def run(txn: lmdb.Transaction, batch: Batch) -> None:
        draft = get_same(threads, txn, batch, identity)
        if draft.identity.number != identity.number:
            raise NotOwner(f"thread {identity.name!r} was given up meanwhile", thread=identity.name)
        with all_or_none(batch, draft):
            for record, content in zip(records, contents, strict=True):
                # Nobody worked on the thread, so the time of its last change stays.
                entry = append(context, txn, draft, BLOB, content, time_us=draft.head.update_time_us)
                entry.head.stored_bytes += record.stored_bytes
                header = entry.header
                row = BlobRow(
                    record=record, sequence=header.sequence, write_time_us=context.clock.now_us(),
                    write_sequence=header.sequence,
                )  # fmt: skip
                put_blob(txn, draft.identity, row)
                commit_entry(context, txn, batch, draft, entry, {})
        threads.keep_draft(batch, draft)

    size_bytes = sum(content.size_bytes for content in contents) + 16384
    return Write(run=run, size_bytes=size_bytes, background=True, is_alone=True)
