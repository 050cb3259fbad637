"""What the collector reads: parts of the daemon, counts kept in the background, and the oldest reader.

The oldest reader of the data file: while a read transaction is open, LMDB reuses no page that was freed since.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stateward_sidecar.clock import Clock
from stateward_sidecar.measures import Measures, Wires
from stateward_sidecar.storage.engine import Engine
from stateward_sidecar.store.clean.census import Census, Counted
from stateward_sidecar.store.store import Store
from stateward_sidecar.telemetry import guarded

if TYPE_CHECKING:
    from stateward_sidecar.archive.archive import Archive

_ROW = re.compile(r"^\s*\d+\s+[0-9a-f]+\s+(\d+)\s*$")


class OldestReader:
    """Reads LMDB's table of readers, which has those of other processes as well, such as ``mdb_copy``."""

    def __init__(self, engine: Engine, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._clock = clock
        # The transaction that the oldest reader sees, and since when it is behind.
        self._behind: tuple[int, float] | None = None

    def look(self) -> tuple[int, int, float]:
        """Returns the number of readers, how many transactions were committed since the oldest of them began, and for
        how many seconds at least that reader has been behind: since the first look that found it so."""
        env = self._engine.env
        open_at = [int(found[1]) for line in env.readers().splitlines() if (found := _ROW.match(line))]
        if not open_at:
            self._behind = None
            return 0, 0, 0.0
        oldest = min(open_at)
        behind = max(int(env.info()["last_txnid"]) - oldest, 0)
        if not behind:
            self._behind = None
            return len(open_at), 0, 0.0
        if self._behind is None or self._behind[0] != oldest:
            self._behind = oldest, self._clock()
        return len(open_at), behind, self._clock() - self._behind[1]


# A census takes at most this share of the time, so with many threads it is taken less often.
CENSUS_SHARE = 0.005
CENSUS_PAUSE_S = 15.0


@dataclass(frozen=True, slots=True)
class Sources:
    """What the collector reads. The callables return at once."""

    measures: Measures
    store: Store
    archive: Archive | None
    version: str
    format: int
    open_calls: Callable[[], int]
    wires: Callable[[], Wires]
    # Calls that wait for their turn: reads and writes.
    waiting_calls: Callable[[], tuple[int, int]]
    watches: Callable[[], int]
    # Why the daemon is not ready, by cause: whether it is so now.
    not_ready: Callable[[], dict[str, bool]]


class LatestCensus:
    """Takes a census again and again on a thread of its own, and keeps the newest one."""

    def __init__(self, census: Census) -> None:
        self._census = census
        self._over = threading.Event()
        self.counted: Counted | None = None
        self.taken_at = 0.0
        self._thread = threading.Thread(target=self._run, name="census", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def close(self) -> None:
        """Ends the thread. Call it before the store is closed."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._over.is_set():
            guarded("census", self._take)
            worked_s = self.counted.worked_s if self.counted is not None else 0.0
            self._over.wait(max(CENSUS_PAUSE_S, worked_s / CENSUS_SHARE))

    def _take(self) -> None:
        counted = self._census.take(self._over.is_set)
        if counted is not None:
            self.counted, self.taken_at = counted, Clock().boottime()
