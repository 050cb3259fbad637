# Generated from stateward/_async/logs.py by client/generate.py. Do not edit.
"""`thread.log(name)`: one log of a thread, read as a stream of events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from stateward._frames import AT_THE_CALLER, ends_at_the_caller
from stateward._io.blocking.session import Session
from stateward._io.blocking.tools import Reducer
from stateward._operations import projecting, windows
from stateward._operations.boards import Area
from stateward._operations.logs import FOLLOW_WAIT_S, LogEntry, LogFollower, LogPages
from stateward._operations.steps import ThreadRef
from stateward.arguments import text

V = TypeVar("V")


@ends_at_the_caller
class ThreadLog:
    """A handle on one log, which need not exist. Holds no entries of its own.

    With migrations, every method but `trimmed` first migrates a head of an older schema, which saves it, as an append
    does.
    """

    def __init__(self, session: Session, ref: ThreadRef, name: str, area: Area | None = None) -> None:
        self._session = session
        self._ref = ref
        self._area = area or Area()
        self.name = self._area.place(text(name, "the name of a log"))
        """Name of the log in the state."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._ref.thread!r}, {self.name!r})"

    def read(self, start: int = 0, *, version: int | None = None) -> Iterator[LogEntry]:
        """Yields the entries from index `start` on, each with its index, page by page.

        Reads one version: `version`, or the head as it is at the first page. Yields nothing if the log, the branch or
        the thread does not exist. Raises SchemaMismatch if `version` has another schema than the migrations lead to:
        a migration needs the whole state, so hydrate that version.
        """
        with AT_THE_CALLER:
            pages = LogPages(self._ref, self.name, start, version)
            while not pages.ended:
                for entry in self._session.run(pages.next_page()):
                    yield entry

    def follow(self, start: int | None = 0) -> Iterator[LogEntry]:
        """Yields the entries from index `start` on, then waits for new ones, without end.

        `start` None yields only entries that are appended from now on. Continues after a restart of the daemon without
        gap or duplicate. For logs that only grow: yields some or none of the entries that were replaced, or cut off and
        written anew. Raises ThreadNotFound if there is no thread, and UidMismatch once it is deleted.
        """
        wait_s = min(FOLLOW_WAIT_S, self._session.settings.call_timeout_s / 2)
        with AT_THE_CALLER:
            follower = LogFollower(self._ref, self.name, start, wait_s)
            while True:
                for entry in self._session.run(follower.next_page()):
                    yield entry

    def replay(self, reducer: Reducer[V], initial: V, *, projection: str | None = None) -> V:
        """Folds the entries into a value: `value = reducer(value, entry)`, beginning with `initial`.

        With a `projection` the daemon keeps the value under that name, on a branch of its own, and the next replay
        folds only what was appended since. Use another name if the reducer changes. The value must be one that a slot
        can hold, and comes back as one. The fold starts again if entries were replaced, cut off, or trimmed at the
        start, then with the entries that are left.

        Keeping the value never hinders a writer. Nothing is kept while the daemon cannot write, of a thread that
        another sidecar wrote last (keeping would take the thread), and of a thread that is COMPLETED, FAILED or
        CANCELLED (keeping would extend its life).
        """
        kept = None if projection is None else self._area.place(projection, "projection")
        value: V = self._session.run(projecting.replay(self._ref, self.name, reducer, initial, kept))
        return value

    def trimmed(self) -> list[Any]:
        """Returns the entries that windows trimmed, oldest first, also those of the branches that this one started
        from.

        Reads them from the versions before. Raises VersionPruned if retention has removed such a version.
        """
        return self._session.run(windows.trimmed(self._ref, self.name))
