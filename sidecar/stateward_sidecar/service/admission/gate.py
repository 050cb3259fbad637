"""Decides whether this daemon accepts work. While it is drained, calls that would make more work are refused.

The server asks the gate before every call. Streams that were open before ask again in ``Ownership.write``, which
also counts the writes under way: a drain waits for them before it ships.
"""

from __future__ import annotations

import asyncio
import contextlib

from stateward_sidecar.errors import ShuttingDown
from stateward_sidecar.service.methods import Facts


class Gate:
    """Open, or closed for new work. Used on the event loop only; any thread may read ``is_open`` and ``is_ended``."""

    def __init__(self) -> None:
        self.is_open = True
        self.is_ended = False
        """True when the daemon stops. Calls that wait for something then give up."""
        self._writes = 0
        self._changed = asyncio.Event()

    def admit(self, facts: Facts) -> None:
        """Raises ShuttingDown if the gate is closed and the method makes work."""
        if not self.is_open and not facts.goes_on:
            self.check()

    def check(self) -> None:
        """Raises ShuttingDown if the gate is closed."""
        if not self.is_open:
            raise ShuttingDown("the daemon is draining and takes no new work; nothing was written")

    def __enter__(self) -> None:
        """Begins a write. Raises ShuttingDown."""
        self.check()
        self._writes += 1

    def __exit__(self, *error: object) -> None:
        self._writes -= 1
        if not self.is_open:
            self._changed.set()

    async def settle(self, timeout_s: float) -> None:
        """Waits until the writes under way have ended, or the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._writes and not self.is_open:
                    self._changed.clear()
                    await self._changed.wait()
