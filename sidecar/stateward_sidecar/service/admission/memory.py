"""How much memory calls may take: large requests, answers that wait, and messages that have not come whole.

Budgets of memory for large requests under way, and for answers that their clients have not taken yet.

Large requests and answers take a share first, and wait in line until there is room. After a time the call fails with
QUEUE_FULL, which says when to try again. So the daemon needs about as much memory as its budget, whatever its clients
ask for. gRPC keeps an answer until its client takes it or leaves, and the daemon cannot drop it before.

Used on the event loop only.

Bounds what gRPC holds of messages that have not come whole.

gRPC takes the bytes of a message as soon as a call waits for it, and does not say how many have come. So the daemon
knows only which calls wait for a message. It looks at the memory that it really has. If that is more than all limits
together allow, some of these messages are only half there, and their calls are refused until the memory comes back:
first calls of one message, which comes with its call if its client is well, then streams, newest first. The client of
an idle stream opens it again, and loses nothing.

Used on the event loop only. Nothing is looked at while no call waits. Systems without ``/proc`` have no such bound.

The memory for calls: the budgets of large requests and large answers, and the parser of large messages.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
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

    __slots__ = ("_budget", "_is_settled", "size_bytes")

    def __init__(self, budget: Budget, size_bytes: int) -> None:
        """``size_bytes``: what the budget has granted; 0 = nothing, which needs no grant."""
        self._budget = budget
        self._is_settled = False
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
            self._budget.slow[self] = refuse
            self._resize(size_bytes)

    def arrive(self) -> None:
        """Notes that the message has arrived. The share can no longer be refused."""
        self._budget.slow.pop(self, None)
        self._budget.refused.discard(self)

    def close(self, *_: object) -> None:
        """Returns the share to the budget. Ignores its arguments, so that it can be a callback."""
        self.settle(0)

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
        # Those that hold a share and wait for more of it: the share, how much more, and the end of the wait.
        self._growing: deque[tuple[Share, int, asyncio.Future[None]]] = deque()

    def has_room(self, size_bytes: int) -> bool:
        """Whether this much is free and nobody waits. If nothing is in use, there is room for any size."""
        return not self._waiting and not self._growing and self._fits(size_bytes)

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

    async def enlarge(self, share: Share, more_bytes: int, wait_s: float = WAIT_S) -> None:
        """Makes a share larger as soon as there is room. Raises QueueFull after ``wait_s``.

        If all memory is held by shares that wait here, none of them would ever be closed. Then the one that has waited
        longest gets what it needs without room.
        """
        grown: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        place = (share, more_bytes, grown)
        self._growing.append(place)
        self.pass_on()
        if grown.done():
            return
        try:
            async with asyncio.timeout(wait_s):
                await asyncio.shield(grown)
        except BaseException as error:
            if not grown.done():
                self._growing.remove(place)
                self.pass_on()
            if not isinstance(error, TimeoutError):
                raise
        else:
            return
        raise QueueFull(
            f"requests and answers under way use {self.used_bytes} bytes of memory, and a message has waited for "
            f"{wait_s:g} s for {more_bytes} more; try again", queued=len(self._growing),
        )  # fmt: skip

    def _grow(self) -> bool:
        """Enlarges the share that has waited longest. Returns False if it has to wait on."""
        if not self._growing:
            return False
        share, more_bytes, grown = self._growing[0]
        held_bytes = sum(each.size_bytes for each, _, _ in self._growing)
        if not self._fits(more_bytes) and self.used_bytes > held_bytes:
            return False
        self._growing.popleft()
        self.used_bytes += more_bytes
        share.size_bytes += more_bytes
        grown.set_result(None)
        return True

    def pass_on(self) -> None:
        """Gives free memory to those that hold some already, and then to the call that has waited longest."""
        while self._grow():
            pass
        while not self._growing and self._waiting and self._fits(self._waiting[0][0]):
            size_bytes, granted = self._waiting.popleft()
            granted.set_result(self.grant(size_bytes))
        self._refuse_slow()

    def _refuse_slow(self) -> None:
        """Refuses slow messages, oldest first, if that makes room for the call that has waited longest."""
        wanted_bytes = self._growing[0][1] if self._growing else self._waiting[0][0] if self._waiting else 0
        lacking = min(self.used_bytes + wanted_bytes - self.total_bytes, self.used_bytes)
        lacking -= sum(share.size_bytes for share in self.refused)
        if lacking > sum(share.size_bytes for share in self.slow):
            return
        refusals = list[Callable[[], None]]()
        while lacking > 0:
            share = next(iter(self.slow))
            lacking -= share.size_bytes
            self.refused.add(share)
            refusals.append(self.slow.pop(share))
        for refuse in refusals:  # one may close its share at once, and so come here again
            refuse()

    def _fits(self, size_bytes: int) -> bool:
        return self.used_bytes + size_bytes <= self.total_bytes or not self.used_bytes


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


MIB = 1 << 20
# Memory of the interpreter with all modules, gRPC, LMDB, and the many small objects that are not counted.
BASE_BYTES = 64 * MIB
LEAST_BYTES, MOST_BYTES = 64 * MIB, 4 << 30
# Answers get one part of this many; requests get the rest.
ANSWERS_PART = 4
TIDY_BYTES = 32 * MIB
# The process may have one part of this many more than its limits add up to, before unfinished messages are refused.
SLACK_PART = 8
# These functions exist in glibc only.
_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
_set_option = getattr(ctypes.CDLL(None), "mallopt", None)
_ARENA_MAX, _MMAP_THRESHOLD, _TOP_PAD, _TRIM_THRESHOLD = -8, -3, -2, -1
# Larger pieces of memory return to the system when they are freed. Otherwise glibc raises this limit with each large
# piece.
LARGE_BYTES = 4 * MIB
# The heap grows and shrinks in steps of this size. With the C library's 128 KiB it did so with every save.
STEP_BYTES = 1 * MIB
ARENAS = 2


def keep_memory_together() -> None:
    """Makes the C library use few arenas, so that memory that one thread freed serves the others, and map large pieces
    apart. Call it before threads start. Without it, large requests one after another leave holes: 740 MB instead of
    600.
    """
    if _set_option is not None:
        _set_option(_ARENA_MAX, ARENAS)
        _set_option(_MMAP_THRESHOLD, LARGE_BYTES)
        _set_option(_TOP_PAD, STEP_BYTES)
        _set_option(_TRIM_THRESHOLD, 4 * STEP_BYTES)


@dataclass(frozen=True, slots=True)
class Room:
    """Two budgets, so that untaken answers do not delay saves. The parser has one thread, for one message at a time."""

    requests: Budget
    answers: Budget
    parser: Executor
    unfinished: Unfinished = field(default_factory=lambda: Unfinished(MOST_BYTES))

    def reserve(self, loop: asyncio.AbstractEventLoop, size_bytes: int) -> Callable[[], None]:
        """Counts the memory of a background task. Returns a function that gives it back, callable from any thread."""
        share = self.requests.grant(size_bytes)

        def give_back() -> None:
            share.close()
            self.tidy(size_bytes)

        def end() -> None:
            with suppress(RuntimeError):  # the daemon is stopping
                loop.call_soon_threadsafe(give_back)

        return end

    def give_back(self, share: Share) -> None:
        """Closes the share of a large request whose work has ended, and returns its memory to the system."""
        freed_bytes = share.size_bytes
        share.close()
        self.tidy(freed_bytes)

    def tidy(self, freed_bytes: int) -> None:
        """Returns freed memory to the system after something large. The C library alone would do that later."""
        if freed_bytes >= TIDY_BYTES and _trim is not None:
            self.parser.submit(_trim, 0)


def make_room(limit_bytes: int, cache_bytes: int) -> Room:
    """Divides the memory that a process with this limit has left beside its cache."""
    free = min(max(limit_bytes - cache_bytes - BASE_BYTES, LEAST_BYTES), MOST_BYTES)
    answers = free // ANSWERS_PART
    parser = ThreadPoolExecutor(1, thread_name_prefix="parser")
    most = max(limit_bytes, cache_bytes + BASE_BYTES + free)

    def trim() -> None:
        if _trim is not None:
            parser.submit(_trim, 0)

    return Room(Budget(free - answers), Budget(answers), parser, Unfinished(most + most // SLACK_PART, trim=trim))
