"""Gives a thread of the archive another data key: `store/travel/rekey.py` says what a thread under another key is.

    1. this sidecar has the whole thread, archives it and gives it up, so that nobody writes it
    2. under the lock of the name: HEAD is read, and is at the entry that this disk has
    3. a key object of the next epoch, and objects with the sealed rows
    4. HEAD names the new uid and these objects, by compare-and-swap with the HEAD of step 2
    5. the old key object goes, then the old objects, then the copy on this disk

Before step 4 the thread is the old one, and after it the new one. Every other sidecar takes a HEAD with another uid and
a later first epoch for a thread that was deleted and made again: it deletes its copy with the key. But HEAD says which
thread it was before (``rekeyed_from``): a sidecar that lost the thread and has entries beyond that sets them aside,
with the old key. What a crash leaves is garbage, and the old key is among it: `stateward archive gc` removes it, and so
does the next call of this verb. Blobs keep their names and keys.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from stateward.storage.v1.archive_pb2 import OBJECT_KIND_IMAGE, OBJECT_KIND_INDEX, ArchiveHead, ArchiveIndex, ObjectRef
from stateward_sidecar.archive.objects.fetch import Fetcher, Seen
from stateward_sidecar.archive.objects.heads import WRITE_ID_BYTES, check_writable, epoch_start, seal_head, update_us
from stateward_sidecar.archive.objects.holds import ArchiveState, Name
from stateward_sidecar.archive.objects.image import Cutter, seal_image, seal_part
from stateward_sidecar.archive.objects.keys import KEYS_BEFORE
from stateward_sidecar.archive.objects.packs import pack_entries, pack_index, pack_snapshot
from stateward_sidecar.archive.own.reconcile import Reconciler
from stateward_sidecar.archive.requests.metered import Unclear
from stateward_sidecar.archive.requests.places import FIRST_EPOCH, Place, is_blob, origin_of
from stateward_sidecar.bucket.base import ObjectChanged
from stateward_sidecar.codec.seal import Cipher
from stateward_sidecar.errors import ArchiveUnavailable, FeatureUnavailable, NotOwner, StatewardError
from stateward_sidecar.storage.namespacekeys import NamespaceKeys
from stateward_sidecar.store.journal.admitting import other_creation
from stateward_sidecar.store.thread.thread import Thread
from stateward_sidecar.store.travel.outbox import Moment
from stateward_sidecar.store.travel.rekey import Rekeyed, Resealing, check_fit

TRIES_MAX = 20
REKEYED_KEPT = 16
"""HEAD says of so many changes which thread it was before."""
INLINE_OBJECTS_MAX = 32
"""References that HEAD itself has; older ones lie in an index."""


class ThreadRekeyer:
    """Runs on the archive's threads."""

    def __init__(self, state: ArchiveState, fetcher: Fetcher, reconciler: Reconciler) -> None:
        self._state = state
        self._fetcher = fetcher
        self._reconciler = reconciler

    def rekey(self, name: Name, give_up: Callable[[], object], expected_uid: str = "") -> Rekeyed:
        """Gives a thread another key. ``give_up`` makes this disk have all of it, archives it and gives it up. Raises
        ThreadNotFound, UidMismatch, NotOwner, FeatureUnavailable, ArchiveUnavailable, Corrupt."""
        for _ in range(TRIES_MAX):
            give_up()
            with self._state.locks.of(name):
                done = self._try(name, expected_uid)
            if done is not None:
                return done
        raise NotOwner(f"thread {name[1]!r} cannot get another key while it is written constantly", thread=name[1])

    def _try(self, name: Name, expected_uid: str) -> Rekeyed | None:
        """Returns None if somebody took the thread again meanwhile."""
        state = self._state
        with state.context.engine.read() as txn:
            thread = state.store.threads.get(txn, *name)
        identity = thread.identity
        if expected_uid not in ("", identity.uid_text):
            raise other_creation(identity, expected_uid)
        check_fit(state.context, thread)
        place = state.place(identity.namespace_keys, thread.name)
        seen, moment = self._reconciler.look(thread, place), state.outbox.moment(identity)
        if seen is None or moment is None or thread.number in state.holds or not seen.head.detached:
            return None
        head, tip = seen.head, moment.head
        if head.uid != identity.uid or (head.tip_sequence, head.tip_digest) != (tip.tip_sequence, tip.tip_digest):
            return None
        if moment.thread.floor_sequence or moment.is_clearing:
            return None
        check_writable(head)
        return self._change(thread, place, seen, moment)

    def _change(self, thread: Thread, place: Place, seen: Seen, moment: Moment) -> Rekeyed | None:
        state, keys = self._state, thread.identity.namespace_keys
        epoch = seen.head.epoch + 1
        key = state.keys.make_thread(keys, place, epoch, None)
        if key.uid == thread.identity.uid:
            raise FeatureUnavailable("the archive has this thread's key under a later epoch; repair the thread first")
        resealing = Resealing(state.context, state.outbox, moment, key.uid, key.data_key)
        head = self._put(place, seen.head, epoch, resealing)
        landed = self._replace(keys, place, head, seen)
        if landed is None:
            return None
        assert thread.archive is not None
        try:
            self._destroy_keys(place, head, seen.head.created_epoch)
        finally:  # HEAD has another thread, whatever comes of the old one's key
            self._reconciler.settle(thread, thread.archive.head, place, landed)
        with suppress(StatewardError):  # else they are garbage
            self._clean(place, head)
        return Rekeyed(thread.identity.uid, key.uid, resealing.count)

    def _put(self, place: Place, last: ArchiveHead, epoch: int, resealing: Resealing) -> ArchiveHead:
        """Writes the objects. Returns the HEAD that leads to them."""
        state, refs = self._state, list[ObjectRef]()
        for shipment in resealing.entries():
            refs.append(self._put_object(place, *pack_entries(state.names, epoch, shipment.rows, shipment.headers)))
        for version, pieces in resealing.snapshots():
            refs.append(self._put_object(place, *pack_snapshot(state.names, epoch, version, pieces)))
        made = resealing.moment()
        cipher, uid = Cipher(resealing.data_key), resealing.identity.uid
        head = ArchiveHead()
        head.CopyFrom(last)
        for field in (
            "objects", "index", "image", "image_parts", "image_part_bytes", "snapshot_version", "snapshot_pieces",
            "tail", "garbage", "settled_counter", "lineage", "previous_write_ids", "trimmed_sequence",
        ):  # fmt: skip
            head.ClearField(field)
        head.uid, head.created_epoch, head.epoch = uid, epoch, epoch
        head.boot_id, head.owner_id = state.boot_id, state.options.owner_id
        head.lineage.append(epoch_start(epoch, state.boot_id))
        head.write_id = os.urandom(WRITE_ID_BYTES)
        head.previous_write_ids.append(last.write_id)
        head.rekeyed_from.add(
            uid=last.uid, epoch=last.epoch, boot_id=last.boot_id, tip_sequence=last.tip_sequence,
            tip_digest=last.tip_digest, lineage=last.lineage,
        )  # fmt: skip
        del head.rekeyed_from[:-REKEYED_KEPT]
        head.update_time_us = update_us(last, state.now_us())
        head.tip_digest, head.packed_sequence = made.head.tip_digest, made.tip_sequence
        older, newer = refs[:-INLINE_OBJECTS_MAX], refs[-INLINE_OBJECTS_MAX:]
        if older:
            data = pack_index(ArchiveIndex(objects=older))
            head.index.CopyFrom(self._put_object(place, state.names.ref(OBJECT_KIND_INDEX, epoch, data), data))
        head.objects.extend(newer)
        cut = Cutter().cut(cipher, made, 0)
        for part in cut.parts:
            data = seal_part(cipher, uid, part)
            ref = self._put_object(place, state.names.ref(OBJECT_KIND_IMAGE, epoch, data), data)
            head.image_parts.add(object=ref, digest=part.digest)
        head.image, head.image_part_bytes = seal_image(cipher, uid, cut.inline), cut.part_bytes
        return head

    def _put_object(self, place: Place, ref: ObjectRef, data: bytes) -> ObjectRef:
        self._state.wire.put(place.object(ref), data)
        return ref

    def _replace(self, keys: NamespaceKeys, place: Place, head: ArchiveHead, seen: Seen) -> Seen | None:
        """Writes HEAD. Returns None if somebody wrote it meanwhile, and leaves nothing then."""
        wire = self._state.wire
        try:
            return Seen(head, wire.replace(place.head, seal_head(keys, place, head), seen.etag), None, wire.now())
        except (ObjectChanged, Unclear) as error:
            found = self._fetcher.look(keys, place, with_key=False)
            if found is not None and found.head.write_id == head.write_id:
                return found
            if isinstance(error, Unclear) and found is not None and found.head.write_id == seen.head.write_id:
                raise ArchiveUnavailable(
                    "it is not known whether the thread has another key: try again, and read it first"
                ) from None
        return None

    def _destroy_keys(self, place: Place, head: ArchiveHead, key_epoch: int) -> None:
        """Removes the key of the old thread, and what an earlier call of this verb may have left of one before it.
        Raises ArchiveUnavailable: then the next call does it."""
        wire, first = self._state.wire, max(head.created_epoch - KEYS_BEFORE, FIRST_EPOCH)
        wire.delete(place.key(key_epoch))
        wire.together(*(partial(wire.delete, place.key(epoch)) for epoch in range(first, head.created_epoch)))

    def _clean(self, place: Place, head: ArchiveHead) -> None:
        """Removes the objects of epochs before this thread."""
        wire = self._state.wire
        for name, _ in list(wire.walk(place.prefix)):
            origin = origin_of(name)
            if origin is not None and origin.epoch < head.created_epoch and not is_blob(name):
                wire.delete(name)
