"""Makes files and rows from the blobs and versions of a thread that is being imported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stateward.storage.v1.journal_pb2 import BlobRecord, CheckpointBody, EntryMetadata
from stateward.v1.backup_service_pb2 import BackupBlob, BackupVersion
from stateward.v1.checkpoint_pb2 import Checkpoint
from stateward.v1.diff_pb2 import Diff
from stateward.v1.state_pb2 import State
from stateward_sidecar.codec import parts
from stateward_sidecar.codec.blob import SEGMENT_BYTES
from stateward_sidecar.codec.compress import Dictionary
from stateward_sidecar.codec.edits import Named, apply_edits, check_state, check_stored_diff
from stateward_sidecar.codec.entries import EMPTY_ENTRIES
from stateward_sidecar.codec.entry import draft as draft_content
from stateward_sidecar.codec.snapshot import to_snapshot
from stateward_sidecar.codec.state import EMPTY, LogState, StateTree, byte_length, has_segments, resident_bytes
from stateward_sidecar.codec.varints import frame
from stateward_sidecar.errors import EditConflict, InvalidField, StateTooLarge
from stateward_sidecar.store.blobs.blobwrite import Sealing
from stateward_sidecar.store.blobs.segments import has_due, is_due, seal_segments
from stateward_sidecar.store.copies.hidden import Hidden, HiddenVersion
from stateward_sidecar.store.copies.trees import IncomingObjects
from stateward_sidecar.store.journal import replay
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.ranges import Rising
from stateward_sidecar.store.thread.thread import MAIN
from stateward_sidecar.store.versions.branches import describe_numbers
from stateward_sidecar.store.versions.make import check_size
from stateward_sidecar.store.versions.snapshots import is_due_by_weight

# How many states and dictionaries are kept for later versions. Another state is read back from disk; another dictionary
# is not used. The newest state stays, however large it is.
KEPT, KEPT_BYTES = 4, 16 << 20
# Edits may have this many bytes more than the largest state, because they also name what they delete.
EDITS_SLACK_BYTES = 4 << 20


class IncomingBlobs:
    """Receives blobs one after the other, and seals their bytes as they come."""

    def __init__(self, context: Context, hidden: Hidden) -> None:
        self.known: dict[bytes, BlobRecord] = {}  # by SHA-256
        self._context = context
        self._hidden = hidden
        self._blob: BackupBlob | None = None
        self._sealing: Sealing | None = None
        self._pending = bytearray()
        self._came = 0

    def begin(self, blob: BackupBlob) -> None:
        """Begins the next blob. Raises InvalidField if the blob was received before."""
        if blob.blob.sha256 in self.known:
            raise InvalidField("parts.blob.blob.sha256", f"{blob.blob.sha256.hex()} was sent twice")
        self._blob, self._came = blob, 0
        self._sealing = Sealing(self._context, self._hidden.draft.identity)

    def add(self, data: bytes) -> None:
        """Adds bytes to the blob. Raises InvalidField, DiskFull."""
        if self._blob is None or self._sealing is None:
            raise InvalidField("parts.blob_data", "must follow a blob")
        self._came += len(data)
        if self._came > self._blob.blob.size_bytes:
            raise InvalidField(
                "parts.blob.blob.size_bytes", f"is {self._blob.blob.size_bytes}, but more bytes were received"
            )
        self._pending += data
        while len(self._pending) >= SEGMENT_BYTES:
            self._sealing.add(bytes(self._pending[:SEGMENT_BYTES]))
            self._hidden.take(self._sealing.stored_bytes)
            del self._pending[:SEGMENT_BYTES]

    def finish(self, time_us: int) -> None:
        """Ends the open blob, if there is one. Raises InvalidField if its bytes do not match its size and SHA-256."""
        blob, sealing = self._blob, self._sealing
        if blob is None or sealing is None:
            return
        if self._pending:
            sealing.add(bytes(self._pending))
            self._pending.clear()
        if (self._came, sealing.digest) != (blob.blob.size_bytes, blob.blob.sha256):
            raise InvalidField("parts.blob", f"the bytes of blob {blob.blob.sha256.hex()} have another size or SHA-256")
        record = sealing.finish(blob.media_type)
        self._hidden.put(self._hidden.blob(record, draft_content(EntryMetadata(blob=record)), time_us))
        self.known[record.sha256] = record
        self._blob = self._sealing = None

    def check(self, named: Sequence[Named], version: int) -> None:
        """Raises InvalidField unless every blob that a version names was received, with the same size and preview."""
        for _, ref in named:
            known = self.known.get(ref.sha256)
            if known is None or ref.size_bytes != known.size_bytes or not known.preview.startswith(ref.preview):
                raise InvalidField(
                    "parts.version",
                    f"version {version} names blob {ref.sha256.hex()}, which was not received, or has another size or "
                    "preview",
                )

    def discard(self) -> None:
        """Removes the file of the open blob."""
        if self._sealing is not None:
            self._sealing.discard()


class IncomingState:
    """Receives a state in pages. Of a long log only the newest entries stay in memory."""

    def __init__(self, context: Context, hidden: Hidden) -> None:
        self._context = context
        self._hidden = hidden
        self._slots = dict[str, bytes]()
        self._logs = dict[str, LogState]()
        self._slots_bytes = 0

    @property
    def held_bytes(self) -> int:
        """How much of it is in memory."""
        return self._slots_bytes + sum(log.entries.loose_bytes for log in self._logs.values())

    def add(self, page: State) -> None:
        """Adds a page. Raises DiskFull."""
        for name, value in page.slots.items():
            self._slots_bytes += byte_length(name) + value.ByteSize()
            self._slots[name] = value.SerializeToString()
        for name, log in page.logs.items():
            known = self._logs.get(name) or LogState(log.first_index, EMPTY_ENTRIES, log.rewritten_version)
            entries = known.entries.append_many([frame(value.SerializeToString()) for value in log.entries])
            self._logs[name] = LogState(known.first_index, entries, known.rewritten_version)
            if is_due(entries):
                tree = StateTree.of({}, {name: self._logs[name]}, {})
                self._logs[name] = seal_hidden(self._context, self._hidden, tree).logs[name]

    def tree(self, retired: Mapping[str, int]) -> StateTree:
        """Returns the state so far."""
        return StateTree.of(self._slots, self._logs, dict(retired))


def seal_hidden(context: Context, hidden: Hidden, tree: StateTree) -> StateTree:
    """Makes segments of the older entries of logs that have grown. A snapshot must name them before the thread is seen.
    Raises DiskFull."""
    identity = hidden.draft.identity
    sealed = seal_segments(context, identity, tree, context.cache.source(identity))
    for record in sealed.records:
        hidden.later(hidden.blob(record, draft_content(EntryMetadata(blob=record)), hidden.draft.head.update_time_us))
    hidden.flush()
    return sealed.tree


class IncomingVersions:
    """Receives versions in ascending order. A version is complete when the next part of another kind comes."""

    def __init__(
        self, context: Context, hidden: Hidden, blobs: IncomingBlobs, objects: IncomingObjects
    ) -> None:
        self.came = Rising()
        self._objects = objects
        self._context = context
        self._hidden = hidden
        self._blobs = blobs
        self._open: BackupVersion | None = None
        self._content: IncomingState | Diff = Diff()
        self._content_bytes = 0
        self._named: list[Named] = []  # the blobs that the content so far names
        self._trees: dict[int, StateTree] = {}
        self._heads: dict[str, int] = {}  # of branches
        self._dictionaries: dict[str, Dictionary] = {}  # by branch: its newest snapshot
        self._weights: dict[str, int] = {}  # by branch: weight of the versions since its newest snapshot
        self._snapshots: dict[str, int] = {}  # by branch: stored bytes of its newest snapshot
        self._now_us = context.clock.now_us()

    def begin(self, version: BackupVersion) -> None:
        """Begins the next version. Raises InvalidField."""
        self._complete()
        shown = version.checkpoint
        if shown.version <= self.came.newest:
            raise InvalidField("parts.version.checkpoint.version", f"{shown.version} comes after {self.came.newest}")
        parent = shown.parent_version
        is_here = parent in self.came or (parent == 0 and not version.whole)
        if not 0 <= parent < shown.version or version.whole == is_here:
            raise InvalidField(
                "parts.version.checkpoint.parent_version",
                f"is {parent} for version {shown.version}; this parent was "
                + ("received, so edits must follow" if version.whole else "not received, so a whole state must follow"),
            )
        self._open, self._content_bytes = version, 0
        self._content = IncomingState(self._context, self._hidden) if version.whole else Diff()
        self._named = []

    def add_state(self, page: State) -> None:
        """Adds a page of the open version's state. Raises InvalidField, StateTooLarge."""
        state = self._content
        if self._open is None or not isinstance(state, IncomingState):
            raise InvalidField("parts.state", "must follow a version with `whole`")
        self._named += check_state(page, "parts.state")
        state.add(page)
        self._content_bytes = 0
        self._count(state.held_bytes)

    def add_diff(self, page: Diff) -> None:
        """Adds edits of the open version. Raises InvalidField, StateTooLarge."""
        if self._open is None or not isinstance(self._content, Diff):
            raise InvalidField("parts.diff", "must follow a version without `whole`")
        self._count(page.ByteSize())
        self._named += check_stored_diff(page, "parts.diff")
        self._content.edits.extend(page.edits)

    def _count(self, size_bytes: int) -> None:
        limit = self._context.limits.state_bytes + EDITS_SLACK_BYTES
        self._content_bytes += size_bytes
        if self._content_bytes > limit:
            raise StateTooLarge(self._content_bytes, limit)

    @property
    def held_bytes(self) -> int:
        """Bytes received of the open version."""
        return self._content_bytes if self._open is not None else 0

    def finish(self) -> None:
        """Ends the open version, if there is one."""
        self._complete()

    # -- one version ----------------------------------------------------------------------------------------------

    def _complete(self) -> None:
        version, self._open = self._open, None
        if version is None:
            return
        content, self._content = self._content, Diff()
        shown = version.checkpoint
        number, parent, name = shown.version, shown.parent_version, shown.branch or MAIN
        self._blobs.check(self._named, number)
        tree, edits = self._apply(version, content)
        body = _body(version)
        if body.HasField("workspace"):
            self._objects.check(body.workspace)
        if isinstance(content, Diff):
            describe_numbers(body, content, tree)
        del content
        check_size(tree, self._context.limits.state_bytes)
        if shown.edit_bytes != len(edits):
            body.sent_bytes = shown.edit_bytes
        metadata = EntryMetadata(
            checkpoint=body, request_hash=version.request.id_hash, fingerprint=version.request.fingerprint
        )
        if self._heads.get(name, 0) != parent:
            self._dictionaries.pop(name, None)  # the branch was moved to another version
        stored = draft_content(metadata, edits, self._dictionaries.get(name))
        time_us = max(min(shown.create_time.ToMicroseconds(), self._now_us), 1)
        made = HiddenVersion(number, parent, body, stored, time_us, whole=version.whole)
        snapshot = b""
        if version.whole or has_due(tree) or self._is_due(name, len(stored.packed_edits), tree):
            if has_due(tree):
                tree = seal_hidden(self._context, self._hidden, tree)
            snapshot = to_snapshot(tree)
            made.snapshot = parts.pack_snapshot(snapshot)
        self._hidden.later(self._hidden.version(made), made.size_bytes)
        self._heads[name] = number
        self.came.add(number)
        self._keep(number, tree)
        if made.snapshot is not None:
            self._hidden.flush()  # the version has a digest only after its write
            self._weights[name], self._snapshots[name] = 0, made.snapshot.stored_bytes
            self._dictionaries.pop(name, None)
            if len(snapshot) <= KEPT_BYTES // KEPT:
                self._dictionaries[name] = Dictionary(number, made.digest, snapshot)
            while len(self._dictionaries) > KEPT:
                del self._dictionaries[next(iter(self._dictionaries))]

    def _apply(self, version: BackupVersion, content: IncomingState | Diff) -> tuple[StateTree, bytes]:
        """Returns the state of a version, and the edits to store."""
        number = version.checkpoint.version
        if isinstance(content, IncomingState):
            return content.tree(version.retired_logs), b""
        try:
            tree = apply_edits(self._tree(version.checkpoint.parent_version), content, number)
        except EditConflict as error:
            error.message = f"version {number}: {error.message}"
            raise
        return tree, content.SerializeToString()

    def _tree(self, version: int) -> StateTree:
        if version == 0:
            return EMPTY
        found = self._trees.get(version)
        if found is None:
            self._hidden.flush()
            with self._context.engine.read() as txn:
                found = replay.state_at(txn, self._hidden.draft, version, self._context.cache)
        return found

    def _keep(self, version: int, tree: StateTree) -> None:
        self._trees[version] = tree
        while len(self._trees) > 1 and (
            len(self._trees) > KEPT or sum(map(resident_bytes, self._trees.values())) > KEPT_BYTES
        ):
            del self._trees[next(iter(self._trees))]

    def _is_due(self, name: str, packed_bytes: int, tree: StateTree) -> bool:
        """Returns whether a snapshot of this version is due, by weight as in ``snapshots.py``."""
        weight = self._weights[name] = self._weights.get(name, 0) + replay.entry_weight(packed_bytes)
        return is_due_by_weight(weight, self._snapshots.get(name, 0), is_sealed=has_segments(tree))


def _body(version: BackupVersion) -> CheckpointBody:
    shown: Checkpoint = version.checkpoint
    body = CheckpointBody(
        branch=shown.branch if shown.branch != MAIN else "", checkpoint_id=shown.checkpoint_id, status=shown.status,
        status_detail=shown.status_detail, schema_version=shown.schema_version, wait_id=shown.wait_id,
        labels=shown.labels, metrics=shown.metrics, acked_signals=version.acked_signals,
        parent_checkpoint_id=shown.parent_checkpoint_id, attributes=shown.attributes,
    )  # fmt: skip
    if shown.HasField("step"):
        body.step = shown.step
    if shown.HasField("metadata"):
        body.metadata.CopyFrom(shown.metadata)
    if shown.HasField("question"):
        body.question.CopyFrom(shown.question)
    if shown.HasField("workspace"):
        body.workspace.CopyFrom(shown.workspace)
    return body
