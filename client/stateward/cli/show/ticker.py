"""Shows progress as one line on the terminal and removes it at the end. Shows nothing in a pipe."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from stateward.cli.show.output import clean, console

if TYPE_CHECKING:
    from rich.status import Status

INTERVAL_S = 0.1


class Ticker:
    """A line on stderr, so that stdout can be a pipe."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._status: Status | None = None
        self._told = 0.0

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            self._status = console(stderr=True).status(f"{self._what} …")
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def say(self, how_far: str) -> None:
        """Updates the line, at most once in INTERVAL_S."""
        now = time.monotonic()
        if self._status is not None and now - self._told >= INTERVAL_S:
            self._told = now
            self._status.update(f"{self._what}: {clean(how_far)}")
