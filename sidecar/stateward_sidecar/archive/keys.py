"""The keys that all sidecars of an archive share: put if absent before their first use; who comes second adopts.

    root        made by the first sidecar, at its start; a store that holds keys under another one is refused
    namespace   before the first thread of a namespace is claimed
    thread      before its HEAD

Key objects hold the slot of the key store as it is: bytes wrapped by the key above, which whoever has that key opens.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from stateward.storage.v1.archive_pb2 import ArchiveFormat, KeyObject
from stateward_sidecar.archive.heads import FORMAT
from stateward_sidecar.archive.places import FORMAT_KEY, ROOT_KEY, Place, namespace_key, namespace_prefix
from stateward_sidecar.archive.wire import Wire
from stateward_sidecar.bucket.errors import ObjectExists
from stateward_sidecar.codec.seal import KEY_BYTES
from stateward_sidecar.errors import Corrupt, KeyUnavailable, StartError
from stateward_sidecar.storage.keystore import KeyStore, NamespaceKeys
from stateward_sidecar.storage.writer import Write
from stateward_sidecar.store.context import Context
from stateward_sidecar.store.thread import UID_BYTES
from stateward_sidecar.telemetry import log


@dataclass(frozen=True, slots=True)
class ThreadKey:
    """A thread's identity and key, as the archive has them."""

    uid: bytes
    data_key: bytes


def agree_on_format(wire: Wire, now_us: int) -> ArchiveFormat:
    """Reads the archive's format, or makes it. Raises StartError for one that this version must not write."""
    made = ArchiveFormat(
        format=FORMAT, min_reader=1, min_writer=1, create_time_us=now_us, archive_id=os.urandom(UID_BYTES)
    )
    found = wire.find(FORMAT_KEY)
    if found is None:
        try:
            wire.create(FORMAT_KEY, made.SerializeToString())
            return made
        except ObjectExists:
            found = wire.get(FORMAT_KEY)
    try:
        form = ArchiveFormat.FromString(found.data)
    except DecodeError:
        raise StartError("the archive's _format object cannot be read: is this URL an archive of Stateward?") from None
    if max(form.min_reader, form.min_writer) > FORMAT:
        needed = max(form.min_reader, form.min_writer)
        raise StartError(f"the archive needs a version that knows format {needed}; this one knows {FORMAT}")
    return form


def put_back(wire: Wire, keystore: KeyStore, form: ArchiveFormat, keys: list[str]) -> None:
    """Puts objects of an archive back that were lost, as this store knows them since it joined."""
    bodies = {FORMAT_KEY: form.SerializeToString(), ROOT_KEY: _key_object(keystore.root_slot())}
    for key in keys:
        with suppress(ObjectExists):
            wire.create(key, bodies[key])
            log.warning("an object that was lost in the archive is put back", key=key)


def find_root(wire: Wire) -> bytes | None:
    """The archive's root key, wrapped; None where it has none yet."""
    found = wire.find(ROOT_KEY)
    return slot_of(found.data) if found is not None else None


def agree_on_root(wire: Wire, keystore: KeyStore, key: bytes) -> None:
    """Makes sure that archive and store have one root. Raises StartError where they have two.

    A store that holds nothing yet takes the archive's: another sidecar may have made it at the same moment.
    """
    slot = find_root(wire)
    if slot is None:
        try:
            wire.create(ROOT_KEY, _key_object(keystore.root_slot()))
            return
        except ObjectExists:
            slot = find_root(wire)
    if slot is not None and (keystore.is_root(slot, key) or keystore.adopt_root(slot, key)):
        return
    raise StartError(
        "KEY_UNAVAILABLE: the archive was made under another root key than the data in this directory; start with "
        "the --key-file of the archive and an empty --data-dir, or give this data an archive of its own"
    )


class Keys:
    """Namespaces and threads. Runs on the archive's threads."""

    def __init__(self, context: Context, wire: Wire) -> None:
        self._context = context
        self._wire = wire
        self._agreed: set[bytes] = set()
        self._lock = threading.Lock()

    def find_namespace(self, name: str) -> NamespaceKeys | None:
        """A namespace's keys, from here or from the archive; None where it was never used. Raises KeyUnavailable."""
        keystore = self._context.keystore
        identity = keystore.namespace_id(name)
        if identity in self._agreed:
            return keystore.namespace(name)
        key = namespace_key(identity)
        found = self._wire.find(key)
        if found is None:
            self._wire.check_there()  # else a second key would be made for it
        if found is None and next(self._wire.walk(namespace_prefix(identity)), None) is not None:
            found = self._wire.find(key)  # made meanwhile: it comes before the first thread
            if found is None:
                raise KeyUnavailable(f"{key} is missing in the archive, and threads that need it are there")
        return self._adopt(identity, slot_of(found.data)) if found is not None else None

    def namespace(self, name: str) -> NamespaceKeys:
        """A namespace's keys; made where it has none."""
        found = self.find_namespace(name)
        if found is not None:
            return found
        keystore = self._context.keystore
        identity = keystore.namespace_id(name)
        slot = keystore.namespace_slot(identity) or keystore.new_namespace_slot(name)
        try:
            self._wire.create(namespace_key(identity), _key_object(slot))
        except ObjectExists:
            slot = slot_of(self._wire.get(namespace_key(identity)).data)
        return self._adopt(identity, slot)

    def by_id(self, identity: bytes) -> NamespaceKeys | None:
        """The same by the hash of its name, for who lists the bucket."""
        found = self._wire.find(namespace_key(identity))
        return self._adopt(identity, slot_of(found.data)) if found is not None else None

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
                    "a namespace has one key here and another one in the archive", namespace_id=identity.hex()
                )
            self._agreed.add(identity)
            return ours

    def find_thread(self, namespace: NamespaceKeys, place: Place, epoch: int) -> ThreadKey | None:
        """A thread's key; None where there is none, or it was destroyed. Raises KeyUnavailable."""
        found = self._wire.find(place.key(epoch))
        return ThreadKey(*KeyStore.open_thread(slot_of(found.data), namespace)) if found is not None else None

    def make_thread(self, namespace: NamespaceKeys, place: Place, epoch: int, known: ThreadKey | None) -> ThreadKey:
        """Puts a key for a thread that is about to be claimed; adopts the one that somebody else put meanwhile."""
        made = known or ThreadKey(os.urandom(UID_BYTES), os.urandom(KEY_BYTES))
        try:
            slot = KeyStore.wrap_thread(made.uid, namespace, made.data_key)
            # No thread begins where nothing of the archive is there: it may have begun in the archive long ago.
            self._wire.together(self._wire.check_there, lambda: self._wire.create(place.key(epoch), _key_object(slot)))
            return made
        except ObjectExists:
            found = self.find_thread(namespace, place, epoch)
            if found is None:
                raise KeyUnavailable("the key of a thread vanished while it was made") from None
            return found

    def destroy_thread(self, place: Place, epoch: int) -> None:
        """Destroys a thread's key in the archive."""
        self._wire.delete(place.key(epoch))


def _key_object(slot: bytes) -> bytes:
    wraps = KeyObject()
    wraps.wraps.add(wrapping_id=slot[20:36], wrapped=slot)
    return wraps.SerializeToString()


def slot_of(data: bytes) -> bytes:
    """The wrapped key in a key object. Raises Corrupt."""
    try:
        wraps = KeyObject.FromString(data).wraps
    except DecodeError:
        wraps = []  # type: ignore[assignment]
    if not wraps:
        raise Corrupt("a key object in the archive cannot be read")
    return bytes(wraps[0].wrapped)
