"""Leases and named locks of the blocking client."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from stateward import _leases
from stateward._operations import ThreadRef
from stateward.errors import LeaseHeld, StatewardError
from stateward.lock import LeaseShell
from stateward.models import Lease, ThreadOptions

if TYPE_CHECKING:
    from stateward._sync import Client


class HeldLease(LeaseShell):
    """The right to write a thread, renewed in the background as long as this process lives.

    `token` is its fencing token: whoever is told it can refuse what an older holder still sends. A process that was
    paused for longer than the term may have lost the lease without knowing: `check` asks.
    """

    def __init__(self, client: Client, ref: ThreadRef, **options: Any) -> None:
        super().__init__(client, ref, **options)
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        self._take(self._client._run(_leases.acquire(self._ref, self._claim)))
        ended = self._ended = threading.Event()  # a lease may be entered again
        threading.Thread(target=self._keep, args=(ended,), name="stateward-lease", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def check(self) -> Lease:
        """Asks whether it is still held, and begins its term anew. LeaseHeld where somebody has taken it."""
        return self._judge(lambda: self._client._run(_leases.renew(self._ref, self._held_token())))

    def release(self) -> bool:
        """Gives it back. False where it was lost before, or given back."""
        self._ended.set()
        token = self._give_back()
        return bool(token) and self._client._run(_leases.release(self._ref, token))

    def _keep(self, ended: threading.Event) -> None:
        while not ended.wait(self._claim.term_s * _leases.RENEWAL_SHARE):
            try:
                self._client._run(_leases.renew(self._ref, self.token, self._claim.term_s))
            except LeaseHeld as error:
                self.lost = error
                return
            except StatewardError:
                continue  # the daemon is away: a lease outlives its restart
            except (RuntimeError, ValueError):
                return  # the client was closed


class ThreadLeasing:
    """Part of `Thread`."""

    _client: Client
    _ref: ThreadRef

    def lease(
        self,
        *,
        term: float = 30.0,
        wait: float | None = None,
        take_over: bool = False,
        create: ThreadOptions | None = None,
    ) -> HeldLease:
        """The right to write the thread, to be used with `with`. Nobody else can save to it meanwhile (LeaseHeld).

        Saves through this handle, and handles on other branches made from it, carry its token; with any other handle
        say `save(…, lease=lease)`. `wait` waits so many seconds for it, at most an hour, also where the thread is on
        another machine (else NotOwner); `take_over` takes it from a holder that is known to be dead. It is renewed in
        the background, and free `term` seconds after the last renewal, or at once for a client of the same `holder`
        name in a new process.
        """
        return HeldLease(self._client, self._ref, term=term, wait=wait, take_over=take_over, create=create, binds=True)


class ClientLocks:
    """Part of `Client`."""

    def lock(
        self, name: str, *, term: float = 30.0, wait: float | None = None, take_over: bool = False,
        holder: str | None = None,
    ) -> HeldLease:  # fmt: skip
        """A lock with a name, among all clients of the namespace on this daemon, to be used with `with`. LeaseHeld
        where somebody holds it, after `wait` seconds.

        It is the lease of a thread of its own, `locks/<name>`, so it survives the daemon, and with an archive the
        machine. Another machine gets it when the one that had it has archived nothing of it for `--archive-lease`
        (10 s) and the term of the last holder that is known there is over; until then NotOwner, after `wait` seconds.
        To hold a lock archives nothing, so a holder that lives may be replaced from another machine and not know it:
        where clients of several machines use a lock, let what it protects refuse a `token` below the newest it has
        seen.

        Tokens only grow, on all machines, until the thread `locks/<name>` is deleted: then they begin anew. `holder`
        names who holds it instead of the client's own name.
        """
        ref = ThreadRef(self.namespace, _leases.LOCKS + name, "main")  # type: ignore[attr-defined]
        return HeldLease(self, ref, term=term, wait=wait, take_over=take_over, holder=holder)  # type: ignore[arg-type]
