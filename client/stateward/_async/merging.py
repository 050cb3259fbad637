"""The same for asyncio. The twin of `_sync_merging`, which has the docs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from stateward import _merging, _projecting, _sync_merging
from stateward._logpages import FOLLOW_WAIT_S, LogEntry, LogFollower, LogPages
from stateward._merging import ANY
from stateward._operations import Operation, ThreadRef
from stateward._projecting import Reducer
from stateward._saving import SaveOptions
from stateward._shell import documented_as
from stateward.models import Checkpoint

if TYPE_CHECKING:
    from stateward._async import AsyncClient

T = TypeVar("T")


@documented_as(_sync_merging.ThreadMerging)
class AsyncThreadMerging:
    """Methods of `AsyncThread`."""

    _client: AsyncClient
    _ref: ThreadRef

    async def increment(self, slot: str, delta: int = 1, **options: Unpack[SaveOptions]) -> Checkpoint:
        return await self._run(_merging.increment(self._ref, slot, delta, options))

    async def set_slot(
        self, slot: str, value: Any, *, expected: Any = ANY, **options: Unpack[SaveOptions]
    ) -> Checkpoint:
        return await self._run(_merging.set_slot(self._ref, slot, value, expected, options))

    async def read_log(self, log: str, start: int = 0, *, version: int | None = None) -> AsyncIterator[LogEntry]:
        pages = LogPages(self._ref, log, start, version)
        while not pages.ended:
            for entry in await self._run(pages.next_page()):
                yield entry

    async def follow_log(self, log: str, start: int | None = 0) -> AsyncIterator[LogEntry]:
        follower = LogFollower(self._ref, log, start, min(FOLLOW_WAIT_S, self._client._settings.deadline_s / 2))
        while True:
            for entry in await self._run(follower.next_page()):
                yield entry

    async def replay(self, log: str, reducer: Reducer, initial: Any, *, projection: str | None = None) -> Any:
        return await self._run(_projecting.replay(self._ref, log, reducer, initial, projection))

    async def _run(self, operation: Operation[T]) -> T:
        raise NotImplementedError
