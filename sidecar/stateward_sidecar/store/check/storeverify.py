"""Verifies the store as a whole: rows that lead nowhere, lost names, threads that were set back.

Verifies the rows that lead from the ids of an entry to the entry: its request id and its checkpoint id.

A row may lead to a later entry with the same id. Such an entry exists if the older one is so old that nobody has to
find it: a retry is applied anew on a disk that lacks the first entry of its request (``requests.py``), and the
checkpoint id of a pruned version may be used again while packs still have the version's entry.

Verifies that every piece belongs to a snapshot, or to an entry with large edits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import islice

import lmdb

from stateward.storage.v1.journal_pb2 import EntryMetadata
from stateward.v1.admin_service_pb2 import VerifyFinding
from stateward.v1.error_reason_pb2 import ERROR_REASON_CORRUPT
from stateward_sidecar.codec.entry import Entry, unpack
from stateward_sidecar.errors import Corrupt, KeyUnavailable, StatewardError, reason_number
from stateward_sidecar.storage import layout
from stateward_sidecar.store.journal import replay
from stateward_sidecar.store.journal.journal import list_keys, open_deletion
from stateward_sidecar.store.journal.requests import is_older, request_key
from stateward_sidecar.store.thread import blocks
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.thread import MAIN, Thread, head_uid, load_numbered, rows


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


# Rows of the feed that one transaction reads, and entries of which one number holds the bits.
FEED_ROWS, BLOCK_BITS = 20_000, 512


class StoreVerifier:
    """The checks that Verify does once for the store, beside those of each thread."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def verify(self) -> Iterator[VerifyFinding]:
        """Yields rows that lead nowhere, and threads without a name or without rows."""
        heads, keystore = set[bytes](), self._context.keystore
        yield from self._verify_feed()
        keys = keystore.settled_threads()  # read before the transaction begins, so that it sees all their threads
        with self._context.engine.read() as txn:  # nothing is yielded inside: a slow reader must not keep it open
            wrong = [*self._verify_lists(txn), *self._verify_deletions(txn), *self._verify_names(txn, heads)]
        yield from wrong
        for uid in sorted((keys - heads) & keystore.settled_threads()):  # else it was deleted meanwhile
            yield VerifyFinding(reason=ERROR_REASON_CORRUPT, uid=uid.hex(), message="a thread has a key, but no rows")

    def _verify_names(self, txn: lmdb.Transaction, heads: set[bytes]) -> Iterator[VerifyFinding]:
        """Checks that every thread has a name. Adds the uids of all threads to ``heads``."""
        named = set[tuple[int, bytes]]()
        for _, row in rows(txn, b"N"):
            with suppress(Corrupt):  # reported already
                named.add(layout.unpack_name(row))
        cursor = txn.cursor()
        found = cursor.set_range(b"T")
        while found and bytes(cursor.key()[:1]) == b"T":
            number = layout.thread_of(cursor.key())
            head = txn.get(layout.ThreadKeys(number).head)
            if head is not None:
                heads.add(head_uid(head))
            if head is not None and (number, head_uid(head)) not in named:
                yield self._unnamed(txn, number, head_uid(head))
            found = cursor.set_range(layout.after(layout.thread_prefix(number)))

    def _verify_feed(self) -> Iterator[VerifyFinding]:
        """Checks that every entry has its place in the feed, and that no thread was set back.

        The feed is read in short transactions, and each thread in one of its own. Entries that were written meanwhile
        are looked up in the rest of the feed.
        """
        places, start = _Places(), b"W"
        while start:
            with self._context.engine.read() as txn:
                start, wrong = places.read(txn, start, FEED_ROWS)
            yield from wrong
        with self._context.engine.read() as txn:
            named = [bytes(row) for _, row in rows(txn, b"N")]
        for row in named:
            with suppress(StatewardError):  # reported already
                number, uid = layout.unpack_name(row)
                with self._context.engine.read() as txn:
                    thread = load_numbered(txn, self._context.keystore, number, uid)
                    wrong = list(self._of_thread(txn, thread, number, places))
                yield from wrong

    def _of_thread(
        self, txn: lmdb.Transaction, thread: Thread, number: int, places: _Places
    ) -> Iterator[VerifyFinding]:
        sequences = (sequence for sequence, _ in blocks.entries(txn, thread.identity.keys, 1))
        missing = [sequence for sequence in sequences if not places.has(number, sequence)]
        if missing:
            places.read(txn, places.end, None)
            missing = [sequence for sequence in missing if not places.has(number, sequence)]
        if missing:
            yield _in_feed(thread, missing[0], "an entry has no place in the feed")
        newest = places.newest.get(number, 0)
        if newest > thread.head.tip_sequence:
            message = (
                f"the feed of all entries names entry {newest}, but the thread ends at entry "
                f"{thread.head.tip_sequence}: the thread was set back"
            )
            yield _in_feed(thread, newest, message)

    def _verify_lists(self, txn: lmdb.Transaction) -> Iterator[VerifyFinding]:
        """Checks that every thread has one place in each list."""
        listed: dict[int, set[bytes]] = {}
        for table in (b"U", b"S"):
            for key, _ in rows(txn, table):
                listed.setdefault(layout.unpack_updated(key)[1], set()).add(key)
        for key, _ in rows(txn, b"G"):
            listed.setdefault(layout.labelled_thread(key), set()).add(key)
        unread = 0
        for _, row in rows(txn, b"N"):
            unread += 1
            with suppress(StatewardError):  # reported already
                number, uid = layout.unpack_name(row)
                thread = load_numbered(txn, self._context.keystore, number, uid)
                unread -= 1
                listed.setdefault(number, set()).difference_update(list_keys(thread.identity, thread.head))
                if not listed[number]:
                    del listed[number]
        for number in listed if not unread else ():  # the rows may belong to a thread that cannot be read
            message = f"thread number {number} is at a wrong place in a list of its namespace"
            yield VerifyFinding(reason=ERROR_REASON_CORRUPT, message=message)

    def _verify_deletions(self, txn: lmdb.Transaction) -> Iterator[VerifyFinding]:
        """Checks that every deletion record can be read, and has its place in the feed."""
        for key, row in rows(txn, b"D"):
            place = layout.tail_number(key)
            try:
                owner, _ = layout.unpack_deletion(row)
                keys = self._context.keystore.namespace_by_id(owner)
                if keys is None or open_deletion(keys, place, bytes(row)) is None:
                    raise Corrupt("a deletion belongs to no namespace")
                if txn.get(layout.feed_key(place)) != layout.pack_feed(0, place):
                    raise Corrupt("a deletion has no place in the feed")
            except (Corrupt, KeyUnavailable) as error:
                yield VerifyFinding(reason=reason_number(error.reason), message=error.message)

    def _unnamed(self, txn: lmdb.Transaction, number: int, uid: bytes) -> VerifyFinding:
        finding = VerifyFinding(reason=ERROR_REASON_CORRUPT, uid=uid.hex(), message="no name leads to the thread")
        try:
            thread = load_numbered(txn, self._context.keystore, number, uid)
            finding.namespace, finding.thread = thread.identity.namespace, thread.name
        except StatewardError as error:
            finding.message += f"; {error.message}"
        return finding


class _Places:
    """Which entries the feed names: a bit for each, and not an object, because a store has millions of them."""

    def __init__(self) -> None:
        self.newest: dict[int, int] = {}
        """The newest entry of each thread, by thread number."""
        self.end = b"W"
        """Behind the last row that was read."""
        self._bits: dict[tuple[int, int], int] = {}

    def has(self, number: int, sequence: int) -> bool:
        """Whether a row that was read names the entry of a thread."""
        bits = self._bits.get((number, sequence // BLOCK_BITS), 0)
        return bool(bits >> sequence % BLOCK_BITS & 1)

    def read(self, txn: lmdb.Transaction, start: bytes, rows_max: int | None) -> tuple[bytes, list[VerifyFinding]]:
        """Reads so many rows of the feed; None = all. Returns where to go on (empty = nowhere), and what is wrong."""
        wrong = list[VerifyFinding]()
        for key, row in islice(blocks.rows_from(txn, start, b"W"), rows_max):
            self.end, rows_max = bytes(key) + b"\0", rows_max - 1 if rows_max is not None else None
            try:
                number, sequence = layout.unpack_feed(row)
                if number:
                    self._add(number, sequence)
                elif sequence != layout.tail_number(key):
                    raise Corrupt("a row of the feed names another deletion")
            except Corrupt as error:
                wrong.append(VerifyFinding(reason=reason_number(error.reason), message=error.message))
        return self.end if rows_max == 0 else b"", wrong

    def _add(self, number: int, sequence: int) -> None:
        block = number, sequence // BLOCK_BITS
        self._bits[block] = self._bits.get(block, 0) | 1 << sequence % BLOCK_BITS
        self.newest[number] = max(self.newest.get(number, 0), sequence)


def _in_feed(thread: Thread, sequence: int, message: str) -> VerifyFinding:
    return VerifyFinding(
        reason=ERROR_REASON_CORRUPT, namespace=thread.identity.namespace, thread=thread.name,
        uid=thread.identity.uid_text, sequence=sequence, message=message,
    )  # fmt: skip
