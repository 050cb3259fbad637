"""What namespaces may take of this disk, and what they take: bytes and threads.

The bytes of a namespace are the `stored_bytes` of its threads, which their heads count: entries, snapshots and blobs,
as stored. Every commit that changes a head changes the sums here, so nothing is scanned when a write asks. At the
start, and when the first limit is set, ``store/clean/tally.py`` counts what is there.

What is being made counts, too: a copy, an import or a blob takes the disk before it is part of a thread (``Reserved``).
It lives in memory, as a half-made thread does not outlive the process.

Without limits no thread is counted. The writer changes the sums; any thread may read them.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from stateward_sidecar.errors import QuotaExceeded
from stateward_sidecar.measures import events
from stateward_sidecar.storage.layout import NUMBER_MAX

# A batch takes less than this, so a namespace that has as much left needs no look at the rest of the batch.
BATCH_BYTES = 256 << 20
# Above the number of every thread.
ALL_NUMBERS = NUMBER_MAX + 1
# How many namespaces have their limits remembered.
KNOWN_MAX = 10_000


@dataclass(frozen=True, slots=True)
class NamespaceLimit:
    """What each namespace may take whose name matches a pattern, in which "*" is any text. 0 = there is no limit."""

    pattern: str
    bytes: int = 0
    threads: int = 0


def fits(pattern: str, text: str) -> bool:
    """Whether a text is one of a pattern, in which "*" is any text."""
    first, *middle = pattern.split("*")
    if not middle:
        return text == first
    last, at = middle.pop(), len(first)
    for part in middle:
        if (found := text.find(part, at)) < 0:
            return False
        at = found + len(part)
    return text.startswith(first) and text.endswith(last) and at + len(last) <= len(text)


class Used(NamedTuple):
    """A limit, and what is used of it."""

    limit: str
    subject: str
    """The namespace or the principal that the limit is for."""
    maximum: int
    used: int


@dataclass(slots=True)
class _Taken:
    """What a namespace takes."""

    bytes: int = 0
    threads: int = 0


_NOTHING = _Taken()
_NO_DRAFTS: Mapping[Any, Any] = {}


class Usage:
    """The limits of namespaces, and the sums that they bound."""

    def __init__(self) -> None:
        self._limits: Sequence[NamespaceLimit] = ()
        self._known: dict[str, NamespaceLimit | None] = {}
        self._taken: dict[str, _Taken] = {}
        self._reserved: dict[str, int] = {}
        self._reserving = threading.Lock()
        self.is_on = False
        """Whether there are limits, so that something is counted."""
        self._count, self._counted_to = 0, 0
        self._lock = threading.Lock()

    # Limits -----------------------------------------------------------------------------------------------------------

    def limit(self, limits: Sequence[NamespaceLimit]) -> bool:
        """Sets the limits; of several that match a namespace, the first one counts. Returns whether the threads must be
        counted first (``begin_count``): the limits hold from then on."""
        was_on = self.is_on
        self._limits = tuple(limits)
        self._known = {}  # behind the limits: who asks meanwhile writes into the old one
        self.is_on = bool(limits)
        if self.is_on == was_on:
            return False
        with self._lock:  # what a commit is just noting is part of what is counted anew
            self._count, self._counted_to, self._taken = self._count + 1, 0, {}
        return self.is_on

    def limit_of(self, namespace: str) -> NamespaceLimit | None:
        """Returns the limit of a namespace; None = there is none."""
        known = self._known
        if namespace not in known:
            if len(known) >= KNOWN_MAX:
                known = self._known = {}
            known[namespace] = next((each for each in self._limits if fits(each.pattern, namespace)), None)
        return known[namespace]

    # Counting ---------------------------------------------------------------------------------------------------------

    @property
    def is_counted(self) -> bool:
        """Whether all threads are in the sums. The limits do not hold before."""
        return self._counted_to == ALL_NUMBERS

    @property
    def count(self) -> int:
        """The number of the present count. One that is over adds nothing more."""
        return self._count

    def count_to(self, count: int, number: int) -> bool:
        """Says that threads below a number are counted: as they are now by whoever calls this, and what changes of them
        by ``note``. No commit may be published until they are read. Returns False if the count is over."""
        with self._lock:
            if count == self._count:
                self._counted_to = number
            return count == self._count

    def note(self, number: int, namespace: str, size_bytes: int, threads: int = 0) -> None:
        """Adds what a commit has changed of a thread."""
        with self._lock:
            if number < self._counted_to:
                self._add(namespace, size_bytes, threads)

    def add_counted(self, count: int, namespace: str, size_bytes: int) -> None:
        """Adds a thread that a count has read."""
        with self._lock:
            if count == self._count:
                self._add(namespace, size_bytes, 1)

    def _add(self, namespace: str, size_bytes: int, threads: int) -> None:
        taken = self._taken.get(namespace)
        if taken is None:
            taken = self._taken[namespace] = _Taken()
        taken.bytes += size_bytes
        taken.threads += threads
        if not (taken.threads or taken.bytes):
            del self._taken[namespace]

    # Asking -----------------------------------------------------------------------------------------------------------

    def check_thread(self, namespace: str, drafts: Mapping[Any, Any]) -> None:
        """Raises QuotaExceeded if a namespace may have no thread more, beside those that a batch makes."""
        if not self.is_on or (limit := self.limit_of(namespace)) is None or not self.is_counted:
            return
        taken = self._taken.get(namespace, _NOTHING)
        if limit.threads:
            made = sum(1 for draft in _drafts_of(namespace, drafts) if not draft.thread.head.tip_sequence)
            if taken.threads + made >= limit.threads:
                raise _exceeded("threads", namespace, limit.threads, taken.threads + made)
        self.check_bytes(namespace, 0, drafts)

    def check_bytes(
        self, namespace: str, size_bytes: int, drafts: Mapping[Any, Any], *, reserved_bytes: int = 0
    ) -> None:
        """Raises QuotaExceeded if a namespace may not take so many bytes more, beside those that a batch takes.
        ``reserved_bytes``: how many of them are reserved already."""
        if not self.is_on or (limit := self.limit_of(namespace)) is None or not (limit.bytes and self.is_counted):
            return
        taken = self._bytes_of(namespace) - reserved_bytes
        if taken + size_bytes + BATCH_BYTES > limit.bytes:
            taken += sum(
                draft.head.stored_bytes - draft.thread.head.stored_bytes for draft in _drafts_of(namespace, drafts)
            )
        # A namespace that is full takes nothing more, also if the size of a write is not known yet.
        if taken + max(size_bytes, 1) > limit.bytes:
            raise _exceeded("bytes", namespace, limit.bytes, taken, size_bytes)

    def of(self, namespace: str) -> list[Used]:
        """Returns the limits of a namespace, and what it takes."""
        limit = self.limit_of(namespace) if self.is_on and self.is_counted else None
        if limit is None:
            return []
        threads = self._taken.get(namespace, _NOTHING).threads
        every = (("bytes", limit.bytes, self._bytes_of(namespace)), ("threads", limit.threads, threads))
        return [Used(what, namespace, most, max(used, 0)) for what, most, used in every if most]

    def fullest(self, count: int) -> list[Used]:
        """Returns those of all limits of which most is used."""
        if not (self.is_on and self.is_counted):
            return []
        every = (used for namespace in list(self._taken) for used in self.of(namespace))
        return heapq.nlargest(count, every, key=lambda used: used.used / used.maximum)

    def _bytes_of(self, namespace: str) -> int:
        return self._taken.get(namespace, _NOTHING).bytes + self._reserved.get(namespace, 0)


class Reserved:
    """The bytes of something that is being made. Used by one thread at a time."""

    __slots__ = ("_is_over", "_least_bytes", "_namespace", "_size_bytes", "_usage")

    def __init__(self, usage: Usage, namespace: str) -> None:
        self._usage, self._namespace = usage, namespace
        self._size_bytes = self._least_bytes = 0
        self._is_over = False

    def expect(self, size_bytes: int) -> None:
        """Reserves the whole size in advance if there is room for it, so that things that are made at the same time do
        not refuse each other when each of them is half made. Else the bytes are reserved as they come. Called once,
        before ``take``."""
        usage = self._usage
        limit = usage.limit_of(self._namespace) if usage.is_on and usage.is_counted else None
        if limit is None or not limit.bytes:
            return
        with usage._reserving:
            if usage._bytes_of(self._namespace) + size_bytes <= limit.bytes:
                self._least_bytes = size_bytes
                self._set(size_bytes)

    def take(self, size_bytes: int, drafts: Mapping[Any, Any] = _NO_DRAFTS) -> None:
        """Says how many bytes it takes now. Raises QuotaExceeded."""
        usage = self._usage
        with usage._reserving:
            usage.check_bytes(self._namespace, size_bytes, drafts, reserved_bytes=self._size_bytes)
            self._set(max(size_bytes, self._least_bytes))

    def end(self) -> None:
        """Gives the bytes back: they are those of a thread now, or are removed. May be called again."""
        with self._usage._reserving:
            self._set(0)
            self._is_over = True

    def _set(self, size_bytes: int) -> None:
        if self._is_over:
            return
        reserved, namespace = self._usage._reserved, self._namespace
        total = reserved.get(namespace, 0) + size_bytes - self._size_bytes
        self._size_bytes = size_bytes
        if total:
            reserved[namespace] = total
        else:
            reserved.pop(namespace, None)


def _drafts_of(namespace: str, drafts: Mapping[Any, Any]) -> Iterator[Any]:
    """Yields the drafts of a namespace's threads, of all that a batch has."""
    for key, draft in drafts.items():
        if draft is not None and isinstance(key, tuple) and key[0] == namespace:
            yield draft


def _exceeded(what: str, namespace: str, maximum: int, used: int, more: int = 1) -> QuotaExceeded:
    events.limits[what] += 1
    taken = f"takes {used:,}, and this would take {more:,} more" if more > 1 else f"and takes {used:,}"
    message = f"namespace {namespace!r} may take {maximum:,} {what}, {taken}; delete or prune something"
    return QuotaExceeded(message, limit=what, namespace=namespace, maximum=maximum, used=used)
