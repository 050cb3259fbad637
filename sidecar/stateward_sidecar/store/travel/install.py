"""Installs what was fetched from the archive: rows as they are, and the index rows that they imply.

Nothing is trusted. HEAD is authenticated, and the objects have the hashes that HEAD names. Each entry must open under
the thread's key and continue the digest of the entry before it. The last entry must be the tip of HEAD.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import lmdb

from stateward.storage.v1.archive_pb2 import ArchiveRow, PackedRow, ThreadImage
from stateward.storage.v1.head_pb2 import BranchHead, ThreadHead
from stateward_sidecar.codec.entry import Entry, unpack
from stateward_sidecar.codec.parts import SNAPSHOT_MAGIC, piece_digest
from stateward_sidecar.errors import ArchiveUnavailable, Corrupt, no_room
from stateward_sidecar.storage import layout
from stateward_sidecar.storage.namespacekeys import NamespaceKeys
from stateward_sidecar.storage.queue import Batch, Write
from stateward_sidecar.store.blobs.blobsweep import drop_lost_snapshots, install_blobs, rows_by_key
from stateward_sidecar.store.clean.delete import orphans_of
from stateward_sidecar.store.journal import replay
from stateward_sidecar.store.journal.finding import digest_at
from stateward_sidecar.store.journal.journal import (
    index_expiry,
    index_options,
    index_time,
)
from stateward_sidecar.store.kinds.effect import take_pruned
from stateward_sidecar.store.kinds.objects import find_again, take_removed
from stateward_sidecar.store.kinds.record import forget_gone, has_records, record_floor
from stateward_sidecar.store.kinds.record import index_expiry as index_records_expiry
from stateward_sidecar.store.kinds.signal import drop_signals, put_signals
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.thread import (
    Identity,
    Thread,
    ThreadDraft,
    delete_row,
    rows,
    write_archive_row,
    write_branch,
    write_head,
    write_row,
)
from stateward_sidecar.store.thread.threads import Threads
from stateward_sidecar.store.thread.times import expire_second
from stateward_sidecar.store.travel.fetched import (
    check_chain,
    index_entries,
    is_entry,
    is_snapshot,
    newer,
    note_uncleared,
    pruned_elsewhere,
    put_rows,
)
from stateward_sidecar.store.versions.snapshots import mark, under_way
from stateward_sidecar.telemetry import log_damage

HISTORY_BYTES = 1 << 20


class CopyGone(Exception):
    """The copy was deleted on this disk while the rest was fetched. The caller fetches the whole thread."""


@dataclass(slots=True)
class Incoming:
    """A thread from the archive, or as much of it as is needed to continue."""

    namespace: NamespaceKeys
    uid: bytes
    data_key: bytes = field(repr=False)
    image: ThreadImage
    row: ArchiveRow  # the new archive row; ``install`` sets its floor
    rows: list[PackedRow] = field(default_factory=list)
    have: int = 0  # ``rows`` continue a copy that has the entries up to this one
    is_first: bool = False  # there was no copy on this disk to compare with
    held: bytes = field(default=b"", repr=False)  # the slot of a held thread


class Installer:
    """Writes incoming threads. Waits for the writer, so not for the event loop."""

    def __init__(self, context: Context, threads: Threads) -> None:
        self._context = context
        self._threads = threads

    def install(self, incoming: Incoming) -> Thread:
        """Makes or renews this disk's copy in one transaction. Raises Corrupt, DiskFull, CopyGone, ArchiveUnavailable.

        ``incoming`` must continue a copy that is on this disk: entries up to its tip stay, later ones are added.
        """
        def run(txn: lmdb.Transaction, batch: Batch) -> ThreadDraft:
            return self._put(txn, batch, incoming)

        write = Write(run=run, size_bytes=_size_bytes(incoming.rows), is_alone=True)
        draft: ThreadDraft = self._context.writer.submit(write, wait=True).wait()
        thread = draft.thread
        with self._context.engine.read() as txn:
            return self._threads.by_number(txn, thread.number) or thread

    def check_room(self, rows: Sequence[PackedRow]) -> None:
        """Raises DiskFull if these rows will not fit. Whoever takes a thread asks before it says so in HEAD."""
        size, room = _size_bytes(rows), self._context.engine.room_bytes()
        if size > room:
            raise no_room(size, room)

    def _put(self, txn: lmdb.Transaction, batch: Batch, incoming: Incoming) -> ThreadDraft:
        image, row = incoming.image, incoming.row
        namespace, name = image.head.namespace, image.head.thread
        old = self._threads.draft(txn, batch, namespace, name)
        if old is None and incoming.have:
            raise CopyGone
        if old is not None and old.identity.uid != incoming.uid:
            raise Corrupt("the archive has another thread of this name", name)
        if old is not None and incoming.is_first:  # a save under an old claim made it, perhaps of another line
            raise ArchiveUnavailable(f"thread {name!r} was made on this disk while it was fetched; try again")
        if old is not None and old.head.tip_sequence > image.head.tip_sequence:
            raise Corrupt("HEAD is older than the copy on this disk", name)
        is_equal = old is not None and old.head.tip_sequence == image.head.tip_sequence
        if old is not None and is_equal and old.head.tip_digest != image.head.tip_digest:
            raise Corrupt("HEAD belongs to another line than the copy on this disk", name)
        draft = self._begin(txn, batch, incoming) if old is None else old
        identity, before = draft.identity, draft.head
        have = entries_here(draft)
        entries = check_chain(identity, incoming.rows, image.head, have, before.tip_digest if have else b"")
        first = entries[0].header.sequence if entries else image.head.tip_sequence + 1
        row.floor_sequence, row.floor_version = self._floor(draft, entries, first, have, image.head)
        put_rows(txn, draft, newer(incoming.rows, entries))
        old_pruned = draft.pruned
        take_pruned(txn, draft, image.pruned)
        gone = take_removed(txn, draft, old_pruned)
        forget = partial(self._context.trees.forget, identity.number)
        forget()
        batch.after_commit.append(forget)
        note_uncleared(txn, draft, entries, pruned_elsewhere(txn, draft, old_pruned))
        told = before.tip_sequence if old is not None else self._told(txn, identity, entries)
        index_entries(txn, draft, entries, told)
        find_again(txn, draft, gone)
        draft.snapshots |= {item.snapshot_version for item in incoming.rows if is_snapshot(item)}
        if has_records(image.head) and row.floor_sequence <= record_floor(draft):
            forget_gone(txn, identity)
        blobs = rows_by_key(identity, image.blobs)
        drop_lost_snapshots(self._context, txn, batch, draft, blobs)
        self._put_rows_of_image(txn, draft, image, row, before)
        install_blobs(self._context, self._threads, txn, batch, identity, blobs)
        write_archive_row(txn, draft, row)
        self._threads.keep_draft(batch, draft)
        batch.after_commit.append(lambda: self._forget_heads(draft.thread, before))
        return draft

    def take_place(self, txn: lmdb.Transaction, batch: Batch, incoming: Incoming) -> None:
        """Puts a thread of this disk under another key, without an archive. The same write has deleted the old one. Its
        entries are no events, because the watches were told of them."""
        draft, image, no_row = self._begin(txn, batch, incoming), incoming.image, ArchiveRow()
        entries = check_chain(draft.identity, incoming.rows, image.head, 0, b"")
        put_rows(txn, draft, incoming.rows)
        take_pruned(txn, draft, image.pruned)
        note_uncleared(txn, draft, entries)
        index_entries(txn, draft, entries, image.head.tip_sequence)
        draft.snapshots |= {item.snapshot_version for item in incoming.rows if is_snapshot(item)}
        self._put_rows_of_image(txn, draft, image, no_row, ThreadHead(row_sum=b"\0" * 16))
        install_blobs(
            self._context, self._threads, txn, batch, draft.identity, rows_by_key(draft.identity, image.blobs)
        )
        self._threads.keep_draft(batch, draft)

    def _told(self, txn: lmdb.Transaction, identity: Identity, entries: Sequence[Entry]) -> int:
        """Returns the newest of these entries that a copy had which was set aside: the watches of the namespace were
        told of it. The copy may be of any line, so digests are compared."""
        told = 0
        for number in orphans_of(txn, identity.uid):
            orphan = self._threads.stored_head(txn, number)
            common = orphan.archive.common_sequence if orphan is not None and orphan.archive is not None else 0
            for header in (entry.header for entry in reversed(entries)):
                if orphan is None or header.sequence <= told:
                    break
                if header.sequence <= common and digest_at(txn, orphan.identity, header.sequence) == header.digest:
                    told = header.sequence
        return told

    def _forget_heads(self, thread: Thread, before: ThreadHead) -> None:
        thread.records_checked = thread.effects_checked = False
        if before.main_version:
            self._context.cache.drop_state(thread.number, before.main_version)

    def _begin(self, txn: lmdb.Transaction, batch: Batch, incoming: Incoming) -> ThreadDraft:
        context, keystore, uid = self._context, self._context.keystore, incoming.uid
        namespace, name = incoming.image.head.namespace, incoming.image.head.thread
        # An orphan of the thread has the same key.
        if not (incoming.held and uid in keystore.held_uids) and keystore.thread_key(uid, incoming.namespace) is None:
            keystore.add_thread(uid, incoming.namespace, incoming.data_key, held=incoming.held)
            batch.after_abort.append(lambda: keystore.release(uid))
            batch.before_commit.append(keystore.sync)
        # Also for an existing key: the last process may have died between marking the key and destroying it.
        batch.after_commit.append(lambda: keystore.mark_leaving(uid, is_leaving=False))
        number = context.next_thread
        context.next_thread += 1
        identity = Identity(
            number, uid, namespace, name, incoming.namespace, incoming.data_key, is_held=bool(incoming.held)
        )
        txn.put(layout.NEXT_THREAD_KEY, layout.u64(number + 1))
        txn.put(layout.name_key(incoming.namespace.names.thread(name)), layout.pack_name(number, uid))
        return ThreadDraft(Thread(identity, ThreadHead(row_sum=b"\0" * 16)))

    @staticmethod
    def _floor(
        draft: ThreadDraft, entries: Sequence[Entry], first: int, have: int, head: ThreadHead
    ) -> tuple[int, int]:
        """Returns the floor (sequence, version) of the copy. It changes if the new entries do not continue the old."""
        if have and first <= have + 1:
            return draft.floor_sequence, draft.floor_version
        if first <= 1:
            return 0, 0
        versions = [entry.header.version for entry in entries if entry.header.version]
        return first - 1, min(versions) - 1 if versions else head.last_version

    def _put_rows_of_image(
        self, txn: lmdb.Transaction, draft: ThreadDraft, image: ThreadImage, row: ArchiveRow, before: ThreadHead
    ) -> None:
        identity = draft.identity
        head = ThreadHead()
        head.CopyFrom(image.head)
        head.row_sum = before.row_sum
        head.epoch = max(head.epoch, row.head.epoch)
        sums: dict[bytes, int] = {}
        for branch in image.branches:
            renewed = self._at_hand(txn, draft, branch, row.floor_version)
            sums.update([write_branch(txn, draft, head, renewed)])
            draft.branches[branch.name] = renewed
        for name in draft.all_branches().keys() - {branch.name for branch in image.branches}:
            sums.update([delete_row(txn, draft, head, identity.branch_key(name))])
            draft.branches[name] = None
        for tag in image.tags:
            sums.update([write_row(txn, draft, head, _tag_key(identity, tag.name), tag)])
            draft.tags[tag.name] = tag.version
        for name in draft.thread.tags.keys() - {tag.name for tag in image.tags}:
            sums.update([delete_row(txn, draft, head, _tag_key(identity, name))])
            draft.tags[name] = None
        if not draft.pruned.is_empty:
            sums.update([write_row(txn, draft, head, identity.keys.pruned(), draft.pruned.to_message())])
        gone_signals = draft.thread.signals.keys() - {row.sequence for row in image.signals}
        sums.update(drop_signals(txn, draft, head, gone_signals))
        sums.update(put_signals(txn, draft, head, image.signals))
        draft.signals.update(dict.fromkeys(gone_signals))
        draft.signals.update((row.sequence, row) for row in image.signals)
        index_options(txn, identity, before.options, head.options)
        index_expiry(txn, identity.number, before, head)
        if second := expire_second(head):  # always, because index_expiry writes only changes
            txn.put(layout.expiry_key(second, identity.number), layout.PRESENT)
        index_records_expiry(txn, identity.number, before.record_expire_second, head.record_expire_second)
        if head.record_expire_second:
            txn.put(layout.records_expiry_key(head.record_expire_second, identity.number), layout.PRESENT)
        index_time(txn, identity, before if before.tip_sequence else None, head)
        write_head(txn, identity, head)
        draft.head = head
        draft.row_sums.update(sums)

    @staticmethod
    def _at_hand(txn: lmdb.Transaction, draft: ThreadDraft, branch: BranchHead, floor_version: int) -> BranchHead:
        """Returns a branch as it is on this disk, where its newest snapshot may be missing."""
        renewed = BranchHead()
        renewed.CopyFrom(branch)
        if (
            branch.snapshot_version
            and branch.snapshot_version not in draft.snapshots
            and branch.version > floor_version
        ):
            renewed.snapshot_version = renewed.snapshot_stored_bytes = 0
        elif branch.snapshot_version in draft.snapshots:
            renewed.snapshot_stored_bytes = replay.snapshot_stored_bytes(txn, draft.identity, branch.snapshot_version)
        return renewed

    # -- older history ------------------------------------------------------------------------------------------

    def add_history(self, thread: Thread, found: Sequence[PackedRow]) -> None:
        """Puts older entries and snapshots, some at a time. They are used only after ``finish_history``."""
        # The first piece of a snapshot is put last: without it the snapshot does not exist.
        found = sorted(found, key=lambda item: (is_snapshot(item), item.snapshot_version, -item.index))
        with under_way(self._context, thread.number, *(item.snapshot_version for item in found if is_snapshot(item))):
            self._add_history(thread, found)

    def _add_history(self, thread: Thread, found: Sequence[PackedRow]) -> None:
        at = 0
        while at < len(found):
            size, end = 0, at
            while end < len(found) and (size < HISTORY_BYTES or end == at):
                size += len(found[end].record)
                end += 1
            some = found[at:end]
            at = end

            def run(txn: lmdb.Transaction, batch: Batch, some: Sequence[PackedRow] = some) -> None:
                draft = self._of(txn, batch, thread)
                if draft is None:
                    return
                put_rows(txn, draft, some)
                for item in some:
                    if is_snapshot(item):
                        mark(txn, thread.number, item.snapshot_version, item.index)
                entries = [unpack(item.record, item.sequence) for item in some if is_entry(item)]
                note_uncleared(txn, draft, entries)
                index_entries(txn, draft, entries, layout.SEQUENCE_MAX)

            self._submit(Write(run=run, size_bytes=size + 8192, background=True))

    def finish_history(
        self, thread: Thread, snapshots: set[int], floor: tuple[int, int] = (0, 0),
        gone: tuple[bool, bool] = (False, False),
    ) -> None:  # fmt: skip
        """Lowers the floor to ``floor`` (sequence, version): everything after it is on this disk now.

        ``gone``: whether entries of records and of effects went with the thread from which an orphan comes.
        """

        def run(txn: lmdb.Transaction, batch: Batch) -> None:
            draft = self._of(txn, batch, thread)
            if draft is None or draft.archive is None:
                return
            row = ArchiveRow()
            row.CopyFrom(draft.archive)
            row.floor_sequence, row.floor_version = floor
            row.records_gone, row.effects_gone = gone
            write_archive_row(txn, draft, row)
            if row.floor_sequence <= record_floor(draft):
                forget_gone(txn, draft.identity)
            draft.snapshots |= {version for version in snapshots if _is_of_line(txn, draft, version)}
            self._threads.keep_draft(batch, draft)

        self._submit(Write(run=run, size_bytes=8192))

    def _of(self, txn: lmdb.Transaction, batch: Batch, thread: Thread) -> ThreadDraft | None:
        draft = self._threads.draft(txn, batch, thread.identity.namespace, thread.name)
        return draft if draft is not None and draft.identity.number == thread.number else None

    def _submit(self, write: Write) -> None:
        self._context.writer.submit(write, wait=True).wait()


def entries_here(thread: Thread | ThreadDraft) -> int:
    """Returns the newest sequence that new entries can continue; 0 if this disk has no entries of the thread."""
    tip = thread.head.tip_sequence
    return tip if thread.floor_sequence < tip else 0


def continues(thread: Thread, found: Sequence[PackedRow]) -> bool:
    """Returns whether fetched entries may follow those on this disk.

    If the entry after our newest one is among them, it must name the digest of our newest entry.
    """
    following = entries_here(thread) + 1
    for item in found:
        if following > 1 and is_entry(item) and item.sequence == following:
            previous: bytes = unpack(item.record, item.sequence).header.previous_digest
            return previous == thread.head.tip_digest
    return True


def _is_of_line(txn: lmdb.Transaction, draft: ThreadDraft, version: int) -> bool:
    """Returns whether a fetched snapshot belongs to this line. Removes it if it does not."""
    if version in draft.snapshots:
        return True
    identity = draft.identity
    first = txn.get(identity.keys.snapshot_piece(version, 0))
    if first is None:
        return False
    try:
        digest = piece_digest(identity.cipher, SNAPSHOT_MAGIC, first, identity.uid, layout.u64(version))
        replay.check_line(txn, draft, version, digest)
    except Corrupt as error:
        log_damage("a snapshot from the archive is left out", error, uid=identity.uid_text)
        for key, _ in list(rows(txn, identity.keys.snapshot_pieces(version))):
            txn.delete(key)
        return False
    return True


def _tag_key(identity: Identity, name: str) -> bytes:
    return identity.keys.tag(identity.hash_id(b"tag", name))


def _size_bytes(rows: Sequence[PackedRow]) -> int:
    return sum(len(row.record) + 256 for row in rows) + 16384
