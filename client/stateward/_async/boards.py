"""`client.board` for asyncio. The twin of `_sync_boards`, which has the docs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Any, Unpack, cast

from stateward import _boards, _sync_boards
from stateward._async_io import AsyncStream
from stateward._boards import Area
from stateward._logpages import LogEntry
from stateward._merging import ANY
from stateward._projecting import Reducer
from stateward._saving import SaveOptions
from stateward._shell import documented_as
from stateward.events import Event
from stateward.models import Checkpoint

if TYPE_CHECKING:
    from stateward._async import AsyncClient, AsyncThread


@documented_as(_sync_boards.Board)
class AsyncBoard:
    """A thread that several agents write at the same time, without reading it first and without refusing each other.

    What they append and count is never lost, whoever else writes and however often a write is repeated: each carries a
    request id. What they post replaces what was there; with `expected` only if that is what they think.

    Names are shared by all agents, but for those of `private`: an area of names that no other agent takes.
    """

    def __init__(self, thread: AsyncThread, agent: str = "", area: Area | None = None) -> None:
        self.thread = thread
        """The thread itself, for everything else."""
        self.agent = agent
        self._area = area if area is not None else Area()

    def __repr__(self) -> str:
        area = ".private" if self._area.owner else ""
        return f"{type(self).__name__}({self.thread.name!r}, agent={self.agent!r}){area}"

    @property
    def private(self) -> AsyncBoard:
        """The same board with the names of this agent only: its slots and logs lie below "agents/<agent>/"."""
        return AsyncBoard(self.thread, self.agent, Area.of(self.agent))

    async def append(self, log: str, *entries: Any, **options: Unpack[SaveOptions]) -> Checkpoint:
        return await self.thread.append(self._area.place(log), *entries, **options)

    async def increment(self, slot: str, delta: int = 1, **options: Unpack[SaveOptions]) -> Checkpoint:
        return await self.thread.increment(self._area.place(slot), delta, **options)

    async def post(self, slot: str, value: Any, *, expected: Any = ANY, **options: Unpack[SaveOptions]) -> Checkpoint:
        return await self.thread.set_slot(self._area.place(slot), value, expected=expected, **options)

    async def read(self, *slots: str) -> dict[str, Any]:
        return await self.thread._run(_boards.read(self.thread._ref, self._area, slots))

    def read_log(self, log: str, start: int = 0) -> AsyncIterator[LogEntry]:
        return self.thread.read_log(self._area.place(log), start)

    def follow_log(self, log: str, start: int | None = 0) -> AsyncIterator[LogEntry]:
        return self.thread.follow_log(self._area.place(log), start)

    async def replay(self, log: str, reducer: Reducer, initial: Any, *, projection: str | None = None) -> Any:
        name = None if projection is None else self._area.place(projection)
        return await self.thread.replay(self._area.place(log), reducer, initial, projection=name)

    def watch(
        self, *, slots: Iterable[str] = (), logs: Iterable[str] = (), after_cursor: str = ""
    ) -> AsyncStream[Event]:
        chosen = self._area.watched(slots, logs)
        return self.thread.watch(after_cursor=after_cursor, include_diff=True, slots=chosen[0], logs=chosen[1])


@documented_as(_sync_boards.ClientBoards)
class AsyncClientBoards:
    """Methods of `AsyncClient`."""

    def board(self, name: str, *, agent: str = "") -> AsyncBoard:
        return AsyncBoard(cast("AsyncClient", self).thread(name), agent)
