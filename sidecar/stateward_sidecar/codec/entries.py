"""The entries of a log: first runs of older ones, then the newest ones in memory, the *tail*.

    Entries ─ runs   SealedRun   entries of a segment, which lies on the disk and is read when it is needed
            │        LooseRun    entries in memory that were part of a segment until one of them was replaced
            └ tail   a view of a list of frames, which later views share

A *segment* is about 1 MiB of consecutive entries that never changes (``store/blobs/segments.py``). States, snapshots
and copies share it, so a log of gigabytes takes little memory, and nothing of it is written twice. To read a segment
may raise HistoryElsewhere or Corrupt. Appends and trims of whole runs read none, and two states that share segments are
compared without reading them.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import overload

from stateward_sidecar.codec.varints import frame

# A view that keeps more dropped entries than it shows, and more than this, is copied. Otherwise a window that moves
# along a log would keep every entry that it ever showed.
_COMPACT_SLACK_ENTRIES = 64
# To find the end of a shared list and to grow it are two steps. Without the lock, two threads that append to one view
# could both take its end.
_GROWING = threading.Lock()


class Segment:
    """A sealed piece of a log. Two of them are equal if they have the same bytes."""

    __slots__ = ("blobs", "count", "digest", "size_bytes", "source")

    def __init__(
        self, digest: bytes, count: int, size_bytes: int, blobs: tuple[bytes, ...] = (), source: Source | None = None
    ) -> None:
        """``digest``: its name. ``size_bytes``: of its frames. ``blobs``: the SHA-256 of the blobs that its entries
        name. ``source``: reads it."""
        self.digest, self.count, self.size_bytes, self.blobs, self.source = digest, count, size_bytes, blobs, source

    def read(self, ahead: Sequence[Segment] = ()) -> Sequence[bytes]:
        """Returns its frames. ``ahead``: segments that will be read next. Raises HistoryElsewhere or Corrupt."""
        assert self.source is not None, "the segment was not read from a store"
        return self.source(self, ahead)


Source = Callable[[Segment, Sequence[Segment]], Sequence[bytes]]
"""Reads a segment. Raises HistoryElsewhere if it, or one of those that are read next, is in the archive only."""


@dataclass(frozen=True, slots=True, eq=False)
class SealedRun:
    """Consecutive entries of a segment."""

    segment: Segment
    skip: int
    count: int
    size_bytes: int

    @property
    def loose_bytes(self) -> int:
        """How many bytes of its frames are in memory."""
        return 0

    def frames(self, ahead: Sequence[Segment] = ()) -> Sequence[bytes]:
        """Returns its frames. Raises as ``Segment.read``."""
        found = self.segment.read(ahead)
        if self.skip == 0 and self.count == self.segment.count:
            return found
        return found[self.skip : self.skip + self.count]

    def part(self, start: int, stop: int) -> SealedRun:
        """Returns a part of it. Reads the segment, to learn the part's size."""
        size_bytes = sum(map(len, self.frames()[start:stop]))
        return SealedRun(self.segment, self.skip + start, stop - start, size_bytes)

    def count_same(self, at: int, other: Run, their_at: int) -> int:
        """Returns how many entries from a place on are those of another run from a place on."""
        if not isinstance(other, SealedRun) or self.segment.digest != other.segment.digest:
            return 0
        return min(self.count - at, other.count - their_at) if self.skip + at == other.skip + their_at else 0


@dataclass(frozen=True, slots=True, eq=False)
class LooseRun:
    """Consecutive entries in memory."""

    items: list[bytes]
    size_bytes: int

    @property
    def count(self) -> int:
        """How many entries it has."""
        return len(self.items)

    @property
    def loose_bytes(self) -> int:
        """How many bytes of its frames are in memory."""
        return self.size_bytes

    def frames(self, ahead: Sequence[Segment] = ()) -> Sequence[bytes]:
        """Returns its frames."""
        del ahead
        return self.items

    def part(self, start: int, stop: int) -> LooseRun:
        """Returns a part of it."""
        return loose_run(self.items[start:stop])

    def count_same(self, at: int, other: Run, their_at: int) -> int:
        """Returns how many entries from a place on are those of another run from a place on."""
        if not isinstance(other, LooseRun) or self.items is not other.items or at != their_at:
            return 0
        return self.count - at


def loose_run(items: list[bytes]) -> LooseRun:
    """Makes a run of frames in memory."""
    return LooseRun(items, sum(map(len, items)))


Run = SealedRun | LooseRun
SEGMENTS_AHEAD = 3
SEGMENT_OBJECTS = 8


class Runs:
    """The runs of a log, oldest first. Immutable."""

    __slots__ = ("_ends", "count", "each", "loose_bytes", "loose_count", "size_bytes")

    def __init__(self, each: Sequence[Run]) -> None:
        self.each = tuple(each)
        self._ends = list(accumulate(run.count for run in self.each))
        self.count = self._ends[-1] if self._ends else 0
        self.size_bytes = sum(run.size_bytes for run in self.each)
        self.loose_bytes = sum(run.loose_bytes for run in self.each)
        # A segment counts as a few entries.
        self.loose_count = sum(run.count if isinstance(run, LooseRun) else SEGMENT_OBJECTS for run in self.each)

    def find(self, position: int) -> tuple[int, int]:
        """Returns the number of the run that has an entry, and the place in it."""
        number = bisect_right(self._ends, position)
        return number, position - (self._ends[number - 1] if number else 0)

    def frames(self, start: int, stop: int) -> Iterator[bytes]:
        """Yields frames. Reads one segment after the other, each when its first frame is asked for."""
        if start >= stop:
            return
        number, at = self.find(start)
        left = stop - start
        while left:
            run = self.each[number]
            ahead = self._ahead(number, left - (run.count - at)) if isinstance(run, SealedRun) else ()
            shown = run.frames(ahead)[at : at + left]
            yield from shown
            left, at, number = left - len(shown), 0, number + 1

    def count_same(self, other: Runs, position: int) -> int:
        """Returns how many entries from a position on both have of the same segment, or in the same list."""
        (number, at), (their_number, their_at) = self.find(position), other.find(position)
        return self.each[number].count_same(at, other.each[their_number], their_at)

    def _ahead(self, number: int, count: int) -> Sequence[Segment]:
        found, at = list[Segment](), number + 1
        while count > 0 and len(found) < SEGMENTS_AHEAD and at < len(self.each):
            run = self.each[at]
            if isinstance(run, SealedRun):
                found.append(run.segment)
            count, at = count - run.count, at + 1
        return found

    def bytes_beside(self, other: Runs) -> int:
        """Returns the size of the runs of whose segments another log has none."""
        known = {segment.digest for segment in other.segments()}
        return sum(
            run.size_bytes for run in self.each if not isinstance(run, SealedRun) or run.segment.digest not in known
        )

    def segments(self) -> Iterator[Segment]:
        """Yields the segments."""
        return (run.segment for run in self.each if isinstance(run, SealedRun))


NO_RUNS = Runs(())


class Entries:
    """The framed values of a log, oldest first. Immutable.

    An append to the view that ends where the list of its tail ends grows the list, because older views do not read past
    their own end. An append to any other view copies the pointers first. ``size_bytes`` is the sum of the frames'
    lengths.
    """

    __slots__ = ("_items", "_start", "_stop", "runs", "size_bytes")

    def __init__(self, items: list[bytes], start: int, stop: int, size_bytes: int, runs: Runs = NO_RUNS) -> None:
        """``size_bytes``: of runs and tail."""
        self._items = items
        self._start = start
        self._stop = stop
        self.size_bytes = size_bytes
        self.runs = runs

    @classmethod
    def of(cls, values: Iterable[bytes]) -> Entries:
        """Makes entries of serialized Values."""
        return cls.of_frames([frame(value) for value in values])

    @classmethod
    def of_frames(cls, items: list[bytes], runs: Runs = NO_RUNS) -> Entries:
        """Makes entries of runs and the frames behind them."""
        return cls(items, 0, len(items), runs.size_bytes + sum(map(len, items)), runs)

    @property
    def loose_bytes(self) -> int:
        """How many bytes of the frames are in memory."""
        return self.size_bytes - self.runs.size_bytes + self.runs.loose_bytes

    @property
    def tail_count(self) -> int:
        """How many entries the tail has."""
        return self._stop - self._start

    def tail(self) -> list[bytes]:
        """Returns the frames of the tail, in a new list."""
        return self._items[self._start : self._stop]

    def newest_bytes(self, least_bytes: int) -> int:
        """Returns the size of the newest entries of the tail that have at least so many bytes, or of all of it."""
        found = 0
        for at in range(self._stop - 1, self._start - 1, -1):
            if found >= least_bytes:
                break
            found += len(self._items[at])
        return found

    def count_same(self, other: Entries, position: int) -> int:
        """Returns how many entries from a position on are the same, as far as can be told without reading them."""
        if position < self.runs.count and position < other.runs.count:
            return self.runs.count_same(other.runs, position)
        at, their_at = position - self.runs.count, position - other.runs.count
        if at < 0 or their_at < 0 or self._items is not other._items or self._start + at != other._start + their_at:
            return 0
        return min(self.tail_count - at, other.tail_count - their_at)

    def count_alike(self, other: Entries, position: int) -> int:
        """Returns how many entries from a position on are in one run of each, or in the tail."""
        return min(self._count_from(position), other._count_from(position))

    def _count_from(self, position: int) -> int:
        if position >= self.runs.count:
            return len(self) - position
        number, at = self.runs.find(position)
        return self.runs.each[number].count - at

    def __len__(self) -> int:
        return self.runs.count + self._stop - self._start

    def __iter__(self) -> Iterator[bytes]:
        return self.frames(0)

    def frames(self, start: int, stop: int | None = None) -> Iterator[bytes]:
        """Yields the frames from one position to another (None = the end). Segments are read when they are reached."""
        count = self.runs.count
        stop = len(self) if stop is None else stop
        if start < count:
            yield from self.runs.frames(start, min(stop, count))
        yield from self._items[self._start + max(start - count, 0) : self._start + max(stop - count, 0)]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Entries):
            return NotImplemented
        if self is other:
            return True
        if len(self) != len(other) or self.size_bytes != other.size_bytes:
            return False
        return next(differing(self, other, len(self)), None) is None

    __hash__ = None  # type: ignore[assignment]  # compared by content, which may be megabytes

    @overload
    def __getitem__(self, key: int) -> bytes: ...

    @overload
    def __getitem__(self, key: slice) -> list[bytes]: ...

    def __getitem__(self, key: int | slice) -> bytes | list[bytes]:
        """Returns one frame by its position, or a new list of consecutive ones. Reads the segments that have them."""
        if isinstance(key, slice):
            start, stop, step = key.indices(len(self))
            if step != 1:
                raise ValueError("entries are sliced with step 1 only")
            if start >= self.runs.count:
                start, stop = start - self.runs.count, stop - self.runs.count
                return self._items[self._start + start : self._start + max(start, stop)]
            return list(self.frames(start, max(start, stop)))
        position = range(len(self))[key]
        if position < self.runs.count:
            return next(self.runs.frames(position, position + 1))
        return self._items[self._start + position - self.runs.count]

    def size_after(self, count: int) -> int:
        """Returns about how many bytes the entries after the first ``count`` have: whole runs are counted."""
        if count >= self.runs.count:
            return self.size_bytes - self.runs.size_bytes
        number, _ = self.runs.find(count)
        return self.size_bytes - sum(run.size_bytes for run in self.runs.each[:number])

    def append_many(self, items: list[bytes]) -> Entries:
        """Returns these entries and ``items`` (framed) after them. O(items) for the newest view of a list."""
        draft = EntriesDraft(self)
        draft.append_many(items)
        return draft.seal()

    def replace(self, position: int, item: bytes) -> Entries:
        """Returns these entries with ``item`` at ``position``. Copies the pointers."""
        draft = EntriesDraft(self)
        draft.replace(position, item)
        return draft.seal()

    def drop_first(self, count: int) -> Entries:
        """Returns these entries without the first ``count``. O(count), but whole runs at once."""
        draft = EntriesDraft(self)
        draft.drop_first(count)
        return draft.seal()

    def keep_first(self, count: int) -> Entries:
        """Returns the first ``count`` of these entries. O(dropped), but whole runs at once."""
        draft = EntriesDraft(self)
        draft.keep_first(count)
        return draft.seal()

    def with_runs(self, runs: Runs) -> Entries:
        """Returns the same entries, of which the first are in these runs. The caller knows that they are the same."""
        moved = runs.count - self.runs.count
        left_bytes = self.size_bytes - runs.size_bytes
        items = self._items[self._start + moved : self._stop]
        return Entries(items, 0, len(items), runs.size_bytes + left_bytes, runs)

    def is_continued(self, other: Entries) -> bool:
        """Whether both have the same runs and views of one list that begin at the same place."""
        return self.runs is other.runs and self._items is other._items and self._start == other._start

    @property
    def loose_count(self) -> int:
        """How many objects hold the entries, roughly."""
        return self._stop - self._start + self.runs.loose_count


class EntriesDraft:
    """Entries while one diff changes them, at first those of ``base``. The pointers are copied at most once for any
    number of edits.

    The caller checks that counts and positions are in range. After ``seal`` the draft must not be used.
    """

    __slots__ = ("_is_stale", "_items", "_opened", "_private", "_runs", "_start", "_stop", "size_bytes")

    def __init__(self, base: Entries) -> None:
        self._items = base._items
        self._start = base._start
        self._stop = base._stop
        self._private = False  # True if no other view has this list
        self.size_bytes = base.size_bytes
        self._runs = base.runs
        # The lists of loose runs that no other view has, by their identity.
        self._opened: dict[int, list[bytes]] = {}
        self._is_stale = False  # True if the sizes of such runs have changed

    def __len__(self) -> int:
        return self._runs.count + self._stop - self._start

    def append_many(self, items: list[bytes]) -> None:
        """Adds framed values at the end."""
        if not self._private and not self._grow_shared(items):
            self._own()
        if self._private:
            self._items.extend(items)
        self._stop += len(items)
        self.size_bytes += sum(map(len, items))

    def replace(self, position: int, item: bytes) -> None:
        """Replaces a framed value."""
        if position < self._runs.count:
            self._replace_in_runs(position, item)
            return
        if not self._private:
            self._own()
        at = self._start + position - self._runs.count
        self.size_bytes += len(item) - len(self._items[at])
        self._items[at] = item

    def _replace_in_runs(self, position: int, item: bytes) -> None:
        number, at = self._runs.find(position)
        each = list(self._runs.each)
        run = each[number]
        items = self._opened.get(id(run.items)) if isinstance(run, LooseRun) else None
        if items is None:
            items = list(run.frames())
            each[number] = LooseRun(items, run.size_bytes)
            self._opened[id(items)], self._runs = items, Runs(each)
        self.size_bytes += len(item) - len(items[at])
        items[at], self._is_stale = item, True

    def _settle(self) -> None:
        """Adds up the sizes of the runs whose entries were replaced."""
        if self._is_stale:
            each = (run if isinstance(run, SealedRun) else loose_run(run.items) for run in self._runs.each)
            self._runs, self._is_stale = Runs(tuple(each)), False

    def drop_first(self, count: int) -> None:
        """Drops values at the start."""
        if self._runs.count:
            self._settle()
            count = self._drop_runs(count)
        self.size_bytes -= sum(map(len, self._items[self._start : self._start + count]))
        self._start += count

    def _drop_runs(self, count: int) -> int:
        """Drops values of the runs. Returns how many of the tail are to be dropped."""
        if count >= self._runs.count:
            left, runs = count - self._runs.count, NO_RUNS
        else:
            number, at = self._runs.find(count)
            each = list(self._runs.each[number:])
            if at:
                each[0] = each[0].part(at, each[0].count)
            left, runs = 0, Runs(each)
        self.size_bytes -= self._runs.size_bytes - runs.size_bytes
        self._runs = runs
        return left

    def keep_first(self, count: int) -> None:
        """Drops the values after the first ``count``."""
        self._settle()
        stop = self._start + max(count - self._runs.count, 0)
        self.size_bytes -= sum(map(len, self._items[stop : self._stop]))
        self._stop = stop
        if self._private:
            del self._items[stop:]
        if count < self._runs.count:
            number, at = self._runs.find(count)
            each = list(self._runs.each[: number + bool(at)])
            if at:
                each[-1] = each[-1].part(0, at)
            runs = Runs(each)
            self.size_bytes -= self._runs.size_bytes - runs.size_bytes
            self._runs = runs

    def seal(self) -> Entries:
        """Ends the draft and returns its entries."""
        self._settle()
        if len(self._items) > 2 * (self._stop - self._start) + _COMPACT_SLACK_ENTRIES:
            self._own()
        return Entries(self._items, self._start, self._stop, self.size_bytes, self._runs)

    def _grow_shared(self, items: list[bytes]) -> bool:
        # An empty view gets a list of its own, because its list may be that of EMPTY_ENTRIES, which all share.
        if self._start == self._stop:
            return False
        with _GROWING:
            if len(self._items) != self._stop:
                return False
            self._items.extend(items)
            return True

    def _own(self) -> None:
        self._items = self._items[self._start : self._stop]
        self._start, self._stop, self._private = 0, len(self._items), True


EMPTY_ENTRIES = Entries([], 0, 0, 0)


def differing(old: Entries, new: Entries, count: int) -> Iterator[tuple[int, bytes]]:
    """Yields position and new frame of each of the first ``count`` entries that differs. What both share is not read,
    and no more than a segment of each is in memory."""
    at = 0
    while at < count:
        same = old.count_same(new, at)
        if not same:
            stop = min(at + old.count_alike(new, at), count)
            for position, (one, two) in enumerate(zip(old.frames(at, stop), new.frames(at, stop), strict=True), at):
                if one != two:
                    yield position, two
            same = stop - at
        at += same
