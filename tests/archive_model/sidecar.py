"""A machine whose calls take turns: each may be held, and others overtake it. What a daemon does in the background
(ships, uploads, rows) is a call of its own, which begins when the model says so.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tests.archive_model.faults import FaultyBucket, Op
from tests.archive_model.process import DrivenLanes, DrivenWriter, Pool
from tests.archive_model.turns import Death, Lock, NameLocks, Turns
from tests.daemon.clocks import FakeClock
from tests.daemon.driven import CALLER, Disk, Driven
from tests.daemon.unthreaded import DrivenBlobs, DrivenCalls, run

from stateward.v1.effect_service_pb2 import BeginEffectRequest, BeginEffectResponse
from stateward.v1.thread_service_pb2 import DeleteThreadRequest
from stateward_sidecar.archive.objects.holds import Name
from stateward_sidecar.errors import StatewardError
from stateward_sidecar.store.thread.thread import Thread

T = TypeVar("T")


@dataclass
class PromisedDisk(Disk):
    """A directory, and what was promised of it."""

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


class MortalBlobs(DrivenBlobs):
    """A process that died has no more effect on files."""

    def __init__(self, calls: DrivenCalls, process: Sidecar) -> None:
        super().__init__(calls)
        self._process = process

    async def _work(self, verb: Callable[..., T], *args: Any) -> T:
        if self._process.is_dead:
            raise Death
        return verb(*args)


class Sidecar(Driven):
    """A process on a disk."""

    disk: PromisedDisk
    bucket: FaultyBucket

    def __init__(
        self, disk: PromisedDisk, bucket: FaultyBucket, time: FakeClock, number: int, turns: Turns,
        meanwhile: Callable[[int], None], op: Op,
    ) -> None:  # fmt: skip
        """``meanwhile``: what others do before a commit. ``op``: the plan of what it does by itself when it starts."""
        self.turns = turns
        self.meanwhile = meanwhile
        self.is_dead = False
        self.is_full = False
        self.after_moment: Callable[[], object] = lambda: None  # done once, after the next ship looked at its thread
        self.errors: list[tuple[Op, StatewardError]] = []  # of ships that nobody waits for
        # Futures of what is to be archived: uid, sequence, digest.
        self.waiting: list[tuple[Future[None], bytes, int, bytes]] = []
        self.told: list[Future[None]] = []  # the same, all there ever were
        self._op = op
        super().__init__(disk, bucket, time, number)

    def _make_blobs(self, calls: DrivenCalls) -> DrivenBlobs:
        return MortalBlobs(calls, self)

    def _strike(self, beat: Callable[[], None]) -> None:
        """Runs what is due, as a call of its own; never in a process that is gone."""
        if not self.is_dead:
            self.turns.begin("sign of life", self, beat, Op())

    def _fail(self) -> None:
        """The bucket is away for all calls of this process, also for those that wait for their turn."""
        current = self.turns.current
        if current is not None:
            for call in self.turns.under_way:
                if call.process is self and call.op is not current.op:
                    call.op.was_away = True

    def _drive_store(self) -> None:
        context = self.store.context
        context.writer = DrivenWriter(context.engine, self.fatal.append, self.turns, self)
        pool: Any = Pool(self.turns, self, "background", self._op)
        self.store.background = context.background = pool

    def _drive_archive(self) -> None:
        turns, archive, state, schedule = self.turns, self.archive, self.archive.state, self.archive.schedule
        lanes: Any = DrivenLanes(Pool(turns, self, "ship", Op()))
        archive.lanes = schedule._lanes = lanes
        locks: Any = NameLocks(turns)
        alone: Any = NameLocks(turns)
        lock: Any = Lock(turns)
        state.locks, state.keys._lock, self.store.forker._names = locks, lock, alone
        alone_too: Any = NameLocks(turns)
        self.store.pruner._alone = alone_too
        real_wait, real_ship, real_at_moment = archive.wait, archive._ship, archive._shipper._ship

        def wait(thread: Thread, sequence: int, *more: Any) -> Future[None] | None:
            digest = state.outbox.digest_at(thread.identity, sequence)
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
        """Lets the model see what is on the disk."""
        self.bucket.witness.before()

    def die(self) -> None:
        """From now on nothing of this process has an effect."""
        self.is_dead = self.bucket.is_dead = True

    def crash(self) -> None:
        """The end of the process, without any goodbye."""
        self.die()
        self.turns.kill(self)
        super().crash()

    def begin(self, request: BeginEffectRequest) -> BeginEffectResponse:
        return run(self.effects.begin_effect(request, CALLER))

    def tidy(self) -> None:
        """Uploads, deletions, and commits that nobody waits for."""
        writer = self.store.context.writer
        assert isinstance(writer, DrivenWriter)
        writer.tidy()
        super().tidy()

    def ship(self, number: int) -> None:
        """One ship, as the schedule starts it."""
        self.archive.schedule.now(number)
