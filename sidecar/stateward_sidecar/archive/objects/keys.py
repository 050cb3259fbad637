"""The keys that all sidecars of an archive share.

A sidecar creates a key object before the first use of the key. If the object exists already, the sidecar adopts the key
in it.

    root        made by the first sidecar, at its start. A sidecar that has keys under another root does not start
    namespace   made before the first thread of the namespace is claimed
    thread      made before HEAD

A key object holds a slot of the key store, byte for byte: a key that is wrapped by the key above it. While a key is
changed, the object of that key holds two generations of it, the older one first, and the root also a wrap of each by
the old key-encryption key and by the new one.

A sidecar learns of a new generation when it finds something that an unknown one wraps or seals, and before it wraps
or seals something for the archive if it asked more than ``AGREED_S`` ago. So some time after a generation was added,
nobody wraps anything with the one before.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from google.protobuf.message import DecodeError

from stateward.storage.v1.archive_pb2 import ArchiveFormat, KeyObject
from stateward_sidecar import security
from stateward_sidecar.archive.objects.formats import pack_format
from stateward_sidecar.archive.requests.metered import Wire
from stateward_sidecar.archive.requests.places import FORMAT_KEY, ROOT_KEY, Place, namespace_key, namespace_prefix
from stateward_sidecar.bucket.base import ObjectChanged, ObjectExists
from stateward_sidecar.codec.seal import KEY_BYTES
from stateward_sidecar.errors import Corrupt, DiskFull, KeyUnavailable, NewerFormat, StartError, newer_format
from stateward_sidecar.storage.keyslots import generation_of
from stateward_sidecar.storage.keystore import KeyStore
from stateward_sidecar.storage.keywraps import FORMAT as KEY_FORMAT
from stateward_sidecar.storage.keywraps import is_held_slot, split_slots, wrapping_id, wrapping_id_of
from stateward_sidecar.storage.namespacekeys import NamespaceKeys
from stateward_sidecar.storage.queue import Write
from stateward_sidecar.store.clean.rewrap import Rewrapper
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.thread import UID_BYTES
from stateward_sidecar.telemetry import log

AGREED_S = 600.0
"""A sidecar wraps and seals nothing for the archive with a key that it read longer ago than this."""
KEYS_BEFORE = 16
"""A deletion, or a change of a thread's key, removes the keys of so many epochs before it."""


@dataclass(frozen=True, slots=True)
class ThreadKey:
    """Identity and data key of a thread. ``held``: the slot of a held thread, which its session key opens."""

    uid: bytes
    data_key: bytes = field(repr=False)
    held: bytes = field(default=b"", repr=False)


def put_back(wire: Wire, keystore: KeyStore, form: ArchiveFormat, keys: list[str]) -> None:
    """Creates lost objects of the archive again (``keys``) from what this store knows since it joined the archive."""
    bodies = {FORMAT_KEY: pack_format(form, keystore.root_names), ROOT_KEY: key_object(keystore.root_slot())}
    for key in keys:
        with suppress(ObjectExists):
            wire.create(key, bodies[key])
            log.warning("a lost object of the archive was put back", key=key)


def find_root(wire: Wire, key: bytes = b"") -> bytes | None:
    """Returns the slots of the archive's root, one after the other, as this key wraps them, if it does, else the first
    one; None if the archive has none. Raises StartError."""
    found = wire.find(ROOT_KEY)
    try:
        return b"".join(root_slots(found.data, key)) if found is not None else None
    except NewerFormat as error:
        raise StartError(f"--archive: {error.message}") from None


def agree_on_root(wire: Wire, keystore: KeyStore, key: bytes) -> None:
    """Makes sure that archive and store have the same root, and the newest generation of it. Raises StartError if their
    roots differ.

    A store without keys adopts the archive's root: another sidecar may have made it at the same moment.
    """
    found = find_root(wire, key)
    if found is None:
        try:
            wire.create(ROOT_KEY, key_object(keystore.root_slot()))
            return
        except ObjectExists:
            found = find_root(wire, key)
    slots = split_slots(found or b"")
    if slots and all(keystore.is_root(slot, key) for slot in slots):
        _put_root_back(wire, keystore)
        try:
            if keystore.learn_roots(slots):
                _tell_root(keystore)
        except DiskFull as error:
            raise StartError(error.message) from None
        return
    if slots and keystore.adopt_root(slots[-1], key):
        return
    raise StartError(
        "KEY_UNAVAILABLE: the archive was made under another root key than the data in this directory; start with "
        "the --key-file of the archive and an empty --data-dir, or give this data an archive of its own"
    )


def _put_root_back(wire: Wire, keystore: KeyStore) -> None:
    """Adds the root of this store to the archive's, if that was set back to before a change: other sidecars could not
    open what this one wraps. Nothing but a retirement of an older root removes one."""
    found = wire.find(ROOT_KEY)
    slots = list(map(checked, slots_of(found.data))) if found is not None else []
    if found is not None and max(map(generation_of, slots)) < keystore.root_generation:
        with suppress(ObjectChanged):  # by another sidecar, or by a rotation
            wire.replace(ROOT_KEY, _added(found.data, keystore.root_slot()), found.etag)
            log.warning("the root of the archive was set back; the newer one of this disk was added again")


def _added(data: bytes, *slots: bytes) -> bytes:
    """Returns the bytes of a key object with more wraps."""
    found = KeyObject.FromString(data)
    for slot in slots:
        found.wraps.add(wrapping_id=wrapping_id_of(slot), wrapped=slot)
    return found.SerializeToString()


def _tell_root(keystore: KeyStore) -> None:
    security.note(security.CHANGED, "the root key was changed", generation=keystore.root_generation)


class Keys:
    """Finds, makes and destroys the keys of namespaces and threads. Runs on the archive's threads."""

    def __init__(self, context: Context, wire: Wire, rewrapper: Rewrapper | None = None) -> None:
        self._context = context
        self._wire = wire
        self._agreed: dict[bytes, float] = {}
        """When the archive was asked for a namespace's keys, by its id, in seconds on the boot-time clock."""
        self._roots_asked_at = float("-inf")  # a start without the archive has not asked
        self._lock = threading.Lock()
        self._rewrapper = rewrapper or Rewrapper(context)
        self.on_root: Callable[[], None] = lambda: None
        """Called when there is a newer root."""
        sources = context.keystore.sources
        sources.freshen, sources.ask = self._freshen, self._ask
        context.keystore.learn_roots_now = self._learn_roots

    def find_namespace(self, name: str) -> NamespaceKeys | None:
        """Returns a namespace's keys, and adopts them from the archive; None if the archive has no such namespace.

        Raises KeyUnavailable, Corrupt, ArchiveUnavailable.
        """
        keystore = self._context.keystore
        identity = keystore.namespace_id(name)
        if identity in self._agreed:
            return keystore.namespace(name)
        key = namespace_key(identity)
        found = self._wire.find(key)
        if found is None:
            self._wire.check_there()  # else a second key might be made in an archive that is not mounted
        if found is None and next(self._wire.walk(namespace_prefix(identity)), None) is not None:
            found = self._wire.find(key)  # made meanwhile, before the first thread
            if found is None:
                raise KeyUnavailable(
                    f"{key} is missing in the archive, and threads there need it; put it back from a copy of the "
                    "bucket, or run `stateward archive repair` for such a thread on the machine that owned it"
                )
        return self._adopt(identity, found.data) if found is not None else None

    def namespace(self, name: str) -> NamespaceKeys:
        """Returns a namespace's keys, and makes them if it has none. Raises what ``find_namespace`` raises."""
        found = self.find_namespace(name)
        if found is not None:
            return found
        keystore = self._context.keystore
        identity = keystore.namespace_id(name)
        if self._wire.now() - self._roots_asked_at > AGREED_S:
            self._learn_roots()  # nobody opens what an old root wraps
        data = key_object(*(keystore.namespace_slots(identity) or [keystore.new_namespace_slot(name)]))
        try:
            self._wire.create(namespace_key(identity), data)
        except ObjectExists:
            data = self._wire.get(namespace_key(identity)).data
        return self._adopt(identity, data)

    def by_id(self, identity: bytes) -> NamespaceKeys | None:
        """Finds a namespace's keys by the hash of its name, for commands that list the bucket."""
        found = self._wire.find(namespace_key(identity))
        return self._adopt(identity, found.data) if found is not None else None

    def _adopt(self, identity: bytes, data: bytes) -> NamespaceKeys:
        """Takes the keys in a namespace's object. Raises KeyUnavailable, Corrupt, DiskFull, ArchiveUnavailable."""
        keystore, asked_at = self._context.keystore, self._wire.now()
        theirs = keystore.open_namespace(identity, list(map(checked, slots_of(data))))
        with self._lock:
            ours = keystore.namespace_by_id(identity)
            pairs = ours.pairs() if ours is not None else {}
            if any(pairs[each] != theirs[each] for each in pairs.keys() & theirs) or (
                ours is not None and any(pair[:KEY_BYTES] != ours.name_key for pair in theirs.values())
            ):
                raise KeyUnavailable(
                    "this disk and the archive have different keys for a namespace", namespace_id=identity.hex()
                )
            if pairs and max(theirs) < max(pairs):
                theirs |= self._put_back(identity, {each: pairs[each] for each in pairs if each > max(theirs)})
            if theirs.keys() - pairs:
                self._submit(lambda: keystore.learn_namespace(identity, theirs))
                if pairs and max(theirs) > max(pairs):
                    security.note(
                        security.CHANGED, "the key of a namespace was changed", namespace_id=identity.hex(),
                        generation=max(theirs),
                    )  # fmt: skip
            ours = keystore.namespace_by_id(identity)
            assert ours is not None
            self._agreed[identity] = asked_at
        self._rewrapper.begin(ours, frozenset(theirs))
        return ours

    def _put_back(self, identity: bytes, pairs: dict[int, bytes]) -> dict[int, bytes]:
        """Adds newer keys of a namespace to its key object, which was set back to before they were made: other sidecars
        could not open what this one seals. Nothing but a retirement of an older key removes one. Raises KeyUnavailable
        if the object changes meanwhile."""
        keystore, name = self._context.keystore, namespace_key(identity)
        slots = [slot for slot in keystore.namespace_slots(identity) if generation_of(slot) in pairs]
        found = self._wire.find(name)
        try:
            if found is not None and max(map(generation_of, slots_of(found.data))) < max(pairs):
                self._wire.replace(name, _added(found.data, *slots), found.etag)
        except ObjectChanged:
            raise KeyUnavailable("the key of a namespace is being changed; try again") from None
        log.warning("the key of a namespace was set back; the newer one of this disk was added again")
        return pairs

    def _submit(self, change: Callable[[], object]) -> object:
        def run(txn: object, batch: object) -> object:
            del txn, batch
            found = change()
            self._context.keystore.sync()
            return found

        return self._context.writer.submit(Write(run=run, size_bytes=4096), wait=True).wait()

    def _freshen(self, namespace: NamespaceKeys) -> bool:
        if self._wire.now() - self._agreed.get(namespace.id, float("-inf")) <= AGREED_S:
            return False
        return self._ask(namespace)

    def _ask(self, namespace: NamespaceKeys) -> bool:
        found, before = self._wire.find(namespace_key(namespace.id)), namespace.generations
        if found is None:  # whoever needs it says so
            return False
        self._adopt(namespace.id, found.data)
        return namespace.generations != before

    def _learn_roots(self) -> bool:
        """Raises KeyUnavailable, ArchiveUnavailable, Corrupt, DiskFull."""
        asked_at, found = self._wire.now(), self._wire.find(ROOT_KEY)
        if found is None:
            raise KeyUnavailable(f"{ROOT_KEY} is missing in the archive; put it back from a copy of the bucket")
        keystore, slots = self._context.keystore, list(map(checked, slots_of(found.data)))
        is_newer = bool(self._submit(lambda: keystore.learn_roots(slots)))
        self._roots_asked_at = asked_at
        if is_newer:
            _tell_root(keystore)
            self.on_root()
        return is_newer

    def find_thread(
        self, namespace: NamespaceKeys, place: Place, epoch: int, session_key: bytes = b""
    ) -> ThreadKey | None:
        """Returns a thread's key; None if there is none, or it was destroyed. Raises KeyUnavailable, Locked,
        Corrupt."""
        found = self._wire.find(place.key(epoch))
        return open_thread(found.data, namespace, session_key) if found is not None else None

    def make_thread(
        self, namespace: NamespaceKeys, place: Place, epoch: int, known: ThreadKey | None, session_key: bytes = b""
    ) -> ThreadKey:
        """Creates the key object of a thread that is about to be claimed. Returns the key that the archive then has:
        the new one (``known`` if it is given), or the one that another sidecar created first. Raises KeyUnavailable,
        Corrupt, and Locked if the other sidecar made a held thread with another session key."""
        made = known or ThreadKey(os.urandom(UID_BYTES), os.urandom(KEY_BYTES))
        namespace.freshen()
        slot = made.held or KeyStore.wrap_thread(made.uid, namespace, made.data_key, b"" if known else session_key)
        if is_held_slot(slot):
            made = ThreadKey(made.uid, made.data_key, slot)
        try:
            # No thread begins if the archive is empty, because it may not be mounted and may have the thread already.
            self._wire.together(self._wire.check_there, lambda: self._wire.create(place.key(epoch), key_object(slot)))
            return made
        except ObjectExists:
            if made.held and self._has_slot(place, epoch, made.held):
                return made
            found = self.find_thread(namespace, place, epoch, session_key)
            if found is None:
                raise KeyUnavailable("the key of a thread was deleted while it was being made; try again") from None
            return found

    def _has_slot(self, place: Place, epoch: int, slot: bytes) -> bool:
        found = self._wire.find(place.key(epoch))
        return found is not None and slot in slots_of(found.data)

    def renew_held(self, slot: bytes, place: Place, epoch: int) -> None:
        """Replaces the key object of a held thread, if an older generation wraps the key."""
        found = self._wire.find(place.key(epoch))
        theirs = slots_of(found.data)[0] if found is not None else b""
        is_same = theirs[4:20] == slot[4:20] and is_held_slot(theirs)  # the uid
        if found is not None and is_same and generation_of(theirs) < generation_of(slot):
            with suppress(ObjectChanged):  # another sidecar did it
                self._wire.replace(place.key(epoch), key_object(slot), found.etag)

    def destroy_thread(self, place: Place, epoch: int, last: int = 0) -> None:
        """Deletes a thread's key object, and those that failed changes of its key left up to the epoch ``last``."""
        epochs = sorted({epoch, *range(max(epoch, last - KEYS_BEFORE), last + 1)})
        self._wire.together(*(partial(self._wire.delete, place.key(each)) for each in epochs))


def key_object(*slots: bytes) -> bytes:
    """Returns the bytes of a key object."""
    found = KeyObject()
    for slot in slots:
        found.wraps.add(wrapping_id=wrapping_id_of(slot), wrapped=slot)
    return found.SerializeToString()


def open_thread(data: bytes, namespace: NamespaceKeys, session_key: bytes = b"") -> ThreadKey:
    """Returns the key in the key object of a thread. Raises KeyUnavailable, Locked, Corrupt, NewerFormat."""
    slot = slot_of(data, namespace.id)
    return ThreadKey(*KeyStore.open_thread(slot, namespace, session_key), slot if is_held_slot(slot) else b"")


def slots_of(data: bytes) -> list[bytes]:
    """Returns a key as each of its wraps has it. Raises Corrupt."""
    try:
        wraps = KeyObject.FromString(data).wraps
    except DecodeError:
        wraps = []  # type: ignore[assignment]
    if not wraps:
        raise Corrupt("a key object in the archive cannot be read")
    return [bytes(each.wrapped) for each in wraps]


def root_slots(data: bytes, key: bytes = b"") -> list[bytes]:
    """Returns the slots of the root that a key wraps, the oldest generation first; those of all keys if it wraps none.
    Raises Corrupt, NewerFormat."""
    slots = list(map(checked, slots_of(data)))
    own = [slot for slot in slots if key and wrapping_id_of(slot) == wrapping_id(key)]
    return own or slots


def slot_of(data: bytes, wanted: bytes = b"") -> bytes:
    """Returns the wrapped key in a key object: as the key with the id ``wanted`` wraps it, or by the first if none has
    that id. Raises Corrupt, NewerFormat."""
    slots = slots_of(data)
    return checked(next((slot for slot in slots if wrapping_id_of(slot) == wanted), slots[0]))


def checked(slot: bytes) -> bytes:
    """Returns a slot. Raises NewerFormat if only a newer version reads it."""
    form = slot[1:2]
    if form and form[0] > KEY_FORMAT:
        raise newer_format("a key object in the archive", form[0], KEY_FORMAT, is_proven=False)
    return slot
