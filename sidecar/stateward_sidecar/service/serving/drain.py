"""Empties the machine before an orchestrator removes it.

First the daemon is not ready, so that no clients are sent here. Then it refuses new work. Then it archives committed
entries and gives threads up, so that another sidecar may take each thread at once. Draining is a state of the daemon
and outlasts the call that began it. ``undo`` or a restart ends it. A second call continues after the first one's time
is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from stateward.v1.admin_service_pb2 import DrainResponse
from stateward_sidecar.service.admission.gate import Gate
from stateward_sidecar.service.calls.holding import Holding
from stateward_sidecar.store.store import Store
from stateward_sidecar.telemetry import log

GRACE_S_MAX = 3600.0
# The share of the grace time for writes under way. Most of the time is for the bucket.
SETTLE_SHARE = 0.25


class Drain:
    """Begins and ends draining."""

    def __init__(
        self, store: Store, holding: Holding, grace_s: float, set_draining: Callable[[bool], Awaitable[None]]
    ) -> None:
        self.grace_s = grace_s
        self._store = store
        self._holding = holding
        self._set_draining = set_draining
        self._one_at_a_time = asyncio.Lock()

    @property
    def _gate(self) -> Gate:
        return self._holding.gate

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
        loop, gate, archive = asyncio.get_running_loop(), self._gate, self._holding.archive
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
        archive = self._holding.archive
        if archive is None:
            return await self._on_worker(self._store.count_threads)
        return await self._on_worker(archive.leaver.count_dirty)

    async def _on_worker(self, verb: Callable[[], int]) -> int:
        return await asyncio.get_running_loop().run_in_executor(self._store.workers, self._store.read, verb)
