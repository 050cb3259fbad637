"""Verify: reads everything back, and reports damage.

For each thread, Verify reads the rows on disk (never what is in memory), opens every entry and computes its digest
again, replays every state, compares every snapshot with the replay, and compares every index row with the journal.
It runs beside normal operation, with a bounded number of records in each transaction. What is pruned or deleted
meanwhile is not a finding. What a copy lacks up to its floor is not a finding either, because the archive has it. Nor
is a snapshot that the copy of another machine's thread lacks: its owner may have pruned what needs it, which this disk
learns at its next look at HEAD. If not, the next read fetches it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain

import lmdb

from stateward.storage.v1.journal_pb2 import EntryHeader, EntryMetadata
from stateward.v1.admin_service_pb2 import ScanProgress, VerifyFinding, VerifyRequest, VerifyResponse
from stateward.v1.error_reason_pb2 import ERROR_REASON_CORRUPT, ERROR_REASON_LOCKED
from stateward.v1.thread_pb2 import THREAD_ACCESS_ORPHAN, THREAD_ACCESS_REMOTE
from stateward_sidecar.codec.edits import apply_edits
from stateward_sidecar.codec.entry import Entry, entry_digest, unpack
from stateward_sidecar.codec.seal import content_hash
from stateward_sidecar.codec.snapshot import from_snapshot
from stateward_sidecar.codec.state import EMPTY, StateTree
from stateward_sidecar.errors import (
    Corrupt,
    EditConflict,
    HistoryElsewhere,
    KeyUnavailable,
    StatewardError,
    reason_number,
)
from stateward_sidecar.storage import layout
from stateward_sidecar.store.blobs.blobread import check_state_blobs, verify_blobs
from stateward_sidecar.store.blobs.blobrows import blobs_in_edits
from stateward_sidecar.store.check.shredded import list_deleted_keys
from stateward_sidecar.store.check.storeverify import StoreVerifier, verify_ids, verify_pieces
from stateward_sidecar.store.check.verifytrees import verify_trees
from stateward_sidecar.store.journal import replay
from stateward_sidecar.store.journal.journal import label_keys, list_keys
from stateward_sidecar.store.journal.kind import Refs
from stateward_sidecar.store.kinds.table import KINDS, is_cut, kind_of
from stateward_sidecar.store.thread import blocks
from stateward_sidecar.store.thread.cache import Cache
from stateward_sidecar.store.thread.context import REQUEST_WINDOW_ENTRIES, Context
from stateward_sidecar.store.thread.thread import Thread, load_numbered, rows
from stateward_sidecar.store.thread.threads import not_found
from stateward_sidecar.store.thread.times import expire_second

RECORDS_A_STEP = 500
# How many states of recent versions are kept. The state of an older parent is replayed from a snapshot.
STATES_KEPT = 32


@dataclass(slots=True)
class _Progress:
    """The facts from a thread's journal so far."""

    thread: Thread
    row: int = 1  # the next row begins at this sequence or later
    sequence: int = 0
    window_tip: int = 0  # the newest entry on the disk, as far as known: a prune may have removed what is far before it
    step_began: int = 0  # the newest entry that was checked before the present step
    digest: bytes = b""
    versions: set[int] = field(default_factory=set)
    refs: Refs = field(default_factory=Refs)
    states: dict[int, StateTree] = field(default_factory=dict)
    held: replay.Held = field(default_factory=dict)
    parts: set[int] = field(default_factory=set)  # ids of large edits that are stored in pieces


class Verifier:
    """Checks the store."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def verify(self, request: VerifyRequest) -> Iterator[VerifyResponse]:
        """Yields findings and progress; with ``deleted_keys`` deleted threads instead. Raises ThreadNotFound."""
        if request.deleted_keys:
            yield from list_deleted_keys(self._context, request)
            return
        progress = ScanProgress()
        for number, uid, name_hash in self._list_threads(request):
            progress.threads += 1
            if not uid:
                unread = VerifyFinding(reason=ERROR_REASON_CORRUPT, message="a name row cannot be read")
                yield VerifyResponse(progress=progress, finding=unread)
                continue
            for finding, checked in self._verify_thread(number, uid, name_hash, request):
                progress.items += checked
                if finding is not None and finding.reason == ERROR_REASON_LOCKED:  # it was locked meanwhile
                    continue
                if finding is not None or checked:
                    yield VerifyResponse(progress=progress, finding=finding)
        if not request.thread:
            for finding in StoreVerifier(self._context).verify():
                yield VerifyResponse(progress=progress, finding=finding)
        yield VerifyResponse(progress=progress)

    def _list_threads(self, request: VerifyRequest) -> list[tuple[int, bytes, bytes]]:
        keys = self._context.keystore.namespace(request.namespace) if request.namespace else None
        found = []
        with self._context.engine.read() as txn:
            if request.thread:
                name_hash = keys.names.thread(request.thread) if keys is not None else b""
                row = txn.get(layout.name_key(name_hash))
                if row is None:
                    raise not_found(request.namespace, request.thread)
                number, uid = layout.unpack_name(row)
                return [(number, uid, name_hash)]
            for key, row in rows(txn, b"N"):
                try:
                    number, uid = layout.unpack_name(row)
                except Corrupt:
                    found.append((0, b"", key[1:]))
                    continue
                owner = self._context.keystore.namespace_of(uid)
                if not request.namespace or owner is None or (keys is not None and owner == keys.id):
                    found.append((number, uid, key[1:]))
        return found

    def _verify_thread(
        self, number: int, uid: bytes, name_hash: bytes, request: VerifyRequest
    ) -> Iterator[tuple[VerifyFinding | None, int]]:
        finding, is_listed = VerifyFinding(namespace=request.namespace, thread=request.thread, uid=uid.hex()), True
        try:
            with self._context.engine.read() as txn:
                if not _leads_to(txn, name_hash, number):
                    return  # deleted or set aside meanwhile
                thread = load_numbered(txn, self._context.keystore, number, uid)
                finding.namespace, finding.thread = thread.identity.namespace, thread.name
                names = thread.identity.namespace_keys.names
                if names.thread(thread.name) != name_hash:
                    raise Corrupt("a name leads to another thread")
                is_listed = all(txn.get(key) is not None for key in list_keys(thread.identity, thread.head))
        except (Corrupt, KeyUnavailable) as error:
            if self._is_there(name_hash, number):
                yield _found(finding, error), 1
            return
        if thread.identity.is_held:  # whoever verifies has not its key
            finding.namespace = finding.thread = ""
        if not is_listed:
            yield _found(finding, Corrupt("the thread is missing in the list of its namespace")), 1
        progress = _Progress(thread, window_tip=thread.head.tip_sequence)
        while True:
            step: list[tuple[VerifyFinding | None, int]] = []
            with self._context.engine.read() as txn:
                is_more = self._verify_entries(txn, progress, finding, step)
            yield from step
            if not is_more:
                break
        try:
            with self._context.engine.read() as txn:  # nothing is yielded inside: a slow reader must not keep it open
                errors = list(self._verify_rows(txn, progress, name_hash))
        except (Corrupt, KeyUnavailable) as error:
            errors = [error]
        if errors and self._is_there(name_hash, number):
            yield from ((_found(finding, error), 0) for error in errors)
        for wrong, checked in chain(verify_blobs(self._context, thread), verify_trees(self._context, thread)):
            yield None if wrong is None else _found(finding, wrong), checked

    def _verify_rows(self, txn: lmdb.Transaction, progress: _Progress, name_hash: bytes) -> Iterator[StatewardError]:
        """Compares the rows of a thread with its journal. Yields the damage; raises Corrupt or KeyUnavailable."""
        number = progress.thread.number
        if _leads_to(txn, name_hash, number):
            now = load_numbered(txn, self._context.keystore, number, progress.thread.identity.uid)
            yield from self._compare(txn, progress, now)
            yield from self._verify_marks(txn, now)
            for kind in KINDS:
                yield from kind.verify(txn, now)
            yield from verify_pieces(txn, now, progress.parts)

    def _is_there(self, name_hash: bytes, number: int) -> bool:
        """Returns whether the name still leads to the thread. If not, the thread's key may be destroyed."""
        with self._context.engine.read() as txn:
            return _leads_to(txn, name_hash, number)

    def _verify_entries(
        self,
        txn: lmdb.Transaction,
        progress: _Progress,
        finding: VerifyFinding,
        out: list[tuple[VerifyFinding | None, int]],
    ) -> bool:
        """Checks the next entries. Returns whether more entries follow."""
        thread = progress.thread
        keys, tip = thread.identity.keys, thread.head.tip_sequence
        checked, progress.step_began = 0, progress.sequence
        for first, row in blocks.rows(txn, keys, progress.row):
            if first > tip:
                break
            if checked >= RECORDS_A_STEP:
                out.append((None, checked))
                return True
            progress.row = first + 1
            checked += self._verify_row(txn, progress, finding, first, row, out)
        out.append((None, checked))
        return False

    def _verify_row(
        self,
        txn: lmdb.Transaction,
        progress: _Progress,
        finding: VerifyFinding,
        first: int,
        row: memoryview,
        out: list[tuple[VerifyFinding | None, int]],
    ) -> int:
        """Checks the entries that share a row. Returns how many they are."""
        thread, checked = progress.thread, 0
        try:
            found = list(blocks.unpack_row(first, row))
        except Corrupt as error:
            out.append((_found(finding, error, sequence=first), 0))
            return 1
        for sequence, record in found:
            if not progress.sequence < sequence <= thread.head.tip_sequence:
                if progress.step_began < sequence <= progress.sequence:
                    out.append((_found(finding, blocks.twice(sequence), sequence=sequence), 0))
                continue
            version = 0
            try:
                entry = unpack(record, sequence)
                version = entry.header.version
                self._verify_again(txn, progress, entry)
            except StatewardError as error:
                out.append((_found(finding, error, version, sequence), 0))
            progress.sequence = sequence
            checked += 1
        return checked

    def _verify_again(self, txn: lmdb.Transaction, progress: _Progress, entry: Entry) -> None:
        """Checks an entry. If the check fails, and the thread was pruned since it was loaded, checks the entry again as
        the thread is now: the entry may be pruned, or the entries before it may be gone."""
        thread, digest = progress.thread, progress.digest
        try:
            self._verify_entry(txn, progress, entry)
        except StatewardError:
            try:
                now = load_numbered(txn, self._context.keystore, thread.number, thread.identity.uid)
            except StatewardError:
                return  # reported already, or deleted
            known = thread.pruned.to_message(), progress.window_tip
            if (now.pruned.to_message(), now.head.tip_sequence) == known:
                raise
            thread.pruned, thread.snapshots = now.pruned, now.snapshots
            progress.window_tip, progress.digest = now.head.tip_sequence, digest
            self._verify_entry(txn, progress, entry)

    def _verify_entry(self, txn: lmdb.Transaction, progress: _Progress, entry: Entry) -> None:
        thread, header = progress.thread, entry.header
        identity = thread.identity
        progress.parts.add(header.parts_id)
        is_next = header.sequence == progress.sequence + 1
        previous, progress.digest = progress.digest, header.digest
        if header.version:
            progress.versions.add(header.version)
        metadata_bytes = entry.open_metadata_bytes(identity.cipher, identity.uid)
        metadata = EntryMetadata.FromString(metadata_bytes)
        kind_of(header).follow(progress.refs, thread, entry, metadata)
        if is_next and header.previous_digest != previous:
            raise Corrupt("the entry does not follow the one before it")
        # A prune removes whole entries only if no retry may ask for them.
        in_window = header.sequence - 1 > progress.window_tip - REQUEST_WINDOW_ENTRIES
        is_hole = not is_next and header.sequence - 1 > max(thread.floor_sequence, _shared_until(thread))
        if is_hole and (in_window or thread.pruned.is_empty):
            raise Corrupt(f"{header.sequence - progress.sequence - 1} journal entries before the entry are missing")
        self._verify_index(txn, thread, entry, metadata)
        if is_content_gone(txn, thread, entry):
            return
        # A version between the floor and the first snapshot after it needs history that only the archive has.
        with suppress(*_elsewhere(thread)):
            self._verify_content(txn, progress, entry, metadata_bytes)

    def _verify_content(self, txn: lmdb.Transaction, progress: _Progress, entry: Entry, metadata_bytes: bytes) -> None:
        """Checks the edits of an entry, and the state of its version."""
        identity, header = progress.thread.identity, entry.header
        edits = (
            replay.read_edits(txn, identity, entry, self._context.cache, progress.held) if header.edit_bytes else b""
        )
        if entry_digest(identity.cipher, header, metadata_bytes, content_hash(edits)) != header.digest:
            raise Corrupt("the entry's digest does not match its content")
        if header.version:
            self._verify_state(txn, progress, entry, edits)

    def _verify_index(self, txn: lmdb.Transaction, thread: Thread, entry: Entry, metadata: EntryMetadata) -> None:
        identity, header, body = thread.identity, entry.header, metadata.checkpoint
        verify_ids(txn, thread, entry, metadata)
        if not header.version:
            return
        is_here = header.version not in thread.pruned and header.version > thread.floor_version
        if is_here and replay.sequence_of(txn, thread, header.version) != header.sequence:
            raise Corrupt("the index of versions leads elsewhere")
        labels = body.labels if header.version not in thread.pruned else {}
        if any(txn.get(key) is None for key in label_keys(identity, header, labels)):
            raise Corrupt("the index row of a label is missing")

    @staticmethod
    def _verify_marks(txn: lmdb.Transaction, thread: Thread) -> Iterator[StatewardError]:
        """Checks the rows by which the sweep finds a thread, and the snapshots that branches name."""
        head, number = thread.head, thread.number
        second = expire_second(head)
        if second and txn.get(layout.expiry_key(second, number)) is None:
            yield Corrupt("the row of the thread's expiry is missing", thread.name)
        if head.options.HasField("retention") and txn.get(layout.retention_key(number)) is None:
            yield Corrupt("the row of the thread's retention is missing", thread.name)
        for branch in thread.branches.values():
            is_here = branch.version > thread.floor_version and not _is_copy(thread)
            if is_here and branch.snapshot_version and branch.snapshot_version not in thread.snapshots:
                yield Corrupt("a snapshot is missing", thread.name, branch.snapshot_version)

    def _verify_state(self, txn: lmdb.Transaction, progress: _Progress, entry: Entry, edits: bytes) -> None:
        thread, header = progress.thread, entry.header
        version, parent = header.version, header.parent_version
        fresh = Cache(0)  # read everything from disk: the states in memory prove nothing
        fresh.source = self._context.cache.source
        stored = None
        if version in thread.snapshots:
            content, digest = replay.read_snapshot(txn, thread.identity, version)
            if digest != header.digest:
                raise Corrupt("a snapshot belongs to another history")
            stored = from_snapshot(content, fresh.source(thread.identity))
        is_base = replay.is_cut(thread, header) or (stored is not None and 0 < parent <= thread.floor_version)
        if is_base:
            tree = replay.state_at(txn, thread, version, fresh)
        else:
            base = EMPTY if parent == 0 else progress.states.get(parent)
            if base is None:
                base = replay.state_at(txn, thread, parent, fresh)
            diff = replay.parse_edits(edits, thread.name, version)
            try:
                tree = apply_edits(base, diff, version)
            except EditConflict as error:
                raise Corrupt(f"stored edits do not fit their parent: {error.message}") from None
        brought = None if is_base else blobs_in_edits(diff)
        if brought is None or brought:
            check_state_blobs(txn, thread, tree, brought)
        # Which entries are in segments is no part of the state. Those of the snapshot are not in memory.
        is_equal = stored is None or tree == stored
        progress.states[version] = tree if stored is None else stored
        while len(progress.states) > STATES_KEPT:
            del progress.states[next(iter(progress.states))]
        if not is_equal:
            raise Corrupt("a snapshot differs from the state that its version has")

    def _compare(self, txn: lmdb.Transaction, progress: _Progress, now: Thread) -> Iterator[StatewardError]:
        """Compares the rows that were read first with the journal. ``now``: the thread as it is after the journal."""
        thread = progress.thread
        name = thread.name
        for version in range(thread.floor_version + 1, thread.head.last_version + 1):
            is_missing = version not in progress.versions and version not in thread.pruned
            if is_missing and not self._was_pruned(txn, thread, EntryHeader(version=version)):
                yield Corrupt("the version's journal entry is missing", name, version)
        for branch in thread.branches.values():
            if branch.version <= thread.floor_version:
                continue
            version, digest = progress.refs.branches.get(branch.name, (0, b""))
            if thread.pruned.loose.pairs() and branch.newest_version:  # the entry that moved it back may be gone
                version, digest = branch.version, replay.read_version(txn, thread, branch.version).header.digest
            if (version, digest) != (branch.version, branch.digest):
                yield Corrupt("a branch's head is not the one in the journal", name, branch.version)
        if set(progress.refs.branches) - set(thread.branches):
            yield Corrupt("a branch's head is missing", name)
        has_all = not len(thread.pruned) and not thread.floor_sequence and not thread.pruned.loose.pairs()
        if has_all and progress.refs.tags != thread.tags:
            yield Corrupt("the tags are not those that the journal set", name)
        if now.head.tip_sequence > thread.head.tip_sequence:
            return  # branches and tags may have been deleted meanwhile
        counts = {tag: sum(1 for _ in rows(txn, thread.identity.keys.all_of(tag))) for tag in (b"B", b"G")}
        with_row = len(thread.branches) - thread.head.HasField("main")  # main's head is a part of the thread's
        if counts[b"B"] < with_row or counts[b"G"] < len(thread.tags):
            yield Corrupt("a branch or tag row is missing", name)

    def _was_pruned(self, txn: lmdb.Transaction, thread: Thread, header: EntryHeader) -> bool:
        """Returns whether the version or effect was pruned since the thread's rows were read."""
        try:
            now = load_numbered(txn, self._context.keystore, thread.number, thread.identity.uid)
            return is_cut(now.pruned, header)
        except StatewardError:
            return True  # reported already, or deleted


def _is_copy(thread: Thread) -> bool:
    """Returns whether another machine owns the thread."""
    return thread.access == THREAD_ACCESS_REMOTE


def is_content_gone(txn: lmdb.Transaction, thread: Thread, entry: Entry) -> bool:
    """Returns whether the edits of an entry are pruned, or what they need is in the archive only."""
    header = entry.header
    if is_cut(thread.pruned, header) or 0 < header.version <= thread.floor_version:
        return True
    return _went_with_thread(txn, thread, entry)


def _went_with_thread(txn: lmdb.Transaction, thread: Thread, entry: Entry) -> bool:
    """Returns whether an orphan has an entry without its values because the thread that it comes from cleared it since.
    What the orphan lacks by it is known to its rows (``ArchiveRow.records_gone``, ``effects_gone``)."""
    header = entry.header
    if header.version or header.sequence > _shared_until(thread):
        return False
    if not header.parts_id:
        return entry.is_husk
    return next(rows(txn, thread.identity.keys.edits_pieces(header.parts_id)), None) is None


def _shared_until(orphan: Thread) -> int:
    """Returns the newest entry that an orphan shares with the thread that it comes from, which may have removed entries
    of records, effects, tags and the like before they were fetched; 0 for other threads. A version that is missing is
    found by its number."""
    row = orphan.archive
    return row.common_sequence if row is not None and row.access == THREAD_ACCESS_ORPHAN else 0


def _elsewhere(thread: Thread) -> tuple[type[StatewardError], ...]:
    """Returns the errors by which a thread says that only the archive has what is needed."""
    return (HistoryElsewhere, replay.MissingSnapshot) if _is_copy(thread) else (HistoryElsewhere,)


def _leads_to(txn: lmdb.Transaction, name_hash: bytes, number: int) -> bool:
    """Returns whether a name leads to a thread. A name row that cannot be read may do so."""
    row = txn.get(layout.name_key(name_hash))
    try:
        return row is not None and layout.unpack_name(row)[0] == number
    except Corrupt:
        return True


def _found(place: VerifyFinding, error: StatewardError, version: int = 0, sequence: int = 0) -> VerifyFinding:
    finding = VerifyFinding()
    finding.CopyFrom(place)
    finding.reason = reason_number(error.reason)
    finding.message = error.message
    finding.thread = finding.thread or error.metadata.get("thread", "")
    finding.version = version or int(error.metadata.get("version", 0))
    finding.sequence = sequence
    return finding
