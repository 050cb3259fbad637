"""Leases and named locks: the right to write a thread, renewed in the background."""

from __future__ import annotations

from typing import Any, Self

from stateward._io.aio.background import Alarm, Background
from stateward._io.aio.driving import keep_up
from stateward._io.aio.session import AsyncSession
from stateward._operations import leases
from stateward._operations.steps import ThreadRef
from stateward.errors import LeaseHeld
from stateward.lock import LeaseShell
from stateward.models import Lease


class AsyncHeldLease(LeaseShell):
    """The right to write a thread. A background thread renews it, with asyncio a task of the event loop.

    `token` is the fencing token: a resource that knows it can refuse what an older holder still sends. A process that
    was paused for longer than the term may have lost the lease without knowing; `check` asks the daemon.
    """

    def __init__(self, session: AsyncSession, ref: ThreadRef, **options: Any) -> None:
        super().__init__(session, ref, **options)
        self._session: AsyncSession = session
        self._ended = Alarm()

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
            return await self._session.run(leases.renew(self._ref, token))
        except LeaseHeld as error:
            self.lost = error
            raise

    async def release(self) -> bool:
        """Gives the lease back. Returns False if it was lost or given back before."""
        if self.is_ours:
            self._ended.set()
        token = self._give_back()
        return bool(token) and await self._session.run(leases.release(self._ref, token))

    async def _keep(self, ended: Alarm) -> None:
        token, term_s = self.token, self._claim.term_s
        lost = await keep_up(
            ended,
            term_s * leases.RENEWAL_SHARE,
            lambda: self._session.run(leases.renew(self._ref, token, term_s)),
            LeaseHeld,
        )
        if self._is_held and token == self.token:  # else a renewal that was under way when the lease was given back
            self.lost = lost or self.lost
