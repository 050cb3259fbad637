"""Deletes a thread: first its name, then its key, then its rows.

The transaction that removes name and head is committed first. Then the key's slot is overwritten and synced, and then
the call is answered. The other order would destroy the key of a thread whose deletion then fails. The remaining rows
are removed in the background. The key's slot is marked before the commit. After a crash, the next start destroys every
marked key that no name leads to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

import lmdb

from stateward.storage.v1.head_pb2 import DeletionRecord
from stateward.v1.thread_pb2 import THREAD_ACCESS_ORPHAN
from stateward.v1.thread_service_pb2 import DeleteThreadRequest, DeleteThreadResponse
from stateward.v1.write_pb2 import Receipt
from stateward_sidecar import security
from stateward_sidecar.errors import Locked, ShuttingDown, StatewardError, UidMismatch
from stateward_sidecar.security import DELETED
from stateward_sidecar.storage import layout
from stateward_sidecar.storage.queue import Batch, Write
from stateward_sidecar.store.blobs.blobrows import list_blobs
from stateward_sidecar.store.blobs.blobsweep import other_lines, remove_files
from stateward_sidecar.store.clean.locked import LockedThread, delete_locked, find_locked
from stateward_sidecar.store.journal.admitting import check_deletion, get_draft
from stateward_sidecar.store.journal.journal import LOCAL, list_keys, next_place, seal_deletion
from stateward_sidecar.store.kinds.unchanged import check_unchanged
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.thread import Thread, ThreadDraft, rows
from stateward_sidecar.store.thread.threads import Threads
from stateward_sidecar.store.thread.times import expire_second, has_expired
from stateward_sidecar.telemetry import guarded

PURGE_ROWS_MAX = 512
TTL = "ttl"
"""The cause of a deletion that nobody asked for."""


class Deleter:
    """Deletes threads, on request or when they expire."""

    def __init__(self, context: Context, threads: Threads) -> None:
        self._context = context
        self._threads = threads

    def delete(self, request: DeleteThreadRequest) -> Callable[[lmdb.Transaction, Batch], DeleteThreadResponse]:
        """Returns the write that deletes a thread. It raises ThreadNotFound, UidMismatch or VersionMismatch."""

        def run(txn: lmdb.Transaction, batch: Batch) -> DeleteThreadResponse:
            draft = self._threads.draft(txn, batch, request.namespace, request.thread)
            if request.allow_missing and not _is_meant(draft, request):
                return DeleteThreadResponse(receipt=Receipt())
            draft = get_draft(self._threads, txn, batch, request)
            check_deletion(self._context, draft, request.options)
            check_unchanged(txn, draft, request)
            is_copy = self._context.archive is not None and draft.thread.access != THREAD_ACCESS_ORPHAN
            self._remove(txn, batch, draft, LOCAL if request.local_only and is_copy else "request")
            return DeleteThreadResponse(receipt=Receipt(uid=draft.identity.uid_text), forks=draft.head.forks)

        return run

    def delete_ended(
        self, request: DeleteThreadRequest, ended: bytes
    ) -> Callable[[lmdb.Transaction, Batch], DeleteThreadResponse | None]:
        """Returns the write that deletes a thread after the archive deleted the thread with the uid ``ended``.

        ``ended`` is empty if the archive had no thread to delete. A save may have made a thread since then. A thread
        that the archive has not deleted is never deleted on this disk alone, because it would come back. If there is
        such a thread and ``ended`` is empty, the write returns None, and the caller asks the archive again.
        """
        delete = self.delete(request)

        def run(txn: lmdb.Transaction, batch: Batch) -> DeleteThreadResponse | None:
            draft = self._threads.draft(txn, batch, request.namespace, request.thread)
            found = draft.identity.uid if draft is not None else b""
            if draft is not None and draft.thread.access == THREAD_ACCESS_ORPHAN:
                return delete(txn, batch)
            if found == ended or (not ended and not _is_meant(draft, request)):
                return delete(txn, batch)
            return DeleteThreadResponse(receipt=Receipt(uid=ended.hex())) if ended else None

        return run

    def find_locked(self, request: DeleteThreadRequest, error: Locked) -> LockedThread | None:
        """Looks for what a request deletes on this disk of a locked thread; None if it is gone. Takes a while. Raises
        the error if the request expects something that nobody can see now, and UidMismatch."""
        options, keys = request.options, self._context.keystore.namespace(request.namespace)
        if sees(request) or keys is None:
            raise error
        with self._context.engine.read() as txn:
            row = txn.get(layout.name_key(keys.names.thread(request.thread)))
        if row is None:
            return None
        number, uid = layout.unpack_name(row)
        if options.expected_uid not in ("", uid.hex()):
            raise UidMismatch(
                f"thread {request.thread!r} has uid {uid.hex()}, and {options.expected_uid} was expected",
                thread=request.thread, uid=uid.hex(), expected_uid=options.expected_uid,
            )  # fmt: skip
        return find_locked(self._context, uid, number)

    def find_ended(self, uid: bytes) -> LockedThread | None:
        """Looks for what this disk has of a locked thread that the archive has deleted."""
        return find_locked(self._context, uid)

    def delete_locked(self, thread: LockedThread, cause: str) -> Callable[[lmdb.Transaction, Batch], bool]:
        """Returns the write that deletes a locked thread. See ``locked.delete_locked``."""
        return delete_locked(self._context, thread, cause, self.purge, self._threads.on_change)

    def expire(self, number: int, second: int) -> Callable[[lmdb.Transaction, Batch], bool]:
        """Returns the write that deletes a thread if it still expires at ``second``. A save may have moved the time.

        The write returns False if it deleted nothing.
        """

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
            if not has_expired(draft.head, self._context.clock.now_us()):  # a clock was behind at the last save
                return False
            self._remove(txn, batch, draft, TTL)
            return True

        return run

    def replace(self, txn: lmdb.Transaction, batch: Batch, draft: ThreadDraft) -> None:
        """Deletes a thread, as a request does, whose place another one takes in the same write."""
        self._remove(txn, batch, draft, "request")

    def _remove(self, txn: lmdb.Transaction, batch: Batch, draft: ThreadDraft, cause: str) -> None:
        context, identity, head = self._context, draft.identity, draft.head
        number, namespace = identity.number, identity.namespace_keys
        cursor = next_place(txn)
        record = DeletionRecord(
            namespace="" if identity.is_held else identity.namespace,
            thread="" if identity.is_held else identity.name, uid=identity.uid,
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
        txn.delete(layout.orphan_key(identity.uid, number))
        if second := expire_second(head):
            txn.delete(layout.expiry_key(second, number))
        if head.record_expire_second:
            txn.delete(layout.records_expiry_key(head.record_expire_second, number))
        txn.delete(identity.keys.head)
        uid, thread, lost = identity.uid, draft.thread, head.tip_sequence if cause == LOCAL else 0
        batch.drafts[identity.namespace, identity.name] = None

        def forget() -> None:
            thread.is_deleted = True
            self._threads.note_deleted(thread)
            self._threads.forget(thread)
            if context.archive is not None:
                context.archive.gone(thread, lost)
            elif cause == TTL:  # the archive tells of its own; of requests, who answers them
                security.note(DELETED, "an expired thread was deleted", uid=identity.uid_text, everywhere=True)

        claims = context.archive.claims if context.archive is not None else {}
        claim = claims.get((identity.namespace, identity.name))
        if claim is not None and claim.uid == uid:  # else the next save of this batch would take the key that goes now
            del claims[identity.namespace, identity.name]
        if any(other_lines(txn, identity, _origin(thread))):  # they have the same key
            batch.after_commit += [forget, lambda: self.purge(number, b"")]
            self._remove_files(txn, batch, thread)
            return

        def destroy_key() -> None:
            context.keystore.erase_thread(uid)
            forget()

        context.keystore.mark_leaving(uid, is_leaving=True)
        batch.before_commit.append(context.keystore.sync)
        batch.after_abort.append(lambda: context.keystore.mark_leaving(uid, is_leaving=False))
        batch.after_commit.append(destroy_key)
        batch.after_commit.append(lambda: self.purge(number, uid))

    def _remove_files(self, txn: lmdb.Transaction, batch: Batch, thread: Thread) -> None:
        """Removes the files that only this line of a thread names. The others belong to its other lines, too."""
        with suppress(StatewardError):  # a file too many does no harm
            ids = [bytes(row.record.blob_id) for row in list_blobs(txn, thread.identity)]
            remove_files(self._context, self._threads, txn, batch, thread.identity, ids, origin=_origin(thread))

    def purge(self, number: int, uid: bytes) -> None:
        """Removes the files and then the rows of a deleted thread, a bounded number of rows in each write.

        ``uid``: empty if the files and the key stay, because an orphan or its thread needs them.
        """
        if uid and (gone := self._context.blob_files.set_aside(uid)) is not None:
            with suppress(RuntimeError):  # the daemon is stopping; the next start continues
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
                txn.delete(layout.objects_key(number))
                txn.delete(layout.uncleared_key(number))
                for key, _ in list(rows(txn, layout.half_prefix(number))):
                    txn.delete(key)
                # ``revive`` acts only on an erased key: a thread that was deleted on this disk only may have come back
                # from the archive under the same uid.
                self._context.keystore.revive(uid)
                if self._context.keystore.sync not in batch.before_commit:
                    batch.before_commit.append(self._context.keystore.sync)
            else:
                batch.after_commit.append(lambda: self._purge_rows(number, uid))

        with suppress(ShuttingDown):  # the next start continues
            self._context.writer.submit(Write(run=run, background=True, frees_space=True))

    def discard(self, number: int, uid: bytes) -> None:
        """Removes a hidden thread whose copy failed. Waits for the writer.

        Its key stays if a name leads to it. With an archive the claim fixes the uid, so a save may have made the thread
        under the same key meanwhile.
        """
        keystore = self._context.keystore

        def run(txn: lmdb.Transaction, batch: Batch) -> None:
            del txn
            gone = uid if keystore.is_leaving(uid) else b""
            if gone:
                keystore.release(gone)
                batch.before_commit.append(keystore.sync)
            batch.after_commit.append(lambda: self.purge(number, gone))

        with suppress(ShuttingDown):  # the next start continues
            self._context.writer.submit(Write(run=run, background=True, frees_space=True), wait=True).wait()


def sees(request: DeleteThreadRequest) -> bool:
    """Returns whether a deletion expects something of its thread that only its key shows."""
    options = request.options
    return options.HasField("expected_version") or bool(options.lease_token or request.expected_sequence)


def _is_meant(draft: ThreadDraft | None, request: DeleteThreadRequest) -> bool:
    """Returns whether there is a thread, and it is the creation that a deletion names."""
    return draft is not None and request.options.expected_uid in ("", draft.identity.uid_text)


def orphans_of(txn: lmdb.Transaction, uid: bytes) -> Iterator[int]:
    """Yields the numbers of a thread's orphans, which need its key. A deletion everywhere deletes them, too."""
    for key, _ in rows(txn, layout.orphan_prefix(uid)):
        yield layout.tail_thread(key)


def _origin(thread: Thread) -> str:
    """Returns the name of an orphan's thread; empty for any other thread."""
    return str(thread.archive.orphan_of) if thread.archive is not None else ""
