"""Chooses which call begins next when more calls come than the daemon can work on.

gRPC does not tell which connection of a unix socket a call belongs to, so the daemon is fair by thread. Calls that must
wait stand in a line, each in the queue of its thread. The turns alternate: one goes to the thread that joined the line
last, the next to the thread that has waited longest. So a client that makes one call at a time is near the front. The
calls of a burst wait behind one another, and still advance.

No call waits on a daemon that is not overloaded. But the daemon does not see the calls that gRPC keeps back. So after
``FREE_CALLS`` calls in a row no call begins until no more arrive. The calls that have come by then begin together,
unless there are more than ``FREE_CALLS``. Calls of which each comes after the last answer are no such row. A turn
covers only the beginning of a call. A call does not keep its turn while it waits for a commit, for the archive or for
an event.

Turns cost throughput on slow disks. With more than 64 callers and syncs of 5 ms, the daemon commits 532 to 603 saves/s;
without turns 1,663. Used on the event loop only.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from google.protobuf.message import Message

Flow = tuple[str, str]
# How many calls begin at once, and how many writes may wait for their commits. Group commit needs no more.
FREE_CALLS = 64
# A row of calls ends when no call has come for this long, and then for ``QUIET_TURNS`` turns of the loop: while the
# loop stood still, it could not look for calls. A row of few calls ends without these turns.
# While calls come one after the other, each after the last answer, nobody waits: after so many of them, a pause is
# looked for at the end of each call.
ROW_S, SHORT_ROW_CALLS, LONE_ROW_CALLS = 0.005, 8, 32
# While calls stand in line, groups are small, because the next call waits for the group before it.
GROUP_WRITES = 8
# During a long commit the next group grows by one write in this time. With 1 ms, a burst makes others wait for 0.7 s
# (p99); with 2 ms, for 0.03 s.
PACE_S = 0.002
# While calls stand in line, the next read begins when fewer than this many are at work. Those of a burst would
# otherwise wait for a worker, where no other call can pass them.
READS_AT_WORK = 4
# In a row of more than FREE_CALLS calls, a read begins for every second call that comes, or after a lull.
# gRPC keeps the rest of a burst back, and each read that ends brings its client's next call. If a read began for every
# call, as many would stay in gRPC's queue for ever, and the calls of others behind them.
LULL_S = 0.001
# gRPC hands over one call after another, each after some turns of the event loop, and the daemon can choose only among
# these. So no call begins until none has come for QUIET_TURNS turns. While calls keep coming, one begins every
# ARRIVING_TURNS turns. Turns are counted instead of time, because on a busy processor gRPC may hand over nothing for
# long.
QUIET_TURNS, ARRIVING_TURNS = 6, 60


def flow_of(request: Message, method: str) -> Flow:
    """Returns a request's thread, or its method if it names none. Calls of one flow begin in their order."""
    first = next(iter(getattr(request, "saves", ())), request)
    return getattr(first, "namespace", ""), getattr(first, "thread", "") or method


class Line:
    """The waiting calls, by flow."""

    def __init__(self) -> None:
        # In the order of their last turn, or of joining.
        self._flows: dict[Flow, deque[asyncio.Future[None]]] = {}
        # Flows that have had no turn yet.
        self._new: dict[Flow, None] = {}
        self._is_newest_next = True
        self.places = 0
        """How many calls stand in the line."""
        self.in_row = 0
        """How many calls came in a row."""

    def __len__(self) -> int:
        return self.places

    @property
    def is_row_long(self) -> bool:
        return self.in_row > FREE_CALLS

    def take_all(self) -> list[asyncio.Future[None]]:
        """Takes all places in their order. A new row begins."""
        self.in_row = 0
        return list(iter(self.take, None))

    def add(self, flow: Flow, place: asyncio.Future[None]) -> None:
        """Adds a call behind the others of its flow. The call leaves when its place is done."""
        if flow not in self._flows:
            self._flows[flow] = deque()
            self._new[flow] = None
        self._flows[flow].append(place)
        self.places += 1

    def take(self) -> asyncio.Future[None] | None:
        """Takes the next place. Returns None if the line is empty."""
        while self._flows:
            if self._is_newest_next and self._new:
                flow, _ = self._new.popitem()
            else:
                flow = next(iter(self._flows))
                self._new.pop(flow, None)
            places = self._flows.pop(flow)
            place = places.popleft()
            self.places -= 1
            if places:
                self._flows[flow] = places
            if not place.done():  # else its caller has left
                self._is_newest_next = not self._is_newest_next
                return place
        return None


class Turns:
    """Lets calls begin. Reads and writes have separate lines, so that neither waits for the other."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._reads, self._writes = Line(), Line()
        self._committing = self._reading = self._open = 0
        # Turns of the loop since the last call came, and since the last call began.
        self._quiet_turns = self._kept_turns = 0
        self._is_write_next = True
        # When the last call from the line began.
        self._last_s = 0.0
        self._is_turning = False
        self._pause: asyncio.TimerHandle | None = None
        # How many calls came, and whether somebody looks for the end of the row.
        self._came, self._is_row = 0, False
        # When the last call came, and how many had come when the last read began.
        self._came_s, self._came_at_read = 0.0, 0

    @property
    def waiting(self) -> tuple[int, int]:
        """How many reads and how many writes stand in line."""
        return len(self._reads), len(self._writes)

    def begin_call(self, *, is_open: bool = True) -> None:
        """Notes that a call has come. Its message may not have been read yet. ``is_open``: it has one answer, and says
        when it is over (``end_call``)."""
        self._open += is_open
        self._quiet_turns = 0
        self._came += 1
        self._came_s = self._loop.time()
        if not self._is_row:
            self._is_row = True
            self._loop.call_later(ROW_S, self._look_for_end, self._came, 0)

    def end_call(self) -> None:
        """Notes that a call with one answer is over. If nobody else is served, somebody who makes one call after
        another may be alone: then the row is over as soon as no call comes for some turns."""
        self._open -= 1
        if not self._open and self._is_row and max(self._reads.in_row, self._writes.in_row) > LONE_ROW_CALLS:
            self._loop.call_soon(self._look_for_pause, self._came, 0)

    def _look_for_pause(self, came: int, turns: int) -> None:
        """Ends the row if no call comes for some turns."""
        if came != self._came:
            return
        if turns < QUIET_TURNS:
            self._loop.call_soon(self._look_for_pause, came, turns + 1)
        else:
            self._reads.in_row = self._writes.in_row = 0

    def _look_for_end(self, came: int, turns: int) -> None:
        """Ends the row if no call has come since ``came`` had."""
        if came != self._came:
            self._loop.call_later(ROW_S, self._look_for_end, self._came, 0)
        elif turns < QUIET_TURNS and max(self._reads.in_row, self._writes.in_row) > SHORT_ROW_CALLS:
            self._loop.call_soon(self._look_for_end, came, turns + 1)
        else:
            self._is_row = False
            self._reads.in_row = self._writes.in_row = 0

    def passes(self, *, is_write: bool) -> bool:
        """Whether a call that comes now may begin at once. Otherwise it waits for its turn."""
        line = self._writes if is_write else self._reads
        line.in_row += 1
        if line.places or line.in_row > FREE_CALLS:
            return False
        return not is_write or self._committing < FREE_CALLS

    async def wait_in_line(self, flow: Flow, *, is_write: bool) -> None:
        """Returns when a call that does not pass may begin."""
        place: asyncio.Future[None] = self._loop.create_future()
        (self._writes if is_write else self._reads).add(flow, place)
        self._wake()
        await place

    def begin_commit(self) -> None:
        """Notes that a write begins to wait for its commit."""
        self._committing += 1

    def end_commit(self) -> None:
        """Notes that the write no longer waits."""
        self._committing -= 1
        if self._writes.places:
            self._wake()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Counts a read that waits for a worker, or is at work on one."""
        self._reading += 1
        try:
            yield
        finally:
            self._reading -= 1
            if self._reads.places:
                self._wake()


    def _wake(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        if not self._is_turning:
            self._is_turning = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        """Lets calls begin, unless more are arriving."""
        now = self._loop.time()
        self._quiet_turns += 1
        self._kept_turns += 1
        places: list[asyncio.Future[None]] = []
        if self._quiet_turns > QUIET_TURNS:
            places = self._choose_few() or self._choose(now)
        elif self._kept_turns > ARRIVING_TURNS:
            places = self._choose(now)
        for place in places:
            self._last_s, self._kept_turns = now, 0
            place.set_result(None)
        self._is_turning = bool((self._reads and self._may_read) or (self._writes and self._may_write(now)))
        if self._is_turning:
            self._loop.call_soon(self._turn)
        elif self._writes or (self._reads and self._has_worker):
            # Then every turn of the loop looks again, or arriving calls would delay it for ever.
            self._pause = self._loop.call_later(PACE_S if self._writes else LULL_S, self._wake)

    @property
    def _has_room(self) -> bool:
        return self._committing < GROUP_WRITES

    @property
    def _may_read(self) -> bool:
        if self._are_few_reads:
            return True
        return self._has_worker and (self._came - self._came_at_read >= 2 or self._loop.time() - self._came_s >= LULL_S)

    @property
    def _has_worker(self) -> bool:
        return self._reading < READS_AT_WORK

    @property
    def _are_few_reads(self) -> bool:
        return not self._reads.is_row_long and len(self._reads) + self._reading <= FREE_CALLS

    def _may_write(self, now: float) -> bool:
        return self._has_room or now - self._last_s >= PACE_S

    def _choose_few(self) -> list[asyncio.Future[None]]:
        """Takes all waiting calls, unless they are a burst."""
        few = self._reads.take_all() if self._are_few_reads else []
        if len(self._writes) + self._committing <= FREE_CALLS:
            few += self._writes.take_all()
        return few

    def _choose(self, now: float) -> list[asyncio.Future[None]]:
        """Takes one call of a burst."""
        place = None
        if (self._is_write_next or not (self._reads and self._may_read)) and self._may_write(now):
            place = self._writes.take()
        self._is_write_next = not self._is_write_next
        if place is None and self._may_read:
            place = self._reads.take()
            self._came_at_read = self._came
        return [place] if place else []
