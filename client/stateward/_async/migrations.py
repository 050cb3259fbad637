"""`thread.migrate` for asyncio. The twin of `_sync_migrations`, which has the docs."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from stateward import _migrating, _sync_migrations
from stateward._operations import Operation, ThreadRef
from stateward._shell import documented_as
from stateward.models import Checkpoint


@documented_as(_sync_migrations.ThreadMigration)
class AsyncThreadMigration:
    """The part of a thread's handle that migrates it."""

    _ref: ThreadRef

    def _run(self, operation: Operation[Any]) -> Awaitable[Any]: ...  # type: ignore[empty-body]

    async def migrate(self) -> Checkpoint | None:
        made: Checkpoint | None = await self._run(_migrating.migrate_here(self._ref))
        return made
