"""Leases and named locks of the asyncio client. The twin of `_sync_leases`, which has the docs."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from stateward import _leases, _sync_leases
from stateward._operations import ThreadRef
from stateward._shell import documented_as
from stateward.errors import LeaseHeld, StatewardError
from stateward.lock import LeaseShell
from stateward.models import Lease, ThreadOptions

if TYPE_CHECKING:
    from stateward._async import AsyncClient


@documented_as(_sync_leases.HeldLease)
class AsyncHeldLease(LeaseShell):
    """The right to write a thread, renewed in the background as long as the event loop runs.

    `token` is its fencing token: whoever is told it can refuse what an older holder still sends. A process that was
    paused for longer than the term may have lost the lease without knowing: `check` asks.
    """

    _keeping: asyncio.Task[None] | None = None

    def __init__(self, client: AsyncClient, ref: ThreadRef, **options: Any) -> None:
        super().__init__(client, ref, **options)

    async def __aenter__(self) -> Self:
        self._take(await self._client._run(_leases.acquire(self._ref, self._claim)))
        self._keeping = asyncio.create_task(self._keep())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.release()

    async def check(self) -> Lease:
        token = self._held_token()
        try:
            lease: Lease = await self._client._run(_leases.renew(self._ref, token))
        except LeaseHeld as error:
            self.lost = error
            raise
        return lease

    async def release(self) -> bool:
        if self._keeping is not None and self.is_ours:
            self._keeping.cancel()
        token = self._give_back()
        return bool(token) and await self._client._run(_leases.release(self._ref, token))

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self._claim.term_s * _leases.RENEWAL_SHARE)
            try:
                await self._client._run(_leases.renew(self._ref, self.token, self._claim.term_s))
            except LeaseHeld as error:
                self.lost = error
                return
            except StatewardError:
                continue
            except RuntimeError:
                return


@documented_as(_sync_leases.ThreadLeasing)
class AsyncThreadLeasing:
    """Part of `AsyncThread`."""

    _client: AsyncClient
    _ref: ThreadRef

    def lease(
        self,
        *,
        term: float = 30.0,
        wait: float | None = None,
        take_over: bool = False,
        create: ThreadOptions | None = None,
    ) -> AsyncHeldLease:
        return AsyncHeldLease(
            self._client, self._ref, term=term, wait=wait, take_over=take_over, create=create, binds=True
        )


@documented_as(_sync_leases.ClientLocks)
class AsyncClientLocks:
    """Part of `AsyncClient`."""

    def lock(
        self, name: str, *, term: float = 30.0, wait: float | None = None, take_over: bool = False,
        holder: str | None = None,
    ) -> AsyncHeldLease:  # fmt: skip
        ref = ThreadRef(self.namespace, _leases.LOCKS + name, "main")  # type: ignore[attr-defined]
        return AsyncHeldLease(self, ref, term=term, wait=wait, take_over=take_over, holder=holder)  # type: ignore[arg-type]
