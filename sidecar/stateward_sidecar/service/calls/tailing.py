"""Waits at the end of a log until there are new entries.

The feed of commits wakes a waiting call, as it wakes watches. The feed does not tell what was committed. So the call
compares the branch's head in memory before it reads the log again. Each page names the version of the page before, so
that no page goes on in another thread of the name, or in another line.
"""

from __future__ import annotations

import asyncio

import grpc.aio

from stateward.v1.checkpoint_service_pb2 import ReadLogRequest
from stateward_sidecar.errors import ShuttingDown, StatewardError
from stateward_sidecar.service.calls.calls import Calls
from stateward_sidecar.service.calls.feed import Feed
from stateward_sidecar.service.calls.levels import MARGIN_S, MARGIN_SHARE
from stateward_sidecar.store.read.readlog import LogPage


async def read_page(calls: Calls, request: ReadLogRequest) -> LogPage:
    """Returns a page of a log as it is now."""
    reader, holding = calls.store.log_reader, calls.holding
    if reader.is_hot(request) and holding.is_fresh(request.namespace, request.thread):
        try:
            return reader.read(request)
        except StatewardError:
            pass  # a worker reads again, and may wait for a commit under way
    return await holding.read(request.namespace, request.thread, lambda: calls.load(reader.read, request))


async def await_page(calls: Calls, feed: Feed, request: ReadLogRequest, context: grpc.aio.ServicerContext) -> LogPage:
    """Returns a page of a log. If the page is empty, waits for the first one that is not.

    Returns the current page if the time is over, if the daemon stops, if the log was rewritten, or if the head went
    back to an older version, because then the index may mean something else.
    """
    until = asyncio.get_running_loop().time() + _wait_s(request, context)
    with feed.listen(request.namespace, request.thread) as listener:
        seen = listener.changes
        page = first = await read_page(calls, request)
        while not page.frames and _continues(page, first):
            try:
                async with asyncio.timeout_at(until):
                    await listener.wait_beyond(seen)
            except TimeoutError:
                if _is_as_seen(calls, request, page):
                    return page
                return await _next_page(calls, request, page)  # the feed knows nothing of what another sidecar wrote
            except ShuttingDown:
                break
            seen = listener.changes
            if not calls.store.log_reader.shows(request, page.answer):
                page = await _next_page(calls, request, page)
    return page


async def _next_page(calls: Calls, request: ReadLogRequest, page: LogPage) -> LogPage:
    """Reads the page again. Raises UidMismatch if the thread was deleted since."""
    now = page.answer
    request.expected_uid, request.known_version, request.known_digest = now.uid, now.version, now.version_digest
    return await read_page(calls, request)


def _continues(page: LogPage, first: LogPage) -> bool:
    """Returns whether the index of a reader of the first page means the same in a later one."""
    now, then = page.answer, first.answer
    is_same = now.rewritten_version == then.rewritten_version and not now.known_missing
    return is_same and now.version >= then.version


def _is_as_seen(calls: Calls, request: ReadLogRequest, page: LogPage) -> bool:
    """Whether the log is surely unchanged. Thousands of waits that end at once then do not all read again."""
    is_ours = calls.holding.is_fresh(request.namespace, request.thread)
    return is_ours and calls.store.log_reader.shows(request, page.answer)


def _wait_s(request: ReadLogRequest, context: grpc.aio.ServicerContext) -> float:
    wait_s: float = request.wait.ToMicroseconds() / 1e6
    remaining: float | None = context.time_remaining()
    if remaining is None:
        return wait_s
    return min(wait_s, max(remaining - min(MARGIN_S, remaining * MARGIN_SHARE), 0.0))
