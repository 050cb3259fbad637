"""Calls that are under way at the same time, one of which runs: the machine says when another one goes on.

Each call has a thread of its own, and only one thread runs at any moment. A call stops where the plan of its history
says so (a request that hangs, a commit that waits for its turn), and where it needs what another call has (a lock, a
future). So every order of requests and commits can be played, and the same choices play it again.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NoReturn

# No call runs for so long: it waits for something that is no part of the machine.
HANGS_S = 30.0


class Death(BaseException):
    """The process ends here. Nothing catches it: no clean-up is a promise."""


class Place(Enum):
    """Where a call is."""

    RUNS = "runs"
    IS_HELD = "is held"  # until the machine lets it go on
    WAITS = "waits"  # until what it waits for has happened
    IS_OVER = "is over"


@dataclass(slots=True, eq=False)
class Call:
    """Something that one process does."""

    what: str
    process: Any  # what dies together: ``die()``, ``is_dead``
    run: Callable[[], Any]
    op: Any  # what the plan counts
    place: Place = Place.RUNS
    is_ready: Callable[[], bool] = lambda: True
    result: Any = None
    error: BaseException | None = None
    is_dead: bool = False
    thread: threading.Thread | None = None
    go: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    back: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def __str__(self) -> str:
        return f"{self.what} ({self.place.value})"


class Turns:
    """All calls of a history."""

    def __init__(self) -> None:
        self.current: Call | None = None
        self.under_way: list[Call] = []
        self.over: list[Call] = []  # and not looked at yet
        self.stops = 0  # how often any call was stopped
        self.publishes = False  # a writer's thread makes known what it committed: nobody else comes in between

    def begin(self, what: str, process: Any, run: Callable[[], Any], op: Any) -> Call:
        """Runs a call until it is over or stops, and whoever can go on because of it."""
        call = Call(what, process, run, op)
        self.under_way.append(call)
        call.thread = threading.Thread(target=self._body, args=(call,), name=what, daemon=True)
        call.thread.start()
        self._give(call)
        self.advance()
        return call

    def let_go(self, call: Call) -> None:
        """A call that is held goes on."""
        if call.place is Place.IS_HELD:
            self._give(call)
            self.advance()

    @property
    def held(self) -> list[Call]:
        """Calls that the machine can let go on."""
        return [call for call in self.under_way if call.place is Place.IS_HELD]

    def advance(self) -> None:
        """Calls go on that waited for what has happened."""
        while not self.publishes and (
            call := next((it for it in self.under_way if it.place is Place.WAITS and it.is_ready()), None)
        ):
            self._give(call)

    def kill(self, process: Any) -> None:
        """The process is gone: none of its calls does anything more."""
        for call in list(self.under_way):
            if call.process is process and call.place in (Place.IS_HELD, Place.WAITS):
                call.is_dead = True
                self._give(call)
                self.over.remove(call)
        self.advance()

    # -- in a call ------------------------------------------------------------------------------------------------

    def hold(self) -> None:
        """Stops until the machine lets this call go on."""
        if self.current is not None:
            self._stop(Place.IS_HELD, lambda: False)

    def die(self) -> NoReturn:
        """The process of this call ends here: nothing that it still does has an effect."""
        if self.current is not None:
            self.current.process.die()
        raise Death

    def wait_until(self, is_ready: Callable[[], bool]) -> None:
        """Stops until something has happened."""
        while not is_ready():
            assert self.current is not None, "the machine itself would wait for ever"
            if self.current.process.is_dead:
                raise Death
            self._stop(Place.WAITS, is_ready)

    def _stop(self, place: Place, is_ready: Callable[[], bool]) -> None:
        call = self.current
        assert call is not None
        self.stops += 1
        call.place, call.is_ready = place, is_ready
        call.back.release()
        call.go.acquire()
        call.place = Place.RUNS
        if call.is_dead:
            raise Death

    # -- threads --------------------------------------------------------------------------------------------------

    def _body(self, call: Call) -> None:
        call.go.acquire()
        try:
            call.result = call.run()
        except Death as error:
            call.process.die()
            call.error = error
        except BaseException as error:  # noqa: BLE001  (the machine looks at it)
            call.error = error
        call.place = Place.IS_OVER
        call.back.release()

    def _give(self, call: Call) -> None:
        outer, self.current = self.current, call
        call.go.release()
        came_back = call.back.acquire(timeout=HANGS_S)
        self.current = outer
        assert came_back, f"{call.what} waits for something that is no turn:\n{_stack(call)}"
        if call.place is Place.IS_OVER:
            self.under_way.remove(call)
            self.over.append(call)


class Lock:
    """A lock that a call may hold while it is stopped. The same call may take it twice."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._owner: Call | None = None
        self._count = 0

    @property
    def is_free(self) -> bool:
        """Whether the call that runs may have it now."""
        return self._count == 0 or self._owner is self._turns.current

    @property
    def is_taken(self) -> bool:
        """Whether any call has it."""
        return self._count > 0

    def __enter__(self) -> None:
        me = self._turns.current
        self._turns.wait_until(lambda: self._count == 0 or self._owner is me)
        self._owner, self._count = me, self._count + 1

    def __exit__(self, *_: object) -> None:
        self._count -= 1


class NameLocks:
    """What ``archive.locks.Locks`` and ``store.alone.Alone`` are, for calls that take turns."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._locks: dict[Hashable, Lock] = {}

    @contextmanager
    def of(self, name: Hashable, wait_s: float | None = None, *, waits: bool = True) -> Iterator[bool]:
        """Holds the lock of a name. False without ``waits`` where another call has it. ``wait_s``: whoever asks again
        and again has it in the end."""
        del wait_s
        lock = self._locks.setdefault(name, Lock(self._turns))
        if not waits and not lock.is_free:
            yield False
            return
        with lock:
            yield True

    def is_taken(self, name: Hashable) -> bool:
        """Whether a call is at something of this name."""
        return name in self._locks and self._locks[name].is_taken


def _stack(call: Call) -> str:
    """Where the thread of a call is."""
    assert call.thread is not None
    assert call.thread.ident is not None
    return "".join(traceback.format_stack(sys._current_frames()[call.thread.ident]))
