"""What the adapters of frameworks have in common: a client that is given, or one of their own, and the creations of
threads that they work on."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Self

from stateward._async.client import AsyncClient
from stateward._async.thread import AsyncThread
from stateward.durations import Duration
from stateward.options import Retention, ThreadOptions

# How many threads are remembered with the creation that was read or written last.
CREATIONS_MAX = 10_000


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
        self._client = client or AsyncClient(target, namespace=namespace, **options)
        self._owns_client = client is None
        self._uids: OrderedDict[str, str] = OrderedDict()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def _continued(self, name: str) -> AsyncThread:
        """Returns a handle on a thread that writes to the creation which this object read or wrote last.

        If somebody deleted that one, a write raises ThreadNotFound: it neither brings the thread back nor reaches the
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
