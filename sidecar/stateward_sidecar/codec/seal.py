"""Authenticated encryption of everything at rest.

Suite 1 is AES-256-GCM with a random 96-bit nonce. A thread's data key is never used as it is: HKDF (RFC 5869) expands
it into one key for encryption and one for digests. Records begin with two magic bytes, the format and the suite, so a
reader meets an unknown format as a typed error and never as garbage.
"""

from __future__ import annotations

import os
import struct
from hashlib import sha256

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from stateward_sidecar.errors import Corrupt

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
# A nonce leaves this list once; the daemon never forks.
_nonces: list[bytes] = []
_LENGTH = struct.Struct(">I").pack

Bytes = bytes | memoryview


class Cipher:
    """The keys of one thread: seals, opens and digests. Safe to share between threads."""

    __slots__ = ("_aead", "_inner", "_outer")

    def __init__(self, data_key: bytes) -> None:
        self._aead = AESGCM(_expand(data_key, b"stateward v1 encryption"))
        # HMAC (RFC 2104) with its two padded keys made once: half the time of the library's one call, which looks
        # the hash up and pads the key every time.
        key = _expand(data_key, b"stateward v1 digest").ljust(SHA256_BLOCK_BYTES, b"\0")
        self._inner = key.translate(_INNER_PAD)
        self._outer = key.translate(_OUTER_PAD)

    def encrypt(self, nonce: bytes, plaintext: Bytes, aad: bytes) -> bytes:
        """Returns ciphertext and tag."""
        return self._aead.encrypt(nonce, plaintext, aad)

    def decrypt(self, nonce: Bytes, ciphertext: Bytes, aad: bytes) -> bytes:
        """The reverse of ``encrypt``. Raises Corrupt if anything differs."""
        try:
            return self._aead.decrypt(nonce, ciphertext, aad)
        except InvalidTag:
            raise Corrupt("stored bytes do not pass authentication") from None

    def digest(self, *parts: Bytes) -> bytes:
        """Returns the keyed digest (HMAC-SHA256, 16 bytes) of the length-prefixed parts."""
        return self.digest_joined(length_prefixed(*parts))

    def digest_joined(self, data: bytes) -> bytes:
        """The same of parts that were joined before."""
        return sha256(self._outer + sha256(self._inner + data).digest()).digest()[:DIGEST_BYTES]


def record_prefix(magic: bytes) -> bytes:
    """What a record of this kind begins with."""
    return magic + bytes((FORMAT, SUITE_AES_256_GCM))


def seal_record(cipher: Cipher, magic: bytes, plaintext: Bytes, *place: Bytes) -> bytes:
    """Returns magic ‖ format ‖ suite ‖ nonce ‖ ciphertext ‖ tag; ``place`` says where the record belongs."""
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
    """Raises Corrupt unless a record has this magic and a format and suite this version reads."""
    if len(record) < least_bytes:
        raise Corrupt(f"a record has {len(record)} bytes, fewer than the {least_bytes} of its kind")
    if bytes(record[:2]) != magic:
        raise Corrupt(f"a record begins with {bytes(record[:2]).hex()}, not {magic.hex()}")
    if record[2] != FORMAT or record[3] != SUITE_AES_256_GCM:
        raise Corrupt(f"a record has format {record[2]} and suite {record[3]}, where this version reads 1 and 1")


def length_prefixed(*parts: Bytes) -> bytes:
    """Joins parts so that no two lists of parts give the same bytes."""
    return b"".join([piece for part in parts for piece in (_LENGTH(len(part)), part)])


def content_hash(data: Bytes) -> bytes:
    """SHA-256, 32 bytes."""
    return sha256(data).digest()


def new_nonce() -> bytes:
    """12 random bytes that were never used. Drawn from the system many at a time: each draw lets other threads in."""
    try:
        return _nonces.pop()
    except IndexError:
        fresh = os.urandom(NONCES_DRAWN * NONCE_BYTES)
        _nonces.extend(fresh[at : at + NONCE_BYTES] for at in range(NONCE_BYTES, len(fresh), NONCE_BYTES))
        return fresh[:NONCE_BYTES]


def _expand(key: bytes, label: bytes) -> bytes:
    return HKDFExpand(algorithm=SHA256(), length=KEY_BYTES, info=label).derive(key)
