"""The row that lists the versions of a thread that were pruned and still have their rows.

The row is not sealed, because only versions in the thread's sealed row of pruned versions are ever cleared. If the row
is damaged, it is ignored, and the versions that it named keep their space.
"""

from __future__ import annotations

import lmdb
from google.protobuf.message import DecodeError

from stateward.storage.v1.journal_pb2 import PrunedVersions
from stateward_sidecar.storage import layout
from stateward_sidecar.store.ranges import Ranges


def read_uncleared(txn: lmdb.Transaction, number: int, pruned: Ranges) -> Ranges:
    """Returns the versions that are pruned and not cleared. ``pruned``: all pruned versions of the thread."""
    row = txn.get(layout.uncleared_key(number))
    if row is None:
        return Ranges()
    try:
        return Ranges.from_message(PrunedVersions.FromString(bytes(row[1:]))).common(pruned)
    except DecodeError:
        return Ranges()


def write_uncleared(txn: lmdb.Transaction, number: int, versions: Ranges) -> None:
    """Writes the row. An empty row says that only the snapshots of pruned versions are left to check."""
    txn.put(layout.uncleared_key(number), layout.PRESENT + versions.to_message().SerializeToString())
