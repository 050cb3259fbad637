"""Writes the objects of one WriteObjects: takes them as they come, makes packs, and names each pack with a transaction.

The methods block, and may be called on any thread, but not at the same time. A crash leaves whole packs with their
entries and rows, and files that no row names, which the next start removes. """

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import lmdb

from stateward.v1.workspace_service_pb2 import ObjectsBegin, WriteObjectsResponse
from stateward_sidecar.codec.entry import EntryContent
from stateward_sidecar.errors import ArchiveUnavailable, DeadlineExceeded
from stateward_sidecar.storage.queue import Batch
from stateward_sidecar.store.blobs.blobwrite import is_here
from stateward_sidecar.store.blobs.segments import discard
from stateward_sidecar.store.journal.admitting import admit, get_same
from stateward_sidecar.store.journal.journal import all_or_none
from stateward_sidecar.store.journal.views import newest_receipt
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.thread import Thread
from stateward_sidecar.store.thread.threads import Threads
from stateward_sidecar.store.thread.usage import Reserved
from stateward_sidecar.store.trees.incoming import OBJECTS_A_TURN
from stateward_sidecar.store.trees.objectread import ObjectReader
from stateward_sidecar.store.trees.packs import Listed, PackBuilder, check_room, put_listed
from stateward_sidecar.store.trees.treecheck import Named


@dataclass(slots=True)
class FullPack:
    """A pack whose file is durable, and the entry that will list it."""

    listed: Listed
    content: EntryContent


class ObjectsWrite:
    """One call of WriteObjects."""

    def __init__(self, context: Context, threads: Threads, thread: Thread, begin: ObjectsBegin) -> None:
        self.thread = thread
        self.answer = WriteObjectsResponse()
        self._context = context
        self._threads = threads
        self._begin = begin
        self._reserved = Reserved(context.usage, thread.identity.namespace)
        self._reserved.take(0)
        self._reader = ObjectReader(context, thread)
        # Directories and chunks have packs of their own.
        self._builders = {kind: PackBuilder(context, thread.identity) for kind in (True, False)}
        self._seen: set[Named] = set()
        # A cancelled call discards files while a worker may still run its last step.
        self._lock = threading.Lock()
        self._is_over = False

    def add(self, objects: Mapping[Named, bytes]) -> list[FullPack]:
        """Takes objects that were checked. Returns the packs that are full now; the caller commits them in this order.
        Raises DiskFull, QuotaExceeded, HistoryElsewhere."""
        with self._lock:
            self._check_open()
            new = dict[Named, bytes]()
            with self._context.engine.read() as txn:
                for name, data in objects.items():
                    is_known = name in self._seen or self._is_there(txn, name)
                    if is_known:
                        self.answer.existed += 1
                    else:
                        new[name] = data
            return self._made(self._pack(new))

    def _pack(self, new: Mapping[Named, bytes]) -> Iterator[Listed | None]:
        for number, (name, data) in enumerate(new.items()):
            if number % OBJECTS_A_TURN == 0:
                time.sleep(0)
            is_directory, digest = name
            self._seen.add(name)
            self.answer.written += 1
            self.answer.size_bytes += len(data)
            yield self._builders[is_directory].add(digest, data, is_directory=is_directory)

    def _made(self, made: Iterable[Listed | None]) -> list[FullPack]:
        """Returns the packs that are full, and counts them. If one of them fails, none is left."""
        full = list[FullPack]()
        try:
            for each in made:
                full += [FullPack(each, each.content())] if each is not None else []
            self._reserve(full)
        except BaseException:
            for pack in full:
                self.discard_pack(pack)
            raise
        return full

    def _is_there(self, txn: lmdb.Transaction, name: Named) -> bool:
        is_directory, digest = name
        return self._reader.find(txn, digest, is_directory=is_directory) is not None

    def finish(self) -> list[FullPack]:
        """Completes the packs that are not full. Raises the same."""
        with self._lock:
            self._check_open()
            return self._made(builder.finish() for builder in self._builders.values())

    def _reserve(self, full: list[FullPack]) -> None:
        made = sum(each.listed.stored_bytes for each in full)
        made += sum(builder.stored_bytes for builder in self._builders.values())
        # As the thread is now: packs before these are committed by now.
        check_room(self._context, self.thread.head.object_bytes, made, self.thread.identity)
        self._reserved.take(made)

    def _check_open(self) -> None:
        if self._is_over:
            raise DeadlineExceeded("the call was cancelled")

    def commit(self, full: FullPack, txn: lmdb.Transaction, batch: Batch) -> WriteObjectsResponse:
        """Runs in the writer: names a pack. If it fails, the caller discards the pack."""
        context, record = self._context, full.listed.pack
        assert record is not None
        draft = get_same(self._threads, txn, batch, self.thread.identity)
        draft.check_writable()
        admit(context, draft, self._begin.options, needs_lease=False)
        if not is_here(context, draft.identity, record):
            raise ArchiveUnavailable(
                f"the copy of thread {draft.identity.name!r} on this disk was deleted during the write, and what was "
                "sent with it; send it again"
            )
        self._reserved.end()  # from here on the thread's head counts them
        with all_or_none(batch, draft):
            put_listed(context, txn, batch, draft, full.listed, full.content, is_bounded=True)
        self._threads.keep_draft(batch, draft)
        return WriteObjectsResponse(receipt=newest_receipt(draft), stored_bytes=record.stored_bytes)

    def touch(self, txn: lmdb.Transaction, batch: Batch) -> WriteObjectsResponse:
        """Runs in the writer, if the call had nothing new: checks the options, and answers with the newest entry."""
        draft = get_same(self._threads, txn, batch, self.thread.identity)
        admit(self._context, draft, self._begin.options, needs_lease=False)
        return WriteObjectsResponse(receipt=newest_receipt(draft))

    def discard_pack(self, full: FullPack) -> None:
        """Removes the file of a pack that no row names."""
        if full.listed.pack is not None:
            discard(self._context, self.thread.identity, [full.listed.pack])

    def end(self) -> None:
        """Removes what is not complete. Later steps of the call raise DeadlineExceeded."""
        with self._lock:
            self._is_over = True
            for builder in self._builders.values():
                builder.discard()
            self._reserved.end()
