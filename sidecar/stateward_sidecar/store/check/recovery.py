"""Recovery at a start: finishes interrupted deletions, removes unfinished copies, and restores lost name rows.

Recovery runs on a worker while calls are served, so the writer decides each change again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import lmdb

from stateward_sidecar.errors import Corrupt, KeyUnavailable
from stateward_sidecar.storage import layout
from stateward_sidecar.storage.queue import Batch, Write
from stateward_sidecar.store.blobs.blobsweep import clear_leftovers
from stateward_sidecar.store.clean.delete import Deleter
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.thread import head_uid, load_numbered, rows
from stateward_sidecar.store.thread.threads import Threads
from stateward_sidecar.store.versions.snapshots import clear
from stateward_sidecar.telemetry import log, log_damage


@dataclass(slots=True)
class _Found:
    """The threads and rows on this disk."""

    wanted: frozenset[bytes]  # uids whose numbers are asked for
    numbers: dict[bytes, list[int]] = field(default_factory=dict)  # those; an orphan has its thread's uid
    keyless: list[int] = field(default_factory=list)  # threads whose key is gone
    headless: list[int] = field(default_factory=list)  # rows of deleted threads and unfinished copies
    nameless: list[int] = field(default_factory=list)  # threads whose name row is gone


class _Numbers:
    """Numbers of threads, a bit for each of those that stand together. A damaged row may have any number."""

    BITS = 4096

    def __init__(self) -> None:
        self._parts: dict[int, bytearray] = {}

    def add(self, number: int) -> None:
        part, bit = divmod(number, self.BITS)
        if part not in self._parts:
            self._parts[part] = bytearray(self.BITS // 8)
        self._parts[part][bit // 8] |= 1 << bit % 8

    def __contains__(self, number: int) -> bool:
        part, bit = divmod(number, self.BITS)
        return part in self._parts and bool(self._parts[part][bit // 8] >> bit % 8 & 1)


class Recovery:
    """Runs once, at the start."""

    def __init__(self, context: Context, threads: Threads, deleter: Deleter) -> None:
        self._context = context
        self._threads = threads
        self._deleter = deleter

    def run(self, below: int) -> None:
        """Recovers threads with a number below ``below``. Later numbers may belong to copies that are being made.

        Frees the keys that the last process left marked or erased, unless a thread has them or somebody has used them
        since the start. Logs damage and changes nothing there. Raises errors that may be temporary, such as DiskFull;
        every step may be repeated.
        """
        with self._context.engine.read() as txn:
            found = self._look(txn, below)
        if found is not None:
            self._context.keyless = frozenset(found.keyless)
            self._recover(found)

    def _look(self, txn: lmdb.Transaction, below: int) -> _Found | None:
        """Reads names and threads. Returns None if a name row cannot be read: it may lead to any thread, so nothing may
        be removed. Verify reports that row."""
        # There may be millions of threads: of most only a bit is kept, whether they have a name.
        wanted = self._context.keystore.unfinished | set(self._context.blob_files.found_at_start)
        found, have_names = _Found(wanted), _Numbers()
        for _, value in rows(txn, b"N"):
            try:
                number, uid = layout.unpack_name(value)
            except Corrupt:
                return None
            have_names.add(number)
            self._note(uid, number, found)
        cursor = txn.cursor()
        more = cursor.set_range(b"T")
        while more and bytes(cursor.key()[:1]) == b"T":
            number = layout.thread_of(cursor.key())
            # A thread with a name and without a head is damaged, not deleted. Its journal must be kept.
            if number < below and number not in have_names:
                self._sort(txn, number, found)
            more = cursor.set_range(layout.after(layout.thread_prefix(number)))
        return found

    def _sort(self, txn: lmdb.Transaction, number: int, found: _Found) -> None:
        head = txn.get(layout.ThreadKeys(number).head)
        if head is None:
            found.headless.append(number)
        elif not self._context.keystore.is_erased(head_uid(head)):
            found.nameless.append(number)
            self._note(head_uid(head), number, found)  # its key and its files stay

    def _note(self, uid: bytes, number: int, found: _Found) -> None:
        if uid in found.wanted:
            found.numbers.setdefault(uid, []).append(number)
        if not self._context.keystore.has_thread(uid):
            found.keyless.append(number)

    def _recover(self, found: _Found) -> None:
        for number in found.nameless:
            self._name_again(number)
        if unfinished := self._context.keystore.unfinished:
            log.info("finishing deletions and copies", keys=len(unfinished))
            write = Write(run=self._settle(set(found.numbers)), background=True, frees_space=True)
            self._context.writer.submit(write, wait=True).wait()
        for number in found.headless:
            self._deleter.purge(number, b"")
        clear(self._context)
        clear_leftovers(self._context, self._threads, found.numbers)

    def _settle(self, named: set[bytes]) -> Callable[[lmdb.Transaction, Batch], None]:
        """Returns the write that settles unfinished keys. If a thread came back while names were read, its key is no
        longer unfinished."""

        def run(txn: lmdb.Transaction, batch: Batch) -> None:
            del txn, batch
            keystore = self._context.keystore
            for uid in keystore.unfinished:
                if uid in named:
                    keystore.mark_leaving(uid, is_leaving=False)
                else:
                    keystore.release(uid)
            keystore.sync()

        return run

    def _name_again(self, number: int) -> None:
        """Restores the name row of a thread from its head, which is sealed and holds the name."""

        def run(txn: lmdb.Transaction, batch: Batch) -> str:
            del batch
            head = txn.get(layout.ThreadKeys(number).head)
            if head is None:
                return ""  # deleted meanwhile
            thread = load_numbered(txn, self._context.keystore, number, head_uid(head))
            key = layout.name_key(thread.identity.namespace_keys.names.thread(thread.name))
            if txn.get(key) is not None:
                return "a thread has lost its name to another one"
            txn.put(key, layout.pack_name(number, thread.identity.uid))
            return "a thread had lost the row of its name, and has it again"

        try:
            write = Write(run=run, background=True, frees_space=True)
            if said := self._context.writer.submit(write, wait=True).wait():
                log.error(said, number=number)
        except (Corrupt, KeyUnavailable) as error:
            log_damage("cannot read a thread that has lost its name row", error, number=number)
