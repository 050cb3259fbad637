"""The row that says which versions of a thread were pruned and still have their rows.

It is not sealed: only versions that the thread's own, sealed row calls pruned are ever cleared away. One that cannot be
read says nothing, and costs the room of what it named.
"""

from __future__ import annotations

import lmdb
from google.protobuf.message import DecodeError

from stateward.storage.v1.journal_pb2 import PrunedVersions
from stateward_sidecar.storage import layout
from stateward_sidecar.store.ranges import Ranges


def read_uncleared(txn: lmdb.Transaction, number: int, pruned: Ranges) -> Ranges:
    """Those versions. ``pruned``: what the thread says."""
    row = txn.get(layout.uncleared_key(number))
    if row is None:
        return Ranges()
    try:
        return Ranges.from_message(PrunedVersions.FromString(bytes(row[1:]))).common(pruned)
    except DecodeError:
        return Ranges()


def write_uncleared(txn: lmdb.Transaction, number: int, versions: Ranges) -> None:
    """Writes the row. Without versions it says that their snapshots are to be looked at."""
    txn.put(layout.uncleared_key(number), layout.PRESENT + versions.to_message().SerializeToString())
