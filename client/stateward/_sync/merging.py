"""The part of `Thread` with which many writers share one state, and read its logs as streams of events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from stateward import _merging, _projecting
from stateward._logpages import FOLLOW_WAIT_S, LogEntry, LogFollower, LogPages
from stateward._merging import ANY
from stateward._operations import Operation, ThreadRef
from stateward._projecting import Reducer
from stateward._saving import SaveOptions
from stateward.models import Checkpoint

if TYPE_CHECKING:
    from stateward._sync import Client

T = TypeVar("T")


class ThreadMerging:
    """Methods of `Thread`."""

    _client: Client
    _ref: ThreadRef

    def increment(self, slot: str, delta: int = 1, **options: Unpack[SaveOptions]) -> Checkpoint:
        """Adds to the number in a slot, on top of whatever is the head: no increment of anybody is ever lost.

        A missing slot is made with 0. EditConflict where it holds something else than a number (`Number(3)` is one, an
        int is JSON), or would leave 64 bits. ValueError for a slot that is `ephemeral`. To know the sum, hydrate.
        """
        return self._run(_merging.increment(self._ref, slot, delta, options))

    def set_slot(self, slot: str, value: Any, *, expected: Any = ANY, **options: Unpack[SaveOptions]) -> Checkpoint:
        """Sets one slot on top of whatever is the head, without reading it.

        `expected` is the value that it must have now, or ABSENT; EditConflict where it has another one. Values are
        compared as they are stored: for what another kind of client wrote, give `state.slots.raw(slot)`. ValueError for
        a slot that the client keeps to itself (`ephemeral`).
        """
        return self._run(_merging.set_slot(self._ref, slot, value, expected, options))

    def read_log(self, log: str, start: int = 0, *, version: int | None = None) -> Iterator[LogEntry]:
        """The entries of a log from index `start` on, each with its index, read page by page at one version (None =
        the head, as it is at the first page). A log, branch or thread that does not exist has none.

        With migrations a head of an older schema is migrated first, which saves it, as an append does. SchemaMismatch
        for a `version` of another schema: a migration needs the whole state, so hydrate it."""
        pages = LogPages(self._ref, log, start, version)
        while not pages.ended:
            yield from self._run(pages.next_page())

    def follow_log(self, log: str, start: int | None = 0) -> Iterator[LogEntry]:
        """The same without end: waits for what is appended. `start` None = only what is appended from now on.

        Goes on after a restart of the daemon without gap or duplicate. For logs that are only appended to: of entries
        that are replaced, or cut off and written anew, it tells some or none. ThreadNotFound if there is no thread.
        With migrations a head of an older schema is migrated first, as by an append.
        """
        follower = LogFollower(self._ref, log, start, min(FOLLOW_WAIT_S, self._client._settings.deadline_s / 2))
        while True:
            yield from self._run(follower.next_page())

    def replay(self, log: str, reducer: Reducer, initial: Any, *, projection: str | None = None) -> Any:
        """Folds the events of a log into a value: `value = reducer(value, event)`, beginning with `initial`.

        With a `projection` the value is kept under that name in the thread, on a branch of its own, and the next
        replay folds only what was appended since; use another name where the reducer changes. It starts again where
        entries were replaced, cut off, or trimmed at the start (then with what is left of them). Keeping it never
        hinders a writer, and where the daemon cannot write just now nothing is kept. Nor is it of a thread that another
        sidecar wrote last, which that would take from it, and of one that is COMPLETED, FAILED or CANCELLED, which
        would live longer by it: a replay of such a thread folds again what the last one folded. The value must be one
        that a slot can hold, and comes back as one. With migrations a head of an older schema is migrated first, as by
        an append.
        """
        return self._run(_projecting.replay(self._ref, log, reducer, initial, projection))

    def _run(self, operation: Operation[T]) -> T:
        raise NotImplementedError
