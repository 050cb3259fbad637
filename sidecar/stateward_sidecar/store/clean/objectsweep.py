"""Removes objects of trees that no retained version names, and moves objects that lie badly.

Nothing counts references. A sweep walks all trees that retained versions name. An object that none of them has is
*unnamed*. It goes with a later sweep, at the earliest an hour after it was first seen to be unnamed, unless somebody
was told meanwhile that it is there (``TreeMemory.ask``), or a tree names it by then. It was written or asked for before
it was seen, so its writer has an hour to name it. This hour begins when the sweep has looked, and no wall clock counts
it. What is unnamed is known to this process only, so after a start the hour begins anew.

First the rows of objects go, some thousands in each transaction. An entry to which no row leads any more lists nothing.
It is said to count for nothing, in an entry of its own, and its pack goes as a blob goes, in the same transaction.

Objects are moved into new packs if less than half of their pack is named, or if they lie in entries and have come to a
megabyte. A move changes no object: they are read, packed, and their rows lead to the new place.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import lmdb

from stateward.storage.v1.journal_pb2 import EntryMetadata, ObjectsBody
from stateward.v1.workspace_pb2 import TREE_ENTRY_KIND_DIRECTORY
from stateward_sidecar.codec.entry import draft as draft_content
from stateward_sidecar.codec.entry import unpack
from stateward_sidecar.codec.objects import IS_DIRECTORY, PackedObject, chunks_of, parse_directory
from stateward_sidecar.errors import HistoryElsewhere, NotOwner, OutcomeUnknown, ShuttingDown, StatewardError
from stateward_sidecar.storage import layout
from stateward_sidecar.storage.queue import Batch, Write
from stateward_sidecar.store.blobs.blobrows import find_blob
from stateward_sidecar.store.blobs.blobsweep import may_collect, remove_blob
from stateward_sidecar.store.blobs.segments import discard
from stateward_sidecar.store.clean.lineage import add_uncleared
from stateward_sidecar.store.clean.prune import Pruner
from stateward_sidecar.store.journal import replay
from stateward_sidecar.store.journal.journal import all_or_none, append, commit_entry
from stateward_sidecar.store.journal.opening import is_still_ours
from stateward_sidecar.store.kinds.objects import OBJECTS, find_place, object_key, object_rows
from stateward_sidecar.store.kinds.pruned import PRUNED
from stateward_sidecar.store.kinds.version import VERSION
from stateward_sidecar.store.thread import blocks
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.ranges import Pruned, Ranges
from stateward_sidecar.store.thread.thread import Thread, ThreadDraft, rows, write_row
from stateward_sidecar.store.thread.threads import Threads
from stateward_sidecar.store.thread.times import SECOND_US, made_us
from stateward_sidecar.store.trees.naming import names_tree
from stateward_sidecar.store.trees.objectread import ObjectReader
from stateward_sidecar.store.trees.packs import Listed, PackBuilder, put_listed
from stateward_sidecar.telemetry import log_damage

# How long an object stays that nothing names. The trees of a thread are walked at most once in this time.
KEPT_S = 3600
INTERVAL_S = 3600
RECORDS_A_STEP, ROWS_A_WRITE, LISTS_A_WRITE = 500, 2000, 256
# A pack is packed anew if less than this part of it is named. Entries that have objects are packed if these have so
# many bytes, or if they are so many. So many bytes are moved in a round.
# Trees are dropped if a thread has more than FULL_PART of what it may, until it has ROOM_PART.
FULL_PART, ROOM_PART = 0.9, 0.75
NAMED_PART, INLINE_BYTES, INLINE_LISTS, MOVED_BYTES = 0.5, 1 << 20, 64, 64 << 20
Submit = Callable[[Write], Any]


@dataclass(slots=True)
class _Census:
    """What a thread has, and what its trees name."""

    tip: int
    named: set[bytes] = field(default_factory=set)  # keys of objects
    alone: dict[int, set[bytes]] = field(default_factory=dict)  # by version: those of no tree before it in the walk
    droppable: list[int] = field(default_factory=list)  # versions whose trees may be dropped, the oldest first
    trees: dict[int, bytes] = field(default_factory=dict)  # by version: its tree
    lists: dict[int, int] = field(default_factory=dict)  # times of the entries that list objects, by sequence
    # Of the objects whose rows lead there, by sequence: all, and those that are named.
    placed: dict[int, list[tuple[bytes, int]]] = field(default_factory=dict)


class ObjectSweeper:
    """Collects and moves objects. Runs on a worker thread, one sweep at a time."""

    def __init__(self, context: Context, threads: Threads, pruner: Pruner) -> None:
        self._context = context
        self._threads = threads
        self._pruner = pruner
        # By thread, in seconds of the boot-time clock: when it is looked at again, and when its unnamed objects were
        # first seen.
        self._next_s: dict[int, float] = {}
        self._since_s: dict[int, float] = {}
        # By thread: its newest entry when a sweep found nothing to do. Nothing is to do until something is written.
        self._idle: dict[int, int] = {}
        self._left_bytes = 0

    def sweep(self, submit: Submit) -> None:
        """Runs one round. ``submit`` queues a write and waits for it."""
        clock, self._left_bytes = self._context.clock, MOVED_BYTES
        with self._context.engine.read() as txn:
            numbers = [layout.marked_thread(key) for key, _ in rows(txn, b"B")]
        for known in (self._idle, self._since_s, self._next_s):
            for gone in known.keys() - set(numbers):
                del known[gone]
        for number in numbers:
            if clock.boottime() >= self._next_s.get(number, 0.0) or number in self._context.trees.full:
                try:
                    self._sweep_thread(number, clock.now_us(), submit)
                finally:
                    self._next_s[number] = self._due_s(number)

    def _due_s(self, number: int) -> float:
        """Returns when a thread that was looked at is looked at again: once what it waits for has had its hour."""
        now_s, over_s = self._context.clock.boottime(), self._since_s.get(number, 0.0) + KEPT_S
        return min(now_s + INTERVAL_S, over_s if over_s > now_s else now_s + INTERVAL_S)

    def _sweep_thread(self, number: int, now_us: int, submit: Submit) -> None:
        try:
            with self._context.engine.read() as txn:
                thread = self._threads.by_number(txn, number)
                if thread is None or thread.floor_sequence or not may_collect(txn, thread):
                    return
            memory = self._context.trees
            if self._idle.get(number) == thread.head.tip_sequence and number not in memory.full:
                return
            census = self._count(thread)
            hooks = self._context.archive
            if (hooks is not None and hooks.is_away()) or not is_still_ours(self._context, thread):
                return
            if not self._drop(thread, census, submit):
                return
            self._collect(thread, census, submit)
            self._move(thread, census, now_us, submit)
            self._remove_lists(thread, census, now_us, submit)
            has_young = any(self._is_young(time_us, now_us) for time_us in census.lists.values())
            if memory.unnamed(number) is None and not has_young and self._left_bytes > 0:
                self._idle[number] = census.tip  # what this sweep has written makes it look once more
        except ShuttingDown:
            raise
        except StatewardError as error:
            log_damage("objects of trees left out of a sweep", error)

    # -- counting --------------------------------------------------------------------------------------------------

    def _count(self, thread: Thread) -> _Census:
        """Reads the journal, walks all trees, and reads all rows. Raises Corrupt, HistoryElsewhere."""
        census, at = _Census(thread.head.tip_sequence), 0
        while at < census.tip:
            at = self._context.settled(lambda at=at: self._look(thread, at, census))  # type: ignore[misc]
        self._walk(thread, census)
        with self._context.engine.read() as txn:
            for key, place in object_rows(txn, thread.identity):
                census.placed.setdefault(place.sequence, []).append((key, place.at))
        return census

    def _look(self, thread: Thread, after: int, census: _Census) -> int:
        """Notes the trees and lists of the next entries. Returns the sequence of the last entry."""
        identity, now_us = thread.identity, self._context.clock.now_us()
        with self._context.engine.read() as txn:
            for number, (sequence, record) in enumerate(blocks.entries(txn, identity.keys, after + 1)):
                if sequence > census.tip:
                    return census.tip
                if number >= RECORDS_A_STEP:
                    return sequence - 1
                entry = unpack(record, sequence)
                header = entry.header
                if header.kind == OBJECTS.number and sequence not in thread.pruned.objects:
                    census.lists[sequence] = made_us(thread.head, sequence, header.create_time_us, now_us)
                if names_tree(thread, header):
                    body = replay.open_metadata(identity, entry).checkpoint
                    if body.HasField("workspace"):
                        census.trees[header.version] = body.workspace.digest
        return census.tip

    def _walk(self, thread: Thread, census: _Census) -> None:
        """Notes all objects of the trees: first those that stay in any case, then from the newest to the oldest. So
        ``census.alone`` has for each version what is freed if its tree is dropped after all that are older.

        A tree of a version that was pruned meanwhile may lack some.
        """
        kept = {branch.version for branch in thread.branches.values()} | set(thread.tags.values())
        census.droppable = sorted(census.trees.keys() - kept)
        reader, seen = ObjectReader(self._context, thread), set[bytes]()
        for version in (*sorted(census.trees.keys() & kept), *reversed(census.droppable)):
            before = set[bytes]()
            self._walk_tree(thread, census, reader, census.trees[version], seen, before)
            census.alone[version] = before

    def _walk_tree(
        self, thread: Thread, census: _Census, reader: ObjectReader, root: bytes, seen: set[bytes], new: set[bytes]
    ) -> None:
        identity, waiting = thread.identity, [root]

        def note(digest: bytes, *, is_directory: bool) -> None:
            key = object_key(identity, digest, is_directory=is_directory)
            if key not in census.named:
                census.named.add(key)
                new.add(key)

        while waiting:
            digest = waiting.pop()
            if digest in seen:
                continue
            seen.add(digest)
            time.sleep(0)  # the event loop has its turn now, and not after a switch interval
            note(digest, is_directory=True)
            data = self._fetched(thread, partial(self._read, reader, digest))
            for entry in parse_directory(data).entries:
                if entry.kind == TREE_ENTRY_KIND_DIRECTORY:
                    waiting.append(entry.digest)
                for chunk, _ in chunks_of(entry):
                    note(chunk, is_directory=False)

    def _fetched(self, thread: Thread, read: Callable[[], bytes]) -> bytes:
        """Reads a directory. Fetches its pack if only the archive has it. Raises HistoryElsewhere, Corrupt."""
        hooks = self._context.archive
        try:
            return self._context.settled(read)
        except HistoryElsewhere as error:
            if hooks is None or hooks.is_away() or "blobs" not in error.metadata:
                raise
            for sha256 in error.metadata["blobs"].split(","):
                hooks.fetch_blob((thread.identity.namespace, thread.name), bytes.fromhex(sha256))
        return self._context.settled(read)

    def _read(self, reader: ObjectReader, digest: bytes) -> bytes:
        with self._context.engine.read() as txn:
            return reader.read(txn, digest, is_directory=True)

    # -- dropping trees ---------------------------------------------------------------------------------------------

    def _drop(self, thread: Thread, census: _Census, submit: Submit) -> bool:
        """Drops the oldest trees if a thread was refused objects, or is near its limit: as many as make room. Those of
        heads and tagged versions stay. Their objects go as all that nothing names.

        Returns whether the census is right. It is not if one of them stays, because it became a head or was tagged
        since: then objects that ``census.alone`` gives to another one are named still.
        """
        most, taken = self._context.limits.workspace_bytes, thread.head.object_bytes
        is_full = thread.number in self._context.trees.full
        self._context.trees.full.discard(thread.number)
        if not most or not census.droppable or not (is_full or taken > FULL_PART * most):
            return True
        sizes = self._sizes(thread, census)
        excess = taken - ROOM_PART * most - sum(size for key, size in sizes.items() if key not in census.named)
        going = list[int]()
        for version in census.droppable:
            if excess <= 0:
                break
            going.append(version)
            excess -= sum(sizes.get(key, 0) for key in census.alone[version])
        if not going:
            return True
        run = partial(self._drop_trees, thread, going)
        if not submit(Write(run=run, background=True, is_alone=True, frees_space=True)):
            if is_full:
                self._context.trees.full.add(thread.number)  # the next round looks again
            return False
        for version in going:
            del census.trees[version]
            census.named -= census.alone[version]
        return True

    def _sizes(self, thread: Thread, census: _Census) -> dict[bytes, int]:
        """Returns what each object takes at rest, by its key."""
        reader, found = ObjectReader(self._context, thread), dict[bytes, int]()
        for sequence, rows_ in sorted(census.placed.items()):
            with self._context.engine.read() as txn:
                placed = reader.batch(txn, sequence).placed
            found.update((key, placed[at].stop - placed[at].start) for key, at in rows_)
        return found

    def _drop_trees(self, thread: Thread, going: list[int], txn: lmdb.Transaction, batch: Batch) -> bool:
        """Drops those that may still be dropped. Returns whether these are all."""
        draft = self._draft(txn, batch, thread)
        if draft is None:
            return False
        kept = {branch.version for branch in draft.all_branches().values()} | set(draft.all_tags().values())
        may_go = [version for version in going if version not in kept]
        if not may_go:
            return False
        with all_or_none(batch, draft):
            after = self._say(txn, batch, draft, Pruned(trees=Ranges((version, version) for version in may_go)))
        draft.pruned = after
        self._threads.keep_draft(batch, draft)
        return len(may_go) == len(going)

    def _draft(self, txn: lmdb.Transaction, batch: Batch, thread: Thread) -> ThreadDraft | None:
        """Returns the draft of a thread; None if it is not ours any more."""
        identity = thread.identity
        draft = self._threads.draft(txn, batch, identity.namespace, identity.name)
        if draft is None or draft.identity.number != identity.number:
            return None
        try:
            draft.check_writable()
        except NotOwner:  # it was given up meanwhile
            return None
        return draft

    def _say(
        self, txn: lmdb.Transaction, batch: Batch, draft: ThreadDraft, removed: Pruned, gone_bytes: int = 0
    ) -> Pruned:
        """Appends the entry that says what was removed. Returns what the thread has removed by then."""
        context, identity = self._context, draft.identity
        after = draft.pruned.merged(removed)
        metadata = EntryMetadata(pruned=after.to_message(), removed=removed.to_message())
        time_us = draft.head.update_time_us  # nobody worked on the thread
        entry = append(context, txn, draft, PRUNED, draft_content(metadata), time_us=time_us)
        entry.head.object_bytes = max(entry.head.object_bytes - gone_bytes, 0)
        sums = dict([write_row(txn, draft, entry.head, identity.keys.pruned(), metadata.pruned)])
        commit_entry(context, txn, batch, draft, entry, sums)
        return after

    # -- removing objects ------------------------------------------------------------------------------------------

    def _collect(self, thread: Thread, census: _Census, submit: Submit) -> None:
        number, memory, clock = thread.number, self._context.trees, self._context.clock
        unnamed = {key for found in census.placed.values() for key, _ in found if key not in census.named}
        waiting, since_s = memory.unnamed(number), self._since_s.get(number)
        if waiting is None or since_s is None:
            memory.watch(number, unnamed)
            self._since_s[number] = clock.boottime()  # after the watch: who asked before it is not heard
            return
        if clock.boottime() < since_s + KEPT_S:
            return
        doomed = sorted(waiting & unnamed)
        for at in range(0, len(doomed), ROWS_A_WRITE):
            some = doomed[at : at + ROWS_A_WRITE]
            submit(Write(run=self._remove_rows(thread, census, some), background=True, frees_space=True))
        memory.watch(number, unnamed - set(doomed))
        self._since_s[number] = clock.boottime()
        self._look_again(thread, census)

    @staticmethod
    def _is_young(time_us: int, now_us: int) -> bool:
        return time_us > now_us - KEPT_S * SECOND_US

    def _open(
        self, txn: lmdb.Transaction, batch: Batch, thread: Thread, census: _Census
    ) -> ThreadDraft | None:
        """Returns the draft of a thread; None if it is not ours any more, or was saved with a tree since the census."""
        draft, identity = self._draft(txn, batch, thread), thread.identity
        if draft is None:
            return None
        for sequence in range(census.tip + 1, draft.head.tip_sequence + 1):
            record = blocks.get_entry(txn, identity.keys, sequence)
            if record is None:
                continue
            entry = unpack(record, sequence)
            if entry.header.kind == VERSION.number:
                body = replay.open_metadata(identity, entry).checkpoint
                if body.HasField("workspace") and body.workspace.digest not in census.trees.values():
                    return None
        return draft

    def _remove_rows(
        self, thread: Thread, census: _Census, keys: list[bytes]
    ) -> Callable[[lmdb.Transaction, Batch], None]:
        """Returns the write that removes rows, unless somebody asked for their objects meanwhile."""

        def run(txn: lmdb.Transaction, batch: Batch) -> None:
            memory = self._context.trees
            unnamed = memory.unnamed(thread.number) or set()
            if self._open(txn, batch, thread, census) is None:
                return
            self._forget(batch, thread)
            for key in keys:
                if key in unnamed:
                    txn.delete(key)

        return run

    def _forget(self, batch: Batch, thread: Thread) -> None:
        """Has trees that were looked at before looked at again, also those that are looked at before the commit."""
        memory = self._context.trees
        memory.forget(thread.number)
        batch.after_commit.append(partial(memory.forget, thread.number))

    # -- moving objects --------------------------------------------------------------------------------------------

    def _move(self, thread: Thread, census: _Census, now_us: int, submit: Submit) -> None:
        """Packs what lies badly. Raises DiskFull, Corrupt."""
        reader = ObjectReader(self._context, thread)
        chosen = self._choose(thread, reader, census, now_us)
        if not chosen:
            return
        builders = {kind: PackBuilder(self._context, thread.identity) for kind in (True, False)}
        sources = frozenset(chosen)
        try:
            for packed in self._packed(thread, reader, chosen):
                made = builders[bool(packed.form & IS_DIRECTORY)].take(packed)
                if made is not None:
                    self._commit(thread, made, sources, submit)
            for builder in builders.values():
                if (made := builder.finish()) is not None:
                    self._commit(thread, made, sources, submit)
        finally:
            for builder in builders.values():
                builder.discard()
        self._look_again(thread, census)

    def _choose(
        self, thread: Thread, reader: ObjectReader, census: _Census, now_us: int
    ) -> dict[int, list[int]]:
        """Returns the named objects that are to be moved: their places, by the sequences of their entries."""
        found, inline, inline_bytes = dict[int, list[int]](), list[int](), 0
        for sequence, rows_ in sorted(census.placed.items()):
            if sequence not in census.lists or self._is_young(census.lists[sequence], now_us):
                continue
            with self._context.engine.read() as txn:
                batch = reader.batch(txn, sequence)
            named = [at for key, at in rows_ if key in census.named]
            size_bytes = sum(batch.placed[at].stop - batch.placed[at].start for at in named)
            if not batch.body.pack:
                inline.append(sequence)
                inline_bytes += size_bytes
            else:
                is_well_filled = size_bytes >= NAMED_PART * batch.body.packed_bytes
                if not named or is_well_filled or not self._is_here(thread, batch.body.pack):
                    continue
            self._left_bytes -= size_bytes
            if self._left_bytes <= 0:  # no other thread has its turn in this round
                break
            found[sequence] = sorted(named)
        if inline_bytes < INLINE_BYTES and len(inline) < INLINE_LISTS:
            for sequence in inline:
                found.pop(sequence, None)
        return {sequence: places for sequence, places in found.items() if places}

    def _is_here(self, thread: Thread, pack: bytes) -> bool:
        with self._context.engine.read() as txn:
            row = find_blob(txn, thread.identity, pack)
        return row is not None and self._context.blob_files.is_here(thread.identity.uid, row.record.blob_id)

    def _packed(
        self, thread: Thread, reader: ObjectReader, chosen: dict[int, list[int]]
    ) -> Iterator[PackedObject]:
        for sequence, places in chosen.items():
            for at in places:
                with self._context.engine.read() as txn:
                    batch = reader.batch(txn, sequence)
                    placed = batch.placed[at]
                    data = reader.packed(txn, batch, placed)
                yield PackedObject(placed.digest, placed.form, placed.size_bytes, data)

    def _commit(self, thread: Thread, made: Listed, sources: frozenset[int], submit: Submit) -> None:
        context, identity, content = self._context, thread.identity, made.content()
        assert made.pack is not None

        def run(txn: lmdb.Transaction, batch: Batch) -> bool:
            draft = self._threads.draft(txn, batch, identity.namespace, identity.name)
            if draft is None or draft.identity.number != identity.number:
                return False
            draft.check_writable()
            time_us = draft.head.update_time_us  # nobody worked on the thread
            with all_or_none(batch, draft):
                put_listed(context, txn, batch, draft, made, content, time_us=time_us, moved=sources)
            self._threads.keep_draft(batch, draft)
            return True

        write = Write(run=run, background=True, is_alone=True)
        submit(write)
        if isinstance(write.error, OutcomeUnknown):
            return  # perhaps a row names the file; the next start removes it if none does
        with context.engine.read() as txn:
            is_kept = find_blob(txn, identity, made.pack.sha256) is not None
        if not is_kept:
            discard(context, identity, [made.pack])

    def _look_again(self, thread: Thread, census: _Census) -> None:
        """Reads anew which rows lead to the entries of a census."""
        with self._context.engine.read() as txn:
            for sequence, found in census.placed.items():
                census.placed[sequence] = [
                    (key, at) for key, at in found
                    if (place := find_place(txn, key)) is not None and place.sequence == sequence
                ]  # fmt: skip

    # -- removing entries and packs --------------------------------------------------------------------------------

    def _remove_lists(self, thread: Thread, census: _Census, now_us: int, submit: Submit) -> None:
        """Removes entries to which no row leads, with their packs."""
        dead = sorted(
            sequence for sequence, time_us in census.lists.items()
            if not census.placed.get(sequence) and not self._is_young(time_us, now_us)
        )  # fmt: skip
        if not dead:
            return
        identity, before = thread.identity, thread.pruned
        alive = sorted(census.lists.keys() - set(dead))
        with self._pruner.alone(identity.namespace, identity.name):
            for at in range(0, len(dead), LISTS_A_WRITE):
                some = dead[at : at + LISTS_A_WRITE]
                waiting = sorted([*alive, *dead[at + LISTS_A_WRITE :]])
                run = partial(self._remove_some, thread, some, waiting)
                submit(Write(run=run, background=True, is_alone=True, frees_space=True))
            self._pruner.clear_up(thread.number, before)

    def _remove_some(
        self, thread: Thread, dead: list[int], alive: list[int], txn: lmdb.Transaction, batch: Batch
    ) -> None:
        context, identity = self._context, thread.identity
        draft = self._threads.draft(txn, batch, identity.namespace, identity.name)
        if draft is None or draft.identity.number != identity.number:
            return
        draft.check_writable()
        bodies, gone_bytes = self._bodies(txn, draft, dead), 0
        with all_or_none(batch, draft):
            for body in bodies:
                row = find_blob(txn, identity, body.pack) if body.pack else None
                if row is not None:
                    remove_blob(context, txn, batch, draft, row)
                gone_bytes += row.record.stored_bytes if row is not None else body.packed_bytes
            removed = Pruned(objects=_joined(draft.pruned.objects, dead, alive))
            add_uncleared(txn, identity.number, draft.pruned, removed)
            after = self._say(txn, batch, draft, removed, gone_bytes)
        draft.pruned = after
        self._threads.keep_draft(batch, draft)
        self._forget(batch, thread)

    @staticmethod
    def _bodies(txn: lmdb.Transaction, draft: ThreadDraft, dead: list[int]) -> list[ObjectsBody]:
        """Returns the first parts of entries."""
        found = list[ObjectsBody]()
        for sequence in dead:
            record = blocks.get_entry(txn, draft.identity.keys, sequence)
            if record is not None:
                found.append(replay.open_metadata(draft.identity, unpack(record, sequence)).objects)
        return found


def _joined(before: Ranges, dead: Iterable[int], alive: list[int]) -> Ranges:
    """Returns the entries that go, with the gaps in which no list is left: as few ranges as possible."""
    mine = [(sequence, sequence) for sequence in dead]
    known = Ranges([*before.pairs(), *mine]).pairs()
    gaps = [
        (last + 1, first - 1) for (_, last), (first, _) in pairwise(known)
        if bisect_right(alive, last) == bisect_right(alive, first)
    ]  # fmt: skip
    return Ranges([*mine, *gaps])
