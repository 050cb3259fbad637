"""Finishes deletions: destroys the key of a thread that has a tombstone, and deletes the thread's objects.

The process that puts a tombstone does both, and then the tombstone says ``cleared``. If the process fails or ends
before that, whoever finds the tombstone does the rest:

    a retry of the deletion     before it is answered, also while the first deletion still deletes objects
    an expiry                   before the copy on this disk is deleted
    a new thread of the name    the key before the new HEAD, which takes the tombstone's place; the objects afterwards
    a read                      in the background

A tombstone names no objects, so they are listed. HEAD is read again, or replaced, after the listing. While it is the
same tombstone, no later thread of the name had an object when the listing ended.
"""

from __future__ import annotations

from functools import partial

from stateward.v1.thread_service_pb2 import DeleteThreadRequest
from stateward_sidecar.archive.objects.desk import Desk
from stateward_sidecar.archive.objects.fetch import NEVER, Fetcher, Seen
from stateward_sidecar.archive.objects.heads import seal_head, tombstone
from stateward_sidecar.archive.wire.places import Place, is_blob, origin_of
from stateward_sidecar.archive.wire.wire import PARALLEL, Unclear
from stateward_sidecar.bucket.errors import ObjectChanged
from stateward_sidecar.storage.keystore import NamespaceKeys
from stateward_sidecar.storage.queue import Write

# After a failure, no read starts again for so long.
AGAIN_S = 60.0
FINISHING_MAX = 4096


class Finisher:
    """Runs on the archive's threads."""

    def __init__(self, desk: Desk, fetcher: Fetcher) -> None:
        self._desk = desk
        self._fetcher = fetcher

    def finish(self, namespace: NamespaceKeys, place: Place, grave: Seen) -> None:
        """Does what is left to do of a deletion. ``grave`` is its tombstone. Raises ArchiveUnavailable."""
        head = grave.head
        if head.cleared:
            return
        self._desk.keys.destroy_thread(place, head.created_epoch)
        listed = self._list(place, grave)
        again = self._fetcher.look(namespace, place, with_key=False)
        if again is None or again.head.write_id != head.write_id:
            return  # a new thread has the name, or another sidecar has finished
        self.delete(listed)
        self.mark(namespace, place, grave)

    def finish_later(self, namespace: NamespaceKeys, place: Place, grave: Seen) -> None:
        """Does the same in the background, unless it is under way or failed a moment ago."""
        desk = self._desk
        if not grave.head.cleared and desk.finishing.get(place, NEVER) < desk.wire.now():
            self.begin(place)
            desk.wire.later(partial(self._finish, namespace, place, grave))

    def begin(self, place: Place) -> None:
        """Notes that this process finishes a deletion."""
        finishing = self._desk.finishing
        finishing.pop(place, None)
        finishing[place] = self._desk.wire.now() + AGAIN_S
        if len(finishing) > FINISHING_MAX:
            finishing.pop(next(iter(finishing)), None)

    def _finish(self, namespace: NamespaceKeys, place: Place, grave: Seen) -> None:
        self.finish(namespace, place, grave)
        self._desk.finishing.pop(place, None)

    def make_way(self, place: Place, grave: Seen) -> list[str]:
        """Destroys the key before a new thread takes the tombstone's place. Raises ArchiveUnavailable.

        Returns the objects to delete once the new HEAD has replaced exactly this tombstone.
        """
        if grave.head.cleared or self.is_answered(place, grave):
            return []
        self._desk.keys.destroy_thread(place, grave.head.created_epoch)
        return self._list(place, grave)

    def is_answered(self, place: Place, grave: Seen) -> bool:
        """Returns whether this process has destroyed the key, and deletes the objects in the background."""
        return self._desk.keyless.get(place) == grave.head.write_id

    def _list(self, place: Place, grave: Seen) -> list[str]:
        """Returns the objects of the deleted thread, and of earlier ones of its name, as far as they are left."""
        listed = (key for key, _ in self._desk.wire.walk(place.prefix))
        return [key for key in listed if is_blob(key) or _is_until(key, grave.head.epoch)]

    def delete(self, keys: list[str]) -> None:
        """Deletes objects. Raises ArchiveUnavailable."""
        wire = self._desk.wire
        for start in range(0, len(keys), PARALLEL):
            wire.together(*(partial(wire.delete, key) for key in keys[start : start + PARALLEL]))

    def mark(self, namespace: NamespaceKeys, place: Place, grave: Seen) -> None:
        """Writes into a tombstone that nothing is left to do, unless HEAD has changed. Raises ArchiveUnavailable."""
        desk = self._desk
        head = tombstone(grave.head, desk.boot_id, desk.options.owner_id, desk.now_us(), cleared=True)
        try:
            desk.wire.replace(place.head, seal_head(namespace, place, head), grave.etag)
        except (ObjectChanged, Unclear):
            return

    def delete_orphans(self, uid: bytes) -> None:
        """Deletes the orphans of a deleted thread on this disk. They have its key."""
        store = self._desk.store
        for number in self._desk.orphans.of(uid):
            with store.context.engine.read() as txn:
                orphan = store.threads.by_number(txn, number)
            if orphan is not None:
                request = DeleteThreadRequest(
                    namespace=orphan.identity.namespace, thread=orphan.name, allow_missing=True
                )
                write = Write(run=store.deleter.delete(request), frees_space=True)
                store.context.writer.submit(write, wait=True).wait()


def _is_until(key: str, epoch: int) -> bool:
    found = origin_of(key)
    return found is not None and found.epoch <= epoch
