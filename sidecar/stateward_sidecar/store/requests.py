"""Request ids: what makes a retry free.

A hash of the id and the fingerprint of its request are part of the entry they made; a row leads from the keyed hash to
the entry. A failed check stores nothing. The row lives as long as the entry's metadata: for ever while its version is
retained, and for the thread's last 1,024 entries and at least an hour where it was pruned.

A copy from the archive may lack entries up to its floor, and their rows with them. There a missing row proves nothing,
so the last 1,024 entries are fetched before a request counts as new.
"""

from __future__ import annotations

import hashlib

import lmdb

from stateward_sidecar.codec.entry import Entry
from stateward_sidecar.errors import Corrupt, RequestIdReused
from stateward_sidecar.store import replay
from stateward_sidecar.store.context import REQUEST_WINDOW_ENTRIES
from stateward_sidecar.store.identity import Identity
from stateward_sidecar.store.thread import Draft, Thread

HASH_BYTES = 8


def hash_request(request_id: str) -> bytes:
    """What stands for a request id inside a sealed entry: 8 bytes; empty for no id."""
    return hashlib.blake2b(request_id.encode(), digest_size=HASH_BYTES).digest() if request_id else b""


def request_key(identity: Identity, request_hash: bytes) -> bytes:
    """The row of a request id."""
    return identity.keys.request(identity.cipher.digest(b"request", request_hash)[:HASH_BYTES])


def find_request(txn: lmdb.Transaction, thread: Draft | Thread, request_id: str, fingerprint: bytes) -> Entry | None:
    """The entry an id made; None where it made none. Raises RequestIdReused where it made another one, and
    HistoryElsewhere where only the archive can tell."""
    key = request_key(thread.identity, hash_request(request_id))
    return find_keyed(txn, thread, key, request_id, fingerprint)


def find_keyed(
    txn: lmdb.Transaction, thread: Draft | Thread, key: bytes, request_id: str, fingerprint: bytes
) -> Entry | None:
    """The same by the id's row, ``request_key``."""
    identity, row = thread.identity, txn.get(key)
    if row is None:
        if thread.floor_sequence:
            _check_window(thread)
        return None
    entry = replay.read_indexed(txn, identity, row)
    metadata = replay.open_metadata(identity, entry)
    if metadata.request_hash != hash_request(request_id):
        raise Corrupt("the index row of a request id leads to another entry", identity.name)
    if metadata.fingerprint != fingerprint:
        raise RequestIdReused(
            f"request id {request_id!r} was used for another request (entry {entry.header.sequence})",
            request_id=request_id, sequence=entry.header.sequence,
        )  # fmt: skip
    return entry


def window_start(tip_sequence: int) -> int:
    """The sequence after which a retry may ask for any entry; 0 = for all of them."""
    return max(tip_sequence - REQUEST_WINDOW_ENTRIES, 0)


def _check_window(thread: Draft | Thread) -> None:
    """Raises HistoryElsewhere while entries that a retry may ask for are in the archive only."""
    loaded = thread.thread if isinstance(thread, Draft) else thread
    if thread.floor_sequence > max(window_start(thread.head.tip_sequence), loaded.lost_sequence):
        raise replay.history_elsewhere(thread.identity, for_retry=True)
