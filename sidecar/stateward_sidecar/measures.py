"""What the parts of the daemon measure of themselves: histograms and counts, which `metrics` shows to Prometheus.

Each part has an attribute for its measures, which is None unless metrics are on. While it is None, the part reads no
clock and counts nothing. `app` puts the measures in. A `Histogram` belongs to one thread, so that adding to it needs
no lock; other threads may read it at any time.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

# From 50 µs: a save of a hot thread takes less than a millisecond.
SECONDS = (
    50e-6, 100e-6, 200e-6, 300e-6, 400e-6, 500e-6, 750e-6, 1e-3, 1.5e-3, 2e-3, 3e-3, 5e-3, 10e-3, 20e-3, 50e-3, 0.1,
    0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
)  # fmt: skip
SLOW_SECONDS = (1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CHAIN = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000)


class Histogram:
    """Counts values by upper bounds. One thread adds."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        # One more for the values above the last bound.
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """Counts a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class SharedHistogram(Histogram):
    """A histogram to which several threads add. Its lock costs more than the rest."""

    __slots__ = ("_lock",)

    def __init__(self, bounds: tuple[float, ...]) -> None:
        super().__init__(bounds)
        self._lock = threading.Lock()

    def add(self, value: float) -> None:
        """Counts a value."""
        with self._lock:
            super().add(value)


class Wires(NamedTuple):
    """How calls have come since the start."""

    grpc_calls: int
    frames_calls: int
    frames_connections: int
    """Open now. gRPC does not say how many it has."""


@dataclass(slots=True, eq=False)
class CallMeasures:
    """Of calls. Used on the event loop only."""

    # By method and code: both come from short lists, never from a client.
    durations: dict[tuple[str, str], Histogram] = field(default_factory=dict)
    # Of frames in the stream of a writer, from the message to the answer. By whether the frame was saved.
    frames: dict[bool, Histogram] = field(default_factory=lambda: {each: Histogram(SECONDS) for each in (True, False)})

    def note(self, method: str, code: str, duration_s: float) -> None:
        """Counts a call that has ended."""
        histogram = self.durations.get((method, code))
        if histogram is None:
            histogram = self.durations[method, code] = Histogram(SECONDS)
        histogram.add(duration_s)


@dataclass(slots=True, eq=False)
class WriterMeasures:
    """Of the writer. Used on the writer's thread only."""

    commits: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    batches: Histogram = field(default_factory=lambda: Histogram(COUNTS))
    # Syncs of the key store, which only batches that make or delete a thread need.
    key_syncs: Histogram = field(default_factory=lambda: Histogram(SECONDS))


@dataclass(slots=True, eq=False)
class StoreMeasures:
    """Of reads. Several threads use it."""

    # Entries that were replayed to make a state which was not in memory: the length of its chain.
    chains: SharedHistogram = field(default_factory=lambda: SharedHistogram(CHAIN))
    blob_syncs: SharedHistogram = field(default_factory=lambda: SharedHistogram(SECONDS))
    # Looks into the cache, by kind of item. Changed under the lock of the cache.
    hits: Counter[str] = field(default_factory=Counter)
    misses: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True, eq=False)
class BucketMeasures:
    """Of requests to the bucket, by operation. Changed under the lock of the wire."""

    requests: dict[str, Histogram] = field(default_factory=dict)
    errors: Counter[tuple[str, str]] = field(default_factory=Counter)

    def note(self, operation: str, duration_s: float, error: str = "") -> None:
        """Counts a request with all its attempts, and its error: the name of a class."""
        histogram = self.requests.get(operation)
        if histogram is None:
            histogram = self.requests[operation] = Histogram(SLOW_SECONDS)
        histogram.add(duration_s)
        if error:
            self.errors[operation, error] += 1


@dataclass(slots=True, eq=False)
class Measures:
    """The measures of all parts."""

    calls: CallMeasures = field(default_factory=CallMeasures)
    writer: WriterMeasures = field(default_factory=WriterMeasures)
    store: StoreMeasures = field(default_factory=StoreMeasures)
    bucket: BucketMeasures = field(default_factory=BucketMeasures)


@dataclass(slots=True, eq=False)
class Events:
    """Rare events since the start. They are counted also if metrics are off: each costs more than its count."""

    # Refused calls and frames, by reason.
    refusals: Counter[str] = field(default_factory=Counter)
    # Stored bytes that did not pass authentication.
    unopened: int = 0
    # Requests that were answered with the answer of an earlier request with the same id.
    replays: int = 0
    # Threads that another sidecar took while this one had entries that the archive did not have.
    fencings: int = 0
    # Calls that a limit of their principal or namespace refused, by limit.
    limits: Counter[str] = field(default_factory=Counter)
    # Calls whose caller is unknown, or may not make them, by method.
    denied: Counter[str] = field(default_factory=Counter)
    # Security events that the audit log lacks, and whether it cannot be written now.
    audit_lost: int = 0
    audit_failing: bool = False


events = Events()
