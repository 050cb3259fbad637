"""Deleting a thread everywhere, because a caller asks or because it has expired.

Deleting a thread everywhere: a tombstone, then the key, then the rest.

The tombstone comes first, so that nobody can take the thread any more. It stays, so that a sidecar that was away finds
it and deletes its copy. Without the key nobody can read what is left. If the deletion fails or is interrupted in
between, the next sidecar that finds the tombstone finishes it (``reconcile.py``), or ``stateward archive gc`` does.

Deletes expired threads in the archive. The store's sweep asks for it, and then deletes what is on this disk.

owned here          closed first, so that no save can extend its life; then deleted as by a caller
a copy, detached    nobody owns it: a tombstone replaces exactly this HEAD. An attach, or a faster deletion, changes
                    HEAD, and the conditional write fails. So no thread in use is deleted, whatever the clocks say, and
                    two daemons may try at the same time
a copy, held        its owner deletes it; a later sweep reads HEAD again, in case the owner gave it up
a copy, outdated    HEAD has another expiry, because the thread continued elsewhere: the copy is renewed
a copy, deleted     what is here goes; if the deletion was interrupted, it is finished first
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial

from stateward.storage.v1.archive_pb2 import ArchiveHead
from stateward.v1.thread_pb2 import THREAD_ACCESS_ORPHAN, THREAD_ACCESS_OWNED, THREAD_ACCESS_REMOTE
from stateward.v1.thread_service_pb2 import DeleteThreadRequest
from stateward_sidecar import security
from stateward_sidecar.archive.objects.fetch import Fetcher, Seen
from stateward_sidecar.archive.objects.heads import is_unused, seal_head, tombstone
from stateward_sidecar.archive.objects.holds import ArchiveState, Name, row_of
from stateward_sidecar.archive.objects.image import part_refs
from stateward_sidecar.archive.own.reconcile import Finisher, Reconciler, set_back
from stateward_sidecar.archive.own.takeover import ROUNDS, Attacher
from stateward_sidecar.archive.requests.metered import Unclear
from stateward_sidecar.archive.requests.places import Place, slice_names
from stateward_sidecar.archive.ship.locked import LockedThreads, Opened
from stateward_sidecar.archive.ship.ship import Shipper
from stateward_sidecar.bucket.base import ObjectChanged
from stateward_sidecar.errors import (
    ArchiveUnavailable,
    Corrupt,
    KeyUnavailable,
    Locked,
    NewerFormat,
    NotOwner,
    ThreadNotFound,
)
from stateward_sidecar.security import DELETED
from stateward_sidecar.storage.namespacekeys import NamespaceKeys
from stateward_sidecar.store.blobs.blobrows import list_blobs
from stateward_sidecar.store.journal.admitting import check_deletion
from stateward_sidecar.store.kinds.unchanged import check_unchanged
from stateward_sidecar.store.thread.thread import Thread, ThreadDraft
from stateward_sidecar.store.thread.threads import is_orphans
from stateward_sidecar.store.thread.times import expire_second, has_expired
from stateward_sidecar.store.travel.install import CopyGone
from stateward_sidecar.telemetry import log
from stateward_sidecar.tracebacks import told


class Gone(Exception):
    """The copy on this disk was deleted or replaced meanwhile; the archive says what there is."""


class Remover:
    """Runs on the archive's threads. The store deletes the copy on this disk afterwards."""

    def __init__(
        self, state: ArchiveState, fetcher: Fetcher, reconciler: Reconciler, attacher: Attacher, shipper: Shipper
    ) -> None:
        self._reconciler = reconciler
        self._shipper = shipper
        self._state = state
        self._fetcher = fetcher
        self._attacher = attacher
        self.finisher = Finisher(state, fetcher)
        self._locked = LockedThreads(state, fetcher)

    def remove(self, request: DeleteThreadRequest) -> bytes:
        """Makes a thread unreadable in the archive. Raises NotOwner, VersionMismatch, ArchiveUnavailable.

        Returns the uid of that thread: the store deletes this thread on the disk, and no other. Empty = the archive has
        nothing to delete, because the thread does not exist, is an orphan, or has another uid than expected.
        """
        name: Name = request.namespace, request.thread
        with self._state.locks.of(name):
            for _ in range(ROUNDS):
                with suppress(Gone, Opened):
                    try:
                        with self.pinned(name):
                            return self._remove(name, request)
                    except Locked as error:
                        return self._locked.remove(name, request, error)
        raise ArchiveUnavailable(f"thread {name[1]!r} was deleted on this disk at each attempt; try again")

    def pinned(self, name: Name) -> AbstractContextManager[None]:
        """Keeps a held thread that is open so during a block. Raises Locked."""
        thread = self._local(name)
        if thread is None or not thread.identity.is_held:
            return nullcontext()
        return self._state.context.keystore.held.pinned(thread.identity.uid)

    def _remove(self, name: Name, request: DeleteThreadRequest) -> bytes:
        thread = self._local(name)
        if thread is not None and thread.access == THREAD_ACCESS_ORPHAN:
            return b""
        try:
            self._attacher.own(name, must_exist=True)
        except ThreadNotFound:
            return self._finish(name, request)
        except NotOwner:
            if self._is_other(name, request):
                return b""
            raise
        if not self._is_current(name):
            raise Gone
        thread = self._local(name)
        if thread is None:
            raise Gone
        if request.options.expected_uid not in ("", thread.identity.uid_text):
            return b""

        def check(live: Thread) -> None:
            check_deletion(self._state.store.context, ThreadDraft(live), request.options)
            with self._state.context.engine.read() as txn:
                check_unchanged(txn, live, request)

        self.end(thread, check)
        return thread.identity.uid

    def _is_current(self, name: Name) -> bool:
        """Reads HEAD, and returns whether the thread here is the one that the archive has. While it was idle here, it
        may have been deleted elsewhere and made again. Raises NotOwner, ArchiveUnavailable."""
        try:
            return self._attacher.confirm(name)
        except NewerFormat:
            raise
        except Corrupt:
            return True  # the tombstone takes the place of what cannot be read

    def _is_other(self, name: Name, request: DeleteThreadRequest) -> bool:
        """Returns whether the thread that another sidecar owns is not the one to delete. Raises ArchiveUnavailable."""
        namespace = self._state.keys.find_namespace(name[0]) if request.options.expected_uid else None
        if namespace is None:
            return False
        seen = self._fetcher.look(namespace, self._state.place(namespace, name[1]), with_key=False)
        return seen is not None and seen.head.uid.hex() != request.options.expected_uid

    def _finish(self, name: Name, request: DeleteThreadRequest) -> bytes:
        """Finishes an earlier deletion that failed, was interrupted, or is still deleting objects in the background.
        Returns the uid of the thread that it deleted; empty if nothing was left to do. Raises ArchiveUnavailable."""
        namespace = self._state.keys.find_namespace(name[0]) if not is_orphans(name[1]) else None
        if namespace is None:
            return b""
        place = self._state.place(namespace, name[1])
        grave = self._fetcher.look(namespace, place, with_key=False)
        if grave is None or not grave.head.deleted:
            return b""
        if not is_unused(grave.head):
            self.finisher.delete_orphans(grave.head.uid)
        if grave.head.cleared:
            return b""
        self.finisher.finish(namespace, place, grave)
        return grave.head.uid if request.options.expected_uid in ("", grave.head.uid.hex()) else b""

    def end(self, thread: Thread, check: Callable[[Thread], None]) -> None:
        """Deletes a thread that this process owns, unless ``check`` raises. Raises NotOwner, Gone.

        The caller holds the lock of the name. ``check`` gets the thread as it is, and again when no write can pass any
        more, so that nothing that was saved in between is deleted unchecked.
        """
        self._close(thread, check)
        try:
            self._bury(thread)
        except Exception:
            hold = self._state.holds.get(thread.number)
            if hold is not None and not hold.is_rolled_back:
                # The tombstone may have been written, or may still be. No write passes before HEAD has been read,
                # because the deletion would remove what is saved now.
                del self._state.holds[thread.number]
            raise

    def _close(self, thread: Thread, check: Callable[[Thread], None]) -> None:
        """Stops all writes to the thread, also after a crash."""
        state = self._state
        while (hold := state.holds.get(thread.number)) is not None:
            live = state.store.threads.in_memory(thread.number) or thread
            check(live)
            if hold.is_rolled_back:
                return  # nothing of it can be archived; the deletion removes what is saved meanwhile
            # If this process ends here, the copy must not be ahead of HEAD.
            self._shipper.ship(hold, keeps=True)
            live = state.store.threads.in_memory(thread.number) or live
            if live.is_deleted:  # it was deleted on this disk meanwhile: nothing is left to ship or to close
                state.holds.pop(thread.number, None)
                raise Gone
            hold = state.holds.get(thread.number)
            if hold is None:
                return
            if state.orphans.release(live, hold.head.tip_sequence, row_of(hold.head, THREAD_ACCESS_REMOTE)):
                try:
                    check(state.store.threads.in_memory(thread.number) or live)
                except Exception:
                    self._reconciler.take_back(hold)
                    raise
                return

    def _bury(self, thread: Thread) -> None:
        state, identity = self._state, thread.identity
        hold = state.holds.get(thread.number)
        if hold is None:
            raise self._taken(thread)
        seen: Seen | None = Seen(hold.head, hold.etag, None)
        if not hold.is_verified or hold.is_rolled_back:
            seen = self._look(thread, hold.place)
        grave: Seen | None = None
        while grave is None and seen is not None and not seen.head.deleted and seen.head.uid == identity.uid:
            head = tombstone(seen.head, state.boot_id, state.options.owner_id, state.now_us())
            try:
                etag = state.wire.replace(
                    hold.place.head, seal_head(identity.namespace_keys, hold.place, head), seen.etag
                )
                grave = Seen(head, etag, None)
            except (ObjectChanged, Unclear):
                found = self._look(thread, hold.place)
                if (
                    found is not None
                    and found.head.uid == identity.uid
                    and not found.head.deleted
                    and (found.head.boot_id != state.boot_id)
                ):
                    raise self._taken(thread) from None
                seen = found
        if grave is not None and seen is not None:
            with state.context.engine.read() as txn:
                blobs = {bytes(row.record.blob_id): row.record.stored_bytes for row in list_blobs(txn, identity)}
            self.clear(identity.namespace_keys, hold.place, seen.head, blobs, grave)
        else:  # HEAD may belong to the next thread of that name, whose key and objects stay
            epoch = hold.head.created_epoch
            # If the bucket lost this thread, the next one may have begun in the same epoch. Then the key is its key.
            if seen is None or seen.head.uid == identity.uid or seen.head.created_epoch != epoch:
                state.keys.destroy_thread(hold.place, epoch)
            if seen is not None and seen.head.deleted:  # by others, or by a write of ours whose answer was lost
                self.finisher.finish(identity.namespace_keys, hold.place, seen)
        state.holds.pop(thread.number, None)
        self.finisher.delete_orphans(identity.uid)

    def _look(self, thread: Thread, place: Place) -> Seen | None:
        """Reads HEAD. Raises ArchiveUnavailable if the whole archive is away: the thread would come back with it."""
        seen = self._reconciler.look(thread, place)
        if seen is None:
            self._state.wire.check_there()
            seen = self._reconciler.look(thread, place)  # the directory may be mounted again
        return seen

    @staticmethod
    def _taken(thread: Thread) -> NotOwner:
        return NotOwner(f"another sidecar took thread {thread.name!r} meanwhile", thread=thread.name)

    def clear(
        self, namespace: NamespaceKeys, place: Place, head: ArchiveHead, blobs: Mapping[bytes, int], grave: Seen
    ) -> None:
        """Destroys the key of a thread that has a tombstone, ``grave``. Deletes in the background what its last HEAD
        named, and ``blobs``, their sizes by id. Raises ArchiveUnavailable; then whoever finds the tombstone finishes
        the deletion."""
        state = self._state
        state.keys.destroy_thread(place, head.created_epoch, grave.head.epoch)
        state.keyless[place] = grave.head.write_id
        self.finisher.begin(place)
        state.wire.later(partial(self._unlink, namespace, place, head, blobs, grave))

    def _unlink(
        self, namespace: NamespaceKeys, place: Place, head: ArchiveHead, blobs: Mapping[bytes, int], grave: Seen
    ) -> None:
        try:
            names = [name for blob_id, size in blobs.items() for name in slice_names(place.blob(blob_id), size)]
            refs = list(head.objects)
            if head.HasField("index"):
                refs += [*self._fetcher.indexed(place, head.index), head.index]
            refs += [item.object for item in head.garbage]
            refs += part_refs(head)
            names += [name for ref in refs for name in slice_names(place.object(ref), ref.size_bytes)]
            self.finisher.delete(names)
            self.finisher.mark(namespace, place, grave)
        except (ArchiveUnavailable, Corrupt) as error:
            log.warning("objects of a deleted thread are left, and nobody can read them", error=told(error))
        finally:
            if self._state.keyless.get(place) == grave.head.write_id:
                del self._state.keyless[place]

    def _local(self, name: Name) -> Thread | None:
        with self._state.context.engine.read() as txn:
            return self._state.store.threads.find(txn, *name)


class _Moved(Exception):
    """A save or a change of the TTL came before the thread was closed, so it has not expired."""


class Expirer:
    """Runs on the store's sweeping thread. May wait for the bucket."""

    def __init__(
        self, state: ArchiveState, fetcher: Fetcher, reconciler: Reconciler, attacher: Attacher, remover: Remover
    ) -> None:
        self._state = state
        self._fetcher = fetcher
        self._reconciler = reconciler
        self._attacher = attacher
        self._remover = remover

    def expire(self, name: Name, uid: bytes, second: int) -> bool:
        """Makes a thread unreadable in the archive if it expires at this second.

        Returns whether the store may delete what is here. False = it must not be deleted now, or somebody else must do
        it. Raises ArchiveUnavailable, Corrupt, KeyUnavailable and others if that could not be found out.
        """
        with self._state.locks.of(name), self._remover.pinned(name):
            thread = self._local(name)
            if thread is None or thread.identity.uid != uid or expire_second(thread.head) != second:
                return False
            if thread.access == THREAD_ACCESS_REMOTE:
                return self._expire_copy(thread, second)
            return self._expire_own(name, thread, second)

    # -- threads that this process owns ---------------------------------------------------------------------------

    def _expire_own(self, name: Name, thread: Thread, second: int) -> bool:
        state = self._state
        if thread.number not in state.holds:
            if thread.access != THREAD_ACCESS_OWNED:  # it was written without an archive
                try:
                    self._attacher.own(name, must_exist=True)
                except ThreadNotFound:
                    return False
            elif not self._attacher.resume(thread):
                return False  # it is a copy now, or gone; the next sweep reads HEAD
        hold = state.holds.get(thread.number)
        if hold is None:
            return False
        if hold.is_rolled_back:  # another sidecar may have continued from the older HEAD
            raise set_back(thread.name)

        def check(live: Thread) -> None:
            if expire_second(live.head) != second or not has_expired(live.head, state.now_us()):
                raise _Moved

        try:
            self._remover.end(thread, check)
        except (Gone, _Moved):
            return False
        except NotOwner:
            hold = state.holds.get(thread.number)
            if hold is not None:  # another sidecar took it while it was idle here; it becomes a copy
                seen = self._reconciler.look(thread, hold.place)
                self._reconciler.settle(hold.thread, hold.head, hold.place, seen)
            return False
        return True

    # -- copies of threads of others ------------------------------------------------------------------------------

    def _expire_copy(self, thread: Thread, second: int) -> bool:
        state, identity = self._state, thread.identity
        assert thread.archive is not None
        known, place = thread.archive.head, state.place(identity.namespace_keys, thread.name)
        for _ in range(ROUNDS):
            seen = self._fetcher.look(identity.namespace_keys, place, with_key=False)
            if seen is None:
                state.wire.check_there()
                raise Corrupt("its HEAD is missing in the archive", thread.name)
            head = seen.head
            if head.uid != identity.uid or (head.deleted and head.epoch < known.epoch):
                self._reconciler.settle(thread, known, place, seen)
                return False
            if head.deleted:
                self._remover.finisher.finish(identity.namespace_keys, place, seen)
                self._remover.finisher.delete_orphans(identity.uid)
                return True
            if head.epoch < known.epoch:
                raise Corrupt("its HEAD is older than the copy on this disk: the bucket was set back", thread.name)
            if head.expire_second != second:
                with suppress(CopyGone):
                    self._attacher.refresh(identity.namespace_keys, place, seen, thread)
                return False
            if not head.detached and not state.is_own(head):
                return False
            if self._bury(thread, place, seen):
                return True
        raise ArchiveUnavailable(f"others changed thread {thread.name!r} at each attempt; the next sweep tries again")

    def _bury(self, thread: Thread, place: Place, seen: Seen) -> bool:
        """Replaces this HEAD by a tombstone. Returns False if HEAD has changed."""
        state, namespace = self._state, thread.identity.namespace_keys
        head = tombstone(seen.head, state.boot_id, state.options.owner_id, state.now_us())
        try:
            grave = Seen(head, state.wire.replace(place.head, seal_head(namespace, place, head), seen.etag), None)
        except (ObjectChanged, Unclear):
            found = self._fetcher.look(namespace, place, with_key=False)
            if found is None or found.head.write_id != head.write_id:
                return False
            grave = found
        security.note(DELETED, "an expired thread was deleted", uid=thread.identity.uid_text, everywhere=True)
        self._clear(thread, place, seen, grave)
        self._remover.finisher.delete_orphans(thread.identity.uid)
        return True

    def _clear(self, thread: Thread, place: Place, seen: Seen, grave: Seen) -> None:
        """Destroys the key and deletes what HEAD named."""
        with self._state.context.engine.read() as txn:
            blobs = {bytes(row.record.blob_id): row.record.stored_bytes for row in list_blobs(txn, thread.identity)}
        with suppress(Corrupt, KeyUnavailable, ArchiveUnavailable):  # garbage collection finds what is left
            if seen.head.image:  # the copy here may be older than HEAD
                image = self._fetcher.image(place, seen.head, thread.identity.cipher)
                blobs |= {bytes(row.record.blob_id): row.record.stored_bytes for row in image.blobs}
        self._remover.clear(thread.identity.namespace_keys, place, seen.head, blobs, grave)

    def _local(self, name: Name) -> Thread | None:
        with self._state.context.engine.read() as txn:
            return self._state.store.threads.find(txn, *name)
