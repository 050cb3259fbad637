"""Verifies the store as a whole: rows that lead nowhere, threads without a name, and threads that were set back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import lmdb

from stateward.v1.admin_service_pb2 import Finding
from stateward_sidecar.errors import Corrupt, KeyUnavailable, StatewardError
from stateward_sidecar.storage import layout
from stateward_sidecar.store import records
from stateward_sidecar.store.context import Context
from stateward_sidecar.store.delete import open_deletion
from stateward_sidecar.store.journal import list_keys
from stateward_sidecar.store.thread import Thread, head_uid, load_numbered, rows


class StoreVerifier:
    """The checks that Verify does once for the store, beside those of each thread."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def verify(self) -> Iterator[Finding]:
        """Yields rows that lead nowhere, and threads without a name or without rows."""
        heads, keystore = set[bytes](), self._context.keystore
        keys = keystore.settled_threads()  # read before the transaction begins, so that it sees all their threads
        with self._context.engine.read() as txn:  # nothing is yielded inside: a slow reader must not keep it open
            wrong = [*self._verify_feed(txn), *self._verify_deletions(txn), *self._verify_names(txn, heads)]
        yield from wrong
        for uid in sorted((keys - heads) & keystore.settled_threads()):  # else it was deleted meanwhile
            yield Finding(reason="CORRUPT", uid=uid.hex(), message="a thread has a key, but no rows")

    def _verify_names(self, txn: lmdb.Transaction, heads: set[bytes]) -> Iterator[Finding]:
        """Checks that every thread has a name. Adds the uids of all threads to ``heads``."""
        named = set[tuple[int, bytes]]()
        for _, row in rows(txn, b"N"):
            with suppress(Corrupt):  # reported already
                named.add(layout.unpack_name(row))
        cursor = txn.cursor()
        found = cursor.set_range(b"T")
        while found and bytes(cursor.key()[:1]) == b"T":
            number = layout.thread_of(cursor.key())
            head = txn.get(layout.ThreadKeys(number).head())
            if head is not None:
                heads.add(head_uid(head))
            if head is not None and (number, head_uid(head)) not in named:
                yield self._unnamed(txn, number, head_uid(head))
            found = cursor.set_range(layout.after(layout.thread_prefix(number)))

    def _verify_feed(self, txn: lmdb.Transaction) -> Iterator[Finding]:
        """Checks that every entry has its place in the feed, and every thread one place in each list."""
        places: dict[int, set[int]] = {}
        for key, row in rows(txn, b"W"):
            try:
                number, sequence = layout.unpack_feed(row)
                if number:
                    places.setdefault(number, set()).add(sequence)
                elif sequence != layout.tail_number(key):
                    raise Corrupt("a row of the feed names another deletion")
            except Corrupt as error:
                yield Finding(reason=error.reason, message=error.message)
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
                entries = {sequence for sequence, _ in records.entries(txn, thread.identity.keys, 1)}
                fed = places.get(number, set())
                if missing := entries - fed:
                    yield _in_feed(thread, min(missing), "an entry has no place in the feed")
                if max(fed, default=0) > thread.head.tip_sequence:
                    message = (
                        f"the feed of all entries names entry {max(fed)}, but the thread ends at entry "
                        f"{thread.head.tip_sequence}: the thread was set back"
                    )
                    yield _in_feed(thread, max(fed), message)
        wrong = [number for number, keys in listed.items() if keys]
        for number in wrong if not unread else ():  # the rows may belong to a thread that cannot be read
            message = f"thread number {number} is at a wrong place in a list of its namespace"
            yield Finding(reason="CORRUPT", message=message)

    def _verify_deletions(self, txn: lmdb.Transaction) -> Iterator[Finding]:
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
                yield Finding(reason=error.reason, message=error.message)

    def _unnamed(self, txn: lmdb.Transaction, number: int, uid: bytes) -> Finding:
        finding = Finding(reason="CORRUPT", uid=uid.hex(), message="no name leads to the thread")
        try:
            thread = load_numbered(txn, self._context.keystore, number, uid)
            finding.namespace, finding.thread = thread.identity.namespace, thread.name
        except StatewardError as error:
            finding.message += f"; {error.message}"
        return finding


def _in_feed(thread: Thread, sequence: int, message: str) -> Finding:
    return Finding(
        reason="CORRUPT", namespace=thread.identity.namespace, thread=thread.name, uid=thread.identity.uid_text,
        sequence=sequence, message=message,
    )  # fmt: skip
