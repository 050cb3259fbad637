"""Watches: read the journal from a cursor on, after each commit.

What a watch needs to know when its thread is not on this disk any more, or under another number.

A deletion leaves a record for a day. A record with the cause "local" says that only this disk's copy was deleted: the
thread is still in the archive. An orphan has the uid of its thread and a name of its own, and so has the record of its
deletion: neither says anything of the thread.

A watch has no queue, only a cursor, however slow its reader is. The cursor of a thread's watch is the uid, a sequence
and the digest of that entry. The cursor of a namespace's watch is a place in the feed of all entries. Both stay valid
after a restart. After a takeover the digest shows that the last event is no longer part of the history: FENCED.

The number of a thread changes while it is watched if its copy was set aside, or deleted on this disk alone, and came
back from the archive. The watch then compares digests: it goes on if its last event is in the new copy, too.

A watch of chosen slots and logs reads the edits of each version, and skips versions that change none of them. Its
cursor moves with the next event. The edits of a pruned version are gone, so its event is always sent.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import lmdb

from stateward.storage.v1.head_pb2 import DeletionRecord
from stateward.v1.thread_service_pb2 import JournalEvent, ThreadDeletion, WatchRequest
from stateward_sidecar.codec.entry import Entry
from stateward_sidecar.codec.pages import Selection
from stateward_sidecar.errors import Corrupt, Fenced, InvalidField, KeyUnavailable, Locked, VersionPruned
from stateward_sidecar.storage import layout
from stateward_sidecar.store.journal import replay
from stateward_sidecar.store.journal.finding import Lines, Written, digest_at
from stateward_sidecar.store.journal.journal import LOCAL, next_place, open_deletion
from stateward_sidecar.store.journal.kind import Watched
from stateward_sidecar.store.journal.requests import may_be_removed
from stateward_sidecar.store.kinds.table import kind_of
from stateward_sidecar.store.read.listing import ALL_THREADS, find_entry, rows_before
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.thread import Thread
from stateward_sidecar.store.thread.threads import Threads, not_found
from stateward_sidecar.telemetry import log_damage


def find_deletion(
    context: Context, txn: lmdb.Transaction, namespace: str, name: str, uid: bytes
) -> DeletionRecord | None:
    """Returns the record of a thread's deletion; None if there is none. Raises KeyUnavailable."""
    keys = context.keystore.namespace(namespace)
    # Newest first: thousands of watches may wait for thousands of deletions.
    for key, row in rows_before(txn, b"D", None) if keys is not None else ():
        assert keys is not None
        try:
            record = open_deletion(keys, layout.tail_number(key), row)
        except Corrupt as error:  # of any thread: it must not hide the deletions before it
            log_damage("deletion left out of a watch", error)
            continue
        if record is not None and record.uid == uid and record.thread in (name, "") and record.cause != LOCAL:
            return record
    return None


def deleted_event(record: DeletionRecord) -> JournalEvent:
    """Returns the event of a deletion, without its cursor."""
    event = JournalEvent(thread=record.thread, uid=record.uid.hex(), sequence=record.sequence)
    event.time.FromMicroseconds(record.time_us)
    event.deleted.CopyFrom(ThreadDeletion(cause=record.cause))
    return event


def orphan_of_watch(txn: lmdb.Transaction, threads: Threads, uid: bytes, number: int) -> Thread | None:
    """Returns the orphan that a watched copy became; None if it became none. Raises Corrupt or KeyUnavailable."""
    if number and txn.get(layout.orphan_key(uid, number)) is not None:
        return threads.by_number(txn, number)
    return None


def fenced(thread: str, orphan: Thread) -> Fenced:
    """Returns the error for a watch whose last event is in an orphan only."""
    common = orphan.archive.common_sequence if orphan.archive is not None else 0
    return Fenced(
        f"thread {thread!r} was taken over by another sidecar; its entries after {common} are in thread "
        f"{orphan.name!r}; watch again after sequence {common}",
        thread=thread, orphan=orphan.name, common_sequence=common,
    )  # fmt: skip


EVENTS_MAX = 256
EVENT_BYTES_MAX = 2 << 20
# How many entries one read looks at, if few of them become events.
LOOKED_AT_MAX = 16 * EVENTS_MAX
_THREAD_CURSOR = re.compile(r"t\.([0-9a-f]{32})\.(\d{1,19})(?:\.([0-9a-f]{32}))?")
_FEED_CURSOR = re.compile(r"n\.(\d{1,19})")


@dataclass(slots=True)
class Watch:
    """One open watch: its request and its position."""

    request: WatchRequest
    cursor: int = 0  # sequence, or place in the feed of all entries
    uid: bytes = b""  # of the thread; empty for the watch of a namespace
    digest: bytes = b""  # of the entry at the cursor of a thread's watch; empty = the entry is not on this disk
    number: int = 0  # of the thread's copy from which the watch reads; 0 = none yet
    is_over: bool = False
    # Which threads the reader of a namespace's watch may see; None = every one.
    may_read: Callable[[str], bool] | None = None
    # A watch from the beginning skips removed entries up to this sequence.
    holes_until: int = 0

    @property
    def selection(self) -> Selection:
        """The slots and logs whose changes are sent."""
        request = self.request
        if not request.slots and not request.logs:
            return Selection()
        return Selection(frozenset(request.slots), dict.fromkeys(request.logs))

    @property
    def position(self) -> str:
        """The cursor of the watch, as its reader gets it."""
        return _thread_cursor(self.uid, self.cursor, self.digest) if self.uid else f"n.{self.cursor}"

    @property
    def place(self) -> tuple[int, bytes]:
        """Where the watch is. Set it to read from there again."""
        return self.cursor, self.digest

    @place.setter
    def place(self, place: tuple[int, bytes]) -> None:
        (self.cursor, self.digest), self.is_over = place, False


class Watcher:
    """Opens watches, and reads their events."""

    def __init__(self, context: Context, threads: Threads) -> None:
        self._context = context
        self._threads = threads

    def open(self, request: WatchRequest) -> Watch:
        """Opens a watch. Raises ThreadNotFound, InvalidField, VersionPruned, Fenced, HistoryElsewhere or Corrupt."""
        if request.thread == ALL_THREADS:
            found = _match(_FEED_CURSOR, request.after_cursor)
            with self._context.engine.read() as txn:
                newest = next_place(txn) - 1
            after = int(found[1]) if found else newest
            if after > newest:
                raise InvalidField("after_cursor", "does not come from this store")
            return Watch(request, after)
        found = _match(_THREAD_CURSOR, request.after_cursor)
        with self._context.engine.read() as txn:
            thread = self._threads.find(txn, request.namespace, request.thread)
            if found and (thread is None or thread.identity.uid.hex() != found[1]):
                watch = Watch(request, int(found[2]), bytes.fromhex(found[1]), bytes.fromhex(found[3] or ""))
                self._end(txn, watch)  # raises if no deletion is known; else only the last event follows
                watch.is_over = False
                return watch
            if thread is None:
                raise not_found(request.namespace, request.thread)
            tip = thread.head.tip_sequence
            after = request.after_sequence if request.HasField("after_sequence") else tip
            if found:
                after = int(found[2])
            watch = Watch(request, after, thread.identity.uid, bytes.fromhex(found[3] or "") if found else b"")
            self._bind(txn, thread, watch)
        return watch

    def _bind(self, txn: lmdb.Transaction, thread: Thread, watch: Watch) -> None:
        """Lets a watch read from this copy of its thread, if its last event is a part of it. Raises as ``open``."""
        after, tip = watch.cursor, thread.head.tip_sequence
        if after < thread.floor_sequence:  # of older entries, this disk has some or none
            raise replay.history_elsewhere(thread.identity)
        if watch.digest:
            self._check_line(txn, thread, after, watch.digest)
        if after > tip:
            field = "after_cursor" if watch.request.after_cursor else "after_sequence"
            raise InvalidField(field, f"{after} does not exist; the newest sequence is {tip}")
        self._check_retained(txn, thread, after)
        watch.digest = digest_at(txn, thread.identity, after)
        watch.number, watch.holes_until = thread.number, 0 if after else tip

    def read(self, watch: Watch) -> list[JournalEvent]:
        """Returns the next events, at most ``EVENTS_MAX``. Sets ``is_over`` after the last event of the thread.

        If the list is empty, wait for a commit. Raises HistoryElsewhere, Corrupt or KeyUnavailable; a commit may have
        made an entry look damaged, so the caller reads again.
        """
        seen = self._context.writer.changes.over
        with self._context.engine.read() as txn:
            if watch.request.thread == ALL_THREADS:
                return self._read_namespace(txn, watch, seen)
            thread = self._threads.find(txn, watch.request.namespace, watch.request.thread)
            if thread is None or thread.identity.uid != watch.uid:
                return self._end(txn, watch)
            if thread.number != watch.number:
                self._bind(txn, thread, watch)
            return self._read_thread(txn, thread, watch)

    def _check_line(self, txn: lmdb.Transaction, thread: Thread, after: int, digest: bytes) -> None:
        """Raises Fenced if the thread's name now leads to another line than the one that was watched."""
        here = digest_at(txn, thread.identity, after)
        if here == digest or not (here or after > thread.head.tip_sequence):
            return
        identity = thread.identity
        entry = Written(identity.namespace, thread.name, after, identity.uid_text, digest)
        orphan = Lines(self._context, self._threads).find(entry)
        if orphan is not None:
            raise fenced(thread.name, orphan)
        raise Fenced(
            f"entry {after} of thread {thread.name!r} is not the entry of this cursor: another sidecar took the thread "
            f"over; hydrate it and watch from its newest sequence, {thread.head.tip_sequence}",
            thread=thread.name, orphan="",
        )  # fmt: skip

    @staticmethod
    def _check_retained(txn: lmdb.Transaction, thread: Thread, after: int) -> None:
        """Raises VersionPruned if the next entry was removed, because the watch would have a gap, and HistoryElsewhere
        if only the archive has it."""
        gone = 0 < after < thread.head.tip_sequence and not replay.has_entry(txn, thread.identity, after + 1)
        if gone and after < thread.floor_sequence:
            raise replay.history_elsewhere(thread.identity)
        if gone and not may_be_removed(thread, after + 1):
            raise Corrupt(f"journal entry {after + 1} is missing", thread.name)
        if gone:
            raise VersionPruned(
                f"entry {after + 1} of thread {thread.name!r} was pruned; hydrate and watch from its newest sequence, "
                f"{thread.head.tip_sequence}", thread=thread.name, sequence=after + 1,
            )  # fmt: skip

    @staticmethod
    def _is_gap(thread: Thread, after: int, holes_until: int) -> bool:
        """Returns whether a watch must not pass over the missing entries behind ``after``. Raises Corrupt, and
        HistoryElsewhere at the beginning of a journal."""
        if after < thread.floor_sequence:
            if not after:
                raise replay.history_elsewhere(thread.identity)
            return True
        if not may_be_removed(thread, after + 1):
            raise Corrupt(f"journal entry {after + 1} is missing", thread.name)
        return after >= holes_until

    def _read_thread(self, txn: lmdb.Transaction, thread: Thread, watch: Watch) -> list[JournalEvent]:
        events: list[JournalEvent] = []
        after, digest = watch.cursor, watch.digest
        if after >= watch.holes_until:
            self._check_retained(txn, thread, after)
        size, selection = 0, watch.selection
        last = after + LOOKED_AT_MAX
        for entry in replay.read_entries(txn, thread.identity, after + 1):
            if entry.header.sequence > thread.head.tip_sequence:
                break  # committed, but not yet published to readers
            if entry.header.sequence != after + 1 and self._is_gap(thread, after, watch.holes_until):
                if not events:
                    self._check_retained(txn, thread, after)
                break  # the next read says so, after these events
            event = self._event(txn, thread, entry, selection, watch.request)
            after, digest = entry.header.sequence, entry.header.digest
            if event is not None:
                event.cursor = _thread_cursor(watch.uid, after, digest)
                events.append(event)
                size += event.ByteSize()
            if len(events) >= EVENTS_MAX or size >= EVENT_BYTES_MAX or after >= last:
                break
        else:
            if after < min(thread.floor_sequence, thread.head.tip_sequence) and not events:
                raise replay.history_elsewhere(thread.identity)
            if thread.floor_sequence <= after < thread.head.tip_sequence:  # the newest entry is never removed
                raise Corrupt(f"journal entry {thread.head.tip_sequence} is missing", thread.name)
        watch.cursor, watch.digest = after, digest  # at the end, because a read that fails is repeated
        return events

    def _read_namespace(self, txn: lmdb.Transaction, watch: Watch, seen: int) -> list[JournalEvent]:
        events: list[JournalEvent] = []
        size = looked_at = 0
        after, selection = watch.cursor, watch.selection
        cursor = txn.cursor()
        found = cursor.set_range(layout.feed_key(after + 1))
        while found and bytes(cursor.key()[:1]) == b"W":
            place = layout.tail_number(cursor.key())
            event = self._feed_event(txn, watch, selection, place, cursor.value(), seen)
            after = place
            looked_at += 1
            if event is not None:
                event.cursor = f"n.{place}"
                events.append(event)
                size += event.ByteSize()
            if len(events) >= EVENTS_MAX or size >= EVENT_BYTES_MAX or looked_at >= LOOKED_AT_MAX:
                break
            found = cursor.next()
        watch.cursor = after
        return events

    def _feed_event(
        self,
        txn: lmdb.Transaction,
        watch: Watch,
        selection: Selection,
        place: int,
        row: bytes | memoryview,
        seen: int,
    ) -> JournalEvent | None:
        number, request, may_read = 0, watch.request, watch.may_read
        try:
            number, sequence = layout.unpack_feed(row)
            if number == 0:
                gone = self._deletion_event(txn, request, place)
                return gone if gone is None or may_read is None or may_read(gone.thread) else None
            if layout.is_past_feed(row):
                return None
            thread = self._threads.by_number(txn, number)
            if thread is None or thread.identity.namespace != request.namespace or thread.identity.is_held:
                return None
            if may_read is not None and not may_read(thread.name):
                return None
            labels = thread.head.options.labels
            if any(labels.get(key) != value for key, value in request.labels.items()):
                return None
            entry = find_entry(txn, thread, sequence)
            event = self._event(txn, thread, entry, selection, request) if entry is not None else None
            return _as_history(thread, event) if event is not None else None
        except (Corrupt, KeyUnavailable) as error:
            if isinstance(error, Locked) or (number and self._is_deleted(number)):
                return None
            if self._context.writer.changes.has_changed(error.metadata.get("thread"), seen):
                raise  # the cursor has not moved yet, and a second read may succeed
            log_damage("entry left out of a watch", error)
            return None

    def _is_deleted(self, number: int) -> bool:
        """Returns whether the thread was deleted after the caller's transaction began: its key is destroyed at once."""
        with self._context.engine.read() as txn:
            return txn.get(layout.ThreadKeys(number).head) is None

    def _deletion_event(self, txn: lmdb.Transaction, request: WatchRequest, place: int) -> JournalEvent | None:
        keys = self._context.keystore.namespace(request.namespace)
        row = txn.get(layout.deletion_key(place))
        if keys is None or row is None:
            return None
        record = open_deletion(keys, place, bytes(row))
        return deleted_event(record) if record is not None else None

    def _end(self, txn: lmdb.Transaction, watch: Watch) -> list[JournalEvent]:
        """Returns the last event of a deleted thread, even if another thread has its name now.

        Raises Fenced if a takeover left the last event out of the history, and ThreadNotFound if the thread is not on
        this disk and no deletion is known. With an archive, the archive then says whether there is still such a thread.
        """
        namespace, name = watch.request.namespace, watch.request.thread
        orphan = orphan_of_watch(txn, self._threads, watch.uid, watch.number)
        if orphan is not None and orphan.archive is not None and watch.cursor > orphan.archive.common_sequence:
            raise fenced(name, orphan)
        record = find_deletion(self._context, txn, namespace, name, watch.uid) if orphan is None else None
        if record is None:
            raise not_found(namespace, name)
        watch.is_over = True
        if watch.cursor >= record.sequence:
            return []
        event = deleted_event(record)
        event.cursor = _thread_cursor(watch.uid, record.sequence)
        return [event]

    def _event(
        self, txn: lmdb.Transaction, thread: Thread, entry: Entry, selection: Selection, request: WatchRequest
    ) -> JournalEvent | None:
        """Returns the event for a journal entry; None if the request does not ask for it.

        These are versions that change none of the chosen slots and logs, and changes of records.
        """
        header = entry.header
        event = JournalEvent(thread=thread.name, uid=thread.identity.uid_text, sequence=header.sequence)
        event.time.FromMicroseconds(header.create_time_us)
        watched = Watched(
            txn, thread, entry, self._context.cache, selection, request.include_diff, request.include_records
        )
        return event if kind_of(header).tell(watched, event) else None


def _as_history(thread: Thread, event: JournalEvent) -> JournalEvent:
    """Names an entry that an orphan shares with its thread as an entry of the thread."""
    row = thread.archive
    if row is not None and row.orphan_of and event.sequence <= row.common_sequence:
        event.thread = row.orphan_of
        if event.HasField("checkpoint"):
            event.checkpoint.thread = row.orphan_of
    return event


def _thread_cursor(uid: bytes, sequence: int, digest: bytes = b"") -> str:
    return f"t.{uid.hex()}.{sequence}" + (f".{digest.hex()}" if digest else "")


def _match(pattern: re.Pattern[str], cursor: str) -> re.Match[str] | None:
    if not cursor:
        return None
    found = pattern.fullmatch(cursor)
    if found is None:
        raise InvalidField("after_cursor", "does not come from a watch of this kind")
    return found
