"""The constants of a thread, and the row keys and sums that follow from them."""

from __future__ import annotations

from stateward_sidecar.codec.seal import Cipher, length_prefixed, new_nonce, open_record, record_prefix
from stateward_sidecar.storage.keystore import NamespaceKeys
from stateward_sidecar.storage.layout import ThreadKeys

ROW_MAGIC = b"SR"
_ROW_PREFIX = record_prefix(ROW_MAGIC)
# A thread may have thousands of branches, but few of them are written at a time.
PLACES_MAX = 64
# Tags of rows of which a thread has thousands: effects and records.
ONE_OF_MANY = (b"E", b"K")


class Identity:
    """The constants of a thread: its number on this disk, its uid, its name and its keys."""

    __slots__ = (
        "_branch_keys", "_places", "cipher", "keys", "name", "namespace", "namespace_keys", "number", "uid", "uid_text",
    )  # fmt: skip

    def __init__(
        self, number: int, uid: bytes, namespace: str, name: str, namespace_keys: NamespaceKeys, data_key: bytes
    ) -> None:
        self.number = number
        self.uid = uid
        self.namespace = namespace
        self.name = name
        self.namespace_keys = namespace_keys
        self.cipher = Cipher(data_key)
        self.keys = ThreadKeys(number)
        self.uid_text = uid.hex()
        self._branch_keys: dict[str, bytes] = {}
        # For rows that every save rewrites: the associated data of the ciphertext, and the prefix of the row's sum.
        self._places: dict[bytes, tuple[bytes, bytes]] = {}

    def hash_id(self, kind: bytes, *names: str) -> bytes:
        """Returns the 16 bytes that stand for a name (of a branch, tag, checkpoint id and so on) in a key."""
        return self.cipher.digest(kind, *(name.encode() for name in names))

    def branch_key(self, name: str) -> bytes:
        """Returns the row key of a branch."""
        key = self._branch_keys.get(name)
        if key is None:
            key = self._branch_keys[name] = self.keys.branch(self.hash_id(b"branch", name))
        return key

    def seal_row(self, key: bytes, plaintext: bytes) -> bytes:
        """Seals a row, and binds it to the thread and the row key."""
        nonce = new_nonce()
        return _ROW_PREFIX + nonce + self.cipher.encrypt(nonce, plaintext, self._place(key)[0])

    def open_row(self, key: bytes, record: bytes | memoryview) -> bytes:
        """The reverse of ``seal_row``. Raises Corrupt."""
        return open_record(self.cipher, ROW_MAGIC, record, self.uid, self.keys.row(key))

    def row_sum(self, key: bytes, plaintext: bytes) -> int:
        """Returns the part of a row in the head's sum (combined by XOR)."""
        return int.from_bytes(self.cipher.digest_joined(self._place(key)[1] + length_prefixed(plaintext)), "big")

    def _place(self, key: bytes) -> tuple[bytes, bytes]:
        place = self._places.get(key)
        if place is None:
            row = self.keys.row(key)
            place = length_prefixed(_ROW_PREFIX, self.uid, row), length_prefixed(b"row", row)
            if len(self._places) < PLACES_MAX and row[:1] not in ONE_OF_MANY:
                self._places[key] = place
        return place
