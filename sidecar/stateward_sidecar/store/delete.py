"""Deleting a thread: its key first, then its rows.

The key's slot is overwritten and synced before the transaction that removes the name is committed, so from the first
moment at which the thread is gone its bytes are unreadable, in LMDB's free pages as well. The remaining rows follow in
the background; a crash in between is finished at the next start, because the slot still names the thread.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import lmdb

from stateward.storage.v1.head_pb2 import DeletionRecord
from stateward.v1.thread_service_pb2 import DeleteThreadRequest, DeleteThreadResponse
from stateward_sidecar.codec.seal import Cipher, open_record, seal_record
from stateward_sidecar.errors import ShuttingDown
from stateward_sidecar.storage import layout
from stateward_sidecar.storage.keystore import NamespaceKeys
from stateward_sidecar.storage.writer import Batch, Write
from stateward_sidecar.store.context import Context
from stateward_sidecar.store.journal import SECOND_US, expire_second
from stateward_sidecar.store.settings import check_main_version
from stateward_sidecar.store.thread import Draft, rows
from stateward_sidecar.store.threads import Threads, not_found
from stateward_sidecar.telemetry import log

PURGE_ROWS_MAX = 512
DELETION_MAGIC = b"SD"


class Deleter:
    """Deletes threads, on request or when they expire."""

    def __init__(self, context: Context, threads: Threads) -> None:
        self._context = context
        self._threads = threads

    def delete(self, request: DeleteThreadRequest) -> Callable[[lmdb.Transaction, Batch], DeleteThreadResponse]:
        """The verb."""

        def run(txn: lmdb.Transaction, batch: Batch) -> DeleteThreadResponse:
            draft = self._threads.draft(txn, batch, request.namespace, request.thread)
            wrong = draft is not None and request.expected_uid not in ("", draft.identity.uid.hex())
            if draft is None or wrong:
                if request.allow_missing:
                    return DeleteThreadResponse()
                raise not_found(request.namespace, request.thread)
            check_main_version(draft, request)
            self._remove(txn, batch, draft, "request")
            return DeleteThreadResponse(uid=draft.identity.uid.hex(), forks=draft.head.forks)

        return run

    def expire(self, number: int, second: int) -> Callable[[lmdb.Transaction, Batch], bool]:
        """Deletes a thread if its time has really come: a save may have moved it meanwhile."""

        def run(txn: lmdb.Transaction, batch: Batch) -> bool:
            key = layout.expiry_key(second, number)
            if txn.get(key) is None:
                return False
            thread = self._threads.by_number(txn, number)
            if thread is None:
                txn.delete(key)
                return True
            draft = self._threads.draft(txn, batch, thread.identity.namespace, thread.name)
            if draft is None or expire_second(draft.head) != second:
                return False
            self._remove(txn, batch, draft, "ttl")
            return True

        return run

    def _remove(self, txn: lmdb.Transaction, batch: Batch, draft: Draft, cause: str) -> None:
        context, identity, head = self._context, draft.identity, draft.head
        number, namespace = identity.number, identity.namespace_keys
        cursor = context.next_cursor
        context.next_cursor += 1
        record = DeletionRecord(
            namespace=identity.namespace, thread=identity.name, uid=identity.uid,
            time_us=context.clock.now_us(), cause=cause, sequence=head.tip_sequence + 1,
        )  # fmt: skip
        txn.put(layout.feed_key(cursor), layout.pack_feed(0, cursor), append=True)
        sealed = seal_deletion(namespace, cursor, record)
        txn.put(layout.deletion_key(cursor), layout.pack_deletion(record.time_us, namespace.id, sealed))
        txn.delete(layout.name_key(namespace.names.thread(identity.name)))
        txn.delete(layout.updated_key(namespace.tag, head.update_time_us // SECOND_US, number))
        txn.delete(layout.retention_key(number))
        if second := expire_second(head):
            txn.delete(layout.expiry_key(second, number))
        txn.delete(identity.keys.head())
        uid, thread = identity.uid, draft.thread

        def destroy_key() -> None:
            context.keystore.erase_thread(uid)
            thread.is_deleted = True
            self._threads.forget(thread)

        batch.drafts[identity.namespace, identity.name] = None
        batch.before_commit.append(destroy_key)
        batch.after_commit.append(lambda: self.purge(number, uid))

    def purge(self, number: int, uid: bytes) -> None:
        """Removes what is left of a deleted thread, a bounded number of rows at a time."""
        prefix = layout.thread_prefix(number)

        def run(txn: lmdb.Transaction, batch: Batch) -> None:
            keys = []
            for key, _ in rows(txn, prefix):
                keys.append(key)
                if len(keys) >= PURGE_ROWS_MAX:
                    break
            for key in keys:
                txn.delete(key)
            if len(keys) < PURGE_ROWS_MAX:
                self._context.keystore.release(uid)
                if self._context.keystore.sync not in batch.before_commit:
                    batch.before_commit.append(self._context.keystore.sync)
            else:
                batch.after_commit.append(lambda: self.purge(number, uid))

        with suppress(ShuttingDown):  # the next start goes on
            self._context.writer.submit(Write(run=run, background=True, frees_space=True))

    def recover(self, below: int) -> None:
        """At start: finishes deletions that a crash cut short, and removes copies that never were finished.

        Looks at threads with a number below ``below``: later ones may be copies in the making. Runs on a worker.
        """
        wanted = set(self._context.keystore.erased)
        if wanted:
            log.info("finishing deletions", threads=len(wanted))
        with self._context.engine.read() as txn:
            for key, value in rows(txn, b"N") if wanted else ():
                number, uid = layout.unpack_name(value)
                if uid in wanted:
                    wanted.discard(uid)
                    self._context.writer.submit(Write(run=_forget_name(key, number), background=True, frees_space=True))
                    self.purge(number, uid)
            self._purge_headless(txn, wanted, below)

    def _purge_headless(self, txn: lmdb.Transaction, uids: set[bytes], below: int) -> None:
        """Threads whose name row is gone already: their number is found by having rows and no head."""
        cursor = txn.cursor()
        found = cursor.set_range(b"T")
        headless = []
        while found and bytes(cursor.key()[:1]) == b"T":
            number = layout.thread_of(cursor.key())
            if number < below and txn.get(layout.ThreadKeys(number).head()) is None:
                headless.append(number)
            found = cursor.set_range(layout.after(layout.thread_prefix(number)))
        for number in headless:
            self.purge(number, uids.pop() if uids else b"")
        for uid in uids:
            self._context.keystore.release(uid)


def seal_deletion(namespace: NamespaceKeys, cursor: int, record: DeletionRecord) -> bytes:
    """Seals a deletion under its namespace's key: the thread's own key is gone."""
    return seal_record(
        Cipher(namespace.wrapping_key), DELETION_MAGIC, record.SerializeToString(), namespace.id, layout.u64(cursor)
    )


def open_deletion(namespace: NamespaceKeys, cursor: int, row: bytes) -> DeletionRecord | None:
    """The reverse, for a whole row; None for a deletion in another namespace."""
    owner, sealed = layout.unpack_deletion(row)
    if owner != namespace.id:
        return None
    record = open_record(Cipher(namespace.wrapping_key), DELETION_MAGIC, sealed, namespace.id, layout.u64(cursor))
    return DeletionRecord.FromString(record)


def _forget_name(key: bytes, number: int) -> Callable[[lmdb.Transaction, Batch], None]:
    def run(txn: lmdb.Transaction, batch: Batch) -> None:
        del batch
        txn.delete(key)
        txn.delete(layout.ThreadKeys(number).head())
        txn.delete(layout.retention_key(number))

    return run
