"""Waiting at the end of a log until something is there.

What wakes a waiting call is the feed of commits that also wakes watches. It tells that something of the thread was
committed, not what: a look at the branch's head in memory comes before the log is read again.
"""

from __future__ import annotations

import asyncio

import grpc.aio

from stateward.v1.checkpoint_service_pb2 import ReadLogRequest
from stateward_sidecar.errors import ShuttingDown, StatewardError
from stateward_sidecar.service.calls import Calls
from stateward_sidecar.service.feed import Feed
from stateward_sidecar.service.levels import MARGIN_S, MARGIN_SHARE
from stateward_sidecar.store.readlog import LogPage


async def read_page(calls: Calls, request: ReadLogRequest) -> LogPage:
    """A page of a log as it is now."""
    reader, holding = calls.store.log_reader, calls.holding
    if reader.is_hot(request) and holding.is_fresh(request.namespace, request.thread):
        try:
            return reader.read(request)
        except StatewardError:
            pass  # a worker looks again, and may wait for what is being committed
    return await holding.read(request.namespace, request.thread, lambda: calls.load(reader.read, request))


async def await_page(calls: Calls, feed: Feed, request: ReadLogRequest, context: grpc.aio.ServicerContext) -> LogPage:
    """The same, and where it is empty the first one that is not.

    Ends with what is there: when the time is over or the daemon stops, and also when the log was rewritten, for then
    the index that is waited for may mean something else.
    """
    until = asyncio.get_running_loop().time() + _wait_s(request, context)
    with feed.listen(request.namespace, request.thread) as listener:
        seen = listener.changes
        page = first = await read_page(calls, request)
        while not page.frames and page.answer.rewritten_version == first.answer.rewritten_version:
            try:
                async with asyncio.timeout_at(until):
                    await listener.wait_beyond(seen)
            except TimeoutError:
                if _is_as_seen(calls, request, page):
                    return page
                return await read_page(calls, request)  # what another sidecar wrote is not heard of here
            except ShuttingDown:
                break
            seen = listener.changes
            if calls.store.log_reader.head(request) != page.answer.version:
                page = await read_page(calls, request)
    return page


def _is_as_seen(calls: Calls, request: ReadLogRequest, page: LogPage) -> bool:
    """Whether nobody can have added anything: thousands of waits that end at once need not all read again."""
    is_ours = calls.holding.is_fresh(request.namespace, request.thread)
    return is_ours and calls.store.log_reader.head(request) == page.answer.version


def _wait_s(request: ReadLogRequest, context: grpc.aio.ServicerContext) -> float:
    wait_s: float = request.wait.ToMicroseconds() / 1e6
    remaining: float | None = context.time_remaining()
    if remaining is None:
        return wait_s
    return min(wait_s, max(remaining - min(MARGIN_S, remaining * MARGIN_SHARE), 0.0))
