"""The rows of blobs that come with an image, and the files that no row names any more.

An image has all blobs of its thread, so rows of other blobs go: their blobs were collected elsewhere, or written anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import lmdb

from stateward.storage.v1.head_pb2 import BlobRow
from stateward_sidecar.errors import Corrupt
from stateward_sidecar.storage import layout
from stateward_sidecar.storage.queue import Batch
from stateward_sidecar.store.blobs.blobrows import blob_key, list_blobs, open_blob, put_blob
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.identity import Identity
from stateward_sidecar.store.thread.thread import rows
from stateward_sidecar.store.thread.threads import Threads


def install_blobs(
    context: Context,
    threads: Threads,
    txn: lmdb.Transaction,
    batch: Batch,
    identity: Identity,
    image: Sequence[BlobRow],
) -> None:
    """Makes the rows of a thread's blobs those of an image. Removes the files of all others after the commit."""
    wanted = {blob_key(identity, row.record.sha256): row for row in image}
    kept, gone = {bytes(row.record.blob_id) for row in image}, set[bytes]()
    for key, record in list(rows(txn, identity.keys.all_of(b"Q"))):
        try:
            old = open_blob(identity, key, record)
        except Corrupt:  # the image has the row, if the thread has the blob
            old = BlobRow()
        if old.record.blob_id and old.record.blob_id not in kept:
            gone.add(bytes(old.record.blob_id))
        if key not in wanted:
            txn.delete(key)
        elif wanted[key] == old:
            del wanted[key]
    for row in wanted.values():
        put_blob(txn, identity, row)
    if not image:
        txn.delete(layout.blobs_key(identity.number))
    remove_files(context, threads, txn, batch, identity, gone)


def remove_files(
    context: Context, threads: Threads, txn: lmdb.Transaction, batch: Batch, identity: Identity, gone: Iterable[bytes],
    *, origin: str = "",
) -> None:  # fmt: skip
    """Removes files after the commit, except for those that another line of the thread on this disk needs.

    ``origin``: of an orphan, the name of its thread.
    """
    doomed = set(gone)
    if not doomed:
        return
    try:
        for number in other_lines(txn, identity, origin):
            line = threads.by_number(txn, number)
            if line is not None:
                doomed -= {bytes(row.record.blob_id) for row in list_blobs(txn, line.identity)}
    except Corrupt:
        return  # a file too many does no harm
    for each in doomed:
        batch.after_commit.append(partial(context.blob_files.remove, identity.uid, each))


def other_lines(txn: lmdb.Transaction, identity: Identity, origin: str = "") -> list[int]:
    """Returns the numbers of the other lines of a thread on this disk: its orphans, and for an orphan its thread."""
    found = []
    if origin and (row := txn.get(layout.name_key(identity.namespace_keys.names.thread(origin)))) is not None:
        number, uid = layout.unpack_name(row)
        found += [number] if uid == identity.uid else []
    orphans = (layout.tail_thread(key) for key, _ in rows(txn, layout.orphan_prefix(identity.uid)))
    return found + [number for number in orphans if number != identity.number]
