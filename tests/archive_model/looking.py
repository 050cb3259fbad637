"""What is looked at after each step of a history, and what must hold at all times."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from tests.archive_model.blobbook import shown
from tests.archive_model.faults import Op
from tests.archive_model.litter import litter, proves, spent, whole_objects
from tests.archive_model.sidecar import PromisedDisk, Sidecar
from tests.archive_model.stage import TOTALS, Stage
from tests.archive_model.truth import EMPTY, Sent, State, Version
from tests.daemon.driven import LEASE_S, NAMESPACE

from stateward.storage.v1.archive_pb2 import ArchiveHead
from stateward.storage.v1.journal_pb2 import ENTRY_KIND_HEADS, ENTRY_KIND_RECORDS, EntryMetadata
from stateward.v1.checkpoint_service_pb2 import HydrateResponse, SaveRequest
from stateward.v1.state_pb2 import Value
from stateward.v1.thread_pb2 import THREAD_ACCESS_ORPHAN, THREAD_ACCESS_OWNED, THREAD_ACCESS_REMOTE
from stateward_sidecar.archive.objects.heads import open_head
from stateward_sidecar.archive.objects.keys import slot_of
from stateward_sidecar.archive.requests.places import Place, place_of
from stateward_sidecar.codec.entry import Entry, unpack
from stateward_sidecar.errors import Corrupt, Fenced, NewerFormat, ThreadNotFound, VersionMismatch
from stateward_sidecar.service.calls import ownership
from stateward_sidecar.storage.keystore import KeyStore
from stateward_sidecar.store.kinds.record import open_batch
from stateward_sidecar.store.thread import blocks
from stateward_sidecar.store.thread.ranges import Ranges
from stateward_sidecar.store.thread.thread import MAIN, Thread, load_archive_row
from stateward_sidecar.store.thread.times import expire_second

# An owner whose upload does not end shows for at least a lease that it lives, and another one has to wait for a lease.
BUSY_S = 1.7 * LEASE_S
SIGN_S = LEASE_S / 16
T = TypeVar("T")
KeyOf = tuple[str, bytes]
"""The name of a key object, and the uid of the thread that it is of."""
Journals = list[tuple[Thread, dict[int, bytes]]]


class Looking(Stage):
    """Disks and HEADs against the truth."""

    # -- disks ----------------------------------------------------------------------------------------------------

    def journals(self, sidecar: Sidecar) -> Journals:
        """All threads on a disk with their journals, sequence → digest."""
        found: Journals = []
        threads, memo = sidecar.threads(), sidecar.memo()
        with sidecar.store.context.engine.read() as txn:
            for thread in threads:
                if thread.number in memo.lines:
                    found.append((thread, memo.lines[thread.number]))
                    continue
                line = memo.lines[thread.number] = {}
                for sequence, record in blocks.entries(txn, thread.identity.keys, 1):
                    seen = thread.identity.uid, sequence, record
                    if seen not in self.digests:
                        self.digests[seen] = self.see_row(thread, unpack(record, sequence))
                    line[sequence] = self.digests[seen]
                found.append((thread, line))
        return found

    def see_row(self, thread: Thread, entry: Entry) -> bytes:
        """A row of a journal that was never seen as it is. Its digest."""
        if self.truth.see_entry(thread.identity.uid, entry.header):
            self.see_new(thread, entry)
        return bytes(entry.header.digest)

    def see_new(self, thread: Thread, entry: Entry) -> None:
        """An entry on a disk: what a version holds is told by the request that made it, answered or not."""
        header, identity = entry.header, thread.identity
        metadata = entry.open_metadata(identity.cipher, identity.uid)
        body = metadata.WhichOneof("body")
        if body == "tag":
            self.truth.tags[bytes(header.digest)] = metadata.tag.name, metadata.tag.version
        elif body == "signal":
            self.truth.signals[bytes(header.digest)] = metadata.signal.signal_id, metadata.signal.payload.data
        elif body == "checkpoint":
            self.truth.acknowledged[bytes(header.digest)] = tuple(metadata.checkpoint.acked_signals)
        if header.kind == ENTRY_KIND_HEADS:
            self.see_moves(entry, metadata)
        self.truth.pruned[identity.uid] |= set(Ranges.from_message(metadata.removed))
        self.see_records(thread, entry, metadata)
        if not header.version:
            return
        request = self.sent.get(bytes(metadata.request_hash))
        digest, state, parent = bytes(header.digest), None, b""
        if request is not None:
            parent = self.truth.find_version(self.truth.line(digest), header.parent_version)
            before = self.truth.versions[parent].state if parent else EMPTY
            state = after(before, request) if before is not None else None
        branch = metadata.checkpoint.branch or MAIN
        self.truth.versions.setdefault(digest, Version(header.version, branch, state, parent))

    def see_records(self, thread: Thread, entry: Entry, metadata: EntryMetadata) -> None:
        """How an entry leaves records."""
        digest, is_of_records = bytes(entry.header.digest), entry.header.kind == ENTRY_KIND_RECORDS
        self.records.see(
            digest, self.truth.entries[digest], metadata, open_batch(thread.identity, entry) if is_of_records else None,
            self.time.newest_us, epochs_repeat=bool(self.copies or self.era),
        )  # fmt: skip

    def see_moves(self, entry: Entry, metadata: EntryMetadata) -> None:
        """Heads that moved: from where they were, and for each request once."""
        digest, previous = bytes(entry.header.digest), bytes(entry.header.previous_digest)
        line = self.truth.line(previous)
        heads = self.truth.branch_heads(line)
        for move in metadata.heads:
            assert heads.get(move.branch) == move.before_digest, "a head moved from where it was not"
            assert self.truth.find_version(line, move.version) == move.digest, "a head moved to what is not there"
        self.truth.moves[digest] = {move.branch: move.version for move in metadata.heads}
        if metadata.request_hash:
            key = bytes(metadata.request_hash)
            since = entry.header.sequence - self.window
            known = self.moved.setdefault(key, {})
            again = [at for old, at in known.items() if line.get(at) == old and at >= since]
            assert not again, "a head moved twice for one request"
            known[digest] = entry.header.sequence

    def look(self) -> None:
        """Takes in what is on all disks; checks orphans, what waiters were told, and what was promised."""
        for sidecar in self.sidecars:
            assert not sidecar.fatal, sidecar.fatal
            here: dict[bytes, set[bytes]] = {}
            for thread, line in self.journals(sidecar):
                here.setdefault(thread.identity.uid, set()).update(line.values(), self.below_floor(thread))
                if thread.access == THREAD_ACCESS_ORPHAN:
                    self.check_orphan(sidecar, thread, line)
                elif thread.access == THREAD_ACCESS_REMOTE and thread.number not in sidecar.archive.state.holds:
                    self.check_copy(sidecar, thread)
            for item in list(sidecar.waiting):
                if item[0].done():
                    sidecar.waiting.remove(item)
                    self.check_told(*item)
            self.check_promised(sidecar.disk, here)

    def below_floor(self, thread: Thread) -> list[bytes]:
        """Entries of records that count for nothing any more in this line, and may be removed. What is left of them was
        moved; a move that leaves one out is found where its entry is seen."""
        floor = thread.pruned.records.last
        line = self.truth.line(bytes(thread.head.tip_digest)) if floor else {}
        return [digest for sequence, digest in line.items() if sequence <= floor and digest in self.records.entries]

    def check_promised(self, disk: PromisedDisk, here: dict[bytes, set[bytes]]) -> None:
        """What was answered COMMITTED is history, or on the disk that answered."""
        for uid, sequence, digest in disk.promised:
            if uid in self.truth.deleted or self.truth.history(uid).get(sequence) == digest:
                continue
            assert digest in here.get(uid, ()), f"entry {sequence} was answered COMMITTED, and is gone"

    def check_told(self, told: Future[None], uid: bytes, sequence: int, digest: bytes) -> None:
        """A waiter heard that its entry is archived, or that it never will be."""
        error = told.exception()
        if error is None:
            self.truth.promise_archived(uid, sequence, digest)
            TOTALS["archive answers ARCHIVED"] += 1
        elif isinstance(error, Fenced):
            assert digest not in self.truth.history(uid).values(), "FENCED was answered of an entry that is history"
        elif isinstance(error, NewerFormat):
            assert self.net.of_next_format, f"NEWER_FORMAT, and nobody wrote one: {error.message}"
        else:
            assert self.era or isinstance(error, ThreadNotFound), error

    def check_orphan(self, sidecar: Sidecar, thread: Thread, line: dict[int, bytes]) -> None:
        """What is set aside is no history; what is history is not called lost, unless the archive has removed it."""
        row, uid = thread.archive, thread.identity.uid
        assert row is not None
        key = sidecar.disk.number, thread.number
        if uid in self.truth.deleted:
            self.orphans.setdefault(key, (thread.name, self.era))  # a bucket that is set back may have it again
            return
        history = self.truth.history(uid)
        if key not in self.orphans:
            self.orphans[key] = thread.name, self.era
            self.steps.append(f"   disk {key[0]}: orphan {thread.name}, common {row.common_sequence}")
            TOTALS["archive orphans"] += 1
            others = self.truth.writers[uid] - {sidecar.disk.number}
            assert others or sidecar.disk.was_set_back or self.era, "a thread that nobody else ever had was set aside"
        if self.orphans[key][1] != self.era:
            return
        for sequence, digest in line.items():
            is_history = history.get(sequence) == digest
            if sequence > row.common_sequence:
                is_lost = is_history and self.is_proven(sidecar, row.orphan_of, sequence)
                assert not is_lost, f"entry {sequence} is history, and orphan {thread.name} calls it lost"
            elif not self.era:  # the bucket may have lost what both had
                assert is_history, f"entry {sequence} is no history, and orphan {thread.name} says so"

    def is_proven(self, sidecar: Sidecar, name: str, sequence: int) -> bool:
        """Whether the bucket says which entry of a thread has a sequence."""
        key = self.key_of(sidecar, name)
        place, head = place_of(key), self.truth.head(key)
        assert place is not None
        return head is not None and proves(self.net.bucket.objects, place, head, sequence)

    def may_be_lost(self, sidecar: Sidecar, error: Corrupt, *, is_exact: bool) -> bool:
        """Whether CORRUPT says what is so: the bucket was set back, and lacks an object or HEAD, or its HEAD is older.
        Once somebody has gone on from there, what is here is of another line, and no reason to refuse.

        ``is_exact``: all is still as it was when that was found.
        """
        name = error.metadata.get("thread", "")
        thread, key = sidecar.find(name), self.key_of(sidecar, name)
        row, sent = thread.archive if thread is not None else None, self.truth.heads.get(key)
        if not self.era or not is_exact or "missing in the archive" in error.message:
            return bool(self.era)
        if row is None or row.access == THREAD_ACCESS_ORPHAN:
            return False
        return sent is None or key not in self.truth.went_on or row.rolled_back or row.head.epoch > sent.head.epoch

    def check_copy(self, sidecar: Sidecar, thread: Thread) -> None:
        """All of a copy is history: nobody will ship it, and any machine may go on without it at once.

        One that is given up in memory only, by a call that is still at it and has just found the thread taken, may have
        more: a crash there leaves it ours, to be shipped.
        """
        uid, tip = thread.identity.uid, thread.head
        if thread.is_outdated:
            return  # nobody reads or writes it before this sidecar can read HEAD
        if uid not in self.truth.deleted and not self.era:
            is_history = self.truth.history(uid).get(tip.tip_sequence) == tip.tip_digest
            is_right = is_history or self.is_ours_on_disk(sidecar, thread)
            assert is_right, f"thread {thread.name!r} was given up with entry {tip.tip_sequence}, which is no history"

    def is_ours_on_disk(self, sidecar: Sidecar, thread: Thread) -> bool:
        """Whether a call is at a thread, of which the disk says that it is ours and not archived."""
        locks: Any = sidecar.archive.state.locks
        if not locks.is_taken((NAMESPACE, thread.name)):
            return False
        with sidecar.store.context.engine.read() as txn:
            row = load_archive_row(txn, thread.identity)
        return row is not None and row.access == THREAD_ACCESS_OWNED and thread.number in sidecar.outbox()

    def check_outbox(self, sidecar: Sidecar) -> None:
        """After a start, everything of ours that is not archived will be shipped without anybody asking."""
        outbox = sidecar.outbox()
        for thread in sidecar.threads():
            if thread.access == THREAD_ACCESS_OWNED and thread.identity.uid not in self.truth.deleted and not self.era:
                tip = thread.head
                if self.truth.history(thread.identity.uid).get(tip.tip_sequence) != tip.tip_digest:
                    assert thread.number in outbox, f"nobody will ship thread {thread.name!r}"

    # -- HEADs ----------------------------------------------------------------------------------------------------

    def see_head(self, disk: PromisedDisk, key: str, data: bytes, op: Op) -> None:
        """A HEAD had its effect."""
        place = place_of(key)
        assert place is not None
        for each in self.sidecars:
            self.namespace = each.store.context.keystore.namespace(NAMESPACE) or self.namespace
        assert self.namespace is not None
        head = open_head(self.namespace, place, data)
        self.steps.append(
            f"   HEAD {head.write_id.hex()[:4]} by disk {disk.number}: epoch {head.epoch} tip {head.tip_sequence}"
            f"{' detached' if head.detached else ''}{' deleted' if head.deleted else ''}"
        )
        before = self.truth.heads.get(key)
        self.truth.see_head(key, head, disk.number, self.time.now_s)
        if not head.deleted and head.tip_sequence:
            assert not self.records.pages[bytes(head.tip_digest)].is_part, "HEAD has a part of a put"
        key_of_uid = self.key_of_uid(bytes(head.uid))
        if head.tip_sequence and not head.deleted and not self.era and key_of_uid:
            objects = whole_objects(self.net.bucket.objects)
            self.naming.check(objects, place, head, key_of_uid)
            self.blobs.check_head(objects, place, head, key_of_uid, self.slots_of(head))
        if before is not None and before.head.uid == head.uid and not self.era:
            check_parts(before.head, head)
        if not op.takes_over:
            self.check_lease(disk, key, before, head)
        if op.sweeps and head.deleted and before is not None and not before.head.deleted:
            self.check_expired(disk, before.head)

    def check_litter(self) -> None:
        """After everybody shipped and one machine collected, the bucket has nothing that no HEAD leads to.

        Not after the bucket was set back: then objects of lines that it lost lie there, under epochs to come.
        """
        if self.era:
            return
        for _ in range(2):  # the second one knows who has been silent for a lease
            self.act(0, "collect", lambda it: it.collect(0))
            self.time.sleep(LEASE_S + 1)
        objects = self.net.bucket.objects
        for key in [key for key in objects if key.endswith("/HEAD")]:
            place = place_of(key)
            assert place is not None
            assert self.namespace is not None
            try:
                head = open_head(self.namespace, place, objects[key])
            except NewerFormat:
                continue
            is_used = any(each.store.context.keystore.has_thread(bytes(head.uid)) for each in self.sidecars)
            assert head.deleted or head.tip_sequence or is_used, f"nobody uses the name, and it stays: {key}"
            left = set(litter(objects, place, head, self.key_of_uid(bytes(head.uid)))) - self.net.late
            assert not left, f"nothing leads to these objects, and nobody will remove them: {sorted(left)}"
            self.check_spent(place, head)
            TOTALS["archive objects of which each is needed"] += len(objects)

    def check_spent(self, place: Place, head: ArchiveHead) -> None:
        """What HEAD leads to is needed: no pack has the edits of pruned versions alone, once their owner has cleared
        them on its disk and has shipped the thread."""
        for sidecar in self.sidecars:
            for hold in sidecar.archive.state.holds.values():
                is_settled = hold.tail is not None and not hold.owed.is_due and not hold.is_rolled_back
                if hold.head.write_id != head.write_id or not is_settled:
                    continue
                thread = sidecar.find(hold.thread.name)
                if thread is None or thread.floor_sequence or sidecar.has_uncleared(thread.number):
                    continue
                try:
                    left = spent(self.net.bucket.objects, place, head, thread.pruned)
                except KeyError:  # the bucket lost an index
                    continue
                assert not left, f"all versions of these packs were pruned, and their edits are here: {left}"
                TOTALS["heads that lead to nothing pruned"] += not thread.pruned.is_empty

    def slots_of(self, head: ArchiveHead) -> dict[int, str]:
        """What the slot shows in each version of the history that ends at a HEAD."""
        line = self.truth.line(bytes(head.tip_digest))
        versions = (self.truth.versions[digest] for digest in line.values() if digest in self.truth.versions)
        return {each.version: each.state[1] for each in versions if each.state is not None}

    def key_of_uid(self, uid: bytes) -> bytes:
        """The data key of a thread, from whatever disk has it; empty if all have destroyed it."""
        assert self.namespace is not None
        stores = (sidecar.store.context.keystore for sidecar in self.sidecars)
        return next((key for store in stores if (key := store.thread_key(uid, self.namespace))), b"")

    def check_lease(self, disk: PromisedDisk, key: str, before: Sent | None, head: ArchiveHead) -> None:
        """Nobody takes a thread without being asked to, unless its owner gave it up or was silent for the lease."""
        if before is None or before.head.detached or before.head.deleted or head.deleted:
            return
        owner = next(each for each in self.disks if each.number == before.disk)
        if owner.origin == disk.origin:
            return  # one owner, or a copy of it
        assert self.time.now_s - before.at_s >= LEASE_S, "a thread was taken before its owner's lease was over"
        for sidecar in self.sidecars:
            if sidecar.disk is owner and not sidecar.is_dead and sidecar.archive.state.boot_id == before.head.boot_id:
                assert not self.is_busy(sidecar, key), "a thread was taken from an owner that uploads or fetches"

    def is_busy(self, sidecar: Sidecar, key: str) -> bool:
        """Whether a sidecar has begun to upload or fetch objects of a thread: long enough ago for its first sign of
        life, and so short a time ago that it still gives signs."""
        place, now_s = key.removesuffix("HEAD"), self.time.now_s
        return any(
            SIGN_S < now_s - each.begun_s < BUSY_S and any(name.startswith(place) for name in each.keys)
            for each in sidecar.wire.uploads
        )

    def check_expired(self, disk: PromisedDisk, before: ArchiveHead) -> None:
        """A thread goes by itself only when its time is over, also by what was saved here and is not archived yet."""
        for sidecar in self.sidecars:
            if sidecar.disk is not disk:
                continue
            newest = before.tip_sequence, before.expire_second
            for thread in sidecar.threads():
                if thread.identity.uid == before.uid and thread.access != THREAD_ACCESS_ORPHAN:
                    newest = max(newest, (thread.head.tip_sequence, expire_second(thread.head)))
            assert newest[1], "a thread without a time went by itself"
            assert newest[1] * 1e6 <= sidecar.clock.newest_us, "a thread went before its time was over"

    def keys_of(self, key: str, *, dead: bool = False) -> set[KeyOf]:
        """Key objects of all threads that ever were under one HEAD, or of those that have a tombstone."""
        place, heads = place_of(key), [sent.head for sent in self.truth.log[key] if sent.head.deleted or not dead]
        return {(place.key(head.created_epoch), bytes(head.uid)) for head in heads} if place is not None else set()

    def check_destroyed(self, dead: set[KeyOf], *, is_over: bool = False) -> None:
        """Keys of deleted threads are in the bucket no more, unless it was set back or a write came late. Until all
        ``is_over``, another sidecar may be claiming the name in an epoch that is over: then its new key lies there."""
        left = {
            key for key, uid in dead
            if key in self.net.bucket.objects and key not in self.net.late and (is_over or self.uid_in(key) == uid)
        }  # fmt: skip
        assert not left or self.era, f"a deletion was answered, and the key is in the bucket: {sorted(left)}"

    def uid_in(self, key: str) -> bytes:
        """The thread that a key object is of."""
        assert self.namespace is not None
        return KeyStore.open_thread(slot_of(self.net.bucket.objects[key]), self.namespace)[0]

    def is_alive(self, sidecar: Sidecar, name: str, uid: str = "") -> Callable[[], bool]:
        """Whether the archive has the thread, with this uid if one is given, now and when it is asked again; and
        nothing else happened meanwhile."""
        key, quiet = self.key_of(sidecar, name), self.quiet()

        def is_there() -> bool:
            head = self.truth.head(key)
            return head is not None and uid in ("", head.uid.hex())

        was_there = is_there()
        return lambda: was_there and is_there() and quiet == self.quiet()

    def is_disturbed(self, sidecar: Sidecar) -> bool:
        """Whether anything goes wrong for the call that runs, or is not as it was once archived."""
        call = self.turns.current
        is_struck = call is None or call.op.was_away or bool(call.op.struck)
        return is_struck or sidecar.wire.away_s > 0 or bool(self.era) or bool(self.net.of_next_format)

    def watched(self, sidecar: Sidecar, verb: Callable[[Sidecar], T]) -> T:
        """Runs a verb. A call may say that there is no thread only if the archive had none at some moment of it."""
        begun = {key: len(log) for key, log in self.truth.log.items()}
        try:
            return verb(sidecar)
        except (ThreadNotFound, VersionMismatch) as error:
            frames = (frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__))
            if any(name == ownership.__file__ for name in frames):  # not a step by itself, which asks nobody
                self.check_absence(sidecar, error, begun)
            raise

    def check_absence(self, sidecar: Sidecar, error: ThreadNotFound | VersionMismatch, begun: dict[str, int]) -> None:
        """``begun``: how many HEADs each key had when the call began."""
        key = self.key_of(sidecar, error.metadata.get("thread", ""))
        heads = [sent.head for sent in self.truth.heads_since(key, begun[key])] if begun.get(key) else []
        # Whoever waits for the archive is told at once that its entry went with the copy of this disk.
        is_told = any(future.exception() is error for future in sidecar.told if future.done())
        if self.era or is_told or len({bytes(head.uid) for head in heads}) != 1:
            return
        found = error.metadata.get("branch", MAIN), error.metadata.get("current_version", "0")
        if found != (MAIN, "0") or any(head.deleted or not head.tip_sequence for head in heads):
            return
        lines = [self.truth.line(bytes(head.tip_digest)) for head in heads]
        state, name = sidecar.archive.state, (NAMESPACE, error.metadata.get("thread", ""))
        claimed_s = state.claimed[name][1] if name in state.claimed else state.wire.now()  # else it is being committed
        if name in state.hooks.claims and state.wire.now() - claimed_s < state.options.check_s:
            return  # as an owner reads its threads for so long without asking
        if isinstance(error, VersionMismatch):  # a thread that was begun on another branch has nothing on main
            has = [bool(self.truth.branch_head(line, MAIN)) for line in lines]
        else:
            has = [any(self.truth.entries[digest].version for digest in line.values()) for line in lines]
        assert not all(has), f"the archive has the thread: {error.message}"

    def key_of(self, sidecar: Sidecar, name: str) -> str:
        """The key of a thread's HEAD."""
        namespace = sidecar.store.context.keystore.namespace(NAMESPACE)
        return sidecar.archive.state.place(namespace, name).head if namespace is not None else ""

    def key_of_any(self, name: str) -> str:
        """The same, also for sidecars that have not heard of the namespace; empty until there is any HEAD."""
        state = self.sidecars[0].archive.state
        return state.place(self.namespace, name).head if self.namespace is not None else ""


def check_parts(before: ArchiveHead, head: ArchiveHead) -> None:
    """A part of an image that did not change is the object that it was."""
    old = {bytes(part.digest): part.object for part in before.image_parts}
    again = [part.object.counter for part in head.image_parts if old.get(part.digest, part.object) != part.object]
    assert not again, f"parts that did not change were put again: {again}"


def after(state: State, request: SaveRequest) -> State:
    """The state that a save makes."""
    entries, slot = state
    for edit in request.diff.edits:
        if edit.HasField("append"):
            entries = (*entries, *(value.data.decode() for value in edit.append.entries))
        else:
            slot = text_of(edit.set_slot.value)
    return entries, slot


def state_of(answer: HydrateResponse) -> State:
    """The state that an answer shows."""
    state = answer.state
    entries = tuple(value.data.decode() for value in state.logs["log"].entries) if "log" in state.logs else ()
    return entries, text_of(state.slots["slot"]) if "slot" in state.slots else ""


def text_of(value: Value) -> str:
    """What a state shows of a value."""
    return shown(value.blob.sha256) if value.WhichOneof("content") == "blob" else value.data.decode()
