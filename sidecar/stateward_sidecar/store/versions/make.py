"""Making a version: the state that results from a save, the edits to store, and their compression.

This part of a save works outside of the writer, on the committed state. The writer makes a version anew only if its
base has changed meanwhile and the save is unconditional.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import lmdb

from stateward.storage.v1.head_pb2 import BranchHead, ThreadHead
from stateward.storage.v1.journal_pb2 import (
    CheckpointBody,
    EntryMetadata,
    ThreadCreation,
)
from stateward.v1.checkpoint_service_pb2 import SaveRequest
from stateward.v1.diff_pb2 import Diff
from stateward_sidecar.codec.compress import Dictionary
from stateward_sidecar.codec.diff import find_changes, read_state, shrink
from stateward_sidecar.codec.draft import apply_changes, sent_bytes
from stateward_sidecar.codec.edits import apply_edits
from stateward_sidecar.codec.entry import EntryContent
from stateward_sidecar.codec.entry import draft as draft_content
from stateward_sidecar.codec.pieces import count_bytes, encode
from stateward_sidecar.codec.state import EMPTY, StateTree, counted_bytes, has_segments, resident_bytes
from stateward_sidecar.errors import QueueFull, StateTooLarge
from stateward_sidecar.store.journal import replay
from stateward_sidecar.store.journal.requests import hash_request
from stateward_sidecar.store.journal.telling import mark, show_told, take_early
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.thread import MAIN, Thread, ThreadDraft
from stateward_sidecar.store.versions.branches import (
    describe_numbers,
    describe_version,
    keeps_status,
    take_over,
)

# A missing dictionary is loaded after this many saves without one. The first save after a start must not wait for it,
# and if the cache is too small for all saving threads, a load for each save would cost more than it gains.
SAVES_BEFORE_DICTIONARY = 4


# Edits that may have to read entries of a log.
_READING = frozenset(("replace_entry", "trim_log"))
LOG_BYTES_MAX = 64 << 30
# So many times as much as a state may have may be in memory while entries become segments.
CROWDED = 2


def check_size(tree: StateTree, limit_bytes: int, *, may_crowd: bool = False) -> None:
    """Raises StateTooLarge if a state is larger than allowed, or one of its logs. Segments do not count for the state,
    nor do entries that become segments soon. Raises QueueFull if too many of these are in memory, unless
    ``may_crowd``."""
    if tree.size_bytes <= limit_bytes:
        return
    counted = counted_bytes(tree)
    if counted > limit_bytes:
        raise StateTooLarge(counted, limit_bytes)
    for name, log in tree.logs.items():
        if log.entries.size_bytes > LOG_BYTES_MAX:
            text = f"log {name!r} would have {log.entries.size_bytes:,} bytes, more than {LOG_BYTES_MAX:,}"
            raise StateTooLarge(log.entries.size_bytes, LOG_BYTES_MAX, text)
    held = resident_bytes(tree)
    if held > CROWDED * limit_bytes and not may_crowd:
        raise QueueFull(f"{held:,} bytes of entries wait to leave memory; try again in a moment", queued=held)


def check_opened(tree: StateTree, diff: Diff, limit_bytes: int) -> None:
    """Raises StateTooLarge if edits replace entries in so many segments that memory has no room for these."""
    if not has_segments(tree):
        return
    opened = dict[tuple[str, int], int]()
    for edit in diff.edits:
        log = tree.logs.get(edit.replace_entry.log) if edit.WhichOneof("edit") == "replace_entry" else None
        at = edit.replace_entry.index - log.first_index if log is not None else -1
        if log is not None and 0 <= at < log.entries.runs.count:
            number, _ = log.entries.runs.find(at)
            opened[edit.replace_entry.log, number] = log.entries.runs.each[number].size_bytes
    if (size := sum(opened.values())) > limit_bytes:
        text = f"the save replaces entries in {len(opened)} segments of {size:,} bytes; replace them in several saves"
        raise StateTooLarge(size, limit_bytes, text)


@dataclass(frozen=True, slots=True)
class Changed:
    """The effect of a save on a state: the new state, the edits to store, and the size of the edits as sent."""

    tree: StateTree
    edits: bytes
    sent_bytes: int


class Saved(NamedTuple):
    """A version and its state."""

    version: int
    tree: StateTree


@dataclass(slots=True)
class Made:
    """A version made from one base. It is valid while its line, its base and its version number are still right.

    Neither name nor uid identifies the line: after a takeover, two lines may have versions with the same number. Each
    line on this disk has a thread number of its own.
    """

    line: int  # the thread's number on this disk; 0 = a new thread
    base: int
    version: int
    tree: StateTree
    content: EntryContent
    body: CheckpointBody
    mark: tuple[int, int]  # of what was told of the work (telling.py)

    def fits(self, draft: ThreadDraft | None) -> bool:
        """Whether the thread still has the dictionary that the version was compressed with, and nothing was told of the
        work since."""
        dictionary = self.content.dictionary
        if self.mark != mark(draft.head if draft is not None else None):
            return False
        return dictionary is None or (draft is not None and dictionary.version in draft.snapshots)


class VersionMaker:
    """Makes the version of one save."""

    def __init__(self, context: Context, request: SaveRequest, branch: str, *, is_large: bool) -> None:
        """``is_large``: encode in pieces, which needs less memory and more time."""
        self._context = context
        self._request = request
        self.branch = branch  # the branch that gets the version; a fork on a mismatch changes it
        self.is_large = is_large
        self.request_hash = hash_request(request.options.request_id)
        # Of the request's content. Set before the first version is made.
        self.fingerprint = b""

    def make(self, txn: lmdb.Transaction, thread: Thread | ThreadDraft | None, base: int, version: int) -> Made:
        """Applies the save to a base version, and compresses its entry. ``version``: the number that it will get."""
        if thread is None:
            return self.pack(None, 0, version, self.change(EMPTY, version), None, None)
        old = replay.state_at(txn, thread, base, self._context.cache)
        parent = self._parent(txn, thread, base)
        dictionary = self._dictionary(txn, thread, base, old)
        changed = self.change_of(thread, base, old, version)
        del old  # it may be as large as the new state, and compression needs the memory
        return self.pack(thread, base, version, changed, dictionary, parent)

    def _parent(self, txn: lmdb.Transaction, thread: Thread | ThreadDraft, base: int) -> CheckpointBody | None:
        """Returns what the base version says of itself; None for the empty state."""
        if not base:
            return None
        if isinstance(thread, ThreadDraft) and base in thread.bodies:
            return thread.bodies[base]
        branch = thread.branches.get(self.branch) if isinstance(thread, Thread) else thread.branch(self.branch)
        if branch is not None and branch.version == base:
            facts = self._context.cache.facts(thread.identity.number, branch.digest)
            if facts is not None:
                return facts.body
        return replay.open_metadata(thread.identity, replay.read_version(txn, thread, base)).checkpoint

    def change_of(self, thread: Thread | ThreadDraft, base: int, old: StateTree, version: int) -> Changed:
        """Does the same to a state of a thread, and has segments made if too many entries wait for that."""
        try:
            return self.change(old, version, may_crowd=base in thread.snapshots)
        except QueueFull:
            # No save has started the making of segments, or it failed.
            committed = thread if isinstance(thread, Thread) else thread.thread
            self._context.on_crowded(committed, self.branch, base, old)
            raise

    def change(self, old: StateTree, version: int, *, may_crowd: bool = False) -> Changed:
        """Applies the save to a state. ``may_crowd``: the base has a snapshot without segments, so that only the next
        version can have one with them. Raises EditConflict, StateTooLarge or QueueFull."""
        request, limit = self._request, self._context.limits.state_bytes
        if request.HasField("state"):
            slots, logs = read_state(old, request.state)
            tree, edits = apply_changes(old, find_changes(old, slots, logs), version)
            check_size(tree, limit, may_crowd=may_crowd)
            return Changed(tree, edits, sent_bytes(request.state, slots, logs))
        check_opened(old, request.diff, limit)
        tree = apply_edits(old, request.diff, version)
        check_size(tree, limit, may_crowd=may_crowd)
        stored = shrink(old, request.diff)
        edits = encode(stored) if self.is_large else stored.SerializeToString()
        if stored is request.diff:
            return Changed(tree, edits, len(edits))
        return Changed(tree, edits, count_bytes(request.diff) if self.is_large else request.diff.ByteSize())

    def pack(
        self,
        thread: Thread | ThreadDraft | None,
        base: int,
        version: int,
        changed: Changed,
        dictionary: Dictionary | None,
        parent: CheckpointBody | None,
    ) -> Made:
        """Compresses the edits and the metadata of a version, with what it takes over from its parent."""
        request, edits = self._request, changed.edits
        head = thread.head if thread is not None else None  # once: the writer may replace it meanwhile
        is_first = thread is None or (version == 1 and request.options.HasField("create"))
        metadata = self._metadata(is_new=is_first, edit_bytes=len(edits), sent_bytes=changed.sent_bytes)
        body = metadata.checkpoint
        body.schema_version = request.schema_version
        if parent is not None:
            take_over(body, parent, request)
        if head is not None and (head.HasField("told") or head.HasField("early")):
            self._take_told(body, head, base)
        describe_numbers(body, request.diff, changed.tree)
        line = thread.identity.number if thread is not None else 0
        content = draft_content(metadata, edits, dictionary)
        return Made(line, base, version, changed.tree, content, body, mark(head))

    def _take_told(self, body: CheckpointBody, head: ThreadHead, base: int) -> None:
        """Takes over a status that PutEffects told: of the parent, if the save keeps its status, or of this version."""
        request = self._request
        if keeps_status(request):
            show_told(body, head, base)
            body.status_detail = request.status_detail or body.status_detail
        if self.branch == MAIN:
            take_early(body, head, request)

    def _dictionary(
        self, txn: lmdb.Transaction, thread: Thread | ThreadDraft | None, base: int, old: StateTree
    ) -> Dictionary | None:
        """Returns the branch's newest snapshot if the base is the branch's head and the snapshot is in memory or worth
        loading; else None."""
        branch = None
        if isinstance(thread, Thread):
            branch = thread.branches.get(self.branch)
        elif thread is not None:
            branch = thread.branch(self.branch)
        if thread is None or branch is None or branch.version != base or not branch.snapshot_version:
            return None
        found = self._context.cache.dictionary(thread.identity.number, branch.snapshot_version)
        if found is None and self.wants_dictionary(thread, branch, old):
            found = replay.read_dictionary(txn, thread.identity, branch.snapshot_version, self._context.cache)
        return found

    def wants_dictionary(self, thread: Thread | ThreadDraft, branch: BranchHead, old: StateTree) -> bool:
        """Returns whether to load a dictionary that is not in memory. A load takes as long as several saves."""
        if branch.snapshot_version not in thread.snapshots or not self._context.cache.fit_together(old):
            return False
        committed = thread if isinstance(thread, Thread) else thread.thread
        committed.plain_saves += 1
        if committed.plain_saves <= SAVES_BEFORE_DICTIONARY:
            return False
        committed.plain_saves = 0
        return True

    def may_read_segments(self, tree: StateTree) -> bool:
        """Whether the save may have to read segments of a state: it replaces or cuts entries, or is compared whole."""
        if not has_segments(tree):
            return False
        kinds = (edit.WhichOneof("edit") for edit in self._request.diff.edits)
        return self._request.HasField("state") or any(kind in _READING for kind in kinds)

    def _metadata(self, *, is_new: bool, edit_bytes: int, sent_bytes: int) -> EntryMetadata:
        request = self._request
        metadata = EntryMetadata(request_hash=self.request_hash, fingerprint=self.fingerprint)
        body = metadata.checkpoint
        body.SetInParent()
        if self.branch != MAIN:
            body.branch = self.branch
        if sent_bytes != edit_bytes:
            body.sent_bytes = sent_bytes
        describe_version(body, request)
        if request.HasField("workspace"):
            body.workspace.CopyFrom(request.workspace)
        if is_new:
            metadata.creation.CopyFrom(
                ThreadCreation(namespace=self._request.namespace, thread=request.thread, options=request.options.create)
            )
        return metadata
