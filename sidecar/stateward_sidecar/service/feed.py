"""Tells open watches and long polls that something of theirs was committed. They read what it was from the store.

Listeners stand under what they listen to, a thread's name or a whole namespace, so a commit costs what it concerns,
and nothing where nobody listens. Many listeners of one namespace are told in slices, between which others get their
turn of the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from stateward_sidecar.errors import ShuttingDown
from stateward_sidecar.store.listing import ALL_THREADS
from stateward_sidecar.store.thread import Thread

# How many are woken in one turn of the loop: each goes on to read.
SLICE = 32
Place = tuple[str, str]


class Listener:
    """One watch's ear. ``labels``: of a namespace's threads, only those that have them."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        self.labels = labels
        self.changes = 0
        """How often something of its own was committed."""
        self.is_closed = False
        self._event = asyncio.Event()

    def wants(self, thread: Thread) -> bool:
        """Whether a thread of its namespace is one of those it listens to."""
        if not self.labels:
            return True
        labels = thread.head.options.labels
        return all(labels.get(key) == value for key, value in self.labels.items())

    def hear(self) -> None:
        """On the loop: something new was committed."""
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
        """On the loop: nothing more will be committed."""
        self.is_closed = True
        self._event.set()


class Feed:
    """All open watches, by namespace and thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._listeners: dict[Place, dict[Listener, None]] = {}
        # What this commit changed for somebody who listens.
        self._changed: dict[Listener, None] = {}

    @property
    def listeners(self) -> int:
        """Open watches."""
        return sum(map(len, self._listeners.values()))

    @contextmanager
    def listen(self, namespace: str, thread: str, labels: Mapping[str, str] | None = None) -> Iterator[Listener]:
        """Registers before anything is read, so that no commit falls between. ``thread`` "-": all of the namespace."""
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
        """Ends all watches: they would hold up the stop."""
        for listeners in list(self._listeners.values()):
            for listener in listeners:
                listener.close()

    def note(self, namespace: str, name: str, thread: Thread | None) -> None:
        """Where it was committed: readers see now what changed in a thread; None: it is gone."""
        if not self._listeners:
            return
        # Copied in one step: the loop may add to them meanwhile.
        self._changed.update(dict.fromkeys(list(self._listeners.get((namespace, name), ()))))
        for listener in list(self._listeners.get((namespace, ALL_THREADS), ())):
            if thread is None or listener.wants(thread):
                self._changed[listener] = None

    def on_commit(self) -> None:
        """In the same place, after everything of the commit was noted."""
        if self._changed:
            changed, self._changed = self._changed, {}
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._tell, list(changed))

    def _tell(self, listeners: list[Listener]) -> None:
        for listener in listeners[:SLICE]:
            listener.hear()
        if len(listeners) > SLICE:
            self._loop.call_soon(self._tell, listeners[SLICE:])
