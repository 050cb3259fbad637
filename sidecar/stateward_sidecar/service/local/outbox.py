"""What a connection sends: the answers of one turn of the event loop in one write.

It knows when the kernel has taken everything: then the memory of large answers is given back, and a stream may send its
next message. A peer that takes nothing of much that it is owed is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from stateward_sidecar.service.local.frame import HEAD_BYTES, pack_head
from stateward_sidecar.service.local.incoming import LARGE_BYTES
from stateward_sidecar.telemetry import log

OWED_BYTES, OWED_S = 64 << 10, 60.0
"""A peer that is owed more than this, and takes nothing for so long, is gone."""


class Outbox:
    """Used on the event loop only."""

    def __init__(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, pid: int, count: Callable[[int], None]
    ) -> None:
        """``pid``: of the peer, for the log. ``count`` is told how many more bytes of small frames the peer has not
        taken; less than 0 = fewer."""
        self._transport, self._loop, self._pid, self._count = transport, loop, pid, count
        # Small frames since everything was taken, and what was told of them. Large ones have a share of memory.
        self._small_bytes = self._counted_bytes = 0
        # The protocol is told of every byte that waits, and when none waits any more.
        transport.set_write_buffer_limits(0, 0)
        self._frames: list[bytes] = []
        self._kept_bytes = 0
        self._is_flushing = False
        self._handed_out: list[Callable[..., None]] = []
        self._emptied: asyncio.Future[None] | None = None
        self._written = self._taken_before = 0
        self._timer: asyncio.TimerHandle | None = None
        self._owed_max = OWED_BYTES

    @property
    def unsent_bytes(self) -> int:
        """How much the peer has not taken. With what the next ``flush`` sends."""
        return self._kept_bytes + self._transport.get_write_buffer_size()

    @property
    def _taken_bytes(self) -> int:
        return self._written - self._transport.get_write_buffer_size()

    def put(self, kind: int, call: int, body: bytes) -> None:
        """Takes a frame, for the next ``flush``."""
        self._frames.append(pack_head(len(body), call, kind))
        self._frames.append(body)
        self._kept_bytes += HEAD_BYTES + len(body)
        if len(body) <= LARGE_BYTES:
            self._small_bytes += HEAD_BYTES + len(body)

    def when_handed_out(self, callbacks: list[Callable[..., None]]) -> None:
        """Calls these when all frames so far have been taken, or nobody takes them."""
        self._handed_out += callbacks

    def flush_soon(self) -> None:
        """Flushes with the next turn of the loop."""
        if not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Sends what there is."""
        self._is_flushing = False
        frames, self._frames, self._kept_bytes = self._frames, [], 0
        if frames and not self._transport.is_closing():
            # A large body is not copied once more.
            for data in frames if any(len(each) > LARGE_BYTES for each in frames) else [b"".join(frames)]:
                self._written += len(data)
                self._transport.write(data)
        if not self.unsent_bytes:
            self.settle()
        elif (small_bytes := min(self.unsent_bytes, self._small_bytes)) > self._counted_bytes:
            self._count(small_bytes - self._counted_bytes)
            self._counted_bytes = small_bytes

    def settle(self) -> None:
        """Everything was handed out, or nobody takes it."""
        self._small_bytes = 0
        if self._counted_bytes:
            counted_bytes, self._counted_bytes = self._counted_bytes, 0
            self._count(-counted_bytes)
        handed_out, self._handed_out = self._handed_out, []
        for each in handed_out:
            each(None)
        emptied, self._emptied = self._emptied, None
        if emptied is not None and not emptied.done():
            emptied.set_result(None)

    async def drain(self) -> None:
        """Sends what there is, and waits until the peer has taken it, or is gone."""
        self.flush()
        while self.unsent_bytes:
            self._emptied = self._emptied or self._loop.create_future()
            await asyncio.shield(self._emptied)

    def watch(self) -> None:
        """Begins to look whether the peer takes anything. Called when something has to wait."""
        self._taken_before = self._taken_bytes
        if self._timer is None:
            self._timer = self._loop.call_later(OWED_S, self._look)

    def _look(self) -> None:
        self._timer = None
        if self.unsent_bytes > self._owed_max and self._taken_bytes == self._taken_before:
            log.warning("a peer takes no answers; its connection ends", pid=self._pid, bytes=self.unsent_bytes)
            self._transport.abort()
        elif self.unsent_bytes:
            self.watch()

    def expect_nothing(self) -> None:
        """The connection ends when all was taken. A peer that takes nothing is gone, however little it is owed."""
        self._owed_max = 0

    def end(self) -> None:
        """Nothing is sent any more."""
        self._frames, self._kept_bytes = [], 0
        self.settle()
        if self._timer is not None:
            self._timer.cancel()
