"""Where a thread is kept, for asyncio. The twin of `_sync_keeping`, which has the docs."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

from stateward import _ownership, _sync_keeping, _threads
from stateward._operations import Operation, ThreadRef
from stateward._shell import documented_as
from stateward.models import Checkpoint, Durability, DurableResult, ThreadInfo

T = TypeVar("T")


@documented_as(_sync_keeping.ThreadKeeping)
class AsyncThreadKeeping:
    """The part of a thread's handle that asks where the thread is."""

    _ref: ThreadRef

    def _run(self, operation: Operation[T]) -> Awaitable[T]: ...  # type: ignore[empty-body]

    async def wait_durable(self, what: Checkpoint | int, durability: Durability | str | None = None) -> DurableResult:
        return await self._run(_threads.wait_durable(self._ref, what, durability))

    async def wait_archived(self, what: Checkpoint | int, *, timeout: float | None = None) -> DurableResult:  # noqa: ASYNC109  as in the blocking twin
        return await self._run(_threads.wait_archived(self._ref, what, timeout))

    async def attach(
        self, *, take_over: bool = False, read_only: bool = False, wait: float | None = None
    ) -> ThreadInfo:
        return await self._run(_ownership.attach(self._ref, take_over=take_over, read_only=read_only, wait_s=wait))

    async def detach(self) -> ThreadInfo:
        return await self._run(_ownership.detach(self._ref))
