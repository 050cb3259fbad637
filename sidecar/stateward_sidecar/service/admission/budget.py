"""Budgets of memory for large requests under way, and for answers that their clients have not taken yet.

Large requests and answers take a share first, and wait in line until there is room. After a time the call fails with
QUEUE_FULL, which says when to try again. So the daemon needs about as much memory as its budget, whatever its clients
ask for. gRPC keeps an answer until its client takes it or leaves, and the daemon cannot drop it before.

Used on the event loop only.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from stateward_sidecar.errors import QueueFull

# Answers up to this size are not counted.
FREE_ANSWER_BYTES = 64 << 10
# gRPC copies each answer, and an answer of a stream also exists as a message.
ANSWER_SHARE, STREAMED_SHARE = 2, 3
# How long a call waits for its share.
WAIT_S = 20.0


class Share:
    """A part of the budget. The owner of the share closes it once."""

    __slots__ = ("_budget", "_is_settled", "_is_slow", "size_bytes")

    def __init__(self, budget: Budget, size_bytes: int) -> None:
        """``size_bytes``: what the budget has granted; 0 = nothing, which needs no grant."""
        self._budget = budget
        self._is_settled = self._is_slow = False
        self.size_bytes = size_bytes

    def settle(self, size_bytes: int) -> None:
        """Sets the real size. Does not wait, because the memory is in use already."""
        self._is_settled = True
        self.arrive()
        self._resize(size_bytes)

    def slow_down(self, size_bytes: int, refuse: Callable[[], None]) -> None:
        """Marks the share as that of a slow message. From now on it counts ``size_bytes``, unless its size is settled.

        If others wait for memory, the budget calls ``refuse``, at most once. The owner then closes the share soon.
        """
        if not self._is_settled:
            self._is_slow = True
            self._budget.slow[self] = refuse
            self._resize(size_bytes)

    def arrive(self) -> None:
        """Notes that the message has arrived. The share can no longer be refused."""
        self._budget.slow.pop(self, None)
        self._budget.refused.discard(self)

    def close(self, *_: object) -> None:
        """Returns the share to the budget. Ignores its arguments, so that it can be a callback."""
        if self._is_slow or self.size_bytes:
            self.settle(0)
        else:
            self._is_settled = True  # that of a small message, which was never counted

    def _resize(self, size_bytes: int) -> None:
        self._budget.used_bytes += size_bytes - self.size_bytes
        self.size_bytes = size_bytes
        self._budget.pass_on()

    def __enter__(self) -> None:
        """Begins a block, at whose end the share is closed."""

    def __exit__(self, *error: object) -> None:
        self.close()


class Reserved(NamedTuple):
    """An answer, and the share that was taken before it was made."""

    data: bytes
    share: Share


class Budget:
    """A number of bytes, shared in the order of requests."""

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.used_bytes = 0
        self.slow: dict[Share, Callable[[], None]] = {}
        """The shares of slow messages, oldest first, and the callback that refuses each."""
        self.refused: set[Share] = set()
        """Shares that were refused and are not closed yet."""
        self._waiting: deque[tuple[int, asyncio.Future[Share]]] = deque()

    def has_room(self, size_bytes: int) -> bool:
        """Whether this much is free and nobody waits. If nothing is in use, there is room for any size."""
        return not self._waiting and self._fits(size_bytes)

    def grant(self, size_bytes: int) -> Share:
        """Returns a share at once, even if there is no room."""
        self.used_bytes += size_bytes
        return Share(self, size_bytes)

    async def take(self, size_bytes: int, wait_s: float = WAIT_S, *, is_ahead: bool = False) -> Share:
        """Returns a share as soon as there is room. Raises QueueFull after ``wait_s``.

        ``is_ahead``: the caller already has a share and may need this one to close it. Then it does not wait behind
        others, which may be waiting for that share.
        """
        if self._fits(size_bytes) if is_ahead else self.has_room(size_bytes):
            return self.grant(size_bytes)
        granted: asyncio.Future[Share] = asyncio.get_running_loop().create_future()
        place = (size_bytes, granted)
        (self._waiting.appendleft if is_ahead else self._waiting.append)(place)
        self._refuse_slow()
        try:
            async with asyncio.timeout(wait_s):
                return await asyncio.shield(granted)
        except BaseException as error:
            if granted.done():
                granted.result().close()
            else:
                self._waiting.remove(place)
                self.pass_on()
            if not isinstance(error, TimeoutError):
                raise
        raise QueueFull(
            f"requests and answers under way use {self.used_bytes} bytes of memory, and this call has waited for "
            f"{wait_s:g} s; try again", queued=len(self._waiting),
        )  # fmt: skip

    def pass_on(self) -> None:
        """Gives free memory to the call that has waited longest."""
        while self._waiting and self._fits(self._waiting[0][0]):
            size_bytes, granted = self._waiting.popleft()
            granted.set_result(self.grant(size_bytes))
        self._refuse_slow()

    def _refuse_slow(self) -> None:
        """Refuses slow messages, oldest first, if that makes room for the call that has waited longest."""
        wanted_bytes = self._waiting[0][0] if self._waiting else 0
        lacking = min(self.used_bytes + wanted_bytes - self.total_bytes, self.used_bytes)
        lacking -= sum(share.size_bytes for share in self.refused)
        if lacking > sum(share.size_bytes for share in self.slow):
            return
        while lacking > 0:
            share = next(iter(self.slow))
            lacking -= share.size_bytes
            self.refused.add(share)
            self.slow.pop(share)()

    def _fits(self, size_bytes: int) -> bool:
        return self.used_bytes + size_bytes <= self.total_bytes or not self.used_bytes
