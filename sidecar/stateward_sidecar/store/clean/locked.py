"""Deletes a held thread that is locked: its head cannot be read, so its index rows are found by its number.

A thread has several lines on this disk if some of them were set aside. They have one key, which goes with the last of
them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

import lmdb

from stateward.storage.v1.head_pb2 import DeletionRecord, ThreadHead
from stateward_sidecar.errors import Corrupt
from stateward_sidecar.storage import layout
from stateward_sidecar.storage.namespacekeys import NamespaceKeys
from stateward_sidecar.storage.queue import Batch
from stateward_sidecar.store.journal.journal import LOCAL, next_place, seal_deletion
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.thread import head_uid, load_outline, rows

# The rows of these tables end with the number of their thread, or with what is left of a number without it.
INDEXES: dict[bytes, Callable[[bytes], int]] = {
    b"U": lambda key: layout.unpack_updated(key)[1],
    b"S": lambda key: layout.unpack_updated(key)[1],
    b"G": layout.labelled_thread,
    b"E": lambda key: layout.unpack_expiry(key)[1],
    b"R": lambda key: layout.unpack_expiry(key)[1],
}


@dataclass(frozen=True, slots=True)
class LockedLine:
    """A line of a locked thread: its number, its head row, and the keys of the rows outside of its own."""

    number: int
    head: bytes
    name_row: bytes
    indexes: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class LockedThread:
    """A locked thread as it was found. It cannot change while it is locked."""

    uid: bytes
    namespace: NamespaceKeys
    lines: tuple[LockedLine, ...]
    is_whole: bool
    """Whether these are all of its lines on this disk."""


def find_locked(context: Context, uid: bytes, number: int = 0) -> LockedThread | None:
    """Looks for the rows outside of a thread's own. Reads some rows of each thread, so it takes a while. Returns None
    if the thread is gone. ``number``: of one line; 0 = all lines."""
    keystore = context.keystore
    owner = keystore.namespace_of(uid)
    namespace = keystore.namespace_by_id(owner) if owner is not None else None
    with context.engine.read() as txn:
        named = dict[int, bytes]()
        for key, value in rows(txn, b"N"):
            line, of = layout.unpack_name(value)
            if of == uid:
                named[line] = bytes(key)
        heads = dict[int, bytes]()
        for line in named:
            head = txn.get(layout.ThreadKeys(line).head) if number in (0, line) else None
            if head is not None and head_uid(head) == uid:
                heads[line] = bytes(head)
        if not heads or namespace is None:
            return None
        found: dict[int, list[bytes]] = {line: [] for line in heads}
        for table, number_of in INDEXES.items():
            for key, _ in rows(txn, table):
                if (line := number_of(key)) in found:
                    found[line].append(bytes(key))
        lines = tuple(LockedLine(line, heads[line], named[line], tuple(found[line])) for line in heads)
        return LockedThread(uid, namespace, lines, len(lines) == len(named))


def delete_locked(
    context: Context, thread: LockedThread, cause: str, purge: Callable[[int, bytes], None],
    tell: Callable[[str, str, None], None],
) -> Callable[[lmdb.Transaction, Batch], bool]:  # fmt: skip
    """Returns the write that deletes lines of a locked thread, and its key if no line is left. It returns False if the
    thread was opened or deleted since it was found. The caller sees to it that nobody opens it meanwhile
    (``HeldKeys.ending``). ``tell`` is called with the names of namespaces whose
    watches must look."""

    def run(txn: lmdb.Transaction, batch: Batch) -> bool:
        keystore = context.keystore
        if not _is_there(context, txn, thread):
            return False
        cursor = next_place(txn)
        record = DeletionRecord(uid=thread.uid, time_us=context.clock.now_us(), cause=cause)
        txn.put(layout.feed_key(cursor), layout.pack_feed(0, cursor), append=True)
        sealed = seal_deletion(thread.namespace, cursor, record)
        txn.put(layout.deletion_key(cursor), layout.pack_deletion(record.time_us, thread.namespace.id, sealed))
        outlines = {line.number: _outline(txn, thread, line.number) for line in thread.lines}
        for line in thread.lines:
            _drop(txn, thread.uid, line)

        def end() -> None:
            if thread.is_whole:
                keystore.erase_thread(thread.uid)
            _note_gone(context, thread, outlines, cause)
            for namespace in keystore.known_names(thread.namespace.id):
                tell(namespace, "", None)
            for number, line in enumerate(thread.lines, 1):
                is_last = thread.is_whole and number == len(thread.lines)
                purge(line.number, thread.uid if is_last else b"")

        if thread.is_whole:
            keystore.mark_leaving(thread.uid, is_leaving=True)
            batch.before_commit.append(keystore.sync)
            batch.after_abort.append(lambda: keystore.mark_leaving(thread.uid, is_leaving=False))
        batch.after_commit.append(end)
        return True

    return run


def _is_there(context: Context, txn: lmdb.Transaction, thread: LockedThread) -> bool:
    """Returns whether a thread is still locked, and as it was found."""
    keystore = context.keystore
    if thread.uid not in keystore.held_uids or keystore.held.is_open(thread.uid):
        return False
    return all(txn.get(layout.ThreadKeys(line.number).head) == line.head for line in thread.lines)


def _note_gone(context: Context, thread: LockedThread, outlines: Mapping[int, ThreadHead], cause: str) -> None:
    """Tells those who count threads."""
    for number, outline in outlines.items():
        if outline.namespace and context.usage.is_on:
            context.usage.note(number, outline.namespace, -outline.stored_bytes, -1)
    if context.archive is not None:
        context.archive.locked_gone(thread.uid, set(outlines), cause == LOCAL)


def _outline(txn: lmdb.Transaction, thread: LockedThread, number: int) -> ThreadHead:
    with suppress(Corrupt):
        return load_outline(txn, thread.namespace, number, thread.uid) or ThreadHead()
    return ThreadHead()


def _drop(txn: lmdb.Transaction, uid: bytes, line: LockedLine) -> None:
    number = line.number
    for key in (
        line.name_row, *line.indexes, layout.retention_key(number), layout.outbox_key(number),
        layout.orphan_key(uid, number), layout.ThreadKeys(number).head,
    ):  # fmt: skip
        txn.delete(key)
