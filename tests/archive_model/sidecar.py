"""One sidecar without gRPC: a real store on a real disk, the real services, and an archive that does nothing by itself.

What a daemon does in the background (ships, uploads, rows) happens when the machine says so; calls go through the
services as they do in a daemon.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

from tests.archive_model.faults import FakeClock, FaultyBucket, Op, SkewedClock
from tests.archive_model.process import (
    Caller,
    DrivenBlobs,
    DrivenCalls,
    DrivenHolding,
    DrivenLanes,
    DrivenWire,
    DrivenWriter,
    Inline,
    Pool,
    run,
)
from tests.archive_model.turns import Lock, NameLocks, Turns

from stateward.v1.archive_service_pb2 import CollectGarbageRequest
from stateward.v1.blob_service_pb2 import BlobBegin, ReadBlobRequest, WriteBlobRequest, WriteBlobResponse
from stateward.v1.checkpoint_pb2 import DURABILITY_ARCHIVED, DURABILITY_COMMITTED
from stateward.v1.checkpoint_service_pb2 import (
    HydrateRequest,
    HydrateResponse,
    ListCheckpointsRequest,
    ListCheckpointsResponse,
    SaveRequest,
    SaveResponse,
)
from stateward.v1.effect_service_pb2 import (
    BeginEffectRequest,
    BeginEffectResponse,
    CompleteEffectRequest,
    CompleteEffectResponse,
    RenewEffectRequest,
    RenewEffectResponse,
)
from stateward.v1.signal_pb2 import Signal
from stateward.v1.signal_service_pb2 import ListSignalsRequest, SendSignalRequest, SendSignalResponse
from stateward.v1.state_pb2 import BlobRef
from stateward.v1.thread_pb2 import ThreadInfo as ThreadMessage
from stateward.v1.thread_pb2 import ThreadOptions
from stateward.v1.thread_service_pb2 import (
    DeleteThreadRequest,
    DeleteThreadResponse,
    ForkThreadRequest,
    PruneThreadRequest,
    PruneThreadResponse,
    SetTagRequest,
    SetTagResponse,
    UpdateThreadRequest,
    UpdateThreadResponse,
    WaitDurableRequest,
    WaitDurableResponse,
)
from stateward.v1.write_pb2 import Receipt, WriteOptions
from stateward_sidecar.archive.archive import Archive
from stateward_sidecar.archive.fleet.collect import Collector, Verbs
from stateward_sidecar.archive.objects.shared import Hold, Name, Options
from stateward_sidecar.archive.objects.start import fetch_root, find_former_boots, join, remember_boot
from stateward_sidecar.bucket.base import Bucket
from stateward_sidecar.bucket.retrying import Patience, RetryingBucket
from stateward_sidecar.errors import StatewardError
from stateward_sidecar.service.api.checkpoints import CheckpointService
from stateward_sidecar.service.api.effects import EffectService
from stateward_sidecar.service.api.records import RecordService
from stateward_sidecar.service.api.signals import SignalService
from stateward_sidecar.service.api.threads import ThreadService
from stateward_sidecar.service.checks import check
from stateward_sidecar.storage import layout
from stateward_sidecar.storage.queue import Write
from stateward_sidecar.store.store import KEYS_FILE, Store, StoreOptions
from stateward_sidecar.store.thread.context import Limits
from stateward_sidecar.store.thread.thread import Thread, load_thread, rows

T = TypeVar("T")
NAMESPACE = check.DEFAULT_NAMESPACE
KEY = b"k" * 32
MAP_BYTES = 64 << 20
LEASE_S, GRACE_S = 10.0, 600.0
CALLER: Any = Caller()


@dataclass
class Disk:
    """A directory, and what was promised of it."""

    number: int
    path: Path
    owner_id: str  # its name; not who it is
    origin: int = 0  # the disk that it is a copy of, at last; else its own number
    # Of answers COMMITTED: uid, sequence, digest.
    promised: list[tuple[bytes, int, bytes]] = field(default_factory=list)
    was_set_back: bool = False
    is_newer: bool = False  # a version of the next format runs on it
    deleted: list[bytes] = field(default_factory=list)  # uids of what was deleted on this disk only

    def drop(self, uid: bytes) -> None:
        """A thread is deleted here: nothing of it is promised any more, whatever is under way."""
        self.deleted.append(uid)
        self.promised[:] = [each for each in self.promised if each[0] != uid]


@dataclass
class Memo:
    """What one commit left on a disk."""

    commit: int = -1
    names: list[tuple[int, bytes]] | None = None
    threads: dict[int, Thread] = field(default_factory=dict)  # that are not in memory
    lines: dict[int, dict[int, bytes]] = field(default_factory=dict)  # journals by the numbers of their threads


class Sidecar:
    """A process on a disk."""

    def __init__(
        self, disk: Disk, bucket: Bucket, time: FakeClock, number: int, turns: Turns | None = None,
        meanwhile: Callable[[int], None] = lambda _: None, op: Op | None = None,
    ) -> None:  # fmt: skip
        """With ``turns`` all that it does is a call that may be held; else it happens at once, and nothing by itself.

        ``meanwhile``: what others do before a commit. ``op``: the plan of what it does by itself when it starts.
        """
        self.disk = disk
        self.bucket = bucket
        self.number = number
        self.clock = SkewedClock(time)
        self.turns = turns
        self.meanwhile = meanwhile
        self.is_dead = False
        self.is_full = False
        self._time = time
        self.after_moment: Callable[[], object] = lambda: None  # done once, after the next ship looked at its thread
        self.fatal: list[BaseException] = []
        self.errors: list[tuple[Op, StatewardError]] = []  # of ships that nobody waits for
        self.open(op or Op())

    # -- the process ----------------------------------------------------------------------------------------------

    def open(self, op: Op | None = None) -> None:
        """A start."""
        retrying = RetryingBucket(
            self.bucket, self.clock, Patience(deadline_s=8.0), self._time.sleep, random.Random(self.number)
        )
        self.wire = DrivenWire(retrying, self.clock, self._time, self._strike, self._fail)
        path = self.disk.path
        root = b"" if (path / KEYS_FILE).exists() else fetch_root(self.wire)
        options = StoreOptions(
            directory=path, key=KEY, root=root, map_bytes=MAP_BYTES, cache_bytes=4 << 20, limits=Limits()
        )
        self._memo = Memo()
        self.store = Store(options, lambda _writes: None, self.fatal.append, self.clock)
        if self.turns is not None:
            self._drive_store(self.turns, op or Op())
        else:
            inline: Any = Inline()
            self.store.background = self.store.context.background = inline
        self.archive = Archive(
            self.store, self.wire,
            Options(url="memory:", owner_id=self.disk.owner_id, lease_s=LEASE_S, garbage_grace_s=GRACE_S),
        )  # fmt: skip
        if self.turns is not None:
            self._drive_archive(self.turns)
        else:
            quiet: Any = Inline()
            self.archive.lanes.calls = self.archive.lanes.ships = quiet
            self.archive.schedule.now = lambda _number: None  # type: ignore[method-assign]
        self.holding = DrivenHolding(self.store, self.archive, DURABILITY_COMMITTED)
        self.store.start()
        join(self.store, self.wire, retrying, KEY)
        self.archive.desk.boots = remember_boot(self.store, self.archive.desk.boot_id)
        self.archive.desk.former = find_former_boots(self.store, self.archive.desk.boot_id)
        # Futures of what is to be archived: uid, sequence, digest.
        self.waiting: list[tuple[Future[None], bytes, int, bytes]] = []
        self.told: list[Future[None]] = []  # the same, all there ever were
        none: Any = None
        calls, feed = DrivenCalls(self.store, none, self.holding, none, none), none
        self.checkpoints, self.threads_ = CheckpointService(calls, feed), ThreadService(calls, feed)
        self.effects = EffectService(calls)
        self.records = RecordService(calls)
        self.signals = SignalService(calls)
        self.blobs = DrivenBlobs(calls, self)

    def _strike(self, beat: Callable[[], None]) -> None:
        """Runs what is due, as a call of its own; never in a process that is gone."""
        if not self.is_dead and self.turns is not None:
            self.turns.begin("sign of life", self, beat, Op())

    def _fail(self) -> None:
        """The bucket is away for all calls of this process, also for those that wait for their turn."""
        current = self.turns.current if self.turns is not None else None
        if self.turns is not None and current is not None:
            for call in self.turns.under_way:
                if call.process is self and call.op is not current.op:
                    call.op.was_away = True

    def _drive_store(self, turns: Turns, op: Op) -> None:
        context = self.store.context
        context.writer = DrivenWriter(context.engine, self.fatal.append, turns, self)
        pool: Any = Pool(turns, self, "background", op)
        self.store.background = context.background = pool

    def _drive_archive(self, turns: Turns) -> None:
        archive, desk, schedule = self.archive, self.archive.desk, self.archive.schedule
        lanes: Any = DrivenLanes(Pool(turns, self, "ship", Op()))
        archive.lanes = schedule._lanes = lanes
        locks: Any = NameLocks(turns)
        alone: Any = NameLocks(turns)
        lock: Any = Lock(turns)
        desk.locks, desk.keys._lock, self.store.forker._names = locks, lock, alone
        alone_too: Any = NameLocks(turns)
        self.store.pruner._alone = alone_too
        real_wait, real_ship, real_at_moment = archive.wait, archive._ship, archive._shipper._ship

        def wait(thread: Thread, sequence: int, *more: Any) -> Future[None] | None:
            digest = desk.outbox.digest_at(thread.identity, sequence)
            future = real_wait(thread, sequence, *more)
            if future is not None:
                self.waiting.append((future, thread.identity.uid, sequence, digest))
                self.told.append(future)
            return future

        def ship(number: int) -> None:
            try:
                real_ship(number)
            except StatewardError as error:
                self.errors.append((turns.current.op if turns.current is not None else Op(), error))
                raise

        def ship_at_moment(*arguments: Any, **how: Any) -> None:
            act, self.after_moment = self.after_moment, lambda: None
            act()
            real_at_moment(*arguments, **how)

        remover = archive._remover
        real_remove = remover._remove

        def remove(name: Name, request: DeleteThreadRequest) -> bytes:
            if turns.current is not None:
                turns.current.op.asks()
            return real_remove(name, request)

        remover._remove = remove  # type: ignore[method-assign]
        archive.wait, schedule._ship = wait, ship  # type: ignore[method-assign]
        archive._shipper._ship = ship_at_moment  # type: ignore[method-assign]

    def look(self) -> None:
        """Lets the machine see what is on the disk."""
        if isinstance(self.bucket, FaultyBucket):
            self.bucket.witness.before()

    def die(self) -> None:
        """From now on nothing of this process has an effect."""
        self.is_dead = True
        if isinstance(self.bucket, FaultyBucket):
            self.bucket.is_dead = True

    def crash(self) -> None:
        """The end of the process, without any goodbye."""
        if self.turns is not None:
            self.die()
            self.turns.kill(self)
        context = self.store.context
        writer = context.writer
        with writer._condition:
            writer._queue.clear()
        writer.stop()
        self.store.workers.shutdown()
        context.keystore.close()
        context.engine.close()

    def stop(self) -> None:
        """SIGTERM: ships, gives up."""
        self.archive.ship_all(1.0)
        self.archive.schedule.write_rows(wait=True)

    def copy_disk(self, path: Path) -> None:
        """What lies on the disk at this moment."""
        shutil.copytree(self.disk.path, path)
        (path / "lock.mdb").unlink(missing_ok=True)

    # -- calls ----------------------------------------------------------------------------------------------------

    def save(self, request: SaveRequest) -> SaveResponse:
        return run(self.checkpoints.save(request, CALLER))

    def begin(self, request: BeginEffectRequest) -> BeginEffectResponse:
        if self.turns is None:
            request.options.durability = DURABILITY_COMMITTED  # nobody would ship it
        return run(self.effects.begin_effect(request, CALLER))

    def complete(self, request: CompleteEffectRequest) -> CompleteEffectResponse:
        return run(self.effects.complete_effect(request, CALLER))

    def renew(self, request: RenewEffectRequest) -> RenewEffectResponse:
        return run(self.effects.renew_effect(request, CALLER))

    def hydrate(self, request: HydrateRequest) -> HydrateResponse:
        return HydrateResponse.FromString(run(self.checkpoints.hydrate(request, CALLER)))

    def list(self, request: ListCheckpointsRequest) -> ListCheckpointsResponse:
        return run(self.checkpoints.list_checkpoints(request, CALLER))

    def write_blob(self, thread: str, data: bytes, *, announced: bool = True, uid: str = "") -> WriteBlobResponse:
        """Writes a blob, and makes the thread if there is none; with ``uid`` only to the thread that has it."""

        async def messages() -> AsyncIterator[WriteBlobRequest]:
            begin = BlobBegin(
                namespace=NAMESPACE, thread=thread, size_bytes=len(data), options=WriteOptions(expected_uid=uid)
            )
            if not uid:
                begin.options.create.CopyFrom(ThreadOptions())
            begin.sha256 = sha256(data).digest() if announced else b""
            yield WriteBlobRequest(begin=begin)
            yield WriteBlobRequest(data=data)

        return run(self.blobs.write_blob(messages(), CALLER))

    def read_blob(self, thread: str, digest: bytes) -> bytes:
        """Reads a whole blob."""

        async def read() -> bytes:
            request = ReadBlobRequest(namespace=NAMESPACE, thread=thread, blob=BlobRef(sha256=digest))
            steps = await self.holding.read(
                NAMESPACE, thread, lambda: self.blobs._calls.read(self.store.blobs.read, request)
            )
            return b"".join(step().data for step in steps)

        return run(read())

    def signal(self, request: SendSignalRequest) -> SendSignalResponse:
        return run(self.signals.send_signal(request, CALLER))

    def list_signals(self, name: str) -> list[Signal]:
        """The signals that wait for a thread."""
        request = ListSignalsRequest(namespace=NAMESPACE, thread=name)
        return list(run(self.signals.list_signals(request, CALLER)).signals)

    def tag(self, request: SetTagRequest) -> SetTagResponse:
        return run(self.threads_.set_tag(request, CALLER))

    def update(self, request: UpdateThreadRequest) -> UpdateThreadResponse:
        return run(self.threads_.update_thread(request, CALLER))

    def prune(self, request: PruneThreadRequest) -> PruneThreadResponse:
        return run(self.threads_.prune_thread(request, CALLER))

    def fork(self, request: ForkThreadRequest) -> ThreadMessage:
        return run(self.threads_.fork_thread(request, CALLER)).thread

    def delete(self, request: DeleteThreadRequest) -> DeleteThreadResponse:
        return run(self.threads_.delete_thread(request, CALLER))

    def wait_durable(self, thread: str, answer: SaveResponse) -> WaitDurableResponse:
        """Asks for ARCHIVED of exactly this save, by all that the request can say."""
        saved = answer.receipt
        receipt = Receipt(uid=saved.uid, sequence=saved.sequence, digest=saved.digest)
        request = WaitDurableRequest(
            namespace=NAMESPACE, thread=thread, receipt=receipt, durability=DURABILITY_ARCHIVED
        )
        return run(self.threads_.wait_durable(request, CALLER))

    def collect(self, grace_s: int) -> None:
        """What `stateward archive gc` asks for."""
        archive = self.archive
        verbs = Verbs(lambda name: archive.own(*name, must_exist=True), archive.delete, archive.attacher.bury_claim)
        request = CollectGarbageRequest()
        request.grace.FromSeconds(grace_s)
        for _ in Collector(archive.desk, verbs).collect(request):
            pass

    def write(self, verb: Callable[..., T], size_bytes: int = 16384, **how: Any) -> T:
        """What is committed without a service."""
        write = Write(run=verb, size_bytes=size_bytes, **how)
        result: T = self.store.context.writer.submit(write, wait=True).wait()
        return result

    # -- what happens by itself -----------------------------------------------------------------------------------

    def tidy(self) -> None:
        """Uploads, deletions, and commits that nobody waits for."""
        writer = self.store.context.writer
        if isinstance(writer, DrivenWriter):
            writer.tidy()
        self.wire.background()

    def write_rows(self) -> None:
        """What the schedule does once a second."""
        self.archive.schedule.write_rows(wait=True)
        self.archive.desk.trim()

    def sweep(self) -> None:
        """What the daemon does now and then."""
        self.store.sweeper.sweep()

    def forget(self) -> None:
        """Other threads have pushed all of these out of memory."""
        threads = self.store.threads
        threads._threads.clear()
        threads._numbers.clear()

    def page_in(self, name: str) -> None:
        """A reader that had asked the archive before comes to the disk only now."""
        with self.store.context.engine.read() as txn:
            self.store.threads.find(txn, NAMESPACE, name)

    def ship(self, number: int) -> None:
        """One ship, as the schedule starts it; without turns it raises what the schedule would log."""
        if self.turns is not None:
            self.archive.schedule.now(number)
            return
        failed = True
        try:
            self.archive._ship(number)
            failed = False
        finally:
            self.archive.schedule._ended(number, failed=failed)

    # -- looking --------------------------------------------------------------------------------------------------

    def find(self, name: str) -> Thread | None:
        """The thread on this disk. To look changes nothing: what is not in memory stays out of it."""
        return next((thread for thread in self.threads() if thread.name == name), None)

    def threads(self) -> list[Thread]:
        """All threads on this disk, by their names."""
        found, store = [], self.store
        keystore, memo = store.context.keystore, self.memo()
        with store.context.engine.read() as txn:
            if memo.names is None:
                memo.names = [layout.unpack_name(value) for _, value in rows(txn, b"N")]
            for number, uid in memo.names:
                thread = store.threads.in_memory(number)
                if thread is None and not keystore.is_erased(uid):
                    thread = memo.threads.get(number)
                    if thread is None:
                        keys = keystore.namespace(NAMESPACE)
                        assert keys is not None
                        thread = memo.threads[number] = load_thread(txn, keystore, keys, number, uid)
                if thread is not None:
                    found.append(thread)
        return found

    def memo(self) -> Memo:
        """What was read of this disk since the last commit: a history looks at it a thousand times."""
        commit = self.store.context.engine.env.info()["last_txnid"]
        if self._memo.commit != commit:
            self._memo = Memo(commit)
        return self._memo

    def holds(self, name: str) -> bool:
        """Whether this process believes itself the owner of a thread, also of one that is not in memory."""
        return self.hold_of(name) is not None

    def hold_of(self, name: str) -> Hold | None:
        """What this process knows of a thread that it believes itself the owner of."""
        thread = self.find(name)
        return self.archive.desk.holds.get(thread.number) if thread is not None else None

    def has_uncleared(self, number: int) -> bool:
        """Whether this disk still has what was pruned of a thread."""
        with self.store.context.engine.read() as txn:
            return txn.get(layout.uncleared_key(number)) is not None

    def outbox(self) -> set[int]:
        """Numbers of the threads that the next start would ship."""
        with self.store.context.engine.read() as txn:
            return {layout.marked_thread(key) for key, _ in rows(txn, b"O")}
