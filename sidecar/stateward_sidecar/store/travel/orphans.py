"""Orphans: keep the entries that are not part of the history after another sidecar took the thread over.

One transaction renames the whole copy on this disk to ``<thread>@@<epoch>`` (``threads.py``). No byte of its
journal changes, and request ids and tags stay with it. The old name then leads nowhere on this disk, and a call for it
gets the thread from the archive. An orphan can be read and forked. It stays until a person deletes the orphan or the
thread. Of its entries, only those that were pruned before are cleared (``Pruner.resume``).
"""

from __future__ import annotations

from collections.abc import Callable

import lmdb

from stateward.storage.v1.archive_pb2 import ArchiveRow
from stateward.v1.thread_pb2 import THREAD_ACCESS_ORPHAN
from stateward_sidecar.storage import layout
from stateward_sidecar.storage.queue import Batch, Write
from stateward_sidecar.store.clean.delete import orphans_of
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.thread import Identity, Thread, ThreadDraft, rows, write_archive_row, write_head
from stateward_sidecar.store.thread.threads import Threads, orphan_name
from stateward_sidecar.store.thread.times import expire_second


class Orphans:
    """Makes and finds orphans, and gives threads up. Waits for the writer, so not for the event loop."""

    def __init__(self, context: Context, threads: Threads) -> None:
        self._context = context
        self._threads = threads

    def set_aside(self, thread: Thread, common_sequence: int, row: ArchiveRow) -> tuple[str, int]:
        """Makes an orphan of a thread if it has entries after ``common_sequence``; else makes it a copy.

        ``row``: the new archive row. Returns the orphan's name (empty = none was needed) and its newest sequence,
        because entries may be added until the transaction.
        """
        write = Write(run=lambda txn, batch: self._run(txn, batch, thread, common_sequence, row), frees_space=True)
        name: str
        name, tip = self._context.writer.submit(write, wait=True).wait()
        return name, tip

    def release(
        self, thread: Thread, until: int, row: ArchiveRow, keep: Callable[[ArchiveRow], None] | None = None
    ) -> bool:
        """Gives a thread up if nothing was committed after ``until``. From then on no write passes.

        Returns False, and changes nothing, if a later entry was committed. Without ``keep``, ``row`` is written to
        disk. With ``keep``, the thread is given up in memory only until HEAD has landed: after a crash before that, the
        thread must still be ours, with its row in the outbox. ``keep`` gets the row that every reload must show
        meanwhile.
        """

        def run(txn: lmdb.Transaction, batch: Batch) -> bool:
            draft = self._threads.draft(txn, batch, thread.identity.namespace, thread.name)
            if draft is None or draft.identity.number != thread.number or draft.head.tip_sequence > until:
                return False
            if keep is None:
                row.floor_sequence, row.floor_version = draft.floor_sequence, draft.floor_version
                write_archive_row(txn, draft, row)
                txn.delete(layout.outbox_key(thread.number))
                draft.thread.in_outbox = False
            else:
                # Take only the access from ``row``: no entry may look archived before it is.
                released = ArchiveRow()
                released.CopyFrom(draft.archive or row)
                released.access = row.access
                draft.archive = released
                batch.after_commit.append(lambda: keep(released))
            self._threads.keep_draft(batch, draft)
            return True

        return bool(self._context.writer.submit(Write(run=run, frees_space=True), wait=True).wait())

    def _run(
        self, txn: lmdb.Transaction, batch: Batch, thread: Thread, common_sequence: int, row: ArchiveRow
    ) -> tuple[str, int]:
        namespace, live_name = thread.identity.namespace, thread.name
        draft = self._threads.draft(txn, batch, namespace, live_name)
        if draft is None or draft.identity.number != thread.number:
            return "", 0
        tip = draft.head.tip_sequence
        if tip <= common_sequence:
            row.floor_sequence, row.floor_version = draft.floor_sequence, draft.floor_version
            write_archive_row(txn, draft, row)
            self._threads.keep_draft(batch, draft)
            return "", tip
        names = draft.identity.namespace_keys.names
        epoch = draft.head.epoch

        def is_taken(name: str) -> bool:
            return txn.get(layout.name_key(names.thread(name))) is not None or (namespace, name) in batch.drafts

        name = orphan_name(live_name, epoch, is_taken)
        old = draft.identity
        identity = Identity(
            old.number, old.uid, namespace, name, old.namespace_keys, self._data_key(old), is_held=old.is_held
        )
        head = draft.next_head()
        head.thread = name
        orphan = ThreadDraft(
            Thread(
                identity, draft.head, draft.all_branches(), draft.all_tags(), draft.pruned, draft.snapshots,
                draft.all_signals(),
            )
        )  # fmt: skip
        orphan.thread.row_sums = {**draft.thread.row_sums, **draft.row_sums}
        orphan.head = head
        if second := expire_second(head):
            txn.delete(layout.expiry_key(second, identity.number))
        if second := head.record_expire_second:
            txn.delete(layout.records_expiry_key(second, identity.number))
            head.record_expire_second = 0  # nothing of an orphan is swept
        txn.delete(layout.retention_key(identity.number))
        txn.delete(layout.outbox_key(identity.number))
        txn.put(layout.orphan_key(identity.uid, identity.number), layout.PRESENT)
        head.options.ClearField("ttl")
        head.options.ClearField("retention")
        txn.delete(layout.name_key(names.thread(live_name)))
        txn.put(layout.name_key(names.thread(name)), layout.pack_name(identity.number, identity.uid))
        write_head(txn, identity, head)
        kept = ArchiveRow(
            access=THREAD_ACCESS_ORPHAN, head=row.head, floor_sequence=draft.floor_sequence,
            floor_version=draft.floor_version, orphan_of=live_name, common_sequence=common_sequence,
        )  # fmt: skip
        kept.head.epoch = epoch
        write_archive_row(txn, orphan, kept)
        batch.drafts[namespace, live_name] = None
        live = draft.thread
        batch.after_commit.append(lambda: self._threads.forget(live))
        self._threads.keep_draft(batch, orphan)
        return name, tip

    def _data_key(self, identity: Identity) -> bytes:
        key = self._context.keystore.thread_key(identity.uid, identity.namespace_keys)
        assert key is not None
        return key

    def of(self, uid: bytes) -> list[int]:
        """Returns the numbers of the orphans of a thread on this disk."""
        with self._context.engine.read() as txn:
            return list(orphans_of(txn, uid))

    def count(self) -> int:
        """Returns the number of orphans on this disk."""
        with self._context.engine.read() as txn:
            return sum(1 for _ in rows(txn, b"F"))
