"""Acting on what a HEAD means for the thread on this disk (``judge``). Always under the lock of its name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stateward.storage.v1.archive_pb2 import ArchiveHead, ArchiveRow, ObjectRef
from stateward.v1.thread_pb2 import ACCESS_OWNED, ACCESS_REMOTE
from stateward.v1.thread_service_pb2 import DeleteThreadRequest
from stateward_sidecar.archive.desk import Desk, Hold, row_of, row_of_hold
from stateward_sidecar.archive.fetch import Fetcher, Missing, Seen
from stateward_sidecar.archive.judge import Judgement, Local, Verdict, judge
from stateward_sidecar.archive.keys import ThreadKey
from stateward_sidecar.archive.packs import is_pack
from stateward_sidecar.archive.places import Place
from stateward_sidecar.codec.entry import sequence_of, unpack
from stateward_sidecar.errors import Corrupt
from stateward_sidecar.storage import layout
from stateward_sidecar.storage.writer import Batch, Write
from stateward_sidecar.store.install import CopyGone, is_entry
from stateward_sidecar.store.lines import fenced
from stateward_sidecar.store.thread import Thread, write_archive_row
from stateward_sidecar.store.threads import not_found
from stateward_sidecar.telemetry import log


class Settler:
    """Brings disk and archive together after HEAD was read."""

    def __init__(self, desk: Desk, fetcher: Fetcher) -> None:
        self._desk = desk
        self._fetcher = fetcher

    def settle(
        self, thread: Thread, known: ArchiveHead, place: Place, seen: Seen | None, *, waits: bool = True
    ) -> Hold | None:
        """Compares and acts. Returns the hold if the thread is ours to write afterwards, else None.

        Raises ArchiveUnavailable where more had to be read and could not be, and NotOwner for what is ours if no other
        copy of these data lives (unless ``waits`` is False).
        """
        desk, identity = self._desk, thread.identity
        judgement = self._judge(thread, known, place, seen)
        verdict = judgement.verdict
        if verdict is not Verdict.OURS:
            log.warning("the archive differs from this disk", uid=identity.uid_text, verdict=verdict.value)
        if verdict is Verdict.MISSING:
            desk.wire.check_there()
            # The archive is there now; it may not have been when HEAD was asked for: a directory that is mounted again.
            seen = self._fetcher.look(identity.namespace_keys, place, with_key=False)
            if seen is not None:
                return self.settle(thread, known, place, seen, waits=waits)
        if verdict in (Verdict.ROLLED_BACK, Verdict.MISSING):
            return self._roll_back(thread, known, place, seen, judgement.common_sequence)
        assert seen is not None
        if verdict is Verdict.OURS:
            if waits and seen.head.boot_id in desk.former and not seen.head.detached:
                unchanged_s = desk.observe(place, seen.head)
                if unchanged_s < desk.options.lease_s:
                    raise desk.held(thread.name, seen.head, unchanged_s)
            if seen.head.detached and desk.orphans.release(
                thread, seen.head.tip_sequence, row_of(seen.head, ACCESS_REMOTE)
            ):  # given up by a process that could not write it down any more: anybody may take it at once
                desk.holds.pop(thread.number, None)
                desk.waiters.archived(thread.number, seen.head.tip_sequence)
                return None
            return desk.hold(thread, place, seen.head, seen.etag, seen.asked_at)
        if verdict is Verdict.BEHIND:
            return self._pull(thread, place, seen)
        desk.holds.pop(thread.number, None)
        if verdict is Verdict.DELETED:
            self._delete(thread)
        else:
            self._lose(thread, judgement, seen.head)
        return None

    def follows(self, thread: Thread, place: Place, seen: Seen) -> bool:
        """Whether a HEAD that was read continues the copy that is here, or is the same. Else what is here stands aside:
        as an orphan if HEAD has another line; as ours if it is HEAD's line, and nobody took it since we wrote HEAD.

        Raises Corrupt where the bucket was set back, and nobody has gone on from there.
        """
        assert thread.archive is not None
        head, tip = seen.head, thread.head
        judgement = self._judge(thread, thread.archive.head, place, seen)
        verdict = judgement.verdict
        is_same = (head.tip_sequence, head.tip_digest) == (tip.tip_sequence, tip.tip_digest)
        if is_same or verdict in (Verdict.BEHIND, Verdict.TAKEN):
            return True
        if verdict is Verdict.OURS:
            self.write_row(thread, row_of(head, ACCESS_OWNED))
            return False
        if verdict is Verdict.FENCED:
            self._lose(thread, judgement, head)
            return False
        row = ArchiveRow()
        row.CopyFrom(thread.archive)
        row.rolled_back, row.rolled_back_to = True, judgement.common_sequence  # lists ask nobody
        if row != thread.archive:
            self.write_row(thread, row)
        raise Corrupt(
            "its HEAD is older than the copy on this disk: somebody set the bucket back; to go on from HEAD, delete "
            "this copy alone (local_only)", thread.name,
        )  # fmt: skip

    def part(self, thread: Thread, place: Place, seen: Seen) -> None:
        """Sets a copy aside whose newest entry is not the one that HEAD's next entry continues."""
        try:
            common, _ = self._newest_shared(thread, place, seen.head, 0, self._tip(thread) - 1)
        except Missing:
            common = 0
        self._lose(thread, Judgement(Verdict.FENCED, common), seen.head)

    def _judge(self, thread: Thread, known: ArchiveHead, place: Place, seen: Seen | None) -> Judgement:
        desk, identity = self._desk, thread.identity
        local = Local(
            identity.uid, known, self._tip(thread), thread.floor_sequence,
            lambda sequence: desk.outbox.digest_at(identity, sequence), desk.boots, desk.former,
        )  # fmt: skip
        judgement = judge(local, seen.head if seen is not None else None)
        is_open = judgement.verdict in (Verdict.BEHIND, Verdict.FENCED) or not judgement.is_certain
        if seen is not None and is_open:
            return self._look_closer(thread, judgement, place, seen)
        return judgement

    def _look_closer(self, thread: Thread, judgement: Judgement, place: Place, seen: Seen) -> Judgement:
        """Compares entry by entry: HEAD itself says only where epochs began.

        A disk that was set back may have gone on by itself, which is no reason to pull; and what it has may be history
        all the same, which is no reason to set it aside. Raises Corrupt where an object is damaged: the next read of it
        may be whole. One that is gone says nothing any more, so HEAD has to do.
        """
        tip, common = self._tip(thread), judgement.common_sequence
        if seen.head.uid != thread.identity.uid:
            return judgement
        after = common if judgement.is_certain else 0
        try:
            shared, is_parted = self._newest_shared(thread, place, seen.head, after, tip)
            # Entries that differ say more than what was known of HEAD; where all are pruned, that has to do.
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
        """The newest entry in (after, until] that is here and in the archive, 0 = none is; and whether one after it
        differs."""
        refs = list(head.objects)
        if head.HasField("index") and head.index.last_sequence > after:
            refs = [*self._fetcher.indexed(place, head.index), *refs]
        packs = [ref for ref in refs if is_pack(ref) and ref.last_sequence > after and ref.first_sequence <= until]
        packs.sort(key=lambda ref: ref.last_sequence, reverse=True)
        is_parted = False
        # The newest first, and few at once: a history may be larger than memory.
        for theirs in self._entries(place, head, packs):
            for sequence in sorted(theirs, reverse=True):
                ours = self._desk.outbox.digest_at(thread.identity, sequence) if after < sequence <= until else b""
                if ours and ours == unpack(theirs[sequence], sequence).header.digest:
                    return sequence, is_parted
                is_parted = is_parted or bool(ours)
        return 0, is_parted

    def _entries(self, place: Place, head: ArchiveHead, packs: Sequence[ObjectRef]) -> Iterator[dict[int, bytes]]:
        """Entries by sequence: of HEAD itself, then of packs. Raises Corrupt."""
        yield {sequence_of(record): record for record in head.tail}
        for _, found in self._fetcher.history(place, packs):
            if isinstance(found, Corrupt):
                raise found
            yield {row.sequence: row.record for row in found if is_entry(row)}

    def _tip(self, thread: Thread) -> int:
        moment = self._desk.outbox.moment(thread.identity)
        return moment.tip_sequence if moment is not None else 0

    def _roll_back(
        self, thread: Thread, known: ArchiveHead, place: Place, seen: Seen | None, archived_sequence: int
    ) -> Hold:
        """Keeps serving from this disk, and ships nothing until a person has looked. What HEAD lacks counts as not
        archived."""
        log.error(
            "HEAD is older than what was archived, or gone: nothing of this thread is archived until it is repaired",
            uid=thread.identity.uid_text, known_sequence=known.tip_sequence,
            sequence=seen.head.tip_sequence if seen is not None else 0,
        )  # fmt: skip
        etag = seen.etag if seen is not None else ""
        hold = self._desk.hold(thread, place, known, etag, rolled_back_to=archived_sequence)
        self.write_row(thread, row_of_hold(hold))
        self._desk.waiters.failed(thread.number, set_back(thread.name))
        return hold

    def _pull(self, thread: Thread, place: Place, seen: Seen) -> Hold | None:
        """Takes what HEAD has on top of what is here. None: the copy is gone from this disk."""
        desk = self._desk
        seen = self.with_key(thread, seen)
        fetched = self._fetcher.fetch(place, seen, self._tip(thread), for_writer=True)
        incoming = fetched.incoming(thread.identity.namespace_keys, row_of(seen.head, ACCESS_OWNED))
        try:
            thread = desk.installer.install(incoming)
        except CopyGone:
            return None
        return desk.hold(thread, place, seen.head, seen.etag, seen.asked_at)

    def with_key(self, thread: Thread, seen: Seen) -> Seen:
        """HEAD with the key that this disk has of the thread."""
        identity = thread.identity
        data_key = self._desk.context.keystore.thread_key(identity.uid, identity.namespace_keys)
        if data_key is None:
            raise not_found(identity.namespace, thread.name)
        return Seen(seen.head, seen.etag, ThreadKey(identity.uid, data_key), seen.asked_at)

    def _lose(self, thread: Thread, judgement: Judgement, head: ArchiveHead) -> None:
        """Another process has it: what is no history is set aside, in one transaction."""
        desk, identity = self._desk, thread.identity
        row = row_of(head, ACCESS_REMOTE, (thread.floor_sequence, thread.floor_version))
        # What is here reaches to here, whatever HEAD says; a refresh brings the rest.
        row.head.tip_sequence = judgement.common_sequence
        row.head.tip_digest = desk.outbox.digest_at(identity, judgement.common_sequence)
        orphan, tip = desk.orphans.set_aside(thread, judgement.common_sequence, row)
        error = fenced(thread.name, head, judgement.common_sequence, orphan)
        if orphan:
            desk.fenced[identity.namespace, thread.name] = error
            log.error(
                "a thread went on elsewhere: entries that are no history are set aside", uid=identity.uid_text,
                first=judgement.common_sequence + 1, last=tip,
            )  # fmt: skip
        desk.waiters.archived(thread.number, judgement.common_sequence)
        desk.waiters.failed(thread.number, error)

    def _delete(self, thread: Thread) -> None:
        """It was deleted through another sidecar: the key is destroyed, here too."""
        identity = thread.identity
        log.warning("the thread was deleted in the archive", uid=identity.uid_text)
        store = self._desk.store
        for number in self._desk.orphans.siblings(identity.uid, thread.number):  # they have the same key
            with store.context.engine.read() as txn:
                orphan = store.threads.by_number(txn, number)
            if orphan is not None:
                gone = DeleteThreadRequest(namespace=identity.namespace, thread=orphan.name, allow_missing=True)
                store.context.writer.submit(Write(run=store.deleter.delete(gone), frees_space=True), wait=True).wait()
        request = DeleteThreadRequest(
            namespace=identity.namespace, thread=thread.name, expected_uid=identity.uid_text, allow_missing=True
        )
        write = Write(run=self._desk.store.deleter.delete(request), frees_space=True)
        self._desk.context.writer.submit(write, wait=True).wait()
        self._desk.waiters.failed(thread.number, not_found(identity.namespace, thread.name))

    def take_back(self, hold: Hold) -> None:
        """Lets writes pass again: HEAD has not given the thread up, as far as anybody knows. It is asked before more is
        shipped, for the write may have landed, or land late."""
        desk = self._desk
        current = desk.holds.get(hold.number)
        if current is None:
            return  # settled meanwhile: it is not ours
        current.is_verified = False
        current.given_up = None  # first: who loads the thread after the row is written must find it ours
        try:
            self.write_row(hold.thread, row_of_hold(current))
        except Exception:
            # HEAD is asked at the next touch. Until then memory must say what the disk says: a thread that looks given
            # up is not shipped, and it may have entries that no HEAD has.
            desk.holds.pop(hold.number, None)
            desk.store.threads.forget(hold.thread)
            raise

    def write_row(self, thread: Thread, row: ArchiveRow) -> None:
        """Writes how this sidecar stands to a thread, and waits for it."""
        threads = self._desk.store.threads

        def run(txn: object, batch: Batch) -> None:
            draft = threads.draft(txn, batch, thread.identity.namespace, thread.name)  # type: ignore[arg-type]
            if draft is not None and draft.identity.number == thread.number:
                row.floor_sequence, row.floor_version = draft.floor_sequence, draft.floor_version
                if row.access == ACCESS_REMOTE and draft.head.tip_sequence <= row.head.tip_sequence:
                    txn.delete(layout.outbox_key(thread.number))  # type: ignore[attr-defined]
                    draft.thread.in_outbox = False  # at worst the row is put once more
                # Last, as it changes the draft that others of the batch share: a full map may refuse any row.
                write_archive_row(txn, draft, row)  # type: ignore[arg-type]
                threads.keep_draft(batch, draft)

        self._desk.context.writer.submit(Write(run=run, frees_space=True), wait=True).wait()


def set_back(name: str) -> Corrupt:
    """The error for who asks that more of such a thread be archived."""
    return Corrupt(
        "its HEAD is older than what was archived, or gone, so that nothing of it is archived; COMMITTED saves go on, "
        "and `stateward archive repair` writes HEAD anew", name,
    )  # fmt: skip
