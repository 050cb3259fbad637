"""Held threads that are locked: what the archive does before, and without their session keys.

Before a thread is locked, it is shipped. Then what this process has of it in memory goes. HEAD stays as it is, so the
thread is free after a lease, as that of an owner that is idle.

HEAD opens with the namespace's key. So whoever may delete deletes a locked thread: HEAD becomes a tombstone if the
thread is free or this disk's own, then the key object goes, and all that is listed under the name.
"""

from __future__ import annotations

from stateward.storage.v1.archive_pb2 import ArchiveHead
from stateward.v1.thread_service_pb2 import DeleteThreadRequest
from stateward_sidecar import security
from stateward_sidecar.archive.objects.fetch import Fetcher, Seen
from stateward_sidecar.archive.objects.heads import seal_head, tombstone, was_unused
from stateward_sidecar.archive.objects.holds import ArchiveState, Name
from stateward_sidecar.archive.own.reconcile import Finisher
from stateward_sidecar.archive.requests.metered import Unclear
from stateward_sidecar.archive.requests.places import Place
from stateward_sidecar.archive.ship.schedule import Schedule, is_dirty
from stateward_sidecar.bucket.base import ObjectChanged
from stateward_sidecar.errors import ArchiveUnavailable, Corrupt, Locked
from stateward_sidecar.security import DELETED
from stateward_sidecar.storage import layout
from stateward_sidecar.storage.namespacekeys import NamespaceKeys
from stateward_sidecar.store.clean.delete import sees
from stateward_sidecar.store.thread.thread import head_uid, load_outline, rows
from stateward_sidecar.store.thread.threads import is_orphans

# How often a tombstone is tried if others change HEAD first.
ROUNDS = 8


class Opened(Exception):
    """The thread is open, or HEAD is of another one: whoever asked begins again."""


class LockedThreads:
    """Runs on the archive's threads, and on the store's that sweeps. May wait for the bucket."""

    def __init__(self, state: ArchiveState, fetcher: Fetcher) -> None:
        self._state = state
        self._fetcher = fetcher
        self._finisher = Finisher(state, fetcher)

    # -- before a thread is locked ------------------------------------------------------------------------------------

    def unshipped(self, uids: set[bytes], schedule: Schedule) -> set[bytes]:
        """Has threads shipped that are about to be locked. Returns those of which the archive lacks something, or of
        which this disk does not say yet that it has everything."""
        holds = self._state.holds
        for number in self._marked(uids):
            if (hold := holds.get(number)) is None or hold.owed.is_due or is_dirty(hold):
                schedule.add(number, at_once=True)
            else:
                schedule.write_rows(wait=True)
        return set(self._marked(uids).values())

    def _marked(self, uids: set[bytes]) -> dict[int, bytes]:
        """Returns the threads that have a row in the outbox, by number."""
        with self._state.context.engine.read() as txn:
            numbers = [layout.marked_thread(key) for key, _ in rows(txn, b"O")]
            heads = {number: txn.get(layout.ThreadKeys(number).head) for number in numbers}
            found = {number: head_uid(head) for number, head in heads.items() if head is not None}
        return {number: uid for number, uid in found.items() if uid in uids}

    def note(self, number: int) -> None:
        """A thread cannot be shipped, because it is locked."""
        with self._state.context.engine.read() as txn:
            if txn.get(layout.outbox_key(number)) is not None:
                self._state.locked.add(number)

    # -- deletion -----------------------------------------------------------------------------------------------------

    def remove(self, name: Name, request: DeleteThreadRequest, error: Locked) -> bytes:
        """Deletes a locked thread in the archive and here, and returns its uid. Returns nothing if the archive has
        another creation than the one that is meant, or if only this disk has the thread. Raises ``error`` if the
        request expects something that nobody can see, Opened, NotOwner, ArchiveUnavailable.

        The caller holds the lock of the name.
        """
        if sees(request):
            raise error
        state = self._state
        namespace = state.keys.find_namespace(name[0]) if not is_orphans(name[1]) else None
        if namespace is None:
            return b""
        place = state.place(namespace, name[1])
        seen = self._fetcher.look(namespace, place, with_key=False)
        if seen is None:
            state.wire.check_there()
            return b""
        uid = bytes(seen.head.uid)
        if request.options.expected_uid not in ("", uid.hex()):
            return b""
        if self.settle(name, error):
            raise Opened  # the copy here was of a thread that others have deleted
        with state.context.keystore.held.ending(uid) as is_ours:
            if not is_ours or not self._bury(namespace, place, uid, name=name[1]):
                raise Opened
            self._drop_here(uid)
        return uid

    def expire(self, namespace: NamespaceKeys, place: Place, uid: bytes, second: int) -> bool:
        """Deletes a locked thread in the archive if it expires at this second there, too. Returns whether the store may
        delete what is here. Nobody opens it meanwhile. Raises ArchiveUnavailable, Corrupt."""
        if not self._bury(namespace, place, uid, second=second):
            return False
        security.note(DELETED, "an expired thread was deleted", uid=uid.hex(), everywhere=True)
        return True

    def remove_expired(self, namespace: NamespaceKeys, place: Place, head: ArchiveHead) -> None:
        """Deletes an expired thread everywhere, unless it was opened here, or changed."""
        uid = bytes(head.uid)
        with self._state.context.keystore.held.ending(uid) as is_ours:
            if is_ours and self.expire(namespace, place, uid, head.expire_second):
                self._drop_here(uid)

    def settle(self, name: Name, error: Locked) -> bool:
        """A call cannot open a locked thread that is on this disk. Deletes the copy if others have deleted its thread,
        and returns whether it did. Raises ArchiveUnavailable, Corrupt."""
        state, uid = self._state, bytes.fromhex(error.metadata.get("uid", ""))
        namespace = state.keys.find_namespace(name[0])
        if namespace is None or not uid or is_orphans(name[1]):
            return False
        with state.context.engine.read() as txn:
            row = txn.get(layout.name_key(namespace.names.thread(name[1])))
            number, here = layout.unpack_name(row) if row is not None else (0, b"")
            outline = load_outline(txn, namespace, number, uid) if here == uid else None
        if outline is None or number in state.holds:
            return False
        seen = self._fetcher.look(namespace, state.place(namespace, name[1]), with_key=False)
        if seen is None or not _was_deleted(seen.head, uid, outline.epoch):
            return False
        with state.context.keystore.held.ending(uid) as is_ours:
            if is_ours:
                security.note(DELETED, "another sidecar deleted a thread", uid=uid.hex(), everywhere=True)
                self._drop_here(uid)
        return is_ours

    def _drop_here(self, uid: bytes) -> None:
        self._finisher.delete_locked(uid)

    def _bury(
        self, namespace: NamespaceKeys, place: Place, uid: bytes, *, second: int = 0, name: str = ""
    ) -> bool:
        """Puts a tombstone, destroys the key and deletes the objects. Returns False if HEAD is of another thread, or
        has not ``second``, or is not free to be deleted by a sweep. Raises NotOwner to a caller, who has the
        ``name``."""
        state = self._state
        for _ in range(ROUNDS):
            seen = self._fetcher.look(namespace, place, with_key=False)
            if seen is None:
                state.wire.check_there()
                raise Corrupt("its HEAD is missing in the archive", name)
            head = seen.head
            if head.uid != uid:
                return False
            if head.deleted:
                self._finisher.finish(namespace, place, seen)
                return True
            if second and head.expire_second != second:
                return False
            if not (head.detached or state.is_own(head)):
                unchanged_s = state.observe(place, head)
                if unchanged_s < state.options.lease_s:
                    if second:
                        return False
                    raise state.held(name, head, unchanged_s)
            grave = tombstone(head, state.boot_id, state.options.owner_id, state.now_us())
            try:
                etag = state.wire.replace(place.head, seal_head(namespace, place, grave), seen.etag)
            except (ObjectChanged, Unclear):
                continue
            state.cut.discard(uid)
            self._finisher.finish(namespace, place, Seen(grave, etag, None))
            return True
        raise ArchiveUnavailable("others changed HEAD at each attempt; try again")


def _was_deleted(head: ArchiveHead, uid: bytes, epoch: int) -> bool:
    """Whether HEAD tells that a thread which this disk last knew at an epoch was deleted. What was made under a claim
    that was given back, or when the bucket had lost this thread, is of nobody who deleted it (``judge``)."""
    if was_unused(head, epoch):
        return False
    return head.deleted if head.uid == uid else head.created_epoch > epoch
