"""Request ids: a retry gets the first answer.

An entry holds a hash of the request id and the fingerprint of the request. All verbs make the fingerprint with the one
function of this module, so they agree about what a retry may change. They look for the request id before they look at
leases, heads and conditions: what was written once is answered again, whatever has changed since.

A row leads from the keyed hash to the entry. A failed check stores nothing. The row lives as long as the entry's
metadata: for ever while the version is retained. After the version was pruned, the row stays for the thread's last
1,024 entries and at least an hour.

A copy from the archive may lack entries up to its floor, and their rows. Below the floor a missing row proves nothing.
So the last 1,024 entries are fetched before a request counts as new.

The rows of a request id that more than one entry has.

A retry is applied anew on a disk that lacks the first entry of its request, if that entry is so old that no retry has
to find it. The disk may get the first entry later. Then the id's row leads to the newest entry, and each older entry
has a row of its own. When a prune removes the newest entry, the id leads to the newest one that is left: a retry gets
the answer of a version that is still retained, and is not applied once more.
"""

from __future__ import annotations

import hashlib
from functools import cache, lru_cache
from typing import Any

import lmdb
from google.protobuf.message import Message

from stateward_sidecar.codec.entry import Entry
from stateward_sidecar.codec.pieces import encode_pieces
from stateward_sidecar.codec.seal import length_prefixed
from stateward_sidecar.errors import Corrupt, RequestIdReused
from stateward_sidecar.measures import events
from stateward_sidecar.storage import layout
from stateward_sidecar.store.journal import replay
from stateward_sidecar.store.thread.context import REQUEST_WINDOW_ENTRIES
from stateward_sidecar.store.thread.thread import Identity, Thread, ThreadDraft, rows

HASH_BYTES = FINGERPRINT_BYTES = 8
_REQUEST = length_prefixed(b"request")
MAY_CHANGE = ("request_id", "durability", "lease_token", "expected_uid")
MAY_CHANGE_BESIDE = ("guard", "holder")
"""The options that a retry may change, and the fields beside them. An agent that was restarted holds other leases, is
another incarnation, and may know the thread's uid by now. A verb that answers one holder only checks the holder
itself."""


@lru_cache(maxsize=64)  # a write asks twice: for its entry, and when it looks for its first answer
def hash_request(request_id: str) -> bytes:
    """Returns the hash of a request id inside a sealed entry: 8 bytes; empty if there is no id."""
    return hashlib.blake2b(request_id.encode(), digest_size=HASH_BYTES).digest() if request_id else b""


def fingerprint(request: Message, *, is_large: bool = False) -> bytes:
    """Returns a hash of a request without the fields that a retry may change: 8 bytes.

    The request is unchanged afterwards. ``is_large``: encode in pieces, which needs less memory and more time.
    """
    begun, messages = _left_out(type(request))  # type: ignore[arg-type]  # a class is hashable
    # They are taken out for a moment, because a copy of a large state costs as much memory again.
    options = request.options  # type: ignore[attr-defined]
    options.SetInParent()  # a retry may have none of them left, and be the same
    kept = list[tuple[str, Any]]()
    for each in MAY_CHANGE:
        if value := getattr(options, each):
            kept.append((each, value))
            options.ClearField(each)
    apart = None
    for each in messages:
        if request.HasField(each):
            apart = type(request)() if apart is None else apart
            getattr(apart, each).CopyFrom(getattr(request, each))
            getattr(apart, each).SetInParent()
            request.ClearField(each)
    try:
        pieces = encode_pieces(request) if is_large else [request.SerializeToString(deterministic=True)]
    finally:
        for each, value in kept:
            setattr(options, each, value)
        if apart is not None:
            request.MergeFrom(apart)
    found = begun.copy()
    for piece in pieces:
        found.update(piece)
    return found.digest()


@cache
def _left_out(kind: type[Message]) -> tuple[hashlib.blake2b, tuple[str, ...]]:
    """Returns a hash that has the name of a kind of request, and the messages beside its options that a retry may
    change."""
    messages = tuple(name for name in MAY_CHANGE_BESIDE if name in kind.DESCRIPTOR.fields_by_name)
    begun = hashlib.blake2b(length_prefixed(kind.DESCRIPTOR.full_name.encode()), digest_size=FINGERPRINT_BYTES)
    return begun, messages


def request_key(identity: Identity, request_hash: bytes) -> bytes:
    """Returns the row key of a request id. A write asks twice: it looks for its first answer, and puts the row."""
    last = identity.last_request
    if last[0] != request_hash:
        digest = identity.cipher.digest(_REQUEST + length_prefixed(request_hash))
        last = identity.last_request = request_hash, identity.keys.request(digest[:HASH_BYTES])
    return last[1]


def find_request(
    txn: lmdb.Transaction, thread: ThreadDraft | Thread, request_id: str, fingerprint: bytes
) -> Entry | None:
    """Returns the entry that a request id made; None if it made none.

    Raises RequestIdReused if another request used the id, HistoryElsewhere if only the archive can tell, and Corrupt.
    """
    found = find_answered(txn, thread, request_id, fingerprint)
    events.replays += found is not None
    return found


def find_answered(
    txn: lmdb.Transaction, thread: ThreadDraft | Thread, request_id: str, fingerprint: bytes
) -> Entry | None:
    """Does the same as ``find_request``, and does not count the entry as a replay."""
    identity, request_hash = thread.identity, hash_request(request_id)
    row = txn.get(request_key(identity, request_hash))
    if row is None:
        if thread.floor_sequence:
            _check_window(thread)
        return None
    entry = replay.read_indexed(txn, identity, row)
    metadata = replay.open_metadata(identity, entry)
    if metadata.request_hash != request_hash:
        raise Corrupt("the index row of a request id leads to another entry", identity.name)
    if metadata.fingerprint != fingerprint:
        raise RequestIdReused(
            f"request id {request_id!r} was used for another request (entry {entry.header.sequence}); use a new id",
            request_id=request_id, sequence=entry.header.sequence,
        )  # fmt: skip
    return entry


def window_start(tip_sequence: int) -> int:
    """Returns the sequence before the first entry that a retry may ask for; 0 = a retry may ask for any entry."""
    return max(tip_sequence - REQUEST_WINDOW_ENTRIES, 0)


def may_be_removed(thread: ThreadDraft | Thread, sequence: int, tip_sequence: int = 0) -> bool:
    """Returns whether a prune may have removed the entry. Entries that a retry may ask for are never removed.
    ``tip_sequence``: where the journal ends by now; 0 = where the thread says."""
    return not thread.pruned.is_empty and sequence <= window_start(tip_sequence or thread.head.tip_sequence)


def _check_window(thread: ThreadDraft | Thread) -> None:
    """Raises HistoryElsewhere if entries that a retry may ask for are in the archive only."""
    loaded = thread.thread if isinstance(thread, ThreadDraft) else thread
    if thread.floor_sequence > max(window_start(thread.head.tip_sequence), loaded.lost_sequence):
        raise replay.history_elsewhere(thread.identity, for_retry=True)


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
