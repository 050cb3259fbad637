"""Ships a thread: makes its committed entries part of the archive by writing HEAD.

One ship, under the lock of the thread's name:

1. Reads the committed rows as of one moment, and the entries since the last HEAD. Opens and digests each entry again.
2. Writes objects: snapshots, and a pack if HEAD cannot carry the newest entries. If a prune cleared since step 1 what
   is read here, the ship begins again: HEAD must not say that it is whole.
3. Writes HEAD by compare-and-swap. A HEAD names only objects that exist, and every entry's dictionary exists before
   the entry.
4. Answers the waiting callers.

Step 2 usually writes nothing: HEAD's tail carries up to 24 KiB of entries, and HEAD carries a small snapshot. Both are
also uploaded as objects in the background. A crash at any point leaves at most objects that nobody names.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

from stateward.storage.v1.archive_pb2 import (
    OBJECT_KIND_IMAGE,
    OBJECT_KIND_SNAPSHOT,
    ArchiveHead,
    ArchiveIndex,
    Garbage,
    ImagePart,
    ObjectRef,
    PackedRow,
)
from stateward.v1.checkpoint_pb2 import (
    WORK_STATUS_CANCELLED,
    WORK_STATUS_COMPLETED,
    WORK_STATUS_FAILED,
    WORK_STATUS_WAITING,
)
from stateward.v1.thread_pb2 import THREAD_ACCESS_REMOTE
from stateward_sidecar.archive.objects.fetch import Fetcher
from stateward_sidecar.archive.objects.heads import bare, catch_up, follow
from stateward_sidecar.archive.objects.holds import ArchiveState, Hold, Taken, row_of
from stateward_sidecar.archive.objects.image import Cutter, Part, seal_image, seal_part
from stateward_sidecar.archive.objects.packs import is_pack, pack_entries, pack_snapshot
from stateward_sidecar.archive.own.pulse import Parted, Pulse, Uploads
from stateward_sidecar.archive.own.reconcile import Reconciler
from stateward_sidecar.archive.own.takeover import Attacher
from stateward_sidecar.archive.ship.blobs import BlobCarrier, delete_blobs
from stateward_sidecar.archive.ship.compact import MERGED_BYTES_MAX, Older, discard, fold, trim
from stateward_sidecar.codec.entry import unpack
from stateward_sidecar.errors import ArchiveUnavailable, Corrupt, StatewardError
from stateward_sidecar.store.blobs.blobrows import OpenedBlobs
from stateward_sidecar.store.journal.requests import may_be_removed
from stateward_sidecar.store.thread.thread import Thread
from stateward_sidecar.store.thread.times import expire_second
from stateward_sidecar.store.travel.outbox import Cleared, Moment, Shipment

KIB = 1 << 10
# A tail above the first size is packed in the background, a tail above the second one before HEAD is written.
TAIL_SOFT_BYTES, TAIL_BYTES_MAX = 12 * KIB, 24 * KIB
INLINE_SNAPSHOT_BYTES_MAX = 16 * KIB
IMAGE_GRACE_S = 30.0
# Threads whose tail and small snapshot stay in memory, about 40 KiB each.
WARM_MAX = 128
# Threads of which it is remembered which snapshots their indexes name.
INDEXED_MAX = 1024
# How often a ship begins again, if prunes clear what it reads.
MOMENTS_MAX = 16
# Nobody works on a thread with such a status. The ship gives the thread up, so that the next sidecar need not wait.
RESTING = (WORK_STATUS_WAITING, WORK_STATUS_COMPLETED, WORK_STATUS_FAILED, WORK_STATUS_CANCELLED)


class Shipper:
    """Ships threads. Several threads are shipped at once, on the archive's workers."""

    _pulse_type = Pulse
    is_repair = False  # True = a thread that lost something is shipped all the same

    def __init__(self, state: ArchiveState, fetcher: Fetcher, reconciler: Reconciler, attacher: Attacher) -> None:
        self._state = state
        self._fetcher = fetcher
        self._reconciler = reconciler
        self._attacher = attacher
        self._blobs = BlobCarrier(state, attacher)
        self._pulse = self._pulse_type(state, reconciler)
        self._warm: OrderedDict[int, Hold] = OrderedDict()
        self._indexed = OrderedDict[int, tuple[ObjectRef, set[int]]]()  # by thread: its newest index, and the snapshots
        self._warm_lock = threading.Lock()

    def ship(self, hold: Hold, *, detach: bool = False, keeps: bool = False) -> None:
        """Archives what is committed. Also gives the thread up if ``detach`` is set or its status is in ``RESTING``,
        unless ``keeps`` is set.

        Returns without an error if the thread was lost, deleted or rolled back. Raises ArchiveUnavailable, Corrupt.
        """
        with self._state.locks.of(hold.name):
            current = self._state.holds.get(hold.number)
            if current is not hold or hold.is_rolled_back:
                return
            if not hold.is_verified and not self._verify(hold):
                return
            current = self._state.holds.get(hold.number)
            if current is None:  # deleted on this disk meanwhile
                return
            hold = current
            try:
                self._ship_now(hold, detach=detach, keeps=keeps)
            except Parted:
                settled = self._state.holds.get(hold.number)
                if settled is not None and not settled.is_rolled_back:  # an earlier write of ours landed late
                    raise ArchiveUnavailable("an earlier write of this sidecar changed HEAD; shipping again") from None
                return
            except Corrupt:  # no damage if another sidecar took the thread: it may delete what our HEAD named
                if self._verify(hold):
                    raise

    def _ship_now(self, hold: Hold, *, detach: bool, keeps: bool) -> None:
        """Ships the thread as it is now. Begins again if a prune clears what is being read."""
        self._ship_before_large(hold)
        for _ in range(MOMENTS_MAX):
            moment = self._state.outbox.moment(hold.thread.identity, hold.opened_blobs)
            if moment is None or moment.tip_sequence == 0:
                return
            # Not before what was pruned has left the bucket: the next owner may come in a year.
            rests = moment.head.status in RESTING and not moment.is_clearing
            is_new = moment.tip_sequence > hold.head.tip_sequence or hold.owed.is_due
            if not is_new and not (detach and not hold.head.detached):
                return
            with suppress(Cleared), self._without_cleared(hold) as taken:
                self._ship(hold, moment, detach=not keeps and (detach or rests), taken=taken)
                return
        raise ArchiveUnavailable(f"thread {hold.thread.name!r} is pruned all the time; shipping again")

    @staticmethod
    @contextmanager
    def _without_cleared(hold: Hold) -> Iterator[Taken]:
        """Lets a HEAD, during a block, carry and lead to nothing that this disk has cleared."""
        taken = hold.owed.take()
        if taken.is_due:
            hold.tail = None
        try:
            yield taken
        except BaseException:
            taken.failed()
            raise
        taken.landed()

    def _ship_before_large(self, hold: Hold) -> None:
        """Ships what was committed before large entries, so that it need not wait for their upload."""
        while hold.before_large:
            moment = hold.before_large.popleft()
            if moment.tip_sequence > hold.head.tip_sequence:
                with suppress(Cleared):  # it is shipped together with what follows it
                    self._ship(hold, moment, detach=False)

    def _verify(self, hold: Hold) -> bool:
        seen = self._reconciler.look(hold.thread, hold.place)
        settled = self._reconciler.settle(hold.thread, hold.head, hold.place, seen)
        return settled is not None and not settled.is_rolled_back

    def _ship(self, hold: Hold, moment: Moment, *, detach: bool, taken: Taken | None = None) -> None:
        state = self._state
        last, uploads = hold.head.write_id, self._pulse.uploads(hold)
        head = follow(hold.head, state.boot_id, state.options.owner_id, state.now_us())
        hold.dropped_blobs = set()  # of this HEAD only: that of a failed ship may have had later entries
        tail, shipped_bytes = self._entries(hold, head, moment, uploads)
        pieces, missing = self._snapshots(hold, head, moment, uploads)
        self._describe(hold, head, moment, uploads)
        due = self._unlink(hold, head, moment)
        self._shorten(hold, head, moment, tail, uploads, taken)
        hold.puts += len(uploads.calls)
        self._pulse.upload(hold, uploads)
        if hold.head.write_id != last:
            catch_up(head, hold.head)
        del head.tail[:]
        head.tail.extend(row.record for row in tail)
        head.ClearField("snapshot_version")
        del head.snapshot_pieces[:]
        if pieces is not None and pieces[1]:
            head.snapshot_version = pieces[0]
            head.snapshot_pieces.extend(pieces[1])
        head.settled_counter = hold.spares.settled(state.names.boot, state.names.last)
        head.detached = detach
        gives_up = head.detached = detach and self._attacher.release(hold, head)
        try:
            landed = self._put(hold, head)
        except Exception:
            if gives_up:
                self._reconciler.take_back(hold)
            raise
        if not landed:
            raise Parted
        hold.tail, hold.pieces = tail, pieces
        self._keep_warm(hold)
        state.wire.traffic.entry_bytes += shipped_bytes
        self._archived(hold, head, moment.tip_sequence)
        due += hold.spares.landed(head, missing)
        if due:
            # HEAD landed, so the one before was still ours. If the bucket is set back, an older one may name these.
            state.wire.later(partial(self._delete, hold, due))
        if dropped := hold.dropped_blobs:
            # HEAD landed with the entries of their removal, so no other sidecar names these blobs again.
            hold.dropped_blobs = set()
            state.wire.later(partial(delete_blobs, state, hold.place, dropped))
        if gives_up:
            try:
                self._reconciler.write_row(hold.thread, row_of(head, THREAD_ACCESS_REMOTE))
            finally:  # not earlier: until the row is on disk, only the hold stops writes
                state.holds.pop(hold.number, None)
                state.context.keystore.held.give_up(hold.thread.identity.uid)
        elif sum(len(row.record) for row in tail) > TAIL_SOFT_BYTES and not hold.spares.has_packs:
            self._pack_tail(hold, tail, head)

    def _put(self, hold: Hold, head: ArchiveHead) -> bool:
        """See ``Pulse.put``."""
        return self._pulse.put(hold, head)

    def _archived(self, hold: Hold, head: ArchiveHead, sequence: int) -> None:
        state = self._state
        hold.head = bare(head)
        hold.is_verified = True
        hold.blobs.clear()
        self._keep_indexed(hold)
        live = state.store.threads.in_memory(hold.number) or hold.thread
        for thread in (live, hold.thread):
            thread.archived_sequence = max(thread.archived_sequence, sequence)
            thread.epoch = max(thread.epoch, head.epoch)
        state.waiters.archived(hold.number, sequence)

    def _keep_warm(self, hold: Hold) -> None:
        """Keeps tail and snapshot in memory for the ``WARM_MAX`` threads that were shipped last."""
        identity = hold.thread.identity
        if identity.is_held and not self._state.context.keystore.held.is_open(identity.uid):
            return  # it was locked meanwhile
        with self._warm_lock:
            self._warm.pop(hold.number, None)
            self._warm[hold.number] = hold
            if len(self._warm) > WARM_MAX:
                _, cold = self._warm.popitem(last=False)
                cold.tail = cold.pieces = cold.cutter = None
                cold.opened_blobs = OpenedBlobs()

    def forget(self, number: int) -> None:
        """Drops what is in memory of a thread that was locked."""
        with self._warm_lock:
            self._warm.pop(number, None)

    # -- the content of HEAD --------------------------------------------------------------------------------------

    def _describe(self, hold: Hold, head: ArchiveHead, moment: Moment, uploads: Uploads) -> None:
        identity, thread = hold.thread.identity, moment.head
        head.tip_sequence, head.tip_digest = thread.tip_sequence, thread.tip_digest
        head.last_version, head.status = thread.last_version, thread.status
        head.expire_second = expire_second(thread)
        if hold.cutter is None:
            hold.cutter = Cutter()
        cut = hold.cutter.cut(identity.cipher, moment, head.image_part_bytes)
        head.image, head.image_part_bytes = seal_image(identity.cipher, identity.uid, cut.inline), cut.part_bytes
        before = {bytes(part.digest): part.object for part in head.image_parts}
        del head.image_parts[:]
        for part in cut.parts:
            uploads.tick()
            ref = before.pop(part.digest, None) or self._stage_part(hold, head, part, uploads)
            head.image_parts.append(ImagePart(object=ref, digest=part.digest))
        for ref in before.values():
            discard(hold, head, ref)

    def _stage_part(self, hold: Hold, head: ArchiveHead, part: Part, uploads: Uploads) -> ObjectRef:
        """Adds the upload of a part of the image, unless it was uploaded for a HEAD that failed."""
        state, identity = self._state, hold.thread.identity
        spare = hold.spares.find(OBJECT_KIND_IMAGE, part.digest)
        if spare is not None:
            return spare
        data = seal_part(identity.cipher, identity.uid, part)
        ref = state.names.ref(OBJECT_KIND_IMAGE, head.epoch, data)
        return hold.spares.stage(state.wire, hold.place, ref, data, uploads.add, content=part.digest)

    def _entries(
        self, hold: Hold, head: ArchiveHead, moment: Moment, uploads: Uploads
    ) -> tuple[list[PackedRow], int]:  # fmt: skip
        """Adds the new entries as packs if they do not fit into HEAD, and the blobs that they completed. Returns HEAD's
        tail, and the sealed size of the new entries in bytes."""
        state = self._state
        for ref in hold.spares.packs(head.packed_sequence, hold.head.tip_sequence):  # of the tail
            self._add_pack(head, ref)
        known = hold.tail
        if known is None:
            after = head.packed_sequence
        else:
            known = [row for row in known if row.sequence > head.packed_sequence]
            after = max(hold.head.tip_sequence, head.packed_sequence)
        shipments = list[Shipment]()
        for shipment in state.outbox.entries(moment.thread, after, moment.tip_sequence):
            shipments.append(shipment)
            uploads.tick()
        new_bytes = sum(shipment.size_bytes for shipment in shipments)
        rows = [*(known or ()), *(row for shipment in shipments for row in shipment.rows)]
        fits = sum(len(row.record) for row in rows) <= TAIL_BYTES_MAX
        fits = fits and all(row.WhichOneof("place") == "sequence" for row in rows)
        if not fits and (found := hold.spares.upload_of_pack(head.packed_sequence, hold.head.tip_sequence)) is not None:
            # The tail is being packed in the background. HEAD waits for this pack, instead of packing the same again.
            uploads.add(0, found[1])
            self._add_pack(head, found[0])
            return self._entries(hold, head, moment, uploads)
        self._blobs.add_uploads(hold, moment, shipments, uploads, is_repair=self.is_repair)
        if fits:
            return rows, new_bytes
        if known:
            headers = [unpack(row.record, row.sequence).header for row in known]
            shipments = [Shipment(known, headers, 0), *shipments]
        for ref in hold.spares.packs(head.packed_sequence, moment.tip_sequence):  # of a ship whose HEAD failed
            self._add_pack(head, ref)
        shipments = [shipment.after(head.packed_sequence) for shipment in shipments]
        for shipment in _joined(shipment for shipment in shipments if shipment.headers):
            uploads.tick()
            ref, data = pack_entries(state.names, head.epoch, shipment.rows, shipment.headers)
            after = head.packed_sequence
            self._add_pack(head, hold.spares.stage(state.wire, hold.place, ref, data, uploads.add, after=after))
        return [], new_bytes

    def _pack_tail(self, hold: Hold, tail: Sequence[PackedRow], head: ArchiveHead) -> None:
        """Uploads the tail as a pack, in the background. The next HEAD names the pack and drops the entries."""
        headers = [unpack(row.record, row.sequence).header for row in tail]
        ref, data = pack_entries(self._state.names, head.epoch, tail, headers)
        hold.puts += 1
        hold.spares.send(self._state.wire, hold.place, ref, data, after=head.packed_sequence)

    @staticmethod
    def _add_pack(head: ArchiveHead, ref: ObjectRef) -> None:
        head.objects.append(ref)
        head.packed_sequence = ref.last_sequence

    # -- snapshots ------------------------------------------------------------------------------------------------

    def _snapshots(
        self, hold: Hold, head: ArchiveHead, moment: Moment, uploads: Uploads
    ) -> tuple[tuple[int, list[bytes]] | None, list[int]]:
        """Adds snapshots that are not archived. Returns version and pieces of main's newest one, without pieces if
        it is too large for HEAD, and the versions that were not archived."""
        state, thread = self._state, moment.thread
        main = thread.branches.get("main")
        newest = main.snapshot_version if main is not None else 0
        known = {ref.first_version for ref in head.objects if ref.kind == OBJECT_KIND_SNAPSHOT}
        missing = sorted(version for version in thread.snapshots - known if not self._is_indexed(hold, head, version))
        inline = hold.pieces if hold.pieces is not None and hold.pieces[0] == newest else None
        if newest in thread.snapshots and inline is None:
            pieces = state.outbox.snapshot(thread, newest)
            # An empty list means too large. It is remembered too, so that the next HEAD does not read it again.
            inline = newest, pieces if sum(map(len, pieces)) <= INLINE_SNAPSHOT_BYTES_MAX else []
        for version in missing:
            ref = hold.spares.snapshot(version)
            if ref is not None:
                head.objects.append(ref)
            elif inline is not None and version == inline[0] and inline[1]:
                if not hold.spares.sends_snapshot(version):  # in the background, while HEAD carries it
                    ref, data = pack_snapshot(state.names, head.epoch, version, inline[1])
                    hold.puts += 1
                    hold.spares.send(state.wire, hold.place, ref, data)
            else:
                uploads.tick()
                pieces = state.outbox.snapshot(thread, version)
                if not pieces:
                    continue
                ref, data = pack_snapshot(state.names, head.epoch, version, pieces)
                head.objects.append(hold.spares.stage(state.wire, hold.place, ref, data, uploads.add))
        return inline, missing

    def _is_indexed(self, hold: Hold, head: ArchiveHead, version: int) -> bool:
        if not head.HasField("index") or version > head.index.last_version:
            return False
        if hold.indexed_snapshots is None:
            index, known = self._indexed.get(hold.number, (ObjectRef(), set()))
            if index != head.index:
                refs = self._fetcher.indexed(hold.place, head.index)
                known = {ref.first_version for ref in refs if ref.kind == OBJECT_KIND_SNAPSHOT}
            hold.indexed_snapshots = set(known)
        return version in hold.indexed_snapshots

    def _keep_indexed(self, hold: Hold) -> None:
        """Keeps what a chain of indexes names, for the next hold: a thread that rests after each turn is held anew for
        each, and a chain may be long."""
        if hold.indexed_snapshots is None or not hold.head.HasField("index"):
            return
        with self._warm_lock:
            self._indexed.pop(hold.number, None)
            self._indexed[hold.number] = hold.head.index, hold.indexed_snapshots
            if len(self._indexed) > INDEXED_MAX:
                self._indexed.popitem(last=False)

    def _shorten(
        self, hold: Hold, head: ArchiveHead, moment: Moment, tail: Sequence[PackedRow], uploads: Uploads,
        taken: Taken | None,
    ) -> None:  # fmt: skip
        """Takes out what was pruned, and moves older references into an index."""

        def read(ref: ObjectRef) -> ArchiveIndex:
            uploads.tick()  # a chain of indexes may be long
            return self._fetcher.index(hold.place, ref)

        if taken is not None:
            older = Older(read, partial(self._gone, hold, moment.thread))
            trim(self._state, hold, head, moment, uploads, older, taken)
        fold(self._state, hold, head, moment, tail, uploads)

    # -- garbage --------------------------------------------------------------------------------------------------

    def _unlink(self, hold: Hold, head: ArchiveHead, moment: Moment) -> list[ObjectRef]:
        """Drops objects whose entries were all pruned. Returns those that were dropped long enough ago: they may be
        deleted once HEAD has landed."""
        thread = moment.thread
        if not thread.pruned.is_empty and not thread.floor_sequence:
            for ref in self._gone(hold, thread, head.objects):
                head.objects.remove(ref)
                discard(hold, head, ref)
        due = [item for item in head.garbage if item.time_us <= self._due_us(head, item)]
        for item in due:
            head.garbage.remove(item)
        return [item.object for item in due] + hold.spares.due(lambda item: item.time_us <= self._due_us(head, item))

    def _gone(self, hold: Hold, thread: Thread, refs: Sequence[ObjectRef]) -> list[ObjectRef]:
        """Returns the packs whose entries were all pruned, and the snapshots that no entry needs."""
        unused = self._unused_snapshots(hold, thread, refs)
        return [
            ref for ref in refs
            if (ref.first_version in unused if not is_pack(ref) else self._may_be_gone(thread, ref) and not
                self._state.outbox.may_need(thread, ref.first_sequence, ref.last_sequence))
        ]  # fmt: skip

    @staticmethod
    def _may_be_gone(thread: Thread, ref: ObjectRef) -> bool:
        """Returns whether prunes may have removed all entries of a pack. Else this disk lost entries, and the pack has
        them."""
        is_pruned = not ref.first_version or thread.pruned.covers(ref.first_version, ref.last_version)
        return is_pruned and may_be_removed(thread, ref.last_sequence)

    def _unused_snapshots(self, hold: Hold, thread: Thread, refs: Sequence[ObjectRef]) -> set[int]:
        """Returns the snapshots of pruned versions that no entry needs.

        A snapshot that this disk lacks is not proof: it may only have been unreadable once. So entries are searched.
        """
        pruned, snapshots = thread.pruned, thread.snapshots
        missing = {ref.first_version for ref in refs if not is_pack(ref) and ref.first_version in pruned}
        missing -= snapshots
        known, needed = hold.needed
        if known.pairs() != pruned.pairs():
            known, needed = pruned, set()
        if missing - needed:
            needed = self._state.outbox.dictionaries(thread, missing)
        hold.needed = known, needed
        return missing - needed

    def _due_us(self, head: ArchiveHead, item: Garbage) -> int:
        """Returns the time up to which dropped objects may be deleted, in microseconds since 1970.

        Parts of images have a shorter grace time: they change often, and a reader of an old HEAD soon reads again.
        """
        grace_s = self._state.options.garbage_grace_s
        if item.object.kind == OBJECT_KIND_IMAGE:
            grace_s = min(grace_s, IMAGE_GRACE_S)
        return head.update_time_us - int(grace_s * 1e6)

    def _delete(self, hold: Hold, refs: Iterable[ObjectRef]) -> None:
        """Deletes objects. A HEAD of ours dropped them ten minutes ago, so no reader follows an older HEAD any more."""
        with suppress(StatewardError):  # ``stateward archive gc`` finds what stays
            for ref in refs:
                self._state.wire.delete(hold.place.object(ref), ref.size_bytes)


def _joined(shipments: Iterable[Shipment]) -> list[Shipment]:
    """Joins small shipments, because a pack for each would cost many requests."""
    joined: list[Shipment] = []
    for shipment in shipments:
        if joined and joined[-1].size_bytes + shipment.size_bytes <= MERGED_BYTES_MAX:
            last = joined.pop()
            shipment = Shipment(
                [*last.rows, *shipment.rows], [*last.headers, *shipment.headers], last.size_bytes + shipment.size_bytes
            )
        joined.append(shipment)
    return joined
