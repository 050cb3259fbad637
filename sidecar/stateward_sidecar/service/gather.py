"""Small writes that arrive together are committed together, on the event loop itself.

Two threads that both run Python take turns, and LMDB's binding lets go of the interpreter at every put: a writer
thread beside a busy loop spends most of its time waiting for its turn (64 saves in flight: 50 hand-overs a save, a
third of the throughput). So the loop gathers what has arrived until nothing more comes in, and runs and commits it in
one go. It is blocked for one commit, which is why the writer's thread takes over where commits are slow, and for
everything large.
"""

from __future__ import annotations

import asyncio
from stateward_sidecar.storage.writer import BATCH_BYTES_MAX, BATCH_WRITES_MAX, Write, Writer

# As long as more arrives, a batch may grow for so long; under such a load everybody waits longer than this anyway.
PATIENCE_S = 0.01
# Turns of the loop without another write after which a batch is complete: a lone caller waits for nobody, while among
# many the next one is on its way through gRPC, which takes some turns.
IDLE_TURNS_ALONE, IDLE_TURNS_AMONG_MANY = 1, 8


class Gather:
    """Collects writes of the calls being served."""

    def __init__(self, loop: asyncio.AbstractEventLoop, writer: Writer) -> None:
        self._loop = loop
        self._writer = writer
        self._writes: list[Write] = []
        self._size_bytes = 0
        self._seen = 0  # writes at the last turn
        self._idle_turns = 0
        self._idle_turns_max = IDLE_TURNS_ALONE
        self._until = 0.0

    def add(self, write: Write) -> None:
        """Takes a write, to be committed soon."""
        if not self._writes:
            self._until = self._loop.time() + PATIENCE_S
            self._idle_turns, self._seen = 0, 1
            self._loop.call_soon(self._turn)
        self._writes.append(write)
        self._size_bytes += write.size_bytes

    def _turn(self) -> None:
        """Looks whether more has come in; commits when not, or when it is time."""
        count = len(self._writes)
        self._idle_turns = self._idle_turns + 1 if count == self._seen else 0
        self._seen = count
        is_full = count >= BATCH_WRITES_MAX or self._size_bytes >= BATCH_BYTES_MAX
        if self._idle_turns < self._idle_turns_max and not is_full and self._loop.time() < self._until:
            self._loop.call_soon(self._turn)
            return
        self._idle_turns_max = IDLE_TURNS_ALONE if count == 1 else IDLE_TURNS_AMONG_MANY
        writes, self._writes, self._size_bytes = self._writes, [], 0
        if not self._writer.run_now(writes):
            for write in writes:
                self._writer.submit(write)
