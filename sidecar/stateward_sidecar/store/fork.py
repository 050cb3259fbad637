"""Copies of threads, each under a key of its own, so that deleting the source never harms them.

One version: its state becomes version 1 of the copy, stored as a snapshot (log indexes stay), with an entry that has
no edits. Whole: every retained version is opened and sealed anew with its number, branch, checkpoint id and metadata.
Blobs come before the first version that names them.

A copy is made in small background writes while the new thread has neither name nor head, so nobody sees it; the last
write gives it both. What a crash leaves behind is removed at the next start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import lmdb

from stateward.storage.v1.head_pb2 import BlobRow, BranchHead, ThreadHead
from stateward.storage.v1.journal_pb2 import (
    ENTRY_KIND_BLOB,
    ENTRY_KIND_CHECKPOINT,
    ENTRY_KIND_TAG_SET,
    BlobRecord,
    CheckpointBody,
    EntryHeader,
    EntryMetadata,
    ThreadCreation,
)
from stateward.v1.thread_pb2 import ACCESS_ORPHAN, ACCESS_REMOTE, ForkSource, Tag, ThreadOptions
from stateward.v1.thread_pb2 import Thread as ThreadMessage
from stateward.v1.thread_service_pb2 import ForkThreadRequest
from stateward_sidecar.codec.compress import Dictionary
from stateward_sidecar.codec.entry import Draft as Content
from stateward_sidecar.codec.entry import draft as draft_content
from stateward_sidecar.codec.state import StateTree, to_snapshot
from stateward_sidecar.errors import Corrupt, KeyUnavailable, ThreadExists, VersionNotFound
from stateward_sidecar.storage import layout
from stateward_sidecar.storage.writer import Batch, Write
from stateward_sidecar.store import replay
from stateward_sidecar.store.alone import Alone
from stateward_sidecar.store.blobcopy import copy_blob, require_blobs
from stateward_sidecar.store.blobrows import blobs_in_edits, blobs_in_state, put_blob
from stateward_sidecar.store.context import Context
from stateward_sidecar.store.delete import Deleter
from stateward_sidecar.store.journal import append, index_expiry, index_time, label_keys, put_feed
from stateward_sidecar.store.ranges import Ranges
from stateward_sidecar.store.refs import resolve_or_head
from stateward_sidecar.store.requests import find_request, hash_request
from stateward_sidecar.store.settings import fingerprint
from stateward_sidecar.store.snapshots import put_snapshot
from stateward_sidecar.store.thread import MAIN, Draft, Thread, write_head, write_row
from stateward_sidecar.store.threads import Threads, not_found
from stateward_sidecar.store.views import view_head

# Entries name recent snapshots; those that name an older one are compressed without.
DICTIONARIES_MAX = 4


class Forker:
    """Makes copies. Runs on a worker thread, never on the event loop or the writer."""

    def __init__(self, context: Context, threads: Threads, deleter: Deleter) -> None:
        self._context = context
        self._threads = threads
        self._deleter = deleter
        self._alone = Alone()

    def fork(self, request: ForkThreadRequest) -> ThreadMessage:
        """The verb. Raises ThreadNotFound, VersionNotFound, ThreadExists, DiskFull."""
        # With an archive all copies of a name have one uid, and one that fails gives its key up.
        with self._alone.of((request.namespace, request.new_thread)):
            return self._fork(request)

    def _fork(self, request: ForkThreadRequest) -> ThreadMessage:
        with self._context.engine.read() as txn:
            known = self._check_name(txn, request)
            if known is not None:
                return known
            source = self._threads.get(txn, request.namespace, request.thread)
            version = source.head.last_version
            if not version:
                raise VersionNotFound(f"thread {source.name!r} has no version to copy", thread=source.name)
            if not request.whole:
                ref = request.version if request.HasField("version") else None
                version = resolve_or_head(txn, source, ref, request.branch or MAIN, "version")
        copy: Draft = self._submit(lambda _, batch: self._begin(batch, request))
        try:
            if request.whole:
                self._copy_all(request, source, copy, version)
            else:
                self._copy_one(request, source, copy, version)
            source_ref = ForkSource(thread=source.name, uid=source.identity.uid.hex(), version=version)
            answer: ThreadMessage = self._submit(partial(self._finish, request, source, copy, source_ref))
            return answer
        except ThreadExists:
            self._deleter.discard(copy.identity.number, copy.identity.uid)
            with self._context.engine.read() as txn:
                known = self._check_name(txn, request)  # the same request, made meanwhile by a retry
            if known is None:
                raise
            return known
        except (Corrupt, KeyUnavailable):
            self._deleter.discard(copy.identity.number, copy.identity.uid)
            if source.is_deleted:  # while it was being read
                raise not_found(request.namespace, request.thread) from None
            raise
        except BaseException:
            self._deleter.discard(copy.identity.number, copy.identity.uid)
            raise

    def _check_name(self, txn: lmdb.Transaction, request: ForkThreadRequest) -> ThreadMessage | None:
        """The copy, if this request made it before. Raises ThreadExists where the name is taken."""
        found = self._threads.find(txn, request.namespace, request.new_thread)
        if found is None:
            return None
        mark = fingerprint(request)
        if request.request_id and find_request(txn, found, request.request_id, mark) is not None:
            return view_head(found.identity, found.head)
        raise ThreadExists(f"a thread {request.new_thread!r} exists already", thread=request.new_thread)

    def _begin(self, batch: Batch, request: ForkThreadRequest) -> Draft:
        """Key and number for the copy."""
        return self._threads.begin(batch, request.namespace, request.new_thread)

    def _copy_one(self, request: ForkThreadRequest, source: Thread, copy: Draft, version: int) -> None:
        def read() -> tuple[CheckpointBody, StateTree]:
            with self._context.engine.read() as txn:
                entry = replay.read_version(txn, source, version)
                metadata = entry.open_metadata(source.identity.cipher, source.identity.uid)
                return metadata.checkpoint, replay.state_at(txn, source, version, self._context.cache)

        body, tree = self._context.settled(read)
        body.branch, body.checkpoint_id = "", ""
        body.sent_bytes = 0
        self._copy_blobs(request, source, copy, blobs_in_state(tree))
        content = self._content(request, source, copy, EntryMetadata(checkpoint=body))
        self._submit(lambda txn, batch: self._put(txn, batch, copy, content, body, 1, 0, 0, tree, {}), tree.size_bytes)

    def _copy_all(self, request: ForkThreadRequest, source: Thread, copy: Draft, last: int) -> None:
        context, dictionaries = self._context, dict[int, Dictionary]()
        wanted = frozenset(source.snapshots)
        bases = {name: branch.base_version for name, branch in list(source.branches.items())}
        copy.pruned = Ranges(source.pruned.pairs())
        copied: set[bytes] = set()
        require_blobs(self._context, source)
        for version in range(1, last + 1):
            if version in copy.pruned:
                continue
            header, body, edits, tree = context.settled(partial(self._read, source, version, wanted, copy.pruned))
            body.source_digest = header.digest
            dictionary = dictionaries.get(header.dictionary_version)
            named = blobs_in_edits(replay.parse_edits(edits, source.name, version))
            named |= blobs_in_state(tree) if tree is not None else set()
            self._copy_blobs(request, source, copy, named - copied, header.create_time_us)
            copied |= named
            content = self._content(request, source, copy, EntryMetadata(checkpoint=body), edits, dictionary)

            def put(
                txn: lmdb.Transaction, batch: Batch, version: int = version, parent: int = header.parent_version,
                content: Content = content, body: CheckpointBody = body, tree: StateTree | None = tree,
                time_us: int = header.create_time_us,
            ) -> bytes:  # fmt: skip
                return self._put(txn, batch, copy, content, body, version, parent, time_us, tree, bases)

            digest = self._submit(put, content.size_bytes + (tree.size_bytes if tree is not None else 0))
            if tree is not None:
                dictionaries[version] = Dictionary(version, digest, to_snapshot(tree))
                while len(dictionaries) > DICTIONARIES_MAX:
                    del dictionaries[next(iter(dictionaries))]
        for name, tagged in source.tags.items():
            if tagged > last or tagged in copy.pruned:
                continue  # set since the copy was begun, on a version that it lacks
            self._submit(partial(self._put_tag, copy, name, tagged))

    def _read(
        self, source: Thread, version: int, wanted: frozenset[int], pruned: Ranges
    ) -> tuple[EntryHeader, CheckpointBody, bytes, StateTree | None]:
        """One version; with its state where the copy gets a snapshot of it."""
        cache, identity = self._context.cache, source.identity
        with self._context.engine.read() as txn:
            entry = replay.read_version(txn, source, version)
            body = entry.open_metadata(identity.cipher, identity.uid).checkpoint
            edits = replay.read_edits(txn, identity, entry, cache)
            tree = None
            if version in wanted or entry.header.parent_version in pruned:
                tree = replay.state_at(txn, source, version, cache)
            return entry.header, body, edits, tree

    def _content(
        self,
        request: ForkThreadRequest,
        source: Thread,
        copy: Draft,
        metadata: EntryMetadata,
        edits: bytes = b"",
        dictionary: Dictionary | None = None,
    ) -> Content:
        """What an entry of the copy holds; the first one also says what the copy is."""
        if copy.head.tip_sequence == 0:
            metadata.fingerprint = fingerprint(request)
            metadata.request_hash = hash_request(request.request_id)
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
        self, request: ForkThreadRequest, source: Thread, copy: Draft, named: set[bytes], time_us: int = 0
    ) -> None:
        """Blobs that a version names, before the version itself; ``time_us``: that of the version."""
        if named:
            require_blobs(self._context, source, named)
        for digest in sorted(named):
            record = copy_blob(self._context, source, copy.identity, digest)
            content = self._content(request, source, copy, EntryMetadata(blob=record))
            self._submit(partial(self._put_blob, copy, record, content, time_us))

    def _put_blob(
        self, copy: Draft, record: BlobRecord, content: Content, time_us: int, txn: lmdb.Transaction, batch: Batch
    ) -> None:
        request_hash = EntryMetadata.FromString(content.metadata).request_hash
        entry = append(
            self._context, txn, copy, ENTRY_KIND_BLOB, content, request_hash=request_hash, time_us=time_us,
            is_hidden=True,
        )  # fmt: skip
        entry.head.stored_bytes += record.stored_bytes
        now = self._context.clock.now_us()
        put_blob(txn, copy.identity, BlobRow(record=record, sequence=entry.header.sequence, write_time_us=now))

        def keep() -> None:
            copy.head = entry.head

        batch.after_commit.append(keep)

    def _put(
        self,
        txn: lmdb.Transaction,
        batch: Batch,
        copy: Draft,
        content: Content,
        body: CheckpointBody,
        version: int,
        parent: int,
        time_us: int,
        tree: StateTree | None,
        bases: Mapping[str, int],
    ) -> bytes:
        """One version of the copy. Returns its digest."""
        identity, keys = copy.identity, copy.identity.keys
        is_first = copy.head.last_version == 0
        metadata = EntryMetadata.FromString(content.metadata)
        entry = append(
            self._context, txn, copy, ENTRY_KIND_CHECKPOINT, content, version=version, parent_version=parent,
            request_hash=metadata.request_hash, time_us=time_us, is_hidden=True,
        )  # fmt: skip
        header, head = entry.header, entry.head
        offset = header.sequence - version
        if is_first or offset != head.version_offset:
            txn.put(keys.version_offset(version), layout.i64(offset))
        head.version_offset, head.last_version = offset, version
        head.retained_versions += 1
        head.save_time_us = header.create_time_us
        branch_name = body.branch or MAIN
        if body.checkpoint_id:
            id_hash = identity.hash_id(b"checkpoint", branch_name, body.checkpoint_id)
            txn.put(keys.checkpoint_id(id_hash), layout.u64(header.sequence))
        for key in label_keys(identity, header, body.labels):
            txn.put(key, layout.PRESENT)
        branch = BranchHead(name=branch_name, base_version=bases.get(branch_name, parent))
        old = copy.branch(branch_name)
        if old is not None:
            branch.CopyFrom(old)
            if old.version != parent:
                branch.moved_version = version
        branch.schema_version = body.schema_version
        branch.version, branch.digest, branch.save_time_us = version, header.digest, header.create_time_us
        branch.weight += replay.entry_weight(header.edit_stored_bytes)
        if tree is not None:
            branch.snapshot_stored_bytes = put_snapshot(txn, copy, version, header.digest, tree)
            branch.snapshot_version, branch.weight = version, 0
            head.stored_bytes += branch.snapshot_stored_bytes
        if branch_name == MAIN:
            head.main_version, head.main_digest = version, header.digest
            head.status, head.status_detail, head.wait_id = body.status, body.status_detail, body.wait_id
            head.ClearField("question")
            if body.HasField("question"):
                head.question.CopyFrom(body.question)
            head.ClearField("step")
            if body.HasField("step"):
                head.step = body.step
            head.metrics.clear()
            head.metrics.update(body.metrics)

        def keep() -> None:  # after the commit: a full disk makes the writer run this again
            copy.branches[branch_name] = branch
            copy.head = head
            if tree is not None:
                copy.snapshots |= {version}

        batch.after_commit.append(keep)
        return bytes(header.digest)

    def _put_tag(self, copy: Draft, name: str, version: int, txn: lmdb.Transaction, batch: Batch) -> None:
        metadata = EntryMetadata(tag=Tag(name=name, version=version))
        entry = append(self._context, txn, copy, ENTRY_KIND_TAG_SET, draft_content(metadata), is_hidden=True)

        def keep() -> None:
            copy.head = entry.head
            copy.tags[name] = version

        batch.after_commit.append(keep)

    def _finish(
        self,
        request: ForkThreadRequest,
        source: Thread,
        copy: Draft,
        origin: ForkSource,
        txn: lmdb.Transaction,
        batch: Batch,
    ) -> ThreadMessage:
        """Name, head and index rows: from here on the copy is a thread."""
        if self._threads.draft(txn, batch, request.namespace, request.new_thread) is not None:
            raise ThreadExists(f"a thread {request.new_thread!r} exists already", thread=request.new_thread)
        identity, head, keystore = copy.identity, copy.next_head(), self._context.keystore
        keys, number = identity.keys, identity.number
        hooks = self._context.archive
        claim = hooks.claims.get((request.namespace, request.new_thread)) if hooks is not None else None
        if claim is not None and keystore.thread_key(identity.uid, identity.namespace_keys) is None:
            # A save under the same claim failed, and gave the key up.
            keystore.add_thread(identity.uid, identity.namespace_keys, claim.data_key)
            batch.before_commit.append(keystore.sync)
        head.options.CopyFrom(_options(request, source))
        head.forked_from.CopyFrom(origin)
        now = self._context.clock.now_us()
        head.update_time_us = max(now, head.update_time_us)
        if request.whole:
            head.save_time_us = head.update_time_us  # a TTL counts from the copy
        sums: dict[bytes, int] = {}
        for name, branch in copy.branches.items():
            sums.update([write_row(txn, copy, head, identity.branch_key(name), branch)])
        for name, version in copy.all_tags().items():
            row = Tag(name=name, version=version)
            sums.update([write_row(txn, copy, head, keys.tag(identity.hash_id(b"tag", name)), row)])
        if len(copy.pruned):
            sums.update([write_row(txn, copy, head, keys.pruned(), copy.pruned.to_message())])
        txn.put(layout.NEXT_THREAD_KEY, layout.u64(max(self._context.next_thread, number + 1)))
        name_hash = identity.namespace_keys.names.thread(identity.name)
        txn.put(layout.name_key(name_hash), layout.pack_name(number, identity.uid))
        if head.options.HasField("retention"):
            txn.put(layout.retention_key(number), layout.PRESENT)
        index_expiry(txn, number, ThreadHead(), head)
        index_time(txn, identity, None, head)
        for sequence in range(1, head.tip_sequence + 1):
            put_feed(txn, number, sequence)
        write_head(txn, identity, head)
        self._threads.settle_claim(txn, batch, copy)
        self._count_fork(txn, batch, source)
        copy.head = head
        copy.row_sums.update(sums)
        self._threads.keep_draft(batch, copy)
        batch.after_commit.append(lambda: keystore.mark_leaving(identity.uid, is_leaving=False))
        if hooks is not None or self._context.had_archive:
            txn.put(layout.outbox_key(number), layout.PRESENT)
        if hooks is not None:
            batch.after_commit.append(lambda: hooks.on_entry(copy.thread, head.stored_bytes))
        return view_head(identity, head)

    def _count_fork(self, txn: lmdb.Transaction, batch: Batch, source: Thread) -> None:
        draft = self._threads.draft(txn, batch, source.identity.namespace, source.name)
        if draft is None or draft.thread is not source or draft.thread.access in (ACCESS_REMOTE, ACCESS_ORPHAN):
            return  # deleted meanwhile, and the copy lives on; or another one's thread
        head = draft.next_head()
        head.forks += 1
        write_head(txn, draft.identity, head)
        draft.head = head
        self._threads.keep_draft(batch, draft)

    def _submit(self, run: Callable[[lmdb.Transaction, Batch], Any], size_bytes: int = 0) -> Any:
        write = Write(run=run, size_bytes=size_bytes + 16384, background=True)
        return self._context.writer.submit(write, wait=True).wait()


def _options(request: ForkThreadRequest, source: Thread) -> ThreadOptions:
    if request.HasField("create"):
        return request.create
    options = ThreadOptions()
    options.CopyFrom(source.head.options)
    options.ClearField("ttl")
    return options
