"""The asyncio twin of `_sync_queries`, which has the docs."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Unpack

from stateward import _queries, _sync_queries
from stateward._operations import ThreadRef
from stateward._saving import SaveOptions
from stateward._shell import documented_as
from stateward._threads import ThreadFilters
from stateward.insight import Failure, ToolUse
from stateward.models import Checkpoint, Status
from stateward.state import State


@documented_as(_sync_queries.Queries)
class AsyncQueries:
    """What `AsyncClient` has."""

    if TYPE_CHECKING:
        namespace: str
        thread: Any
        _run: Any

    async def count_threads(
        self,
        *,
        updated_since: datetime | timedelta | None = None,
        updated_after: datetime | None = None,
        updated_before: datetime | None = None,
    ) -> dict[Status | int, int]:
        counts: dict[Status | int, int] = await self._run(
            _queries.count_threads(self.namespace, updated_since, updated_after, updated_before)
        )
        return counts

    async def tools_used(
        self, *threads: str, agent: str | None = None, **filters: Unpack[ThreadFilters]
    ) -> list[ToolUse]:
        found: list[ToolUse] = await self._run(
            _queries.tools_used(self._refer, self.namespace, threads, agent, filters)
        )
        return found

    async def failures(
        self, *threads: str, agent: str | None = None, **filters: Unpack[ThreadFilters]
    ) -> list[Failure]:
        found: list[Failure] = await self._run(_queries.failures(self._refer, self.namespace, threads, agent, filters))
        return found

    def _refer(self, name: str) -> ThreadRef:
        ref: ThreadRef = self.thread(name, migrations=False)._ref
        return ref


@documented_as(_sync_queries.Finishing)
class AsyncFinishing:
    """What `AsyncThread` has."""

    if TYPE_CHECKING:
        _ref: Any
        _run: Any

    async def finish(self, state: State, *, ttl: timedelta | None = None, **options: Unpack[SaveOptions]) -> Checkpoint:
        checkpoint: Checkpoint = await self._run(_queries.finish(self._ref, state, ttl, options))
        return checkpoint
