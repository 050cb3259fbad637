"""Unfinished snapshots. The pieces of a large snapshot are written in several transactions.

A row marks the snapshot as unfinished until its first piece is put, which is put last. The next start or sweep clears
what a crash or a full disk left. It reads only these rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import lmdb

from stateward_sidecar.errors import ShuttingDown
from stateward_sidecar.storage import layout
from stateward_sidecar.storage.queue import Batch, Write
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.thread import rows


@contextmanager
def under_way(context: Context, number: int, *versions: int) -> Iterator[None]:
    """Protects snapshots of a thread from being cleared while they are written.

    If the block fails, the unfinished snapshots are cleared at once, unless another task writes the same snapshot: a
    prune and a background task may do so.
    """
    mine, place = {(number, version) for version in versions}, object()
    context.under_way[place] = mine
    try:
        try:
            yield
        finally:
            del context.under_way[place]
    except BaseException:
        with suppress(ShuttingDown):  # the next start clears it
            for _, version in mine:
                context.writer.submit(_clearing(context, number, version))
        raise


def _is_under_way(context: Context, number: int, version: int) -> bool:
    return any((number, version) in each for each in list(context.under_way.values()))


def mark(txn: lmdb.Transaction, number: int, version: int, index: int) -> None:
    """Updates the mark when a piece is put: piece 0 completes the snapshot, any other piece leaves it unfinished."""
    key = layout.half_key(number, version)
    if index:
        txn.put(key, layout.PRESENT)
    else:
        txn.delete(key)


def drop(txn: lmdb.Transaction, number: int, version: int) -> None:
    """Removes the pieces of a snapshot that will not be finished, and its mark."""
    keys = layout.ThreadKeys(number)
    if txn.get(keys.snapshot_piece(version, 0)) is None:
        for key in [key for key, _ in rows(txn, keys.snapshot_pieces(version))]:
            txn.delete(key)
    txn.delete(layout.half_key(number, version))


def clear(context: Context) -> None:
    """Removes all unfinished snapshots that nobody writes, one in each write. Waits for the writer.

    Raises ShuttingDown.
    """
    with context.engine.read() as txn:
        half = [layout.half_of(key) for key, _ in rows(txn, b"H") if len(key) == layout.HALF_KEY_BYTES]
    for number, version in half:
        if not _is_under_way(context, number, version):
            context.writer.submit(_clearing(context, number, version), wait=True).wait()


def _clearing(context: Context, number: int, version: int) -> Write:
    def run(txn: lmdb.Transaction, batch: Batch) -> None:
        del batch
        if not _is_under_way(context, number, version) and txn.get(layout.half_key(number, version)) is not None:
            drop(txn, number, version)

    return Write(run=run, background=True, frees_space=True)
