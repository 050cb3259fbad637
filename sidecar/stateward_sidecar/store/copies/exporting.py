"""Exports a whole thread as parts. ``importing.py`` makes a thread of them.

Versions, tags, branches and signals are those of one moment: if a signal is missing, a version in the export has
acknowledged it. Effects are read later and may be newer. An agent that continues from the versions then finds the
results of tools that it has called already, as after a crash, and calls no tool twice.

The export holds no transaction between two steps, and no more than one version or one piece of a blob in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import lmdb

from stateward.storage.v1.head_pb2 import BranchHead, SignalRow, ThreadHead
from stateward.storage.v1.journal_pb2 import BlobRecord, EntryMetadata
from stateward.v1.backup_service_pb2 import (
    BackupBlob,
    BackupEffect,
    BackupEnd,
    BackupEntry,
    BackupRecord,
    BackupSignal,
    BackupThread,
    BackupVersion,
    ExportThreadRequest,
    ExportThreadResponse,
    RequestMark,
    ThreadPart,
)
from stateward.v1.record_pb2 import StoredRecord
from stateward.v1.state_pb2 import State
from stateward.v1.thread_pb2 import Tag
from stateward_sidecar.codec.state import StateTree
from stateward_sidecar.codec.varints import unframe
from stateward_sidecar.errors import (
    BlobNotFound,
    Corrupt,
    Fenced,
    HistoryElsewhere,
    QueueFull,
    VersionPruned,
)
from stateward_sidecar.store.blobs.blobread import BlobReader
from stateward_sidecar.store.blobs.blobrows import find_blob, list_blobs, view_blob
from stateward_sidecar.store.blobs.blobwrite import require_blobs
from stateward_sidecar.store.copies.trees import export_objects
from stateward_sidecar.store.items.recordviews import RecordViews
from stateward_sidecar.store.journal import replay
from stateward_sidecar.store.journal.admitting import token_floor
from stateward_sidecar.store.journal.kind import Kind
from stateward_sidecar.store.journal.views import view_branch, view_entry
from stateward_sidecar.store.kinds.effect import page_effects, read_value, view_effect
from stateward_sidecar.store.kinds.objects import object_rows
from stateward_sidecar.store.kinds.record import is_expired, records_after, view_record
from stateward_sidecar.store.kinds.record import read_value as read_record
from stateward_sidecar.store.kinds.signal import view_signal
from stateward_sidecar.store.kinds.table import KINDS
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.ranges import Ranges, Rising
from stateward_sidecar.store.thread.thread import Identity, Thread
from stateward_sidecar.store.thread.threads import Threads, not_found

# A message is sent when it has this size. A single larger value makes a larger message.
MESSAGE_BYTES = 256 << 10
EFFECTS_A_STEP = 100
# So many bytes of records are of one moment: those of nearly every scope. The overhead is that of a message.
RECORDS_TOGETHER_BYTES, RECORD_OVERHEAD_BYTES = 16 << 20, 512
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Moment:
    """A thread at the moment when its export began."""

    identity: Identity
    head: ThreadHead
    branches: dict[str, BranchHead]
    tags: dict[str, int]
    signals: list[SignalRow]
    pruned: Ranges
    blobs: list[BlobRecord]
    token_floor: int
    oldest_time_us: int = 0  # time of the first retained version; 0 = there is none


class Exporter:
    """The verb that exports a thread."""

    def __init__(self, context: Context, threads: Threads) -> None:
        self._context = context
        self._threads = threads
        self._views = RecordViews(context, threads)

    def open(self, request: ExportThreadRequest) -> Iterator[ExportThreadResponse]:
        """Returns the messages to stream. Each step blocks for one read.

        Raises ThreadNotFound or HistoryElsewhere.
        """
        with self._context.engine.read() as txn:
            thread = self._threads.get(txn, request.namespace, request.thread)
            if thread.floor_sequence or thread.floor_version:
                raise replay.history_elsewhere(thread.identity)
        require_blobs(self._context, thread)
        return _messages(self._parts(request, self._look(request, thread)))

    def _look(self, request: ExportThreadRequest, thread: Thread) -> _Moment:
        # Nothing is published meanwhile, so a missing signal was acknowledged by a version in the export.
        with self._context.writer.publishing:
            moment = _Moment(
                thread.identity, thread.head, dict(thread.branches), dict(thread.tags),
                [row for _, row in sorted(thread.signals.items()) if not row.is_used], thread.pruned, [],
                token_floor(thread),
            )  # fmt: skip
        with self._context.engine.read() as txn:
            now = self._thread(txn, request, moment)
            # The entries of segments are parts of states.
            moment.blobs.extend(row.record for row in list_blobs(txn, now.identity) if not row.record.is_segment)
            first = next(iter(now.pruned.missing(moment.head.last_version)), 0)
            oldest = replay.read_version(txn, now, first).header.create_time_us if first else 0
        return replace(moment, oldest_time_us=oldest)

    def _thread(self, txn: lmdb.Transaction, request: ExportThreadRequest, moment: _Moment) -> Thread:
        """Returns the thread as it is now, because versions may be pruned meanwhile.

        Raises ThreadNotFound, and Fenced if the name leads to another line by now: the parts would be of two histories.
        """
        thread = self._threads.find(txn, request.namespace, request.thread)
        if thread is None or thread.identity.uid != moment.identity.uid:
            raise not_found(request.namespace, request.thread)
        if thread.number != moment.identity.number:
            raise Fenced(
                f"another sidecar took thread {thread.name!r} over during the export; export the thread again",
                thread=thread.name,
            )
        return thread

    def _parts(self, request: ExportThreadRequest, moment: _Moment) -> Iterator[ThreadPart]:
        read = partial(self._read, request, moment)
        yield ThreadPart(thread=_view(moment))
        for record in list(moment.blobs):
            with self._context.engine.read() as txn:
                thread = self._thread(txn, request, moment)
            try:
                reader = self._reader(thread, record)
                file = reader.open()
            except BlobNotFound:  # it was collected since: no version that follows names it
                moment.blobs.remove(record)
                continue
            with file:  # from now on, it may be collected
                yield ThreadPart(blob=BackupBlob(blob=view_blob(record), media_type=record.media_type))
                for segment in reader.segments(file):
                    yield ThreadPart(blob_data=segment)
        objects = yield from self._objects(request, moment)
        sent, deleted = Rising(), set[str]()
        for version in moment.pruned.missing(moment.head.last_version):
            parts, tree = read(partial(self._version, version, sent))
            if parts:
                sent.add(version)
                deleted.add(parts[0].version.checkpoint.branch)
            yield from parts
            if tree is not None:  # page by page, because logs may be larger than memory
                yield from self._state(request, moment, version, tree)
        effects, key = 0, b""
        while page := read(partial(self._effects, key)):
            key = page[-1][0]
            effects += len(page)
            yield from (ThreadPart(effect=effect) for _, effect in page)
        records, after = 0, b""
        while True:
            found, after = self._context.settled(partial(self._records, request, moment, after))
            records += len(found)
            yield from (ThreadPart(record=BackupRecord(record=record)) for record in found)
            if not after:
                break
        for row in moment.signals:
            yield ThreadPart(signal=read(partial(_signal, row)))
        entries = 0
        for kind in KINDS:
            carried = read(partial(_carried, kind))
            entries += len(carried)
            yield from (ThreadPart(entry=entry) for entry in carried)
        deleted -= moment.branches.keys()
        end = _end(moment, sent, deleted)
        end.effects, end.records, end.entries, end.objects = effects, records, entries, objects
        yield ThreadPart(end=end)

    def _objects(self, request: ExportThreadRequest, moment: _Moment) -> Generator[ThreadPart, None, int]:
        """Yields all objects of trees. Returns how many. Raises QueueFull if a sweep moves them meanwhile."""
        context, removals, places = self._context, self._context.trees.removals, dict[int, dict[int, object]]()
        with context.engine.read() as txn:
            thread = self._thread(txn, request, moment)
            for key, place in object_rows(txn, thread.identity):
                places.setdefault(place.sequence, {})[place.at] = key
        try:
            for sequence in sorted(places):
                for part in export_objects(context, thread, sequence, places[sequence]):
                    yield ThreadPart(objects=part)
        except (Corrupt, BlobNotFound):
            with context.writer.publishing:  # until then, a removal that is on disk may not be counted
                were_moved = removals != context.trees.removals
            if were_moved:
                raise QueueFull("objects were moved during the export; try again", thread=thread.name) from None
            raise
        return sum(map(len, places.values()))

    def _state(
        self, request: ExportThreadRequest, moment: _Moment, version: int, tree: StateTree
    ) -> Iterator[ThreadPart]:
        """Yields a state in pages. Raises VersionPruned if it was pruned meanwhile, and its segments with it."""
        try:
            yield from (ThreadPart(state=page) for page in _pages(tree))
        except Corrupt:
            with self._context.engine.read() as txn:
                now = self._thread(txn, request, moment)
            if version not in now.pruned:
                raise
            raise VersionPruned(
                f"version {version} of thread {now.name!r} was pruned while it was exported; export the thread again",
                thread=now.name, version=version,
            ) from None  # fmt: skip

    def _reader(self, thread: Thread, record: BlobRecord) -> BlobReader:
        try:
            return BlobReader(self._context, thread, record)
        except HistoryElsewhere:
            with self._context.engine.read() as txn:
                row = find_blob(txn, thread.identity, record.sha256)
            if row is None or row.record.blob_id == record.blob_id:
                raise
            return BlobReader(self._context, thread, row.record)  # its bytes were lost, and were written again

    def _read(self, request: ExportThreadRequest, moment: _Moment, verb: Callable[[lmdb.Transaction, Thread], T]) -> T:
        def run() -> T:
            with self._context.engine.read() as txn:
                return verb(txn, self._thread(txn, request, moment))

        return self._context.settled(run)

    def _version(
        self, version: int, sent: Rising, txn: lmdb.Transaction, thread: Thread
    ) -> tuple[list[ThreadPart], StateTree | None]:
        """Returns the parts of a version, none if it was pruned; and the state that follows, if one does."""
        if version in thread.pruned:
            return [], None
        identity, cache = thread.identity, self._context.cache
        entry = replay.read_version(txn, thread, version)
        metadata = replay.open_metadata(identity, entry)
        parent = entry.header.parent_version
        is_whole = entry.header.whole or (parent > 0 and parent not in sent)
        shown = BackupVersion(
            checkpoint=view_entry(thread, entry), whole=is_whole,
            acked_signals=metadata.checkpoint.acked_signals, request=_mark(metadata),
        )  # fmt: skip
        if shown.whole:
            tree = replay.state_at(txn, thread, version, cache)
            shown.retired_logs.update(tree.retired)
            return [ThreadPart(version=shown)], tree
        diff = replay.parse_edits(replay.read_edits(txn, identity, entry, cache), thread.name, version)
        parts = [ThreadPart(version=shown)]
        for edit in diff.edits:
            if parts[-1].WhichOneof("part") != "diff" or parts[-1].ByteSize() > MESSAGE_BYTES:
                parts.append(ThreadPart())
            parts[-1].diff.edits.append(edit)
        return parts, None

    def _effects(self, after: bytes, txn: lmdb.Transaction, thread: Thread) -> list[tuple[bytes, BackupEffect]]:
        identity, found, size = thread.identity, list[tuple[bytes, BackupEffect]](), 0
        for key, row in page_effects(txn, thread, after, EFFECTS_A_STEP):
            value = read_value(txn, identity, row, self._context.cache)
            effect = BackupEffect(effect=view_effect(row, value), idempotency_key=row.record.idempotency_key)
            found.append((key, effect))
            size += effect.ByteSize()
            if size > MESSAGE_BYTES:
                break
        return found

    def _records(self, request: ExportThreadRequest, moment: _Moment, after: bytes) -> tuple[list[StoredRecord], bytes]:
        """Returns the next records, all as they are at one moment, and the row key of the last; empty = no more."""
        found, size = list[StoredRecord](), 0
        with self._views.numbered(moment.identity.number) as view:
            if view is None:
                raise not_found(request.namespace, request.thread)
            self._thread(view.txn, request, moment)
            now_us = self._context.clock.now_us()
            for key, row in records_after(view.txn, view.thread, after):
                if is_expired(row.facts, now_us):  # no reader sees it, although no sweep has removed it yet
                    continue
                found.append(view_record(row.facts, read_record(view.txn, view.thread.identity, row)))
                size += found[-1].ByteSize() + RECORD_OVERHEAD_BYTES
                if size > RECORDS_TOGETHER_BYTES:
                    return found, key
        return found, b""


def _view(moment: _Moment) -> BackupThread:
    head = moment.head
    view = BackupThread(options=head.options, token_floor=moment.token_floor)
    view.options.held_key = False  # an import knows no session key
    view.create_time.FromMicroseconds(head.create_time_us)
    view.update_time.FromMicroseconds(head.update_time_us)
    if 0 < moment.oldest_time_us < head.create_time_us:
        view.oldest_time.FromMicroseconds(moment.oldest_time_us)
    if head.HasField("forked_from"):
        view.forked_from.CopyFrom(head.forked_from)
    return view


def _mark(metadata: EntryMetadata) -> RequestMark:
    return RequestMark(id_hash=metadata.request_hash, fingerprint=metadata.fingerprint)


def _carried(kind: Kind, txn: lmdb.Transaction, thread: Thread) -> list[BackupEntry]:
    return [
        BackupEntry(kind=kind.number, metadata=each.metadata.SerializeToString(), content=each.content)
        for each in kind.carry(txn, thread)
    ]


def _signal(row: SignalRow, txn: lmdb.Transaction, thread: Thread) -> BackupSignal:
    metadata = replay.open_metadata(thread.identity, replay.read_entry(txn, thread.identity, row.sequence))
    return BackupSignal(signal=view_signal(row), request=_mark(metadata))


def _end(moment: _Moment, sent: Rising, deleted: set[str]) -> BackupEnd:
    for branch in moment.branches.values():
        if branch.version not in sent:
            name = moment.head.thread
            raise VersionPruned(
                f"version {branch.version} of thread {name!r}, the head of branch {branch.name!r} when the export "
                "began, was pruned during the export; export the thread again", thread=name, version=branch.version,
            )  # fmt: skip
    tags = [Tag(name=name, version=version) for name, version in sorted(moment.tags.items()) if version in sent]
    return BackupEnd(
        last_version=moment.head.last_version, branches=map(view_branch, moment.branches.values()), tags=tags,
        versions=sent.count, blobs=len(moment.blobs), signals=len(moment.signals),
        deleted_branches=sorted(deleted),
    )  # fmt: skip


def _pages(tree: StateTree) -> Iterator[State]:
    """Yields a state in pages. A log that continues on the next page has the index of its first entry there."""
    page, size = State(), 0
    for name, value in tree.slots.items():
        page.slots[name].ParseFromString(value)
        size += len(name) + len(value)
        if size >= MESSAGE_BYTES:
            yield page
            page, size = State(), 0
    for name, log in tree.logs.items():
        shown = page.logs[name]
        shown.first_index, shown.rewritten_version = log.first_index, log.rewritten_version
        for index, item in enumerate(log.entries, log.first_index):
            if size >= MESSAGE_BYTES:
                yield page
                page, size = State(), 0
                shown = page.logs[name]
                shown.first_index = index
            shown.entries.add().MergeFromString(unframe(item))
            size += len(item)
    yield page


def _messages(parts: Iterator[ThreadPart]) -> Iterator[ExportThreadResponse]:
    answer, size = ExportThreadResponse(), 0
    for part in parts:
        answer.parts.append(part)
        size += part.ByteSize()
        if size >= MESSAGE_BYTES:
            yield answer
            answer, size = ExportThreadResponse(), 0
    yield answer
