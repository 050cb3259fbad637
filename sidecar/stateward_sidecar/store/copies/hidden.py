"""A hidden thread: rows under a key of its own, without name and head, so nobody sees it.

Copies and imported threads are made as hidden threads, in small background writes. The last write adds name and head.
A hidden thread that fails is removed at once; after a crash, the next start removes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import lmdb

from stateward.storage.v1.head_pb2 import BlobRow, BranchHead, EffectRow, RecordRow, ThreadHead
from stateward.storage.v1.journal_pb2 import (
    BlobRecord,
    CheckpointBody,
    EffectRecord,
    EntryHeader,
    EntryMetadata,
    RecordBatch,
)
from stateward.v1.thread_pb2 import Branch, Tag, ThreadOptions
from stateward.v1.thread_pb2 import ThreadInfo as ThreadMessage
from stateward_sidecar.codec import parts
from stateward_sidecar.codec.entry import EntryContent
from stateward_sidecar.codec.entry import draft as draft_content
from stateward_sidecar.errors import InvalidField, NotOwner, OutcomeUnknown, ThreadExists
from stateward_sidecar.storage import layout
from stateward_sidecar.storage.queue import Batch, Write
from stateward_sidecar.store.blobs.blobrows import put_blob
from stateward_sidecar.store.clean.delete import Deleter
from stateward_sidecar.store.journal.journal import (
    append,
    index_expiry,
    index_options,
    index_time,
    label_keys,
    put_whole_feed,
)
from stateward_sidecar.store.journal.kind import Carried, Kind
from stateward_sidecar.store.journal.views import view_head
from stateward_sidecar.store.kinds.blob import BLOB
from stateward_sidecar.store.kinds.effect import EFFECT, effect_key, put_effect
from stateward_sidecar.store.kinds.objects import OBJECTS, keys_of, open_batch, put_rows
from stateward_sidecar.store.kinds.record import RECORDS, put_record, record_key, share_out
from stateward_sidecar.store.kinds.record import index_expiry as index_records_expiry
from stateward_sidecar.store.kinds.ref import HEADS, TAG_SET
from stateward_sidecar.store.kinds.version import VERSION
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.thread import MAIN, ThreadDraft, write_branch, write_head, write_row
from stateward_sidecar.store.thread.threads import Threads
from stateward_sidecar.store.thread.usage import Reserved
from stateward_sidecar.store.versions.branches import Pointed, describe_main, move_branch, point_branch
from stateward_sidecar.store.versions.moves import Moves, list_moves
from stateward_sidecar.store.versions.snapshots import put_snapshot

Put = Callable[[lmdb.Transaction], None]
WRITE_SLACK_BYTES = 16384
# At most this many puts or bytes are committed together.
PUTS_MAX, PUTS_BYTES = 64, 1 << 20


@dataclass(slots=True)
class HiddenVersion:
    """A version to put, and its digest afterwards."""

    version: int
    parent: int
    body: CheckpointBody
    content: EntryContent
    time_us: int
    snapshot: parts.Content | None = None  # of its state; required if the parent is not in the thread
    whole: bool = False  # it has no edits: its state is in the snapshot alone
    digest: bytes = b""

    @property
    def size_bytes(self) -> int:
        """Estimated size at rest in bytes."""
        return self.content.size_bytes + (self.snapshot.stored_bytes if self.snapshot is not None else 0)


class Hidden:
    """A hidden thread. Used by one worker at a time, never on the event loop or the writer's thread."""

    def __init__(
        self, context: Context, threads: Threads, deleter: Deleter, namespace: str, name: str, *, is_held: bool = False
    ) -> None:
        """Makes a key and a number. Raises NotOwner if there is an archive and the name is not claimed in it.
        ``is_held``: with the session key that the call has offered."""
        self._context = context
        self._threads = threads
        self._deleter = deleter
        self._waiting: list[Put] = []
        self._waiting_bytes = 0
        self.is_over = False  # the thread has a name, or may have one, or was discarded
        self._reserved = Reserved(context.usage, namespace)
        self.draft: ThreadDraft = self._submit(partial(self._begin, namespace, name, is_held))

    def _begin(self, namespace: str, name: str, is_held: bool, txn: lmdb.Transaction, batch: Batch) -> ThreadDraft:
        del txn
        self._context.usage.check_thread(namespace, batch.drafts)
        return self._threads.begin(batch, namespace, name, is_held=is_held)

    # -- what it takes of its namespace ---------------------------------------------------------------------------

    def expect(self, size_bytes: int) -> None:
        """Says how large the thread becomes. Its namespace keeps as much for it, if it has it."""
        self._reserved.expect(size_bytes)

    def take(self, more_bytes: int) -> None:
        """Says how much it takes beside its rows. Raises QuotaExceeded."""
        self._reserved.take(self.draft.head.stored_bytes + more_bytes)

    # -- rows -----------------------------------------------------------------------------------------------------

    def later(self, put: Put, size_bytes: int = 0) -> None:
        """Queues a put. Puts are committed in order, several together, at the latest with ``flush``."""
        self._waiting.append(put)
        self._waiting_bytes += size_bytes
        if len(self._waiting) >= PUTS_MAX or self._waiting_bytes >= PUTS_BYTES:
            self.flush()

    def flush(self) -> None:
        """Commits all queued puts."""
        puts, size_bytes = self._waiting, self._waiting_bytes
        self._waiting, self._waiting_bytes = [], 0
        if puts:
            self._commit(puts, size_bytes)

    def put(self, put: Put, size_bytes: int = 0) -> None:
        """Queues a put, and commits all queued puts."""
        self.later(put, size_bytes)
        self.flush()

    def _commit(self, puts: Sequence[Put], size_bytes: int) -> None:
        draft = self.draft
        before = draft.head, dict(draft.branches), dict(draft.tags), draft.snapshots, dict(draft.signals)
        sums = dict(draft.row_sums)

        def run(txn: lmdb.Transaction, batch: Batch) -> None:
            # The writer runs this again after a full disk, so every run begins with the same draft.
            draft.head, draft.snapshots = before[0], before[3]
            draft.branches, draft.tags, draft.signals = dict(before[1]), dict(before[2]), dict(before[4])
            draft.row_sums = dict(sums)
            for each in puts:
                each(txn)
            self._reserved.take(draft.head.stored_bytes, batch.drafts)

        self._submit(run, size_bytes)

    def entry(self, kind: Kind, content: EntryContent, time_us: int = 0) -> Put:
        """Returns the put of an entry without rows of its own."""

        def put(txn: lmdb.Transaction) -> None:
            self.append(txn, kind, content, time_us)

        return put

    def append(self, txn: lmdb.Transaction, kind: Kind, content: EntryContent, time_us: int) -> EntryHeader:
        """Appends an entry inside a put. The draft gets the new head."""
        request_hash = EntryMetadata.FromString(content.metadata).request_hash
        entry = append(
            self._context, txn, self.draft, kind, content, request_hash=request_hash, time_us=time_us, is_hidden=True
        )
        self.draft.head = entry.head
        return entry.header

    def blob(self, record: BlobRecord, content: EntryContent, time_us: int = 0) -> Put:
        """Returns the put of a blob whose file is durable."""

        def put(txn: lmdb.Transaction) -> None:
            header = self.append(txn, BLOB, content, time_us)
            self.draft.head.stored_bytes += record.stored_bytes
            now = self._context.clock.now_us()
            row = BlobRow(
                record=record, sequence=header.sequence, write_time_us=now, write_sequence=header.sequence
            )  # fmt: skip
            put_blob(txn, self.draft.identity, row)

        return put

    def objects(self, content: EntryContent, stored_bytes: int, *, time_us: int = 0) -> tuple[Put, int]:
        """Returns the put of an entry that lists objects of trees, with their rows, and its size in bytes.

        Their pack is there already. ``stored_bytes``: what they take at rest. ``time_us``: 0 = that of the entry before
        it.
        """
        identity, metadata = self.draft.identity, EntryMetadata.FromString(content.metadata)
        keyed = keys_of(identity, open_batch(identity, metadata, content.edits).placed)

        def put(txn: lmdb.Transaction) -> None:
            sequence = self.append(txn, OBJECTS, content, time_us or self.draft.head.update_time_us).sequence
            put_rows(txn, self.draft.identity, sequence, keyed)
            self.draft.head.object_bytes += stored_bytes

        return put, content.size_bytes

    def effect(self, record: EffectRecord, value: bytes, field: str = "effect") -> tuple[Put, int]:
        """Returns the put of an effect, and its size in bytes. The put raises InvalidField, which names ``field``, if
        the thread has the effect already."""
        record.previous_sequence = 0
        content = draft_content(EntryMetadata(effect=record), value)

        def put(txn: lmdb.Transaction) -> None:
            row_key = effect_key(self.draft.identity, record.anchor, record.key)
            if txn.get(row_key) is not None:
                raise InvalidField(field, "is there twice")
            header = self.append(txn, EFFECT, content, self.draft.head.update_time_us)
            row = EffectRow(record=record, sequence=header.sequence)
            put_effect(txn, self.draft.identity, self.draft.head, row_key, None, row)

        return put, content.size_bytes

    def records(self, content: EntryContent, batch: RecordBatch, field: str = "record") -> tuple[Put, int]:
        """Returns the put of records that share an entry, and its size in bytes.

        The put raises InvalidField, which names ``field``, if the thread has one of them already.
        """

        def put(txn: lmdb.Transaction) -> None:
            identity, before = self.draft.identity, self.draft.head.stored_bytes
            sequence = self.append(txn, RECORDS, content, self.draft.head.update_time_us).sequence
            head = self.draft.head
            stored_bytes = head.stored_bytes - before
            head.record_entry_bytes += stored_bytes
            shares = share_out(stored_bytes, [change.ByteSize() for change in batch.changes])
            for change, share in zip(batch.changes, shares, strict=True):
                row_key = record_key(identity, change.facts.key)
                if txn.get(row_key) is not None:
                    raise InvalidField(field, f"{change.facts.key!r} is there twice")
                row = RecordRow(facts=change.facts, sequence=sequence, stored_bytes=share)
                put_record(txn, identity, head, row_key, None, row)

        return put, content.size_bytes

    def carried(self, kind: Kind, carried: Carried) -> tuple[Put, int]:
        """Returns the put of an entry that a kind carries over, and its size in bytes."""
        content = draft_content(carried.metadata, carried.content)

        def put(txn: lmdb.Transaction) -> None:
            header = self.append(txn, kind, content, self.draft.head.update_time_us)
            kind.land(txn, self.draft, header, carried)

        return put, content.size_bytes

    def version(self, made: HiddenVersion) -> Put:
        """Returns the put of a version, with its index rows."""
        return partial(self._put_version, made)

    def _put_version(self, made: HiddenVersion, txn: lmdb.Transaction) -> None:
        draft, body, version = self.draft, made.body, made.version
        identity, keys = draft.identity, draft.identity.keys
        is_first = draft.head.last_version == 0
        request_hash = EntryMetadata.FromString(made.content.metadata).request_hash
        entry = append(
            self._context, txn, draft, VERSION, made.content, version=version,
            parent_version=made.parent, request_hash=request_hash, time_us=made.time_us, is_hidden=True,
            whole=made.whole,
        )  # fmt: skip
        header, head = entry.header, entry.head
        draft.head = head
        offset = header.sequence - version
        if is_first or offset != head.version_offset:
            txn.put(keys.version_offset(version), layout.i64(offset))
        head.version_offset, head.last_version = offset, version
        head.retained_versions += 1
        head.save_time_us = header.create_time_us
        name = body.branch or MAIN
        if body.checkpoint_id:
            id_hash = identity.hash_id(b"checkpoint", name, body.checkpoint_id)
            txn.put(keys.checkpoint_id(id_hash), layout.u64(header.sequence))
        for key in label_keys(identity, header, body.labels):
            txn.put(key, layout.PRESENT)
        draft.branches[name] = self._moved(txn, made, name, header)
        if name == MAIN:
            describe_main(head, body, header)
        made.digest = bytes(header.digest)

    def _moved(self, txn: lmdb.Transaction, made: HiddenVersion, name: str, header: EntryHeader) -> BranchHead:
        """Returns the branch after a version. If the version has a snapshot, its parent may be missing here."""
        draft = self.draft
        old = draft.branch(name)
        if made.snapshot is None:
            return move_branch(txn, draft, old, name, header, made.body)
        branch = BranchHead(name=name, base_version=made.parent, first_version=made.version)
        if old is not None:
            branch.CopyFrom(old)
            if old.version != made.parent:
                branch.moved_version = made.version
        stored = put_snapshot(txn, draft, made.version, header.digest, made.snapshot)
        branch.version, branch.digest, branch.save_time_us = made.version, header.digest, header.create_time_us
        branch.schema_version = made.body.schema_version
        branch.snapshot_version, branch.snapshot_stored_bytes, branch.weight = made.version, stored, 0
        draft.head.stored_bytes += stored
        draft.snapshots |= {made.version}
        return branch

    def tag(self, name: str, version: int) -> Put:
        """Returns the put of a tag. Its row is written with the name of the thread."""
        content = draft_content(EntryMetadata(tag=Tag(name=name, version=version)))

        def put(txn: lmdb.Transaction) -> None:
            self.append(txn, TAG_SET, content, self.draft.head.update_time_us)
            self.draft.tags[name] = version

        return put

    def place_branches(self, originals: Mapping[str, Branch]) -> None:
        """Sets the branches as in the original: heads that went back, deletions, bases and last moves.

        The versions that show them may be pruned. Raises VersionPruned or InvalidField if a head is not here.
        """
        self.flush()
        moves: dict[str, Pointed | None] = {}
        with self._context.engine.read() as txn:
            for name, branch in self.draft.all_branches().items():
                original = originals.get(name)
                if original is None:
                    moves[name] = None
                elif original.version != branch.version:
                    moves[name] = point_branch(txn, self.draft, branch, original.version)
                    if moves[name] is None:
                        raise InvalidField("parts.end.branches", f"{original.version} is no version of branch {name!r}")
        if moves:
            content = draft_content(EntryMetadata(heads=list_moves(self.draft, moves)))
            self.put(partial(self._put_moves, moves, content))
        head = self.draft.head = self.draft.next_head()
        for name, branch in self.draft.all_branches().items():
            original, placed = originals[name], BranchHead()
            if original.first_version > branch.first_version:  # it follows a branch of its name that was deleted
                head.deleted_version = max(head.deleted_version, original.first_version - 1)
            placed.CopyFrom(branch)
            placed.base_version, placed.moved_version = original.base_version, original.moved_version
            placed.first_version, placed.newest_version = original.first_version, original.newest_version
            self.draft.branches[name] = placed

    def _put_moves(self, moves: Moves, content: EntryContent, txn: lmdb.Transaction) -> None:
        draft = self.draft
        self.append(txn, HEADS, content, draft.head.update_time_us)
        if None in moves.values():
            draft.head.deleted_version = draft.head.last_version
        for name, to in moves.items():
            draft.branches[name] = to.branch if to is not None else None
            if to is not None and name == MAIN:
                describe_main(draft.head, to.body, to.header)

    # -- the end --------------------------------------------------------------------------------------------------

    def reveal(
        self,
        settle: Callable[[ThreadHead], None],
        also: Callable[[lmdb.Transaction, Batch], None] = lambda _, __: None,
    ) -> ThreadMessage:
        """Writes name, head and index rows, so that the thread is visible. Raises ThreadExists if the name is taken,
        and NotOwner if another sidecar has claimed it meanwhile.

        ``settle`` completes the head. ``also`` writes other rows in the same transaction.
        """

        def run(txn: lmdb.Transaction, batch: Batch) -> ThreadMessage:
            shown = self._reveal(txn, batch, settle)
            also(txn, batch)
            self._reserved.end()  # the draft of the thread counts from here
            return shown

        self.flush()
        hooks, identity = self._context.archive, self.draft.identity
        if hooks is not None:
            hooks.own((identity.namespace, identity.name), False)
        try:
            answer: ThreadMessage = self._submit(run)
        except OutcomeUnknown:
            self._reserved.end()
            self.is_over = True  # the next start finds out whether the thread has a name
            raise
        self.is_over = True
        return answer

    def _reveal(self, txn: lmdb.Transaction, batch: Batch, settle: Callable[[ThreadHead], None]) -> ThreadMessage:
        context, copy = self._context, self.draft
        identity, head, keystore = copy.identity, copy.next_head(), context.keystore
        keys, number = identity.keys, identity.number
        if self._threads.draft(txn, batch, identity.namespace, identity.name) is not None:
            raise ThreadExists(f"a thread {identity.name!r} exists already", thread=identity.name)
        context.usage.check_thread(identity.namespace, batch.drafts)
        self._reserved.take(head.stored_bytes, batch.drafts)
        hooks = context.archive
        claim = hooks.claims.get((identity.namespace, identity.name)) if hooks is not None else None
        if hooks is not None and (claim is None or claim.uid != identity.uid):
            raise NotOwner(f"another sidecar has claimed thread {identity.name!r} meanwhile", thread=identity.name)
        if claim is not None:
            copy.archive = claim.row  # it may have been claimed again
        if claim is not None and keystore.thread_key(identity.uid, identity.namespace_keys) is None:
            # A save under the same claim failed, and freed the key.
            keystore.add_thread(identity.uid, identity.namespace_keys, claim.data_key, held=claim.held)
            batch.before_commit.append(keystore.sync)
        settle(head)
        sums: dict[bytes, int] = {}
        for branch in copy.all_branches().values():
            sums.update([write_branch(txn, copy, head, branch)])
        for name, version in copy.all_tags().items():
            row = Tag(name=name, version=version)
            sums.update([write_row(txn, copy, head, keys.tag(identity.hash_id(b"tag", name)), row)])
        if not copy.pruned.is_empty:
            sums.update([write_row(txn, copy, head, keys.pruned(), copy.pruned.to_message())])
        txn.put(layout.NEXT_THREAD_KEY, layout.u64(max(context.next_thread, number + 1)))
        name_hash = identity.namespace_keys.names.thread(identity.name)
        txn.put(layout.name_key(name_hash), layout.pack_name(number, identity.uid))
        index_options(txn, identity, ThreadOptions(), head.options)
        index_expiry(txn, number, ThreadHead(), head)
        index_records_expiry(txn, number, 0, head.record_expire_second)
        index_time(txn, identity, None, head)
        put_whole_feed(txn, number, head.tip_sequence)
        write_head(txn, identity, head)
        self._threads.settle_claim(txn, batch, copy)
        copy.head = head
        copy.row_sums.update(sums)
        self._threads.keep_draft(batch, copy)
        batch.after_commit.append(lambda: keystore.mark_leaving(identity.uid, is_leaving=False))
        if hooks is not None or context.had_archive:
            txn.put(layout.outbox_key(number), layout.PRESENT)
        if hooks is not None:
            batch.after_commit.append(lambda: hooks.on_entry(copy.thread, head.stored_bytes))
        return view_head(identity, head)

    def discard(self) -> None:
        """Removes the hidden thread. Does nothing after ``reveal``."""
        if self.is_over:
            return
        self.is_over = True
        try:
            self._deleter.discard(self.draft.identity.number, self.draft.identity.uid)
        finally:
            self._reserved.end()

    def _submit(self, run: Callable[[lmdb.Transaction, Batch], Any], size_bytes: int = 0) -> Any:
        write = Write(run=run, size_bytes=size_bytes + WRITE_SLACK_BYTES, background=True)
        return self._context.writer.submit(write, wait=True).wait()
