# Generated from stateward/_async/boards.py by client/generate.py. Do not edit.
"""`client.board`: one state that several agents work on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

from stateward._io.blocking.stream import Stream
from stateward._operations import boards
from stateward._operations.boards import Area
from stateward._operations.merging import ANY
from stateward._operations.saving import SaveOptions
from stateward._sync.logs import ThreadLog
from stateward._sync.thread import Thread
from stateward.events import Event
from stateward.models import Checkpoint


class Board:
    """A thread that several agents write at the same time, without reading it first and without refusing each other.

    What they append and count is never lost, whoever else writes and however often a write is repeated: each carries a
    request id. What they post replaces what was there; with `expected` only if that is what they think.

    Names are shared by all agents, but for those of `private`: an area of names that no other agent takes.
    """

    def __init__(self, thread: Thread, agent: str = "", area: Area | None = None) -> None:
        self.thread = thread
        """The thread itself, for everything else."""
        self.agent = agent
        self._area = area if area is not None else Area()

    def __repr__(self) -> str:
        area = ".private" if self._area.owner else ""
        return f"{type(self).__name__}({self.thread.name!r}, agent={self.agent!r}){area}"

    @property
    def private(self) -> Board:
        """The same board with the names of this agent only: its slots and logs lie below "agents/<agent>/"."""
        return Board(self.thread, self.agent, Area.of(self.agent))

    def append(self, log: str, *entries: Any, **options: Unpack[SaveOptions]) -> Checkpoint:
        """Adds entries to a log, all of them together."""
        return self.thread.append(self._area.place(log), *entries, **options)

    def increment(self, slot: str, delta: int = 1, **options: Unpack[SaveOptions]) -> Checkpoint:
        """Counts a number up, or down; it begins with 0. ValueError for a slot that is `ephemeral`."""
        return self.thread.increment(self._area.place(slot), delta, **options)

    def post(self, slot: str, value: Any, *, expected: Any = ANY, **options: Unpack[SaveOptions]) -> Checkpoint:
        """Sets a slot. `expected` is the value it must have now, or ABSENT; EditConflict where it has another one.

        Values are compared as they are stored, byte by byte: a dict with the same keys in another order is another one.
        ValueError for a slot that the client keeps to itself (`ephemeral`).
        """
        return self.thread.set_slot(self._area.place(slot), value, expected=expected, **options)

    def read(self, *slots: str) -> dict[str, Any]:
        """The values of these slots at one version; those that do not exist are left out.

        Without names all slots of the area, for which the whole board is read.
        """
        return self.thread._run(boards.read(self.thread._ref, self._area, slots))

    def log(self, name: str) -> ThreadLog:
        """A handle on one log, as `Thread.log`; the names of its projections are also those of the area."""
        return ThreadLog(self.thread._session, self.thread._ref, name, self._area)

    def watch(self, *, slots: Iterable[str] = (), logs: Iterable[str] = (), after_cursor: str = "") -> Stream[Event]:
        """Events of the board: versions that change one of these slots or logs (none named = all), with those changes.

        `changes` name slots and logs as they lie in the state, those of a private area with what stands before them.
        What else happens to the thread, a tag or its deletion, is told as well. Close it, or use it with `with`.
        """
        chosen = self._area.watched(slots, logs)
        return self.thread.watch(after_cursor=after_cursor, include_diff=True, slots=chosen[0], logs=chosen[1])
