"""Finds a version by its reference, and an entry by its digest.

Finds the version that a VersionRef names.

Finds an entry again after it was written. The digest identifies the entry; a name and a sequence do not.

Another sidecar may take the thread over between a commit and a question about its level. The name then leads to another
line, and the entry is in an orphan.
"""

from __future__ import annotations

from dataclasses import dataclass

import lmdb

from stateward.storage.v1.archive_pb2 import ArchiveHead
from stateward.storage.v1.head_pb2 import BranchHead
from stateward.storage.v1.journal_pb2 import EntryHeader
from stateward.v1.checkpoint_pb2 import VersionRef
from stateward.v1.thread_pb2 import THREAD_ACCESS_ORPHAN
from stateward_sidecar.codec.entry import Entry, unpack
from stateward_sidecar.errors import Corrupt, Fenced, InvalidField, VersionMismatch, VersionNotFound, VersionPruned
from stateward_sidecar.storage import layout
from stateward_sidecar.store.journal import replay
from stateward_sidecar.store.thread import blocks
from stateward_sidecar.store.thread.cache import Cache
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.thread import MAIN, Identity, Thread, ThreadDraft, rows
from stateward_sidecar.store.thread.threads import Threads

ANY_BRANCH = "-"


def branch_head(thread: Thread | ThreadDraft, branch: str) -> int:
    """Returns the newest version of a branch; 0 if main is empty. Raises VersionNotFound if there is no such branch."""
    found = thread.branches.get(branch) if isinstance(thread, Thread) else thread.branch(branch)
    if found is None:
        if branch == MAIN:
            return 0
        name = thread.identity.name
        raise VersionNotFound(f"thread {name!r} has no branch {branch!r}", thread=name, branch=branch)
    return found.version


def names_head(cache: Cache, thread: Thread, ref: VersionRef, head: BranchHead) -> bool:
    """Returns whether memory alone shows that a reference names the head of a branch. False = look the reference up."""
    kind = ref.WhichOneof("ref")
    if kind == "version":
        return ref.version == head.version and ref.digest in (b"", head.digest)
    if kind == "tag":
        return thread.tags.get(ref.tag) == head.version
    facts = cache.facts(thread.number, head.digest)
    if facts is None or ref.branch not in ("", ANY_BRANCH, head.name):
        return False
    return (facts.body.branch or MAIN, facts.body.checkpoint_id) == (head.name, ref.checkpoint_id)


def resolve(txn: lmdb.Transaction, thread: Thread | ThreadDraft, ref: VersionRef, branch: str, field: str) -> int:
    """Returns the retained version that a reference names; 0 for the empty state.

    Raises InvalidField, VersionNotFound, VersionPruned, VersionMismatch, HistoryElsewhere or Corrupt.
    """
    kind = ref.WhichOneof("ref")
    if kind is None:
        raise InvalidField(field, "names no version: set version, checkpoint_id or tag")
    if kind == "version":
        version = ref.version
    elif kind == "tag":
        version = _tagged(thread, ref.tag)
    elif ref.branch == ANY_BRANCH:
        version = _named_anywhere(txn, thread, ref.checkpoint_id, branch)
    else:
        version = _named(txn, thread, ref.checkpoint_id, ref.branch or branch)
    if version:
        replay.check_version(thread, version)
    if ref.digest:
        digest = digest_of_version(txn, thread, version)
        if digest != ref.digest:
            name = thread.identity.name
            raise VersionMismatch(
                f"version {version} of thread {name!r} has another digest than expected", thread=name, field=field,
                current_version=version, current_digest=digest.hex(), expected_version=version,
            )  # fmt: skip
    return version


def digest_of_version(txn: lmdb.Transaction, thread: Thread | ThreadDraft, version: int) -> bytes:
    """Returns the digest of a retained version; empty for version 0. Raises as ``replay.read_version`` does."""
    if not version:
        return b""
    main = thread.branches.get(MAIN) if isinstance(thread, Thread) else thread.branch(MAIN)
    if main is not None and main.version == version:
        return main.digest
    entry = replay.read_version(txn, thread, version)
    replay.open_metadata(thread.identity, entry)  # proves the digest in the header
    return entry.header.digest


def resolve_or_head(
    txn: lmdb.Transaction, thread: Thread | ThreadDraft, ref: VersionRef | None, branch: str, field: str
) -> int:
    """Returns the version that a reference names, or the branch's head if there is no reference.

    Raises as ``resolve`` does, and VersionNotFound for version 0.
    """
    version = resolve(txn, thread, ref, branch, field) if ref is not None else branch_head(thread, branch)
    if version == 0:
        name = thread.identity.name
        what = "no version 0; the first version is 1" if ref is not None else f"no version on branch {branch!r}"
        raise VersionNotFound(f"thread {name!r} has {what}", thread=name, version=0)
    return version


def _tagged(thread: Thread | ThreadDraft, tag: str) -> int:
    found = thread.tags.get(tag) if isinstance(thread, Thread) else thread.tag(tag)
    if found is None:
        name = thread.identity.name
        raise VersionNotFound(f"thread {name!r} has no tag {tag!r}", thread=name, tag=tag)
    return found


def _named(txn: lmdb.Transaction, thread: Thread | ThreadDraft, checkpoint_id: str, branch: str) -> int:
    found = _look_up(txn, thread, checkpoint_id, branch)
    if not found:
        name = thread.identity.name
        raise VersionNotFound(
            f"branch {branch!r} of thread {name!r} has no checkpoint id {checkpoint_id!r}",
            thread=name, branch=branch, checkpoint_id=checkpoint_id,
        )  # fmt: skip
    return found


def _named_anywhere(txn: lmdb.Transaction, thread: Thread | ThreadDraft, checkpoint_id: str, branch: str) -> int:
    """Returns the version with an id: that of the branch if it has one, else the newest of the other branches."""
    found = _look_up(txn, thread, checkpoint_id, branch)
    if not found:
        names = thread.all_branches() if isinstance(thread, ThreadDraft) else thread.branches
        found = max((_look_up(txn, thread, checkpoint_id, name) for name in list(names)), default=0)
    if not found:
        name = thread.identity.name
        raise VersionNotFound(
            f"no branch of thread {name!r} has checkpoint id {checkpoint_id!r}",
            thread=name, branch=ANY_BRANCH, checkpoint_id=checkpoint_id,
        )  # fmt: skip
    return found


def _look_up(txn: lmdb.Transaction, thread: Thread | ThreadDraft, checkpoint_id: str, branch: str) -> int:
    found = find_named(txn, thread, checkpoint_id, branch)
    return found.header.version if found is not None else 0


def find_named(txn: lmdb.Transaction, thread: Thread | ThreadDraft, checkpoint_id: str, branch: str) -> Entry | None:
    """Returns the entry of the version with an id on a branch; None if there is none.

    Raises HistoryElsewhere or Corrupt.
    """
    identity = thread.identity
    row = txn.get(identity.keys.checkpoint_id(identity.hash_id(b"checkpoint", branch, checkpoint_id)))
    if row is None and thread.floor_sequence:
        raise replay.history_elsewhere(identity)
    if row is None:
        return None
    entry = replay.read_indexed(txn, identity, row)
    body = replay.open_metadata(identity, entry).checkpoint
    if (body.branch or MAIN, body.checkpoint_id) != (branch, checkpoint_id):
        raise Corrupt("the index row of a checkpoint id leads to another version", identity.name)
    return entry


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
        """Returns an orphan of the named thread: whoever names a uid may not read every thread that had it."""
        for key, _ in rows(txn, layout.orphan_prefix(uid)) if uid else ():
            orphan = self._threads.by_number(txn, layout.tail_thread(key))
            if orphan is not None and _is_of(orphan, written) and _has(txn, orphan, written):
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


def _is_of(orphan: Thread, written: Written) -> bool:
    name = orphan.archive.orphan_of if orphan.archive is not None else ""
    return (orphan.identity.namespace, name) == (written.namespace, written.thread)


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
