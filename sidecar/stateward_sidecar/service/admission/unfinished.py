"""Bounds what gRPC holds of messages that have not come whole.

gRPC takes the bytes of a message as soon as a call waits for it, and does not say how many have come. So the daemon
knows only which calls wait for a message. It looks at the memory that it really has. If that is more than all limits
together allow, some of these messages are only half there, and their calls are refused until the memory comes back:
first calls of one message, which comes with its call if its client is well, then streams, newest first. The client of
an idle stream opens it again, and loses nothing.

Used on the event loop only. Nothing is looked at while no call waits. Systems without ``/proc`` have no such bound.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress

# How often the memory is looked at, and how old a wait must be to be refused.
LOOK_S, REFUSED_FROM_S = 0.1, 0.2
# The pause after refusals doubles up to this if they free nothing, because then the memory is somebody else's.
PAUSE_MAX_S = 60.0
# Memory that must come back for refusals to count as useful.
FREED_BYTES = 1 << 20


def own_bytes() -> int:
    """Returns the memory of this process that is no file's; 0 if the system does not say."""
    with suppress(OSError, ValueError), open("/proc/self/statm", "rb") as statm:  # noqa: PTH123  (ten times a second)
        _, resident, shared, *_ = map(int, statm.read().split())
        return (resident - shared) * os.sysconf("SC_PAGESIZE")
    return 0


class Waiting:
    """A call that waits for a message."""

    __slots__ = ("began_s", "is_refused", "is_stream", "task")

    def __init__(self, began_s: float, *, is_stream: bool) -> None:
        self.task = asyncio.current_task()
        self.began_s = began_s
        self.is_stream = is_stream
        self.is_refused = False

    def refuse(self) -> None:
        """Ends the wait. Whoever waits sees ``is_refused``, and its own cancellation."""
        if not self.is_refused and self.task is not None:
            self.is_refused = True
            self.task.cancel()


class Unfinished:
    """The calls that wait for a message."""

    def __init__(
        self, limit_bytes: int, measure: Callable[[], int] = own_bytes, trim: Callable[[], None] = lambda: None
    ) -> None:
        """``limit_bytes``: the memory that the process has at most if every limit is used up."""
        self._limit_bytes, self._measure, self._trim = limit_bytes, measure, trim
        # In the order of their begin.
        self._waiting: dict[Waiting, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._pause_s, self._next_s, self._before_bytes = LOOK_S, 0.0, 0

    def begin(self, *, is_stream: bool) -> Waiting:
        """Notes that the current task waits for a message."""
        loop = asyncio.get_running_loop()
        waiting = Waiting(loop.time(), is_stream=is_stream)
        self._waiting[waiting] = None
        if self._timer is None:
            self._timer = loop.call_later(LOOK_S, self._look, loop)
        return waiting

    def end(self, waiting: Waiting) -> None:
        """Notes that the message has come, or that nobody waits for it any more."""
        self._waiting.pop(waiting, None)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        now = loop.time()
        if now >= self._next_s:
            self._bound(now)
        if self._waiting:
            self._timer = loop.call_later(LOOK_S, self._look, loop)

    def _bound(self, now: float) -> None:
        used_bytes = self._measure()
        if used_bytes <= self._limit_bytes:
            self._pause_s, self._before_bytes = LOOK_S, 0
            return
        is_useful = not self._before_bytes or used_bytes < self._before_bytes - FREED_BYTES
        self._pause_s = LOOK_S if is_useful else min(2 * self._pause_s, PAUSE_MAX_S)
        self._before_bytes, self._next_s = used_bytes, now + self._pause_s
        for waiting in self._chosen(now - REFUSED_FROM_S):
            waiting.refuse()
        self._trim()

    def _chosen(self, until_s: float) -> list[Waiting]:
        old = [each for each in self._waiting if each.began_s <= until_s]
        single = [each for each in old if not each.is_stream]
        streams = [each for each in old if each.is_stream]
        return single or streams[len(streams) // 2 :]
