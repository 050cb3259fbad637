"""The end of the daemon, within its grace time.

Running calls end, at most half of the time where there is an archive; then threads are archived and given up until the
time is over; then what is durable is closed. A request to the bucket that hangs is not waited for: the process ends
without it. Nothing is lost by that: every commit is synced before it is answered, a HEAD that lands after all is found
by the next start on this disk, and objects without a HEAD are garbage.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from stateward_sidecar.archive.archive import Archive
from stateward_sidecar.service.server import Server
from stateward_sidecar.store.store import Store
from stateward_sidecar.telemetry import log

CALLS_SHARE = 0.5
# Over the grace time: for what was begun within it, and for closing.
MARGIN_S = 0.5


async def stop(server: Server, store: Store, archive: Archive | None, grace_s: float) -> None:
    """Returns when nothing is written any more. Threads of the machine may be left that wait for the bucket."""
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
    """Archives what is committed and gives threads up; what is left is for the next start on this disk."""
    left = max(end - asyncio.get_running_loop().time(), 0.0)
    given: list[None] = []
    await _is_over(lambda: archive.ship_all(left, lambda: given.append(None)), end)
    dirty = await asyncio.get_running_loop().run_in_executor(None, archive.leaver.count_dirty)
    if dirty:
        log.warning(
            "the grace time is over and threads have entries that are not archived; the next start here archives them",
            threads=dirty, error=archive.desk.wire.error,
        )  # fmt: skip
    log.info("left the archive", detached=len(given), dirty=dirty)


async def _is_over(work: Callable[[], object], end: float) -> bool:
    """Runs what may wait for the bucket; whether it ended in time."""
    loop = asyncio.get_running_loop()
    timeout = max(end + MARGIN_S - loop.time(), 0.0)
    done, _ = await asyncio.wait({loop.run_in_executor(None, work)}, timeout=timeout)
    for future in done:
        future.result()
    return bool(done)
