"""Sets of versions or sequences, stored as ranges. A set is small if its members are consecutive."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import accumulate

from stateward.storage.v1.journal_pb2 import (
    PrunedVersions,
    VersionRange,
)
from stateward.v1.thread_service_pb2 import VersionSpan, VersionSpans


class Ranges:
    """An immutable set of versions, as ascending ranges that do not touch."""

    __slots__ = ("_counts", "_firsts", "_lasts")

    def __init__(self, pairs: Iterable[tuple[int, int]] = ()) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        self._counts: list[int] | None = None
        for first, last in sorted(pairs):
            if self._lasts and first <= self._lasts[-1] + 1:
                self._lasts[-1] = max(self._lasts[-1], last)
            else:
                self._firsts.append(first)
                self._lasts.append(last)

    def __contains__(self, version: int) -> bool:
        at = bisect_right(self._firsts, version) - 1
        return at >= 0 and version <= self._lasts[at]

    def covers(self, first: int, last: int) -> bool:
        """Returns whether all versions from the first to the last are in the set."""
        at = bisect_right(self._firsts, first) - 1
        return at >= 0 and last <= self._lasts[at]

    def overlaps(self, first: int, last: int) -> bool:
        """Returns whether any version from the first to the last is in the set."""
        at = bisect_right(self._firsts, last) - 1
        return at >= 0 and first <= self._lasts[at]

    def __iter__(self) -> Iterator[int]:
        for first, last in self.pairs():
            yield from range(first, last + 1)

    def __len__(self) -> int:
        """How many versions."""
        return sum(last - first + 1 for first, last in self.pairs())

    @property
    def last(self) -> int:
        """The highest version; 0 = the set is empty."""
        return self._lasts[-1] if self._lasts else 0

    def pairs(self) -> list[tuple[int, int]]:
        """Returns the first and last version of each range."""
        return list(zip(self._firsts, self._lasts, strict=True))

    def __getitem__(self, index: int) -> int:
        """Returns the version at an index, from 0 on. Raises IndexError."""
        if self._counts is None:  # how many versions are before each range: made once, for rules that look at many
            self._counts = list(accumulate((last - first + 1 for first, last in self.pairs()), initial=0))
        at = bisect_right(self._counts, index) - 1
        if not 0 <= at < len(self._firsts):
            raise IndexError(index)
        return self._firsts[at] + index - self._counts[at]

    def common(self, other: Ranges) -> Ranges:
        """Returns the versions that are also in ``other``."""
        mine, theirs, pairs = deque(self.pairs()), deque(other.pairs()), list[tuple[int, int]]()
        while mine and theirs:
            first, last = max(mine[0][0], theirs[0][0]), min(mine[0][1], theirs[0][1])
            if first <= last:
                pairs.append((first, last))
            (mine if mine[0][1] <= theirs[0][1] else theirs).popleft()
        return Ranges(pairs)

    def until(self, version: int) -> Ranges:
        """Returns the versions up to ``version``."""
        return Ranges((first, min(last, version)) for first, last in self.pairs() if first <= version)

    def after(self, version: int) -> Ranges:
        """Returns the versions above ``version``."""
        return Ranges((max(first, version + 1), last) for first, last in self.pairs() if last > version)

    def missing(self, last: int) -> Ranges:
        """Returns the versions from 1 to ``last`` that are not in this set."""
        starts = [1, *(end + 1 for end in self._lasts)]
        ends = [*(start - 1 for start in self._firsts), last]
        pairs = ((start, min(end, last)) for start, end in zip(starts, ends, strict=True))
        return Ranges((start, end) for start, end in pairs if start <= end)

    def union(self, versions: Iterable[int]) -> Ranges:
        """Returns the set with ``versions`` added."""
        return Ranges([*self.pairs(), *((version, version) for version in versions)])

    def to_message(self) -> PrunedVersions:
        """Returns the set as a message, as it is stored."""
        return PrunedVersions(ranges=_to_ranges(self))

    @classmethod
    def from_message(cls, message: PrunedVersions) -> Ranges:
        """The reverse of ``to_message``."""
        return cls((item.first, item.last) for item in message.ranges)


NOTHING = Ranges()


class Pruned(Ranges):
    """The versions that were pruned, and the entries that count for nothing. Immutable, too.

    Sequences of entries; only entries of the kind are meant, and a range may pass over entries of other kinds:
    ``effects`` of deleted effects; ``records`` up to their floor, one range from 1; ``signals`` that pruned versions
    acknowledged; ``loose`` of tags, settings, leases, blobs and moved heads, one range from 1; ``objects`` of lists of
    objects to which no row leads. And ``trees``: the versions whose trees were dropped, which is no set of entries.
    """

    __slots__ = ("effects", "loose", "objects", "records", "signals", "trees")

    def __init__(
        self, pairs: Iterable[tuple[int, int]] = (), effects: Ranges = NOTHING, records: Ranges = NOTHING,
        signals: Ranges = NOTHING, loose: Ranges = NOTHING, objects: Ranges = NOTHING, *, trees: Ranges = NOTHING,
    ) -> None:  # fmt: skip
        super().__init__(pairs)
        self.trees = trees
        self.effects, self.records, self.signals, self.loose, self.objects = effects, records, signals, loose, objects

    def entries(self) -> tuple[Ranges, Ranges, Ranges, Ranges, Ranges]:
        """Returns the sets of sequences, in the order of the arguments."""
        return self.effects, self.records, self.signals, self.loose, self.objects

    @property
    def is_empty(self) -> bool:
        """True if no entry was ever cut or removed, and no tree dropped."""
        return not self._firsts and not any(each.pairs() for each in (*self.entries(), self.trees))

    def is_same(self, other: Pruned) -> bool:
        """Returns whether the other set has the same versions and entries."""
        mine, theirs = (self, *self.entries(), self.trees), (other, *other.entries(), other.trees)
        return all(one.pairs() == another.pairs() for one, another in zip(mine, theirs, strict=True))

    def with_more(self, versions: Ranges, effects: Ranges, signals: Ranges = NOTHING) -> Pruned:
        """Returns the set with more versions and entries."""
        return self.merged(Pruned(versions.pairs(), effects, signals=signals))

    def merged(self, other: Pruned) -> Pruned:
        """Returns all that is in one of the two sets."""
        return Pruned(
            [*self.pairs(), *other.pairs()], *map(_joined, self.entries(), other.entries()),
            trees=_joined(self.trees, other.trees),
        )  # fmt: skip

    def common_with(self, other: Pruned) -> Pruned:
        """Returns all that is in both sets."""
        return Pruned(
            self.common(other).pairs(), *map(Ranges.common, self.entries(), other.entries()),
            trees=self.trees.common(other.trees),
        )  # fmt: skip

    def with_records(self, records: Ranges) -> Pruned:
        """Returns the set with more entries of records."""
        return self.merged(Pruned(records=records))

    def with_loose(self, loose: Ranges) -> Pruned:
        """Returns the set with more entries of tags, settings, leases, blobs and moved heads."""
        return self.merged(Pruned(loose=loose))

    def to_message(self) -> PrunedVersions:
        """Returns all sets as a message, as they are stored."""
        return PrunedVersions(
            ranges=_to_ranges(self), effects=_to_ranges(self.effects), records=_to_ranges(self.records),
            signals=_to_ranges(self.signals), loose=_to_ranges(self.loose), objects=_to_ranges(self.objects),
            trees=_to_ranges(self.trees),
        )  # fmt: skip

    @classmethod
    def from_message(cls, message: PrunedVersions) -> Pruned:
        """The reverse of ``to_message``."""
        sets = (message.effects, message.records, message.signals, message.loose, message.objects)
        return cls(
            ((item.first, item.last) for item in message.ranges),
            *(Ranges((item.first, item.last) for item in each) for each in sets),
            trees=Ranges((item.first, item.last) for item in message.trees),
        )


def _joined(one: Ranges, other: Ranges) -> Ranges:
    return Ranges([*one.pairs(), *other.pairs()]) if one.pairs() and other.pairs() else (one if one.pairs() else other)


def _to_ranges(found: Ranges) -> list[VersionRange]:
    return [VersionRange(first=first, last=last) for first, last in found.pairs()]


class Rising:
    """A set to which versions are added in rising order. It is small if they are consecutive."""

    __slots__ = ("_firsts", "_lasts", "count")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        self.count = 0

    @property
    def newest(self) -> int:
        """The highest version; 0 = the set is empty."""
        return self._lasts[-1] if self._lasts else 0

    def add(self, version: int) -> None:
        """Adds a version, which must be higher than all before."""
        assert version > self.newest
        if self._lasts and version == self._lasts[-1] + 1:
            self._lasts[-1] = version
        else:
            self._firsts.append(version)
            self._lasts.append(version)
        self.count += 1

    def __contains__(self, version: int) -> bool:
        at = bisect_right(self._firsts, version) - 1
        return at >= 0 and version <= self._lasts[at]

    def ranges(self) -> Ranges:
        """Returns the set as Ranges."""
        return Ranges(zip(self._firsts, self._lasts, strict=True))


def spans_of(versions: Ranges) -> VersionSpans:
    """Returns versions as the contract has them."""
    return VersionSpans(spans=[VersionSpan(first=first, last=last) for first, last in versions.pairs()])


def numbers_of(versions: VersionSpans) -> Iterator[int]:
    """Yields the versions of spans."""
    for span in versions.spans:
        yield from range(span.first, span.last + 1)
