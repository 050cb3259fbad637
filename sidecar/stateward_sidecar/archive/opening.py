"""The start of a daemon with an archive, in the order of its steps. A daemon without one does not load this folder."""

from __future__ import annotations

import threading
from contextlib import suppress
from functools import partial

from stateward_sidecar.archive.archive import Archive
from stateward_sidecar.archive.commands import Commands
from stateward_sidecar.archive.fleet.rootkeys import USER_PURPOSE, describe_user
from stateward_sidecar.archive.objects.holds import Options
from stateward_sidecar.archive.objects.keys import slots_of
from stateward_sidecar.archive.objects.start import expect_archive, fetch_root, join
from stateward_sidecar.archive.requests.metered import Wire
from stateward_sidecar.archive.requests.places import KEY_USERS, ROOT_KEY, namespace_key, user_key
from stateward_sidecar.bucket.base import Bucket, ObjectChanged, ObjectExists
from stateward_sidecar.clock import Clock
from stateward_sidecar.codec.seal import Cipher
from stateward_sidecar.errors import StatewardError
from stateward_sidecar.settings import Settings
from stateward_sidecar.storage.keysource import Key
from stateward_sidecar.storage.keystore import KeyStore
from stateward_sidecar.storage.keywraps import wrapping_id_of
from stateward_sidecar.storage.queue import Write
from stateward_sidecar.store.store import Store
from stateward_sidecar.telemetry import log
from stateward_sidecar.tracebacks import told


class Opening:
    """Opens the archive that the settings name, in this bucket."""

    def __init__(self, bucket: Bucket, settings: Settings) -> None:
        self.bucket = bucket
        self._settings = settings
        self._about = b"", b"", 0
        """Boot id of this process, id of the key that it was started with, and when that was."""
        self._signing = threading.Lock()
        self._has_left = False
        self.is_known = False
        """Whether the archive knows that this process runs."""
        self._wire = Wire(bucket, Clock())
        if settings.archive_must_exist and not settings.archive_put_back:
            expect_archive(self._wire, settings.archive)

    def fetch_root(self, key: bytes = b"") -> bytes:
        """See ``start.fetch_root``."""
        return fetch_root(self._wire, key)

    def fetch_namespace(self, identity: bytes) -> list[bytes]:
        """The slots that the archive has of a namespace's keys; none if it does not answer."""
        try:
            found = self._wire.find(namespace_key(identity))
            return slots_of(found.data) if found is not None else []
        except StatewardError:
            return []

    def is_key(self, key_id: str) -> bool:
        """Whether a key with this fingerprint wraps the archive's root. False if the archive does not answer."""
        try:
            found = self._wire.find(ROOT_KEY)
            return found is not None and any(wrapping_id_of(slot)[:8].hex() == key_id for slot in slots_of(found.data))
        except StatewardError:
            return False

    def sign_in(self, store: Store, archive: Archive) -> None:
        """Says in the archive with which key this process was started, for a rotation. The processes of this disk
        before it may have been killed, or have stopped with something that the archive lacks; they are signed out.
        Call it again if it is not ``is_known`` then."""
        boot_id, keystore = archive.state.boot_id, store.context.keystore
        if not self._about[0]:
            self._about = boot_id, wrapping_id_of(keystore.root_slot()), store.context.clock.now_us()
            archive.state.keys.on_root = partial(self._tell_root, keystore)
        with self._signing:
            if not self._has_left:
                self._enter(store, archive)

    def _enter(self, store: Store, archive: Archive) -> None:
        try:
            self._put_user(store.context.keystore)
            former = {user_key(each) for each in archive.state.boots if each != archive.state.boot_id}
            for name in [name for name, _ in self._wire.walk(KEY_USERS) if name in former] if former else ():
                self._wire.delete(name)
        except (StatewardError, ObjectChanged) as error:
            log.warning("cannot say in the archive which key this sidecar uses", error=told(error))
        else:
            self.is_known = True

    def _put_user(self, keystore: KeyStore, stop_time_us: int = 0, unarchived: int = 0) -> None:
        boot_id, wrapping_id, start_time_us = self._about
        data = describe_user(
            boot_id, wrapping_id, Cipher(keystore.derive(USER_PURPOSE)), self._settings.owner_id, start_time_us,
            keystore.root_generation, stop_time_us, unarchived,
        )  # fmt: skip
        name = user_key(boot_id)
        try:
            self._wire.create(name, data)
        except ObjectExists:
            found = self._wire.find(name)
            if found is not None and found.data != data:
                self._wire.replace(name, data, found.etag)

    def _tell_root(self, keystore: KeyStore) -> None:
        """Says which root this disk uses now. Fails silently: that shows an old one, and harms nothing."""
        with suppress(StatewardError, ObjectChanged):
            if self._wire.find(user_key(self._about[0])) is not None:
                self._put_user(keystore)

    def sign_out(self, store: Store, archive: Archive) -> None:
        """The reverse of ``sign_in``, after the last call has ended. If this disk alone has something, says so instead:
        the key that opens it must not be retired. Does not wait for an archive that is away."""
        with self._signing:
            self._has_left = True
            if not self._wire.away_s:
                self._leave(store, archive)

    def _leave(self, store: Store, archive: Archive) -> None:
        with suppress(StatewardError, ObjectChanged):
            store.context.writer.submit(Write(run=_nothing), wait=True).wait()  # what was accepted before is counted
            unarchived = archive.leaver.count_dirty() + archive.state.orphans.count()
            if unarchived:
                self._put_user(store.context.keystore, store.context.clock.now_us(), unarchived)
            else:
                self._wire.delete(user_key(self._about[0]))

    def make(self, store: Store) -> tuple[Archive, Commands]:
        """Returns the archive of this store, not started yet, and the commands over it."""
        settings = self._settings
        options = Options(
            url=settings.archive, owner_id=settings.owner_id, interval_s=settings.archive_interval_s,
            puts_per_s=settings.archive_puts_per_s, lease_s=settings.archive_lease_s,
            check_s=settings.archive_check_s,
        )  # fmt: skip
        archive = Archive(store, self._wire, options)
        return archive, Commands(archive)

    def join(self, store: Store, key: Key) -> None:
        """See ``start.join``."""
        puts_back = self._settings.archive_put_back
        join(store, self._wire, self.bucket, key.data, archive_id=key.archive_id, puts_back=puts_back)


def _nothing(txn: object, batch: object) -> None:
    del txn, batch
