"""Wakes open watches and long polls after commits that concern them. They read the changes from the store.

Listeners are stored under the name of their thread or namespace. So a commit costs as much as it has listeners, and
nothing without listeners. Many listeners of one namespace are woken in slices, and other tasks run in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from stateward_sidecar.errors import ShuttingDown
from stateward_sidecar.store.read.listing import ALL_THREADS
from stateward_sidecar.store.thread.thread import Thread

# How many listeners are woken in one turn of the loop. Each then reads.
SLICE = 32
Place = tuple[str, str]


class Listener:
    """One watch or long poll. ``labels`` restricts the listener of a namespace to threads with these labels."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        self.labels = labels
        self.changes = 0
        """The number of commits that concern this listener."""
        self.is_closed = False
        self._event = asyncio.Event()

    def wants(self, thread: Thread) -> bool:
        """Whether the listener's labels match a thread of its namespace."""
        if not self.labels:
            return True
        labels = thread.head.options.labels
        return all(labels.get(key) == value for key, value in self.labels.items())

    def hear(self) -> None:
        """Notes a commit. Called on the loop."""
        self.changes += 1
        self._event.set()

    async def wait_beyond(self, seen: int) -> None:
        """Waits until there are more changes than ``seen``. Raises ShuttingDown."""
        while self.changes <= seen and not self.is_closed:
            self._event.clear()
            await self._event.wait()
        if self.is_closed:
            raise ShuttingDown("the daemon is stopping; watch again from the last cursor when it is back")

    def close(self) -> None:
        """Ends the waits of this listener. Called on the loop."""
        self.is_closed = True
        self._event.set()


class Feed:
    """All open watches, by namespace and thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._listeners: dict[Place, dict[Listener, None]] = {}
        # The listeners that the current commit concerns.
        self._changed: dict[Listener, None] = {}

    @property
    def listeners(self) -> int:
        """The number of open watches."""
        return sum(map(len, self._listeners.values()))

    @contextmanager
    def listen(self, namespace: str, thread: str, labels: Mapping[str, str] | None = None) -> Iterator[Listener]:
        """Registers a listener for the block, before its first read, so that it misses no commit. "-" as ``thread``:
        all.
        """
        place, listener = (namespace, thread), Listener(labels or {})
        self._listeners.setdefault(place, {})[listener] = None
        try:
            yield listener
        finally:
            here = self._listeners[place]
            del here[listener]
            if not here:
                del self._listeners[place]

    def close(self) -> None:
        """Ends all watches, which would delay the stop."""
        for listeners in list(self._listeners.values()):
            for listener in listeners:
                listener.close()

    def note(self, namespace: str, name: str, thread: Thread | None) -> None:
        """Notes that readers now see a change of a thread, or its deletion (None). Called on the writer thread."""
        if not self._listeners:
            return
        # Copied in one step, because the loop may add listeners meanwhile.
        self._changed.update(dict.fromkeys(list(self._listeners.get((namespace, name), ()))))
        for listener in list(self._listeners.get((namespace, ALL_THREADS), ())):
            if thread is None or listener.wants(thread):
                self._changed[listener] = None

    def on_commit(self) -> None:
        """Wakes the noted listeners. Called on the writer thread, after all changes of a commit were noted."""
        if self._changed:
            changed, self._changed = self._changed, {}
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._tell, list(changed))

    def _tell(self, listeners: list[Listener]) -> None:
        for listener in listeners[:SLICE]:
            listener.hear()
        if len(listeners) > SLICE:
            self._loop.call_soon(self._tell, listeners[SLICE:])
