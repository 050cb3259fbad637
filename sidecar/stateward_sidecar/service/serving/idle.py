"""Ends a daemon that nobody uses (`--idle-exit`).

The daemon is idle if no call ran for a period and nothing waits for the archive. It ends only with the lock of its
users, which it cannot get while a client of `stateward.open()` lives, and which it keeps until the process is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from stateward_sidecar.service.serving.server import Server
from stateward_sidecar.storage.daemonfile import UsersLock
from stateward_sidecar.telemetry import failures, log

# How often the daemon looks: a part of the period, within bounds.
LOOKS_IN_PERIOD = 8
LOOK_MIN_S, LOOK_MAX_S = 0.02, 5.0


class Idle:
    """Waits until nobody uses the daemon. Used on the event loop."""

    def __init__(
        self, period_s: float, server: Server, users: UsersLock, count_dirty: Callable[[], Awaitable[int]]
    ) -> None:
        self._period_s = period_s
        self._server = server
        self._users = users
        self._count_dirty = count_dirty

    async def wait(self) -> None:
        """Returns when the daemon may end: nobody uses it, and nobody can begin to."""
        loop = asyncio.get_running_loop()
        pause_s = min(max(self._period_s / LOOKS_IN_PERIOD, LOOK_MIN_S), LOOK_MAX_S)
        begun, since = self._server.begun_calls, loop.time()
        while True:
            await asyncio.sleep(pause_s)
            if self._server.open_calls or self._server.begun_calls != begun:
                begun, since = self._server.begun_calls, loop.time()
            elif loop.time() - since >= self._period_s and await self._may_end(begun):
                log.info("nobody uses the daemon", idle_exit_s=self._period_s)
                return

    async def _may_end(self, begun: int) -> bool:
        """Takes the lock of the users, and looks for calls once more: a client without the lock may have called."""
        try:
            if await self._count_dirty() or not self._users.close_door():
                return False
        except Exception:  # noqa: BLE001  (the next round looks again)
            failures.note("idle exit")
            return False
        if self._server.open_calls or self._server.begun_calls != begun:
            self._users.open_door()
            return False
        return True
