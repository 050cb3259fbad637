"""The wrapped keys, in a file of their own beside data.mdb.

LMDB keeps freed bytes, so a key that had ever been in it could not be destroyed. Here each key has a slot of 128 bytes
that is overwritten when its thread is deleted. A slot never crosses a disk sector, so a power cut leaves the old slot
or the new one.

    slot 0      "SWKEYS" ‖ format, then zeros
    slot 1      the root: root key and root name key, wrapped by the key-encryption key
    slot 2...   namespaces (name key and namespace key, wrapped by the root key) and threads (data key, wrapped by the
                namespace key), also held ones (data key, wrapped by a key of namespace key and session key)
    a slot      kind ‖ format ‖ generation(2) ‖ id(16) ‖ id of the wrapping key(16) ‖ nonce ‖ wrapped ‖ tag ‖ zeros
                ‖ mark (1 = leaving: the next start frees the slot unless a name leads to the thread)

Root and namespaces' keys have generations (FORMAT.md, *Change of the keys below*). A new root has a slot of its own
until all namespaces are wrapped by it, and a namespace has a slot for each generation that something still needs.

A deletion overwrites the wrapped key, but keeps the kind ERASED and the uid until the thread's rows are removed as
well. A start that finds such a slot finishes the deletion. Only the writer thread changes the file; any thread may read
it.
"""

from __future__ import annotations

import errno
import hmac
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from stateward_sidecar.codec.seal import KEY_BYTES, NameKey
from stateward_sidecar.errors import DiskFull, KeyUnavailable, StartError
from stateward_sidecar.measures import Histogram
from stateward_sidecar.storage.files import create_file
from stateward_sidecar.storage.heldkeys import HeldKeys, locked
from stateward_sidecar.storage.keyslots import (
    GENERATION_MAX,
    HEAD,
    SLOT_BYTES,
    KeySlots,
    generation_of,
    read_slots,
    root_of,
)
from stateward_sidecar.storage.keywraps import (
    ERASED,
    FORMAT,
    HELD,
    NAMESPACE,
    NO_ID,
    OF_THREADS,
    ROOT,
    THREAD,
    is_held_slot,
    open_namespace,
    open_root,
    open_slot,
    open_thread,
    opens_root,
    split_slots,
    wrap_held,
    wrap_namespace,
    wrap_root,
    wrap_slot,
    wrapping_id,
    wrapping_id_of,
)
from stateward_sidecar.storage.namespacekeys import NamespaceKeys, Sources
from stateward_sidecar.storage.secretfiles import fingerprint
from stateward_sidecar.syncing import grow_file, sync_data

GROW_SLOTS = 128
FIRST_SLOT = 2
"""The first one that is no fixed place."""
_MAGIC = b"SWKEYS"
_LEAVING = b"\1"


Fetch = Callable[[bytes], Sequence[bytes]]
"""Returns the slots that the archive has of a namespace, by its id."""


class KeyStore:
    """Finds, makes and destroys keys."""

    def __init__(
        self, path: Path, key: bytes, root: bytes = b"", fetch: Fetch | None = None, *, only_looks: bool = False
    ) -> None:
        """Opens the file, or makes it. A new file takes ``root``: the slots of a root that other sidecars already use,
        one after the other, one for each generation. In an old file they take the place of one that another key wraps,
        if they are of the same root; ``fetch`` helps if that root was changed, too. ``only_looks``: changes nothing,
        also if the last process was interrupted while it took a new root, because a daemon may run.

        Raises StartError, and makes no file, if the key does not open the root.
        """
        self._path = path
        self._key = key
        try:
            if not path.exists():
                create_file(path, self._new_file(key, root))
            self._fd = os.open(path, os.O_RDWR)
        except OSError as error:
            raise StartError(f"cannot open the key store {path}: {error.strerror}") from None
        self._dirty = False
        # Set if metrics are on.
        self.syncs: Histogram | None = None
        self.sources = Sources()
        self.learn_roots_now: Callable[[], bool] = lambda: False
        """Asks the archive for newer roots. Returns whether there are any."""
        self._namespaces: dict[bytes, NamespaceKeys] = {}
        self._ids: dict[str, bytes] = {}
        self._free: list[int] = []
        self._needed: set[bytes] = set()  # namespaces that wrapped a thread's key
        self._leaving: set[bytes] = set()
        self._unfinished: set[bytes] = set()
        self.held = HeldKeys()
        self.held_uids: set[bytes] = set()
        """Uids of held threads."""
        self._wrapping = threading.Lock()
        """While a slot is overwritten with the same key in another wrap. Only a reader that met it in between waits."""
        self._read_slots()
        opened = self._open_roots(split_slots(root), fetch)
        if opened is None:
            raise StartError(
                f"KEY_UNAVAILABLE: the key {fingerprint(key)} does not open the data in {path.parent}; "
                "start with the key file that the data was made with (STATEWARD_KEY_FILE or --key-file)"
            )
        self._use_roots(opened)
        if not only_looks:
            self._finish_root()

    # -- roots -------------------------------------------------------------------------------------------------------

    def _use_roots(self, pairs: Mapping[int, bytes]) -> None:
        """Root key ‖ root name key of each generation that is known."""
        self._roots = {generation: pair[:KEY_BYTES] for generation, pair in pairs.items()}
        self.root_generation = max(self._roots)
        self._name_key = pairs[self.root_generation][KEY_BYTES:]
        self._root_names = NameKey(self._name_key)

    def _open_roots(self, theirs: list[bytes], fetch: Fetch | None) -> dict[int, bytes] | None:
        """Opens this store's roots: one, or two of them if a change was interrupted."""
        found = {}
        for number in (1, *self._slots.find_all(ROOT, NO_ID)):
            slot = self._read(number)
            pair = open_root(slot, self._key) if number == 1 or wrapping_id_of(slot) == wrapping_id(self._key) else None
            if pair is not None:
                found[generation_of(slot)] = pair
            elif number == 1:
                return self._follow(theirs, fetch)
        return found

    def _follow(self, theirs: list[bytes], fetch: Fetch | None) -> dict[int, bytes] | None:
        """Takes the roots that the archive has, durably, because another key wraps this store's own. Returns None, and
        changes nothing, if they are other roots, or if the key does not open them.

        What namespaces this store has is wrapped by the newest root first, and slot 1 written last. A power cut leaves
        each slot as it was or as it will be, and the next start does the same again.
        """
        slots = {generation_of(slot): slot for slot in theirs}
        pairs = {generation: pair for generation, slot in slots.items() if (pair := open_root(slot, self._key))}
        spaces = [(at, bytes(slot)) for at, slot in read_slots(self._fd) if at >= FIRST_SLOT and slot[0] == NAMESPACE]
        if not pairs or (not spaces and len(self._slots)):
            return None
        newest = max(pairs)
        found = {at: keys for at, slot in spaces if (keys := open_namespace(slot, pairs)) is not None}
        found |= self._fetch([(at, slot) for at, slot in spaces if root_of(slot) not in pairs], pairs, fetch)
        if spaces and not found:
            return None
        if any(root_of(slot) not in pairs and at not in found for at, slot in spaces):
            return None
        for at, slot in spaces:
            if at in found and root_of(slot) != newest:
                owner = bytes(HEAD.unpack_from(slot)[2])
                again = wrap_namespace(owner, generation_of(slot), found[at], newest, pairs[newest][:KEY_BYTES])
                os.pwrite(self._fd, again, at * SLOT_BYTES)
        sync_data(self._fd)
        os.pwrite(self._fd, slots[newest], SLOT_BYTES)
        sync_data(self._fd)
        self._drop_second_root()
        return {newest: pairs[newest]}

    def _fetch(
        self, spaces: list[tuple[int, bytes]], pairs: Mapping[int, bytes], fetch: Fetch | None
    ) -> dict[int, bytes]:
        """Finds in the archive the namespaces' keys that a root wraps here which no key opens any more: both were
        changed while this sidecar was off. A thread's key proves that they are the same."""
        found: dict[int, bytes] = {}
        if not spaces or fetch is None:
            return found
        threads = {
            (bytes(HEAD.unpack_from(slot)[3]), generation_of(slot)): bytes(slot)
            for at, slot in read_slots(self._fd) if at >= FIRST_SLOT and slot[0] == THREAD
        }  # fmt: skip
        for at, slot in spaces:
            owner, generation = bytes(HEAD.unpack_from(slot)[2]), generation_of(slot)
            proof = threads.get((owner, generation))
            for theirs in fetch(owner):
                keys = open_namespace(theirs, pairs) if generation_of(theirs) == generation else None
                if keys is None or bytes(HEAD.unpack_from(theirs)[2]) != owner:
                    continue
                uid = bytes(HEAD.unpack_from(proof)[2]) if proof is not None else b""
                if proof is None or open_slot(proof, THREAD, uid, keys[KEY_BYTES:]) is not None:
                    found[at] = keys
        return found

    def learn_roots(self, slots: Sequence[bytes]) -> bool:
        """Takes the roots that the archive has, oldest first, and wraps this store's namespaces with the newest one.
        Returns whether there is a newer one. Durable when it returns. Writer thread only. Raises KeyUnavailable,
        DiskFull."""
        pairs = {generation_of(slot): pair for slot in slots if (pair := open_root(slot, self._key)) is not None}
        if not pairs or any(not self._has_names(pair) for pair in pairs.values()):
            raise KeyUnavailable("the root key in the archive is not that of this disk, or another key wraps it")
        if any(self._roots.get(each, pair[:KEY_BYTES]) != pair[:KEY_BYTES] for each, pair in pairs.items()):
            raise KeyUnavailable("the archive and this disk have different root keys of one generation")
        newest = max(pairs)
        is_newer = newest > self.root_generation
        if is_newer:
            (slot,) = [slot for slot in slots if generation_of(slot) == newest and open_root(slot, self._key)][:1]
            self._put_at(next(self._slots.find_all(ROOT, NO_ID), None), NO_ID, slot)
            sync_data(self._fd)
        self._roots |= {generation: pair[:KEY_BYTES] for generation, pair in pairs.items()}
        self.root_generation = max(newest, self.root_generation)
        if is_newer:
            self._finish_root()
        return is_newer

    def _finish_root(self) -> None:
        """Wraps the namespaces with the newest root, and lets its slot take the place of the old one's."""
        second = next(self._slots.find_all(ROOT, NO_ID), None)
        if second is None:
            return
        newest = self.root_generation
        for at, data in read_slots(self._fd):
            slot = bytes(data)
            if at < FIRST_SLOT or slot[0] != NAMESPACE or root_of(slot) == newest:
                continue
            keys = open_namespace(slot, self._roots)
            if keys is not None:  # a damaged one stays as it is
                owner = bytes(HEAD.unpack_from(slot)[2])
                self._overwrite(at, self._wrap_namespace(owner, generation_of(slot), keys))
        sync_data(self._fd)
        if generation_of(self._read(second)) == newest:
            os.pwrite(self._fd, self._read(second), SLOT_BYTES)
            sync_data(self._fd)
        self._drop_second_root()

    def _drop_second_root(self) -> None:
        for at in list(self._slots.find_all(ROOT, NO_ID)):
            self._slots.remove(NO_ID, at)
            os.pwrite(self._fd, bytes(SLOT_BYTES), at * SLOT_BYTES)
            self._free.append(at)
        sync_data(self._fd)

    def change_root(self) -> None:
        """Gives a store without an archive a new root, durably."""
        pair = os.urandom(KEY_BYTES) + self._name_key
        self.learn_roots([self.root_slot(), wrap_root(pair, self._key, self.root_generation + 1)])

    def change_namespace(self, name: str) -> int:
        """Gives a namespace of a store without an archive a new key, durably. Its threads follow at the next start.
        Returns the generation. Raises StartError."""
        keys = self.namespace(name)
        if keys is None:
            raise StartError(f"--namespace: there is no namespace {name!r} in these data")
        if keys.generation == GENERATION_MAX:
            raise StartError("the key of this namespace was changed as often as it can be")
        generation = keys.generation + 1
        self.learn_namespace(keys.id, {generation: keys.name_key + os.urandom(KEY_BYTES)})
        return generation

    def rewrap(self, key: bytes, other: bytes) -> None:
        """Wraps the root with another key, durably, in the place of ``key``, with which this store was opened."""
        root = open_root(self.root_slot(), key)
        assert root is not None
        os.pwrite(self._fd, wrap_root(root, other, self.root_generation), SLOT_BYTES)
        sync_data(self._fd)

    def _has_names(self, pair: bytes) -> bool:
        return hmac.compare_digest(pair[KEY_BYTES:], self._name_key)

    def _new_file(self, key: bytes, root: bytes) -> bytes:
        slots = [slot for slot in split_slots(root) if opens_root(slot, key)]
        if root and not slots:  # else the directory would get a wrong root
            raise StartError(
                f"KEY_UNAVAILABLE: the key {fingerprint(key)} does not open the archive; start with the key file "
                "that the archive was made with (STATEWARD_KEY_FILE or --key-file), or give another --archive"
            )
        first = (_MAGIC + bytes((FORMAT,))).ljust(SLOT_BYTES, b"\0")
        return first + (max(slots, key=generation_of) if slots else wrap_root(os.urandom(2 * KEY_BYTES), key))

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
            if kind in OF_THREADS:
                self._needed.add(wrapping_id)
            if kind in OF_THREADS and data[-1]:
                self._leaving.add(owner)
            if kind == ERASED or (kind in OF_THREADS and data[-1]):
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
            if slot >= FIRST_SLOT and kind in OF_THREADS and not data[-1] and owner not in self._leaving:
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
        """A key of 32 bytes for another purpose, the same at every start. It is made from the root's name key, which no
        change of keys changes: tokens of pages are good before and after one."""
        return hmac.digest(self._name_key, purpose, "sha256")

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
            slots = [self._read(at) for at in self._slots.find_all(NAMESPACE, identity)]
            if not slots and identity in self._needed:
                raise KeyUnavailable("the key of a namespace is missing or damaged", namespace_id=identity.hex())
            if not slots:
                return None
            pairs = {generation_of(slot): keys for slot in slots if (keys := open_namespace(slot, self._roots))}
            if len(pairs) < len({generation_of(slot) for slot in slots}):
                raise KeyUnavailable("the key of a namespace is damaged", namespace_id=identity.hex())
            found = self._namespaces.setdefault(identity, NamespaceKeys(identity, pairs, self.sources))
        return found

    def create_namespace(self, name: str) -> NamespaceKeys:
        """Makes the keys of a namespace. Durable after ``sync``. Writer thread only."""
        return self.learn_namespace(self.namespace_id(name), {0: os.urandom(2 * KEY_BYTES)})

    def learn_namespace(self, identity: bytes, pairs: Mapping[int, bytes]) -> NamespaceKeys:
        """Stores generations of a namespace's keys, given as name key ‖ namespace key. Durable after ``sync``. Writer
        thread only. Raises DiskFull."""
        there = {generation_of(self._read(at)) for at in self._slots.find_all(NAMESPACE, identity)}
        for generation, keys in pairs.items():
            if generation not in there:
                self._put_at(None, identity, self._wrap_namespace(identity, generation, keys))
        if there and not there >= pairs.keys():
            self.sync()  # others use the new one from now on
        found = self._namespaces.get(identity)
        if found is None:
            found = self._namespaces.setdefault(identity, NamespaceKeys(identity, pairs, self.sources))
        found.learn(pairs)
        return found

    def forget_generations(self, identity: bytes, needed: frozenset[int]) -> frozenset[int]:
        """Destroys the generations of a namespace's key that nothing needs. Those that wrap a thread's key here stay,
        also without being named: a held thread's key is only wrapped anew while a client sends its session key.
        Returns what was destroyed. Durable after ``sync``. Writer thread only."""
        keys = self.namespace_by_id(identity)
        assert keys is not None
        wraps = {
            generation_of(slot) for at, slot in read_slots(self._fd)
            if at >= FIRST_SLOT and slot[0] in OF_THREADS and HEAD.unpack_from(slot)[3] == identity
        }  # fmt: skip
        gone = keys.generations - needed - wraps - {keys.generation}
        for at in list(self._slots.find_all(NAMESPACE, identity)):
            if generation_of(self._read(at)) in gone:
                self._slots.remove(identity, at)
                self._overwrite(at, bytes(SLOT_BYTES))
                self._free.append(at)
        for generation in gone:
            keys.forget(generation)
        return gone

    def changed_namespaces(self) -> set[bytes]:
        """Ids of the namespaces whose keys have several generations here."""
        seen, found = set[bytes](), set[bytes]()
        for at, slot in read_slots(self._fd):
            if at >= FIRST_SLOT and slot[0] == NAMESPACE:
                owner = bytes(HEAD.unpack_from(slot)[2])
                (found if owner in seen else seen).add(owner)
        return found

    def rewrap_threads(self, keys: NamespaceKeys, first: int, count: int) -> int | None:
        """Wraps the keys of a namespace's threads in some slots with the newest generation. Returns the next slot; None
        at the end of the file. Durable after ``sync``. Writer thread only."""
        end = min(first + count, os.fstat(self._fd).st_size // SLOT_BYTES)
        data = os.pread(self._fd, (end - first) * SLOT_BYTES, first * SLOT_BYTES)
        for at in range(len(data) // SLOT_BYTES):
            slot = data[at * SLOT_BYTES : (at + 1) * SLOT_BYTES]
            _, _, uid, owner = HEAD.unpack_from(slot)
            if slot[0] == THREAD and owner == keys.id and generation_of(slot) != keys.generation:
                data_key = open_thread(slot, THREAD, uid, keys)
                if data_key is not None:  # a damaged one stays as it is
                    self._overwrite(first + at, self.wrap_thread(uid, keys, data_key)[:-1] + slot[-1:])
        return end if end * SLOT_BYTES < os.fstat(self._fd).st_size else None

    def replace_held(self, uid: bytes, slot: bytes) -> None:
        """Puts the key of a held thread, in another wrap, in the place of the old one; not if the thread was deleted
        meanwhile. Durable after ``sync``. Writer thread only."""
        at = self._slots.find(HELD, uid)
        if at is not None:
            self._overwrite(at, slot[:-1] + self._read(at)[-1:])

    def is_outdated(self, uid: bytes, keys: NamespaceKeys) -> bool:
        """Whether an older generation wraps a thread's key."""
        at = self._slot_of(uid)
        return at is not None and generation_of(self._read(at)) != keys.generation

    def _overwrite(self, at: int, slot: bytes) -> None:
        with self._wrapping:
            os.pwrite(self._fd, slot, at * SLOT_BYTES)
        self._dirty = True

    def _wrap_namespace(self, identity: bytes, generation: int, keys: bytes) -> bytes:
        newest = self.root_generation
        return wrap_namespace(identity, generation, keys, newest, self._roots[newest])

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
        """Whether a root slot from elsewhere is of this store's root, in any generation. False if the key does not open
        the slot."""
        root = open_root(slot, key)
        return root is not None and self._has_names(root)

    def adopt_root(self, slot: bytes, key: bytes) -> bool:
        """Replaces this store's root by one that other sidecars use, durably, before the store is used. Returns False,
        and changes nothing, if this root has wrapped keys already, or if the key does not open the other root."""
        root = open_root(slot, key)
        if root is None or len(self._slots):
            return False
        os.pwrite(self._fd, slot, SLOT_BYTES)
        self._dirty = True
        self.sync()
        self._use_roots({generation_of(slot): root})
        self._ids.clear()
        return True

    def new_namespace_slot(self, name: str) -> bytes:
        """Returns new keys for a namespace, wrapped. Stores nothing."""
        return self._wrap_namespace(self.namespace_id(name), 0, os.urandom(2 * KEY_BYTES))

    def open_namespace(self, identity: bytes, slots: Sequence[bytes]) -> dict[int, bytes]:
        """Name key ‖ namespace key of each generation, from a namespace's slots. Raises KeyUnavailable."""
        found = {}
        for slot in slots:
            keys = None
            if len(slot) == SLOT_BYTES and HEAD.unpack_from(slot)[2] == identity:
                if root_of(slot) not in self._roots:
                    self.learn_roots_now()
                keys = open_namespace(slot, self._roots)
            if keys is None:
                raise KeyUnavailable("the key of a namespace does not open", namespace_id=identity.hex())
            found[generation_of(slot)] = keys
        return found

    def namespace_slots(self, identity: bytes) -> list[bytes]:
        """The slots of a namespace's keys, wrapped by the newest root, the oldest generation first; none if it has no
        keys here. Raises KeyUnavailable."""
        keys = self.namespace_by_id(identity)
        pairs = keys.pairs() if keys is not None else {}
        return [self._wrap_namespace(identity, generation, pair) for generation, pair in pairs.items()]

    @staticmethod
    def wrap_thread(uid: bytes, namespace: NamespaceKeys, data_key: bytes, session_key: bytes = b"") -> bytes:
        """Returns the slot of a thread's data key, wrapped. Stores nothing. ``session_key``: of a held thread."""
        if not session_key:
            return wrap_slot(THREAD, uid, namespace.id, namespace.wrapping_key, data_key, namespace.generation)
        return wrap_held(uid, namespace, data_key, session_key)

    @staticmethod
    def open_thread(slot: bytes, namespace: NamespaceKeys, session_key: bytes = b"") -> tuple[bytes, bytes]:
        """The uid and data key in a thread's slot from the archive. Raises KeyUnavailable, ArchiveUnavailable, and
        Locked if the thread is held and this is not its session key."""
        uid = bytes(HEAD.unpack_from(slot)[2]) if len(slot) >= HEAD.size else b""
        if namespace.key_of(generation_of(slot)) is None:
            namespace.ask()
        if is_held_slot(slot):
            key = open_thread(slot, HELD, uid, namespace, session_key) if session_key else None
            if key is None:
                raise locked(uid, is_wrong=bool(session_key))
            return uid, key
        key = open_thread(slot, THREAD, uid, namespace)
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
        key = self._unwrap(slot, THREAD, uid, namespace)
        if key is None:
            raise KeyUnavailable("the thread's data key is damaged", uid=uid.hex())
        return key

    def unwrap_held(self, uid: bytes, namespace: NamespaceKeys, session_key: bytes) -> bytes | None:
        """The data key of a held thread; None if this is not its session key."""
        slot = self._slots.find(HELD, uid)
        if slot is None:
            return None
        return self._unwrap(slot, HELD, uid, namespace, session_key)

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
        self._free_slots(uid, (ERASED, *OF_THREADS))
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
        # A second slot would outlive the deletion of the first.
        self._put_at(self._slots.find(kind, owner), owner, data)

    def _put_at(self, slot: int | None, owner: bytes, data: bytes) -> None:
        """Writes a slot in the place of an old one, or in a free one."""
        try:
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

    def _read(self, at: int) -> bytes:
        return os.pread(self._fd, SLOT_BYTES, at * SLOT_BYTES)

    def _unwrap(
        self, at: int, kind: int, uid: bytes, namespace: NamespaceKeys, session_key: bytes = b""
    ) -> bytes | None:
        found = open_thread(self._read(at), kind, uid, namespace, session_key)
        if found is None:
            with self._wrapping:  # perhaps the slot was half overwritten
                slot = self._read(at)
            found = open_thread(slot, kind, uid, namespace, session_key)
        return found
