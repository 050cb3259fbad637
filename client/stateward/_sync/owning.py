# Generated from stateward/_async/owning.py by client/generate.py. Do not edit.
"""`thread.archive`: which sidecar owns a thread, and what of it is archived."""

from __future__ import annotations

from stateward._frames import ends_at_the_caller
from stateward._io.blocking.session import Session
from stateward._operations import ownership, threads
from stateward._operations.leases import WAIT_MAX_S
from stateward._operations.steps import ThreadRef
from stateward.durations import Duration, seconds
from stateward.models import Checkpoint, DurableResult, ThreadInfo


@ends_at_the_caller
class ThreadArchive:
    """A thread in the archive. `client.archive` is the archive as a whole."""

    def __init__(self, session: Session, ref: ThreadRef) -> None:
        self._session = session
        self._ref = ref

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._ref.thread!r})"

    def attach(self, *, take_over: bool = False, read_only: bool = False, wait: Duration = 0.0) -> ThreadInfo:
        """Makes this sidecar the owner of a thread in the archive.

        A write attaches the thread by itself if it is free: detached, or unchanged for the lease time of the archive.
        `wait` is how long to wait until it is free, at most an hour. `take_over` takes the thread from its owner; use
        it only if the owner's machine is known to be dead. `read_only` copies what is archived and leaves the owner
        alone. Raises NotOwner if another sidecar holds the thread, and NoArchive if there is no archive.
        """
        wait_s = seconds(wait, "wait", most=WAIT_MAX_S)
        return self._session.run(ownership.attach(self._ref, take_over=take_over, read_only=read_only, wait_s=wait_s))

    def detach(self) -> ThreadInfo:
        """Archives what is committed, then gives the thread up. Any sidecar may take it at once."""
        return self._session.run(ownership.detach(self._ref))

    def wait(self, what: Checkpoint | int, *, timeout: Duration | None = None) -> DurableResult:
        """Waits until a version, or a sequence of the journal, is in the archive with everything before it.

        Raises NotArchivedYet, a TimeoutError, after `timeout` (None = the client's `call_timeout`); the call can then
        be repeated. Raises Fenced if another sidecar took the thread and the version is only in an orphan. That is not
        detected for a sequence: after a takeover another entry may have it.
        """
        return self._session.run(threads.wait_archived(self._ref, what, timeout))
