"""Uploads and fetches blobs: sealed files, byte for byte as on disk.

A blob is uploaded before HEAD names the entry that completed it, and so before any archived version names the blob. It
is fetched when it is read or restored. Its object name is random and used once.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path

from stateward_sidecar.archive.desk import Desk, Hold, Name
from stateward_sidecar.archive.places import Place
from stateward_sidecar.archive.pulse import Uploads
from stateward_sidecar.bucket.errors import ObjectNotFound
from stateward_sidecar.errors import Corrupt
from stateward_sidecar.store.outbox import Shipment
from stateward_sidecar.store.thread import Thread

PART_BYTES = 8 << 20


class BlobCarrier:
    """Uploads, fetches and deletes blobs. Runs on the archive's threads."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def add_uploads(self, hold: Hold, thread: Thread, shipments: Iterable[Shipment], uploads: Uploads) -> None:
        """Adds the blobs that entries completed. Skips a blob whose file is gone: it was collected since."""
        desk, identity = self._desk, thread.identity
        headers = [header for shipment in shipments for header in shipment.headers]
        for blob_id in desk.outbox.blob_ids(thread, headers):
            path = desk.context.blob_files.path(identity.uid, blob_id)
            if blob_id not in hold.blobs and path.exists():
                uploads.add(path.stat().st_size, partial(self._upload, hold, blob_id, path))

    def _upload(self, hold: Hold, blob_id: bytes, path: Path) -> None:
        self._desk.wire.put_file(hold.place.blob(blob_id), path)
        hold.blobs.add(blob_id)

    def fetch(self, name: Name, blob_id: bytes) -> None:
        """Fetches a blob to this disk, unless it is here.

        Raises Corrupt if the archive does not have it, and DiskFull, ArchiveUnavailable, ThreadNotFound.
        """
        desk = self._desk
        with desk.locks.of((*name, blob_id)):
            with desk.context.engine.read() as txn:
                thread = desk.store.threads.get(txn, *name)
            identity, files = thread.identity, desk.context.blob_files
            if files.is_here(identity.uid, blob_id):
                return
            place = desk.place(identity.namespace_keys, self._origin(thread))
            new = files.create(identity.uid, blob_id)
            try:
                for part in self._parts(place, blob_id, thread):
                    new.write(part)
                new.publish()
            except BaseException:
                new.discard()
                raise

    def delete(self, place: Place, blob_ids: Iterable[bytes]) -> None:
        """Deletes the objects of blobs that nothing names any more."""
        for blob_id in blob_ids:
            self._desk.wire.delete(place.blob(blob_id))

    def _parts(self, place: Place, blob_id: bytes, thread: Thread) -> Iterable[bytes]:
        key, at = place.blob(blob_id), 0
        while True:
            try:
                part = self._desk.wire.get_range(key, at, PART_BYTES)
            except ObjectNotFound:
                raise Corrupt(f"the blob {key} is missing in the archive", thread.name) from None
            if part:
                yield part
            at += len(part)
            if len(part) < PART_BYTES:
                return

    @staticmethod
    def _origin(thread: Thread) -> str:
        """Returns the name whose place has the thread's blobs. For an orphan, that is the thread it comes from."""
        row = thread.archive
        return row.orphan_of if row is not None and row.orphan_of else thread.name
