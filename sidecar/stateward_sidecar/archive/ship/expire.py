"""Deletes expired threads in the archive. The store's sweep asks for it, and then deletes what is on this disk.

owned here          closed first, so that no save can extend its life; then deleted as by a caller
a copy, detached    nobody owns it: a tombstone replaces exactly this HEAD. An attach, or a faster deletion, changes
                    HEAD, and the conditional write fails. So no thread in use is deleted, whatever the clocks say, and
                    two daemons may try at the same time
a copy, held        its owner deletes it; a later sweep reads HEAD again, in case the owner gave it up
a copy, outdated    HEAD has another expiry, because the thread continued elsewhere: the copy is renewed
a copy, deleted     what is here goes; if the deletion was interrupted, it is finished first
"""

from __future__ import annotations

from contextlib import suppress

from stateward.v1.thread_pb2 import THREAD_ACCESS_OWNED, THREAD_ACCESS_REMOTE
from stateward_sidecar.archive.objects.desk import Desk, Name
from stateward_sidecar.archive.objects.fetch import Fetcher, Seen
from stateward_sidecar.archive.objects.heads import seal_head, tombstone
from stateward_sidecar.archive.own.settle import Settler, set_back
from stateward_sidecar.archive.own.takeover import ROUNDS, Attacher
from stateward_sidecar.archive.ship.delete import Gone, Remover
from stateward_sidecar.archive.wire.places import Place
from stateward_sidecar.archive.wire.wire import Unclear
from stateward_sidecar.bucket.errors import ObjectChanged
from stateward_sidecar.errors import ArchiveUnavailable, Corrupt, KeyUnavailable, NotOwner, ThreadNotFound
from stateward_sidecar.store.blobs.blobrows import list_blobs
from stateward_sidecar.store.thread.thread import Thread
from stateward_sidecar.store.thread.times import expire_second, has_expired
from stateward_sidecar.store.travel.install import CopyGone
from stateward_sidecar.telemetry import log


class _Moved(Exception):
    """A save or a change of the TTL came before the thread was closed, so it has not expired."""


class Expirer:
    """Runs on the store's sweeping thread. May wait for the bucket."""

    def __init__(self, desk: Desk, fetcher: Fetcher, settler: Settler, attacher: Attacher, remover: Remover) -> None:
        self._desk = desk
        self._fetcher = fetcher
        self._settler = settler
        self._attacher = attacher
        self._remover = remover

    def expire(self, name: Name, uid: bytes, second: int) -> bool:
        """Makes a thread unreadable in the archive if it expires at this second.

        Returns whether the store may delete what is here. False = it must not be deleted now, or somebody else must do
        it. Raises ArchiveUnavailable, Corrupt, KeyUnavailable and others if that could not be found out.
        """
        with self._desk.locks.of(name):
            thread = self._local(name)
            if thread is None or thread.identity.uid != uid or expire_second(thread.head) != second:
                return False
            if thread.access == THREAD_ACCESS_REMOTE:
                return self._expire_copy(thread, second)
            return self._expire_own(name, thread, second)

    # -- threads that this process owns ---------------------------------------------------------------------------

    def _expire_own(self, name: Name, thread: Thread, second: int) -> bool:
        desk = self._desk
        if thread.number not in desk.holds:
            if thread.access != THREAD_ACCESS_OWNED:  # it was written without an archive
                try:
                    self._attacher.own(name, must_exist=True)
                except ThreadNotFound:
                    return False
            elif not self._attacher.resume(thread):
                return False  # it is a copy now, or gone; the next sweep reads HEAD
        hold = desk.holds.get(thread.number)
        if hold is None:
            return False
        if hold.is_rolled_back:  # another sidecar may have continued from the older HEAD
            raise set_back(thread.name)

        def check(live: Thread) -> None:
            if expire_second(live.head) != second or not has_expired(live.head, desk.now_us()):
                raise _Moved

        try:
            self._remover.end(thread, check)
        except (Gone, _Moved):
            return False
        except NotOwner:
            hold = desk.holds.get(thread.number)
            if hold is not None:  # another sidecar took it while it was idle here; it becomes a copy
                seen = self._settler.look(thread, hold.place)
                self._settler.settle(hold.thread, hold.head, hold.place, seen)
            return False
        return True

    # -- copies of threads of others ------------------------------------------------------------------------------

    def _expire_copy(self, thread: Thread, second: int) -> bool:
        desk, identity = self._desk, thread.identity
        assert thread.archive is not None
        known, place = thread.archive.head, desk.place(identity.namespace_keys, thread.name)
        for _ in range(ROUNDS):
            seen = self._fetcher.look(identity.namespace_keys, place, with_key=False)
            if seen is None:
                desk.wire.check_there()
                raise Corrupt("its HEAD is missing in the archive", thread.name)
            head = seen.head
            if head.uid != identity.uid or (head.deleted and head.epoch < known.epoch):
                self._settler.settle(thread, known, place, seen)
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
            if not head.detached and not desk.is_own(head):
                return False
            if self._bury(thread, place, seen):
                return True
        raise ArchiveUnavailable(f"others changed thread {thread.name!r} at each attempt; the next sweep tries again")

    def _bury(self, thread: Thread, place: Place, seen: Seen) -> bool:
        """Replaces this HEAD by a tombstone. Returns False if HEAD has changed."""
        desk, namespace = self._desk, thread.identity.namespace_keys
        head = tombstone(seen.head, desk.boot_id, desk.options.owner_id, desk.now_us())
        try:
            grave = Seen(head, desk.wire.replace(place.head, seal_head(namespace, place, head), seen.etag), None)
        except (ObjectChanged, Unclear):
            found = self._fetcher.look(namespace, place, with_key=False)
            if found is None or found.head.write_id != head.write_id:
                return False
            grave = found
        log.info("deleted an expired thread", uid=thread.identity.uid_text)
        self._clear(thread, place, seen, grave)
        self._remover.finisher.delete_orphans(thread.identity.uid)
        return True

    def _clear(self, thread: Thread, place: Place, seen: Seen, grave: Seen) -> None:
        """Destroys the key and deletes what HEAD named."""
        with self._desk.context.engine.read() as txn:
            blobs = {bytes(row.record.blob_id): row.record.stored_bytes for row in list_blobs(txn, thread.identity)}
        with suppress(Corrupt, KeyUnavailable, ArchiveUnavailable):  # garbage collection finds what is left
            if seen.head.image:  # the copy here may be older than HEAD
                image = self._fetcher.image(place, seen.head, thread.identity.cipher)
                blobs |= {bytes(row.record.blob_id): row.record.stored_bytes for row in image.blobs}
        self._remover.clear(thread.identity.namespace_keys, place, seen.head, blobs, grave)

    def _local(self, name: Name) -> Thread | None:
        with self._desk.context.engine.read() as txn:
            return self._desk.store.threads.find(txn, *name)
