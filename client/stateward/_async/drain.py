"""The asyncio twin of `_sync_drain`."""

from __future__ import annotations

from typing import TypeVar

from stateward import _drain, _sync_drain
from stateward._operations import Operation
from stateward._shell import documented_as
from stateward.admin import DrainResult

T = TypeVar("T")


@documented_as(_sync_drain.ClientDrain)
class AsyncClientDrain:
    """The part of `AsyncClient` that drains."""

    async def drain(self, *, grace: float | None = None, undo: bool = False) -> DrainResult:
        return await self._run(_drain.drain(grace, undo))

    async def _run(self, operation: Operation[T]) -> T:
        raise NotImplementedError
