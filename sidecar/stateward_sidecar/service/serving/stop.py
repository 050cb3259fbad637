"""Ends the daemon within its grace time.

First running calls end; with an archive they get at most half of the time. Then threads are archived and given up until
the time is over. Then the store is closed. The process does not wait for a request to the bucket that hangs. Nothing is
lost by that: every commit is synced before it is answered, the next start on this disk finds a HEAD that lands later,
and objects without a HEAD are garbage.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from stateward_sidecar.service.serving.server import Server
from stateward_sidecar.store.store import Store
from stateward_sidecar.telemetry import log

if TYPE_CHECKING:  # a daemon without an archive does not load it
    from stateward_sidecar.archive.archive import Archive

CALLS_SHARE = 0.5
# Beyond the grace time, for work that began within it, and for closing.
MARGIN_S = 0.5


async def stop(server: Server, store: Store, archive: Archive | None, grace_s: float) -> None:
    """Returns when nothing is written any more. Some threads of the process may still wait for the bucket."""
    loop = asyncio.get_running_loop()
    end = loop.time() + grace_s
    await server.stop(grace_s * CALLS_SHARE if archive is not None else grace_s)
    is_quiet = True
    if archive is not None:
        await _leave(archive, end)
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
            threads=dirty, error=archive.desk.wire.error,
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
