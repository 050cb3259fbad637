"""Questions about many threads, and the end of a run: the part of `Client` and `Thread` that has them."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Unpack

from stateward import _queries
from stateward._operations import ThreadRef
from stateward._saving import SaveOptions
from stateward._threads import ThreadFilters
from stateward.insight import Failure, ToolUse
from stateward.models import Checkpoint, Status
from stateward.state import State


class Queries:
    """What `Client` has."""

    if TYPE_CHECKING:
        namespace: str
        thread: Any
        _run: Any

    def count_threads(
        self,
        *,
        updated_since: datetime | timedelta | None = None,
        updated_after: datetime | None = None,
        updated_before: datetime | None = None,
    ) -> dict[Status | int, int]:
        """How many threads of the namespace have each status: {Status.FAILED: 3, …}. Reads an index, no thread."""
        counts: dict[Status | int, int] = self._run(
            _queries.count_threads(self.namespace, updated_since, updated_after, updated_before)
        )
        return counts

    def tools_used(self, *threads: str, agent: str | None = None, **filters: Unpack[ThreadFilters]) -> list[ToolUse]:
        """Which tools were called how often, and how often they failed, in these threads or in those that fit.

        Reads the logs "messages" and "tool_calls" of every one of them, and the names of their effects (`name=`). What
        a sliding window trimmed counts too, unless versions that hold it were pruned.
        """
        found: list[ToolUse] = self._run(_queries.tools_used(self._refer, self.namespace, threads, agent, filters))
        return found

    def failures(self, *threads: str, agent: str | None = None, **filters: Unpack[ThreadFilters]) -> list[Failure]:
        """Where runs failed last: version, step, status detail and the tool that was called before; newest first.

        Without names these are the threads that are FAILED now. Of a thread that is named, or chosen with another
        status, it is its newest version that says so, if there is one.
        """
        found: list[Failure] = self._run(_queries.failures(self._refer, self.namespace, threads, agent, filters))
        return found

    def _refer(self, name: str) -> ThreadRef:
        ref: ThreadRef = self.thread(name, migrations=False)._ref
        return ref


class Finishing:
    """What `Thread` has."""

    if TYPE_CHECKING:
        _ref: Any
        _run: Any

    def finish(self, state: State, *, ttl: timedelta | None = None, **options: Unpack[SaveOptions]) -> Checkpoint:
        """Saves the last version of a run, as COMPLETED unless `status` says otherwise, and gives the thread a TTL.

        Step and metrics are those of the version before, unless they are given. The thread is deleted `ttl` after this
        save; None leaves its TTL as it is. Finishing again, after a crash in between, saves no second version where
        nothing changed.
        """
        checkpoint: Checkpoint = self._run(_queries.finish(self._ref, state, ttl, options))
        return checkpoint
