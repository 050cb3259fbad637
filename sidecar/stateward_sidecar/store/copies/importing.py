"""Imports a thread from the parts of an export: the reverse of ``exporting.py``.

The import trusts nothing. The service checks every part. This module applies the edits of each version, so stored edits
always fit; it checks that blobs match their hashes, that named blobs are there, and that the counts of the end are
right. Nobody sees the thread before its last write (``hidden.py``). An import that fails leaves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import lmdb
from google.protobuf.message import DecodeError

from stateward.storage.v1.head_pb2 import SignalRow, ThreadHead
from stateward.storage.v1.journal_pb2 import (
    EffectRecord,
    EntryMetadata,
    RecordBatch,
    RecordChange,
    RecordFacts,
    RecordsBody,
    SignalRecord,
    ThreadCreation,
)
from stateward.v1.backup_service_pb2 import (
    BackupEffect,
    BackupEnd,
    BackupEntry,
    BackupRecord,
    BackupSignal,
    BackupThread,
    ImportBegin,
    ThreadPart,
)
from stateward.v1.effect_pb2 import EFFECT_STATE_IN_PROGRESS, EFFECT_STATE_UNCERTAIN
from stateward.v1.thread_pb2 import ThreadInfo as ThreadMessage
from stateward_sidecar.codec.entry import draft as draft_content
from stateward_sidecar.errors import InvalidField, QueueFull, ThreadExists
from stateward_sidecar.store.clean.delete import Deleter
from stateward_sidecar.store.copies.hidden import Hidden
from stateward_sidecar.store.copies.incoming import IncomingBlobs, IncomingVersions
from stateward_sidecar.store.copies.trees import IncomingObjects
from stateward_sidecar.store.items.recordputs import ENTRY_VALUES_BYTES, RECORDS_MAX
from stateward_sidecar.store.items.signals import PENDING_MAX
from stateward_sidecar.store.journal.admitting import check_uid
from stateward_sidecar.store.journal.kind import Carried
from stateward_sidecar.store.journal.requests import find_request, fingerprint, hash_request
from stateward_sidecar.store.journal.views import view_thread
from stateward_sidecar.store.kinds.setting import OPTIONS
from stateward_sidecar.store.kinds.signal import SIGNAL, put_signals
from stateward_sidecar.store.kinds.table import kind_numbered
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.ranges import Pruned
from stateward_sidecar.store.thread.threads import NameLock, Threads

# The order in which the kinds of parts must come.
ORDER = ("thread", "blob", "objects", "version", "effect", "record", "signal", "entry", "end")
_PLACE = {name: place for place, name in enumerate(ORDER)} | {"blob_data": 1, "state": 3, "diff": 3}


class Importer:
    """The verb that imports a thread, step by step. Each step blocks: run it on a worker, never on the event loop."""

    def __init__(self, context: Context, threads: Threads, deleter: Deleter, names: NameLock) -> None:
        """``names``: the names of hidden threads that are being made."""
        self._context = context
        self._threads = threads
        self._deleter = deleter
        self._names = names

    def known(self, begin: ImportBegin) -> ThreadMessage | None:
        """Returns the thread if this request made it before; None if the name is free; else raises ThreadExists.

        Raises UidMismatch or ThreadNotFound if the request expects a uid that the thread does not have.
        """
        with self._context.engine.read() as txn:
            found = self._threads.find(txn, begin.namespace, begin.thread)
            check_uid(None if found is None else found.identity, begin)
            if found is None:
                return None
            if find_request(txn, found, begin.options.request_id, fingerprint(begin)) is not None:
                return view_thread(found)
        raise ThreadExists(f"a thread {begin.thread!r} exists already", thread=begin.thread)

    def begin(self, begin: ImportBegin) -> Import:
        """Begins an import. Raises NotOwner if there is an archive and the name is not claimed in it.

        Raises QueueFull if another thread of the name is being restored or copied.
        """
        name = begin.namespace, begin.thread
        if not self._names.take(name):
            raise QueueFull(
                f"a thread {begin.thread!r} is being restored or copied already; try again", thread=begin.thread
            )
        try:
            hidden = Hidden(self._context, self._threads, self._deleter, *name)
        except BaseException:
            self._names.free(name)
            raise
        return Import(self._context, hidden, begin, lambda: self._names.free(name))


class Import:
    """A thread that is being made from parts."""

    def __init__(self, context: Context, hidden: Hidden, begin: ImportBegin, on_end: Callable[[], None]) -> None:
        self._on_end = on_end
        self._context = context
        self._hidden = hidden
        self._begin = begin
        self._place = -1
        self._facts = BackupThread()
        self._blobs = IncomingBlobs(context, hidden)
        self._objects = IncomingObjects(context, hidden)
        self._versions = IncomingVersions(context, hidden, self._blobs, self._objects)
        self._effects = self._signals = self._records = self._entries = 0
        self._record_batch, self._record_bytes = RecordBatch(), 0
        self._beside: dict[str, Callable[[Any], None]] = {
            "effect": self._put_effect, "record": self._put_record, "signal": self._put_signal,
            "entry": self._put_entry,
        }  # fmt: skip
        self._end: BackupEnd | None = None
        self._now_us = context.clock.now_us()

    @property
    def held_bytes(self) -> int:
        """Bytes in memory of a version that is not complete yet."""
        return self._versions.held_bytes

    def take(self, parts: Sequence[ThreadPart]) -> None:
        """Takes the next parts. Raises InvalidField, EditConflict, StateTooLarge, DiskFull."""
        for part in parts:
            kind = part.WhichOneof("part")
            if kind is None:
                raise InvalidField("parts", "have a part of a kind that this daemon does not know")
            self._follow(kind)
            match kind:
                case "thread":
                    self._start(part.thread)
                case "blob":
                    self._blobs.begin(part.blob)
                case "blob_data":
                    self._blobs.add(part.blob_data)
                case "objects":
                    self._objects.add(part.objects)
                case "version":
                    self._versions.begin(part.version)
                case "state":
                    self._versions.add_state(part.state)
                case "diff":
                    self._versions.add_diff(part.diff)
                case "end":
                    self._end = part.end
                case _:
                    self._beside[kind](getattr(part, kind))

    def _follow(self, kind: str) -> None:
        """Checks the order of the parts, and ends the blob or version before this part."""
        place = _PLACE[kind]
        is_first = self._place < 0
        if place < self._place or is_first != (kind == "thread") or self._end is not None:
            raise InvalidField(f"parts.{kind}", f"is out of order: the order is {', '.join(ORDER)}")
        if kind != "blob_data":
            self._blobs.finish(self._hidden.draft.head.update_time_us)
        if place > _PLACE["objects"]:
            self._objects.finish()
        if place > _PLACE["version"]:
            self._versions.finish()
        if place > _PLACE["record"]:
            self._flush_records()
        self._place = place

    def _start(self, facts: BackupThread) -> None:
        """Puts the first entry, which describes the thread and the request that made it."""
        self._facts, begin, draft = facts, self._begin, self._hidden.draft
        draft.head.create_time_us = self._time_us(facts.create_time.ToMicroseconds())
        draft.head.token_floor = facts.token_floor
        creation = ThreadCreation(namespace=begin.namespace, thread=begin.thread, options=facts.options)
        if facts.HasField("forked_from"):
            creation.forked_from.CopyFrom(facts.forked_from)
        metadata = EntryMetadata(
            creation=creation, options=facts.options, request_hash=hash_request(begin.options.request_id),
            fingerprint=fingerprint(begin),
        )  # fmt: skip
        oldest = facts.oldest_time if facts.HasField("oldest_time") else facts.create_time
        content, time_us = draft_content(metadata), self._time_us(oldest.ToMicroseconds())
        self._hidden.put(self._hidden.entry(OPTIONS, content, time_us))

    def _time_us(self, time_us: int) -> int:
        """Returns a time of the original, limited to at least 1 and at most the present time of this machine."""
        return max(min(time_us, self._now_us), 1)

    # -- effects and signals --------------------------------------------------------------------------------------

    def _put_effect(self, part: BackupEffect) -> None:
        effect, shown = part.effect.effect, part.effect
        record = EffectRecord(
            anchor=effect.anchor, key=effect.key, sort_key=effect.sort_key, name=effect.name, state=shown.state,
            claim_token=shown.claim_token, begin_time_us=self._time_us(shown.begin_time.ToMicroseconds()),
            detail=shown.detail, attempts=shown.attempts, idempotency_key=part.idempotency_key,
            has_value=effect.HasField("value"), stays=effect.keep_when_pruned,
        )  # fmt: skip
        if shown.state == EFFECT_STATE_IN_PROGRESS:
            # The holder may have called the tool, but cannot complete the claim here. The next caller has to find out.
            record.state = EFFECT_STATE_UNCERTAIN
        if shown.HasField("holder"):
            record.holder.CopyFrom(shown.holder)
        if shown.HasField("end_time"):
            record.end_time_us = self._time_us(shown.end_time.ToMicroseconds())
        value = effect.value.SerializeToString() if record.has_value else b""
        self._hidden.later(*self._hidden.effect(record, value, f"parts.effect[{effect.key!r}]"))
        self._effects += 1

    def _put_record(self, part: BackupRecord) -> None:
        """Takes a record. Several share an entry, as they do when they are written."""
        if self._records >= RECORDS_MAX:
            raise InvalidField("parts.record", f"are more than {RECORDS_MAX}")
        record = part.record
        facts = RecordFacts(
            key=record.key, attributes=record.attributes, revision=record.revision,
            create_time_us=self._time_us(record.create_time.ToMicroseconds()),
            update_time_us=self._time_us(record.update_time.ToMicroseconds()), value_bytes=len(record.value.data),
        )  # fmt: skip
        if record.HasField("ttl"):
            facts.ttl_us = record.ttl.ToMicroseconds()
            # From now, as the TTL of the thread: the backup may be older than the TTL.
            facts.expire_time_us = self._context.clock.now_us() + facts.ttl_us
        change = RecordChange(facts=facts, value=record.value)
        if self._record_bytes + change.ByteSize() > ENTRY_VALUES_BYTES:
            self._flush_records()
        # A takeover during the export may have raised the epoch, and the next revision must be higher nevertheless.
        head = self._hidden.draft.head
        head.token_floor = max(head.token_floor, record.revision)
        self._record_batch.changes.append(change)
        self._record_bytes += change.ByteSize()
        self._records += 1

    def _flush_records(self) -> None:
        batch, self._record_batch, self._record_bytes = self._record_batch, RecordBatch(), 0
        if batch.changes:
            content = draft_content(EntryMetadata(records=RecordsBody()), batch.SerializeToString(deterministic=True))
            self._hidden.later(*self._hidden.records(content, batch, "parts.record"))

    def _put_signal(self, part: BackupSignal) -> None:
        signal, draft = part.signal, self._hidden.draft
        if self._signals >= PENDING_MAX:
            raise InvalidField("parts.signal", f"are more than {PENDING_MAX}")
        record = SignalRecord(
            signal_id=signal.signal_id, name=signal.name, sender=signal.sender, wait_id=signal.wait_id,
            parts=signal.parts,
        )  # fmt: skip
        if signal.HasField("payload"):
            record.payload.CopyFrom(signal.payload)
        metadata = EntryMetadata(signal=record, request_hash=part.request.id_hash, fingerprint=part.request.fingerprint)
        content = draft_content(metadata)
        create_time_us = self._time_us(signal.create_time.ToMicroseconds())

        def put(txn: lmdb.Transaction) -> None:
            header = self._hidden.append(txn, SIGNAL, content, draft.head.update_time_us)
            row = SignalRow(record=record, sequence=header.sequence, create_time_us=create_time_us)
            draft.row_sums.update(put_signals(txn, draft, draft.head, [row]))
            draft.head.pending_signals += 1
            draft.signals[row.sequence] = row

        self._hidden.later(put, content.size_bytes)
        self._signals += 1

    def _put_entry(self, part: BackupEntry) -> None:
        """Takes an entry of a kind that has no part of its own."""
        kind = kind_numbered(part.kind)
        if kind is None:
            raise InvalidField("parts.entry.kind", f"{part.kind} is no kind that this daemon knows")
        try:
            carried = Carried(EntryMetadata.FromString(part.metadata), part.content)
        except DecodeError:
            raise InvalidField("parts.entry.metadata", "cannot be read") from None
        metadata = carried.metadata
        if metadata.request_hash or metadata.fingerprint or metadata.HasField("creation"):
            raise InvalidField("parts.entry.metadata", "names a request or a thread, which only the daemon does")
        kind.check(carried)
        self._hidden.later(*self._hidden.carried(kind, carried))
        self._entries += 1

    # -- the end --------------------------------------------------------------------------------------------------

    def finish(self) -> ThreadMessage:
        """Makes the thread visible. Raises InvalidField if the end does not match the parts, ThreadExists."""
        if self._end is None:
            raise InvalidField("parts.end", "is missing: the stream was cut off, and nothing was imported")
        self._hidden.flush()
        self._check_end(self._end)
        draft = self._hidden.draft
        draft.pruned = Pruned(self._versions.came.ranges().missing(self._end.last_version).pairs())
        self._hidden.place_branches({branch.name: branch for branch in self._end.branches})
        for tag in self._end.tags:
            self._hidden.later(self._hidden.tag(tag.name, tag.version))
        made = self._hidden.reveal(partial(self._settle, self._end))
        self._free_name()
        return made

    def _settle(self, end: BackupEnd, head: ThreadHead) -> None:
        head.options.CopyFrom(self._facts.options)
        head.options.held_key = False
        if self._facts.HasField("forked_from"):
            head.forked_from.CopyFrom(self._facts.forked_from)
        head.last_version = end.last_version
        now = self._context.clock.now_us()
        head.save_time_us = now  # a TTL counts from the restore
        head.update_time_us = max(head.update_time_us, self._time_us(self._facts.update_time.ToMicroseconds()))

    def _check_end(self, end: BackupEnd) -> None:
        came = {
            "versions": self._versions.came.count, "blobs": len(self._blobs.known), "effects": self._effects,
            "records": self._records, "signals": self._signals, "entries": self._entries,
            "objects": self._objects.count,
        }  # fmt: skip
        for name, count in came.items():
            if getattr(end, name) != count:
                raise InvalidField(f"parts.end.{name}", f"is {getattr(end, name)}, but {count} were received")
        draft = self._hidden.draft
        _check(end.last_version >= draft.head.last_version, "parts.end.last_version", "is below the newest version")
        newest = {name: branch.version for name, branch in draft.all_branches().items()}
        said, deleted = {branch.name for branch in end.branches}, set(end.deleted_branches)
        is_all = not said & deleted and newest.keys() - deleted == said
        for branch in end.branches:
            last = max(branch.version, branch.newest_version)
            is_all = is_all and branch.version <= newest[branch.name] <= last and branch.version in self._versions.came
        _check(is_all, "parts.end.branches", "have other heads than the versions that were received")
        for branch in end.branches:
            last, first = max(branch.version, branch.newest_version), branch.first_version
            fits = 0 <= branch.base_version < branch.version and 0 <= branch.moved_version <= last
            fits = fits and 1 <= first <= branch.version and last <= end.last_version
            _check(fits, f"parts.end.branches[{branch.name!r}]", "has a base or move after its head")
        _check("main" not in deleted, "parts.end.deleted_branches", "name main")
        for tag in end.tags:
            is_here = tag.version in self._versions.came
            _check(is_here, f"parts.end.tags[{tag.name!r}]", "names a version that was not received")

    def discard(self) -> None:
        """Removes an unfinished import. Does nothing after ``finish``.

        The name is free afterwards, whatever fails: remaining rows have no name, and the next start removes them.
        """
        try:
            if not self._hidden.is_over:
                self._blobs.discard()
                self._objects.discard()
                self._hidden.discard()
        finally:
            self._free_name()

    def _free_name(self) -> None:
        """Frees the name once, because another call may have taken the name since."""
        on_end, self._on_end = self._on_end, lambda: None
        on_end()


def _check(is_right: bool, field: str, problem: str) -> None:
    if not is_right:
        raise InvalidField(field, problem)
