"""Acts on what a HEAD means for the thread on this disk, and finishes deletions.

Finishes deletions: destroys the key of a thread that has a tombstone, and deletes the thread's objects.

The process that puts a tombstone does both, and then the tombstone says ``cleared``. If the process fails or ends
before that, whoever finds the tombstone does the rest:

    a retry of the deletion     before it is answered, also while the first deletion still deletes objects
    an expiry                   before the copy on this disk is deleted
    a new thread of the name    the key before the new HEAD, which takes the tombstone's place; the objects afterwards
    a read                      in the background

A tombstone names no objects, so they are listed. HEAD is read again, or replaced, after the listing. While it is the
same tombstone, no later thread of the name had an object when the listing ended.

Acts on what a HEAD means for the thread on this disk (see ``judge``). Callers hold the lock of the thread's name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from stateward.storage.v1.archive_pb2 import ArchiveHead, ArchiveRow, ObjectRef
from stateward.v1.thread_pb2 import THREAD_ACCESS_ORPHAN, THREAD_ACCESS_OWNED, THREAD_ACCESS_REMOTE
from stateward.v1.thread_service_pb2 import DeleteThreadRequest
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar import security
from stateward_sidecar.archive.objects.fetch import NEVER, Fetcher, Missing, Seen
from stateward_sidecar.archive.objects.heads import check_writable, seal_head, tombstone
from stateward_sidecar.archive.objects.holds import ArchiveState, Hold, row_of, row_of_hold
from stateward_sidecar.archive.objects.judge import Judgement, Local, Verdict, judge
from stateward_sidecar.archive.objects.keys import ThreadKey
from stateward_sidecar.archive.objects.packs import is_pack
from stateward_sidecar.archive.requests.metered import PARALLEL, Unclear
from stateward_sidecar.archive.requests.places import Place, is_blob, origin_of
from stateward_sidecar.bucket.base import ObjectChanged
from stateward_sidecar.codec.entry import sequence_of, unpack
from stateward_sidecar.errors import Corrupt, Locked, NewerFormat
from stateward_sidecar.measures import events
from stateward_sidecar.security import DELETED, TAKEN
from stateward_sidecar.storage import layout
from stateward_sidecar.storage.namespacekeys import NamespaceKeys
from stateward_sidecar.storage.queue import Batch, Write
from stateward_sidecar.store.clean.locked import find_locked
from stateward_sidecar.store.journal.finding import fenced
from stateward_sidecar.store.kinds.unchanged import is_own
from stateward_sidecar.store.thread.thread import Thread, write_archive_row
from stateward_sidecar.store.thread.threads import not_found
from stateward_sidecar.store.travel.fetched import is_entry
from stateward_sidecar.store.travel.install import CopyGone
from stateward_sidecar.telemetry import log

# After a failure, no read starts again for so long.
AGAIN_S = 60.0
FINISHING_MAX = 4096


class Finisher:
    """Runs on the archive's threads."""

    def __init__(self, state: ArchiveState, fetcher: Fetcher) -> None:
        self._state = state
        self._fetcher = fetcher

    def finish(self, namespace: NamespaceKeys, place: Place, grave: Seen) -> None:
        """Does what is left to do of a deletion. ``grave`` is its tombstone. Raises ArchiveUnavailable."""
        head = grave.head
        if head.cleared:
            return
        self._state.keys.destroy_thread(place, head.created_epoch, head.epoch)
        listed = self._list(place, grave)
        again = self._fetcher.look(namespace, place, with_key=False)
        if again is None or again.head.write_id != head.write_id:
            return  # a new thread has the name, or another sidecar has finished
        self.delete(listed)
        self.mark(namespace, place, grave)

    def finish_later(self, namespace: NamespaceKeys, place: Place, grave: Seen) -> None:
        """Does the same in the background, unless it is under way or failed a moment ago."""
        state = self._state
        if not grave.head.cleared and state.finishing.get(place, NEVER) < state.wire.now():
            self.begin(place)
            state.wire.later(partial(self._finish, namespace, place, grave))

    def begin(self, place: Place) -> None:
        """Notes that this process finishes a deletion."""
        finishing = self._state.finishing
        finishing.pop(place, None)
        finishing[place] = self._state.wire.now() + AGAIN_S
        if len(finishing) > FINISHING_MAX:
            finishing.pop(next(iter(finishing)), None)

    def _finish(self, namespace: NamespaceKeys, place: Place, grave: Seen) -> None:
        self.finish(namespace, place, grave)
        self._state.finishing.pop(place, None)

    def make_way(self, place: Place, grave: Seen) -> list[str]:
        """Destroys the key before a new thread takes the tombstone's place. Raises ArchiveUnavailable.

        Returns the objects to delete once the new HEAD has replaced exactly this tombstone.
        """
        if grave.head.cleared or self.is_answered(place, grave):
            return []
        self._state.keys.destroy_thread(place, grave.head.created_epoch, grave.head.epoch)
        return self._list(place, grave)

    def is_answered(self, place: Place, grave: Seen) -> bool:
        """Returns whether this process has destroyed the key, and deletes the objects in the background."""
        return self._state.keyless.get(place) == grave.head.write_id

    def _list(self, place: Place, grave: Seen) -> list[str]:
        """Returns the objects of the deleted thread, and of earlier ones of its name, as far as they are left."""
        listed = (key for key, _ in self._state.wire.walk(place.prefix))
        return [key for key in listed if is_blob(key) or _is_until(key, grave.head.epoch)]

    def delete(self, keys: list[str]) -> None:
        """Deletes objects. Raises ArchiveUnavailable."""
        wire = self._state.wire
        for start in range(0, len(keys), PARALLEL):
            wire.together(*(partial(wire.delete, key) for key in keys[start : start + PARALLEL]))

    def mark(self, namespace: NamespaceKeys, place: Place, grave: Seen) -> None:
        """Writes into a tombstone that nothing is left to do, unless HEAD has changed. Raises ArchiveUnavailable."""
        state = self._state
        head = tombstone(grave.head, state.boot_id, state.options.owner_id, state.now_us(), cleared=True)
        try:
            state.wire.replace(place.head, seal_head(namespace, place, head), grave.etag)
        except (ObjectChanged, Unclear):
            return

    def delete_orphans(self, uid: bytes) -> None:
        """Deletes the orphans of a deleted thread on this disk. They have its key."""
        store = self._state.store
        for number in self._state.orphans.of(uid):
            try:
                with store.context.engine.read() as txn:
                    orphan = store.threads.by_number(txn, number)
            except Locked:
                with store.context.keystore.held.ending(uid) as is_ours:
                    if is_ours:  # else a call has opened it, and finds the tombstone
                        self.delete_locked(uid, number)
                continue
            if orphan is not None:
                request = DeleteThreadRequest(
                    namespace=orphan.identity.namespace, thread=orphan.name, allow_missing=True
                )
                write = Write(run=store.deleter.delete(request), frees_space=True)
                store.context.writer.submit(write, wait=True).wait()


    def delete_locked(self, uid: bytes, number: int = 0) -> None:
        """Deletes a locked thread on this disk that the archive has deleted, or one line of it. Does nothing if there
        is none. Nobody opens it meanwhile."""
        store = self._state.store
        found = find_locked(store.context, uid, number)
        if found is not None:
            write = Write(run=store.deleter.delete_locked(found, "request"), frees_space=True)
            store.context.writer.submit(write, wait=True).wait()


def _is_until(key: str, epoch: int) -> bool:
    found = origin_of(key)
    return found is not None and found.epoch <= epoch


class Reconciler:
    """Brings this disk in line with the archive after HEAD was read."""

    def __init__(self, state: ArchiveState, fetcher: Fetcher) -> None:
        self._state = state
        self._fetcher = fetcher
        self._finisher = Finisher(state, fetcher)

    def look(self, thread: Thread, place: Place) -> Seen | None:
        """Reads HEAD of a thread on this disk. Raises ArchiveUnavailable, Corrupt, and NewerFormat.

        After NewerFormat, this process does not write the thread, and nobody reads it here before HEAD can be read.
        """
        try:
            return self._fetcher.look(thread.identity.namespace_keys, place, with_key=False)
        except NewerFormat as error:
            self._give_way(thread, error)
            raise

    def _give_way(self, thread: Thread, error: NewerFormat) -> None:
        """A newer version wrote HEAD. What this disk has stays as it is until HEAD can be read: only HEAD says what of
        it is history."""
        state = self._state
        error.locate(thread.name)
        hold = state.holds.pop(thread.number, None)
        if thread.archive is not None and thread.access != THREAD_ACCESS_ORPHAN and error.is_proven:
            row = ArchiveRow()
            row.CopyFrom(thread.archive)
            if hold is not None:
                row = row_of_hold(hold)
            if row.newer_format != error.format:
                log.error(
                    "a newer version wrote the HEAD of a thread: it is neither read nor written here until this sidecar"
                    " is upgraded", uid=thread.identity.uid_text, format=error.format,
                )  # fmt: skip
                row.newer_format = error.format
                self.write_row(thread, row)
        state.waiters.failed(thread.number, error)

    def settle(
        self, thread: Thread, known: ArchiveHead, place: Place, seen: Seen | None, *, waits: bool = True
    ) -> Hold | None:
        """Compares HEAD with this disk and acts on the result.

        Returns the hold if this process may write the thread afterwards, else None. Raises ArchiveUnavailable, Corrupt
        if more had to be read and could not be. Raises NotOwner while another copy of these data may own the thread,
        unless ``waits`` is False.
        """
        state, identity = self._state, thread.identity
        judgement = self._judge(thread, known, place, seen)
        verdict = judgement.verdict
        if verdict is not Verdict.OURS:
            log.warning("the archive differs from this disk", uid=identity.uid_text, verdict=verdict.value)
        if verdict is Verdict.MISSING:
            state.wire.check_there()
            # The archive is there now, but may not have been when HEAD was read: its directory was mounted meanwhile.
            seen = self.look(thread, place)
            if seen is not None:
                return self.settle(thread, known, place, seen, waits=waits)
        if verdict in (Verdict.ROLLED_BACK, Verdict.MISSING):
            return self._roll_back(thread, known, place, seen, judgement.common_sequence)
        assert seen is not None
        if verdict is Verdict.OURS:
            if waits and seen.head.boot_id in state.former and not seen.head.detached:
                unchanged_s = state.observe(place, seen.head)
                if unchanged_s < state.options.lease_s:
                    raise state.held(thread.name, seen.head, unchanged_s)
            if seen.head.detached and state.orphans.release(
                thread, seen.head.tip_sequence, row_of(seen.head, THREAD_ACCESS_REMOTE)
            ):  # a process gave it up and ended before it wrote the row: any sidecar may take the thread at once
                state.holds.pop(thread.number, None)
                state.waiters.archived(thread.number, seen.head.tip_sequence)
                return None
            return self._hold_on(thread, place, seen)
        if verdict is Verdict.BEHIND:
            return self._pull(thread, place, seen)
        state.holds.pop(thread.number, None)
        if verdict is Verdict.DELETED:
            self._delete(thread)
            if seen.head.deleted:
                self._finisher.finish_later(identity.namespace_keys, place, seen)
        else:
            self._lose(thread, judgement, seen.head)
        return None

    def _hold_on(self, thread: Thread, place: Place, seen: Seen) -> Hold:
        try:
            check_writable(seen.head)
        except NewerFormat as error:  # a newer version of this sidecar wrote it
            self._give_way(thread, error)
            raise
        hold = self._state.hold(thread, place, seen.head, seen.etag, seen.asked_at)
        if thread.is_outdated:  # this sidecar was upgraded, or an older HEAD was put back
            self.write_row(thread, row_of_hold(hold))
        return hold

    def follows(self, thread: Thread, place: Place, seen: Seen) -> bool:
        """Returns True if HEAD continues the copy on this disk, or is at the same entry.

        Else acts and returns False. If HEAD has another line, the copy becomes an orphan. If HEAD is an ancestor of the
        copy and nobody took the thread since this disk wrote HEAD, the thread is ours. Raises Corrupt if the bucket was
        set back and no other sidecar has continued from there.
        """
        assert thread.archive is not None
        head, tip = seen.head, thread.head
        judgement = self._judge(thread, thread.archive.head, place, seen)
        verdict = judgement.verdict
        is_same = (head.tip_sequence, head.tip_digest) == (tip.tip_sequence, tip.tip_digest)
        if is_same or verdict in (Verdict.BEHIND, Verdict.TAKEN):
            return True
        if verdict is Verdict.OURS:
            self.write_row(thread, row_of(head, THREAD_ACCESS_OWNED))
            return False
        if verdict is Verdict.FENCED:
            self._lose(thread, judgement, head)
            return False
        raise self._set_back(thread, judgement.common_sequence)

    def end_copy(self, thread: Thread, place: Place, seen: Seen) -> None:
        """Acts on a HEAD that has no thread any more, or another one, than this disk has a copy of. Raises Corrupt if
        the bucket was set back to before this thread: a copy stays a copy, and nobody may write it here."""
        assert thread.archive is not None
        known = thread.archive.head
        verdict = self._judge(thread, known, place, seen).verdict if thread.access == THREAD_ACCESS_REMOTE else None
        if verdict is Verdict.ROLLED_BACK:
            raise self._set_back(thread, 0)
        self.settle(thread, known, place, seen)

    def _set_back(self, thread: Thread, common_sequence: int) -> Corrupt:
        """Marks a copy that is newer than HEAD, for lists, which read only this disk. Returns the error for calls."""
        assert thread.archive is not None
        row = ArchiveRow()
        row.CopyFrom(thread.archive)
        row.rolled_back, row.rolled_back_to = True, common_sequence
        if row != thread.archive:
            self.write_row(thread, row)
        return Corrupt(
            "its HEAD is older than the copy on this disk, because the bucket was set back; to continue from HEAD, "
            "delete only this copy (local_only)", thread.name,
        )  # fmt: skip

    def part(self, thread: Thread, place: Place, seen: Seen) -> None:
        """Sets a copy aside because HEAD's next entry does not continue the copy's newest one."""
        try:
            common, _ = self._newest_shared(thread, place, seen.head, 0, self._tip(thread) - 1)
        except Missing:
            common = 0
        self._lose(thread, Judgement(Verdict.FENCED, common), seen.head)

    def _judge(self, thread: Thread, known: ArchiveHead, place: Place, seen: Seen | None) -> Judgement:
        state, identity = self._state, thread.identity
        local = Local(
            identity.uid, known, self._tip(thread), thread.floor_sequence,
            lambda sequence: state.outbox.digest_at(identity, sequence), state.boots, state.former,
        )  # fmt: skip
        judgement = judge(local, seen.head if seen is not None else None)
        is_open = judgement.verdict in (Verdict.BEHIND, Verdict.FENCED) or not judgement.is_certain
        if seen is not None and is_open:
            return self._look_closer(thread, judgement, place, seen)
        return judgement

    def _look_closer(self, thread: Thread, judgement: Judgement, place: Place, seen: Seen) -> Judgement:
        """Compares entry by entry, because HEAD itself says only where epochs began.

        A disk that was set back may have written entries of its own: then pulling would be wrong. Or all its entries
        may be history: then setting them aside would be wrong. Raises Corrupt if an object is damaged, because the next
        read of it may be whole. If an object is missing, HEAD alone decides; raises Missing if HEAD says BEHIND.
        """
        tip, common = self._tip(thread), judgement.common_sequence
        if seen.head.uid != thread.identity.uid:
            return judgement
        after = common if judgement.is_certain else 0
        try:
            shared, is_parted = self._newest_shared(thread, place, seen.head, after, tip)
            # Differing entries prove more than the HEAD that was known. If all are pruned, the known HEAD decides.
            common = shared if is_parted and not judgement.is_certain else max(common, shared)
        except Missing:
            if judgement.verdict is Verdict.BEHIND:
                raise
        if common < tip:
            return Judgement(Verdict.FENCED, common)
        return Judgement(Verdict.BEHIND if judgement.verdict is Verdict.BEHIND else Verdict.TAKEN, common)

    def _newest_shared(
        self, thread: Thread, place: Place, head: ArchiveHead, after: int, until: int
    ) -> tuple[int, bool]:
        """Returns the newest entry in (after, until] that this disk and the archive share, 0 if there is none; and
        whether a newer entry differs."""
        refs = list(head.objects)
        if head.HasField("index") and head.index.last_sequence > after:
            refs = [*self._fetcher.indexed(place, head.index), *refs]
        packs = [ref for ref in refs if is_pack(ref) and ref.last_sequence > after and ref.first_sequence <= until]
        packs.sort(key=lambda ref: ref.last_sequence, reverse=True)
        is_parted = False
        # The newest first and a few at once, because a history may be larger than memory.
        for theirs in self._entries(place, head, packs):
            for sequence in sorted(theirs, reverse=True):
                ours = self._state.outbox.digest_at(thread.identity, sequence) if after < sequence <= until else b""
                if ours and ours == unpack(theirs[sequence], sequence).header.digest:
                    return sequence, is_parted
                is_parted = is_parted or bool(ours)
        return 0, is_parted

    def _entries(self, place: Place, head: ArchiveHead, packs: Sequence[ObjectRef]) -> Iterator[dict[int, bytes]]:
        """Yields entries by sequence: those of HEAD's tail, then those of each pack. Raises Corrupt."""
        yield {sequence_of(record): record for record in head.tail}
        for _, found in self._fetcher.history(place, packs):
            if isinstance(found, Corrupt):
                raise found
            yield {row.sequence: row.record for row in found if is_entry(row)}

    def _tip(self, thread: Thread) -> int:
        return self._state.outbox.tip(thread.identity)

    def _roll_back(
        self, thread: Thread, known: ArchiveHead, place: Place, seen: Seen | None, archived_sequence: int
    ) -> Hold:
        """Continues to serve from this disk, and ships nothing until a person repairs HEAD. Entries that HEAD lacks
        count as not archived."""
        log.error(
            "HEAD is missing, or older than what was archived: nothing of this thread is archived until its repair",
            uid=thread.identity.uid_text, known_sequence=known.tip_sequence,
            sequence=seen.head.tip_sequence if seen is not None else 0,
        )  # fmt: skip
        etag = seen.etag if seen is not None else ""
        hold = self._state.hold(thread, place, known, etag, rolled_back_to=archived_sequence)
        self.write_row(thread, row_of_hold(hold))
        self._state.waiters.failed(thread.number, set_back(thread.name))
        return hold

    def _pull(self, thread: Thread, place: Place, seen: Seen) -> Hold | None:
        """Installs what HEAD has on top of this disk's copy. Returns None if the copy is gone from this disk."""
        state = self._state
        try:
            seen = self.with_key(thread, seen)
            fetched = self._fetcher.fetch(place, seen, self._tip(thread), for_writer=True)
            incoming = fetched.incoming(thread.identity.namespace_keys, row_of(seen.head, THREAD_ACCESS_OWNED))
            thread = state.installer.install(incoming)
        except CopyGone:
            return None
        return state.hold(thread, place, seen.head, seen.etag, seen.asked_at)

    def with_key(self, thread: Thread, seen: Seen) -> Seen:
        """Returns HEAD with the thread's key as this disk has it. Raises CopyGone if the key is destroyed."""
        identity = thread.identity
        data_key = self._state.context.keystore.thread_key(identity.uid, identity.namespace_keys)
        if data_key is None:
            raise CopyGone
        held = self._state.context.keystore.held_slot(identity.uid) if identity.is_held else b""
        return Seen(seen.head, seen.etag, ThreadKey(identity.uid, data_key, held), seen.asked_at)

    def _lose(self, thread: Thread, judgement: Judgement, head: ArchiveHead) -> None:
        """Another process has the thread: sets entries that are not history aside, in one transaction."""
        state, identity = self._state, thread.identity
        row = row_of(head, THREAD_ACCESS_REMOTE, (thread.floor_sequence, thread.floor_version))
        # This disk's copy ends at the common entry, whatever HEAD says. A refresh fetches the rest.
        row.head.tip_sequence = judgement.common_sequence
        row.head.tip_digest = state.outbox.digest_at(identity, judgement.common_sequence)
        orphan, tip = state.orphans.set_aside(thread, judgement.common_sequence, row)
        if orphan and self._drop_own(identity.namespace, orphan, judgement.common_sequence):
            orphan = ""
        error = fenced(thread.name, head, judgement.common_sequence, orphan)
        if orphan:
            state.fenced[identity.namespace, thread.name] = error
            events.fencings += 1
            security.note(
                TAKEN, "another sidecar took a thread: entries that are not history are set aside", tell=log.error,
                uid=identity.uid_text, first=judgement.common_sequence + 1, last=tip,
            )  # fmt: skip
        else:
            security.note(TAKEN, "another sidecar took a thread", uid=identity.uid_text, epoch=head.epoch)
        state.waiters.archived(thread.number, judgement.common_sequence)
        state.waiters.failed(thread.number, error)

    def _drop_own(self, namespace: str, orphan: str, common_sequence: int) -> bool:
        """Deletes an orphan in which nobody wrote anything after the common entry: the daemon made segments of logs, or
        removed blobs. Returns whether it did. The archive has all the rest."""
        store = self._state.store
        with store.context.engine.read() as txn:
            found = store.threads.find(txn, namespace, orphan)
            if found is None or not is_own(txn, found, common_sequence):
                return False
        request = DeleteThreadRequest(namespace=namespace, thread=orphan, allow_missing=True)
        store.context.writer.submit(Write(run=store.deleter.delete(request), frees_space=True), wait=True).wait()
        return True

    def _delete(self, thread: Thread) -> None:
        """Another sidecar deleted the thread: deletes this disk's copies and destroys its key."""
        identity = thread.identity
        security.note(DELETED, "another sidecar deleted a thread", uid=identity.uid_text, everywhere=True)
        self._finisher.delete_orphans(identity.uid)
        request = DeleteThreadRequest(
            namespace=identity.namespace, thread=thread.name, options=WriteOptions(expected_uid=identity.uid_text),
            allow_missing=True,
        )  # fmt: skip
        write = Write(run=self._state.store.deleter.delete(request), frees_space=True)
        self._state.context.writer.submit(write, wait=True).wait()
        self._state.waiters.failed(thread.number, not_found(identity.namespace, thread.name))

    def take_back(self, hold: Hold) -> None:
        """Lets writes pass again, because the HEAD that gives the thread up is not known to have landed. The next ship
        reads HEAD first, because the write may have landed, or may land late."""
        state = self._state
        current = state.holds.get(hold.number)
        if current is None:
            return  # settled meanwhile: the thread is not ours
        current.is_verified = False
        current.given_up = None  # before the row: a reload after the row is written must show the thread as ours
        try:
            self.write_row(hold.thread, row_of_hold(current))
        except Exception:
            # The next touch reads HEAD. Until then memory must agree with the disk: a thread that memory shows as given
            # up would not be shipped, although it may have entries that no HEAD has.
            state.holds.pop(hold.number, None)
            state.store.threads.forget(hold.thread)
            raise

    def write_row(self, thread: Thread, row: ArchiveRow) -> None:
        """Writes the archive row of a thread, and waits for the commit."""
        threads = self._state.store.threads

        def run(txn: object, batch: Batch) -> None:
            draft = threads.draft(txn, batch, thread.identity.namespace, thread.name)  # type: ignore[arg-type]
            if draft is not None and draft.identity.number == thread.number:
                row.floor_sequence, row.floor_version = draft.floor_sequence, draft.floor_version
                if row.access == THREAD_ACCESS_REMOTE and draft.head.tip_sequence <= row.head.tip_sequence:
                    txn.delete(layout.outbox_key(thread.number))  # type: ignore[attr-defined]
                    draft.thread.in_outbox = False  # at worst the row is put once more
                # Last, because it changes the draft that other writes of the batch share, and any put may find the map
                # full.
                write_archive_row(txn, draft, row)  # type: ignore[arg-type]
                threads.keep_draft(batch, draft)

        self._state.context.writer.submit(Write(run=run, frees_space=True), wait=True).wait()


def set_back(name: str) -> Corrupt:
    """Returns the error for a request to archive a thread that is rolled back."""
    return Corrupt(
        "its HEAD is missing, or older than what was archived, so nothing of it is archived; COMMITTED saves still "
        "work; run `stateward archive repair` to write HEAD again", name,
    )  # fmt: skip
