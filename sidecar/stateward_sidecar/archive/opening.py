"""The start of a daemon with an archive, in the order of its steps. A daemon without one does not load this folder."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

from stateward_sidecar.archive.archive import Archive
from stateward_sidecar.archive.commands import Commands
from stateward_sidecar.archive.fleet.rootkeys import USER_PURPOSE, describe_user
from stateward_sidecar.archive.objects.holds import Options
from stateward_sidecar.archive.objects.keys import slots_of
from stateward_sidecar.archive.objects.start import expect_archive, fetch_root, join, last_boot
from stateward_sidecar.archive.requests.metered import Wire
from stateward_sidecar.archive.requests.places import ROOT_KEY, namespace_key, user_key
from stateward_sidecar.bucket.base import Bucket, ObjectChanged, ObjectExists
from stateward_sidecar.clock import Clock
from stateward_sidecar.codec.seal import Cipher
from stateward_sidecar.errors import StatewardError
from stateward_sidecar.settings import Settings
from stateward_sidecar.storage.keysource import Key
from stateward_sidecar.storage.keystore import KeyStore
from stateward_sidecar.storage.keywraps import wrapping_id_of
from stateward_sidecar.store.store import Store
from stateward_sidecar.telemetry import log
from stateward_sidecar.tracebacks import told


class Opening:
    """Opens the archive that the settings name, in this bucket."""

    def __init__(self, bucket: Bucket, settings: Settings) -> None:
        self.bucket = bucket
        self._settings = settings
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
        """Says in the archive with which key this process was started, for a rotation. The process of this disk before
        it may have been killed, and is signed out."""
        boot_id, now_us = archive.state.boot_id, store.context.clock.now_us()
        describe = partial(self._describe, store.context.keystore, boot_id, now_us)
        archive.state.keys.on_root = partial(self._tell_root, user_key(boot_id), describe)
        try:
            self._wire.create(user_key(boot_id), describe())
            if former := last_boot(store, boot_id):
                self._wire.delete(user_key(former))
        except (StatewardError, ObjectExists) as error:
            log.warning("cannot say in the archive which key this sidecar uses", error=told(error))

    def _describe(self, keystore: KeyStore, boot_id: bytes, now_us: int) -> bytes:
        return describe_user(
            boot_id, wrapping_id_of(keystore.root_slot()), Cipher(keystore.derive(USER_PURPOSE)),
            self._settings.owner_id, now_us, keystore.root_generation,
        )  # fmt: skip

    def _tell_root(self, name: str, describe: Callable[[], bytes]) -> None:
        """Says which root this disk uses now. Fails silently: that shows an old one, and harms nothing."""
        with suppress(StatewardError, ObjectChanged):
            found = self._wire.find(name)
            if found is not None:
                self._wire.replace(name, describe(), found.etag)

    def sign_out(self, archive: Archive) -> None:
        """The reverse of ``sign_in``. Does not wait for an archive that is away."""
        if not self._wire.away_s:
            with suppress(StatewardError):
                self._wire.delete(user_key(archive.state.boot_id))

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
