"""`client.archive` for asyncio. The twin of `_sync_archive`, which has the docs."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from stateward import _archive, _sync_archive
from stateward._async_io import AsyncStream
from stateward._shell import documented_as
from stateward.archive import (
    ArchivedThread,
    ArchiveStatus,
    ArchiveVerifyProgress,
    GarbageProgress,
    Repair,
    RestoreProgress,
)

if TYPE_CHECKING:
    from stateward._async import AsyncClient


@documented_as(_sync_archive.Archive)
class AsyncArchive:
    """The archive of the daemon, as far as it holds the client's namespace. NoArchive where there is none.

    These are the only calls that list the bucket: they cost requests by the number of threads.
    """

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def status(self) -> ArchiveStatus:
        return await self._client._run(_archive.status())

    def list(self, *, index: bool = False) -> AsyncStream[ArchivedThread]:
        return self._client._open(_archive.list_threads(self._client.namespace, index=index))

    def verify(self, thread: str | None = None, *, data_percent: float = 0.0) -> AsyncStream[ArchiveVerifyProgress]:
        return self._client._open(_archive.verify(self._client.namespace, thread, data_percent))

    def restore(self, thread: str | None = None, *, dry_run: bool = False) -> AsyncStream[RestoreProgress]:
        return self._client._open(_archive.restore(self._client.namespace, thread, dry_run=dry_run))

    def collect(self, *, dry_run: bool = False, grace: timedelta | None = None) -> AsyncStream[GarbageProgress]:
        return self._client._open(_archive.collect(self._client.namespace, dry_run=dry_run, grace=grace))

    async def repair(self, thread: str, *, dry_run: bool = False) -> Repair:
        return await self._client._run(_archive.repair(self._client.namespace, thread, dry_run=dry_run))
