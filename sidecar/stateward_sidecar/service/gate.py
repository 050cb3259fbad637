"""Whether this daemon takes work. While its machine is emptied (drained), calls that would make more of it are refused.

One place for all services: the server asks before every call, by the method's name. What is not named here is refused,
so that a new method is thought of as work until somebody says otherwise. Streams that were open before ask once more
through `Holding.write`, which also counts the writes that are under way: a drain waits for them before it ships.
"""

from __future__ import annotations

import asyncio
import contextlib

from stateward_sidecar.errors import ShuttingDown

# Reads, and what helps to empty the machine.
GOES_ON = frozenset((
    "GetServerInfo", "GetStats", "Verify", "Drain",
    "GetArchive", "ListArchive", "VerifyArchive", "RepairThread",
    "Hydrate", "GetCheckpoint", "ListCheckpoints", "ReadHistory", "ReadLog", "DiffCheckpoints",
    "GetThread", "ListThreads", "CountThreads", "Watch", "WaitDurable", "Detach",
    "ReadBlob", "StatBlob", "ListEffects", "ListSignals", "ExportThread",
))  # fmt: skip


class Gate:
    """Open, or closed for new work. Used on the event loop only; ``is_open`` and ``is_ended`` may be read anywhere."""

    def __init__(self) -> None:
        self.is_open = True
        self.is_ended = False
        """The daemon stops: whoever waits for anything here gives up."""
        self._writes = 0
        self._changed = asyncio.Event()

    def admit(self, method: str) -> None:
        """Raises ShuttingDown for a call that makes work while the gate is closed."""
        if not self.is_open and method not in GOES_ON:
            self.check()

    def check(self) -> None:
        """Raises ShuttingDown while the gate is closed."""
        if not self.is_open:
            raise ShuttingDown("the daemon is draining and takes no new work; nothing was written")

    def __enter__(self) -> None:
        """A write begins. Raises ShuttingDown."""
        self.check()
        self._writes += 1

    def __exit__(self, *error: object) -> None:
        self._writes -= 1
        if not self.is_open:
            self._changed.set()

    async def settle(self, timeout_s: float) -> None:
        """Waits until the writes that were under way have ended, or the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._writes and not self.is_open:
                    self._changed.clear()
                    await self._changed.wait()
