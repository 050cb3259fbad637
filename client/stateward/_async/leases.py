"""Leases and named locks: the right to write a thread, renewed in the background."""

from __future__ import annotations

import os
from typing import Self

from stateward._frames import ends_at_the_caller
from stateward._io.aio.background import Alarm, Background
from stateward._io.aio.driving import keep_up
from stateward._io.aio.session import AsyncSession
from stateward._operations import leases
from stateward._operations.holder import Holder
from stateward._operations.leases import TERM_S, Claim
from stateward._operations.steps import ThreadRef
from stateward.arguments import text
from stateward.durations import Duration
from stateward.errors import LeaseHeld
from stateward.models import Lease
from stateward.options import ThreadOptions


@ends_at_the_caller
class AsyncHeldLease:
    """The right to write a thread. A background thread renews it, with asyncio a task of the event loop.

    `token` is the fencing token: a resource that knows it can refuse what an older holder still sends. A process that
    was paused for longer than the term may have lost the lease without knowing; `check` asks the daemon.
    """

    def __init__(
        self,
        session: AsyncSession,
        ref: ThreadRef,
        *,
        term: Duration = TERM_S,
        wait: Duration = 0.0,
        take_over: bool = False,
        holder: str | None = None,
        create: ThreadOptions | None = None,
        binds: bool = False,
    ) -> None:
        self._session, self._ref = session, ref
        who = Holder.named(text(holder, "holder")) if holder else session.holder
        self._claim = Claim.of(who, term, wait, take_over, create)
        self._binds = binds  # whether saves through the handle carry its token
        self._pid = os.getpid()
        self._ended = Alarm()
        self._is_held = False
        self._token = 0  # 0 = not taken yet
        self.uid = ""
        """The uid of the thread: the next thread of its name may give out the same token. Empty = not taken yet."""
        self.lost: LeaseHeld | None = None
        """Why the lease is lost, as far as this process knows; None = it is not known to be lost."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._ref.thread!r}, token={self._token})"

    @property
    def token(self) -> int:
        """The fencing token, larger than that of every earlier holder. Raises RuntimeError before the lease is
        taken."""
        if not self._token:
            raise RuntimeError(f"the lease of thread {self._ref.thread!r} is not taken yet; use it with `with`")
        return self._token

    @property
    def thread(self) -> str:
        """The thread that the lease is for."""
        return self._ref.thread

    @property
    def is_ours(self) -> bool:
        """Whether this process took the lease. A forked child gives back nothing that its parent holds."""
        return self._pid == os.getpid()

    async def __aenter__(self) -> Self:
        self._take(await self._session.run(leases.acquire(self._ref, self._claim)))
        ended = self._ended = Alarm()
        Background("stateward-lease", lambda: self._keep(ended))
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.release()

    async def check(self) -> Lease:
        """Asks the daemon whether the lease is still held, and renews it. Raises LeaseHeld if it was lost."""
        token = self._held_token()
        try:
            return await self._session.run(leases.renew(self._ref, token, self.uid))
        except LeaseHeld as error:
            self.lost = error
            raise

    async def release(self) -> bool:
        """Gives the lease back. Returns False if it was lost or given back before."""
        if self.is_ours:
            self._ended.set()
        token = self._give_back()
        return bool(token) and await self._session.run(leases.release(self._ref, token, self.uid))

    async def _keep(self, ended: Alarm) -> None:
        token, uid, term_s = self.token, self.uid, self._claim.term_s
        lost = await keep_up(
            ended,
            term_s * leases.RENEWAL_SHARE,
            lambda: self._session.run(leases.renew(self._ref, token, uid, term_s)),
            LeaseHeld,
        )
        if self._is_held and token == self._token:  # else a renewal that was under way when the lease was given back
            self.lost = lost or self.lost

    def _take(self, lease: Lease) -> None:
        self._token, self.uid, self._is_held, self.lost = lease.token, lease.uid, True, None
        if self._binds:
            self._ref.held.take(lease.token, lease.uid)

    def _give_back(self) -> int:
        """Returns the token to be given back; 0 = none."""
        if not self.is_ours or not self._is_held:
            return 0
        self._is_held = False
        if self._binds:
            self._ref.held.give_back(self.token)
        return 0 if self.lost else self.token

    def _held_token(self) -> int:
        if self.lost is not None:
            raise self.lost
        if not self._is_held:
            raise RuntimeError("this lease is not held; use it with `with`")
        return self.token
