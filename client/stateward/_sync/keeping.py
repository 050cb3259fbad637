"""Where a thread is kept: waiting for the archive, attaching, detaching."""

from __future__ import annotations

from typing import TypeVar

from stateward import _ownership, _threads
from stateward._operations import Operation, ThreadRef
from stateward.models import Checkpoint, Durability, DurableResult, ThreadInfo

T = TypeVar("T")


class ThreadKeeping:
    """The part of a thread's handle that asks where the thread is."""

    _ref: ThreadRef

    def _run(self, operation: Operation[T]) -> T: ...  # type: ignore[empty-body]

    def wait_durable(self, what: Checkpoint | int, durability: Durability | str | None = None) -> DurableResult:
        """Waits until a version, or a place in the journal, has reached a level, for up to the client's deadline.

        Fenced where another sidecar took the thread, and this version is kept in an orphan only. A place alone cannot
        tell that: another entry may stand there now.
        """
        return self._run(_threads.wait_durable(self._ref, what, durability))

    def wait_archived(self, what: Checkpoint | int, *, timeout: float | None = None) -> DurableResult:
        """Waits until a version, or a place in the journal, is in the archive, with all before it.

        Fenced as for `wait_durable`. NotArchivedYet after `timeout` seconds; None = the client's deadline. Then wait
        again.
        """
        return self._run(_threads.wait_archived(self._ref, what, timeout))

    def attach(self, *, take_over: bool = False, read_only: bool = False, wait: float | None = None) -> ThreadInfo:
        """Makes this sidecar the owner of a thread that is in the archive; NotOwner where another one holds it.

        Writes do that by themselves where the thread is free: detached, or not changed for the lease time. `wait` waits
        so many seconds for that, at most an hour. `take_over` does not ask: for who knows that the other machine is
        dead. `read_only` takes a copy of what is archived, whoever holds it. NoArchive where the daemon has none.
        """
        return self._run(_ownership.attach(self._ref, take_over=take_over, read_only=read_only, wait_s=wait))

    def detach(self) -> ThreadInfo:
        """Archives what is committed, then gives the thread up, so that any sidecar may take it at once."""
        return self._run(_ownership.detach(self._ref))
