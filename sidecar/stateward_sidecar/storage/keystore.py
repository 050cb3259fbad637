"""The wrapped keys, in a file of their own beside data.mdb.

LMDB keeps freed bytes, so a key that had ever been in it could not be destroyed. Here each key has a slot of 128 bytes
that is overwritten when its thread is deleted. A slot never crosses a disk sector, so a power cut leaves the old slot
or the new one.

    slot 0      "SWKEYS" ‖ format, then zeros
    slot 1      the root: root key and root name key, wrapped by the key-encryption key
    slot 2...   namespaces (name key and namespace key, wrapped by the root key) and threads (data key, wrapped by the
                namespace key), also held ones (data key, wrapped by a key of namespace key and session key)
    a slot      kind ‖ format ‖ zeros(2) ‖ id(16) ‖ id of the wrapping key(16) ‖ nonce ‖ wrapped ‖ tag ‖ zeros
                ‖ mark (1 = leaving: the next start frees the slot unless a name leads to the thread)

A deletion overwrites the wrapped key, but keeps the kind ERASED and the uid until the thread's rows are removed as
well. A start that finds such a slot finishes the deletion. Only the writer thread changes the file; any thread may read
it.
"""

from __future__ import annotations

import errno
import hmac
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from stateward_sidecar.codec.seal import KEY_BYTES, NONCE_BYTES, NameKey, length_prefixed
from stateward_sidecar.errors import DiskFull, KeyUnavailable, StartError
from stateward_sidecar.measures import Histogram, events
from stateward_sidecar.storage.files import create_file
from stateward_sidecar.storage.heldkeys import HeldKeys, locked, wrapping_key
from stateward_sidecar.storage.keyslots import HEAD, SLOT_BYTES, KeySlots, read_slots
from stateward_sidecar.storage.secretfiles import fingerprint
from stateward_sidecar.syncing import grow_file, sync_data

FORMAT = 1
GROW_SLOTS = 128
FIRST_SLOT = 2
"""The first one that is no fixed place."""
FREE, ROOT, NAMESPACE, THREAD, ERASED, HELD = range(6)
_OF_THREADS = (THREAD, HELD)
NO_ID = b"\0" * 16
_MAGIC = b"SWKEYS"
_LEAVING = b"\1"


@dataclass(frozen=True, slots=True)
class NamespaceKeys:
    """The keys of a namespace. ``tag`` (8 bytes) stands for its name in index rows."""

    id: bytes
    names: NameKey
    wrapping_key: bytes = field(repr=False)
    tag: bytes = field(init=False)

    def __post_init__(self) -> None:
        """Takes the tag from the id."""
        object.__setattr__(self, "tag", self.id[:8])


class KeyStore:
    """Finds, makes and destroys keys."""

    def __init__(self, path: Path, key: bytes, root: bytes = b"") -> None:
        """Opens the file, or makes it. A new file takes ``root``, the slot of a root that other sidecars already use.
        In an old one the slot takes the place of one that another key wraps, if it has the same root.

        Raises StartError, and makes no file, if the key does not open the root.
        """
        self._path = path
        self._key_id = wrapping_id(key)
        try:
            if not path.exists():
                create_file(path, self._new_file(key, root))
            self._fd = os.open(path, os.O_RDWR)
        except OSError as error:
            raise StartError(f"cannot open the key store {path}: {error.strerror}") from None
        self._dirty = False
        # Set if metrics are on.
        self.syncs: Histogram | None = None
        self._namespaces: dict[bytes, NamespaceKeys] = {}
        self._ids: dict[str, bytes] = {}
        self._free: list[int] = []
        self._needed: set[bytes] = set()  # namespaces that wrapped a thread's key
        self._leaving: set[bytes] = set()
        self._unfinished: set[bytes] = set()
        self.held = HeldKeys()
        self.held_uids: set[bytes] = set()
        """Uids of held threads."""
        self._read_slots()
        is_known = wrapping_id_of(self.root_slot()) == self._key_id or not root
        opened = self._unwrap(1, ROOT, NO_ID, key) if is_known else self._follow(root, key)
        if opened is None:
            raise StartError(
                f"KEY_UNAVAILABLE: the key {fingerprint(key)} does not open the data in {path.parent}; "
                "start with the key file that the data was made with (STATEWARD_KEY_FILE or --key-file)"
            )
        self._root_key = opened[:KEY_BYTES]
        self._root_names = NameKey(opened[KEY_BYTES:])

    def _follow(self, root: bytes, key: bytes) -> bytes | None:
        """Takes the slot of this store's root that another key wraps, durably; None, and changes nothing, if it is that
        of another root, or if the key does not open it.

        A power cut leaves the old slot or the new one, because a slot never crosses a sector.
        """
        found = _open(root, ROOT, NO_ID, key)
        spaces = (data for slot, data in read_slots(self._fd) if slot >= FIRST_SLOT and data[0] == NAMESPACE)
        wrapped = next(spaces, None)
        if found is None or (wrapped is None and len(self._slots)):
            return None
        if wrapped is not None:
            owner = bytes(HEAD.unpack_from(wrapped)[2])
            if _open(bytes(wrapped), NAMESPACE, owner, found[:KEY_BYTES]) is None:
                return None
        os.pwrite(self._fd, root, SLOT_BYTES)
        sync_data(self._fd)
        return found

    def rewrap(self, key: bytes, other: bytes) -> None:
        """Wraps the root with another key, durably, in the place of ``key``, with which this store was opened."""
        root = _open(self.root_slot(), ROOT, NO_ID, key)
        assert root is not None
        os.pwrite(self._fd, wrap_root(root, other), SLOT_BYTES)
        sync_data(self._fd)

    def _new_file(self, key: bytes, root: bytes) -> bytes:
        if root and not opens_root(root, key):  # else the directory would get a wrong root
            raise StartError(
                f"KEY_UNAVAILABLE: the key {fingerprint(key)} does not open the archive; start with the key file "
                "that the archive was made with (STATEWARD_KEY_FILE or --key-file), or give another --archive"
            )
        first = (_MAGIC + bytes((FORMAT,))).ljust(SLOT_BYTES, b"\0")
        return first + (root or wrap_root(os.urandom(2 * KEY_BYTES), key))

    def _read_slots(self) -> None:
        """Reads the file. Raises StartError."""
        begin, size = os.pread(self._fd, SLOT_BYTES, 0), os.fstat(self._fd).st_size
        if begin[: len(_MAGIC)] != _MAGIC or size < 2 * SLOT_BYTES:
            raise StartError(f"{self._path} is not a key store, or is truncated")
        if begin[len(_MAGIC)] != FORMAT:
            raise StartError(f"{self._path} has format {begin[len(_MAGIC)]}; this version reads format {FORMAT}")
        self._slots = KeySlots(self._fd, self._used())
        self._free.reverse()

    def _used(self) -> Iterator[tuple[bytes, int]]:
        """Yields owner and number of each slot that is not free, and notes what else the slots say."""
        for slot, data in read_slots(self._fd):
            if slot < FIRST_SLOT:
                continue
            kind, _, owner, wrapping_id = HEAD.unpack_from(data)
            if not any(data):  # a damaged slot is not free
                self._free.append(slot)
                continue
            yield owner, slot
            if kind == HELD:
                self.held_uids.add(owner)
            if kind in _OF_THREADS:
                self._needed.add(wrapping_id)
            if kind in _OF_THREADS and data[-1]:
                self._leaving.add(owner)
            if kind == ERASED or (kind in _OF_THREADS and data[-1]):
                self._unfinished.add(owner)

    @property
    def unfinished(self) -> frozenset[bytes]:
        """Uids that the last process left marked or erased, and that no write has touched since the start."""
        return frozenset(self._unfinished)

    @property
    def has_settled_threads(self) -> bool:
        """True if there is a key of a thread that was committed."""
        return next(self._settled(), None) is not None

    def settled_threads(self) -> set[bytes]:
        """Uids of threads that were committed and are not being deleted."""
        return set(self._settled())

    def _settled(self) -> Iterator[bytes]:
        for slot, data in read_slots(self._fd):
            kind, _, owner, _ = HEAD.unpack_from(data)
            if slot >= FIRST_SLOT and kind in _OF_THREADS and not data[-1] and owner not in self._leaving:
                yield owner

    def is_leaving(self, uid: bytes) -> bool:
        """Whether a key is marked: the next start removes it unless a name leads to its thread."""
        return uid in self._leaving

    def mark_leaving(self, uid: bytes, *, is_leaving: bool) -> None:
        """Marks a thread that is being deleted or has no name yet, or removes the mark. Durable after ``sync``. Writer
        thread only."""
        self._unfinished.discard(uid)
        slot = self._slot_of(uid)
        if slot is not None:
            os.pwrite(self._fd, _LEAVING if is_leaving else b"\0", (slot + 1) * SLOT_BYTES - 1)
            self._dirty = True
        (self._leaving.add if is_leaving else self._leaving.discard)(uid)

    @property
    def root_names(self) -> NameKey:
        """The root name key, which no rotation changes."""
        return self._root_names

    def derive(self, purpose: bytes) -> bytes:
        """A key of 32 bytes for another purpose, the same at every start."""
        return hmac.digest(self._root_key, purpose, "sha256")

    def namespace_id(self, name: str) -> bytes:
        """The hash that stands for a namespace."""
        found = self._ids.get(name)
        if found is None:
            found = self._ids[name] = self._root_names.namespace(name)
        return found

    def known_names(self, identity: bytes) -> list[str]:
        """Names of a namespace that were used since the start: one, or none."""
        return [name for name, known in list(self._ids.items()) if known == identity]

    def namespace(self, name: str) -> NamespaceKeys | None:
        """Keys of a namespace; None if it has none yet. Raises KeyUnavailable if they are missing or damaged."""
        return self.namespace_by_id(self.namespace_id(name))

    def namespace_by_id(self, identity: bytes) -> NamespaceKeys | None:
        """The same, by the hash of the name."""
        found = self._namespaces.get(identity)
        if found is None:
            slot = self._slots.find(NAMESPACE, identity)
            if slot is None and identity in self._needed:
                raise KeyUnavailable("the key of a namespace is missing or damaged", namespace_id=identity.hex())
            if slot is None:
                return None
            keys = self._unwrap(slot, NAMESPACE, identity, self._root_key)
            if keys is None:
                raise KeyUnavailable("the key of a namespace is damaged", namespace_id=identity.hex())
            found = self._namespaces[identity] = NamespaceKeys(identity, NameKey(keys[:KEY_BYTES]), keys[KEY_BYTES:])
        return found

    def create_namespace(self, name: str) -> NamespaceKeys:
        """Makes the keys of a namespace. Durable after ``sync``. Writer thread only."""
        identity, keys = self.namespace_id(name), os.urandom(2 * KEY_BYTES)
        self._put(NAMESPACE, identity, _wrap(NAMESPACE, identity, b"\0" * 16, self._root_key, keys))
        found = self._namespaces[identity] = NamespaceKeys(identity, NameKey(keys[:KEY_BYTES]), keys[KEY_BYTES:])
        return found

    def add_thread(
        self, uid: bytes, namespace: NamespaceKeys, data_key: bytes, session_key: bytes = b"", held: bytes = b""
    ) -> None:
        """Wraps and writes a thread's data key, marked as leaving until a name leads to it.

        An erased uid becomes valid again: a thread that was deleted only on this disk comes back under its uid, from
        the archive or by a save. Durable after ``sync``. Writer thread only. Raises DiskFull. ``session_key``: of a
        held thread that is made here. ``held``: the slot of one that was made elsewhere.
        """
        self.revive(uid)
        slot = held or self.wrap_thread(uid, namespace, data_key, session_key)
        is_held = bool(held or session_key)
        # Key and mark in one write: between two, a power cut would leave a key that seems to have a thread.
        self._put(HELD if is_held else THREAD, uid, slot[:-1] + _LEAVING)
        if is_held:
            self.held_uids.add(uid)
        self._needed.add(namespace.id)
        self._leaving.add(uid)

    def give_up(self, uid: bytes) -> None:
        """Frees the slot of a creation that failed. The key of an existing thread stays: with an archive, a claim fixes
        the uid, and an orphan of that thread has the same key. Writer thread only."""
        if self.is_leaving(uid):
            self.release(uid)

    # -- slots that are copied: the archive holds the same wrapped keys ------------------------------------------------

    def root_slot(self) -> bytes:
        """The slot of the root, wrapped."""
        return os.pread(self._fd, SLOT_BYTES, SLOT_BYTES)

    def is_root(self, slot: bytes, key: bytes) -> bool:
        """Whether a root slot from elsewhere holds this store's root. False if the key does not open the slot."""
        root = _open(slot, ROOT, NO_ID, key)
        return root is not None and hmac.compare_digest(root[:KEY_BYTES], self._root_key)

    def adopt_root(self, slot: bytes, key: bytes) -> bool:
        """Replaces this store's root by one that other sidecars use, durably, before the store is used. Returns False,
        and changes nothing, if this root has wrapped keys already, or if the key does not open the other root."""
        root = _open(slot, ROOT, NO_ID, key)
        if root is None or len(self._slots):
            return False
        os.pwrite(self._fd, slot, SLOT_BYTES)
        self._dirty = True
        self.sync()
        self._root_key, self._root_names = root[:KEY_BYTES], NameKey(root[KEY_BYTES:])
        self._ids.clear()
        return True

    def new_namespace_slot(self, name: str) -> bytes:
        """Returns new keys for a namespace, wrapped. Stores nothing."""
        return _wrap(NAMESPACE, self.namespace_id(name), b"\0" * 16, self._root_key, os.urandom(2 * KEY_BYTES))

    def open_namespace(self, identity: bytes, slot: bytes) -> NamespaceKeys:
        """The keys in a namespace's slot. Raises KeyUnavailable."""
        keys = _open(slot, NAMESPACE, identity, self._root_key)
        if keys is None:
            raise KeyUnavailable("the key of a namespace does not open", namespace_id=identity.hex())
        return NamespaceKeys(identity, NameKey(keys[:KEY_BYTES]), keys[KEY_BYTES:])

    def namespace_slot(self, identity: bytes) -> bytes | None:
        """The slot of a namespace's keys, wrapped; None if it has none here."""
        slot = self._slots.find(NAMESPACE, identity)
        return os.pread(self._fd, SLOT_BYTES, slot * SLOT_BYTES) if slot is not None else None

    def adopt_namespace(self, identity: bytes, slot: bytes) -> None:
        """Stores the keys that other sidecars use for a namespace. Durable after ``sync``. Writer thread only. Raises
        DiskFull."""
        if self._slots.find(NAMESPACE, identity) is None:
            self._put(NAMESPACE, identity, slot)

    @staticmethod
    def wrap_thread(uid: bytes, namespace: NamespaceKeys, data_key: bytes, session_key: bytes = b"") -> bytes:
        """Returns the slot of a thread's data key, wrapped. Stores nothing. ``session_key``: of a held thread."""
        if not session_key:
            return _wrap(THREAD, uid, namespace.id, namespace.wrapping_key, data_key)
        return _wrap(HELD, uid, namespace.id, wrapping_key(namespace.wrapping_key, session_key), data_key)

    @staticmethod
    def open_thread(slot: bytes, namespace: NamespaceKeys, session_key: bytes = b"") -> tuple[bytes, bytes]:
        """The uid and data key in a thread's slot. Raises KeyUnavailable, and Locked if the thread is held and this is
        not its session key."""
        uid = bytes(HEAD.unpack_from(slot)[2]) if len(slot) >= HEAD.size else b""
        if is_held_slot(slot):
            wrapped_by = wrapping_key(namespace.wrapping_key, session_key) if session_key else b""
            key = _open(slot, HELD, uid, wrapped_by) if session_key else None
            if key is None:
                raise locked(uid, is_wrong=bool(session_key))
            return uid, key
        key = _open(slot, THREAD, uid, namespace.wrapping_key)
        if key is None:
            raise KeyUnavailable("the thread's data key in the archive does not open")
        return uid, key

    def held_slot(self, uid: bytes) -> bytes:
        """The slot of a held thread as the archive has it; empty if the thread is not held."""
        slot = self._slots.find(HELD, uid) if uid in self.held_uids else None
        if slot is None:
            return b""
        return os.pread(self._fd, SLOT_BYTES - 1, slot * SLOT_BYTES) + b"\0"

    def thread_key(self, uid: bytes, namespace: NamespaceKeys) -> bytes | None:
        """A thread's data key; None if there is none or it was erased. Raises KeyUnavailable if it is damaged, and
        Locked if it is held and no client has opened it."""
        slot = self._slots.find(THREAD, uid)
        if slot is None:
            return self.held.data_key(uid) if uid in self.held_uids else None
        key = self._unwrap(slot, THREAD, uid, namespace.wrapping_key)
        if key is None:
            raise KeyUnavailable("the thread's data key is damaged", uid=uid.hex())
        return key

    def unwrap_held(self, uid: bytes, namespace: NamespaceKeys, session_key: bytes) -> bytes | None:
        """The data key of a held thread; None if this is not its session key."""
        slot = self._slots.find(HELD, uid)
        if slot is None:
            return None
        return self._unwrap(slot, HELD, uid, wrapping_key(namespace.wrapping_key, session_key))

    def namespace_of(self, uid: bytes) -> bytes | None:
        """Id of the namespace whose key wraps a thread's key."""
        slot = self._slot_of(uid)
        if slot is None:
            return None
        return bytes(HEAD.unpack_from(os.pread(self._fd, SLOT_BYTES, slot * SLOT_BYTES))[3])

    def has_thread(self, uid: bytes) -> bool:
        """Whether there is a slot for a thread's key, also if it is damaged or erased."""
        return self.has_key(uid) or self.is_erased(uid)

    def has_key(self, uid: bytes) -> bool:
        """Whether there is a wrapped data key of a thread, also if it is damaged."""
        return self._slot_of(uid) is not None

    def _slot_of(self, uid: bytes) -> int | None:
        slot = self._slots.find(THREAD, uid)
        return slot if slot is not None or uid not in self.held_uids else self._slots.find(HELD, uid)

    def is_erased(self, uid: bytes) -> bool:
        """True if the thread's deletion was begun and is not finished."""
        return self._slots.find(ERASED, uid) is not None

    def erase_thread(self, uid: bytes) -> None:
        """Destroys a thread's data key. Durable when it returns. Writer thread only."""
        slot = self._slot_of(uid)
        if slot is None:
            return
        os.pwrite(self._fd, HEAD.pack(ERASED, FORMAT, uid, b"\0" * 16).ljust(SLOT_BYTES, b"\0"), slot * SLOT_BYTES)
        sync_data(self._fd)
        self._forget_held(uid)
        self._leaving.discard(uid)
        self._unfinished.discard(uid)

    def revive(self, uid: bytes) -> None:
        """Frees the slot of an erased thread only, because the archive may have brought the thread back. Writer thread
        only."""
        self._unfinished.discard(uid)
        self._free_slots(uid, (ERASED,))

    def release(self, uid: bytes) -> None:
        """Frees the slot of an erased thread whose rows are removed, or of a creation that failed. Writer thread
        only."""
        self._leaving.discard(uid)
        self._unfinished.discard(uid)
        self._free_slots(uid, (ERASED, *_OF_THREADS))
        self._forget_held(uid)

    def _forget_held(self, uid: bytes) -> None:
        self.held_uids.discard(uid)
        self.held.drop(uid)

    def _free_slots(self, uid: bytes, kinds: tuple[int, ...]) -> None:
        for kind in kinds:
            slot = self._slots.find(kind, uid)
            if slot is not None:
                self._slots.remove(uid, slot)
                os.pwrite(self._fd, b"\0" * SLOT_BYTES, slot * SLOT_BYTES)
                self._dirty = True
                self._free.append(slot)

    def sync(self) -> None:
        """Makes the changes durable. Does nothing if there are none."""
        if self._dirty:
            began = time.perf_counter() if self.syncs is not None else 0.0
            sync_data(self._fd)
            self._dirty = False
            if self.syncs is not None:
                self.syncs.add(time.perf_counter() - began)

    def close(self) -> None:
        """Closes the file."""
        os.close(self._fd)

    def _put(self, kind: int, owner: bytes, data: bytes) -> None:
        try:
            slot = self._slots.find(kind, owner)  # a second slot would outlive the deletion of the first
            if slot is None:
                slot = self._take_free()
            os.pwrite(self._fd, data, slot * SLOT_BYTES)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFull("there is no room for another thread's key") from None
            raise
        self._dirty = True
        self._slots.add(owner, slot)

    def _take_free(self) -> int:
        if not self._free:
            size = os.fstat(self._fd).st_size
            grow_file(self._fd, GROW_SLOTS * SLOT_BYTES)
            self._free = list(range(size // SLOT_BYTES + GROW_SLOTS - 1, size // SLOT_BYTES - 1, -1))
        return self._free.pop()

    def _unwrap(self, slot: int, kind: int, owner: bytes, wrapping_key: bytes) -> bytes | None:
        return _open(os.pread(self._fd, SLOT_BYTES, slot * SLOT_BYTES), kind, owner, wrapping_key)


def is_held_slot(slot: bytes) -> bool:
    """Whether a thread's slot needs a session key."""
    return slot[:1] == bytes((HELD,))


def opens_root(slot: bytes, key: bytes) -> bool:
    """Whether a key opens the slot of a root."""
    return open_root(slot, key) is not None


def open_root(slot: bytes, key: bytes) -> bytes | None:
    """Root key and root name key in the slot of a root; None if the key does not open it."""
    return _open(slot, ROOT, NO_ID, key)


def wrap_root(root: bytes, key: bytes) -> bytes:
    """Returns the slot of a root."""
    return _wrap(ROOT, NO_ID, wrapping_id(key), key, root)


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


def _open(data: bytes, kind: int, owner: bytes, wrapping_key: bytes) -> bytes | None:
    """The keys in a slot; None if the slot belongs to another owner, is damaged, or is wrapped by another key."""
    if len(data) != SLOT_BYTES or data[0] != kind or HEAD.unpack_from(data)[2] != owner:
        return None
    head, rest = data[: HEAD.size], data[HEAD.size :]
    wrapped_bytes = NONCE_BYTES + (1 if kind in _OF_THREADS else 2) * KEY_BYTES + 16
    try:
        return AESGCM(wrapping_key).decrypt(rest[:NONCE_BYTES], rest[NONCE_BYTES:wrapped_bytes], length_prefixed(head))
    except InvalidTag:
        events.unopened += 1
        return None


def _wrap(kind: int, owner: bytes, wrapping_id: bytes, wrapping_key: bytes, keys: bytes) -> bytes:
    head = HEAD.pack(kind, FORMAT, owner, wrapping_id)
    nonce = os.urandom(NONCE_BYTES)
    slot = head + nonce + AESGCM(wrapping_key).encrypt(nonce, keys, length_prefixed(head))
    return slot.ljust(SLOT_BYTES, b"\0")
