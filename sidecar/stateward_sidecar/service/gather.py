"""Small writes that arrive together are committed together, on the event loop itself.

Two threads that both run Python take turns, and LMDB's binding lets go of the interpreter at every put: a writer
thread beside a busy loop spends most of its time waiting for its turn (64 saves in flight: 50 hand-overs a save, a
third of the throughput). So the loop gathers what has arrived until nothing more comes in, and runs and commits it in
one go. It is blocked for one commit, which is why the writer's thread takes over where commits are slow, and for
everything large.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from stateward_sidecar.storage.writer import BATCH_BYTES_MAX, BATCH_WRITES_MAX, Write, Writer

# As long as more arrives, a batch grows for so many times the duration of a commit: commits take a small share of the
# loop's time, and nobody waits much longer than for the commit itself.
PATIENCE_COMMITS = 8
PATIENCE_MAX_S = 0.01
# Turns of the loop without anything new: what is on its way inside gRPC takes a turn or two to reach a handler.
IDLE_TURNS = 2


class Gather:
    """Collects writes of the calls being served."""

    def __init__(self, loop: asyncio.AbstractEventLoop, writer: Writer, calls_begun: Callable[[], int]) -> None:
        self._loop = loop
        self._writer = writer
        self._calls_begun = calls_begun
        self._writes: list[Write] = []
        self._size_bytes = 0
        self._seen = 0
        self._idle_turns = 0
        self._until = 0.0

    def add(self, write: Write) -> None:
        """Takes a write, to be committed soon."""
        if not self._writes:
            self._until = self._loop.time() + min(PATIENCE_COMMITS * self._writer.commit_s, PATIENCE_MAX_S)
            self._loop.call_soon(self._turn)
        self._writes.append(write)
        self._size_bytes += write.size_bytes
        self._idle_turns = 0
        if len(self._writes) >= BATCH_WRITES_MAX or self._size_bytes >= BATCH_BYTES_MAX:
            self._until = 0.0

    def _turn(self) -> None:
        """Looks whether more has come in; commits when not, or when it is time."""
        begun = self._calls_begun()
        self._idle_turns = self._idle_turns + 1 if begun == self._seen else 0
        self._seen = begun
        if self._idle_turns < IDLE_TURNS and self._loop.time() < self._until:
            self._loop.call_soon(self._turn)
            return
        writes, self._writes, self._size_bytes = self._writes, [], 0
        if not self._writer.run_now(writes):
            for write in writes:
                self._writer.submit(write)
