"""What is open to callers without a token: health and reflection, with bounds.

Probes have no token, and both tell nothing about threads. But a stream that costs its caller nothing is a way to take
memory, so only so many are open at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

WATCHES_MAX = 512
"""The most watches of the health: one for each channel that checks it. One takes about 40 KB."""
REFLECTIONS_MAX = 32
"""The most open streams of tools that ask for the contract."""
Answer = health_pb2.HealthCheckResponse


class _Bound:
    """How many streams of a kind are open."""

    def __init__(self, what: str, count_max: int) -> None:
        self._what, self._count_max, self._count = what, count_max, 0

    async def admit(self, context: grpc.aio.ServicerContext) -> None:
        """Refuses one stream too many."""
        if self._count >= self._count_max:
            what = f"{self._count_max} {self._what} are open already; try again later"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, what)

    @contextmanager
    def one_more(self) -> Iterator[None]:
        """Surrounds a stream that was admitted."""
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1


class Health(health.aio.HealthServicer):  # type: ignore[misc]
    """The health of each service. The library's own watch is deaf once another watch of the service has ended."""

    def __init__(self) -> None:
        super().__init__()
        self._bound = _Bound("watches of the health", WATCHES_MAX)
        self._changed = asyncio.Event()

    async def Watch(self, request: Any, context: grpc.aio.ServicerContext) -> None:  # noqa: N802  the contract's name
        """Sends the health now, and each other one that follows."""
        await self._bound.admit(context)
        with self._bound.one_more():
            sent = None
            while True:
                changed = self._changed
                status = self._server_status.get(request.service, Answer.SERVICE_UNKNOWN)
                if status == sent:
                    await changed.wait()
                    continue
                sent = status
                await context.write(Answer(status=status))

    async def _set(self, service: str, status: Any) -> None:
        self._server_status[service] = status
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


class _Reflection(reflection.aio.ReflectionServicer):  # type: ignore[misc]
    def __init__(self, names: Iterable[str]) -> None:
        super().__init__(names)
        self._bound = _Bound("streams of reflection", REFLECTIONS_MAX)

    async def ServerReflectionInfo(  # noqa: N802  the contract's name
        self, requests: AsyncIterable[Any], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[Any]:
        await self._bound.admit(context)
        with self._bound.one_more():
            async for answer in super().ServerReflectionInfo(requests, context):
                yield answer


class OpenDoor:
    """Health and reflection of all servers of the daemon, whose bounds hold for all together."""

    def __init__(self, names: Iterable[str]) -> None:
        """``names``: those of the other services."""
        self.health = Health()
        self._reflection = _Reflection([*names, health.SERVICE_NAME, reflection.SERVICE_NAME])

    def add_to(self, server: grpc.aio.Server) -> None:
        """Lets a server answer them, too."""
        health_pb2_grpc.add_HealthServicer_to_server(self.health, server)
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(self._reflection, server)
