"""The places for uploads of blobs, and for imports. One that brings its bytes too slowly gives its place to another, if
all are taken.

Used on the event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TypeVar

from google.protobuf.message import Message

from stateward_sidecar.errors import QueueFull

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
