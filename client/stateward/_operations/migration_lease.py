"""The lease for migrating a busy thread, and how others who append to the thread wait for it.

A migration reads the whole state and saves on top of it. On a thread to which others append all the time, it would lose
every race. With the lease it loses none, and the others wait once.
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
"""Prefix of the holder's name. The rest is random, so that no migration takes over the lease of another."""
TERM_S = 20.0
"""Shorter than PATIENCE_S, so that others wait long enough if a migration is killed."""
PATIENCE_S = 30.0
PAUSE_MIN_S, PAUSE_MAX_S = 0.01, 0.25

T = TypeVar("T")


def hold(ref: ThreadRef, work: Callable[[Lease], Operation[T]]) -> Operation[T]:
    """Does the work under the thread's lease. Raises LeaseHeld if somebody else holds the lease."""
    lease = yield from acquire(ref, Claim(Holder.named(f"{HOLDER}-{new_request_id()}"), TERM_S))
    try:
        done = yield from work(lease)
    except Exception:  # after an interrupt (BaseException) nothing can be sent: the lease ends with its term
        yield from release(ref, lease.token, lease.uid)
        raise
    yield from release(ref, lease.token, lease.uid)
    return done


class Patience:
    """Waits while migrations hold the lease, for at most PATIENCE_S."""

    def __init__(self) -> None:
        self._backoff: Backoff | None = None

    def wait(self, error: LeaseHeld) -> Operation[None]:
        """Waits a moment. Raises the error if no migration holds the lease, or if PATIENCE_S are over."""
        self._backoff = self._backoff or Backoff(PAUSE_MIN_S, PAUSE_MAX_S, PATIENCE_S)
        is_migrated = error.metadata.get("holder", "").startswith(HOLDER) and bool(error.remaining)
        pause_s = self._backoff.next_s() if is_migrated else None
        if pause_s is None:
            raise error
        yield Pause(pause_s)
