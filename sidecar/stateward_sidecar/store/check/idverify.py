"""Verifies the rows that lead from the ids of an entry to the entry: its request id and its checkpoint id.

A row may lead to a later entry with the same id. Such an entry exists if the older one is so old that nobody has to
find it: a retry is applied anew on a disk that lacks the first entry of its request (``requestrows.py``), and the
checkpoint id of a pruned version may be used again while packs still have the version's entry.
"""

from __future__ import annotations

import lmdb

from stateward.storage.v1.journal_pb2 import EntryMetadata
from stateward_sidecar.codec.entry import Entry
from stateward_sidecar.errors import Corrupt
from stateward_sidecar.storage import layout
from stateward_sidecar.store.journal import replay
from stateward_sidecar.store.journal.requestrows import is_older
from stateward_sidecar.store.journal.requests import request_key
from stateward_sidecar.store.thread.thread import MAIN, Thread


def verify_ids(txn: lmdb.Transaction, thread: Thread, entry: Entry, metadata: EntryMetadata) -> None:
    """Raises Corrupt unless the rows lead to the entry, or to a later one with the same id."""
    identity, body = thread.identity, metadata.checkpoint
    if metadata.request_hash:
        key = request_key(identity, metadata.request_hash)
        row = txn.get(key)
        if row is None or not _is_of_request(txn, thread, entry, metadata, key, layout.unpack_request(row)[0]):
            raise Corrupt("the index row of the entry's request id is missing or foreign")
    if entry.header.version and body.checkpoint_id:
        id_hash = identity.hash_id(b"checkpoint", body.branch or MAIN, body.checkpoint_id)
        row = txn.get(identity.keys.checkpoint_id(id_hash))
        if row is None or not _is_of_version(txn, thread, entry, metadata, layout.number_of(row)):
            raise Corrupt("the index row of the checkpoint id is missing or foreign")


def _is_of_request(
    txn: lmdb.Transaction, thread: Thread, entry: Entry, metadata: EntryMetadata, key: bytes, sequence: int
) -> bool:
    mine = entry.header.sequence
    if sequence <= mine:
        return sequence == mine
    return is_older(txn, key, mine) and _other(txn, thread, sequence).request_hash == metadata.request_hash


def _is_of_version(
    txn: lmdb.Transaction, thread: Thread, entry: Entry, metadata: EntryMetadata, sequence: int
) -> bool:
    header, body = entry.header, metadata.checkpoint
    if sequence == header.sequence:
        return True
    if sequence < header.sequence or header.version not in thread.pruned:
        return False
    named = _other(txn, thread, sequence).checkpoint
    return (named.branch, named.checkpoint_id) == (body.branch, body.checkpoint_id)


def _other(txn: lmdb.Transaction, thread: Thread, sequence: int) -> EntryMetadata:
    return replay.open_metadata(thread.identity, replay.read_entry(txn, thread.identity, sequence))
