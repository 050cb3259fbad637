"""One log of a state: a sequence of values that mostly grows at its end.

A log holds the stored entries in their stored form, followed by the entries that were added since. Stored entries that
were read or replaced are *watched*: a save encodes them again and compares. So the cost of a save depends on what was
added and read, not on the length of the log.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Self, overload

from stateward import values
from stateward._frames import at_the_caller, hide_frames
from stateward._state.gate import Gate
from stateward.v1 import diff_pb2, state_pb2

_UNREAD = object()


_TEXTS = (str, bytes, bytearray, memoryview)


def entries_of(log: str, entries: Any) -> Iterable[Any]:
    """Returns the entries that a log is to get. Raises TypeError for anything but several: also for a text or bytes,
    which would become one entry for each character."""
    if isinstance(entries, _TEXTS) or not isinstance(entries, Iterable):
        raise TypeError(f"a log takes a list of entries, not {entries!r:.100}; one entry: logs[{log!r}].append(…)")
    return entries


def _whole(index: Any, name: str) -> int:
    try:
        return operator.index(index)
    except TypeError:
        raise TypeError(f"{name} takes a whole number, not {index!r:.100}") from None


@dataclass
class UnsavedLog:
    """What changed in one log."""

    log: Log
    watched: list[int]
    """Indexes of the stored entries that were encoded to look for changes."""
    replaced: dict[int, state_pb2.Value]
    """The new encodings of changed entries, by index."""
    added: list[state_pb2.Value]


class Log:
    """A sequence that mostly grows at its end.

    Positions count from 0 at the first entry that is held here, as in a list. `at(index)` reads by the index that the
    daemon uses: an entry keeps its index for ever, while a trim at the start changes the positions. The index of an
    entry that is not saved yet may change. `State` says how long an entry may be edited in place.
    """

    def __init__(
        self,
        name: str,
        entries: Iterable[state_pb2.Value] = (),
        first_index: int = 0,
        *,
        rewritten_version: int = 0,
        numbered: bool = True,
        readable: bool = True,
        tail: bool = False,
        gate: Gate | None = None,
    ) -> None:
        self.name = name
        self.rewritten_version = rewritten_version
        """The last version, at the time of the hydrate, that replaced or trimmed entries; 0 = only appends so far."""
        self._stored = list(entries)  # without those that were dropped
        self._added: list[Any] = []
        self._watched: dict[int, Any] = {}  # stored entries that were read or replaced since the last save, by index
        self._first = first_index
        self._stored_first = first_index
        self._stored_next = first_index + len(self._stored)
        self._numbered = numbered  # False: the indexes are guesses, as a log of this name may have been deleted before
        self._readable = readable  # False: a partial hydrate left the log out, so it can only be appended to
        self._tail = tail  # True: hydrated as the last n entries, so the stored log may begin before this one
        self._replaces = False  # True: the save deletes the stored log first
        self._trim_before = 0  # the save trims the stored log before this index; 0 = it does not
        self._is_rewritten = False  # True: a save of this state rewrote the stored log
        self._gate = gate or Gate()

    @property
    def _is_as_stored(self) -> bool:
        """Whether this log still has the stored entries of its version, with their true indexes."""
        is_whole = (self._first, self._cut) == (self._stored_first, self._stored_next)
        return is_whole and self._numbered and not (self._tail or self._replaces or self._is_rewritten)

    @property
    def first_index(self) -> int:
        """Index of the first entry that is held. A log that was deleted goes on with the index after its last one. One
        that a partial hydrate left out counts from 0 until the next hydrate, which has the true index."""
        return self._first

    @property
    def next_index(self) -> int:
        """Index of the next entry to be appended; see `first_index`."""
        return self._cut + len(self._added)

    @property
    def _cut(self) -> int:
        """Index of the first entry that is not stored."""
        return self._first + len(self._stored)

    def __len__(self) -> int:
        return len(self._stored) + len(self._added)

    def __iter__(self) -> Iterator[Any]:
        try:
            self._require_readable()
            for position in range(len(self)):
                yield self._read(position)
        except Exception as error:
            hide_frames(error)
            raise

    @overload
    def __getitem__(self, position: int) -> Any: ...
    @overload
    def __getitem__(self, position: slice) -> list[Any]: ...
    def __getitem__(self, position: int | slice) -> Any:
        try:
            self._require_readable()
            if isinstance(position, slice):
                return [self._read(each) for each in range(len(self))[position]]
            return self._read(self._checked(position))
        except Exception as error:
            hide_frames(error)
            raise

    def __setitem__(self, position: int, value: Any) -> None:
        try:
            self._require_readable()
            self._gate.require_open()
            position = self._checked(position)
            if position < len(self._stored):
                self._watched[self._first + position] = value
            else:
                self._added[position - len(self._stored)] = value
        except Exception as error:
            hide_frames(error)
            raise

    def __repr__(self) -> str:
        return f"Log({self.name!r}, {len(self)} entries from index {self._first})"

    @at_the_caller
    def __eq__(self, other: object) -> bool:
        """A log equals a log or a list that has the same entries."""
        return list(self) == list(other) if isinstance(other, (Log, list)) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __iadd__(self, entries: Iterable[Any]) -> Self:
        try:
            self.extend(entries)
        except Exception as error:
            hide_frames(error)
            raise
        return self

    def at(self, index: int) -> Any:
        """Returns the entry with this index. Raises IndexError if the log does not hold it."""
        try:
            if not self._first <= _whole(index, "index") < self.next_index:
                raise IndexError(f"logs.{self.name} holds indexes {self._first} to {self.next_index - 1}, not {index}")
            self._require_readable()
            return self._read(index - self._first)
        except Exception as error:
            hide_frames(error)
            raise

    @at_the_caller
    def raw(self, position: int) -> values.RawValue:
        """Returns a saved entry as it is stored, not decoded. A save does not compare it."""
        self._require_readable()
        position = self._checked(position)
        if position >= len(self._stored):
            raise IndexError(f"logs.{self.name}[{position}] is not saved yet")
        return values.raw(self._stored[position], self._gate.blobs)

    def append(self, value: Any) -> None:
        """Adds an entry at the end. The next save stores the entry as it is then; later edits of it change nothing."""
        self._added.append(value)

    def extend(self, entries: Iterable[Any]) -> None:
        """Adds entries at the end."""
        try:
            is_several = not isinstance(entries, _TEXTS) and hasattr(entries, "__iter__")
            self._added.extend(entries if is_several else entries_of(self.name, entries))
        except Exception as error:
            hide_frames(error)
            raise

    @at_the_caller
    def pop(self) -> Any:
        """Removes the last entry and returns it. Raises IndexError if the log is empty."""
        self._require_readable()
        value = self._read(self._checked(-1))
        self._drop_from(self.next_index - 1)
        return value

    @at_the_caller
    def clear(self) -> None:
        """Removes all entries. Their indexes are not used again."""
        self.trim(keep_last=0)

    def trim(
        self, *, keep_last: int | None = None, before_index: int | None = None, from_index: int | None = None
    ) -> None:
        """Removes all entries but the last `keep_last`, those before `before_index`, or those from `from_index` on.

        Give exactly one of the three, otherwise TypeError is raised. Indexes that are removed at the start are not used
        again; indexes that are removed at the end are.
        """
        try:
            self._require_readable()
            if sum(each is not None for each in (keep_last, before_index, from_index)) != 1:
                raise TypeError("trim takes exactly one of keep_last, before_index and from_index")
            if from_index is not None:
                self._drop_from(self._checked_end(_whole(from_index, "from_index")))
            elif before_index is not None:
                self._drop_before(self._checked_end(_whole(before_index, "before_index")))
            else:
                assert keep_last is not None
                if _whole(keep_last, "keep_last") < 0:
                    raise ValueError("keep_last is below 0")
                self._drop_before(self.next_index - keep_last)
        except Exception as error:
            hide_frames(error)
            raise

    def _assign(self, entries: list[Any]) -> None:
        if self._tail:  # the entries that are not held here go, too
            self.clear()
        self.trim(from_index=min(self._first + len(entries), self.next_index))
        for position in range(len(self)):
            self[position] = entries[position]
        self.extend(entries[len(self) :])

    def _read(self, position: int) -> Any:
        stored, index = self._stored, self._first + position
        if position >= len(stored):
            return self._added[position - len(stored)]
        found = self._watched.get(index, _UNREAD)
        if found is _UNREAD:
            found = values.decode_json(stored[position])
            if found is values.OTHER:
                found = values.decode(stored[position], f"logs.{self.name}[{position}]", self._gate.blobs)
            self._watched[index] = found
        return found

    def _checked(self, position: int) -> int:
        try:
            return range(len(self._stored) + len(self._added))[position]
        except IndexError:
            raise IndexError(f"logs.{self.name} has {len(self)} entries, no position {position}") from None
        except TypeError:
            raise TypeError(f"a position in logs.{self.name} is a whole number, not {position!r:.100}") from None

    def _checked_end(self, index: int) -> int:
        if not 0 <= index <= self.next_index:
            raise IndexError(f"logs.{self.name} ends at index {self.next_index}, before {index}")
        return index

    def _require_readable(self) -> None:
        if not self._readable:
            raise ValueError(f"log {self.name!r} was left out of this partial state; it can only be appended to")

    def _drop_from(self, index: int) -> None:
        self._gate.require_open()
        if index < self._first:
            index = self._first = index if self._tail else self._first
        del self._added[max(index - self._cut, 0) :]
        del self._stored[index - self._first :]
        self._trim_before = min(self._trim_before, self._cut)
        self._watched = {at: value for at, value in self._watched.items() if at < index}

    def _drop_before(self, index: int) -> None:
        self._gate.require_open()
        if index > self._first:
            # New entries have no fixed index yet: those that stay begin where the stored ones end.
            del self._added[: max(index - self._cut, 0)]
            first = min(index, self._cut)
            if first > self._first or self._tail:  # otherwise there may be no stored log to trim
                self._trim_before = first
            del self._stored[: first - self._first]
            self._first = first
            self._watched = {at: value for at, value in self._watched.items() if at >= first}
        elif self._tail:
            self._trim_before = max(self._trim_before, index)

    def _needs_numbers(self) -> bool:
        """Whether a save would name indexes that are only guesses."""
        if self._numbered or self._stored_next == self._stored_first:
            return False
        return self._cut < self._stored_next or self._trim_before > 0 or bool(self._watched)

    def _renumber(self, stored_next: int) -> None:
        """Changes all indexes so that the stored entries end at `stored_next`."""
        shift = stored_next - self._stored_next
        self._watched = {at + shift: value for at, value in self._watched.items()}
        self._trim_before += shift if self._trim_before else 0
        self._first += shift
        self._stored_first += shift
        self._stored_next += shift
        self._numbered = True

    def _collect(self, diff: diff_pb2.Diff, take: Callable[[state_pb2.Value], state_pb2.Value]) -> UnsavedLog:
        """Adds the log's edits to `diff`. `take` returns the value to send for an encoded one."""
        edits, name = diff.edits, self.name
        if self._replaces:
            edits.add().delete_log.log = name
        replaced: dict[int, state_pb2.Value] = {}
        for index in sorted(self._watched):
            position = index - self._first
            encoded = values.encode(self._watched[index], f"logs.{name}[{position}]")
            if not values.is_unchanged(encoded, self._stored[position]):
                encoded = take(encoded)
                edit = edits.add().replace_entry
                edit.log, edit.index = name, index
                edit.value.CopyFrom(encoded)
                replaced[index] = encoded
        if self._cut < self._stored_next:
            edits.add(trim_log=diff_pb2.TrimLog(log=name, from_index=self._cut))
        if self._trim_before:
            edits.add(trim_log=diff_pb2.TrimLog(log=name, before_index=self._trim_before))
        start = len(self._stored)
        added = [take(values.encode(value, f"logs.{name}[{start + at}]")) for at, value in enumerate(self._added)]
        if added:
            append = edits.add().append
            append.log = name
            append.entries.extend(added)
        return UnsavedLog(self, list(self._watched), replaced, added)

    def _whole(self, unsaved: UnsavedLog) -> state_pb2.Log:
        kept = (unsaved.replaced.get(index, stored) for index, stored in enumerate(self._stored, self._first))
        return state_pb2.Log(entries=[*kept, *unsaved.added])

    def _rebase(self, unsaved: UnsavedLog) -> None:
        is_trimmed = self._trim_before > 0 or self._cut < self._stored_next
        self._is_rewritten |= is_trimmed or self._replaces or bool(unsaved.replaced)
        for index, encoded in unsaved.replaced.items():
            self._stored[index - self._first] = encoded
        self._stored += unsaved.added
        del self._added[: len(unsaved.added)]
        for index in unsaved.watched:
            del self._watched[index]
        self._stored_first, self._stored_next = self._first, self._cut
        self._trim_before, self._replaces = 0, False
