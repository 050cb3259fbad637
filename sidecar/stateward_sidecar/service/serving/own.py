"""The sockets of principals. gRPC does not name the caller at a socket, so each has a server, which says whose calls it
hears.

They follow the file of principals while the daemon runs. Sockets that are no principal's any more are closed before
others are opened. A socket that cannot be opened stands in the way of a start; later it is tried again until it can be.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import grpc.aio

from stateward_sidecar.errors import StartError
from stateward_sidecar.service.local.listener import Listener
from stateward_sidecar.service.serving import sockets
from stateward_sidecar.telemetry import failures, log

CLOSE_S = 1.0
"""How long running calls may go on when their socket is closed."""
AGAIN_S = 2.0
"""How often a socket is tried that could not be opened."""


class OwnSockets:
    """Used on the event loop only."""

    def __init__(self, serve: Callable[[Path], grpc.aio.Server], local: Listener | None) -> None:
        """``serve`` makes the server of a socket. ``local``: the local wire; None = there is none."""
        self._serve, self._local = serve, local
        self._servers = dict[Path, grpc.aio.Server]()
        self._wanted: frozenset[Path] = frozenset()
        self._changed = asyncio.Event()
        self._following: asyncio.Task[None] | None = None
        self._unopened = dict[Path, str]()

    @property
    def unopened(self) -> Mapping[Path, str]:
        """Those that could not be opened, and why."""
        return self._unopened

    def open(self, paths: frozenset[Path]) -> None:
        """Opens sockets of the start. Raises StartError."""
        self._wanted = paths
        for path in sorted(paths):
            place = sockets.Place(path, is_own=True)
            sockets.prepare(place, has_frames=self._local is not None)
            self._listen(place, is_start=True)

    def want(self, paths: frozenset[Path]) -> None:
        """Says which there should be from now on."""
        if self._wanted != paths:
            self._wanted = paths
            self._changed.set()

    async def start(self) -> None:
        """Serves them, and follows what is wanted."""
        for server in self._servers.values():
            await server.start()
        self._following = asyncio.create_task(self._follow())

    async def stop(self, grace_s: float) -> None:
        """Ends all servers. The local wire ends its own connections."""
        if self._following is not None:
            self._following.cancel()
            with suppress(asyncio.CancelledError):
                await self._following
        await asyncio.gather(*(server.stop(grace_s) for server in self._servers.values()))

    async def _follow(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(None if self._servers.keys() == self._wanted else AGAIN_S):
                    await self._changed.wait()
            self._changed.clear()
            try:
                await self._take_changes()
            except Exception:  # noqa: BLE001  (the next change is followed again)
                failures.note("sockets of principals")

    async def _take_changes(self) -> None:
        wanted = self._wanted
        await asyncio.gather(*(self._close(path) for path in self._servers.keys() - wanted))
        for path in self._unopened.keys() - wanted:
            del self._unopened[path]
        for path in sorted(wanted - self._servers.keys()):
            try:
                await self._open(sockets.Place(path, is_own=True))
            except StartError as error:
                if self._unopened.get(path) != error.message:
                    log.error("a socket of a principal cannot be opened; it is tried again", error=error.message)
                self._unopened[path] = error.message
            else:
                self._unopened.pop(path, None)
                log.info("opened the socket of a principal", path=path)

    async def _open(self, place: sockets.Place) -> None:
        run = asyncio.get_running_loop().run_in_executor  # it may have to wait for who answers at the socket
        await run(None, lambda: sockets.prepare(place, has_frames=self._local is not None))
        self._listen(place, is_start=False)
        await self._servers[place.path].start()
        if self._local is not None:
            await self._local.start()

    def _listen(self, place: sockets.Place, *, is_start: bool) -> None:
        server = self._serve(place.path)
        try:
            sockets.listen(place, server, self._local, is_start=is_start)
        except BaseException:
            if self._local is not None:
                self._local.unbind(place.path)
            raise
        self._servers[place.path] = server

    async def _close(self, path: Path) -> None:
        """Ends connections behind their last answers: the streams of a principal that is gone have ended already."""
        server = self._servers.pop(path)
        closing = [server.stop(CLOSE_S)]
        if self._local is not None:
            self._local.unbind(path)
            closing.append(self._local.end_connections(path, CLOSE_S))
        await asyncio.gather(*closing)
        log.info("closed the socket of a principal", path=path)
