"""The row that lists what of a thread was pruned and still has its rows: versions, and entries that count for nothing.

The row is not sealed, because only what the thread's sealed row of pruned versions names is ever cleared. If the row
is damaged, it is ignored, and the versions that it named keep their space.
"""

from __future__ import annotations

import lmdb
from google.protobuf.message import DecodeError

from stateward.storage.v1.journal_pb2 import PrunedVersions
from stateward_sidecar.storage import layout
from stateward_sidecar.store.thread.ranges import Pruned


def read_uncleared(txn: lmdb.Transaction, number: int, pruned: Pruned) -> Pruned:
    """Returns what is pruned and not cleared. ``pruned``: all that was ever pruned in the thread."""
    row = txn.get(layout.uncleared_key(number))
    if row is None:
        return Pruned()
    try:
        named = Pruned.from_message(PrunedVersions.FromString(bytes(row[1:])))
    except DecodeError:
        return Pruned()
    return named.common_with(pruned)


def add_uncleared(txn: lmdb.Transaction, number: int, pruned: Pruned, more: Pruned) -> None:
    """Adds versions, and entries that count for nothing. Does nothing if there are none."""
    if not more.is_empty:
        write_uncleared(txn, number, read_uncleared(txn, number, pruned).merged(more))


def write_uncleared(txn: lmdb.Transaction, number: int, left: Pruned) -> None:
    """Writes the row. An empty row says that only the snapshots of pruned versions are left to check."""
    txn.put(layout.uncleared_key(number), layout.PRESENT + left.to_message().SerializeToString())
