"""The rows of a request id that more than one entry has.

A retry is applied anew on a disk that lacks the first entry of its request, if that entry is so old that no retry has
to find it. The disk may get the first entry later. Then the id's row leads to the newest entry, and each older entry
has a row of its own. When a prune removes the newest entry, the id leads to the newest one that is left: a retry gets
the answer of a version that is still retained, and is not applied once more.
"""

from __future__ import annotations

import lmdb

from stateward_sidecar.errors import Corrupt
from stateward_sidecar.storage import layout
from stateward_sidecar.store.thread.thread import rows

_SECOND_US = 1_000_000


def put_request(txn: lmdb.Transaction, key: bytes, sequence: int, time_us: int) -> None:
    """Puts the row of an entry, older or newer than others with its request id. ``key``: the row key of the id."""
    mine, there = layout.pack_request(sequence, time_us // _SECOND_US), bytes(txn.get(key) or b"")
    other = _sequence(there)
    if other and other < sequence:
        txn.put(layout.older_request_key(key, other), there)
    txn.put(layout.older_request_key(key, sequence) if other > sequence else key, mine)


def delete_request(txn: lmdb.Transaction, key: bytes, sequence: int) -> None:
    """Deletes the row of an entry that is removed. The next older entry with the id takes its place. Raises Corrupt."""
    row = txn.get(key)
    if row is None or layout.leading_number(row) != sequence:
        txn.delete(layout.older_request_key(key, sequence))
        return
    txn.delete(key)
    older = [(found, bytes(value)) for found, value in rows(txn, key)]
    if older:
        txn.delete(older[-1][0])
        txn.put(key, older[-1][1])


def is_older(txn: lmdb.Transaction, key: bytes, sequence: int) -> bool:
    """Returns whether the entry has a row as an older entry of the id."""
    row = txn.get(layout.older_request_key(key, sequence))
    return row is not None and _sequence(row) == sequence


def _sequence(row: bytes | memoryview) -> int:
    """Returns the sequence in a row; 0 if there is no row, or if it is damaged: then it is written again."""
    try:
        return layout.leading_number(row)
    except Corrupt:
        return 0
