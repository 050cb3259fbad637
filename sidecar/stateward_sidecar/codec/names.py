"""Keyed hashes of names. LMDB keys and object names contain these hashes instead of the users' names.

A namespace's name key is random and is never rotated, because that would move every row. An attacker who steals it can
test guesses of names, and nothing else.
"""

from __future__ import annotations

import hmac

from stateward_sidecar.codec.seal import length_prefixed

HASH_BYTES = 16
STATUS_HASH_BYTES = 8


class NameKey:
    """Hashes the names of one namespace."""

    __slots__ = ("_key", "_statuses")

    def __init__(self, key: bytes) -> None:
        self._key = key
        # Every thread that is saved in a new second needs two of these hashes.
        self._statuses: dict[int, bytes] = {}

    def thread(self, name: str) -> bytes:
        """16 bytes for a thread's name."""
        return self._hash(b"thread", name.encode())

    def label(self, key: str, value: str) -> bytes:
        """16 bytes for a label with its value."""
        return self._hash(b"label", key.encode(), value.encode())

    def thread_label(self, key: str, value: str) -> bytes:
        """16 bytes for a label of a thread with its value; another hash than that of the same label of a version."""
        return self._hash(b"thread label", key.encode(), value.encode())

    def status(self, status: int) -> bytes:
        """8 bytes for a status. They are enough because there are few statuses, and users do not choose them."""
        found = self._statuses.get(status)
        if found is None:
            found = self._statuses[status] = self._hash(b"status", b"%d" % status)[:STATUS_HASH_BYTES]
        return found

    def namespace(self, name: str) -> bytes:
        """16 bytes for a namespace. Use it on the root's name key."""
        return self._hash(b"namespace", name.encode())

    def _hash(self, *parts: bytes) -> bytes:
        return hmac.digest(self._key, length_prefixed(*parts), "sha256")[:HASH_BYTES]
