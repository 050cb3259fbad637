"""Finds an entry again after it was written. The digest identifies the entry; a name and a sequence do not.

Another sidecar may take the thread over between a commit and a question about its level. The name then leads to another
line, and the entry is in an orphan.
"""

from __future__ import annotations

from dataclasses import dataclass

import lmdb

from stateward.storage.v1.archive_pb2 import ArchiveHead
from stateward.storage.v1.journal_pb2 import EntryHeader
from stateward.v1.thread_pb2 import THREAD_ACCESS_ORPHAN
from stateward_sidecar.codec.entry import unpack
from stateward_sidecar.errors import Corrupt, Fenced, VersionPruned
from stateward_sidecar.storage import layout
from stateward_sidecar.store.journal import replay
from stateward_sidecar.store.thread import blocks
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.identity import Identity
from stateward_sidecar.store.thread.thread import Thread, ThreadDraft, rows
from stateward_sidecar.store.thread.threads import Threads


@dataclass(frozen=True, slots=True)
class Written:
    """An entry, as named in the answer to its write."""

    namespace: str
    thread: str
    sequence: int
    uid: str = ""  # in hex; empty = any thread of the name
    digest: bytes = b""  # empty = any entry with the sequence


class Lines:
    """Searches the lines of a thread that are on this disk."""

    def __init__(self, context: Context, threads: Threads) -> None:
        self._context = context
        self._threads = threads

    def find_hot(self, written: Written) -> Thread | None:
        """Returns the thread of that name if it is in memory and has the entry; None if ``find`` must search.

        For the event loop, right after the write. It does not wait for the disk: a new entry is in the page cache.
        """
        thread = self._threads.cached(written.namespace, written.thread)
        if thread is None or _ends_with(thread, written):
            return thread
        try:
            with self._context.engine.read() as txn:
                return thread if _has(txn, thread, written) else None
        except Corrupt:
            return None

    def find(self, written: Written) -> Thread | None:
        """Returns the line that has an entry: the thread itself, or an orphan of it; None if no line has it.

        Raises HistoryElsewhere if only the archive can tell, VersionPruned if the entry was pruned and nobody can tell.
        """
        thread = self._threads.cached(written.namespace, written.thread)
        if thread is not None and _ends_with(thread, written):
            return thread
        with self._context.engine.read() as txn:
            thread = self._threads.find(txn, written.namespace, written.thread)
            if thread is not None and _has(txn, thread, written):
                return thread
            uid = bytes.fromhex(written.uid) if written.uid else thread.identity.uid if thread is not None else b""
            found = self._find_orphan(txn, uid, written)
            if found is None and thread is not None and thread.identity.uid == uid:
                _check_known(txn, thread, written)
            return found

    def _find_orphan(self, txn: lmdb.Transaction, uid: bytes, written: Written) -> Thread | None:
        for key, _ in rows(txn, layout.orphan_prefix(uid)) if uid else ():
            orphan = self._threads.by_number(txn, layout.tail_thread(key))
            if orphan is not None and _has(txn, orphan, written):
                return orphan
        return None


def digest_at(txn: lmdb.Transaction, identity: Identity, sequence: int) -> bytes:
    """Returns the digest of an entry; empty if the entry is not on this disk. Raises Corrupt."""
    header = _header_at(txn, identity, sequence)
    return bytes(header.digest) if header is not None else b""


def digest_before(txn: lmdb.Transaction, identity: Identity, sequence: int) -> bytes:
    """Returns the digest of the entry before an entry; empty if the latter is not on this disk. Raises Corrupt."""
    header = _header_at(txn, identity, sequence)
    return bytes(header.previous_digest) if header is not None else b""


def _header_at(txn: lmdb.Transaction, identity: Identity, sequence: int) -> EntryHeader | None:
    try:
        record = blocks.get_entry(txn, identity.keys, sequence)
        return unpack(record, sequence).header if record is not None else None
    except Corrupt as error:
        raise error.locate(identity.name) from None


def digest_of(txn: lmdb.Transaction, draft: ThreadDraft, sequence: int) -> bytes:
    """Does the same as ``digest_at`` inside a write, where the entry is usually the newest."""
    if sequence == draft.head.tip_sequence:
        return bytes(draft.head.tip_digest)
    return digest_at(txn, draft.identity, sequence)


def fenced(thread: str, head: ArchiveHead, common_sequence: int, orphan: str) -> Fenced:
    """Returns the error for a thread that another sidecar took over.

    ``head``: the HEAD of the other sidecar. ``orphan``: the name of the orphan; empty if no orphan was needed.
    """
    epoch = head.lineage[-1].epoch if head.lineage else head.epoch
    kept = f"; the entries committed here after entry {common_sequence} are in thread {orphan!r}" if orphan else ""
    return Fenced(
        f"thread {thread!r} was taken over by {head.owner_id!r} (epoch {epoch}){kept}", thread=thread,
        owner_id=head.owner_id, epoch=epoch, orphan=orphan, common_sequence=common_sequence,
    )  # fmt: skip


def fenced_by(orphan: Thread) -> Fenced:
    """Returns the error for an entry that is in an orphan only."""
    row = orphan.archive
    assert row is not None
    return fenced(row.orphan_of, row.head, row.common_sequence, orphan.name)


def check_history(line: Thread, sequence: int) -> None:
    """Raises Fenced if the line is an orphan, and the entry is not part of the thread's history."""
    row = line.archive
    if row is not None and row.access == THREAD_ACCESS_ORPHAN and sequence > row.common_sequence:
        raise fenced_by(line)


def _ends_with(thread: Thread, written: Written) -> bool:
    head = thread.head
    is_tip = (head.tip_sequence, head.tip_digest) == (written.sequence, written.digest)
    return is_tip and written.uid in ("", thread.identity.uid_text)


def _has(txn: lmdb.Transaction, thread: Thread, written: Written) -> bool:
    if written.uid not in ("", thread.identity.uid_text) or written.sequence > thread.head.tip_sequence:
        return False
    return not written.digest or digest_at(txn, thread.identity, written.sequence) == written.digest


def _check_known(txn: lmdb.Transaction, thread: Thread, written: Written) -> None:
    """Raises unless it is certain that this line does not have the entry."""
    name, sequence = thread.name, written.sequence
    if sequence > thread.head.tip_sequence or digest_at(txn, thread.identity, sequence):
        return
    if sequence <= thread.floor_sequence:
        raise replay.history_elsewhere(thread.identity)
    if not thread.pruned.is_empty:
        raise VersionPruned(
            f"entry {sequence} of thread {name!r} was pruned; its digest can no longer be compared with the digest in "
            "the request", thread=name, sequence=sequence,
        )  # fmt: skip
