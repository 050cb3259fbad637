"""Writes of tasks that travel with the checkpoint that follows them, or together.

LangGraph writes what the last task of a step wrote, and right after that the checkpoint that the step makes. In one
call both cost less, and they are stored in one transaction. So the writes of a task wait for that checkpoint as long as
the event loop has other work, and at most ``PATIENCE_S``. Then the step has other tasks, or the program waits for
something else, or LangGraph has gone on while an earlier checkpoint is still being written. Writes with which no
checkpoint came are stored together with others of the same thread, or by themselves. Where it always comes
too late, they do not wait (see `_expecting`).

LangGraph learns that writes are stored when they are, one way or the other. They are lost together with the process if
it dies before that, as they were without the wait: nothing is known to be stored before it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field

from stateward._operations.steps import ThreadRef
from stateward.errors import DeadlineExceeded, NotOwner, QueueFull, RateExceeded, StatewardError, Unavailable
from stateward.langgraph._expecting import Expecting
from stateward.v1.effect_pb2 import Effect

PATIENCE_S = 0.005
IDLE_TURNS = 2
"""After so many turns of the event loop without other work, no checkpoint is expected."""
EFFECTS_MAX, BYTES_MAX = 12, 16 << 10
"""How many writes, and bytes of them, travel together. The daemon takes its time for calls with more."""
_LASTING = Unavailable, QueueFull, RateExceeded, DeadlineExceeded, NotOwner
"""After such an error writes are not sent by themselves: the call was repeated, or has waited, as long as one does."""
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
    """Whether nobody has to store them any more: they are stored, or another call would not help."""
    ended: asyncio.Future[None] | None = None
    """The end of the wait."""

    def __post_init__(self) -> None:
        self.size_bytes = sum(map(Effect.ByteSize, self.effects))

    def end(self, error: StatewardError | None = None) -> None:
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
        self._under_way = dict[asyncio.Future[None], tuple[str, ThreadRef]]()
        self._expecting = Expecting()
        self._is_looking = False
        self._idle_turns, self._until_s = 0, 0.0

    async def wait(self, writes: Writes) -> bool:
        """Waits for the checkpoint that follows. Returns whether the writes are stored.

        Otherwise the caller stores them, also if it is cancelled and they are not `is_over`. CancelledError comes when
        no call with the writes is under way. Raises the error of that call if another one would not help.
        """
        if not _Load().takes(writes) or not self._expecting.expects(writes.ref, writes.anchor):
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
    def under_way(self, ref: ThreadRef, anchor: str = "") -> Iterator[None]:
        """Surrounds a write, for which `finish` waits. `anchor`: that of the writes of a task."""
        ended = asyncio.get_running_loop().create_future()
        self._under_way[ended] = anchor, ref
        try:
            yield
        finally:
            del self._under_way[ended]
            ended.cancel()

    async def finish(self, thread: str = "") -> None:
        """Sends what waits, and returns when that and what else is under way now has ended; empty = of all threads."""
        sent = [each for each in self._waiting if thread in ("", each.ref.thread)]
        self._waiting = [each for each in self._waiting if thread not in ("", each.ref.thread)]
        self._send_all(sent)
        if ended := [each for each, (_, ref) in self._under_way.items() if thread in ("", ref.thread)]:
            await asyncio.wait(ended)

    @contextmanager
    def saving(self, ref: ThreadRef, parent: str) -> Iterator[list[Writes]]:
        """Surrounds the write of a checkpoint. Gives the writes that may be stored with it. The caller sets `is_over`
        of those that are."""
        load = _Load()
        self._waiting = [
            each for each in self._waiting if each.anchor != parent or each.ref != ref or not load.takes(each)
        ]
        # Those that travel by themselves now would have come with it, if they had waited.
        is_met = bool(load.written) or (parent, ref) in self._under_way.values()
        self._expecting.learn(ref, parent, is_met=is_met)
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
        sent, self._waiting = self._waiting, []
        self._send_all(sent)

    def _send_all(self, sent: Sequence[Writes]) -> None:
        loads = dict[tuple[str, str], list[_Load]]()
        for each in sent:
            found = loads.setdefault((each.ref.thread, each.uid), [_Load()])
            if not found[-1].takes(each):
                found.append(_Load([each], len(each.effects), each.size_bytes))
        for found in loads.values():
            for load in found:
                self._send(load.written)

    def _send(self, written: Sequence[Writes]) -> None:
        if len(written) == 1:
            written[0].end()  # its caller stores it
            return
        for each in written:
            self._expecting.learn(each.ref, each.anchor, is_met=True)
        task = asyncio.get_running_loop().create_task(self._store_all(written))
        self._storing.add(task)
        task.add_done_callback(self._storing.discard)

    async def _store_all(self, written: Sequence[Writes]) -> None:
        try:
            with _ending(written):
                await self._store(written)
        except Exception:  # noqa: BLE001, S110  each caller has it, or stores its writes by themselves and has its own
            pass


@contextmanager
def _ending(written: Sequence[Writes]) -> Iterator[None]:
    """Surrounds the call that stores writes, and ends their wait."""
    error: StatewardError | None = None
    try:
        yield
    except _LASTING as failure:
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
