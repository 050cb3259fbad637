"""`thread.handoff` and `client.take_handoff` for asyncio. The twin of `_sync_handoff`, which has the docs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack, cast, overload

from stateward import _handoff, _sync_handoff
from stateward._operations import new_request_id
from stateward._saving import SaveOptions
from stateward._shell import documented_as
from stateward.handoff import Handoff
from stateward.models import Durability
from stateward.state import State

if TYPE_CHECKING:
    from stateward._async import AsyncClient, AsyncThread


@documented_as(_sync_handoff.ThreadHandoff)
class AsyncThreadHandoff:
    """Methods of `AsyncThread`."""

    async def handoff(
        self,
        to: str,
        summary: str,
        *,
        pending_steps: Iterable[Any] = (),
        dependencies: Iterable[Any] = (),
        data: Any = None,
        sender: str | None = None,
        state: State | None = None,
        **options: Unpack[SaveOptions],
    ) -> Handoff:
        thread = cast("AsyncThread", self)
        name = sender if sender is not None else thread._client._identity.name or ""
        return await thread._run(
            _handoff.hand_over(thread._ref, to, summary, pending_steps, dependencies, data, name, state, options)
        )


@documented_as(_sync_handoff.ClientHandoffs)
class AsyncClientHandoffs:
    """Methods of `AsyncClient`."""

    @overload
    async def take_handoff(
        self,
        thread: str,
        *,
        taker: str | None = None,
        wait: float = ...,
        durability: Durability | str | None = ...,
    ) -> Handoff: ...

    @overload
    async def take_handoff(
        self,
        *,
        to: str,
        taker: str | None = None,
        wait: float = ...,
        durability: Durability | str | None = ...,
    ) -> Handoff | None: ...

    async def take_handoff(
        self,
        thread: str | None = None,
        *,
        to: str | None = None,
        taker: str | None = None,
        wait: float = _handoff.WAIT_S,
        durability: Durability | str | None = None,
    ) -> Handoff | None:
        client = cast("AsyncClient", self)
        known = taker or client._identity.name
        taking = _handoff.Taking.of(known or f"unnamed-{new_request_id()}", wait, durability)
        refer = _refer(client)
        if (thread is None) == (to is None):
            raise TypeError("take_handoff takes a thread or to=")
        if thread is not None:
            return await client._run(_handoff.take(refer(thread), taking))
        assert to is not None
        request = _handoff.waiting(client.namespace, taken_too=known is not None)
        return await client._run(_handoff.take_any(refer, request, to, taking))

    def handoffs(self, to: str | None = None) -> AsyncIterator[Handoff]:
        client = cast("AsyncClient", self)
        read = partial(_handoff.read_open, _refer(client), to)
        return client._read_list(read, _handoff.waiting(client.namespace))


def _refer(client: AsyncClient) -> Any:
    return lambda name: client.thread(name, migrations=False)._ref
