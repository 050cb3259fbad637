"""What bounds streams: calls on streams, uploads of blobs, and imports.

What bounds the calls on streams: the memory of their messages, and how many there are of all streams together.

The places for uploads of blobs, and for imports. One that brings its bytes too slowly gives its place to another, if
all are taken.

Used on the event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Protocol, TypeVar

from google.protobuf.message import Message

from stateward_sidecar.errors import QueueFull

ALL_CALLS_MAX = 4096
"""The most unanswered calls of all streams. Beyond it, each stream may have one."""


class Waiter(Protocol):
    """A stream that waits until others have fewer calls."""

    def wake(self) -> None:
        """Lets it look again."""


class Held:
    """The memory of a message: until all its calls have been begun, and their work has ended."""

    __slots__ = ("_give_back", "_holders")

    def __init__(self, give_back: Callable[[], None] | None) -> None:
        self._give_back, self._holders = give_back, 1

    def hold(self) -> None:
        """Something more needs the message."""
        self._holders += 1

    def let_go(self, *_: object) -> None:
        """Something needs it no longer. Ignores its arguments, so that it can be a callback."""
        self._holders -= 1
        if not self._holders and self._give_back is not None:
            self._give_back()

    async def to_its_end(self, work: Awaitable[Message]) -> Message:
        """Works on a call of a large message to its end, even if its caller leaves, because the work cannot be
        stopped."""
        if self._give_back is None:
            return await work
        working = asyncio.ensure_future(work)
        self.hold()
        working.add_done_callback(self.let_go)
        working.add_done_callback(lambda done: done.cancelled() or done.exception())  # the caller may have left
        return await asyncio.shield(working)


class Crowd:
    """The unanswered calls of all streams, which are bounded together."""

    def __init__(self) -> None:
        self._count = 0
        self._waiting: dict[Waiter, None] = {}

    def has_place(self) -> bool:
        """Whether a stream that has unanswered calls may begin another one."""
        return self._count < ALL_CALLS_MAX

    def enter(self) -> None:
        """A call begins."""
        self._count += 1

    def leave(self, calls: int) -> None:
        """Calls have been answered, or their stream is over. Wakes the streams that have waited longest."""
        self._count -= calls
        for stream in list(self._waiting)[: max(ALL_CALLS_MAX - self._count, 0)]:
            stream.wake()

    def wait(self, stream: Waiter) -> None:
        """A stream begins to wait, behind the others."""
        self._waiting[stream] = None

    def go(self, stream: Waiter) -> None:
        """A stream no longer waits."""
        self._waiting.pop(stream, None)


# An upload of fewer bytes a second, since it began to wait for them, is slow once this time is over.
LEAST_BYTES_PER_S, SLOW_FROM_S = 64 << 10, 2.0
M = TypeVar("M", bound=Message)


class Place:
    """The place of an upload. It counts what comes, and for how long the daemon has waited for that."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._task = asyncio.current_task()
        self._bytes = 0
        self._waited_s = 0.0
        self._since_s: float | None = None
        self._is_refused = False

    @property
    def bytes_per_s(self) -> float:
        """How fast the bytes come. Time in which the daemon works does not count; infinite at the begin."""
        waited_s = self._waited_s + (self._now() - self._since_s if self._since_s is not None else 0.0)
        return self._bytes / waited_s if waited_s >= SLOW_FROM_S and self._since_s is not None else float("inf")

    def refuse(self) -> None:
        """Ends the wait for the next message."""
        self._is_refused = True
        if self._task is not None:
            self._task.cancel()

    async def watch(self, requests: AsyncIterator[M]) -> AsyncIterator[M]:
        """Passes messages on. Raises QueueFull if the place was given to another upload."""
        while True:
            self._since_s = self._now()
            try:
                message = await anext(requests, None)
            except asyncio.CancelledError:
                if not self._is_refused or self._task is None or self._task.uncancel():
                    raise
                what = f"bytes come at less than {LEAST_BYTES_PER_S >> 10} KiB/s, and others need the place; try again"
                raise QueueFull(f"{what}; nothing was kept", queued=0) from None
            finally:
                self._waited_s += self._now() - self._since_s
                self._since_s = None
            if message is None:
                return
            self._bytes += message.ByteSize()
            yield message


class Places:
    """All places."""

    def __init__(self, count: int, what: str, now: Callable[[], float] = monotonic) -> None:
        """``what``: what is under way ``count`` times at most, for the error if one more comes."""
        self._count, self._what = count, what
        self._now = now
        self._taken: list[Place] = []

    @contextmanager
    def enter(self) -> Iterator[Place]:
        """Gives a place to an upload. If all are taken, the slowest one loses its own. Raises QueueFull if none is
        slow."""
        if len(self._taken) >= self._count and not self.refuse_slowest():
            raise QueueFull(f"{len(self._taken)} {self._what} already; try again", queued=len(self._taken))
        place = Place(self._now)
        self._taken.append(place)
        try:
            yield place
        finally:
            if place in self._taken:
                self._taken.remove(place)

    def refuse_slowest(self) -> bool:
        """Ends the slowest upload, because others wait for what it has. Returns False if none is slow."""
        slowest = min(self._taken, key=lambda place: place.bytes_per_s)
        if slowest.bytes_per_s >= LEAST_BYTES_PER_S:
            return False
        self._taken.remove(slowest)
        slowest.refuse()
        return True
