"""Writes, and the line in which they wait for the writer.

Background writes are committed alone when no other write waits. Only small ones that say so (``has_time``) join a
batch that is committed anyway. They wait a moment for such a batch, so they need no commit of their own. All others may
change keys and files before the commit, and may take long: a batch would share both.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import lmdb

from stateward_sidecar.errors import QueueFull
from stateward_sidecar.spans import WriteTimes

QUEUE_WRITES_MAX = 4096
QUEUE_BYTES_MAX = 256 << 20
BATCH_WRITES_MAX = 256
BATCH_BYTES_MAX = 16 << 20
# How long a background write that has time waits for a batch, and how many bytes may join a batch.
JOIN_S, JOIN_BYTES_MAX = 0.02, 128 << 10


class Batch:
    """What the writes of one batch share. ``drafts`` holds what becomes visible with the commit, under keys that the
    writes choose. A later write of the batch sees the drafts of the earlier ones."""

    def __init__(self) -> None:
        self.drafts: dict[Any, Any] = {}
        self.before_commit: list[Callable[[], None]] = []
        self.after_commit: list[Callable[[], None]] = []
        self.after_abort: list[Callable[[], None]] = []


@dataclass(slots=True, eq=False)
class Write:
    """One item of the queue."""

    # Checks, then puts, then leaves its draft in the batch. Raises StatewardError. Must change nothing but ``txn``
    # before the last statement that can fail.
    run: Callable[[lmdb.Transaction, Batch], Any]
    # Called once on the event loop, shortly before the batch runs. Raises the error of the write, which then does not
    # run.
    prepare: Callable[[], None] | None = None
    size_bytes: int = 0
    deadline: float = float("inf")  # by time.monotonic()
    frees_space: bool = False  # deletions continue when the disk is full
    # Whether the write was answered before and needs no room: a retry is answered even if the disk is full.
    is_retry: Callable[[lmdb.Transaction, Batch], bool] | None = None
    background: bool = False  # other writes are committed first
    has_time: bool = False  # a background write that waits a moment for a batch, and is committed with it
    is_alone: bool = False  # needs its own transaction, because it leaves drafts before a statement that may fail
    cancelled: bool = False
    result: Any = None
    error: BaseException | None = None
    on_done: Callable[[Write], None] | None = None
    times: WriteTimes | None = None  # if traces are on
    _done: threading.Event | None = field(default=None, repr=False)

    def wait(self) -> Any:
        """Waits, then returns the result or raises its error. For callers that are not on an event loop."""
        assert self._done is not None
        self._done.wait()
        if self.error is not None:
            raise self.error
        return self.result


class Queue:
    """The waiting writes. Whoever uses it holds the writer's lock."""

    def __init__(self) -> None:
        self.urgent: deque[Write] = deque()
        """All that are not background writes. Others only ask whether there are any."""
        self.background: deque[Write] = deque()
        self._size_bytes = 0
        # By time.monotonic(): when the background writes are committed alone.
        self._alone_from = 0.0

    def __len__(self) -> int:
        return len(self.urgent) + len(self.background)

    @property
    def pause_s(self) -> float:
        """How long the background writes still wait for a batch; 0 = no longer."""
        return max(self._alone_from - time.monotonic(), 0.0)

    def add(self, write: Write) -> None:
        """Adds a write at the end. Raises QueueFull."""
        if write.background:
            if not write.has_time or write.size_bytes > JOIN_BYTES_MAX:
                self._alone_from = 0.0  # for those before it, too
            elif not self.background:
                self._alone_from = time.monotonic() + JOIN_S
            self.background.append(write)
        else:
            is_full = len(self.urgent) >= QUEUE_WRITES_MAX or self._size_bytes + write.size_bytes > QUEUE_BYTES_MAX
            if is_full and not write.frees_space:
                raise QueueFull(
                    f"{len(self.urgent)} writes with {self._size_bytes} bytes are waiting", queued=len(self.urgent)
                )
            self.urgent.append(write)
        self._size_bytes += write.size_bytes

    def take(self) -> list[Write]:
        """Takes the next batch. The queue is not empty."""
        if not self.urgent:
            return [self._take(self.background)]
        batch, size = list[Write](), 0
        while self.urgent and len(batch) < BATCH_WRITES_MAX:
            write = self.urgent[0]
            if batch and (batch[0].is_alone or write.is_alone or size + write.size_bytes > BATCH_BYTES_MAX):
                break
            size += write.size_bytes
            batch.append(self.urgent.popleft())
        self._size_bytes -= size
        return batch + self.take_joining(batch) if self.background else batch

    def take_joining(self, batch: list[Write]) -> list[Write]:
        """Takes the background writes that can be committed with a batch."""
        joining: list[Write] = []
        size = 0
        while self.background and self.background[0].has_time and not batch[0].is_alone:
            size += self.background[0].size_bytes
            if size > JOIN_BYTES_MAX:
                break
            joining.append(self._take(self.background))
        return joining

    def clear(self) -> list[Write]:
        """Takes all."""
        every = [*self.urgent, *self.background]
        self.urgent.clear()
        self.background.clear()
        self._size_bytes = 0
        return every

    def _take(self, line: deque[Write]) -> Write:
        write = line.popleft()
        self._size_bytes -= write.size_bytes
        return write
