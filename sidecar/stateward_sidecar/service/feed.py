"""Tells open watches that something was committed. They read what it was from the store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from stateward_sidecar.errors import ShuttingDown


class Listener:
    """One watch's ear."""

    def __init__(self, committed: int) -> None:
        self.committed = committed
        self.is_closed = False
        self._event = asyncio.Event()

    def hear(self, committed: int) -> None:
        """On the loop: something new was committed."""
        self.committed = committed
        self._event.set()

    async def wait_beyond(self, seen: int) -> None:
        """Waits until something newer than ``seen`` was committed."""
        while self.committed <= seen and not self.is_closed:
            self._event.clear()
            await self._event.wait()
        if self.is_closed:
            raise ShuttingDown("the daemon is stopping; watch again from the last cursor when it is back")

    def close(self) -> None:
        """On the loop: nothing more will be committed."""
        self.is_closed = True
        self._event.set()


class Feed:
    """All open watches."""

    def __init__(self, loop: asyncio.AbstractEventLoop, committed: int) -> None:
        self._loop = loop
        self._committed = committed
        self._listeners: set[Listener] = set()

    @property
    def listeners(self) -> int:
        """Open watches."""
        return len(self._listeners)

    @contextmanager
    def listen(self) -> Iterator[Listener]:
        """Registers before anything is read, so that no commit falls between."""
        listener = Listener(0)
        self._listeners.add(listener)
        listener.committed = self._committed
        try:
            yield listener
        finally:
            self._listeners.discard(listener)

    def close(self) -> None:
        """Ends all watches: they would hold up the stop."""
        for listener in self._listeners:
            listener.close()

    def on_commit(self, committed: int) -> None:
        """On the writer's thread, after the drafts were published."""
        self._committed = committed
        # Looked at after the line above, and ``listen`` does the reverse: one of the two sees the other.
        if self._listeners:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._tell, committed)

    def _tell(self, committed: int) -> None:
        for listener in self._listeners:
            listener.hear(max(committed, listener.committed))
