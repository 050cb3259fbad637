"""A thread under another data key: the same entries, snapshots and rows, sealed anew under another uid.

All numbers stay: sequences, versions, epochs, times, and with them leases, claims, revisions and request ids. Digests
are keyed, so they are others, and each entry continues the new digest of the entry before it. A blob keeps its own key
and its file: the new thread has a second name of it.

Without an archive, one write puts all rows of the new thread, gives it the name, and deletes the old one, whose key is
destroyed after the commit. So a crash leaves one of them. With an archive, `archive/own/rekey.py` does the same in
HEAD.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import lmdb

from stateward.storage.v1.archive_pb2 import ArchiveRow, PackedRow, ThreadImage
from stateward.storage.v1.head_pb2 import BranchHead, EffectRow, RecordRow, ThreadHead
from stateward.storage.v1.journal_pb2 import EntryHeader
from stateward.v1.thread_pb2 import Tag
from stateward_sidecar.codec.entry import Entry, reseal, unpack
from stateward_sidecar.codec.parts import EDITS_MAGIC, SNAPSHOT_MAGIC, piece_digest, reseal_piece
from stateward_sidecar.codec.seal import KEY_BYTES, length_prefixed
from stateward_sidecar.errors import FeatureUnavailable, OutcomeUnknown, QueueFull
from stateward_sidecar.storage import layout
from stateward_sidecar.storage.queue import Batch, Write
from stateward_sidecar.store.blobs.blobwrite import copy_blobs
from stateward_sidecar.store.clean.delete import Deleter, orphans_of
from stateward_sidecar.store.journal import replay
from stateward_sidecar.store.journal.admitting import other_creation
from stateward_sidecar.store.kinds.effect import EFFECT_ROWS, effect_key
from stateward_sidecar.store.kinds.record import record_key, records_after
from stateward_sidecar.store.kinds.ref import HEADS
from stateward_sidecar.store.kinds.table import is_cut
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.thread import UID_BYTES, Identity, Thread
from stateward_sidecar.store.thread.threads import NameLock, Threads
from stateward_sidecar.store.travel.install import Incoming, Installer
from stateward_sidecar.store.travel.outbox import Moment, Outbox, Shipment

TRIES_MAX = 5
"""After so many tries, in which the thread changed meanwhile, it is read in the writer, and nothing is written."""
ROWS_BYTES_MAX = 256 << 20
"""Without an archive: all rows of a thread are put in one transaction."""


@dataclass(frozen=True, slots=True)
class Rekeyed:
    """What was done."""

    old_uid: bytes
    uid: bytes
    entries: int


class Resealing:
    """Seals a thread, as it was at one moment, under another key. Call ``entries``, then ``snapshots``, then
    ``moment``."""

    def __init__(self, context: Context, outbox: Outbox, moment: Moment, uid: bytes, data_key: bytes) -> None:
        old = moment.thread.identity
        self.identity = Identity(old.number, uid, old.namespace, old.name, old.namespace_keys, data_key)
        self.data_key = data_key
        self.count = 0
        self._context, self._outbox, self._moment = context, outbox, moment
        self._old, self._new = (old.cipher, old.uid), (self.identity.cipher, uid)
        self._versions: dict[int, bytes] = {}
        """The new digest of each version."""
        self._last = 0, b""
        """The last entry: its sequence, and its new digest."""

    def entries(self) -> Iterator[Shipment]:
        """Yields all entries, with the pieces of large edits, some megabytes at a time. Raises Corrupt, Cleared."""
        held: replay.Held = {}
        for shipment in self._outbox.entries(self._moment.thread, 0, self._moment.tip_sequence):
            rows, headers = list[PackedRow](), list[EntryHeader]()
            with self._context.engine.read() as txn:
                for row in shipment.rows:
                    if row.WhichOneof("place") == "sequence":
                        header, record = self._entry(txn, unpack(row.record, row.sequence), held)
                        headers.append(header)
                        rows.append(PackedRow(sequence=row.sequence, record=record))
                    else:
                        place = layout.u64(row.parts_id)
                        record = reseal_piece(self._old, self._new, EDITS_MAGIC, row.record, row.index, place, b"")
                        rows.append(PackedRow(parts_id=row.parts_id, index=row.index, record=record))
            self.count += len(headers)
            yield Shipment(rows, headers, sum(len(row.record) for row in rows))

    def _entry(self, txn: lmdb.Transaction, entry: Entry, held: replay.Held) -> tuple[EntryHeader, bytes]:
        header, old = entry.header, self._moment.thread.identity
        is_gone = bool(header.edit_bytes) and (entry.is_husk or is_cut(self._moment.thread.pruned, header))
        edits = None if is_gone else replay.read_edits(txn, old, entry, self._context.cache, held)
        dictionary, mapped = header.dictionary_version, (b"", b"")
        if dictionary and not is_gone:
            digest = replay.read_dictionary(txn, old, dictionary, self._context.cache, held).digest
            mapped = digest, self._digest(dictionary, digest)
        sequence, digest = self._last
        previous = digest if sequence == header.sequence - 1 else self._foreign(header.previous_digest)
        metadata = self._moves(entry) if header.kind == HEADS.number else None
        made, record = reseal(entry, self._old, self._new, previous, edits, mapped, metadata)
        self._last = made.sequence, made.digest
        if made.version:
            self._versions[made.version] = made.digest
        return made, record

    def _moves(self, entry: Entry) -> bytes:
        metadata = entry.open_metadata(*self._old)
        for move in metadata.heads:
            if move.digest:
                move.digest = self._digest(move.version, move.digest)
            if move.before_digest:
                move.before_digest = self._digest(move.before_version, move.before_digest)
        data: bytes = metadata.SerializeToString(deterministic=True)
        return data

    def _digest(self, version: int, old: bytes) -> bytes:
        return self._versions.get(version) or self._foreign(old)

    def _foreign(self, old: bytes) -> bytes:
        """What stands for the digest of an entry that is gone."""
        return self.identity.cipher.digest(length_prefixed(b"gone", old)) if old else b""

    def snapshots(self) -> Iterator[tuple[int, list[bytes]]]:
        """Yields the snapshots: version and pieces. Raises Corrupt, Cleared."""
        thread = self._moment.thread
        for version in sorted(thread.snapshots):
            pieces = self._outbox.snapshot(thread, version)
            if not pieces:
                continue
            place = layout.u64(version)
            digest = self._digest(version, piece_digest(self._old[0], SNAPSHOT_MAGIC, pieces[0], self._old[1], place))
            yield version, [
                reseal_piece(self._old, self._new, SNAPSHOT_MAGIC, piece, index, place, digest)
                for index, piece in enumerate(pieces)
            ]

    def moment(self) -> Moment:
        """Returns the thread's rows under the new key. Raises Corrupt."""
        thread, head = self._moment.thread, ThreadHead()
        head.CopyFrom(self._moment.head)
        head.tip_digest = self._last[1] if self._last[0] == head.tip_sequence else self._foreign(head.tip_digest)
        if head.main_digest:
            head.main_digest = self._digest(head.main_version, head.main_digest)
        branches = {}
        for name, branch in thread.branches.items():
            branches[name] = BranchHead()
            branches[name].CopyFrom(branch)
            branches[name].digest = self._digest(branch.version, branch.digest)
        with self._context.engine.read() as txn:
            if head.effect_sum:
                rows = EFFECT_ROWS.rows(txn, thread.identity)
                head.effect_sum = self._sum(
                    (effect_key(self.identity, row.record.anchor, row.record.key), row) for _, row in rows
                )
            if head.record_sum:
                live = records_after(txn, thread, b"")
                head.record_sum = self._sum((record_key(self.identity, row.facts.key), row) for _, row in live)
        made = Thread(
            self.identity, head, branches, thread.tags, thread.pruned, thread.snapshots, thread.signals
        )  # fmt: skip
        return Moment(made, head, self._moment.blobs)

    def _sum(self, rows: Iterable[tuple[bytes, EffectRow | RecordRow]]) -> bytes:
        total = 0
        for key, row in rows:
            total ^= self.identity.row_sum(key, row.SerializeToString(deterministic=True))
        return total.to_bytes(UID_BYTES, "big")


def image_of(moment: Moment) -> ThreadImage:
    """Returns all rows of a moment."""
    thread = moment.thread
    return ThreadImage(
        head=moment.head, branches=thread.branches.values(),
        tags=[Tag(name=name, version=version) for name, version in thread.tags.items()],
        pruned=thread.pruned.to_message(), blobs=moment.blobs, signals=thread.signals.values(),
    )  # fmt: skip


def check_fit(context: Context, thread: Thread) -> None:
    """Raises FeatureUnavailable if a thread cannot get another key."""
    identity = thread.identity
    if identity.is_held:
        raise FeatureUnavailable("a held thread keeps its data key: to change it takes its session key")
    with context.engine.read() as txn:
        if next(orphans_of(txn, identity.uid), None) is not None:
            raise FeatureUnavailable(
                f"entries of thread {thread.name!r} were set aside here under the same key; copy or delete them first "
                "(`stateward threads --orphans` shows them)"
            )


class Rekeyer:
    """Gives threads of a store without an archive another key. Runs on a worker."""

    def __init__(
        self, context: Context, threads: Threads, deleter: Deleter, names: NameLock, clear: Callable[[], object]
    ) -> None:
        """``names``: the names of hidden threads that are being made. ``clear``: clears what was pruned."""
        self._context, self._threads, self._deleter, self._names, self._clear = context, threads, deleter, names, clear
        self._outbox, self._installer = Outbox(context, threads), Installer(context, threads)

    def rekey(self, namespace: str, name: str, expected_uid: str = "") -> Rekeyed:
        """Gives a thread another key. Raises ThreadNotFound, UidMismatch, FeatureUnavailable, Corrupt, DiskFull."""
        with self._names.of((namespace, name), 0):
            uid, data_key = os.urandom(UID_BYTES), os.urandom(KEY_BYTES)
            try:
                for tries in range(1, TRIES_MAX + 1):
                    done = self._try(namespace, name, expected_uid, uid, data_key, is_last=tries == TRIES_MAX)
                    if done is not None:
                        return done
                raise QueueFull(f"thread {name!r} changes all the time; try again", thread=name)
            except OutcomeUnknown:
                raise  # the thread may have the new key: the next start finds what nothing names
            except BaseException:  # the name of each file that the new thread was to have
                if (gone := self._context.blob_files.set_aside(uid)) is not None:
                    self._context.blob_files.empty(gone)
                raise

    def _try(
        self, namespace: str, name: str, expected_uid: str, uid: bytes, data_key: bytes, *, is_last: bool
    ) -> Rekeyed | None:
        """Returns None if the thread changed meanwhile."""
        with self._context.engine.read() as txn:
            thread = self._threads.get(txn, namespace, name)
        if expected_uid not in ("", thread.identity.uid_text):
            raise other_creation(thread.identity, expected_uid)
        check_fit(self._context, thread)
        if self._context.had_archive:
            raise FeatureUnavailable("these data belong to an archive: start the daemon with it, and try again")
        moment = self._outbox.moment(thread.identity)
        if moment is not None and moment.is_clearing:
            self._clear()
            moment = self._outbox.moment(thread.identity)
        if moment is None or moment.head.stored_bytes > ROWS_BYTES_MAX:
            if moment is None:
                return None
            raise FeatureUnavailable(
                f"thread {name!r} has more than {ROWS_BYTES_MAX >> 20} MiB; without an archive it keeps its key"
            )
        resealing = Resealing(self._context, self._outbox, moment, uid, data_key)
        copy_blobs(self._context, thread, resealing.identity, [row.record for row in moment.blobs])
        ready = None if is_last else self._read(resealing)

        def run(txn: lmdb.Transaction, batch: Batch) -> Rekeyed | None:
            old = self._threads.draft(txn, batch, namespace, name)
            if old is None or old.identity.number != thread.number:
                return None
            nonlocal moment
            now = self._outbox.moment(thread.identity)
            if now is None or now.head != moment.head or now.blobs != moment.blobs:
                return None
            rows, image = ready or self._read(resealing)
            self._deleter.replace(txn, batch, old)
            incoming = Incoming(old.identity.namespace_keys, uid, data_key, image, rows=rows, row=ArchiveRow())
            self._installer.take_place(txn, batch, incoming)
            return Rekeyed(thread.identity.uid, uid, resealing.count)

        size_bytes = moment.head.stored_bytes + 16384
        done: Rekeyed | None = self._context.writer.submit(
            Write(run=run, size_bytes=size_bytes, is_alone=True), wait=True
        ).wait()
        return done

    def _read(self, resealing: Resealing) -> tuple[list[PackedRow], ThreadImage]:
        rows = [row for shipment in resealing.entries() for row in shipment.rows]
        for version, pieces in resealing.snapshots():
            for index, piece in enumerate(pieces):
                rows.append(PackedRow(snapshot_version=version, index=index, record=piece))
        return rows, image_of(resealing.moment())
