"""Wakes watches and long polls after commits that concern them, and follows a thread, a namespace or a log.

Wakes open watches and long polls after commits that concern them. They read the changes from the store.

Listeners are stored under the name of their thread or namespace. So a commit costs as much as it has listeners, and
nothing without listeners. Many listeners of one namespace are woken in slices, and other tasks run in between.

Follows a thread or a namespace: reads the events, and waits for commits that concern the watch.

Waits at the end of a log until there are new entries.

The feed of commits wakes a waiting call, as it wakes watches. The feed does not tell what was committed. So the call
compares the branch's head in memory before it reads the log again. Each page names the version of the page before, so
that no page goes on in another thread of the name, or in another line.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping
from contextlib import contextmanager, suppress

import grpc.aio

from stateward.v1.checkpoint_service_pb2 import ReadLogRequest
from stateward.v1.thread_service_pb2 import WatchRequest, WatchResponse
from stateward_sidecar.errors import HistoryElsewhere, ShuttingDown, StatewardError, ThreadNotFound
from stateward_sidecar.service.calls.calls import Calls
from stateward_sidecar.service.calls.method import reading_of
from stateward_sidecar.service.calls.ownership import MARGIN_S, MARGIN_SHARE, ROUNDS
from stateward_sidecar.store.read.listing import ALL_THREADS
from stateward_sidecar.store.read.readlog import LogPage
from stateward_sidecar.store.read.watch import Watch
from stateward_sidecar.store.thread.thread import Thread

# How many listeners are woken in one turn of the loop. Each then reads.
SLICE = 32
Place = tuple[str, str]


class Listener:
    """One watch or long poll. ``labels`` restricts the listener of a namespace to threads with these labels."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        self.labels = labels
        self.changes = 0
        """The number of commits that concern this listener."""
        self.is_closed = False
        self._event = asyncio.Event()

    def wants(self, thread: Thread) -> bool:
        """Whether the listener's labels match a thread of its namespace."""
        if not self.labels:
            return True
        labels = thread.head.options.labels
        return all(labels.get(key) == value for key, value in self.labels.items())

    def hear(self) -> None:
        """Notes a commit. Called on the loop."""
        self.changes += 1
        self._event.set()

    async def wait_beyond(self, seen: int) -> None:
        """Waits until there are more changes than ``seen``. Raises ShuttingDown."""
        while self.changes <= seen and not self.is_closed:
            self._event.clear()
            await self._event.wait()
        if self.is_closed:
            raise ShuttingDown("the daemon is stopping; watch again from the last cursor when it is back")

    def close(self) -> None:
        """Ends the waits of this listener. Called on the loop."""
        self.is_closed = True
        self._event.set()


class Feed:
    """All open watches, by namespace and thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._listeners: dict[Place, dict[Listener, None]] = {}
        # The listeners that the current commit concerns.
        self._changed: dict[Listener, None] = {}

    @property
    def listeners(self) -> int:
        """The number of open watches."""
        return sum(map(len, self._listeners.values()))

    @contextmanager
    def listen(self, namespace: str, thread: str, labels: Mapping[str, str] | None = None) -> Iterator[Listener]:
        """Registers a listener for the block, before its first read, so that it misses no commit. "-" as ``thread``:
        all.
        """
        place, listener = (namespace, thread), Listener(labels or {})
        self._listeners.setdefault(place, {})[listener] = None
        try:
            yield listener
        finally:
            here = self._listeners[place]
            del here[listener]
            if not here:
                del self._listeners[place]

    def close(self) -> None:
        """Ends all watches, which would delay the stop."""
        for listeners in list(self._listeners.values()):
            for listener in listeners:
                listener.close()

    def note(self, namespace: str, name: str, thread: Thread | None) -> None:
        """Notes that readers now see a change of a thread, or its deletion (None). Called on the writer thread."""
        if not self._listeners:
            return
        # Copied in one step, because the loop may add listeners meanwhile.
        self._changed.update(dict.fromkeys(list(self._listeners.get((namespace, name), ()))))
        for listener in list(self._listeners.get((namespace, ALL_THREADS), ())):
            if thread is None or listener.wants(thread):
                self._changed[listener] = None

    def on_commit(self) -> None:
        """Wakes the noted listeners. Called on the writer thread, after all changes of a commit were noted."""
        if self._changed:
            changed, self._changed = self._changed, {}
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._tell, list(changed))

    def _tell(self, listeners: list[Listener]) -> None:
        for listener in listeners[:SLICE]:
            listener.hear()
        if len(listeners) > SLICE:
            self._loop.call_soon(self._tell, listeners[SLICE:])


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
                await calls.ownership.complete(error, tries)
                continue
            except ThreadNotFound:  # perhaps only the copy on this disk was deleted, or set aside
                tries += 1
                if calls.ownership.archive is None or tries == ROUNDS:
                    raise
                await calls.ownership.know(request.namespace, request.thread)
                continue
            tries = 0
            if answer is None and watch.place == before and not watch.is_over:
                await listener.wait_beyond(seen)


async def _open(calls: Calls, request: WatchRequest) -> Watch:
    def open_now() -> Awaitable[Watch]:
        return calls.read(calls.store.watcher.open, request)

    if request.thread == ALL_THREADS:
        watch = await open_now()
        watch.may_read = reading_of(request.namespace, is_stream=True)
        return watch
    return await calls.ownership.read(request.namespace, request.thread, open_now)


async def read_page(calls: Calls, request: ReadLogRequest) -> LogPage:
    """Returns a page of a log as it is now."""
    reader, ownership = calls.store.log_reader, calls.ownership
    if reader.is_hot(request) and ownership.is_fresh(request.namespace, request.thread):
        try:
            return reader.read(request)
        except StatewardError:
            pass  # a worker reads again, and may wait for a commit under way
    return await ownership.read(request.namespace, request.thread, lambda: calls.load(reader.read, request))


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
    is_ours = calls.ownership.is_fresh(request.namespace, request.thread)
    return is_ours and calls.store.log_reader.shows(request, page.answer)


def _wait_s(request: ReadLogRequest, context: grpc.aio.ServicerContext) -> float:
    wait_s: float = request.wait.ToMicroseconds() / 1e6
    remaining: float | None = context.time_remaining()
    if remaining is None:
        return wait_s
    return min(wait_s, max(remaining - min(MARGIN_S, remaining * MARGIN_SHARE), 0.0))
