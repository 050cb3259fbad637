"""`client.drain`: emptying the machine that the daemon runs on."""

from __future__ import annotations

from typing import TypeVar

from stateward import _drain
from stateward._operations import Operation
from stateward.admin import DrainResult

T = TypeVar("T")


class ClientDrain:
    """The part of `Client` that drains."""

    def drain(self, *, grace: float | None = None, undo: bool = False) -> DrainResult:
        """Prepares the machine for being taken away: the daemon is not ready any more and takes no new work
        (ShuttingDown), archives what is committed, and gives every thread up. Reads go on.

        `grace` is how many seconds that may take, at most an hour; None = the daemon's --grace. `result.dirty_threads`
        0 = the machine may go; else call again. `undo` takes work again, and so does a restart.
        """
        return self._run(_drain.drain(grace, undo))

    def _run(self, operation: Operation[T]) -> T:
        raise NotImplementedError
