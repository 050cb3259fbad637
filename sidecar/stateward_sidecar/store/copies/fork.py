"""Copies threads. Each copy has a key of its own, so deleting the source never harms a copy. The copy of a held thread
is held, with the session key of the call.

A copy of one version: its state becomes version 1 of the copy, stored as a snapshot (log indexes stay), with an entry
that has no edits. A whole copy: every retained version is opened and sealed again, with its number, branch, checkpoint
id and metadata. The results whose anchor is the checkpoint id of a copied version come along. Blobs are written before
the first version that names them. A copy is invisible until it is complete (``hidden.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import lmdb

from stateward.storage.v1.head_pb2 import BranchHead, ThreadHead
from stateward.storage.v1.journal_pb2 import (
    BlobRecord,
    CheckpointBody,
    EffectRecord,
    EntryHeader,
    EntryMetadata,
    ObjectsBody,
    RecordBatch,
    RecordChange,
    RecordsBody,
    ThreadCreation,
)
from stateward.v1.thread_pb2 import THREAD_ACCESS_ORPHAN, THREAD_ACCESS_REMOTE, ForkSource, ThreadOptions
from stateward.v1.thread_pb2 import ThreadInfo as ThreadMessage
from stateward.v1.thread_service_pb2 import ForkThreadRequest, ForkThreadResponse
from stateward.v1.workspace_pb2 import TreeRef
from stateward_sidecar.codec import parts
from stateward_sidecar.codec.compress import Dictionary
from stateward_sidecar.codec.entry import EntryContent
from stateward_sidecar.codec.entry import draft as draft_content
from stateward_sidecar.codec.snapshot import to_snapshot
from stateward_sidecar.codec.state import StateTree
from stateward_sidecar.errors import (
    BlobNotFound,
    Corrupt,
    InvalidField,
    KeyUnavailable,
    QueueFull,
    ThreadExists,
    VersionNotFound,
    VersionPruned,
)
from stateward_sidecar.storage.queue import Batch
from stateward_sidecar.store.blobs.blobrows import blobs_in_edits, blobs_in_state
from stateward_sidecar.store.blobs.blobwrite import copy_blobs, find_blobs, require_blobs
from stateward_sidecar.store.clean.delete import Deleter
from stateward_sidecar.store.copies.hidden import Hidden, HiddenVersion, Put
from stateward_sidecar.store.copies.trees import all_lists, lists_of_tree, read_listed
from stateward_sidecar.store.items.recordputs import ENTRY_VALUES_BYTES
from stateward_sidecar.store.items.recordviews import RecordView, RecordViews
from stateward_sidecar.store.journal import replay
from stateward_sidecar.store.journal.admitting import check_uid, token_floor
from stateward_sidecar.store.journal.finding import resolve_or_head
from stateward_sidecar.store.journal.kind import Carried, Kind
from stateward_sidecar.store.journal.requests import find_request, fingerprint, hash_request
from stateward_sidecar.store.journal.telling import show_told
from stateward_sidecar.store.journal.views import receipt_of_thread, view_branch, view_thread
from stateward_sidecar.store.kinds.effect import OVER, page_effects, read_value
from stateward_sidecar.store.kinds.record import read_value as read_record
from stateward_sidecar.store.kinds.record import records_after
from stateward_sidecar.store.kinds.table import KINDS
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.ranges import Pruned, Ranges
from stateward_sidecar.store.thread.thread import MAIN, Thread, write_head
from stateward_sidecar.store.thread.threads import NameLock, Threads, not_found
from stateward_sidecar.store.thread.times import made_us

# Most entries name a recent snapshot as dictionary. Entries that name an older one are compressed without it.
DICTIONARIES_MAX = 4
EFFECTS_A_STEP, EFFECTS_STEP_BYTES = 100, 1 << 20


class Forker:
    """Copies threads. Runs on a worker thread, never on the event loop or the writer."""

    def __init__(self, context: Context, threads: Threads, deleter: Deleter, names: NameLock) -> None:
        """``names``: the names of hidden threads that are being made."""
        self._context = context
        self._threads = threads
        self._deleter = deleter
        self._names = names
        self._records = RecordViews(context, threads)

    def fork(self, request: ForkThreadRequest) -> ForkThreadResponse:
        """Copies a thread. Raises ThreadNotFound, UidMismatch, VersionNotFound, VersionPruned, ThreadExists, DiskFull.

        Raises QueueFull if another thread of the new name is being made, because that may take as long as a client
        likes.
        """
        # With an archive all copies of a name have one uid, and a copy that fails gives up the key of that uid.
        with self._names.of((request.namespace, request.new_thread), 0):
            return self._fork(request)

    def _fork(self, request: ForkThreadRequest) -> ForkThreadResponse:
        with self._context.engine.read() as txn:
            known = self._check_name(txn, request)
            if known is not None:
                return _answer(known, replayed=True)
            source = self._threads.get(txn, request.namespace, request.thread)
            check_uid(source.identity, request)
            if request.options.create.held_key and not source.identity.is_held:
                raise InvalidField("options.create.held_key", "the source is not held, so others can read it")
            # Together, because nothing is published meanwhile. What is pruned later is missing, and the copy fails.
            with self._context.writer.publishing:
                version, branches, pruned = source.head.last_version, source.branches.copy(), source.pruned
            ref = request.version if request.HasField("version") else None
            may_be_empty = bool(source.head.records) if request.all_versions else ref is not None
            if not may_be_empty and not source.pruned.missing(version).pairs():
                raise VersionNotFound(f"thread {source.name!r} has no version to copy", thread=source.name)
            if not request.all_versions:
                version = resolve_or_head(txn, source, ref, request.branch or MAIN, "version")
        copy = Hidden(
            self._context, self._threads, self._deleter, request.namespace, request.new_thread,
            is_held=source.identity.is_held,
        )  # fmt: skip
        try:
            if request.all_versions:
                self._copy_all(request, source, copy, version, branches, pruned)
            else:
                self._copy_one(request, source, copy, version)
            return _answer(self._reveal(request, source, copy, version), replayed=False)
        except ThreadExists:
            copy.discard()
            with self._context.engine.read() as txn:
                known = self._check_name(txn, request)  # a retry of this request may have made the copy meanwhile
            if known is None:
                raise
            return _answer(known, replayed=True)
        except (Corrupt, KeyUnavailable):
            copy.discard()
            self._check_source(request, source, version)
            raise
        except BaseException:
            copy.discard()
            raise

    def _check_source(self, request: ForkThreadRequest, source: Thread, version: int) -> None:
        """Raises ThreadNotFound if the source was deleted during the copy, VersionPruned if the version was pruned."""
        with self._context.engine.read() as txn:
            live = self._threads.by_number(txn, source.number)
        if source.is_deleted or live is None:
            raise not_found(request.namespace, request.thread) from None
        if version in live.pruned:
            raise VersionPruned(
                f"version {version} of thread {live.name!r} was pruned during the copy",
                thread=live.name,
                version=version,
            ) from None

    def _now(self, txn: lmdb.Transaction, source: Thread) -> Thread:
        """Returns the source as it is now. Memory may have dropped it since, and what commits change is another object.

        Raises ThreadNotFound.
        """
        now = self._threads.by_number(txn, source.number)
        if now is None:
            raise not_found(source.identity.namespace, source.name)
        return now

    def _check_name(self, txn: lmdb.Transaction, request: ForkThreadRequest) -> ThreadMessage | None:
        """Returns the copy if this request made it before; None if the name is free; else raises ThreadExists."""
        found = self._threads.find(txn, request.namespace, request.new_thread)
        if found is None:
            return None
        mark = fingerprint(request)
        if request.options.request_id and find_request(txn, found, request.options.request_id, mark) is not None:
            return view_thread(found)
        raise ThreadExists(f"a thread {request.new_thread!r} exists already", thread=request.new_thread)

    def _copy_one(self, request: ForkThreadRequest, source: Thread, copy: Hidden, version: int) -> None:
        def read() -> tuple[CheckpointBody, StateTree]:
            with self._context.engine.read() as txn:
                now = self._now(txn, source)
                entry = replay.read_version(txn, now, version)
                body = entry.open_metadata(source.identity.cipher, source.identity.uid).checkpoint
                show_told(body, now.head, version)
                if version in now.pruned.trees:
                    body.ClearField("workspace")
                return body, replay.state_at(txn, now, version, self._context.cache)

        body, tree = self._context.settled(read)
        anchors = {body.checkpoint_id} - {""}
        body.branch = body.parent_checkpoint_id = ""
        body.sent_bytes = 0
        snapshot, named = parts.pack_snapshot(to_snapshot(tree)), sorted(blobs_in_state(tree))
        blobs = find_blobs(self._context, source, named)
        size_bytes = snapshot.stored_bytes + sum(each.stored_bytes for each in blobs)
        copy.expect(size_bytes)
        copy.take(size_bytes)  # it takes no less, so one that does not fit ends here
        self._copy_blobs(request, source, copy, named)
        if body.HasField("workspace"):
            self._copy_objects(request, source, copy, body.workspace)
        content = self._content(request, source, copy, EntryMetadata(checkpoint=body))
        made = HiddenVersion(1, 0, body, content, 0, snapshot, whole=True)
        copy.put(copy.version(made), made.size_bytes)
        self._copy_effects(source, copy, anchors)

    def _copy_all(
        self,
        request: ForkThreadRequest,
        source: Thread,
        copy: Hidden,
        last: int,
        branches: dict[str, BranchHead],
        before: Pruned,
    ) -> None:
        """``before``: what was pruned when the copy began."""
        context, dictionaries = self._context, dict[int, Dictionary]()
        wanted = frozenset(source.snapshots)
        pruned = copy.draft.pruned = Pruned(before.pairs())
        copied: set[bytes] = set()
        anchors: set[str] = set()
        copy.expect(source.head.stored_bytes)
        require_blobs(self._context, source)
        for version in range(1, last + 1):
            if version in pruned:
                continue
            header, body, edits, tree = context.settled(partial(self._read, source, version, wanted, pruned))
            body.source_digest = header.digest
            time_us = made_us(source.head, header.sequence, header.create_time_us, context.clock.now_us())
            anchors.add(body.checkpoint_id)
            dictionary = dictionaries.get(header.dictionary_version)
            named = blobs_in_edits(replay.parse_edits(edits, source.name, version))
            named |= blobs_in_state(tree) if tree is not None else set()
            self._copy_blobs(request, source, copy, sorted(named - copied), time_us)
            copied |= named
            content = self._content(request, source, copy, EntryMetadata(checkpoint=body), edits, dictionary)
            snapshot = to_snapshot(tree) if tree is not None else None
            made = HiddenVersion(
                version, header.parent_version, body, content, time_us,
                parts.pack_snapshot(snapshot) if snapshot is not None else None,
                whole=snapshot is not None and header.whole,
            )  # fmt: skip
            copy.put(copy.version(made), made.size_bytes)
            if snapshot is not None:
                dictionaries[version] = Dictionary(version, made.digest, snapshot)
                while len(dictionaries) > DICTIONARIES_MAX:
                    del dictionaries[next(iter(dictionaries))]
        copy.place_branches({name: view_branch(branch) for name, branch in branches.items()})
        for name, tagged in source.tags.items():
            if tagged > last or tagged in pruned:
                continue  # this tag was set after the copy began, and names a version that the copy lacks
            copy.later(copy.tag(name, tagged))
        self._copy_effects(source, copy, anchors - {""})
        self._copy_records(request, source, copy)
        self._copy_objects(request, source, copy)
        for kind in KINDS:
            for each in context.settled(partial(self._carried, source, kind)):
                copy.later(*copy.carried(kind, each))

    def _carried(self, source: Thread, kind: Kind) -> list[Carried]:
        with self._context.engine.read() as txn:
            return list(kind.carry(txn, self._now(txn, source)))

    def _copy_records(self, request: ForkThreadRequest, source: Thread, copy: Hidden) -> None:
        """Copies all records as they are at one moment, with their revisions and times."""
        is_first = not copy.draft.head.tip_sequence
        with self._records.numbered(source.number) as view:
            if view is None:
                raise not_found(request.namespace, request.thread)
            for batch in _record_batches(view):
                metadata = EntryMetadata(records=RecordsBody())
                content = self._content(request, source, copy, metadata, batch.SerializeToString(deterministic=True))
                put, size_bytes = copy.records(content, batch)
                if is_first:  # it describes the copy, and the next one must not
                    copy.put(put, size_bytes)
                    is_first = False
                else:
                    copy.later(put, size_bytes)

    def _copy_effects(self, source: Thread, copy: Hidden, anchors: set[str]) -> None:
        """Copies the results that belong to copied versions: their anchor is a version's checkpoint id.

        An effect that is not over stays with the source, because its claim is there.
        """
        after = b""
        while anchors and (found := self._context.settled(partial(self._read_effects, source, after, anchors))):
            after = found[-1][0]
            for _, record, value in found:
                if record is not None:
                    copy.later(*copy.effect(record, value))

    def _read_effects(
        self, source: Thread, after: bytes, anchors: set[str]
    ) -> list[tuple[bytes, EffectRecord | None, bytes]]:
        """Reads the next effects: row key, record for the copy (None = it is not copied), and serialized value."""
        found, size_bytes = list[tuple[bytes, EffectRecord | None, bytes]](), 0
        with self._context.engine.read() as txn:
            for key, row in page_effects(txn, self._now(txn, source), after, EFFECTS_A_STEP):
                is_copied = row.record.anchor in anchors and row.record.state in OVER
                value = read_value(txn, source.identity, row, self._context.cache) if is_copied else None
                data = value.SerializeToString() if value is not None else b""
                found.append((key, _unclaimed(row.record) if is_copied else None, data))
                size_bytes += len(data)
                if size_bytes > EFFECTS_STEP_BYTES:
                    break
        return found

    def _read(
        self, source: Thread, version: int, wanted: frozenset[int], pruned: Ranges
    ) -> tuple[EntryHeader, CheckpointBody, bytes, StateTree | None]:
        """Reads one version; also its state if the copy needs a snapshot of it."""
        cache, identity = self._context.cache, source.identity
        with self._context.engine.read() as txn:
            source = self._now(txn, source)
            entry = replay.read_version(txn, source, version)
            body = entry.open_metadata(identity.cipher, identity.uid).checkpoint
            show_told(body, source.head, version)
            if version in source.pruned.trees:
                body.ClearField("workspace")
            edits = replay.read_edits(txn, identity, entry, cache)
            tree = None
            if version in wanted or entry.header.whole or entry.header.parent_version in pruned:
                tree = replay.state_at(txn, source, version, cache)
            return entry.header, body, edits, tree

    def _content(
        self,
        request: ForkThreadRequest,
        source: Thread,
        copy: Hidden,
        metadata: EntryMetadata,
        edits: bytes = b"",
        dictionary: Dictionary | None = None,
    ) -> EntryContent:
        """Returns the content of an entry of the copy. The first entry also describes the copy."""
        if copy.draft.head.tip_sequence == 0:
            metadata.fingerprint = fingerprint(request)
            metadata.request_hash = hash_request(request.options.request_id)
            origin = ForkSource(thread=source.name, uid=source.identity.uid.hex())
            metadata.creation.CopyFrom(
                ThreadCreation(
                    namespace=request.namespace,
                    thread=request.new_thread,
                    options=_options(request, source),
                    forked_from=origin,
                )
            )
        return draft_content(metadata, edits, dictionary)

    def _copy_blobs(
        self, request: ForkThreadRequest, source: Thread, copy: Hidden, named: list[bytes], time_us: int = 0
    ) -> None:
        """Copies the blobs that a version names, before the version itself. ``time_us``: the time of the version."""
        if not named:
            return
        require_blobs(self._context, source, set(named))
        records = find_blobs(self._context, source, named)
        copy.take(sum(each.stored_bytes for each in records))
        copy_blobs(self._context, source, copy.draft.identity, records)
        for record in records:
            is_first = not copy.draft.head.tip_sequence
            content = self._content(request, source, copy, EntryMetadata(blob=record))
            if is_first:  # it describes the copy, and the next one must not
                copy.put(copy.blob(record, content, time_us))
            else:
                copy.later(copy.blob(record, content, time_us))

    def _copy_objects(
        self, request: ForkThreadRequest, source: Thread, copy: Hidden, tree: TreeRef | None = None
    ) -> None:
        """Copies the objects of a tree, or of all trees. The copy has the same packs, under a second name."""
        context = self._context

        def look() -> list[int]:
            with context.engine.read() as txn:
                now = self._now(txn, source)
                return lists_of_tree(txn, context, now, tree) if tree is not None else all_lists(txn, now)

        def read(sequence: int) -> tuple[ObjectsBody, bytes, BlobRecord | None]:
            with context.engine.read() as txn:
                return read_listed(txn, context, self._now(txn, source), sequence)

        removals = context.trees.removals
        try:
            sequences = context.settled(look)
            found = [context.settled(partial(read, sequence)) for sequence in sequences]
            packs = [record for _, _, record in found if record is not None]
            if packs:
                require_blobs(context, source, {record.sha256 for record in packs})
                copy.take(sum(record.stored_bytes for record in packs))
                copy_blobs(context, source, copy.draft.identity, packs)
        except (Corrupt, BlobNotFound):
            with context.writer.publishing:  # until then, a removal that is on disk may not be counted
                were_moved = removals != context.trees.removals
            if were_moved:
                raise QueueFull("objects of trees were moved during the copy; try again", thread=source.name) from None
            raise
        for body, content, record in found:
            if record is not None:
                self._put_first(request, source, copy, EntryMetadata(blob=record), partial(copy.blob, record))
            metadata = EntryMetadata(objects=body)
            stored_bytes = record.stored_bytes if record is not None else body.packed_bytes
            put = partial(self._objects_of, copy, stored_bytes)
            self._put_first(request, source, copy, metadata, put, content)

    @staticmethod
    def _objects_of(copy: Hidden, stored_bytes: int, content: EntryContent) -> Put:
        return copy.objects(content, stored_bytes)[0]

    def _put_first(
        self, request: ForkThreadRequest, source: Thread, copy: Hidden, metadata: EntryMetadata,
        put: Callable[[EntryContent], Put], second: bytes = b"",
    ) -> None:  # fmt: skip
        """Puts an entry, which describes the copy if it is the first one."""
        is_first = not copy.draft.head.tip_sequence
        made = put(self._content(request, source, copy, metadata, second))
        if is_first:  # it describes the copy, and the next one must not
            copy.put(made)
        else:
            copy.later(made, len(second))

    def _reveal(self, request: ForkThreadRequest, source: Thread, copy: Hidden, version: int) -> ThreadMessage:
        def settle(head: ThreadHead) -> None:
            head.options.CopyFrom(_options(request, source))
            head.forked_from.CopyFrom(ForkSource(thread=source.name, uid=source.identity.uid.hex(), version=version))
            head.update_time_us = max(self._context.clock.now_us(), head.update_time_us)
            if request.all_versions:
                # The newest versions may be pruned. Their numbers are not given out again, or the next save would count
                # as pruned, too.
                head.last_version = version
                head.save_time_us = head.update_time_us  # a TTL counts from the time of the copy
                # New revisions are above those of the copied records.
                head.token_floor = token_floor(self._threads.in_memory(source.number) or source)

        return copy.reveal(settle, partial(self._count_fork, source))

    def _count_fork(self, source: Thread, txn: lmdb.Transaction, batch: Batch) -> None:
        draft = self._threads.draft(txn, batch, source.identity.namespace, source.name)
        is_there = draft is not None and draft.identity.number == source.number
        if draft is None or not is_there or draft.thread.access in (THREAD_ACCESS_REMOTE, THREAD_ACCESS_ORPHAN):
            return  # the source was deleted meanwhile, or it is not ours to change; the copy stays
        head = draft.next_head()
        head.forks += 1
        write_head(txn, draft.identity, head)
        draft.head = head
        self._threads.keep_draft(batch, draft)


def _record_batches(view: RecordView) -> Iterator[RecordBatch]:
    """Yields all records, as many together as share an entry."""
    batch, size_bytes = RecordBatch(), 0
    for _, row in records_after(view.txn, view.thread, b""):
        facts, value = row.facts, read_record(view.txn, view.thread.identity, row)
        facts.ClearField("value_sequence")
        facts.ClearField("value_stored_bytes")
        change = RecordChange(facts=facts, value=value)
        if batch.changes and size_bytes + change.ByteSize() > ENTRY_VALUES_BYTES:
            yield batch
            batch, size_bytes = RecordBatch(), 0
        batch.changes.append(change)
        size_bytes += change.ByteSize()
    if batch.changes:
        yield batch


def _unclaimed(record: EffectRecord) -> EffectRecord:
    """Returns the record without what only the source's claims mean."""
    made = EffectRecord()
    made.CopyFrom(record)
    for name in ("claim_token", "term_us", "lease_token", "was_uncertain", "written", "idempotency_key"):
        made.ClearField(name)
    return made


def _options(request: ForkThreadRequest, source: Thread) -> ThreadOptions:
    options = ThreadOptions()
    if request.options.HasField("create"):
        options.CopyFrom(request.options.create)
    else:
        options.CopyFrom(source.head.options)
        options.ClearField("ttl")
    options.held_key = source.identity.is_held
    return options


def _answer(copy: ThreadMessage, *, replayed: bool) -> ForkThreadResponse:
    return ForkThreadResponse(receipt=receipt_of_thread(copy, replayed=replayed), thread=copy)
