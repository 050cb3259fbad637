"""What bounds the calls on streams: the memory of their messages, and how many there are of all streams together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from google.protobuf.message import Message

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
