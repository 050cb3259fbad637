"""Snapshots whose pieces are written in several transactions: a row says so until the first piece, the last one put, is
there. What a crash or a full disk leaves of them is cleared by the next start or sweep, which look at these rows only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import lmdb

from stateward_sidecar.errors import ShuttingDown
from stateward_sidecar.storage import layout
from stateward_sidecar.storage.writer import Batch, Write
from stateward_sidecar.store.context import Context
from stateward_sidecar.store.thread import rows


@contextmanager
def under_way(context: Context, number: int, *versions: int) -> Iterator[None]:
    """Keeps snapshots of a thread from being cleared while somebody writes them. What fails is cleared at once, unless
    somebody else writes the same snapshot: a prune and the background may."""
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
    """With each piece: the first one completes the snapshot, any other one leaves it half made."""
    key = layout.half_key(number, version)
    if index:
        txn.put(key, layout.PRESENT)
    else:
        txn.delete(key)


def drop(txn: lmdb.Transaction, number: int, version: int) -> None:
    """Removes what was written of a snapshot that will not be finished."""
    keys = layout.ThreadKeys(number)
    if txn.get(keys.snapshot_piece(version, 0)) is None:
        for key in [key for key, _ in rows(txn, keys.snapshot_pieces(version))]:
            txn.delete(key)
    txn.delete(layout.half_key(number, version))


def clear(context: Context) -> None:
    """Removes all that nobody writes any more, one snapshot a write. Raises ShuttingDown. Waits for the writer."""
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
