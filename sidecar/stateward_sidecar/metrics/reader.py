"""The oldest reader of the data file: while a read transaction is open, LMDB reuses no page that was freed since."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import lmdb

_ROW = re.compile(r"^\s*\d+\s+[0-9a-f]+\s+(\d+)\s*$")


class OldestReader:
    """Reads LMDB's table of readers, which has those of other processes as well, such as ``mdb_copy``."""

    def __init__(self, env: lmdb.Environment, clock: Callable[[], float] = time.monotonic) -> None:
        self._env = env
        self._clock = clock
        # The transaction that the oldest reader sees, and since when it is behind.
        self._behind: tuple[int, float] | None = None

    def look(self) -> tuple[int, int, float]:
        """Returns the number of readers, how many transactions were committed since the oldest of them began, and for
        how many seconds at least that reader has been behind: since the first look that found it so."""
        open_at = [int(found[1]) for line in self._env.readers().splitlines() if (found := _ROW.match(line))]
        if not open_at:
            self._behind = None
            return 0, 0, 0.0
        oldest = min(open_at)
        behind = max(int(self._env.info()["last_txnid"]) - oldest, 0)
        if not behind:
            self._behind = None
            return len(open_at), 0, 0.0
        if self._behind is None or self._behind[0] != oldest:
            self._behind = oldest, self._clock()
        return len(open_at), behind, self._clock() - self._behind[1]
