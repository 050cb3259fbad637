"""What a watch needs to know when its thread is not on this disk any more, or under another number.

A deletion leaves a record for a day. A record with the cause "local" says that only this disk's copy was deleted: the
thread is still in the archive. An orphan has the uid of its thread and a name of its own, and so has the record of its
deletion: neither says anything of the thread.
"""

from __future__ import annotations

import lmdb

from stateward.storage.v1.head_pb2 import DeletionRecord
from stateward.v1.thread_service_pb2 import JournalEvent, ThreadDeletion
from stateward_sidecar.errors import Corrupt, Fenced
from stateward_sidecar.storage import layout
from stateward_sidecar.store.journal.deletions import LOCAL, open_deletion
from stateward_sidecar.store.read.listing import rows_before
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.thread import Thread
from stateward_sidecar.store.thread.threads import Threads
from stateward_sidecar.telemetry import log_damage


def find_deletion(
    context: Context, txn: lmdb.Transaction, namespace: str, name: str, uid: bytes
) -> DeletionRecord | None:
    """Returns the record of a thread's deletion; None if there is none. Raises KeyUnavailable."""
    keys = context.keystore.namespace(namespace)
    # Newest first: thousands of watches may wait for thousands of deletions.
    for key, row in rows_before(txn, b"D", None) if keys is not None else ():
        assert keys is not None
        try:
            record = open_deletion(keys, layout.tail_number(key), row)
        except Corrupt as error:  # of any thread: it must not hide the deletions before it
            log_damage("deletion left out of a watch", error)
            continue
        if record is not None and (record.uid, record.thread) == (uid, name) and record.cause != LOCAL:
            return record
    return None


def deleted_event(record: DeletionRecord) -> JournalEvent:
    """Returns the event of a deletion, without its cursor."""
    event = JournalEvent(thread=record.thread, uid=record.uid.hex(), sequence=record.sequence)
    event.time.FromMicroseconds(record.time_us)
    event.deleted.CopyFrom(ThreadDeletion(cause=record.cause))
    return event


def orphan_of_watch(txn: lmdb.Transaction, threads: Threads, uid: bytes, number: int) -> Thread | None:
    """Returns the orphan that a watched copy became; None if it became none. Raises Corrupt or KeyUnavailable."""
    if number and txn.get(layout.orphan_key(uid, number)) is not None:
        return threads.by_number(txn, number)
    return None


def fenced(thread: str, orphan: Thread) -> Fenced:
    """Returns the error for a watch whose last event is in an orphan only."""
    common = orphan.archive.common_sequence if orphan.archive is not None else 0
    return Fenced(
        f"thread {thread!r} was taken over by another sidecar; its entries after {common} are in thread "
        f"{orphan.name!r}; watch again after sequence {common}",
        thread=thread, orphan=orphan.name, common_sequence=common,
    )  # fmt: skip
