"""Authenticated encryption of everything at rest, and keyed hashes of names.

Suite 1 is AES-256-GCM with a random 96-bit nonce. A thread's data key is never used directly: HKDF (RFC 5869) expands
it into one key for encryption and one for digests. Records begin with two magic bytes, the format and the suite, so an
unknown format is a typed error for a reader, and never garbage.

Keyed hashes of names. LMDB keys and object names contain these hashes instead of the users' names.

A namespace's name key is random and is never rotated, because that would move every row. An attacker who steals it can
test guesses of names, and nothing else.
"""

from __future__ import annotations

import hmac
import os
import struct
from collections.abc import Callable
from hashlib import sha256

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from stateward_sidecar.errors import Corrupt
from stateward_sidecar.measures import events

FORMAT = 1
SUITE_AES_256_GCM = 1
KEY_BYTES = 32
NONCE_BYTES = 12
TAG_BYTES = 16
DIGEST_BYTES = 16
PREFIX_BYTES = 4
SHA256_BLOCK_BYTES = 64
_INNER_PAD = bytes(byte ^ 0x36 for byte in range(256))
_OUTER_PAD = bytes(byte ^ 0x5C for byte in range(256))

NONCES_DRAWN = 128
# Each nonce leaves this list once. The daemon never forks.
_nonces: list[bytes] = []
_LENGTH = struct.Struct(">I").pack

Bytes = bytes | memoryview


class Cipher:
    """The keys of one thread: seals, opens and digests. Safe to share between threads."""

    __slots__ = ("_aead", "_inner", "_outer", "encrypt")

    def __init__(self, data_key: bytes) -> None:
        self._aead = AESGCM(_expand(data_key, b"stateward v1 encryption"))
        self.encrypt: Callable[[bytes, Bytes, bytes], bytes] = self._aead.encrypt
        """Returns ciphertext and tag, given nonce, plaintext and associated data."""
        # HMAC (RFC 2104) with its two padded keys made once. This takes half the time of the library's function, which
        # looks up the hash and pads the key in every call.
        key = _expand(data_key, b"stateward v1 digest").ljust(SHA256_BLOCK_BYTES, b"\0")
        self._inner = key.translate(_INNER_PAD)
        self._outer = key.translate(_OUTER_PAD)

    def decrypt(self, nonce: Bytes, ciphertext: Bytes, aad: bytes) -> bytes:
        """The reverse of ``encrypt``. Raises Corrupt if anything differs."""
        try:
            return self._aead.decrypt(nonce, ciphertext, aad)
        except InvalidTag:
            events.unopened += 1
            raise Corrupt("stored bytes do not pass authentication") from None

    def digest(self, joined: bytes) -> bytes:
        """Returns the keyed digest (HMAC-SHA256, 16 bytes) of parts that ``length_prefixed`` joined."""
        return sha256(self._outer + sha256(self._inner + joined).digest()).digest()[:DIGEST_BYTES]


def record_prefix(magic: bytes) -> bytes:
    """Returns the first bytes of a record of this kind."""
    return magic + bytes((FORMAT, SUITE_AES_256_GCM))


def seal_record(cipher: Cipher, magic: bytes, plaintext: Bytes, *place: Bytes) -> bytes:
    """Returns magic ‖ format ‖ suite ‖ nonce ‖ ciphertext ‖ tag. ``place`` binds the record to its place."""
    prefix = record_prefix(magic)
    nonce = new_nonce()
    return prefix + nonce + cipher.encrypt(nonce, plaintext, length_prefixed(prefix, *place))


def open_record(cipher: Cipher, magic: bytes, record: Bytes, *place: Bytes) -> bytes:
    """The reverse of ``seal_record``. Raises Corrupt for other bytes or another place."""
    check_prefix(record, magic, PREFIX_BYTES + NONCE_BYTES + TAG_BYTES)
    prefix = bytes(record[:PREFIX_BYTES])
    start = PREFIX_BYTES + NONCE_BYTES
    return cipher.decrypt(record[PREFIX_BYTES:start], record[start:], length_prefixed(prefix, *place))


def check_prefix(record: Bytes, magic: bytes, least_bytes: int) -> None:
    """Raises Corrupt unless a record has this magic, and a format and suite that this version reads."""
    if len(record) < least_bytes:
        raise Corrupt(f"a record has {len(record)} bytes, fewer than the {least_bytes} of its kind")
    if bytes(record[:2]) != magic:
        raise Corrupt(f"a record begins with {bytes(record[:2]).hex()}, not {magic.hex()}")
    if record[2] != FORMAT or record[3] != SUITE_AES_256_GCM:
        raise Corrupt(f"a record has format {record[2]} and suite {record[3]}, where this version reads 1 and 1")


def length_prefixed(*parts: Bytes) -> bytes:
    """Joins parts so that no two lists of parts give the same bytes."""
    pieces: list[Bytes] = []
    for part in parts:
        pieces += (_LENGTH(len(part)), part)
    return b"".join(pieces)


def content_hash(data: Bytes) -> bytes:
    """SHA-256, 32 bytes."""
    return sha256(data).digest()


def new_nonce() -> bytes:
    """Returns 12 unused random bytes. Draws many at once, because each draw releases the interpreter."""
    try:
        return _nonces.pop()
    except IndexError:
        fresh = os.urandom(NONCES_DRAWN * NONCE_BYTES)
        _nonces.extend(fresh[at : at + NONCE_BYTES] for at in range(NONCE_BYTES, len(fresh), NONCE_BYTES))
        return fresh[:NONCE_BYTES]


def _expand(key: bytes, label: bytes) -> bytes:
    return HKDFExpand(algorithm=SHA256(), length=KEY_BYTES, info=label).derive(key)


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

    def outline_key(self, uid: bytes) -> bytes:
        """The key of what may be known of a held thread without its session key."""
        return hmac.digest(self._key, length_prefixed(b"outline", uid), "sha256")

    def namespace(self, name: str) -> bytes:
        """16 bytes for a namespace. Use it on the root's name key."""
        return self._hash(b"namespace", name.encode())

    def sign(self, purpose: bytes, data: bytes) -> bytes:
        """32 bytes that only who has this key can make of data that lie in clear."""
        return hmac.digest(self._key, length_prefixed(purpose, data), "sha256")

    def _hash(self, *parts: bytes) -> bytes:
        return hmac.digest(self._key, length_prefixed(*parts), "sha256")[:HASH_BYTES]
