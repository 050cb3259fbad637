"""One sidecar without its service: a real store on a real disk, and an archive that does nothing by itself.

What a daemon does in the background (ships, uploads, rows) happens when the machine says so, on its thread; the verbs
go the way they go in the services.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Awaitable, Callable, Hashable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tests.archive_model.faults import FakeClock, FaultyBucket, SkewedClock

from stateward.v1.archive_service_pb2 import CollectGarbageRequest
from stateward.v1.checkpoint_pb2 import DURABILITY_COMMITTED
from stateward.v1.checkpoint_service_pb2 import HydrateRequest, HydrateResponse, SaveRequest, SaveResponse
from stateward.v1.effect_service_pb2 import (
    BeginEffectRequest,
    BeginEffectResponse,
    CompleteEffectRequest,
    CompleteEffectResponse,
)
from stateward.v1.thread_pb2 import Thread as ThreadMessage
from stateward.v1.thread_service_pb2 import (
    DeleteThreadRequest,
    ForkThreadRequest,
    PruneThreadRequest,
    PruneThreadResponse,
    SetTagRequest,
    SetTagResponse,
)
from stateward_sidecar.archive.archive import Archive
from stateward_sidecar.archive.collect import Collector, Verbs
from stateward_sidecar.archive.desk import Options
from stateward_sidecar.archive.start import fetch_root, join, remember_boot
from stateward_sidecar.archive.wire import Wire
from stateward_sidecar.bucket.retrying import Patience, RetryingBucket
from stateward_sidecar.service import check, checkwork
from stateward_sidecar.service.holding import Holding
from stateward_sidecar.storage import layout
from stateward_sidecar.storage.writer import Write
from stateward_sidecar.store.context import Limits
from stateward_sidecar.store.save import SaveWrite
from stateward_sidecar.store.store import KEYS_FILE, Store, StoreOptions
from stateward_sidecar.store.thread import Thread, rows

T = TypeVar("T")
NAMESPACE = check.DEFAULT_NAMESPACE
KEY = b"k" * 32
MAP_BYTES = 64 << 20
LEASE_S, GRACE_S = 10.0, 600.0


class Inline(Executor):
    """Runs at once, where it was asked for."""

    def submit(self, call: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(call(*args, **kwargs))
        except Exception as error:  # noqa: BLE001  (as an executor does it)
            future.set_exception(error)
        return future


class DrivenWire(Wire):
    """One request after the other; what has time waits for ``background``."""

    def __init__(self, bucket: RetryingBucket, clock: FakeClock) -> None:
        super().__init__(bucket, clock)
        self.waiting: list[Callable[[], object]] = []

    def together(self, *calls: Callable[[], T]) -> list[T]:
        results, errors = list[T](), list[Exception]()
        for call in calls:
            try:
                results.append(call())
            except Exception as error:  # noqa: BLE001  (raised below, once all are in)
                errors.append(error)
        if errors:
            raise errors[0]
        return results

    def later(self, call: Callable[[], object]) -> None:
        self.waiting.append(call)

    def background(self) -> None:
        """Does what was put off."""
        waiting, self.waiting = self.waiting, []
        for call in waiting:
            call()


class DrivenHolding(Holding):
    """Blocks instead of going to a thread."""

    async def block(self, name: Hashable, verb: Callable[..., T], *arguments: Any) -> T:
        return verb(*arguments)


@dataclass
class Disk:
    """A directory, and what was promised of it."""

    number: int
    path: Path
    owner_id: str
    # Of answers COMMITTED: uid, sequence, digest.
    promised: list[tuple[bytes, int, bytes]] = field(default_factory=list)
    was_set_back: bool = False


class Sidecar:
    """A process on a disk."""

    def __init__(self, disk: Disk, bucket: FaultyBucket, time: FakeClock, number: int) -> None:
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
        self.wire = DrivenWire(retrying, self.clock)
        path = self.disk.path
        root = b"" if (path / KEYS_FILE).exists() else fetch_root(self.wire)
        options = StoreOptions(
            directory=path, key=KEY, root=root, map_bytes=MAP_BYTES, cache_bytes=4 << 20, limits=Limits()
        )
        self.store = Store(options, lambda _writes: None, self.fatal.append, self.clock)
        inline = Inline()
        self.store.background = self.store.context.background = inline  # type: ignore[assignment]
        self.archive = Archive(
            self.store, self.wire,
            Options(url="memory:", owner_id=self.disk.owner_id, lease_s=LEASE_S, garbage_grace_s=GRACE_S),
        )  # fmt: skip
        self.archive.lanes.calls = self.archive.lanes.ships = inline  # type: ignore[assignment]
        self.archive.schedule.now = lambda _number: None  # type: ignore[method-assign]  # the machine ships
        self.holding = DrivenHolding(self.store, self.archive, DURABILITY_COMMITTED)
        self.store.start()
        join(self.store, self.wire, retrying, KEY)
        self.archive.desk.boots = remember_boot(self.store, self.archive.desk.boot_id)
        self.waiting: list[tuple[Future[None], bytes, int, bytes]] = []

    def crash(self) -> None:
        """The end of the process, without any goodbye."""
        context = self.store.context
        writer = context.writer
        with writer._condition:
            writer._queue.clear()
            writer._background.clear()
        writer.stop()
        self.store.workers.shutdown()
        context.keystore.close()
        context.engine.close()

    def stop(self) -> None:
        """SIGTERM: ships, gives up, ends."""
        self.archive.ship_all(1.0)
        self.archive.schedule.write_rows(wait=True)
        self.crash()

    def copy_disk(self, path: Path) -> None:
        """What lies on the disk at this moment."""
        shutil.copytree(self.disk.path, path)
        (path / "lock.mdb").unlink(missing_ok=True)

    # -- verbs, as the services call them -------------------------------------------------------------------------

    def save(self, request: SaveRequest, seen: Callable[[Thread | None], None]) -> SaveResponse:
        """Saves; ``seen`` gets the thread as it is right before."""
        named = check.check_save(request)

        async def save_now() -> SaveResponse:
            return self._save_now(request, named, seen)

        return _run(self.holding.write(request.namespace, request.thread, save_now))

    def _save_now(self, request: SaveRequest, named: Any, seen: Callable[[Thread | None], None]) -> SaveResponse:
        store = self.store
        save = SaveWrite(store.context, store.threads, request, named)
        seen(self.find(request.thread))

        def prepare() -> None:
            with store.context.engine.read() as txn:
                save.prepare(txn, store.threads.find(txn, NAMESPACE, request.thread))

        store.read(prepare)
        answer: SaveResponse = self.write(save.run, save.size_bytes, is_retry=save.is_retry)
        if save.draft is not None:
            store.snapshots.consider(save.draft.thread, save.branch)
        return answer

    def save_held(self, request: SaveRequest, seen: Callable[[Thread | None], None]) -> SaveResponse | None:
        """A save in the middle of something else, by another call of this process; None where it would have to wait."""
        named = check.check_save(request)
        if self.archive.holds(NAMESPACE, request.thread) is None:
            return None
        return self._save_now(request, named, seen)

    def begin(self, request: BeginEffectRequest) -> BeginEffectResponse:
        checkwork.check_begin(request)

        async def begin() -> BeginEffectResponse:
            return self.write(self.store.effects.begin(request))

        return _run(self.holding.write(NAMESPACE, request.thread, begin))

    def complete(self, request: CompleteEffectRequest) -> CompleteEffectResponse:
        checkwork.check_complete(request)

        async def complete() -> CompleteEffectResponse:
            return self.write(self.store.effects.complete(request))

        return _run(self.holding.write(NAMESPACE, request.thread, complete, must_exist=True))

    def hydrate(self, request: HydrateRequest) -> HydrateResponse:
        check.check_hydrate(request)

        async def hydrate() -> HydrateResponse:
            return HydrateResponse.FromString(self.store.read(self.store.reader.hydrate, request))

        return _run(self.holding.read(NAMESPACE, request.thread, hydrate))

    def tag(self, request: SetTagRequest) -> SetTagResponse:
        check.check_place(request)

        async def set_tag() -> SetTagResponse:
            return self.write(self.store.settings.set_tag(request))

        return _run(self.holding.write(NAMESPACE, request.thread, set_tag, must_exist=True))

    def prune(self, request: PruneThreadRequest) -> PruneThreadResponse:
        check.check_place(request)

        async def prune() -> PruneThreadResponse:
            self.archive.flush(NAMESPACE, request.thread)
            return self.store.pruner.prune(request)

        return _run(self.holding.write(NAMESPACE, request.thread, prune, must_exist=True))

    def fork(self, request: ForkThreadRequest) -> ThreadMessage:
        check.check_place(request)

        async def fork() -> ThreadMessage:
            return self.store.forker.fork(request)

        async def readable() -> ThreadMessage:
            return await self.holding.read(NAMESPACE, request.thread, fork)

        return _run(self.holding.write(NAMESPACE, request.new_thread, readable))

    def delete(self, request: DeleteThreadRequest) -> None:
        check.check_place(request)
        self.archive.delete(request)
        self.write(self.store.deleter.delete(request), frees_space=True)

    def collect(self, grace_s: int) -> None:
        """What `stateward archive gc` asks for."""
        verbs = Verbs(lambda name: self.archive.own(*name), self.archive.delete)
        request = CollectGarbageRequest()
        request.grace.FromSeconds(grace_s)
        for _ in Collector(self.archive.desk, verbs).collect(request):
            pass

    def write(self, run: Callable[..., T], size_bytes: int = 16384, **how: Any) -> T:
        """Through the writer."""
        result: T = self.store.context.writer.submit(Write(run=run, size_bytes=size_bytes, **how), wait=True).wait()
        return result

    def ship(self, number: int) -> None:
        """One ship, as the schedule does it."""
        failed = True
        try:
            self.archive._ship(number)
            failed = False
        finally:
            self.archive.schedule._ended(number, failed=failed)

    # -- looking --------------------------------------------------------------------------------------------------

    def find(self, name: str) -> Thread | None:
        """The thread on this disk."""
        with self.store.context.engine.read() as txn:
            return self.store.threads.find(txn, NAMESPACE, name)

    def threads(self) -> list[Thread]:
        """All threads on this disk, by their names."""
        found = []
        with self.store.context.engine.read() as txn:
            for number in [layout.unpack_name(value)[0] for _, value in rows(txn, b"N")]:
                thread = self.store.threads.by_number(txn, number)
                if thread is not None:
                    found.append(thread)
        return found

    def outbox(self) -> set[int]:
        """Numbers of the threads that the next start would ship."""
        with self.store.context.engine.read() as txn:
            return {layout.outbox_thread(key) for key, _ in rows(txn, b"O")}


def _run(call: Awaitable[T]) -> T:
    """A coroutine that never waits."""
    steps = call.__await__()
    try:
        next(steps)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("a driven call waits for something")
