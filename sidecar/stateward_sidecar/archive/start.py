"""Before the daemon is ready: whether the bucket can be relied on, and whether archive and store belong together."""

from __future__ import annotations

import lmdb

from stateward.storage.v1.archive_pb2 import ArchiveFormat
from stateward_sidecar.archive.keys import agree_on_format, agree_on_root, find_root
from stateward_sidecar.archive.places import FORMAT_KEY
from stateward_sidecar.archive.wire import Wire
from stateward_sidecar.bucket.base import Bucket
from stateward_sidecar.bucket.errors import BucketError, BucketUnfit
from stateward_sidecar.bucket.probe import probe_bucket
from stateward_sidecar.errors import ArchiveUnavailable, StartError
from stateward_sidecar.storage import layout
from stateward_sidecar.storage.writer import Write
from stateward_sidecar.store.store import Store
from stateward_sidecar.store.thread import rows
from stateward_sidecar.telemetry import log

BOOT_ID_BYTES = 16
# A process writes down what it shipped within a second or so: only the last few can be missing in a thread's row.
BOOTS_KEPT = 256


def expect_archive(wire: Wire, url: str) -> None:
    """Raises StartError where there is no archive. Nothing is written: a URL with a mistake in it stays as it was."""
    try:
        found = wire.find(FORMAT_KEY)
    except ArchiveUnavailable as error:
        raise StartError(f"--archive: {error.message}") from None
    if found is None:
        raise StartError(f"--archive: there is no archive at {url}")


def fetch_root(wire: Wire) -> bytes:
    """For a store that is about to be made: the root the archive has, empty where it has none. Raises StartError."""
    try:
        return find_root(wire) or b""
    except ArchiveUnavailable as error:
        raise StartError(
            f"--archive: {error.message}; a sidecar without data must ask the archive before it may start"
        ) from None


def join(store: Store, wire: Wire, bucket: Bucket, key: bytes) -> str:
    """Makes store and archive one. Returns the archive's id; empty where it could not be asked. Raises StartError.

    A store that has joined before starts without asking: a bucket that is away stops no commit.
    """
    with store.context.engine.read() as txn:
        known = txn.get(layout.ARCHIVE_KEY)
        known = bytes(known) if known is not None else None
    try:
        if known is None:
            probe_bucket(bucket)
        form = agree_on_format(wire, store.context.clock.now_us())
        agree_on_root(wire, store.context.keystore, key)
    except BucketUnfit as error:
        raise StartError(f"--archive: the bucket is not fit: {error.message}") from None
    except BucketError as error:
        raise StartError(f"--archive: the bucket cannot be used: {error.message}") from None
    except ArchiveUnavailable as error:
        if known is None:
            raise StartError(f"--archive: {error.message}; before its first use it must be asked") from None
        log.warning("the archive does not answer; commits go on", error=error.message)
        return ""
    if known is not None and ArchiveFormat.FromString(known).archive_id != form.archive_id:
        raise StartError(
            "--archive: the data in this directory belong to another archive; give them theirs, or move them away"
        )
    if known is None:
        _remember(store, form)
    return form.archive_id.hex()


def remember_boot(store: Store, boot_id: bytes) -> frozenset[bytes]:
    """Writes down, before anything is shipped, that a process of this disk has this boot id. Returns those of all.

    A HEAD of theirs is this disk's own, also where its process died before it could write down that it wrote it.
    """

    def run(txn: lmdb.Transaction, batch: object) -> bytes:
        del batch
        known = bytes(txn.get(layout.BOOTS_KEY) or b"")[-(BOOTS_KEPT - 1) * BOOT_ID_BYTES :] + boot_id
        txn.put(layout.BOOTS_KEY, known)
        return known

    known: bytes = store.context.writer.submit(Write(run=run, frees_space=True), wait=True).wait()
    return frozenset(known[at : at + BOOT_ID_BYTES] for at in range(0, len(known), BOOT_ID_BYTES))


def _remember(store: Store, form: ArchiveFormat) -> None:
    """Writes down that they belong together, and that all threads there are wait to be archived."""

    def run(txn: object, batch: object) -> None:
        del batch
        txn.put(layout.ARCHIVE_KEY, form.SerializeToString())  # type: ignore[attr-defined]
        for _, value in list(rows(txn, b"N")):  # type: ignore[arg-type]
            txn.put(layout.outbox_key(layout.unpack_name(value)[0]), layout.PRESENT)  # type: ignore[attr-defined]

    store.context.writer.submit(Write(run=run, frees_space=True), wait=True).wait()
