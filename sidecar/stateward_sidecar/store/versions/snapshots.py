"""Makes snapshots in the background, by weight only.

Unfinished snapshots. The pieces of a large snapshot are written in several transactions.

A row marks the snapshot as unfinished until its first piece is put, which is put last. The next start or sweep clears
what a crash or a full disk left. It reads only these rows.

The weight of a branch is the sealed edits since its last snapshot, and 256 bytes for each record. A snapshot is due
when the weight reaches twice the size of the last snapshot, and at least 32 KiB. So snapshots take half as much as the
weight of all edits at most, and a replay never reads much more than three times the state. A rule by count would be
quadratic.

A state whose logs have grown also gets a snapshot, and then their older entries become segments (blobs/segments.py).
Such a snapshot has only the newest entries and the names of segments. It is due by weight only from 1 MiB on, because
a replay from it reads no segment.

The state is immutable, so a background worker serializes and compresses it while saves continue. The writer only puts
sealed pieces, one in each transaction. A small piece joins a transaction that commits saves anyway. The first piece is
put last: without it the snapshot does not exist.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from functools import partial

import lmdb

from stateward.storage.v1.head_pb2 import BranchHead
from stateward_sidecar.codec import parts
from stateward_sidecar.codec.compress import Dictionary
from stateward_sidecar.codec.snapshot import to_snapshot
from stateward_sidecar.codec.state import StateTree, counted_bytes, has_segments, loose_bytes
from stateward_sidecar.errors import (
    Corrupt,
    DiskFull,
    NotOwner,
    ShuttingDown,
    StatewardError,
    ThreadNotFound,
    UidMismatch,
)
from stateward_sidecar.storage import layout
from stateward_sidecar.storage.queue import Batch, Write
from stateward_sidecar.store.blobs.blobrows import blob_key, segments_in_state
from stateward_sidecar.store.blobs.segments import discard, has_due, put_segments, seal_segments
from stateward_sidecar.store.journal import replay
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.thread import Thread, ThreadDraft, rows, write_branch, write_head
from stateward_sidecar.store.thread.threads import NameLock, Threads, not_found
from stateward_sidecar.store.versions.make import Saved
from stateward_sidecar.telemetry import failures, log_damage


@contextmanager
def under_way(context: Context, number: int, *versions: int) -> Iterator[None]:
    """Protects snapshots of a thread from being cleared while they are written.

    If the block fails, the unfinished snapshots are cleared at once, unless another task writes the same snapshot: a
    prune and a background task may do so.
    """
    mine, place = {(number, version) for version in versions}, object()
    context.under_way[place] = mine
    try:
        try:
            yield
        finally:
            del context.under_way[place]
    except BaseException:
        with suppress(ShuttingDown):  # the next start clears it
            for _, version in mine:
                context.writer.submit(_clearing(context, number, version))
        raise


def _is_under_way(context: Context, number: int, version: int) -> bool:
    return any((number, version) in each for each in list(context.under_way.values()))


def mark(txn: lmdb.Transaction, number: int, version: int, index: int) -> None:
    """Updates the mark when a piece is put: piece 0 completes the snapshot, any other piece leaves it unfinished."""
    key = layout.half_key(number, version)
    if index:
        txn.put(key, layout.PRESENT)
    else:
        txn.delete(key)


def drop(txn: lmdb.Transaction, number: int, version: int) -> None:
    """Removes the pieces of a snapshot that will not be finished, and its mark."""
    keys = layout.ThreadKeys(number)
    if txn.get(keys.snapshot_piece(version, 0)) is None:
        for key in [key for key, _ in rows(txn, keys.snapshot_pieces(version))]:
            txn.delete(key)
    txn.delete(layout.half_key(number, version))


def clear(context: Context) -> None:
    """Removes all unfinished snapshots that nobody writes, one in each write. Waits for the writer.

    Raises ShuttingDown.
    """
    with context.engine.read() as txn:
        half = [layout.half_of(key) for key, _ in rows(txn, b"H") if len(key) == layout.HALF_KEY_BYTES]
    for number, version in half:
        if not _is_under_way(context, number, version):
            context.writer.submit(_clearing(context, number, version), wait=True).wait()


def _clearing(context: Context, number: int, version: int) -> Write:
    def run(txn: lmdb.Transaction, batch: Batch) -> None:
        del batch
        if not _is_under_way(context, number, version) and txn.get(layout.half_key(number, version)) is not None:
            drop(txn, number, version)

    return Write(run=run, background=True, frees_space=True)


WEIGHT_MIN_BYTES, WEIGHT_SEALED_BYTES = 32 << 10, 1 << 20
# A snapshot repeats what is in the edits. Made after edits of once its size, snapshots took a quarter of the bytes of
# all recorded runs, and in long runs more than the edits.
WEIGHT_BY_SIZE = 2
# While so many bytes of entries wait to become segments, saves wait for these (``Thread.is_crowded``). Each snapshot
# names all segments of a log, so one of 10 GB takes its time, and entries that come meanwhile stay in memory.
CROWDED_BYTES = 16 << 20
# A snapshot of a larger state takes memory from the budget: the state in one piece, compressed, and as sealed rows.
COUNTED_FROM_BYTES, MEMORY_SHARE = 4 << 20, 3


class Snapshots:
    """Makes a snapshot of a branch when its weight is due."""

    def __init__(self, context: Context, threads: Threads) -> None:
        self._context = context
        self._threads = threads
        # Of a version, one snapshot is made: with other segments, another one would have other bytes, which are the
        # dictionary of later entries.
        self._making = NameLock()
        self._beginning = threading.Lock()
        context.on_crowded = self._relieve

    def _relieve(self, thread: Thread, branch_name: str, version: int, tree: StateTree) -> None:
        """Has segments made of a state that a save was to be made from, which need not be that of a head."""
        branch = thread.branches.get(branch_name)
        if branch is not None and branch.version == version:
            self.consider(thread, branch_name, Saved(version, tree), is_counted=False)
            return
        with self._beginning:
            if thread.snapshot_pending or thread.is_deleted or not has_due(tree):
                return
            thread.snapshot_pending = True
        with suppress(RuntimeError):  # the daemon is stopping
            self._context.background.submit(self._make_old, thread, version, tree)
            return
        thread.snapshot_pending = thread.is_crowded = False

    def _make_old(self, thread: Thread, version: int, tree: StateTree) -> None:
        try:
            with self._context.engine.read() as txn:
                digest = replay.read_version(txn, thread, version).header.digest
        except BaseException as error:
            thread.snapshot_pending = thread.is_crowded = False
            if isinstance(error, StatewardError):  # it was pruned, or is in the archive only
                return
            raise
        self._make(thread, BranchHead(version=version, digest=digest), tree)

    def consider(
        self, thread: Thread, branch_name: str, saved: Saved | None = None, *, is_counted: bool = True
    ) -> None:
        """Starts a snapshot of the branch's head if it is due. Called after each save; cheap if nothing is due.

        ``saved``: the state of a version, which the cache may have no room for. It counts if it is that of the head.
        ``is_counted``: a large one counts in the memory budget, and only the event loop may call it. Else any thread
        may, because what saves wait for, or what frees memory, does not count.
        """
        branch = thread.branches.get(branch_name)
        if thread.snapshot_pending and saved is not None:
            thread.is_crowded = loose_bytes(saved.tree) > CROWDED_BYTES
        if not thread.snapshot_pending:  # its making may have ended at this moment, or before it began
            thread.is_crowded = False
        if branch is None or thread.snapshot_pending or thread.is_deleted:
            return
        known = saved.tree if saved is not None and saved.version == branch.version else None
        is_heavy = is_due_by_weight(branch.weight, branch.snapshot_stored_bytes)
        if not is_heavy and (known is None or not has_due(known)):
            return
        tree = self._context.cache.state(thread.number, branch.version) or known
        if tree is None or not _is_worth(branch, tree):
            return
        with self._beginning:
            if thread.snapshot_pending:
                return
            thread.snapshot_pending = True
        memory_bytes = counted_bytes(tree)
        is_large = memory_bytes > COUNTED_FROM_BYTES and is_counted
        give_back = self._context.reserve(MEMORY_SHARE * memory_bytes) if is_large else None
        try:
            making = self._context.background.submit(self._make, thread, branch, tree)
        except RuntimeError:  # the daemon is stopping; a later save makes the snapshot
            thread.snapshot_pending = thread.is_crowded = False
            return
        if give_back is not None:
            making.add_done_callback(lambda _: give_back())

    def _make(self, thread: Thread, branch: BranchHead, tree: StateTree) -> None:
        is_stored = False
        try:
            if self._is_made(thread, branch.version):
                return
            if has_due(tree):
                is_stored = self._make_sealed(thread, branch, tree)
            else:
                is_stored = self._store_head(thread, branch, tree)
        except (ShuttingDown, DiskFull, ThreadNotFound, NotOwner, UidMismatch, FileNotFoundError):
            pass  # a snapshot is only a shortcut; a later save tries again
        except StatewardError as error:
            log_damage("snapshot failed", error, uid=thread.identity.uid.hex())
        except Exception:  # noqa: BLE001  (nobody waits for this task, so the error is logged and counted)
            failures.note("snapshot", uid=thread.identity.uid.hex())
        finally:
            thread.snapshot_pending = thread.is_crowded = False
        if is_stored:
            self._look_again(thread, branch)

    def _look_again(self, thread: Thread, made_for: BranchHead) -> None:
        """Makes segments of what saves appended while a snapshot was made: no save may follow that would do it."""
        branch = thread.branches.get(made_for.name)
        if branch is None or branch.version == made_for.version:
            return
        tree = self._context.cache.state(thread.number, branch.version)
        if tree is not None and has_due(tree):
            self.consider(thread, branch.name, Saved(branch.version, tree), is_counted=False)

    def _is_made(self, thread: Thread, version: int) -> bool:
        with self._context.engine.read() as txn:
            live = self._threads.by_number(txn, thread.number)
        return live is not None and version in live.snapshots

    def _store_head(self, thread: Thread, branch: BranchHead, tree: StateTree) -> bool:
        """Returns False if the version has a snapshot by now, which is another one, or is gone."""
        has_dictionary = thread.saves > 0 and self._context.cache.fit_together(tree)
        is_stored = self.store(
            thread, branch.version, branch.digest, to_snapshot(tree), branch if branch.name else None,
            named=segments_in_state(tree), has_dictionary=has_dictionary,
        )  # fmt: skip
        if is_stored and not any(branch.snapshot_version == each.snapshot_version for each in thread.branches.values()):
            self._context.cache.drop_dictionary(thread.number, branch.snapshot_version)
        return is_stored

    def _make_sealed(self, thread: Thread, branch: BranchHead, tree: StateTree) -> bool:
        """Makes segments of a state's older entries, then its snapshot. Memory gets the segments when both are on the
        disk: until then, nothing that lasts names them. Returns whether the snapshot was stored."""
        context, identity = self._context, thread.identity
        sealing = context.cache.begin_sealing(thread.number, branch.version, tree)
        try:
            sealed = seal_segments(context, identity, tree, context.cache.source(identity))
            try:
                if sealed.records:
                    write = put_segments(context, self._threads, identity, sealed.records)
                    context.writer.submit(write, wait=True).wait()
            except (DiskFull, NotOwner, ThreadNotFound, UidMismatch):
                discard(context, identity, sealed.records)
                raise
            is_stored = self._store_head(thread, branch, sealed.tree)
        except BaseException:
            context.cache.drop_sealing(thread.number, sealing)
            raise
        if not is_stored:  # what was sealed is named by nothing, and the sweep collects it
            context.cache.drop_sealing(thread.number, sealing)
            return False
        runs = {name: log.entries.runs for name, log in sealed.tree.logs.items() if log is not tree.logs[name]}
        context.cache.end_sealing(thread.number, sealing, runs)
        return True

    def store(
        self,
        thread: Thread,
        version: int,
        digest: bytes,
        snapshot: bytes,
        branch: BranchHead | None = None,
        *,
        named: AbstractSet[bytes] = frozenset(),
        frees_space: bool = False,
        has_dictionary: bool = False,
    ) -> bool:
        """Writes the snapshot of a state, and waits until it is committed. Do not call it on the event loop or in the
        writer. Returns False if the version has a snapshot by now, or is gone.

        ``named``: the segments that it names. ``frees_space``: the snapshot belongs to a prune. A caller waits for it,
        and the prune frees more than it takes.
        """
        context, number = self._context, thread.number
        with self._making.of((number, version)):
            if self._is_made(thread, version):
                return False
            content = parts.pack_snapshot(snapshot)
            with under_way(context, number, version):
                self._check_segments(thread, named)
                if has_dictionary:
                    # Before the snapshot exists, so that the next save finds both, and is compressed with it.
                    context.cache.put_dictionary(number, Dictionary(version, digest, snapshot))
                is_written = False
                try:
                    is_written = self._write(
                        thread, version, digest, content, len(snapshot), branch, frees_space=frees_space
                    )
                finally:
                    if not is_written:
                        context.cache.drop_dictionary(number, version)
        return is_written

    def _write(
        self,
        thread: Thread,
        version: int,
        digest: bytes,
        content: parts.Content,
        plain_bytes: int,
        branch: BranchHead | None,
        *,
        frees_space: bool,
    ) -> bool:
        for index in range(len(content.pieces) - 1, 0, -1):
            row = self._seal(thread, version, digest, content, index)
            self._submit(partial(_put_piece, thread, version, index, row), row, frees_space)
        row = self._seal(thread, version, digest, content, 0)
        stored_bytes, counters = content.stored_bytes, self._context.counters

        def count() -> None:
            counters.snapshot_plain_bytes += plain_bytes

        def finish(txn: lmdb.Transaction, batch: Batch) -> bool:
            draft = self._threads.draft(txn, batch, thread.identity.namespace, thread.name)
            if draft is None or draft.identity.number != thread.number or version in draft.pruned:
                drop(txn, thread.number, version)  # meanwhile the thread was deleted, or the version was pruned
                return False
            _put_piece(thread, version, 0, row, txn, batch)
            self._finish(txn, batch, draft, version, stored_bytes, branch)
            batch.after_commit.append(count)
            return True

        return bool(self._submit(finish, row, frees_space))

    def _check_segments(self, thread: Thread, named: AbstractSet[bytes]) -> None:
        """Raises Corrupt if a segment that the snapshot names was swept: memory was older than the disk. While the
        snapshot is under way, no sweep removes one."""
        if not named:
            return
        with self._context.engine.read() as txn:
            is_whole = all(txn.get(blob_key(thread.identity, digest)) is not None for digest in named)
        if not is_whole:
            self._context.cache.drop_thread(thread.number)
            raise Corrupt("a state in memory names a segment that is gone", thread.name)

    def _seal(self, thread: Thread, version: int, digest: bytes, content: parts.Content, index: int) -> bytes:
        identity = thread.identity
        return parts.seal_piece(
            identity.cipher, parts.SNAPSHOT_MAGIC, content, index, digest, identity.uid, layout.u64(version)
        )

    def _submit(self, run: Callable[[lmdb.Transaction, Batch], object], row: bytes, frees_space: bool) -> object:
        write = Write(
            run=run, size_bytes=len(row) + 8192, background=not frees_space, has_time=not frees_space,
            is_alone=frees_space, frees_space=frees_space,
        )  # fmt: skip
        return self._context.writer.submit(write, wait=True).wait()

    def _finish(
        self,
        txn: lmdb.Transaction,
        batch: Batch,
        draft: ThreadDraft,
        version: int,
        stored_bytes: int,
        made_for: BranchHead | None,
    ) -> None:
        identity, head, sums = draft.identity, draft.next_head(), dict[bytes, int]()
        branches = dict[str, BranchHead]()
        head.stored_bytes += stored_bytes
        branch = draft.branch(made_for.name) if made_for is not None else None
        # A save with an explicit parent may have moved the branch meanwhile, to a version not made from this one.
        is_behind = branch is not None and branch.snapshot_version < version
        if (
            made_for is not None
            and branch is not None
            and is_behind
            and replay.is_ancestor(txn, draft, version, branch.version)
        ):
            moved = BranchHead()
            moved.CopyFrom(branch)
            moved.snapshot_version = version
            moved.snapshot_stored_bytes = stored_bytes
            moved.weight = max(branch.weight - made_for.weight, 0)
            sums = dict([write_branch(txn, draft, head, moved)])
            branches[moved.name] = moved
        write_head(txn, identity, head)
        draft.branches.update(branches)
        draft.head = head
        draft.row_sums.update(sums)
        draft.snapshots |= {version}
        self._threads.keep_draft(batch, draft)
        counters = self._context.counters

        def count() -> None:
            counters.snapshots += 1
            counters.snapshot_bytes += stored_bytes

        batch.after_commit.append(count)


def is_due_by_weight(weight: int, snapshot_bytes: int, *, is_sealed: bool = False) -> bool:
    """Whether a snapshot is due after edits of some weight. ``snapshot_bytes``: the size of the last one.

    ``is_sealed``: the logs of the state have segments.
    """
    return weight >= max(WEIGHT_BY_SIZE * snapshot_bytes, WEIGHT_SEALED_BYTES if is_sealed else WEIGHT_MIN_BYTES)


def _is_worth(branch: BranchHead, tree: StateTree) -> bool:
    """Whether a snapshot is due that is heavy enough for a state without segments."""
    return not has_segments(tree) or has_due(tree) or branch.weight >= WEIGHT_SEALED_BYTES


def is_being_made(context: Context, number: int) -> bool:
    """Whether a snapshot of a thread is being written."""
    return any(each[0] == number for made in list(context.under_way.values()) for each in made)


def put_snapshot(txn: lmdb.Transaction, draft: ThreadDraft, version: int, digest: bytes, content: parts.Content) -> int:
    """Writes a snapshot that was packed before. Packing takes long, and would block the writer."""
    identity = draft.identity
    total = 0
    for index in range(len(content.pieces)):
        row = parts.seal_piece(
            identity.cipher, parts.SNAPSHOT_MAGIC, content, index, digest, identity.uid, layout.u64(version)
        )
        txn.put(identity.keys.snapshot_piece(version, index), row)
        total += len(row)
    return total


def _put_piece(thread: Thread, version: int, index: int, row: bytes, txn: lmdb.Transaction, batch: Batch) -> None:
    del batch
    if txn.get(thread.identity.keys.head) is None:
        raise not_found(thread.identity.namespace, thread.name)  # deleted meanwhile
    txn.put(thread.identity.keys.snapshot_piece(version, index), row)
    mark(txn, thread.number, version, index)
