"""Memory for calls: what large requests and large answers may take together, and who parses large messages."""

from __future__ import annotations

import ctypes
from concurrent.futures import Executor, ThreadPoolExecutor
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


@dataclass(frozen=True, slots=True)
class Room:
    """Two budgets, so that answers that nobody takes hold up no save. The parser is one thread: one at a time."""

    requests: Budget
    answers: Budget
    parser: Executor

    def tidy(self, freed_bytes: int) -> None:
        """After something large: memory that was freed goes back to the system, which C's library leaves for later."""
        if freed_bytes >= TIDY_BYTES and _trim is not None:
            self.parser.submit(_trim, 0)


def make_room(limit_bytes: int, cache_bytes: int) -> Room:
    """Divides what a process of so much memory has left beside its cache."""
    free = min(max(limit_bytes - cache_bytes - BASE_BYTES, LEAST_BYTES), MOST_BYTES)
    answers = free // ANSWERS_PART
    return Room(Budget(free - answers), Budget(answers), ThreadPoolExecutor(1, thread_name_prefix="parser"))
