"""The keys that all sidecars of an archive share.

A sidecar creates a key object before the first use of the key. If the object exists already, the sidecar adopts the key
in it.

    root        made by the first sidecar, at its start. A sidecar that has keys under another root does not start
    namespace   made before the first thread of the namespace is claimed
    thread      made before HEAD

A key object holds a slot of the key store, byte for byte: a key that is wrapped by the key above it. While the key
above it is changed, it holds two of them.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError

from stateward.storage.v1.archive_pb2 import ArchiveFormat, KeyObject
from stateward_sidecar.archive.objects.formats import pack_format
from stateward_sidecar.archive.requests.metered import Wire
from stateward_sidecar.archive.requests.places import FORMAT_KEY, ROOT_KEY, Place, namespace_key, namespace_prefix
from stateward_sidecar.bucket.base import ObjectExists
from stateward_sidecar.codec.seal import KEY_BYTES
from stateward_sidecar.errors import Corrupt, KeyUnavailable, NewerFormat, StartError, newer_format
from stateward_sidecar.storage.keystore import (
    FORMAT as KEY_FORMAT,
)
from stateward_sidecar.storage.keystore import (
    NO_ID,
    KeyStore,
    NamespaceKeys,
    is_held_slot,
    wrapping_id,
    wrapping_id_of,
)
from stateward_sidecar.storage.queue import Write
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.thread import UID_BYTES
from stateward_sidecar.telemetry import log


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
    """Returns the archive's root key as this key wraps it, if it does, else as the first one does; None if the archive
    has none. Raises StartError."""
    found = wire.find(ROOT_KEY)
    try:
        return slot_of(found.data, wrapping_id(key) if key else b"") if found is not None else None
    except NewerFormat as error:
        raise StartError(f"--archive: {error.message}") from None


def agree_on_root(wire: Wire, keystore: KeyStore, key: bytes) -> None:
    """Makes sure that archive and store have the same root key. Raises StartError if their root keys differ.

    A store without keys adopts the archive's root: another sidecar may have made it at the same moment.
    """
    slot = find_root(wire, key)
    if slot is None:
        try:
            wire.create(ROOT_KEY, key_object(keystore.root_slot()))
            return
        except ObjectExists:
            slot = find_root(wire, key)
    if slot is not None and (keystore.is_root(slot, key) or keystore.adopt_root(slot, key)):
        return
    raise StartError(
        "KEY_UNAVAILABLE: the archive was made under another root key than the data in this directory; start with "
        "the --key-file of the archive and an empty --data-dir, or give this data an archive of its own"
    )


class Keys:
    """Finds, makes and destroys the keys of namespaces and threads. Runs on the archive's threads."""

    def __init__(self, context: Context, wire: Wire) -> None:
        self._context = context
        self._wire = wire
        self._agreed: set[bytes] = set()
        self._lock = threading.Lock()

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
        return self._adopt(identity, slot_of(found.data, NO_ID)) if found is not None else None

    def namespace(self, name: str) -> NamespaceKeys:
        """Returns a namespace's keys, and makes them if it has none. Raises what ``find_namespace`` raises."""
        found = self.find_namespace(name)
        if found is not None:
            return found
        keystore = self._context.keystore
        identity = keystore.namespace_id(name)
        slot = keystore.namespace_slot(identity) or keystore.new_namespace_slot(name)
        try:
            self._wire.create(namespace_key(identity), key_object(slot))
        except ObjectExists:
            slot = slot_of(self._wire.get(namespace_key(identity)).data, NO_ID)
        return self._adopt(identity, slot)

    def by_id(self, identity: bytes) -> NamespaceKeys | None:
        """Finds a namespace's keys by the hash of its name, for commands that list the bucket."""
        found = self._wire.find(namespace_key(identity))
        return self._adopt(identity, slot_of(found.data, NO_ID)) if found is not None else None

    def _adopt(self, identity: bytes, slot: bytes) -> NamespaceKeys:
        keystore = self._context.keystore
        theirs = keystore.open_namespace(identity, slot)
        with self._lock:
            ours = keystore.namespace_by_id(identity)
            if ours is None:

                def adopt(txn: object, batch: object) -> None:
                    del txn, batch
                    keystore.adopt_namespace(identity, slot)
                    keystore.sync()

                self._context.writer.submit(Write(run=adopt, size_bytes=4096), wait=True).wait()
                ours = keystore.namespace_by_id(identity)
            if ours is None or ours.wrapping_key != theirs.wrapping_key:
                raise KeyUnavailable(
                    "this disk and the archive have different keys for a namespace", namespace_id=identity.hex()
                )
            self._agreed.add(identity)
            return ours

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

    def destroy_thread(self, place: Place, epoch: int) -> None:
        """Deletes a thread's key object."""
        self._wire.delete(place.key(epoch))


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


def slot_of(data: bytes, wanted: bytes = b"") -> bytes:
    """Returns the wrapped key in a key object: as the key with the id ``wanted`` wraps it, or by the first if none has
    that id. Raises Corrupt, NewerFormat."""
    slots = slots_of(data)
    found = next((slot for slot in slots if wrapping_id_of(slot) == wanted), slots[0])
    form = found[1:2]
    if form and form[0] > KEY_FORMAT:
        raise newer_format("a key object in the archive", form[0], KEY_FORMAT, is_proven=False)
    return found
