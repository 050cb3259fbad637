"""Keys in slots: wraps a key by another one, and opens it again. Pure functions; `keystore.py` has the file.

    root        by the key-encryption key
    namespace   by the root: name key ‖ namespace key
    thread      by the namespace's key, of a held thread by a key that is made from that and a session key
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from stateward_sidecar.codec.seal import KEY_BYTES, NONCE_BYTES, length_prefixed
from stateward_sidecar.measures import events
from stateward_sidecar.storage.heldkeys import wrapping_key
from stateward_sidecar.storage.keyslots import HEAD, SLOT_BYTES, generation_of, pack_head, root_of
from stateward_sidecar.storage.namespacekeys import NamespaceKeys
from stateward_sidecar.storage.secretfiles import fingerprint

FORMAT = 1
FREE, ROOT, NAMESPACE, THREAD, ERASED, HELD = range(6)
NO_ID = b"\0" * 16
OF_THREADS = (THREAD, HELD)


def opens_root(slot: bytes, key: bytes) -> bool:
    """Whether a key opens the slot of a root."""
    return open_root(slot, key) is not None


def opens_roots(slots: bytes, key: bytes) -> bool:
    """Whether a key opens the slots of a root, which stand one after the other."""
    return any(opens_root(slot, key) for slot in split_slots(slots))


def open_root(slot: bytes, key: bytes) -> bytes | None:
    """Root key and root name key in the slot of a root; None if the key does not open it."""
    return open_slot(slot, ROOT, NO_ID, key)


def wrap_root(root: bytes, key: bytes, generation: int = 0) -> bytes:
    """Returns the slot of a root."""
    return wrap_slot(ROOT, NO_ID, wrapping_id(key), key, root, generation)


def wrap_namespace(identity: bytes, generation: int, keys: bytes, root_generation: int, root_key: bytes) -> bytes:
    """Returns the slot of a namespace's keys: name key ‖ namespace key, wrapped by a root."""
    return wrap_slot(NAMESPACE, identity, root_generation.to_bytes(len(NO_ID), "big"), root_key, keys, generation)


def split_slots(data: bytes) -> list[bytes]:
    """Cuts what several slots are into the slots."""
    return [data[at : at + SLOT_BYTES] for at in range(0, len(data), SLOT_BYTES)]


def is_held_slot(slot: bytes) -> bool:
    """Whether a thread's slot needs a session key."""
    return slot[:1] == bytes((HELD,))


def wrapping_id(key: bytes) -> bytes:
    """What a root's slot says of the key that wraps it: the fingerprint, then zeros."""
    return bytes.fromhex(fingerprint(key)).ljust(16, b"\0")


def wrapping_id_of(slot: bytes) -> bytes:
    """The id of the key that wraps a slot."""
    return bytes(HEAD.unpack_from(slot)[3]) if len(slot) == SLOT_BYTES else b""


def is_wrapped_by(path: Path, key: bytes) -> bool:
    """Whether the root in a key store's file says that it is wrapped by a key. True if the file cannot be read, which
    opening it will tell."""
    try:
        with path.open("rb") as file:
            file.seek(SLOT_BYTES)
            return wrapping_id_of(file.read(SLOT_BYTES)) in (wrapping_id(key), b"")
    except OSError:
        return True


def open_slot(data: bytes, kind: int, owner: bytes, by: bytes) -> bytes | None:
    """The keys in a slot; None if the slot belongs to another owner, is damaged, or is wrapped by another key."""
    if len(data) != SLOT_BYTES or data[0] != kind or HEAD.unpack_from(data)[2] != owner:
        return None
    head, rest = data[: HEAD.size], data[HEAD.size :]
    wrapped_bytes = NONCE_BYTES + (1 if kind in OF_THREADS else 2) * KEY_BYTES + 16
    try:
        return AESGCM(by).decrypt(rest[:NONCE_BYTES], rest[NONCE_BYTES:wrapped_bytes], length_prefixed(head))
    except InvalidTag:
        events.unopened += 1
        return None


def open_namespace(slot: bytes, roots: Mapping[int, bytes]) -> bytes | None:
    """Name key ‖ namespace key in a slot. ``roots``: by generation; a root name key behind one does not matter."""
    root = roots.get(root_of(slot)) if len(slot) == SLOT_BYTES else None
    return open_slot(slot, NAMESPACE, bytes(HEAD.unpack_from(slot)[2]), root[:KEY_BYTES]) if root is not None else None


def open_thread(
    slot: bytes, kind: int, uid: bytes, namespace: NamespaceKeys, session_key: bytes = b""
) -> bytes | None:
    """The data key in the slot of a thread; None also if the namespace's key of its generation is not known."""
    key = namespace.key_of(generation_of(slot))
    if key is None:
        return None
    return open_slot(slot, kind, uid, wrapping_key(key, session_key) if kind == HELD else key)


def wrap_held(uid: bytes, namespace: NamespaceKeys, data_key: bytes, session_key: bytes) -> bytes:
    """Returns the slot of a held thread."""
    wrapped_by = wrapping_key(namespace.wrapping_key, session_key)
    return wrap_slot(HELD, uid, namespace.id, wrapped_by, data_key, namespace.generation)


def wrap_slot(kind: int, owner: bytes, wrapping_id: bytes, by: bytes, keys: bytes, generation: int = 0) -> bytes:
    """Returns a slot: the reverse of ``open_slot``."""
    head = pack_head(kind, FORMAT, owner, wrapping_id, generation)
    nonce = os.urandom(NONCE_BYTES)
    slot = head + nonce + AESGCM(by).encrypt(nonce, keys, length_prefixed(head))
    return slot.ljust(SLOT_BYTES, b"\0")
