"""Rows of one kind under keyed hashes, such as the effects of a thread: how they are sealed, read and summed up.

A row is bound to its key and its thread, and says what it is about, so a row in the place of another is found. Where
the head has the sum of all rows, a row that is missing or was rolled back is found, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

import lmdb
from google.protobuf.message import Message

from stateward_sidecar.errors import Corrupt
from stateward_sidecar.store.thread import blocks
from stateward_sidecar.store.thread.thread import Identity, open_as

R = TypeVar("R", bound=Message)


class Table(Generic[R]):
    """The rows with one tag. ``what``: what a row is about, with its article, for the errors."""

    def __init__(self, tag: bytes, row: type[R], what: str, key_of: Callable[[Identity, R], bytes]) -> None:
        self._tag, self._row, self._what, self._key_of = tag, row, what, key_of

    def open(self, identity: Identity, key: bytes, record: bytes | memoryview) -> R:
        """Returns a row. Raises Corrupt if it is not the one of its key."""
        row = open_as(self._row, identity, key, record, self._what)
        if self._key_of(identity, row) != key:
            message = f"the row of {self._what} holds another {self._what.split()[-1]}"
            raise Corrupt(message, identity.name)
        return row

    def find(self, txn: lmdb.Transaction, identity: Identity, key: bytes) -> R | None:
        """Returns the row of a key; None if there is none. Raises Corrupt."""
        record = txn.get(key)
        return self.open(identity, key, record) if record is not None else None

    def rows(
        self, txn: lmdb.Transaction, identity: Identity, prefix: bytes = b"", after: bytes = b""
    ) -> Iterator[tuple[bytes, R]]:
        """Yields rows with their keys, in the order of the keys. Raises Corrupt.

        ``prefix``: only keys that begin with it. ``after``: only keys behind it.
        """
        prefix = prefix or identity.keys.all_of(self._tag)
        for key, record in blocks.rows_from(txn, after + b"\0" if after else prefix, prefix):
            yield key, self.open(identity, key, record)

    def put(self, txn: lmdb.Transaction, identity: Identity, key: bytes, row: R) -> None:
        """Writes a row."""
        txn.put(key, identity.seal_row(key, row.SerializeToString(deterministic=True)))

    def put_counted(self, txn: lmdb.Transaction, identity: Identity, key: bytes, row: R) -> int:
        """Writes a row, and returns what it adds to the sum of all rows."""
        plaintext = row.SerializeToString(deterministic=True)
        txn.put(key, identity.seal_row(key, plaintext))
        return identity.row_sum(key, plaintext)

    def part(self, identity: Identity, key: bytes, row: R | None) -> int:
        """Returns what a row adds to the sum of all rows; 0 for no row."""
        return identity.row_sum(key, row.SerializeToString(deterministic=True)) if row is not None else 0

    def total(self, txn: lmdb.Transaction, identity: Identity) -> int:
        """Returns the sum of all rows. Raises Corrupt."""
        total = 0
        for key, row in self.rows(txn, identity):
            total ^= self.part(identity, key, row)
        return total
