"""Saving a version.

``prepare`` works outside the writer: it has the version made (make.py). ``SaveWrite.run`` works inside the writer: it
checks the save and writes the rows. A prepared version is valid for one base version. If the head has moved since, an
unconditional save is prepared again inside the writer, and a conditional save is refused.

Order of checks: uid → request id → checkpoint id → ownership, lease, guard → expectation → schema → parent → blobs →
tree → edits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import lmdb

from stateward.storage.v1.head_pb2 import BranchHead
from stateward.storage.v1.journal_pb2 import EntryHeader
from stateward.v1.checkpoint_service_pb2 import ON_MISMATCH_FORK, SaveRequest, SaveResponse
from stateward_sidecar.codec.compress import Dictionary
from stateward_sidecar.codec.edits import Named
from stateward_sidecar.codec.entry import Entry
from stateward_sidecar.codec.state import StateTree
from stateward_sidecar.errors import (
    CheckpointIdReused,
    LeaseHeld,
    StatewardError,
)
from stateward_sidecar.storage import layout
from stateward_sidecar.storage.queue import Batch
from stateward_sidecar.store.blobs.blobrows import check_named
from stateward_sidecar.store.items.effects import Effects, creates
from stateward_sidecar.store.journal import replay
from stateward_sidecar.store.journal.admitting import check_guard, check_lease, find_draft
from stateward_sidecar.store.journal.finding import find_named, names_head, resolve
from stateward_sidecar.store.journal.journal import (
    all_or_none,
    append,
    commit_entry,
    index_expiry,
    index_options,
    label_keys,
)
from stateward_sidecar.store.journal.opening import check_held
from stateward_sidecar.store.journal.requests import find_answered, fingerprint
from stateward_sidecar.store.journal.telling import has_early
from stateward_sidecar.store.kinds.signal import acknowledged, drop_signals, used_signals
from stateward_sidecar.store.kinds.version import VERSION
from stateward_sidecar.store.thread.cache import Facts
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.thread import MAIN, Identity, Thread, ThreadDraft, write_branch
from stateward_sidecar.store.thread.threads import Threads, not_found
from stateward_sidecar.store.trees.naming import NamedTree
from stateward_sidecar.store.versions.branches import (
    check_expectation,
    check_fork,
    check_room,
    check_schema,
    describe_main,
    does_fork,
    fork_branch,
    fork_prefix,
    is_expected,
    move_branch,
    replay_response,
    response,
)
from stateward_sidecar.store.versions.make import Made, Saved, VersionMaker


class SaveWrite:
    """One save on its way through the writer."""

    def __init__(
        self,
        context: Context,
        threads: Threads,
        request: SaveRequest,
        named: Sequence[Named] = (),
        *,
        is_large: bool = False,
        ahead: int = 0,
    ) -> None:
        """``named``: the blobs that the request names, as the check of the request found them. ``is_large``: encode in
        pieces, which needs less memory and more time. ``ahead``: how many saves of the same call make versions of the
        same thread before this one."""
        self._context = context
        self._ahead = ahead
        self._named = named
        self._threads = threads
        self.request = request
        self.branch = request.branch or MAIN
        self.namespace = request.namespace
        self._maker = VersionMaker(context, request, self.branch, is_large=is_large)
        self._made: Made | None = None
        self._hot: _Hot | None = None
        self._tree = NamedTree(context, request) if request.HasField("workspace") else None
        # Set by the caller: why the guarding thread cannot be asked. It counts unless the save is a retry.
        self.refusal: StatewardError | None = None
        # Set by ``run``; the caller considers a snapshot of this thread, which has this state.
        self.draft: ThreadDraft | None = None
        self.saved: Saved | None = None

    @property
    def size_bytes(self) -> int:
        """Estimated size at rest in bytes, with the pages that the write touches."""
        made, effects = self._made, self.request.effects
        size_bytes = made.content.size_bytes if made and not effects else self.request.ByteSize()
        return size_bytes + 16384 * (1 + len(effects))

    def prepare(self, txn: lmdb.Transaction, thread: Thread | None) -> None:
        """Makes the version from the committed state. Raises the error of the save if the error is certain.

        An error is not certain if the save has a request id or a checkpoint id, because the save may be a retry. Then
        the writer decides. The writer also decides if the head is not the expected version at present.
        """
        request = self.request
        self._maker.fingerprint = fingerprint(request, is_large=self._maker.is_large)
        if self._tree is not None and not self._ahead:  # else a save before this one may bring its objects
            try:
                self._tree.prepare(txn, thread)
            except StatewardError:
                if not request.options.request_id and not request.checkpoint_id:
                    raise
                return
        head = thread.branches.get(self.branch) if thread is not None else None
        base = head.version if head else 0
        if does_fork(request, thread, head):
            base = request.options.expected_version
            self._maker.branch = fork_branch(request, self._next_version(thread))
        elif not is_expected(request, head):
            return
        if self._ahead and (thread is None or request.HasField("parent")):
            return  # a save before this one may make the thread or the parent
        try:
            if request.HasField("parent") and thread is not None:
                base = resolve(txn, thread, request.parent, self.branch, "parent")
            self._made = self._maker.make(txn, thread, base, self._next_version(thread))
        except StatewardError:
            if not request.options.request_id and not request.checkpoint_id:
                raise

    def prepare_late(self) -> None:
        """Does the same on the event loop, from memory alone. The writer makes the version if that is not possible."""
        thread = self._threads.cached(self.namespace, self.request.thread)
        if thread is None or not self.prepare_hot(thread):
            self._maker.fingerprint = fingerprint(self.request)

    def is_hot(self, thread: Thread) -> bool:
        """Whether everything that the version is made from is in memory at present. ``prepare_late`` uses what was
        found, unless the head has moved."""
        self._hot = hot = self._find_hot(thread)
        return hot is not None and (hot.dictionary is not None or not hot.branch.snapshot_version)

    def _find_hot(self, thread: Thread) -> _Hot | None:
        """Returns the branch's head with its state and facts, if the version is made from it and they are in memory."""
        request, cache, number = self.request, self._context.cache, thread.number
        branch = thread.branches.get(self.branch)
        if branch is None:
            return None
        if request.HasField("parent") and not names_head(cache, thread, request.parent, branch):
            return None
        if request.checkpoint_id and thread.floor_sequence:
            return None  # only the archive can tell whether the id is new
        if (found := cache.head(number, branch.version, branch.digest)) is None:
            return None
        if self._maker.may_read_segments(found[0]):
            return None
        if self._tree is not None and not self._tree.is_known(thread):
            return None
        snapshot = branch.snapshot_version
        return _Hot(thread, branch, *found, cache.dictionary(number, snapshot) if snapshot else None)

    def prepare_hot(self, thread: Thread) -> bool:
        """Does the same if everything it needs is in memory. Returns False, and does nothing, if not."""
        hot = self._hot
        if hot is None or hot.thread is not thread or hot.branch is not thread.branches.get(self.branch):
            hot = self._find_hot(thread)
        if hot is None:
            return False
        request, branch = self.request, hot.branch
        lacks_dictionary = branch.snapshot_version and hot.dictionary is None
        if lacks_dictionary and self._maker.wants_dictionary(thread, branch, hot.tree):
            return False
        is_mismatch = not is_expected(request, branch)
        if is_mismatch and request.on_mismatch == ON_MISMATCH_FORK:
            return False
        self._maker.fingerprint = fingerprint(request)
        if not is_mismatch:
            try:
                version = self._next_version(thread)
                changed = self._maker.change_of(thread, branch.version, hot.tree, version)
                body = hot.facts.body
                self._made = self._maker.pack(thread, branch.version, version, changed, hot.dictionary, body)
            except StatewardError:
                if not request.options.request_id and not request.checkpoint_id:
                    raise
        return True

    def _next_version(self, thread: Thread | None) -> int:
        return (thread.head.last_version if thread is not None else 0) + self._ahead + 1

    def is_retry(self, txn: lmdb.Transaction, batch: Batch) -> bool:
        """Returns whether this save was written before. Raises UidMismatch, RequestIdReused or CheckpointIdReused as
        ``run`` does, HistoryElsewhere if only the archive can tell, and Corrupt."""
        draft = find_draft(self._threads, txn, batch, self.request)
        if draft is None:
            return False
        return self._find_answered(txn, draft) is not None

    def _find_answered(self, txn: lmdb.Transaction, draft: ThreadDraft) -> Entry | None:
        found, request_id = None, self.request.options.request_id
        if request_id:
            found = find_answered(txn, draft, request_id, self._maker.fingerprint)
        if found is None and self.request.checkpoint_id:
            found = self._find_checkpoint_id(txn, draft)
        return found

    def run(self, txn: lmdb.Transaction, batch: Batch) -> SaveResponse:
        """Runs the save in the writer. The rules for writes are in storage/writer.py."""
        request, context = self.request, self._context
        draft = find_draft(self._threads, txn, batch, request)
        if draft is not None:
            found = self._find_answered(txn, draft)
            if found is not None:
                body = replay.open_metadata(draft.identity, found).checkpoint
                return replay_response(draft, found, body, request)
            check_held(draft, request.options.create)
            draft.check_writable()
            if request.options.lease_token or draft.head.HasField("lease"):
                check_lease(context, draft, request.options.lease_token)
        elif request.options.lease_token:
            raise LeaseHeld(
                f"the lease token is not valid: there is no thread {request.thread!r}", thread=request.thread,
                token=0, remaining_s=0,
            )  # fmt: skip
        if self.refusal is not None:
            raise self.refusal
        if request.HasField("guard"):
            guarding = self._threads.draft(txn, batch, self.namespace, request.guard.thread)
            check_guard(context, guarding, self.namespace, request.guard)
        version = (draft.head.last_version if draft else 0) + 1
        branch, parent = self._find_base(txn, draft, version)
        if self._named:
            check_named(txn, draft.identity if draft is not None else None, self._named)
        if self._tree is not None:
            self._tree.settle(txn, draft)
        made = self._made
        line = draft.identity.number if draft is not None else 0
        is_right = made is not None and (made.line, made.base, made.version) == (line, parent, version)
        if made is None or not is_right or (made.body.branch or MAIN) != self.branch or not made.fits(draft):
            self._maker.branch = self.branch
            made = self._maker.make(txn, draft, parent, version)
        brings = self._tree is not None and self._tree.has_objects
        write = self._write_all if request.effects or brings else self._put_version
        if draft is not None:
            return write(txn, batch, draft, branch, made, is_new=False)
        held = request.options.create.held_key
        draft = self._threads.create(txn, batch, self.namespace, request.thread, is_held=held)
        try:
            return write(txn, batch, draft, branch, made, is_new=True)
        except BaseException:
            context.keystore.give_up(draft.identity.uid)
            raise

    def _find_base(
        self, txn: lmdb.Transaction, draft: ThreadDraft | None, version: int
    ) -> tuple[BranchHead | None, int]:
        """Returns the head of the branch that gets the version, and the parent. Sets ``branch``: it is another one than
        the request's if the save forks. Raises as ``check_expectation``, ``check_schema`` and ``check_fork`` do."""
        request = self.request
        self.branch = request.branch or MAIN
        branch = draft.branch(self.branch) if draft is not None else None
        if draft is not None and request.on_mismatch and does_fork(request, draft, branch):
            self.branch, branch, parent = fork_branch(request, version), None, request.options.expected_version
            check_fork(txn, request, self.branch, draft)
            self._check_free(txn, draft)
        else:
            check_expectation(request, self.branch, draft, branch)
            if request.schema_version:
                check_schema(request, self.branch, branch)
            parent = branch.version if branch else 0
        if request.HasField("parent"):
            if draft is None and (request.parent.WhichOneof("ref") != "version" or request.parent.version):
                raise not_found(self.namespace, request.thread)  # a new thread would lose the state of the parent
            parent = 0 if draft is None else self._find_parent(txn, draft)
        return branch, parent

    def _find_parent(self, txn: lmdb.Transaction, draft: ThreadDraft) -> int:
        """Returns the version that the reference to the parent names. Raises as ``resolve`` does."""
        made, ref = self._made, self.request.parent
        is_known = made is not None and made.line == draft.identity.number and ref.WhichOneof("ref") == "checkpoint_id"
        if made is None or not is_known or made.base in draft.pruned:
            return resolve(txn, draft, ref, self.request.branch or MAIN, "parent")
        # ``prepare`` looked the id up, and an id gets another version only after its version was pruned.
        replay.check_version(draft, made.base)
        return made.base

    def _find_checkpoint_id(self, txn: lmdb.Transaction, draft: ThreadDraft) -> Entry | None:
        """Returns the entry that this save made before, found by its checkpoint id; None if it made none.

        Raises CheckpointIdReused if the id names another version of the branch.
        """
        entry = find_named(txn, draft, self.request.checkpoint_id, self.request.branch or MAIN)
        if entry is not None and self._is_answer(draft, entry):
            return entry
        forked = self._find_forked(txn, draft)
        if forked is None and entry is not None:
            raise self._reused(entry)
        return forked

    def _find_forked(self, txn: lmdb.Transaction, draft: ThreadDraft) -> Entry | None:
        """Returns the entry that this save made on a branch of its own; None if it made none."""
        request = self.request
        if request.on_mismatch != ON_MISMATCH_FORK:
            return None
        names = [request.fork_branch]  # which may have been deleted since
        if not request.fork_branch:
            names = [name for name in draft.all_branches() if name.startswith(fork_prefix(request))]
        for name in names:
            entry = find_named(txn, draft, request.checkpoint_id, name)
            if entry is not None and self._is_answer(draft, entry):
                return entry
        return None

    def _check_free(self, txn: lmdb.Transaction, draft: ThreadDraft) -> None:
        """Raises CheckpointIdReused if a branch that was deleted has the id of the save, and had the name of its fork.

        Without this check the index row of the older version would lead to the new one.
        """
        request = self.request
        if request.checkpoint_id:
            entry = find_named(txn, draft, request.checkpoint_id, self.branch)
            if entry is not None:
                raise self._reused(entry)

    def _reused(self, entry: Entry) -> CheckpointIdReused:
        name, version = self.request.checkpoint_id, entry.header.version
        return CheckpointIdReused(
            f"checkpoint id {name!r} names version {version}, which has other content; use another id",
            checkpoint_id=name, version=version,
        )  # fmt: skip

    def _is_answer(self, draft: ThreadDraft, entry: Entry) -> bool:
        return replay.open_metadata(draft.identity, entry).fingerprint == self._maker.fingerprint

    def _write_all(
        self,
        txn: lmdb.Transaction,
        batch: Batch,
        draft: ThreadDraft,
        branch: BranchHead | None,
        made: Made,
        *,
        is_new: bool,
    ) -> SaveResponse:
        """Writes the objects and effects of the save and its version: all of them or none."""
        with all_or_none(batch, draft):
            if self._tree is not None and self._tree.has_objects:
                self._tree.put(self._threads, txn, batch, draft, self.request.options.create)
            asked = creates(self.request, is_new=is_new)
            Effects(self._context, self._threads).put_all(txn, batch, draft, self.request.effects, asked)
            return self._put_version(txn, batch, draft, branch, made, is_new=is_new)

    def _put_version(
        self,
        txn: lmdb.Transaction,
        batch: Batch,
        draft: ThreadDraft,
        branch: BranchHead | None,
        made: Made,
        *,
        is_new: bool,
    ) -> SaveResponse:
        request, identity = self.request, draft.identity
        keys, old_head = identity.keys, draft.head
        acked = acknowledged(draft, request.ack_signals) if request.ack_signals else []
        used = used_signals(draft) if draft.signals or draft.thread.signals else []
        if used and self.branch == MAIN:
            acked = sorted({*acked, *used})
        entry = append(
            self._context, txn, draft, VERSION, made.content,
            version=made.version, parent_version=made.base, request_hash=self._maker.request_hash,
            acked=acked,
        )  # fmt: skip
        header, head = entry.header, entry.head
        if is_new or (made.version == 1 and request.options.HasField("create")):
            index_options(txn, identity, head.options, request.options.create)
            head.options.CopyFrom(request.options.create)
        offset = header.sequence - header.version
        # A restored thread may have no version left, and so no row that this version could share.
        if not head.retained_versions or offset != head.version_offset:
            txn.put(keys.version_offset(made.version), layout.i64(offset))
        head.version_offset = offset
        head.last_version = made.version
        head.retained_versions += 1
        head.save_time_us = header.create_time_us
        if request.checkpoint_id or request.labels:
            self._index_names(txn, identity, header)
        if branch is None:
            check_room(draft, self.branch)
        moved = move_branch(txn, draft, branch, self.branch, entry.header, made.body)
        sums = dict([write_branch(txn, draft, head, moved)])
        if acked:
            sums.update(drop_signals(txn, draft, head, acked))
            head.pending_signals -= sum(sequence not in used for sequence in acked)
        if self.branch == MAIN:
            describe_main(head, made.body, header)
            if head.HasField("early") and has_early(head, request):
                head.ClearField("early")
        index_expiry(txn, identity.number, old_head, head)
        commit_entry(self._context, txn, batch, draft, entry, sums, is_bounded=True)
        draft.branches[self.branch] = moved
        draft.signals.update(dict.fromkeys(acked))
        draft.states[made.version], draft.bodies[made.version] = made.tree, made.body
        self._threads.keep_draft(batch, draft)
        facts = Facts(header, made.body, entry.stored_bytes)
        old = (branch.version, branch.digest) if branch is not None else (0, b"")
        batch.after_commit.append(partial(self._context.cache.put_head, identity.number, made.tree, facts, old))
        if self._tree is not None:
            self._tree.note(batch, identity.number)
        draft.thread.saves += 1
        self.draft, self.saved = draft, Saved(made.version, made.tree)
        return response(draft, header, entry.stored_bytes, made.body, request, replayed=False)

    def _index_names(self, txn: lmdb.Transaction, identity: Identity, header: EntryHeader) -> None:
        """Puts the rows that lead from the checkpoint id and the labels to the version."""
        if self.request.checkpoint_id:
            id_hash = identity.hash_id(b"checkpoint", self.branch, self.request.checkpoint_id)
            txn.put(identity.keys.checkpoint_id(id_hash), layout.u64(header.sequence))
        for key in label_keys(identity, header, self.request.labels):
            txn.put(key, layout.PRESENT)


class _Hot(NamedTuple):
    """What a version is made from, as it is in memory."""

    thread: Thread
    branch: BranchHead
    tree: StateTree
    facts: Facts
    dictionary: Dictionary | None
