"""Writes of tasks that travel with the checkpoint that follows them, or together.

LangGraph writes what the last task of a step wrote, and right after that the checkpoint that the step makes. In one
call both cost less, and they are stored in one transaction. So the writes of a task wait for that checkpoint as long as
the event loop has other work, and at most ``PATIENCE_S``. Then the step has other tasks, or the program waits for
something else, or LangGraph has gone on while an earlier checkpoint is still being written. Writes with which no
checkpoint came are stored together with others of the same thread, or by themselves.

LangGraph learns that writes are stored when they are, one way or the other. They are lost together with the process if
it dies before that, as they were without the wait: nothing is known to be stored before it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field

from stateward._operations.steps import ThreadRef
from stateward.errors import StatewardError, Unavailable
from stateward.v1.effect_pb2 import Effect

PATIENCE_S = 0.005
IDLE_TURNS = 2
"""After so many turns of the event loop without other work, no checkpoint is expected."""
EFFECTS_MAX, BYTES_MAX = 12, 16 << 10
"""How many writes, and bytes of them, travel together. The daemon takes its time for calls with more."""
Store = Callable[[Sequence["Writes"]], Awaitable[None]]


@dataclass(eq=False, slots=True)
class Writes:
    """What a task wrote."""

    ref: ThreadRef
    anchor: str
    """Name of the checkpoint from which the task was run."""
    uid: str
    """Uid that the thread must have; empty = any."""
    effects: Sequence[Effect]
    size_bytes: int = 0
    is_over: bool = False
    """Whether nobody has to store them any more: they are stored, or the daemon was away all the time."""
    ended: asyncio.Future[None] | None = None
    """The end of the wait."""

    def __post_init__(self) -> None:
        self.size_bytes = sum(map(Effect.ByteSize, self.effects))

    def end(self, error: Unavailable | None = None) -> None:
        """Ends the wait. `error`: why the writes are not stored, and another call would not help."""
        self.is_over = self.is_over or error is not None
        if self.ended is None or self.ended.done():
            return
        if error is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(error)
            self.ended.exception()  # else asyncio logs that it was never retrieved, if its caller was cancelled


@dataclass(slots=True)
class _Load:
    """Writes that travel together."""

    written: list[Writes] = field(default_factory=list)
    effects: int = 0
    size_bytes: int = 0

    def takes(self, writes: Writes) -> bool:
        """Whether there is room for these writes. Adds them if there is."""
        effects, size_bytes = self.effects + len(writes.effects), self.size_bytes + writes.size_bytes
        if effects > EFFECTS_MAX or size_bytes > BYTES_MAX:
            return False
        self.written.append(writes)
        self.effects, self.size_bytes = effects, size_bytes
        return True


class Joining:
    """The writes that wait on one event loop, the running one. It has no reference to the loop, which ends before a
    saver does."""

    def __init__(self, store: Store) -> None:
        """`store`: stores writes of one thread that expect the same uid, and sets their `is_over`."""
        self._store = store
        # The callbacks that the loop is about to run. Not a public attribute; without it every turn counts as idle.
        self._ready: Sized = getattr(asyncio.get_running_loop(), "_ready", ())
        self._waiting: list[Writes] = []
        self._storing = set[asyncio.Task[None]]()
        self._is_looking = False
        self._idle_turns, self._until_s = 0, 0.0

    async def wait(self, writes: Writes) -> bool:
        """Waits for the checkpoint that follows. Returns whether the writes are stored.

        Otherwise the caller stores them, also if it is cancelled and they are not `is_over`. CancelledError comes when
        no call with the writes is under way. Raises Unavailable if the daemon was away all the time.
        """
        if not _Load().takes(writes):
            return False
        ended = writes.ended = asyncio.get_running_loop().create_future()
        self._waiting.append(writes)
        self._look()
        try:
            await asyncio.shield(ended)
        except asyncio.CancelledError:
            if writes in self._waiting:
                self._waiting.remove(writes)
            else:  # they are under way
                await _until(ended)
            raise
        return writes.is_over

    @contextmanager
    def saving(self, ref: ThreadRef, parent: str) -> Iterator[list[Writes]]:
        """Surrounds the write of a checkpoint. Gives the writes that may be stored with it. The caller sets `is_over`
        of those that are."""
        load = _Load()
        self._waiting = [
            each for each in self._waiting if each.anchor != parent or each.ref != ref or not load.takes(each)
        ]
        with _ending(load.written):
            yield load.written

    def _look(self) -> None:
        """Looks at each turn of the loop, from now on, whether there is still something to wait for."""
        self._idle_turns = 0
        if not self._is_looking:
            loop = asyncio.get_running_loop()
            self._is_looking, self._until_s = True, loop.time() + PATIENCE_S
            loop.call_soon(self._turn)

    def _turn(self) -> None:
        loop = asyncio.get_running_loop()
        self._idle_turns = 0 if self._ready else self._idle_turns + 1
        if self._waiting and self._idle_turns < IDLE_TURNS and loop.time() < self._until_s:
            loop.call_soon(self._turn)
            return
        self._is_looking = False
        loads = dict[tuple[str, str], list[_Load]]()
        for each in self._waiting:
            found = loads.setdefault((each.ref.thread, each.uid), [_Load()])
            if not found[-1].takes(each):
                found.append(_Load([each], len(each.effects), each.size_bytes))
        self._waiting = []
        for found in loads.values():
            for load in found:
                self._send(load.written)

    def _send(self, written: Sequence[Writes]) -> None:
        if len(written) == 1:
            written[0].end()  # its caller stores it
            return
        task = asyncio.get_running_loop().create_task(self._store_all(written))
        self._storing.add(task)
        task.add_done_callback(self._storing.discard)

    async def _store_all(self, written: Sequence[Writes]) -> None:
        try:
            with _ending(written):
                await self._store(written)
        except StatewardError:
            pass  # each caller has it, or stores its writes by themselves: the error is perhaps that of another


@contextmanager
def _ending(written: Sequence[Writes]) -> Iterator[None]:
    """Surrounds the call that stores writes, and ends their wait."""
    error = None
    try:
        yield
    except Unavailable as failure:  # the daemon is away: by themselves they would wait as long once more
        error = failure
        raise
    finally:
        for each in written:
            each.end(error)


async def _until(ended: asyncio.Future[None]) -> None:
    """Waits, also if it is cancelled."""
    while not ended.done():
        try:
            await asyncio.wait([ended])
        except asyncio.CancelledError:
            continue
