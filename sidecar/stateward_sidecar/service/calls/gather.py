"""Small writes that arrive together are committed together.

Two Python threads share the interpreter, and LMDB's binding releases it at every put. So a writer thread that runs the
writes beside a busy loop spends most of its time waiting for the interpreter (measured with 64 saves in flight: 50
hand-overs for each save, and half the throughput). Therefore the loop gathers writes until it has nothing else to do,
and runs them together. The writer thread does the commit; meanwhile the loop serves other calls and gathers the next
batch. The writer thread runs large writes itself, all writes if it is busy for long, and a lone one that comes after a
pause, when it has no transaction open.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sized
from contextlib import suppress

from stateward_sidecar.errors import StatewardError
from stateward_sidecar.storage.queue import BATCH_BYTES_MAX, BATCH_WRITES_MAX, Write
from stateward_sidecar.storage.writer import Writer

# How long a batch may grow while the loop has other work, which may bring more writes. Under such a load every call
# waits longer than this anyway.
PATIENCE_S = 0.01
# After this many turns of the loop without other work, no more writes are expected.
IDLE_TURNS = 1
# How long a batch waits while the writer is busy. Then its writes join the writer's queue.
BUSY_S = 0.02


class Gather:
    """Collects the writes of the calls that are being served."""

    def __init__(self, loop: asyncio.AbstractEventLoop, writer: Writer) -> None:
        self._loop = loop
        self._writer = writer
        # The callbacks that the loop is about to run. Not a public attribute; without it every batch is committed at
        # its first turn.
        self._ready: Sized = getattr(loop, "_ready", ())
        self._writes: list[Write] = []
        self._size_bytes = 0
        self._idle_turns = 0
        self._until = 0.0
        # Ends the wait for the writer.
        self._waiting: asyncio.TimerHandle | None = None

    def add(self, write: Write, *, at_once: bool = False) -> None:
        """Takes a write, to be committed soon. ``at_once``: now, unless other writes may be coming."""
        if at_once and not self._writes and not self._ready:
            if write.prepare is not None and not _prepare(write):
                return
            if self._writer.is_asleep:
                # Its thread has to begin a transaction first, and then runs the write sooner than this one could.
                self._submit(write)
                return
            if self._writer.apply([write]):
                return
        if not self._writes:
            self._until = self._loop.time() + PATIENCE_S
            self._idle_turns = 0
            self._loop.call_soon(self._turn)
            self._writer.wake()
        self._writes.append(write)
        self._size_bytes += write.size_bytes
        if self._waiting is not None and self._is_full:
            self._give_up()

    @property
    def _is_full(self) -> bool:
        return len(self._writes) >= BATCH_WRITES_MAX or self._size_bytes >= BATCH_BYTES_MAX

    def _turn(self) -> None:
        """Runs the gathered writes if no more are expected or their time is over; else looks again in the next turn."""
        self._idle_turns = 0 if self._ready else self._idle_turns + 1
        if self._idle_turns < IDLE_TURNS and not self._is_full and self._loop.time() < self._until:
            self._loop.call_soon(self._turn)
        else:
            self._run()

    def _run(self) -> None:
        """Runs the first batch. The rest waits for the writer, and more writes may join meanwhile."""
        self._writes = [write for write in self._writes if write.prepare is None or _prepare(write)]
        parts = _batches(self._writes) if len(self._writes) > 1 else [self._writes]
        if self._writes and self._writer.apply(parts[0]):
            del parts[0]
            self._writes = list(itertools.chain(*parts))
        if not self._writes:
            self._size_bytes = 0
            return
        self._size_bytes = sum(write.size_bytes for write in self._writes)
        self._waiting = self._loop.call_later(BUSY_S, self._give_up)
        if self._is_full or not self._writer.call_when_free(self._call_freed):
            self._give_up()

    def _call_freed(self) -> None:
        """Called on the writer thread."""
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._freed)

    def _freed(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
            self._run()

    def _give_up(self) -> None:
        """Leaves the writes to the writer thread, behind its queue."""
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        writes, self._writes, self._size_bytes = self._writes, [], 0
        for write in writes:
            if write.prepare is None or _prepare(write):
                self._submit(write)

    def _submit(self, write: Write) -> None:
        try:
            self._writer.submit(write)
        except StatewardError as error:  # the queue is full, or the daemon stops
            write.error = error
            if write.on_done is not None:
                write.on_done(write)


def _prepare(write: Write) -> bool:
    """Prepares a write, once. Returns False if the write failed and does not run.

    Writes are prepared here, one after the other, and not when they come: between the turns of gRPC the same code takes
    longer, because the processor's caches hold other code.
    """
    prepare, write.prepare = write.prepare, None
    try:
        if prepare is not None:
            prepare()
    except Exception as error:  # noqa: BLE001  (an error of one write concerns only that write)
        write.error = error
        if write.on_done is not None:
            write.on_done(write)
        return False
    return True


def _batches(writes: list[Write]) -> list[list[Write]]:
    """Divides writes into batches, in their order. A write that must be alone has a batch of its own."""
    parts = itertools.groupby(enumerate(writes), key=lambda each: each[0] if each[1].is_alone else -1)
    return [[write for _, write in part] for _, part in parts]
