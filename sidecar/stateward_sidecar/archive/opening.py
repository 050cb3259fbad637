"""The start of a daemon with an archive, in the order of its steps. A daemon without one does not load this folder."""

from __future__ import annotations

from stateward_sidecar.archive.archive import Archive
from stateward_sidecar.archive.commands import Commands
from stateward_sidecar.archive.objects.holds import Options
from stateward_sidecar.archive.objects.start import expect_archive, fetch_root, join
from stateward_sidecar.archive.requests.metered import Wire
from stateward_sidecar.bucket.base import Bucket
from stateward_sidecar.clock import Clock
from stateward_sidecar.settings import Settings
from stateward_sidecar.storage.keysource import Key
from stateward_sidecar.store.store import Store


class Opening:
    """Opens the archive that the settings name, in this bucket."""

    def __init__(self, bucket: Bucket, settings: Settings) -> None:
        self.bucket = bucket
        self._settings = settings
        self._wire = Wire(bucket, Clock())
        if settings.archive_must_exist and not settings.archive_put_back:
            expect_archive(self._wire, settings.archive)

    def fetch_root(self) -> bytes:
        """See ``start.fetch_root``."""
        return fetch_root(self._wire)

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
