"""Deletes a held thread that is locked: its head cannot be read, so its index rows are found by its number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import lmdb

from stateward.storage.v1.head_pb2 import DeletionRecord
from stateward_sidecar.storage import layout
from stateward_sidecar.storage.keystore import NamespaceKeys
from stateward_sidecar.storage.queue import Batch
from stateward_sidecar.store.journal.journal import next_place, seal_deletion
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.thread import head_uid, rows

# The rows of these tables end with the number of their thread, or with what is left of a number without it.
INDEXES: dict[bytes, Callable[[bytes], int]] = {
    b"U": lambda key: layout.unpack_updated(key)[1],
    b"S": lambda key: layout.unpack_updated(key)[1],
    b"G": layout.labelled_thread,
    b"E": lambda key: layout.unpack_expiry(key)[1],
    b"R": lambda key: layout.unpack_expiry(key)[1],
}


@dataclass(frozen=True, slots=True)
class LockedThread:
    """A locked thread as it was found. It cannot change while it is locked."""

    number: int
    uid: bytes
    head: bytes
    name_row: bytes
    namespace: NamespaceKeys
    indexes: tuple[bytes, ...]


def find_locked(context: Context, number: int, uid: bytes, name_row: bytes = b"") -> LockedThread | None:
    """Looks for the rows outside of a thread's own. Reads some rows of each thread, so it takes a while. Returns None
    if the thread is gone. ``name_row``: the key of its name; empty = it is looked for as well."""
    keystore = context.keystore
    owner = keystore.namespace_of(uid)
    namespace = keystore.namespace_by_id(owner) if owner is not None else None
    with context.engine.read() as txn:
        head = txn.get(layout.ThreadKeys(number).head)
        if head is None or namespace is None or head_uid(head) != uid:
            return None
        if not name_row:
            row = layout.pack_name(number, uid)
            name_row = next((bytes(key) for key, value in rows(txn, b"N") if value == row), b"")
        found = tuple(
            bytes(key) for table, number_of in INDEXES.items() for key, _ in rows(txn, table)
            if number_of(key) == number
        )  # fmt: skip
        return LockedThread(number, uid, bytes(head), name_row, namespace, found)


def delete_locked(
    context: Context, thread: LockedThread, cause: str, purge: Callable[[int, bytes], None],
    tell: Callable[[str, str, None], None],
) -> Callable[[lmdb.Transaction, Batch], bool]:  # fmt: skip
    """Returns the write that deletes a locked thread. It returns False if the thread was opened and changed, or
    deleted, since it was found. ``tell`` is called with the names of namespaces whose watches must look."""

    def run(txn: lmdb.Transaction, batch: Batch) -> bool:
        keystore, keys = context.keystore, layout.ThreadKeys(thread.number)
        if txn.get(keys.head) != thread.head or thread.uid not in keystore.held_uids:
            return False
        cursor = next_place(txn)
        record = DeletionRecord(uid=thread.uid, time_us=context.clock.now_us(), cause=cause)
        txn.put(layout.feed_key(cursor), layout.pack_feed(0, cursor), append=True)
        sealed = seal_deletion(thread.namespace, cursor, record)
        txn.put(layout.deletion_key(cursor), layout.pack_deletion(record.time_us, thread.namespace.id, sealed))
        for key in (thread.name_row, *thread.indexes, layout.retention_key(thread.number), keys.head):
            if key:
                txn.delete(key)

        def destroy_key() -> None:
            keystore.erase_thread(thread.uid)
            for namespace in keystore.known_names(thread.namespace.id):
                tell(namespace, "", None)
            purge(thread.number, thread.uid)

        keystore.mark_leaving(thread.uid, is_leaving=True)
        batch.before_commit.append(keystore.sync)
        batch.after_abort.append(lambda: keystore.mark_leaving(thread.uid, is_leaving=False))
        batch.after_commit.append(destroy_key)
        return True

    return run

