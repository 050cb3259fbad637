"""Memory for calls: what large requests and large answers may take together, and who parses large messages."""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from stateward_sidecar.service.budget import Budget

MIB = 1 << 20
# The interpreter with all modules, gRPC, LMDB's own, and the many small things that are not counted.
BASE_BYTES = 64 * MIB
LEAST_BYTES, MOST_BYTES = 64 * MIB, 4 << 30
# The rest is for requests.
ANSWERS_PART = 4
TIDY_BYTES = 32 * MIB
# glibc's; other libraries do without.
_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
_set_option = getattr(ctypes.CDLL(None), "mallopt", None)
_ARENA_MAX, _MMAP_THRESHOLD = -8, -3
# Larger pieces of memory go back to the system when they are freed. glibc would raise this with each large piece.
LARGE_BYTES = 4 * MIB
ARENAS = 2


def keep_memory_together() -> None:
    """Before threads are started: few arenas, so that what one thread freed serves the others, and large pieces of
    memory apart. Without it, large requests one after another leave holes: 740 MB where 600 do."""
    if _set_option is not None:
        _set_option(_ARENA_MAX, ARENAS)
        _set_option(_MMAP_THRESHOLD, LARGE_BYTES)


@dataclass(frozen=True, slots=True)
class Room:
    """Two budgets, so that answers that nobody takes hold up no save. The parser is one thread: one at a time."""

    requests: Budget
    answers: Budget
    parser: Executor

    def reserve(self, loop: asyncio.AbstractEventLoop, size_bytes: int) -> Callable[[], None]:
        """Counts what is large and nobody waits for. Returns what gives it back, from any thread."""
        share = self.requests.grant(size_bytes)

        def give_back() -> None:
            share.close()
            self.tidy(size_bytes)

        def end() -> None:
            with suppress(RuntimeError):  # the daemon is stopping
                loop.call_soon_threadsafe(give_back)

        return end

    def tidy(self, freed_bytes: int) -> None:
        """After something large: memory that was freed goes back to the system, which C's library leaves for later."""
        if freed_bytes >= TIDY_BYTES and _trim is not None:
            self.parser.submit(_trim, 0)


def make_room(limit_bytes: int, cache_bytes: int) -> Room:
    """Divides what a process of so much memory has left beside its cache."""
    free = min(max(limit_bytes - cache_bytes - BASE_BYTES, LEAST_BYTES), MOST_BYTES)
    answers = free // ANSWERS_PART
    return Room(Budget(free - answers), Budget(answers), ThreadPoolExecutor(1, thread_name_prefix="parser"))
