"""Machines in the test's process, driven: a real store on a real disk, the real services without gRPC, and a real
archive. Nothing happens by itself (ships, uploads, rows): it does when a test says so. Calls go through the services as
they do in a daemon. The time is a number that tests move.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

from tests.daemon.between import Between
from tests.daemon.clocks import FakeClock, SkewedClock
from tests.daemon.store import KEY, findings, prepared, write
from tests.daemon.unthreaded import Caller, DrivenBlobs, DrivenCalls, DrivenOwnership, DrivenWire, Inline, run

from stateward.v1.admin_service_pb2 import VerifyFinding
from stateward.v1.archive_service_pb2 import CollectGarbageRequest
from stateward.v1.blob_service_pb2 import BlobBegin, ReadBlobRequest, WriteBlobRequest, WriteBlobResponse
from stateward.v1.checkpoint_pb2 import (
    DURABILITY_ARCHIVED,
    DURABILITY_COMMITTED,
    WORK_STATUS_UNSPECIFIED,
    WorkStatus,
)
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
from stateward.v1.state_pb2 import BlobRef, State
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
from stateward_sidecar.archive.objects.holds import Hold, Options
from stateward_sidecar.archive.objects.start import fetch_root, find_former_boots, join, remember_boot
from stateward_sidecar.bucket.base import Bucket
from stateward_sidecar.bucket.retrying import Patience, RetryingBucket
from stateward_sidecar.service.api.checkpoints import CheckpointService
from stateward_sidecar.service.api.effects import EffectService
from stateward_sidecar.service.api.records import RecordService
from stateward_sidecar.service.api.signals import SignalService
from stateward_sidecar.service.api.threads import ThreadService
from stateward_sidecar.service.checks import check
from stateward_sidecar.storage import layout
from stateward_sidecar.store.store import KEYS_FILE, Store, StoreOptions
from stateward_sidecar.store.thread.context import Limits
from stateward_sidecar.store.thread.thread import Thread, load_thread, rows
from stateward_sidecar.store.versions.save import SaveWrite

T = TypeVar("T")
NAMESPACE, NAME = check.DEFAULT_NAMESPACE, "job"
MAP_BYTES = 64 << 20
LEASE_S, GRACE_S = 10.0, 600.0
CALLER: Any = Caller()


def append(
    text: bytes | str = b"x", *, after: int | None = None, request_id: str = "",
    status: WorkStatus = WORK_STATUS_UNSPECIFIED,
) -> SaveRequest:  # fmt: skip
    """A save that appends one entry to the log ``m`` of the thread ``job``; ``after`` is the version it expects.

    A word that is said again is the same request, unless another version is expected; bytes are another one each time.
    """
    said = f"{text[:40]}-{after}" if isinstance(text, str) else os.urandom(8).hex()
    options = WriteOptions(request_id=request_id or said)
    request = SaveRequest(namespace=NAMESPACE, thread=NAME, options=options, status=status)
    if after is not None:
        request.options.expected_version = after
    edit = request.diff.edits.add().append
    edit.log = "m"
    data = text.encode() if isinstance(text, str) else text
    edit.entries.add(media_type="application/octet-stream", data=data)
    return request


def replacing(words: list[str], *, after: int) -> SaveRequest:
    """A save of a full state whose log holds these words."""
    state = State()
    for word in words:
        state.logs["m"].entries.add(media_type="application/octet-stream", data=word.encode())
    return SaveRequest(
        namespace=NAMESPACE, thread=NAME, options=WriteOptions(request_id="whole", expected_version=after), state=state
    )


@dataclass
class Disk:
    """A directory."""

    number: int
    path: Path
    owner_id: str  # its name; not who it is


@dataclass
class Memo:
    """What one commit left on a disk."""

    commit: int = -1
    names: list[tuple[int, bytes]] | None = None
    threads: dict[int, Thread] = field(default_factory=dict)  # that are not in memory
    lines: dict[int, dict[int, bytes]] = field(default_factory=dict)  # journals by the numbers of their threads


class Driven:
    """A process on a disk. Without a name of a thread, its methods are about the thread ``job``."""

    def __init__(self, disk: Disk, bucket: Bucket | Between, time: FakeClock, number: int) -> None:
        self.disk = disk
        self.bucket = bucket
        self.number = number
        self.clock = SkewedClock(time)
        self._time = time
        self.fatal: list[BaseException] = []
        self.open()

    # -- the process ----------------------------------------------------------------------------------------------

    def open(self) -> None:
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
        self._drive_store()
        self.archive = Archive(
            self.store, self.wire,
            Options(url="memory:", owner_id=self.disk.owner_id, lease_s=LEASE_S, garbage_grace_s=GRACE_S),
        )  # fmt: skip
        self._drive_archive()
        self.ownership = DrivenOwnership(self.store, self.archive, DURABILITY_COMMITTED)
        self.store.start()
        join(self.store, self.wire, retrying, KEY)
        self.archive.state.boots = remember_boot(self.store, self.archive.state.boot_id)
        self.archive.state.former = find_former_boots(self.store, self.archive.state.boot_id)
        none: Any = None
        calls, feed = DrivenCalls(self.store, none, self.ownership, none, none), none
        self.checkpoints, self.threads_ = CheckpointService(calls, feed), ThreadService(calls, feed)
        self.effects = EffectService(calls)
        self.records = RecordService(calls)
        self.signals = SignalService(calls)
        self.blobs = self._make_blobs(calls)

    def _make_blobs(self, calls: DrivenCalls) -> DrivenBlobs:
        return DrivenBlobs(calls)

    def _strike(self, beat: Callable[[], None]) -> None:
        """What is due while a long call waits for the bucket does not strike."""

    def _fail(self) -> None:
        """The bucket did not answer a request."""

    def _drive_store(self) -> None:
        inline: Any = Inline()
        self.store.background = self.store.context.background = inline

    def _drive_archive(self) -> None:
        inline: Any = Inline()
        self.archive.lanes.calls = self.archive.lanes.ships = inline
        self.archive.schedule.now = lambda _number: None  # type: ignore[method-assign]

    def crash(self) -> None:
        """The end of the process, without any goodbye."""
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

    def restart(self) -> Driven:
        """Kill -9, and a start on the same disk. Returns itself."""
        self.crash()
        self.open()
        return self

    def stop_and_start(self) -> None:
        """A stop in order, which archives everything and gives it up, and a start on the same disk."""
        self.stop()
        self.restart()

    def copy_disk(self, path: Path) -> None:
        """What lies on the disk at this moment."""
        shutil.copytree(self.disk.path, path)
        (path / "lock.mdb").unlink(missing_ok=True)

    # -- calls ----------------------------------------------------------------------------------------------------

    def save(self, request: SaveRequest) -> SaveResponse:
        return run(self.checkpoints.save(request, CALLER))

    def begin(self, request: BeginEffectRequest) -> BeginEffectResponse:
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
            steps = await self.ownership.read(
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
        verbs = Verbs(
            lambda name: archive.own(*name, must_exist=True), archive.delete, archive.attacher.bury_claim,
            archive.remove_locked,
        )  # fmt: skip
        request = CollectGarbageRequest()
        request.grace.FromSeconds(grace_s)
        for _ in Collector(archive.state, verbs).collect(request):
            pass

    def write(self, verb: Callable[..., T], size_bytes: int = 16384, **how: Any) -> T:
        """What is committed without a service."""
        result: T = write(self.store, verb, size_bytes=size_bytes, **how)
        return result

    def put(self, request: SaveRequest | str, **how: Any) -> SaveResponse:
        """Saves a request, or one more word; ``how``: as of ``append``."""
        return self.save(append(request, **how) if isinstance(request, str) else request)

    def prepared(self, request: SaveRequest) -> SaveWrite:
        """A save that was made ready and is not written yet."""
        return prepared(self.store, request)

    def save_held(self, request: SaveRequest) -> SaveResponse | None:
        """A save by another call, in the middle of something else; None where it would have to wait."""
        if self.archive.holds(NAMESPACE, request.thread) is None:
            return None
        answer: SaveResponse = self.write(self.prepared(request).run)
        return answer

    def state(self) -> HydrateResponse:
        """Reads the thread."""
        return self.hydrate(HydrateRequest(namespace=NAMESPACE, thread=NAME, max_bytes=1 << 20))

    def words(self, name: str = NAME, version: int = 0) -> list[str]:
        """What the log holds at a version; 0 = the newest."""
        request = HydrateRequest(namespace=NAMESPACE, thread=name, max_bytes=32 << 20)
        if version:
            request.version.version = version
        return [entry.data.decode() for entry in self.hydrate(request).state.logs["m"].entries]

    # -- what happens by itself -----------------------------------------------------------------------------------

    def tidy(self) -> None:
        """Uploads and deletions that nobody waits for."""
        self.wire.background()

    def write_rows(self) -> None:
        """What the schedule does once a second."""
        self.archive.schedule.write_rows(wait=True)
        self.archive.state.trim()

    def sweep(self) -> None:
        """What the daemon does now and then."""
        self.store.sweeper.sweep()

    def forget(self) -> None:
        """Other threads have pushed all of these out of memory."""
        threads = self.store.threads
        threads._threads.clear()
        threads._numbers.clear()

    def page_in(self, name: str = NAME) -> None:
        """A reader that had asked the archive before comes to the disk only now."""
        with self.store.context.engine.read() as txn:
            self.store.threads.find(txn, NAMESPACE, name)

    def ship(self, number: int) -> None:
        """One ship, as the schedule starts it; it raises what the schedule would log."""
        failed = True
        try:
            self.archive._ship(number)
            failed = False
        finally:
            self.archive.schedule._ended(number, failed=failed)

    def ship_now(self) -> None:
        """Ships the thread, and does what was put off."""
        self.ship(self.thread().number)
        self.wire.background()

    def archive_all(self) -> None:
        """Ships the thread as it is."""
        self.archive.flush(NAMESPACE, NAME)

    def take(self) -> None:
        """Takes the thread from whoever holds it."""
        self.archive.own(NAMESPACE, NAME, take_over=True)

    # -- looking --------------------------------------------------------------------------------------------------

    def find(self, name: str) -> Thread | None:
        """The thread on this disk. To look changes nothing: what is not in memory stays out of it."""
        return next((thread for thread in self.threads() if thread.name == name), None)

    def thread(self) -> Thread:
        """The thread on this disk."""
        found = self.find(NAME)
        assert found is not None
        return found

    def findings(self) -> list[VerifyFinding]:
        """What Verify finds on this disk."""
        return findings(self.store)

    def orphans(self) -> list[str]:
        """Names of what was set aside."""
        return sorted(thread.name for thread in self.threads() if "@@" in thread.name)

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
        return self.archive.state.holds.get(thread.number) if thread is not None else None

    def has_uncleared(self, number: int) -> bool:
        """Whether this disk still has what was pruned of a thread."""
        with self.store.context.engine.read() as txn:
            return txn.get(layout.uncleared_key(number)) is not None

    def outbox(self) -> set[int]:
        """Numbers of the threads that the next start would ship."""
        with self.store.context.engine.read() as txn:
            return {layout.marked_thread(key) for key, _ in rows(txn, b"O")}

    @property
    def requests(self) -> int:
        """How many the bucket got from here."""
        return self.wire.traffic.requests
