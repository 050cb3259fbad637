"""How a daemon ends: drained by an orchestrator, idle, or stopped within its grace time.

Empties the machine before an orchestrator removes it.

First the daemon is not ready, so that no clients are sent here. Then it refuses new work. Then it archives committed
entries and gives threads up, so that another sidecar may take each thread at once. Draining is a state of the daemon
and outlasts the call that began it. ``undo`` or a restart ends it. A second call continues after the first one's time
is over.

Ends a daemon that nobody uses (`--idle-exit`).

The daemon is idle if no call ran for a period and nothing waits for the archive. It ends only with the lock of its
users, which it cannot get while a client of `stateward.open()` lives, and which it keeps until the process is gone.

Ends the daemon within its grace time.

First running calls end; with an archive they get at most half of the time. Then threads are archived and given up until
the time is over. Then the store is closed. The process does not wait for a request to the bucket that hangs. Nothing is
lost by that: every commit is synced before it is answered, the next start on this disk finds a HEAD that lands later,
and objects without a HEAD are garbage.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from stateward.v1.admin_service_pb2 import DrainResponse
from stateward_sidecar.service.admission.gate import Gate
from stateward_sidecar.service.calls.ownership import Ownership
from stateward_sidecar.service.serving.server import Server
from stateward_sidecar.storage.files import UsersLock
from stateward_sidecar.store.store import Store
from stateward_sidecar.telemetry import failures, log

if TYPE_CHECKING:  # a daemon without an archive does not load it
    from stateward_sidecar.archive.archive import Archive

GRACE_S_MAX = 3600.0
# The share of the grace time for writes under way. Most of the time is for the bucket.
SETTLE_SHARE = 0.25


class Drain:
    """Begins and ends draining."""

    def __init__(
        self, store: Store, ownership: Ownership, grace_s: float, set_draining: Callable[[bool], Awaitable[None]]
    ) -> None:
        self.grace_s = grace_s
        self._store = store
        self._ownership = ownership
        self._set_draining = set_draining
        self._one_at_a_time = asyncio.Lock()

    @property
    def _gate(self) -> Gate:
        return self._ownership.gate

    async def begin(self, grace_s: float) -> DrainResponse:
        """Refuses new work, then archives and gives up the threads, for at most ``grace_s`` seconds."""
        end = asyncio.get_running_loop().time() + grace_s
        if self._gate.is_open:
            log.info("draining", grace_s=grace_s)
        self._gate.is_open = False
        await self._set_draining(True)
        async with self._one_at_a_time:
            answer = await self._empty(end)
        log.info("drained", detached=answer.detached_threads, dirty=answer.dirty_threads, ready=answer.ready)
        return answer

    async def undo(self) -> DrainResponse:
        """Accepts work again. A drain that is under way stops."""
        self._gate.is_open = True
        await self._set_draining(False)
        log.info("draining was undone")
        return DrainResponse(dirty_threads=await self._count_dirty(), ready=True)

    async def _empty(self, end: float) -> DrainResponse:
        loop, gate, archive = asyncio.get_running_loop(), self._gate, self._ownership.archive
        if archive is None:
            return DrainResponse(dirty_threads=await self._count_dirty(), ready=gate.is_open)
        await gate.settle((end - loop.time()) * SETTLE_SHARE)

        def is_over() -> bool:
            return gate.is_open or gate.is_ended

        given: list[None] = []

        def leave() -> None:
            archive.leaver.leave(max(end - loop.time(), 0.0), is_over, lambda: given.append(None))

        # Not on the archive's own threads, which reads need meanwhile. Does not wait for a request that hangs.
        done, _ = await asyncio.wait({loop.run_in_executor(None, leave)}, timeout=max(end - loop.time(), 0.0))
        for future in done:
            future.result()
        dirty = await self._count_dirty()
        return DrainResponse(detached_threads=len(given), dirty_threads=dirty, ready=gate.is_open)

    async def _count_dirty(self) -> int:
        archive = self._ownership.archive
        if archive is None:
            return await self._on_worker(self._store.count_threads)
        return await self._on_worker(archive.leaver.count_dirty)

    async def _on_worker(self, verb: Callable[[], int]) -> int:
        return await asyncio.get_running_loop().run_in_executor(self._store.workers, self._store.read, verb)


# How often the daemon looks: a part of the period, within bounds.
LOOKS_IN_PERIOD = 8
LOOK_MIN_S, LOOK_MAX_S = 0.02, 5.0


class Idle:
    """Waits until nobody uses the daemon. Used on the event loop."""

    def __init__(
        self, period_s: float, server: Server, users: UsersLock, count_dirty: Callable[[], Awaitable[int]]
    ) -> None:
        self._period_s = period_s
        self._server = server
        self._users = users
        self._count_dirty = count_dirty

    async def wait(self) -> None:
        """Returns when the daemon may end: nobody uses it, and nobody can begin to."""
        loop = asyncio.get_running_loop()
        pause_s = min(max(self._period_s / LOOKS_IN_PERIOD, LOOK_MIN_S), LOOK_MAX_S)
        begun, since = self._server.begun_calls, loop.time()
        while True:
            await asyncio.sleep(pause_s)
            if self._server.open_calls or self._server.begun_calls != begun:
                begun, since = self._server.begun_calls, loop.time()
            elif loop.time() - since >= self._period_s and await self._may_end(begun):
                log.info("nobody uses the daemon", idle_exit_s=self._period_s)
                return

    async def _may_end(self, begun: int) -> bool:
        """Takes the lock of the users, and looks for calls once more: a client without the lock may have called."""
        try:
            if await self._count_dirty() or not self._users.close_door():
                return False
        except Exception:  # noqa: BLE001  (the next round looks again)
            failures.note("idle exit")
            return False
        if self._server.open_calls or self._server.begun_calls != begun:
            self._users.open_door()
            return False
        return True


CALLS_SHARE = 0.5
# Beyond the grace time, for work that began within it, and for closing.
MARGIN_S = 0.5


async def stop(
    server: Server, store: Store, archive: Archive | None, grace_s: float, sign_out: Callable[[], Awaitable[None]]
) -> None:
    """Returns when nothing is written any more. Some threads of the process may still wait for the bucket. Calls
    ``sign_out`` once all is archived that could be in time."""
    loop = asyncio.get_running_loop()
    end = loop.time() + grace_s
    await server.stop(grace_s * CALLS_SHARE if archive is not None else grace_s)
    is_quiet = True
    if archive is not None:
        await _leave(archive, end)
        await sign_out()
        await loop.run_in_executor(None, archive.stop)
        is_quiet = await _is_over(archive.close, end)
    await loop.run_in_executor(None, store.context.writer.stop)
    if not is_quiet or not await _is_over(store.close, end):
        log.warning("requests to the bucket are still under way; the process ends without them")


async def _leave(archive: Archive, end: float) -> None:
    """Archives committed entries and gives threads up. The next start on this disk archives the rest."""
    left = max(end - asyncio.get_running_loop().time(), 0.0)
    given: list[None] = []
    await _is_over(lambda: archive.ship_all(left, lambda: given.append(None)), end)
    dirty = await asyncio.get_running_loop().run_in_executor(None, archive.leaver.count_dirty)
    if dirty:
        log.warning(
            "the grace time is over and threads have unarchived entries; the next start on this disk archives them",
            threads=dirty, error=archive.state.wire.error,
        )  # fmt: skip
    log.info("left the archive", detached=len(given), dirty=dirty)


async def _is_over(work: Callable[[], object], end: float) -> bool:
    """Runs work that may wait for the bucket. Returns whether it ended in time."""
    loop = asyncio.get_running_loop()
    timeout = max(end + MARGIN_S - loop.time(), 0.0)
    done, _ = await asyncio.wait({loop.run_in_executor(None, work)}, timeout=timeout)
    for future in done:
        future.result()
    return bool(done)
