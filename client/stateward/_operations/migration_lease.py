"""The lease under which a busy thread is migrated, and how those wait for its end who only add to the thread.

A migration reads the whole state and saves on top of what it read, so on a thread that others add to all the time it
loses every race. With the lease it loses none, and they wait once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from stateward._operations.holder import Holder
from stateward._operations.leases import Claim, acquire, release
from stateward._operations.retry import Backoff
from stateward._operations.steps import Operation, Pause, ThreadRef, new_request_id
from stateward.errors import LeaseHeld
from stateward.models import Lease

HOLDER = "stateward-migration"
"""What the names of such holders begin with; the rest is random, so that no other migration is taken for its heir."""
TERM_S = 20.0
"""Shorter than the patience of those who wait, who so outlast a migration that was killed."""
PATIENCE_S = 30.0
PAUSE_MIN_S, PAUSE_MAX_S = 0.01, 0.25

T = TypeVar("T")


def hold(ref: ThreadRef, work: Callable[[Lease], Operation[T]]) -> Operation[T]:
    """Does the work under the thread's lease. LeaseHeld where somebody else has it."""
    lease = yield from acquire(ref, Claim(Holder.named(f"{HOLDER}-{new_request_id()}"), TERM_S))
    try:
        done = yield from work(lease)
    except Exception:  # not of a call that was interrupted, after which nothing can be sent: there the term ends
        yield from release(ref, lease.token)
        raise
    yield from release(ref, lease.token)
    return done


class Patience:
    """Waits as long as migrations hold the lease, but not for ever."""

    def __init__(self) -> None:
        self._backoff: Backoff | None = None

    def wait(self, error: LeaseHeld) -> Operation[None]:
        """Waits a moment; raises the error if no migration holds the lease, or if that took too long."""
        self._backoff = self._backoff or Backoff(PAUSE_MIN_S, PAUSE_MAX_S, PATIENCE_S)
        is_migrated = error.metadata.get("holder", "").startswith(HOLDER) and bool(error.remaining)
        pause_s = self._backoff.next_s() if is_migrated else None
        if pause_s is None:
            raise error
        yield Pause(pause_s)
