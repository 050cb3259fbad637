"""Deleting a thread: its name, then its key, then its rows.

The key's slot is overwritten and synced right after the transaction that removes name and head was committed, and
before anybody is answered. The other order would destroy the key of a thread whose deletion then fails. The remaining
rows follow in the background. A crash in between is finished at the next start: the key's slot is
marked before the commit, and a marked key that no name leads to goes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import lmdb

from stateward.storage.v1.head_pb2 import DeletionRecord
from stateward.v1.thread_pb2 import ACCESS_ORPHAN
from stateward.v1.thread_service_pb2 import DeleteThreadRequest, DeleteThreadResponse
from stateward_sidecar.codec.seal import Cipher, open_record, seal_record
from stateward_sidecar.errors import ShuttingDown
from stateward_sidecar.storage import layout
from stateward_sidecar.storage.keystore import NamespaceKeys
from stateward_sidecar.storage.writer import Batch, Write
from stateward_sidecar.store.context import Context
from stateward_sidecar.store.journal import expire_second, list_keys, next_place
from stateward_sidecar.store.settings import check_main_version
from stateward_sidecar.store.thread import Draft, head_uid, rows
from stateward_sidecar.store.threads import Threads, not_found
from stateward_sidecar.telemetry import guarded

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

    def delete_ended(
        self, request: DeleteThreadRequest, ended: bytes
    ) -> Callable[[lmdb.Transaction, Batch], DeleteThreadResponse | None]:
        """The verb after the archive was asked, which ended the thread with this uid. Empty: it had none to end.

        A save may have made a thread since then. A thread that the archive has not ended is never deleted here alone:
        it would come back. Returns None if there is such a thread and nothing was ended: the archive is asked again.
        """
        delete = self.delete(request)

        def run(txn: lmdb.Transaction, batch: Batch) -> DeleteThreadResponse | None:
            draft = self._threads.draft(txn, batch, request.namespace, request.thread)
            found = draft.identity.uid if draft is not None else b""
            if draft is not None and draft.thread.access == ACCESS_ORPHAN:
                return delete(txn, batch)
            if found == ended or (not ended and request.expected_uid not in ("", found.hex())):
                return delete(txn, batch)
            return DeleteThreadResponse(uid=ended.hex()) if ended else None

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
        cursor = next_place(txn)
        record = DeletionRecord(
            namespace=identity.namespace, thread=identity.name, uid=identity.uid,
            time_us=context.clock.now_us(), cause=cause, sequence=head.tip_sequence + 1,
        )  # fmt: skip
        txn.put(layout.feed_key(cursor), layout.pack_feed(0, cursor), append=True)
        sealed = seal_deletion(namespace, cursor, record)
        txn.put(layout.deletion_key(cursor), layout.pack_deletion(record.time_us, namespace.id, sealed))
        txn.delete(layout.name_key(namespace.names.thread(identity.name)))
        for key in list_keys(identity, head):
            txn.delete(key)
        txn.delete(layout.retention_key(number))
        txn.delete(layout.outbox_key(number))
        txn.delete(layout.orphan_key(number))
        if second := expire_second(head):
            txn.delete(layout.expiry_key(second, number))
        txn.delete(identity.keys.head())
        uid, thread = identity.uid, draft.thread
        batch.drafts[identity.namespace, identity.name] = None

        def forget() -> None:
            thread.is_deleted = True
            self._threads.forget(thread)
            if context.archive is not None:
                context.archive.gone(thread)

        is_orphan = draft.thread.access == ACCESS_ORPHAN
        if _has_orphans(txn, uid) or (is_orphan and _is_shared(txn, uid)):
            batch.after_commit += [forget, lambda: self.purge(number, b"")]
            return

        def destroy_key() -> None:
            context.keystore.erase_thread(uid)
            forget()

        context.keystore.mark_leaving(uid, is_leaving=True)
        batch.before_commit.append(context.keystore.sync)
        batch.after_abort.append(lambda: context.keystore.mark_leaving(uid, is_leaving=False))
        batch.after_commit.append(destroy_key)
        batch.after_commit.append(lambda: self.purge(number, uid))

    def purge(self, number: int, uid: bytes) -> None:
        """Removes what is left of a deleted thread: its files, then its rows, a bounded number of them at a time."""
        if uid and (gone := self._context.blob_files.set_aside(uid)) is not None:
            with suppress(RuntimeError):  # the daemon is stopping; the next start goes on
                self._context.background.submit(guarded, "deletion", self._context.blob_files.empty, gone)
        self._purge_rows(number, uid)

    def _purge_rows(self, number: int, uid: bytes) -> None:
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
                txn.delete(layout.blobs_key(number))
                txn.delete(layout.uncleared_key(number))
                for key, _ in list(rows(txn, layout.half_prefix(number))):
                    txn.delete(key)
                # Only what was erased: deleted here only, a thread may be back from the archive, under the same uid.
                self._context.keystore.revive(uid)
                if self._context.keystore.sync not in batch.before_commit:
                    batch.before_commit.append(self._context.keystore.sync)
            else:
                batch.after_commit.append(lambda: self._purge_rows(number, uid))

        with suppress(ShuttingDown):  # the next start goes on
            self._context.writer.submit(Write(run=run, background=True, frees_space=True))

    def discard(self, number: int, uid: bytes) -> None:
        """Removes a copy that failed. Its key stays if a name leads to it: with an archive a claim fixes the uid, and
        a save may have made the thread meanwhile. Waits for the writer."""
        keystore = self._context.keystore

        def run(txn: lmdb.Transaction, batch: Batch) -> None:
            del txn
            gone = uid if keystore.is_leaving(uid) else b""
            if gone:
                keystore.release(gone)
                batch.before_commit.append(keystore.sync)
            batch.after_commit.append(lambda: self.purge(number, gone))

        with suppress(ShuttingDown):  # the next start goes on
            self._context.writer.submit(Write(run=run, background=True, frees_space=True), wait=True).wait()


def _has_orphans(txn: lmdb.Transaction, uid: bytes) -> bool:
    """Whether something was set aside of a thread, which needs the key. A deletion everywhere deletes that first."""
    heads = (txn.get(layout.ThreadKeys(layout.orphan_thread(key)).head()) for key, _ in rows(txn, b"F"))
    return any(head is not None and head_uid(head) == uid for head in heads)


def _is_shared(txn: lmdb.Transaction, uid: bytes) -> bool:
    """Whether an orphan's thread, or another orphan of it, needs the key."""
    return any(layout.unpack_name(value)[1] == uid for _, value in rows(txn, b"N"))


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
