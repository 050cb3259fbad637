"""Verifies that every piece belongs to a snapshot, or to an entry with large edits."""

from __future__ import annotations

from collections.abc import Iterator

import lmdb

from stateward_sidecar.codec.entry import unpack
from stateward_sidecar.errors import Corrupt, StatewardError
from stateward_sidecar.storage import layout
from stateward_sidecar.store.thread import blocks
from stateward_sidecar.store.thread.thread import Thread


def verify_pieces(txn: lmdb.Transaction, thread: Thread, known: set[int]) -> Iterator[StatewardError]:
    """Yields pieces that belong to nothing. ``known``: the ids of edits in pieces that the journal has named so far."""
    keys, number = thread.identity.keys, thread.number
    for version in _numbers(txn, keys.all_of(b"S")):
        is_whole = txn.get(keys.snapshot_piece(version, 0)) is not None
        if not is_whole and txn.get(layout.half_key(number, version)) is None:
            yield Corrupt("pieces of an unfinished snapshot take space", thread.name, version)
    if thread.floor_sequence:
        return  # while history is fetched, pieces are put before their entries
    loose = set(_numbers(txn, keys.all_of(b"P"))) - known
    if loose:  # they may belong to entries that were added while the journal was read
        try:
            for sequence, record in blocks.entries(txn, keys, 1):
                loose.discard(unpack(record, sequence).header.parts_id)
        except Corrupt:
            return  # reported already, and the damaged entry may name the pieces
    for _ in loose:
        yield Corrupt("pieces of edits that no entry names take space", thread.name)


def _numbers(txn: lmdb.Transaction, prefix: bytes) -> Iterator[int]:
    """Yields each number behind a prefix once, however many pieces it has."""
    cursor = txn.cursor()
    found = cursor.set_range(prefix)
    while found and bytes(cursor.key()[: len(prefix)]) == prefix:
        number = layout.snapshot_version(cursor.key())
        yield number
        found = cursor.set_range(layout.after(prefix + layout.u64(number)))
