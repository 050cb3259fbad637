"""What the adapters of frameworks have in common: a client that is given, or one of their own, and the creations of
threads that they work on."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

from stateward._async.client import AsyncClient
from stateward._async.thread import AsyncThread
from stateward._io.channel import Keeping
from stateward._sync.client import Client
from stateward.durations import Duration
from stateward.opening.commands import find_target
from stateward.options import Retention, ThreadOptions

# How many threads are remembered with the creation that was read or written last.
CREATIONS_MAX = 10_000


def usual_target(target: str | None) -> str | None:
    """Returns where an adapter looks for its daemon: at its target, at STATEWARD_TARGET, or where the commands look,
    because `stateward.open()` may have started it there; None = the default socket."""
    return target or os.environ.get("STATEWARD_TARGET") or find_target()


class _Borrowed:
    """The keeper of a client that somebody else closes."""

    def __init__(self, keeper: Keeping) -> None:
        self._keeper = keeper
        self.hold, self.away = keeper.hold, keeper.away

    @property
    def trouble(self) -> str:
        return self._keeper.trouble

    @trouble.setter
    def trouble(self, trouble: str) -> None:
        self._keeper.trouble = trouble

    def ahead(self) -> None:
        """The connection of `open` is the client's own."""

    def release(self) -> None:
        """Keeps the daemon: the client's own end releases it."""


def both_clients(
    target: str | Client | AsyncClient | None, namespace: str, options: Mapping[str, Any]
) -> tuple[Client, AsyncClient]:
    """Returns a blocking and an asyncio client of one daemon; both connect at their first call. `target` may be a
    client whose daemon, namespace and credentials they share. Its owner closes it."""
    if not isinstance(target, Client | AsyncClient):
        where = usual_target(target)
        return Client(where, namespace=namespace, **options), AsyncClient(where, namespace=namespace, **options)
    if options or namespace != "default":
        raise TypeError("give either a client, or a target, a namespace and options for one")
    given = target._session.settings
    keeper = None if given.keeper is None else _Borrowed(given.keeper)
    made = Client(given.target, namespace=given.namespace), AsyncClient(given.target, namespace=given.namespace)
    for each in made:
        each._session.settings = replace(given, keeper=keeper)
    return made


class Connected:
    """Uses a client that somebody else keeps, or makes one and closes it."""

    def __init__(
        self,
        client: AsyncClient | None,
        target: str | None,
        namespace: str,
        options: Mapping[str, Any],
        *,
        ttl: Duration | None = None,
        retention: Retention | None = None,
    ) -> None:
        self._made_with = ThreadOptions(ttl=ttl, retention=retention)  # the threads that it makes
        if client is not None and (target is not None or options or namespace != "default"):
            raise TypeError("give either a client, or a target and options for one")
        given: object = client  # from a program without type checks
        if given is not None and not isinstance(given, AsyncClient):
            what = "client is an AsyncClient, such as that of `await stateward.open_async()`"
            raise TypeError(f"{what}, not {type(given).__name__}; of a Client give the address, target=client.target")
        self._client = client or AsyncClient(usual_target(target), namespace=namespace, **options)
        self._owns_client = client is None
        self._uids: OrderedDict[str, str] = OrderedDict()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def _continued(self, name: str) -> AsyncThread:
        """Returns a handle on a thread that writes to the creation which this object read or wrote last.

        If somebody deleted that one, a write raises UidMismatch: it neither brings the thread back nor reaches the
        next thread of the name.
        """
        thread = self._client.thread(name)
        thread._ref.held.read_uid = self._uids.get(name, "")
        return thread

    def _work_on(self, name: str, uid: str) -> None:
        """Remembers the creation of a thread; empty = none."""
        self._uids.pop(name, None)
        if uid:
            self._uids[name] = uid
            if len(self._uids) > CREATIONS_MAX:
                self._uids.popitem(last=False)

    async def close(self) -> None:
        """Closes the client, unless it was given. Closing again does nothing."""
        if self._owns_client:
            await self._client.close()
