# Generated from stateward/_async/boards.py by client/generate.py. Do not edit.
"""`client.board`: one state that several agents work on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

from stateward._frames import ends_at_the_caller
from stateward._io.blocking.stream import Stream
from stateward._operations import boards
from stateward._operations.boards import Area
from stateward._operations.merging import ANY
from stateward._operations.saving import SaveOptions
from stateward._sync.logs import ThreadLog
from stateward._sync.thread import Thread
from stateward.arguments import text
from stateward.events import Event
from stateward.models import Checkpoint


@ends_at_the_caller
class Board:
    """A thread that several agents write at the same time. They neither read it first nor get VersionMismatch.

    No append and no increment is lost, whoever else writes and however often a write is repeated: each carries a
    request id. `post` replaces a value; with `expected` only if the value is as expected.

    All agents share the names of slots and logs, except those of `private`.
    """

    def __init__(self, thread: Thread, agent: str = "", area: Area | None = None) -> None:
        self.thread = thread
        """The thread of the board, for everything else."""
        self.agent = text(agent, "agent")
        self._area = area if area is not None else Area()

    def __repr__(self) -> str:
        area = ".private" if self._area.owner else ""
        return f"{type(self).__name__}({self.thread.name!r}, agent={self.agent!r}){area}"

    @property
    def private(self) -> Board:
        """The same board, limited to this agent's own slots and logs: their names begin with "agents/<agent>/"."""
        return Board(self.thread, self.agent, Area.of(self.agent))

    def append(self, log: str, *entries: Any, **options: Unpack[SaveOptions]) -> Checkpoint:
        """Adds entries to a log, all or none."""
        return self.thread.append(self._area.place(log), *entries, **options)

    def increment(self, slot: str, delta: int = 1, **options: Unpack[SaveOptions]) -> int:
        """Adds to the number in a slot and returns the sum, as `Thread.increment` does."""
        return self.thread.increment(self._area.place(slot), delta, **options)

    def post(self, slot: str, value: Any, *, expected: Any = ANY, **options: Unpack[SaveOptions]) -> Checkpoint:
        """Sets a slot.

        `expected` is the value that the slot must have now; ABSENT = the slot must not exist. Raises EditConflict if it
        has another value. Stored bytes are compared, so a dict with its keys in another order is another value. Raises
        ValueError if the slot is `ephemeral`.
        """
        return self.thread.set_slot(self._area.place(slot), value, expected=expected, **options)

    def read(self, *slots: str) -> dict[str, Any]:
        """Returns the values of these slots at one version, without slots that do not exist.

        Without names it returns all slots of the area, and reads the whole board for that.
        """
        return self.thread._run(boards.read(self.thread._ref, self._area, slots))

    def log(self, name: str) -> ThreadLog:
        """Returns a handle on one log, as `Thread.log` does. In a private area, projections are private too."""
        return ThreadLog(self.thread._session, self.thread._ref, name, self._area)

    def watch(self, *, slots: Iterable[str] = (), logs: Iterable[str] = (), after_cursor: str = "") -> Stream[Event]:
        """Streams the versions that change one of these slots or logs (none named = all), with those changes.

        `changes` have the full names of slots and logs, with the prefix of a private area. Events of other kinds, such
        as a tag or the deletion of the thread, are always included. Close the stream, or use it as a context manager.
        """
        chosen = self._area.watched(slots, logs)
        return self.thread.watch(after_cursor=after_cursor, include_diff=True, slots=chosen[0], logs=chosen[1])
