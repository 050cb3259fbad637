"""What the adapters of frameworks have in common: a client that is given, or one of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from stateward._async.client import AsyncClient


class Connected:
    """Uses a client that somebody else keeps, or makes one and closes it."""

    def __init__(
        self, client: AsyncClient | None, target: str | None, namespace: str, options: Mapping[str, Any]
    ) -> None:
        if client is not None and (target is not None or options or namespace != "default"):
            raise TypeError("give either a client, or a target and options for one")
        self._client = client or AsyncClient(target, namespace=namespace, **options)
        self._owns_client = client is None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the client, unless it was given. Closing again does nothing."""
        if self._owns_client:
            await self._client.close()
