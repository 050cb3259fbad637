"""Memory for what is under way: large requests that are worked on, and answers that their clients have not taken yet.

Who needs more than a little takes a share first, and waits for it in line while others have it; after a time it is
QUEUE_FULL, which says when to try again. So however many clients ask for however much, the daemon needs about as much
as its budget. gRPC keeps an answer until its client takes it or leaves, and nothing can drop it before.

Used on the event loop only.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from stateward_sidecar.errors import QueueFull

# A smaller answer is not counted. gRPC makes a copy of each, and one in a stream is there as a message, too.
FREE_ANSWER_BYTES = 64 << 10
ANSWER_SHARE, STREAMED_SHARE = 2, 3
# How long a call waits for its share.
WAIT_S = 20.0


class Share:
    """A part of the budget. Closed once, by whoever took it."""

    __slots__ = ("_budget", "_is_settled", "size_bytes")

    def __init__(self, budget: Budget, size_bytes: int) -> None:
        self._budget = budget
        self._is_settled = False
        self.size_bytes = size_bytes

    def settle(self, size_bytes: int) -> None:
        """Says how much it is in truth. Waits for nothing: it is there already."""
        self._is_settled = True
        self.arrive()
        self._resize(size_bytes)

    def slow_down(self, size_bytes: int, refuse: Callable[[], None]) -> None:
        """What it is for takes its time: from now on it counts so much, unless it is known by now how much it is.

        Where others wait for memory, ``refuse`` is called, at most once, and its owner closes the share soon after.
        """
        if not self._is_settled:
            self._budget.slow[self] = refuse
            self._resize(size_bytes)

    def arrive(self) -> None:
        """What it is for is there: it is refused no more."""
        self._budget.slow.pop(self, None)
        self._budget.refused.discard(self)

    def close(self, *_: object) -> None:
        """Gives it back; any arguments are passed over, so that it can be a callback."""
        self.settle(0)

    def _resize(self, size_bytes: int) -> None:
        self._budget.used_bytes += size_bytes - self.size_bytes
        self.size_bytes = size_bytes
        self._budget.pass_on()

    def __enter__(self) -> None:
        """Closed at the end of the block."""

    def __exit__(self, *error: object) -> None:
        self.close()


class Reserved(NamedTuple):
    """An answer, and the share that was taken before it was made."""

    data: bytes
    share: Share


class Budget:
    """So many bytes, shared in the order of asking."""

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.used_bytes = 0
        self.slow: dict[Share, Callable[[], None]] = {}
        """Shares of what takes its time, the oldest first, and how each is refused."""
        self.refused: set[Share] = set()
        """Those that were refused, and are not closed yet."""
        self._waiting: deque[tuple[int, asyncio.Future[Share]]] = deque()

    def has_room(self, size_bytes: int) -> bool:
        """Whether so much is free, and nobody waits. Whoever is alone has room for everything."""
        return not self._waiting and self._fits(size_bytes)

    def grant(self, size_bytes: int) -> Share:
        """A share, whether there is room or not."""
        self.used_bytes += size_bytes
        return Share(self, size_bytes)

    async def take(self, size_bytes: int, wait_s: float = WAIT_S, *, is_ahead: bool = False) -> Share:
        """A share, as soon as there is room. Raises QueueFull. ``is_ahead``: for who has a share already and may need
        this one to give it back: it waits for nobody who waits for that."""
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
            f"requests and answers under way need {self.used_bytes} bytes of memory, and this call has waited for "
            f"{wait_s:g} s; try again", queued=len(self._waiting),
        )  # fmt: skip

    def pass_on(self) -> None:
        """Gives what has become free to who waits longest."""
        while self._waiting and self._fits(self._waiting[0][0]):
            size_bytes, granted = self._waiting.popleft()
            granted.set_result(self.grant(size_bytes))
        self._refuse_slow()

    def _refuse_slow(self) -> None:
        """Refuses what takes its time, the oldest first, as far as that makes room for who waits longest."""
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
