"""The large message of a connection: it takes its share of memory before its buffer is made.

A connection has one at a time, and reads nothing else until there is room for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from stateward_sidecar.errors import DeadlineExceeded, QueueFull
from stateward_sidecar.service.admission.memory import Budget, Share
from stateward_sidecar.service.calls.method import BYTE_SHARE, RECEIVING_S
from stateward_sidecar.service.local.frame import REQUEST, Head
from stateward_sidecar.service.local.incoming import Incoming
from stateward_sidecar.service.local.running import LocalMethod


class Large:
    """Used on the event loop only."""

    __slots__ = ("_budget", "_incoming", "_late", "_loop", "_read_on", "_refuse", "_share", "_slow", "_taking")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        budget: Budget,
        incoming: Incoming,
        refuse: Callable[[Head, Exception], None],
        read_on: Callable[[], None],
    ) -> None:
        """``refuse`` answers a message that is not taken; ``read_on`` is called when nothing waits any more."""
        self._loop, self._budget, self._incoming = loop, budget, incoming
        self._refuse, self._read_on = refuse, read_on
        self._share: Share | None = None
        # Waits for room.
        self._taking: asyncio.Task[None] | None = None
        # Asks a sender that is slow for its share, if others need it.
        self._slow: asyncio.TimerHandle | None = None
        # When its call has to end.
        self._late: asyncio.TimerHandle | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether a message waits for room."""
        return self._taking is not None

    def expect(self, head: Head, method: LocalMethod) -> None:
        """Makes room for a message of which the head has come."""
        self._taking = self._loop.create_task(self._make_room(head, method))
        self._stop_clock()
        if head.kind == REQUEST and head.timeout_ms:
            self._late = self._loop.call_later(head.timeout_ms / 1e3, self._refuse_late, head)

    def left_ms(self, timeout_ms: int) -> int:
        """Returns the time that a call with this timeout still has when its message has come. To be asked before
        ``arrived``."""
        late = None if self._share is None else self._stop_clock()  # else it is that of one that was refused
        return timeout_ms if late is None else max(round((late.when() - self._loop.time()) * 1e3), 1)

    def arrived(self) -> Share | None:
        """Returns the share of the message that has come; None = it is small."""
        share, self._share = self._share, None
        if self._slow is not None:
            self._slow.cancel()
            self._slow = None
        if share is not None:
            share.arrive()
        return share

    def drop(self) -> None:
        """Gives back what a message had: nothing more of it comes."""
        self._stop_clock()
        if self._taking is not None:
            self._taking.cancel()
        if (share := self.arrived()) is not None:
            share.close()

    def _stop_clock(self) -> asyncio.TimerHandle | None:
        late, self._late = self._late, None
        if late is not None:
            late.cancel()
        return late

    async def _make_room(self, head: Head, method: LocalMethod) -> None:
        try:
            self._share = await self._budget.take(BYTE_SHARE * head.length, is_ahead=method.is_holding)
        except Exception as error:  # noqa: BLE001  (QueueFull; of any other the body must not be kept either)
            self._incoming.skip()
            self._refuse(head, error)
        else:
            self._incoming.resume()
            self._slow = self._loop.call_later(RECEIVING_S, self._note_slow, head, self._share)
        finally:
            self._taking = None
            self._read_on()

    def _refuse_late(self, head: Head) -> None:
        """Answers a call whose deadline passes while its message waits for memory, or comes."""
        taking, share, self._late = self._taking, self.arrived(), None
        if taking is None and share is None:
            return  # it was refused already
        if taking is not None:
            taking.cancel()
        if share is not None:
            share.close()
        self._incoming.skip()
        self._refuse(head, DeadlineExceeded("the deadline passed before the message had come; nothing was written"))

    def _note_slow(self, head: Head, share: Share) -> None:
        def refuse() -> None:
            self._incoming.skip()
            self._share = None
            share.close()
            what = "the message did not come in time, and others need the memory; try again"
            self._refuse(head, QueueFull(what, queued=0))

        share.slow_down(share.size_bytes, refuse)
