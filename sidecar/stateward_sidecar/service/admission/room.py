"""The memory for calls: the budgets of large requests and large answers, and the parser of large messages."""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

from stateward_sidecar.service.admission.budget import Budget, Share
from stateward_sidecar.service.admission.unfinished import Unfinished

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
