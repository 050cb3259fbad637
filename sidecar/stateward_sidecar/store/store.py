"""The open store. It builds its parts and offers the verbs that the services call.

A verb that writes returns when the write is committed. A verb that reads may take a while, and the caller chooses the
thread to run it on. Nothing here knows gRPC.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

from stateward.v1.workspace_service_pb2 import ObjectsBegin
from stateward_sidecar import security
from stateward_sidecar.clock import Clock
from stateward_sidecar.errors import Corrupt, StartError
from stateward_sidecar.security import LOCKED
from stateward_sidecar.storage import layout
from stateward_sidecar.storage.blobfiles import BlobFiles
from stateward_sidecar.storage.compaction import Compactor
from stateward_sidecar.storage.engine import Engine
from stateward_sidecar.storage.keystore import Fetch, KeyStore
from stateward_sidecar.storage.queue import Write
from stateward_sidecar.storage.writer import Writer
from stateward_sidecar.store.blobs.blobs import Blobs
from stateward_sidecar.store.blobs.segments import SegmentReader
from stateward_sidecar.store.check.recovery import Recovery
from stateward_sidecar.store.check.verify import Verifier
from stateward_sidecar.store.clean.delete import Deleter
from stateward_sidecar.store.clean.effectdelete import EffectDeleter
from stateward_sidecar.store.clean.prune import Pruner
from stateward_sidecar.store.clean.recordcleaning import RecordExpirer, RecordMover
from stateward_sidecar.store.clean.rewrap import Rewrapper
from stateward_sidecar.store.clean.sweep import Sweeper
from stateward_sidecar.store.clean.tally import count_all
from stateward_sidecar.store.copies.exporting import Exporter
from stateward_sidecar.store.copies.fork import Forker
from stateward_sidecar.store.copies.importing import Importer
from stateward_sidecar.store.items.effectlist import EffectList
from stateward_sidecar.store.items.effects import Effects
from stateward_sidecar.store.items.leases import Leases
from stateward_sidecar.store.items.recordlist import RecordList
from stateward_sidecar.store.items.recordputs import RecordPuts
from stateward_sidecar.store.items.signals import Signals
from stateward_sidecar.store.journal.finding import Lines
from stateward_sidecar.store.read.contents import Contents
from stateward_sidecar.store.read.listing import Lister
from stateward_sidecar.store.read.read import Reader
from stateward_sidecar.store.read.readlog import LogReader
from stateward_sidecar.store.read.watch import Watcher
from stateward_sidecar.store.thread.cache import Cache
from stateward_sidecar.store.thread.context import Context, Limits
from stateward_sidecar.store.thread.paging import Tokens
from stateward_sidecar.store.thread.thread import Thread
from stateward_sidecar.store.thread.threads import NameLock, Threads
from stateward_sidecar.store.thread.times import Terms
from stateward_sidecar.store.thread.usage import NamespaceLimit
from stateward_sidecar.store.travel.rekey import Rekeyer
from stateward_sidecar.store.trees.objectwrite import ObjectsWrite
from stateward_sidecar.store.trees.treelist import Trees
from stateward_sidecar.store.versions.moves import Mover
from stateward_sidecar.store.versions.settings import Settings
from stateward_sidecar.store.versions.snapshots import Snapshots
from stateward_sidecar.telemetry import guarded, persist

KEYS_FILE = "keys"
WORKERS = 4
BACKGROUND_WORKERS = 3
DISK_WORKERS = 4
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Options for opening a store. Sizes are in bytes."""

    directory: Path
    key: bytes = field(repr=False)
    map_bytes: int
    cache_bytes: int
    limits: Limits
    # The slots of the archive's root, for a new store; empty = a new store makes its own root.
    root: bytes = field(default=b"", repr=False)
    # Returns the slots that the archive has of a namespace's keys, by its id.
    fetch: Fetch | None = None


class Store:
    """An open data directory with all its verbs."""

    _locked: Sequence[bytes] = ()  # held threads that were locked a moment ago

    def __init__(
        self,
        options: StoreOptions,
        deliver: Callable[[list[Write]], None],
        on_fatal: Callable[[BaseException], None],
        clock: Clock | None = None,
    ) -> None:
        clock = clock or Clock()
        engine = Engine(options.directory, options.map_bytes)
        try:
            keystore = self._open_keys(engine, options)
        except BaseException:
            engine.close()
            raise
        self._is_closing = threading.Event()
        self.counting: Future[object] | None = None
        """The last count of what namespaces take."""
        self.workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="worker")
        self.background = ThreadPoolExecutor(BACKGROUND_WORKERS, thread_name_prefix="background")
        # Writes and syncs of blob files have workers of their own, so that no read waits behind them.
        self.disk = ThreadPoolExecutor(DISK_WORKERS, thread_name_prefix="disk")
        self.context = Context(
            engine=engine, keystore=keystore, cache=Cache(options.cache_bytes), clock=clock, terms=Terms(clock),
            tokens=Tokens(partial(keystore.derive, b"page tokens")), limits=options.limits,
            writer=Writer(engine, deliver, on_fatal), background=self.background, blob_files=BlobFiles(engine),
        )  # fmt: skip
        try:
            self._read_counters()
        except Corrupt as error:
            keystore.close()
            engine.close()
            raise StartError(f"cannot read the counters of {options.directory}: {error.message}") from None
        context = self.context
        self.threads = Threads(context)
        context.cache.source = partial(SegmentReader, context, self.threads)
        self.lines = Lines(context, self.threads)
        self.blobs = Blobs(context, self.threads)
        self.effect_list = EffectList(context, self.threads)
        self.reader = Reader(context, self.threads, self.effect_list)
        self.log_reader = LogReader(context, self.threads)
        self.lister = Lister(context, self.threads, Contents(context, self.effect_list))
        self.settings = Settings(context, self.threads)
        self.mover = Mover(context, self.threads)
        self.effects = Effects(context, self.threads)
        self.leases = Leases(context, self.threads)
        self.signals = Signals(context, self.threads)
        self.snapshots = Snapshots(context, self.threads)
        self.pruner = Pruner(context, self.threads, self.snapshots)
        self.effect_deleter = EffectDeleter(context, self.threads, self.pruner)
        self.record_mover = RecordMover(context, self.threads, self.pruner)
        self.record_puts = RecordPuts(context, self.threads)
        self.record_list = RecordList(context, self.threads)
        self.deleter = Deleter(context, self.threads)
        names = self._names = NameLock()
        self.recovery = Recovery(context, self.threads, self.deleter)
        self.forker = Forker(context, self.threads, self.deleter, names)
        self.exporter = Exporter(context, self.threads)
        self.importer = Importer(context, self.threads, self.deleter, names)
        self.watcher = Watcher(context, self.threads)
        self.verifier = Verifier(context)
        expirer = RecordExpirer(context, self.threads, self.record_mover)
        self.sweeper = Sweeper(context, self.threads, self.deleter, self.pruner, expirer)

    @staticmethod
    def _open_keys(engine: Engine, options: StoreOptions) -> KeyStore:
        path = options.directory / KEYS_FILE
        with engine.read() as txn:
            has_threads = txn.get(layout.NEXT_THREAD_KEY) is not None
        if has_threads and not path.exists():
            raise StartError(
                f"KEY_UNAVAILABLE: the key store {path} is missing, and the data beside it cannot be opened without "
                "it; restore it from a backup"
            )
        keystore = KeyStore(path, options.key, options.root, options.fetch)
        if not has_threads and keystore.has_settled_threads:
            keystore.close()
            raise StartError(
                f"{options.directory} holds keys of threads but no data: data.mdb was lost or replaced; "
                "restore data.mdb, or move the directory away to start with an empty store"
            )
        return keystore

    def _read_counters(self) -> None:
        context = self.context
        with context.engine.read() as txn:
            stored = txn.get(layout.NEXT_THREAD_KEY)
            next_thread = layout.number_of(stored) if stored is not None else 1
            cursor = txn.cursor()
            # An unfinished copy may use a number that the counter does not include.
            found = cursor.prev() if cursor.set_range(b"U") else cursor.last()
            if found and bytes(cursor.key()[:1]) == b"T":
                next_thread = max(next_thread, layout.thread_of(cursor.key()) + 1)
            context.next_thread = next_thread
            context.had_archive = txn.get(layout.ARCHIVE_KEY) is not None

    def start(self) -> None:
        """Starts the writer; and in the background recovery, and the clearing of pruned versions."""
        self.context.writer.start()
        recover = partial(self.recovery.run, self.context.next_thread)
        self.background.submit(persist, "recovery", recover, self._is_closing)
        if not self.context.had_archive:  # else the archive says what may go
            self.background.submit(guarded, "change of keys", self.rewrapper.begin_all)
        self.background.submit(guarded, "compaction", self.compactor.remove_rest)
        self.background.submit(guarded, "pruning", self.pruner.resume)  # if this fails, the next sweep continues

    @cached_property
    def trees(self) -> Trees:
        """Reads trees of files."""
        return Trees(self.context, self.threads)

    @cached_property
    def rewrapper(self) -> Rewrapper:
        """Follows changes of keys of namespaces."""
        return Rewrapper(self.context)

    @cached_property
    def rekeyer(self) -> Rekeyer:
        """Gives threads another data key."""
        return Rekeyer(self.context, self.threads, self.deleter, self._names, self.pruner.resume)

    @cached_property
    def compactor(self) -> Compactor:
        """Rewrites the data file without what was freed."""
        return Compactor(self.context.engine, self.context.writer, self._is_closing.is_set)

    def lock_held(self, held_for_s: float) -> None:
        """Locks held threads without a call for so long, and drops what is in memory of them."""
        context, held = self.context, self.context.keystore.held
        dirty: set[bytes] = set()
        if context.archive is not None and (idle := held.idle(held_for_s)):
            dirty = context.archive.unshipped(idle)
        gone = held.expired(held_for_s, dirty)
        # Work that was begun before a thread was locked may have put something into memory since.
        for uid in gone:
            security.note(LOCKED, "a held thread was locked", uid=uid.hex(), is_shipped=uid not in dirty)
        if left := {uid for uid in (*gone, *self._locked) if not held.is_open(uid)}:
            self.threads.forget_held(left)
            if context.archive is not None:
                context.archive.locked(left)
        self._locked = gone

    def limit_namespaces(self, limits: Sequence[NamespaceLimit]) -> None:
        """Sets what namespaces may take. If nothing was counted before, a worker counts first."""
        if self.context.usage.limit(limits):
            count = partial(count_all, self.context, self._is_closing.is_set)
            self.counting = self.background.submit(persist, "count of namespaces", count, self._is_closing)

    def close(self) -> None:
        """Finishes the writes and tasks that have begun, then closes the store."""
        self._is_closing.set()
        self.context.writer.stop()
        self.workers.shutdown(wait=True, cancel_futures=True)
        self.background.shutdown(wait=True, cancel_futures=True)
        self.disk.shutdown(wait=True, cancel_futures=True)
        self.context.keystore.close()
        self.context.engine.close()

    def read(self, verb: Callable[..., T], *arguments: Any) -> T:
        """Runs a reading verb, and repeats it until its view of memory and disk is consistent."""
        return self.context.settled(partial(verb, *arguments))

    def begin_objects(self, thread: Thread, begin: ObjectsBegin) -> ObjectsWrite:
        """Begins to write objects of a workspace. Makes no file yet. Raises QuotaExceeded."""
        return ObjectsWrite(self.context, self.threads, thread, begin)

    def count_threads(self) -> int:
        """Returns the number of threads on this disk."""
        with self.context.engine.read() as txn:
            cursor = txn.cursor()
            count = 0
            if cursor.set_range(b"N"):
                for key in cursor.iternext(keys=True, values=False):
                    if key[:1] != b"N":
                        break
                    count += 1
            return count
