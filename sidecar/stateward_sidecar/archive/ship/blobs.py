"""Uploads and fetches blobs: sealed files, byte for byte as on disk.

A blob is opened and uploaded before HEAD names the entry that completed it, and so before any archived version names
the blob. It is fetched when it is read or restored, and is checked before it gets its name on this disk. Its object
name is random and used once. Its object is deleted after a HEAD has landed that has the entry of its removal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from stateward.storage.v1.journal_pb2 import BlobRecord
from stateward.v1.thread_pb2 import THREAD_ACCESS_ORPHAN
from stateward_sidecar.archive.objects.holds import ArchiveState, Hold, Name
from stateward_sidecar.archive.own.pulse import Uploads
from stateward_sidecar.archive.own.takeover import Attacher
from stateward_sidecar.archive.requests.places import SLICE_BYTES, Place
from stateward_sidecar.bucket.base import ObjectNotFound
from stateward_sidecar.codec.blob import open_all
from stateward_sidecar.errors import Corrupt, StatewardError, VersionPruned
from stateward_sidecar.store.blobs.blobread import is_sound
from stateward_sidecar.store.blobs.blobrows import find_blob
from stateward_sidecar.store.kinds.blob import BLOB
from stateward_sidecar.store.thread.thread import Thread
from stateward_sidecar.store.travel.outbox import Cleared, Moment, Shipment
from stateward_sidecar.telemetry import log
from stateward_sidecar.tracebacks import told


class BlobCarrier:
    """Uploads, fetches and deletes blobs. Runs on the archive's threads."""

    def __init__(self, state: ArchiveState, attacher: Attacher) -> None:
        self._state = state
        self._attacher = attacher

    # -- for a ship -----------------------------------------------------------------------------------------------

    def add_uploads(
        self, hold: Hold, moment: Moment, shipments: Iterable[Shipment], uploads: Uploads, *, is_repair: bool = False
    ) -> None:
        """Adds the blobs that entries completed and that the thread has at this moment, and notes which ones entries
        removed. Raises Corrupt if a file that the archive lacks is lost: HEAD must not say that the blob is archived.
        Raises Cleared if a blob was collected since the moment. The upload of a damaged file raises the same.

        A repair goes on without such a blob, because the rest of the thread is worth more.
        """
        # Entries that HEAD names already may be read again, and their blobs are there.
        archived = 0 if is_repair else hold.head.tip_sequence
        headers = [
            header for shipment in shipments for header in shipment.headers
            if header.sequence > archived or header.kind != BLOB.number
        ]
        written, gone = self._state.outbox.blobs(moment, headers)
        hold.dropped_blobs |= gone
        for blob in written:
            uploads.tick()
            blob_id = bytes(blob.record.blob_id)
            if blob_id in hold.blobs and not blob.is_again:
                continue
            if blob.is_again and self._is_there(hold.place, blob.record):
                continue
            uid, files = moment.thread.identity.uid, self._state.context.blob_files
            if files.is_here(uid, blob_id):
                upload = partial(self._upload, hold, moment.thread, blob.record, is_repair=is_repair)
                uploads.add(blob.record.stored_bytes, upload)
            else:
                self._check_lost(hold, moment.thread, blob.record, "lost", is_repair=is_repair)

    def _check_lost(self, hold: Hold, thread: Thread, record: BlobRecord, how: str, *, is_repair: bool) -> None:
        """Raises Corrupt unless the archive has a blob whose file is lost or damaged."""
        if self._is_there(hold.place, record):
            return
        with self._state.context.engine.read() as txn:
            row = find_blob(txn, thread.identity, record.sha256)
        if row is None or row.record.blob_id != record.blob_id:
            raise Cleared
        error = Corrupt(f"the file of blob {record.sha256.hex()} is {how}; write the blob again", thread.name)
        if not is_repair:
            raise error
        log.error("a blob is in no archive", uid=thread.identity.uid_text, error=told(error))

    def _upload(self, hold: Hold, thread: Thread, record: BlobRecord, *, is_repair: bool) -> None:
        """Opens the whole file first: once HEAD names the blob, nobody else may have its bytes."""
        context, identity = self._state.context, thread.identity
        try:
            if not is_sound(context, identity, record, anew=True):
                self._check_lost(hold, thread, record, "damaged", is_repair=is_repair)
                return
            path = context.blob_files.path(identity.uid, record.blob_id)
            self._state.wire.put_file(hold.place.blob(record.blob_id), path)
        except FileNotFoundError:  # it was collected meanwhile
            raise Cleared from None
        hold.blobs.add(bytes(record.blob_id))

    # -- for readers and writers ----------------------------------------------------------------------------------

    def fetch(self, name: Name, sha256: bytes, *, keeps: bool = False) -> None:
        """Fetches a blob to this disk, unless it is here or the thread no longer has it.

        While another sidecar owns the thread, a sweep removes the file a day after it was last read, unless ``keeps``.

        Raises Corrupt if the archive does not have it, and DiskFull, ArchiveUnavailable, ThreadNotFound, VersionPruned.
        """
        state = self._state
        with state.locks.of((*name, sha256)):
            thread, record = self._find(name, sha256)
            if record is None:
                return
            uid, files = thread.identity.uid, state.context.blob_files
            if files.is_whole(uid, record.blob_id, record.stored_bytes):
                if keeps:
                    files.keep(uid, record.blob_id)
                return
            try:
                self._copy(thread, record)
            except ObjectNotFound:
                self._check_named(name, record)
                return
            except FileNotFoundError:  # the copy was deleted on this disk meanwhile, and its files with it
                return
            if not keeps:
                files.mark_read(uid, record.blob_id, state.now_us())
            try:
                _, now = self._find(name, sha256)
            except StatewardError:  # the thread was deleted, before its directory was made for this file
                files.remove(uid, record.blob_id)
                raise
            if now is None or now.blob_id != record.blob_id:  # collected meanwhile: no row leads to the file
                files.remove(uid, record.blob_id)

    def check(self, name: Name, sha256: bytes) -> None:
        """Raises Corrupt if the archive lacks a blob that the thread has, and ArchiveUnavailable."""
        thread, record = self._find(name, sha256)
        if record is not None and not self._is_there(self._place(thread), record):
            self._check_named(name, record)

    def has(self, name: Name, record: BlobRecord) -> bool:
        """Returns whether the archive has a blob, with its size. Raises ArchiveUnavailable."""
        with self._state.context.engine.read() as txn:
            thread = self._state.store.threads.get(txn, *name)
        return self._is_there(self._place(thread), record)

    def _find(self, name: Name, sha256: bytes) -> tuple[Thread, BlobRecord | None]:
        with self._state.context.engine.read() as txn:
            thread = self._state.store.threads.get(txn, *name)
            row = find_blob(txn, thread.identity, sha256)
        return thread, row.record if row is not None else None

    def _is_there(self, place: Place, record: BlobRecord) -> bool:
        return self._state.wire.has(place.blob(record.blob_id), record.stored_bytes)

    def _check_named(self, name: Name, record: BlobRecord) -> None:
        """Raises an error for a blob that is missing in the archive, unless its owner has removed it meanwhile."""
        self._attacher.renew(name)
        thread, now = self._find(name, record.sha256)
        if now is None or now.blob_id != record.blob_id:
            return
        if thread.access == THREAD_ACCESS_ORPHAN:
            raise VersionPruned(
                f"blob {record.sha256.hex()} was removed by the owner of thread {self._origin(thread)!r}",
                thread=thread.name, sha256=record.sha256.hex(),
            )  # fmt: skip
        key = self._place(thread).blob(record.blob_id)
        raise Corrupt(f"the blob {key} is missing in the archive", thread.name)

    def _copy(self, thread: Thread, record: BlobRecord) -> None:
        """Copies the object of a blob to this disk, and checks it. Raises ObjectNotFound, Corrupt, DiskFull."""
        identity, key = thread.identity, self._place(thread).blob(record.blob_id)
        new = self._state.context.blob_files.create(identity.uid, record.blob_id)
        try:
            for part in self._parts(key, record.stored_bytes):
                new.write(part)
            if new.size_bytes != record.stored_bytes:
                self._state.wire.get_range(key, 0, 1)  # not there: it was removed while its slices were read
                raise Corrupt(
                    f"the blob {key} has {new.size_bytes} bytes or more in the archive, not {record.stored_bytes}",
                    thread.name,
                )
            try:
                for _ in open_all(new.read, record):
                    pass
            except Corrupt as error:
                raise Corrupt(f"{key}: {error.message}", thread.name) from None
            new.publish()
        except BaseException:
            new.discard()
            raise

    def _parts(self, key: str, size_bytes: int) -> Iterator[bytes]:
        """Yields the bytes of an object, and one byte more if it is larger."""
        at, is_over = 0, False
        while at <= size_bytes and not is_over:
            length = min(SLICE_BYTES, size_bytes + 1 - at)
            part = self._state.wire.get_range(key, at, length)
            if part:
                yield part
            at, is_over = at + len(part), len(part) < length

    def _place(self, thread: Thread) -> Place:
        return self._state.place(thread.identity.namespace_keys, self._origin(thread))

    @staticmethod
    def _origin(thread: Thread) -> str:
        """Returns the name whose place has the thread's blobs. For an orphan, that is the thread it comes from."""
        row = thread.archive
        return row.orphan_of if row is not None and row.orphan_of else thread.name


def delete_blobs(state: ArchiveState, place: Place, blob_ids: Iterable[bytes]) -> None:
    """Deletes the objects of blobs that nothing names any more."""
    for blob_id in blob_ids:
        state.wire.delete_whole(place.blob(blob_id))
