"""Small writes that arrive together are committed together, on the event loop itself.

Two threads that both run Python take turns, and LMDB's binding lets go of the interpreter at every put: a writer
thread beside a busy loop spends most of its time waiting for its turn (seen with 64 saves in flight: 50 hand-overs for
each save, and half the throughput). So the loop gathers what has arrived until it has nothing else to do, and runs and
commits that in one go. It is blocked for one commit, which is why the writer's thread takes over where commits are
slow, and for everything large.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sized

from stateward_sidecar.errors import StatewardError
from stateward_sidecar.storage.writer import BATCH_BYTES_MAX, BATCH_WRITES_MAX, Write, Writer

# As long as the loop has other work, which may bring more, a batch may grow for so long. Under such a load everybody
# waits longer than this anyway.
PATIENCE_S = 0.01
# Turns of the loop with nothing else to do after which nothing more is on its way.
IDLE_TURNS = 1
# While somebody else writes.
RETRY_S = 0.0003


class Gather:
    """Collects writes of the calls being served."""

    def __init__(self, loop: asyncio.AbstractEventLoop, writer: Writer) -> None:
        self._loop = loop
        self._writer = writer
        # What the loop is about to run. Not public; without it every batch is committed at its first turn.
        self._ready: Sized = getattr(loop, "_ready", ())
        self._writes: list[Write] = []
        self._size_bytes = 0
        self._idle_turns = 0
        self._until = 0.0

    @property
    def has_work(self) -> bool:
        """Whether writes wait here."""
        return bool(self._writes)

    def add(self, write: Write, *, at_once: bool = False) -> None:
        """Takes a write, to be committed soon; ``at_once``: now, unless there is a sign of others."""
        if at_once and not self._writes and not self._ready and self._writer.run_now([write]):
            return
        if not self._writes:
            self._until = self._loop.time() + PATIENCE_S
            self._idle_turns = 0
            self._loop.call_soon(self._turn)
        self._writes.append(write)
        self._size_bytes += write.size_bytes

    def _turn(self) -> None:
        """Looks whether more may come in; commits when not, or when it is time."""
        self._idle_turns = 0 if self._ready else self._idle_turns + 1
        is_full = len(self._writes) >= BATCH_WRITES_MAX or self._size_bytes >= BATCH_BYTES_MAX
        if self._idle_turns < IDLE_TURNS and not is_full and self._loop.time() < self._until:
            self._loop.call_soon(self._turn)
            return
        if not self._writer.is_free and self._loop.time() < self._until + PATIENCE_S:
            self._loop.call_later(RETRY_S, self._turn)  # a snapshot is being written; more may join meanwhile
            return
        writes, self._writes, self._size_bytes = self._writes, [], 0
        parts = _batches(writes)
        while parts and self._writer.run_now(parts[0]):
            del parts[0]
        for write in itertools.chain(*parts):
            self._submit(write)

    def _submit(self, write: Write) -> None:
        try:
            self._writer.submit(write)
        except StatewardError as error:  # the queue is full, or the daemon stops
            write.error = error
            if write.on_done is not None:
                write.on_done(write)


def _batches(writes: list[Write]) -> list[list[Write]]:
    """In their order; a write that must be alone has a batch of its own."""
    parts = itertools.groupby(enumerate(writes), key=lambda each: each[0] if each[1].is_alone else -1)
    return [[write for _, write in part] for _, part in parts]
