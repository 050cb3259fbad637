"""Follows a thread or a namespace: reads the events, and waits for commits that concern the watch."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable

from stateward.v1.thread_service_pb2 import WatchRequest, WatchResponse
from stateward_sidecar.errors import HistoryElsewhere, ThreadNotFound
from stateward_sidecar.service.calls.calls import Calls
from stateward_sidecar.service.calls.feed import Feed
from stateward_sidecar.service.calls.holding import ROUNDS
from stateward_sidecar.store.read.listing import ALL_THREADS
from stateward_sidecar.store.read.watch import Watch


async def follow(calls: Calls, feed: Feed, request: WatchRequest) -> AsyncIterator[WatchResponse]:
    """Yields the answers to a checked request, until the thread is deleted. Raises ShuttingDown."""
    with feed.listen(request.namespace, request.thread, request.labels) as listener:
        watch = await _open(calls, request)

        async def read() -> WatchResponse | None:
            watch.place = before  # the answer may be made again
            events = await calls.read(calls.store.watcher.read, watch)
            return WatchResponse(events=events, cursor=watch.position) if events else None

        yield WatchResponse(cursor=watch.position)
        tries = 0
        while not watch.is_over:
            seen = listener.changes
            before = watch.place
            try:
                async with calls.sending(read) as answer:
                    if answer is not None:
                        yield answer
            except HistoryElsewhere as error:  # another sidecar wrote more than this disk fetched
                tries += 1
                await calls.holding.complete(error, tries)
                continue
            except ThreadNotFound:  # perhaps only the copy on this disk was deleted, or set aside
                tries += 1
                if calls.holding.archive is None or tries == ROUNDS:
                    raise
                await calls.holding.know(request.namespace, request.thread)
                continue
            tries = 0
            if answer is None and watch.place == before and not watch.is_over:
                await listener.wait_beyond(seen)


async def _open(calls: Calls, request: WatchRequest) -> Watch:
    def open_now() -> Awaitable[Watch]:
        return calls.read(calls.store.watcher.open, request)

    if request.thread == ALL_THREADS:
        return await open_now()
    return await calls.holding.read(request.namespace, request.thread, open_now)
