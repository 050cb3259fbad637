"""Before the daemon is ready: checks that the bucket is fit, and that archive and store belong together.

The first sidecar that finds no archive in the bucket makes one. Two objects mark an archive: its root key, and its
format, which the root seals. If one of them is missing although the bucket has other objects, or although this store
has joined the archive before, the object was lost. The start is then refused, because a second root key would start
every thread again. It is also refused if somebody without the key changed the format.
"""

from __future__ import annotations

import lmdb

from stateward.storage.v1.archive_pb2 import ArchiveFormat
from stateward_sidecar.archive.objects.formats import agree_on_format, check_format, is_same, open_format, read_format
from stateward_sidecar.archive.objects.keys import agree_on_root, find_root, put_back
from stateward_sidecar.archive.requests.metered import Wire
from stateward_sidecar.archive.requests.places import FORMAT_KEY, KEY_USERS, ROOT, ROOT_KEY
from stateward_sidecar.bucket.base import Bucket, BucketError, BucketUnfit
from stateward_sidecar.bucket.probe import probe_bucket
from stateward_sidecar.errors import ArchiveUnavailable, Corrupt, StartError
from stateward_sidecar.storage import layout
from stateward_sidecar.storage.engine import DATA_FILE
from stateward_sidecar.storage.files import PLACE_BYTES, place_of
from stateward_sidecar.storage.queue import Write
from stateward_sidecar.store.store import Store
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.thread import rows
from stateward_sidecar.telemetry import log
from stateward_sidecar.tracebacks import told

BOOT_ID_BYTES = 16
# A process records what it shipped within about a second, so only the last few can be missing in a thread's row.
BOOTS_KEPT = 256
_SET_BACK = (
    f"{FORMAT_KEY} was changed since this data joined the archive; put it back from a copy of the bucket, or remove it "
    "and start once with --archive-put-back"
)


def expect_archive(wire: Wire, url: str) -> None:
    """Raises StartError if there is no archive. Writes nothing, so a mistake in the URL has no effect there."""
    try:
        lost = missing(wire)
        if FORMAT_KEY in lost and not _has_more(wire):
            raise StartError(f"--archive: there is no archive at {url}")
    except ArchiveUnavailable as error:
        raise StartError(f"--archive: {error.message}") from None
    if lost:
        raise _lost(lost)


def fetch_root(wire: Wire, key: bytes = b"") -> bytes:
    """Returns the archive's root for a new store, as this key wraps it if it does; empty = there is no archive. Raises
    StartError."""
    try:
        root = find_root(wire, key)
        if root is None:
            _check_new(wire)
            root = find_root(wire, key)  # another sidecar may have made the archive meanwhile
        return root or b""
    except ArchiveUnavailable as error:
        until = "that is corrected" if wire.refuses else "the archive answers"
        raise StartError(f"--archive: {error.message}; a sidecar without data cannot start until {until}") from None


def join(
    store: Store, wire: Wire, bucket: Bucket, key: bytes, *, archive_id: str = "", puts_back: bool = False
) -> str:
    """Joins store and archive. Returns the archive's id; empty = the archive did not answer. Raises StartError.
    ``archive_id``: of the only archive that the key may open; empty = any.

    A store that has joined before starts without an answer, so that commits do not depend on the bucket. With
    ``puts_back`` such a store puts the archive's format and root key back if they were lost.
    """
    known = _known(store.context)
    try:
        if known is None:
            probe_bucket(bucket)
            _check_new(wire)
        elif lost := missing(wire):
            if not puts_back:
                raise _lost(lost)
            put_back(wire, store.context.keystore, known, lost)
        form = _agree(store.context, wire, key, known, archive_id)
    except Corrupt as error:
        raise StartError(f"--archive: {error.message}") from None
    except BucketUnfit as error:
        raise StartError(f"--archive: the bucket is not fit: {error.message}") from None
    except BucketError as error:
        raise StartError(f"--archive: the bucket cannot be used: {error.message}") from None
    except ArchiveUnavailable as error:
        if known is None:
            raise StartError(
                f"--archive: {error.message}; it must answer before it is used for the first time"
            ) from None
        _check_bound(archive_id, known)
        log.warning("the archive does not answer; commits continue", error=told(error))
        return ""
    if known is None:
        _remember(store, form)
    elif known != form:  # a rotation has raised it; if the object is lost, this is what is put back
        _keep_form(store, form)
    return form.archive_id.hex()


def _agree(
    context: Context, wire: Wire, key: bytes, known: ArchiveFormat | None, archive_id: str
) -> ArchiveFormat:
    """Makes sure that store and archive have the same root and the same format, and makes those of a new archive."""
    found, keystore = wire.find(FORMAT_KEY), context.keystore
    if found is not None:  # the root of another archive is not taken
        _check_fits(known, archive_id, read_format(found.data))
    elif known is not None:
        raise _lost([FORMAT_KEY])
    agree_on_root(wire, keystore, key)
    form = agree_on_format(wire, keystore.root_names, found, context.clock.now_us(), bytes.fromhex(archive_id))
    _check_fits(known, archive_id, form)
    if known is not None and not is_same(known, form):
        raise StartError(f"--archive: {_SET_BACK}")
    return form


def _check_fits(known: ArchiveFormat | None, archive_id: str, form: ArchiveFormat) -> None:
    check_format(form)
    if known is not None and known.archive_id != form.archive_id:
        raise StartError(
            "--archive: the data in this directory belong to another archive; give its URL, or another --data-dir"
        )
    _check_bound(archive_id, form)


def _check_bound(archive_id: str, form: ArchiveFormat) -> None:
    """Raises StartError if a wrapped key file is for another archive."""
    if archive_id and archive_id != form.archive_id.hex():
        raise StartError(
            f"KEY_UNAVAILABLE: the wrapped key file is for the archive {archive_id}, and this is the archive "
            f"{form.archive_id.hex()}; wrap the key for it with `stateward keys wrap … --archive URL`"
        )


def find_change(context: Context, wire: Wire) -> str:
    """Returns what is wrong with the archive's format object, by its seal and by what this store knows of it; empty =
    nothing. Raises ArchiveUnavailable."""
    known, found = _known(context), wire.find(FORMAT_KEY)
    if found is None:
        return ""  # which `missing` tells
    try:
        form = open_format(found.data, context.keystore.root_names)
    except Corrupt as error:
        return error.message
    return "" if known is None or is_same(known, form) else _SET_BACK


def _known(context: Context) -> ArchiveFormat | None:
    with context.engine.read() as txn:
        row = txn.get(layout.ARCHIVE_KEY)
        return ArchiveFormat.FromString(bytes(row)) if row is not None else None


def missing(wire: Wire) -> list[str]:
    """Returns which of the two objects that mark an archive are missing."""
    return [key for key in (FORMAT_KEY, ROOT_KEY) if wire.find(key) is None]


def _has_more(wire: Wire) -> bool:
    """Whether the archive's folder has other objects."""
    return any(
        key not in (FORMAT_KEY, ROOT_KEY) and not key.startswith(KEY_USERS) for key, _ in wire.walk(ROOT)
    )


def _check_new(wire: Wire) -> None:
    """Raises StartError if there are objects of an archive, but one of the two that mark it is missing."""
    # Asks twice: another sidecar may be making the archive at this moment, and puts these two first.
    if missing(wire) and _has_more(wire) and (lost := missing(wire)):
        raise _lost(lost)


def _lost(keys: list[str]) -> StartError:
    return StartError(
        f"--archive: the archive is not new and lacks {' and '.join(keys)}. Is this the right bucket, and is its "
        "directory mounted? Put back what was lost from a copy of the bucket, or start a sidecar whose --data-dir has "
        "joined this archive once with --archive-put-back"
    )


def remember_boot(store: Store, boot_id: bytes) -> frozenset[bytes]:
    """Records this process's boot id before anything is shipped. Returns the boot ids of all processes of this disk.

    A HEAD with one of these ids is this disk's own, even if the process died before it could record that it wrote it.
    """

    def run(txn: lmdb.Transaction, batch: object) -> bytes:
        del batch
        known = bytes(txn.get(layout.BOOTS_KEY) or b"")[-(BOOTS_KEPT - 1) * BOOT_ID_BYTES :] + boot_id
        txn.put(layout.BOOTS_KEY, known)
        return known

    known: bytes = store.context.writer.submit(Write(run=run, frees_space=True), wait=True).wait()
    return frozenset(_split(known))


def find_former_boots(store: Store, boot_id: bytes) -> frozenset[bytes]:
    """Returns the boot ids of processes that ran while the file was elsewhere. Call it after ``remember_boot``.

    Copied data and moved data look alike. If the data were copied, the original may still be in use with the same boot
    ids. So what those processes wrote becomes this disk's own only after a lease.
    """
    place = place_of(store.context.engine.directory / DATA_FILE)

    def run(txn: lmdb.Transaction, batch: object) -> list[bytes]:
        del batch
        row = bytes(txn.get(layout.PLACE_KEY) or b"")
        if row[:PLACE_BYTES] != place:
            if row:
                log.warning("the data were copied or moved; their threads are free for this sidecar after one lease")
            row = place + (boot_id if row else bytes(BOOT_ID_BYTES))
            txn.put(layout.PLACE_KEY, row)
        boots, first = _split(bytes(txn.get(layout.BOOTS_KEY) or b"")), row[PLACE_BYTES:]
        return boots[: boots.index(first)] if first in boots else []

    former: list[bytes] = store.context.writer.submit(Write(run=run, frees_space=True), wait=True).wait()
    return frozenset(former)


def _split(boots: bytes) -> list[bytes]:
    return [boots[at : at + BOOT_ID_BYTES] for at in range(0, len(boots), BOOT_ID_BYTES)]


def _keep_form(store: Store, form: ArchiveFormat) -> None:
    def run(txn: lmdb.Transaction, batch: object) -> None:
        del batch
        txn.put(layout.ARCHIVE_KEY, form.SerializeToString())

    store.context.writer.submit(Write(run=run, frees_space=True), wait=True).wait()


def _remember(store: Store, form: ArchiveFormat) -> None:
    """Records that store and archive belong together, and queues all existing threads for the archive."""

    def run(txn: object, batch: object) -> None:
        del batch
        txn.put(layout.ARCHIVE_KEY, form.SerializeToString())  # type: ignore[attr-defined]
        for _, value in list(rows(txn, b"N")):  # type: ignore[arg-type]
            txn.put(layout.outbox_key(layout.unpack_name(value)[0]), layout.PRESENT)  # type: ignore[attr-defined]

    store.context.writer.submit(Write(run=run, frees_space=True), wait=True).wait()
