"""What batches change while a compaction copies the file, so that the copy can catch up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Self

import lmdb


class ChangedKeys:
    """The keys that were put or deleted. The thread that runs a batch adds to it, and nobody else meanwhile."""

    def __init__(self) -> None:
        self.keys = set[bytes]()
        self.size_bytes = 0
        """Of the values that were put, each time."""

    def add(self, key: Any, size_bytes: int = 0) -> None:
        """A key was changed."""
        self.keys.add(bytes(key))
        self.size_bytes += size_bytes


class RecordedTransaction:
    """A transaction for one write, which tells what the write changes. It has the methods that writes use."""

    def __init__(self, txn: lmdb.Transaction, changed: ChangedKeys) -> None:
        self._txn = txn
        self._changed = changed
        self.get = txn.get
        self.id = txn.id
        self.stat = txn.stat

    def put(self, key: Any, value: Any, **how: Any) -> bool:
        """Puts a row."""
        self._changed.add(key, len(value))
        return self._txn.put(key, value, **how)

    def delete(self, key: Any, **how: Any) -> bool:
        """Deletes a row."""
        self._changed.add(key)
        return self._txn.delete(key, **how)

    def cursor(self) -> RecordedCursor:
        """A cursor, which tells what it puts and deletes."""
        return RecordedCursor(self._txn.cursor(), self._changed)


class RecordedCursor:
    """A cursor of such a transaction."""

    def __init__(self, cursor: lmdb.Cursor, changed: ChangedKeys) -> None:
        self._cursor = cursor
        self._changed = changed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._cursor.close()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._cursor)

    def __getattr__(self, name: str) -> Any:
        """What only reads. A method that writes and is not below is refused, because the copy would lack its rows."""
        if name in ("put", "pop", "replace"):
            raise AttributeError(name)
        return getattr(self._cursor, name)

    def delete(self, **how: Any) -> bool:
        """Deletes the row that the cursor is at."""
        self._changed.add(self._cursor.key())
        return self._cursor.delete(**how)

    def putmulti(self, items: Iterable[tuple[bytes, bytes]], **how: Any) -> Any:
        """Puts rows."""

        def told() -> Iterable[tuple[bytes, bytes]]:
            for key, value in items:
                self._changed.add(key, len(value))
                yield key, value

        return self._cursor.putmulti(told(), **how)
