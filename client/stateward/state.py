"""The state of an agent in the client's hands: slots, logs, and what changed in them since they were read.

Values stay encoded until they are looked at. What was handed out or put in is *held*; a save encodes what is held and
compares it with what is stored, so that edits in place are kept and the cost of a save follows what was touched. After
a save, plain dicts and lists that nobody else refers to are let go again (`_release`), so that an agent which appends
for ever does not pay for its past.

A `State` belongs to one thread of control. `collect` says what changed without changing anything; `rebase` moves the
state onto the version that a save made. Between the two nothing but appending is allowed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Self, overload

from stateward import values
from stateward.models import Checkpoint
from stateward.v1 import diff_pb2, state_pb2

SPLICE_MIN_BYTES = 4096
"""Slots below this are sent whole: a splice carries a 32-byte digest and saves little."""


@dataclass(frozen=True)
class Origin:
    """Where a state was read."""

    namespace: str
    thread: str
    branch: str


@dataclass
class Collected:
    """What a save sends, and what `rebase` needs when it was accepted."""

    diff: diff_pb2.Diff
    slots: dict[str, state_pb2.Value] = field(default_factory=dict)
    deleted_slots: set[str] = field(default_factory=set)
    logs: dict[str, CollectedLog] = field(default_factory=dict)


@dataclass
class CollectedLog:
    """What a log was at the moment it was collected: its end, and new encodings by index."""

    log: Log
    next_index: int
    entries: dict[int, state_pb2.Value]


class Slots(MutableMapping[str, Any]):
    """Named values. Reading a missing name is a KeyError; a value handed out may be edited in place."""

    def __init__(self, stored: dict[str, state_pb2.Value] | None = None, *, partial: bool = False) -> None:
        self._stored = stored or {}
        self._held: dict[str, Any] = {}
        self._deleted: set[str] = set()
        self._partial = partial

    def __getitem__(self, name: str) -> Any:
        if name not in self._held:
            if name in self._deleted or name not in self._stored:
                raise KeyError(f"{name} (this state is partial: was it asked for?)" if self._partial else name)
            self._held[name] = values.decode(self._stored[name], f"slots.{name}")
        return self._held[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._held[name] = value
        self._deleted.discard(name)

    def __delitem__(self, name: str) -> None:
        if name not in self:
            raise KeyError(name)
        self._held.pop(name, None)
        if name in self._stored:
            self._deleted.add(name)

    def __contains__(self, name: object) -> bool:
        return name in self._held or (name in self._stored and name not in self._deleted)

    def __iter__(self) -> Iterator[str]:
        yield from [name for name in self._stored if name not in self._deleted]
        yield from [name for name in self._held if name not in self._stored]

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"Slots({', '.join(self)})"

    def raw(self, name: str) -> values.RawValue:
        """The value as it is stored at this version, not decoded."""
        stored = self._stored[name]
        return values.RawValue(stored.media_type, stored.data)

    def _collect(self, collected: Collected) -> None:
        edits = collected.diff.edits
        for name in sorted(self._deleted):
            edits.add().delete_slot.slot = name
            collected.deleted_slots.add(name)
        for name in sorted(self._held):
            value, stored = self._held[name], self._stored.get(name)
            encoded = values.encode(value, f"slots.{name}")
            if stored is None:
                edits.append(diff_pb2.Edit(set_slot=diff_pb2.SetSlot(slot=name, value=encoded)))
            elif values.is_unchanged(encoded, stored):
                continue
            else:
                edits.append(_replace_slot(name, stored, encoded))
            collected.slots[name] = encoded

    def _rebase(self, collected: Collected) -> None:
        for name in collected.deleted_slots:
            self._stored.pop(name, None)
            self._deleted.discard(name)
        self._stored.update(collected.slots)
        _release(self._held)


class Log:
    """A sequence that mostly grows at its end.

    Positions count from 0 within what is held here, as in a list; `at(index)` reads by the index the store uses, which
    stays with an entry for ever, while trims at the start move the positions. The index of an entry that is not saved
    yet may still change. Entries handed out may be edited in place.
    """

    def __init__(
        self,
        name: str,
        entries: list[state_pb2.Value] | None = None,
        first_index: int = 0,
        *,
        rewritten_version: int = 0,
        numbered: bool = True,
        readable: bool = True,
        tail: bool = False,
    ) -> None:
        self.name = name
        self.rewritten_version = rewritten_version
        """The last version that replaced, cut or trimmed entries, as of the hydrate; 0 = only appends so far."""
        self._entries: list[state_pb2.Value | None] = list(entries or ())  # None = not saved yet: its object is held
        self._held: dict[int, Any] = {}  # by index
        self._first = first_index
        self._stored_first = first_index
        self._stored_next = first_index + len(self._entries)
        self._cut = self._stored_next  # entries from here on are new
        self._numbered = numbered  # False: made on top of a state in which a log of this name may have been deleted
        self._readable = readable  # False: left out of a partial hydrate, so only appending is possible
        self._tail = tail  # True: hydrated as the last n entries, so the stored log may begin before this one
        self._replaces = False  # True: the stored log is deleted first
        self._trim_before = 0  # index before which the stored log is to be trimmed; 0 = not

    @property
    def first_index(self) -> int:
        """Index of the first entry that is held."""
        return self._first

    @property
    def next_index(self) -> int:
        """Index that the next entry gets."""
        return self._first + len(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Any]:
        self._require_readable()
        for position in range(len(self._entries)):
            yield self._read(position)

    def __reversed__(self) -> Iterator[Any]:
        self._require_readable()
        for position in reversed(range(len(self._entries))):
            yield self._read(position)

    @overload
    def __getitem__(self, position: int) -> Any: ...
    @overload
    def __getitem__(self, position: slice) -> list[Any]: ...
    def __getitem__(self, position: int | slice) -> Any:
        self._require_readable()
        if isinstance(position, slice):
            return [self._read(each) for each in range(*position.indices(len(self._entries)))]
        return self._read(self._checked(position))

    def __setitem__(self, position: int, value: Any) -> None:
        self._require_readable()
        self._held[self._first + self._checked(position)] = value

    def __repr__(self) -> str:
        return f"Log({self.name!r}, {len(self)} entries from index {self._first})"

    def __eq__(self, other: object) -> bool:
        """Logs and lists are equal to what has the same entries."""
        return list(self) == list(other) if isinstance(other, (Log, list)) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def at(self, index: int) -> Any:
        """The entry with this index; IndexError if it is not held."""
        return self[self._checked_index(index)]

    def raw(self, position: int) -> values.RawValue:
        """A saved entry as it is stored, not decoded."""
        stored = self._entries[self._checked(position)]
        if stored is None:
            raise IndexError(f"logs.{self.name}[{position}] is not saved yet")
        return values.RawValue(stored.media_type, stored.data)

    def __iadd__(self, entries: Iterable[Any]) -> Self:
        self.extend(entries)
        return self

    def append(self, value: Any) -> None:
        """Adds an entry at the end.

        Objects that are neither dict nor list (models, messages) are compared at every later save of this State, as
        they cannot be let go without changing their type; loops that run for long do better to append dicts.
        """
        self._held[self.next_index] = value
        self._entries.append(None)

    def extend(self, entries: Iterable[Any]) -> None:
        """Adds entries at the end."""
        for value in entries:
            self.append(value)

    def pop(self) -> Any:
        """Takes the last entry off and returns it; IndexError if there is none."""
        value = self[-1]
        self._drop_from(self.next_index - 1)
        return value

    def clear(self) -> None:
        """Drops all entries. Their indexes are not used again."""
        self.trim(keep_last=0)

    def trim(
        self, *, keep_last: int | None = None, before_index: int | None = None, from_index: int | None = None
    ) -> None:
        """Drops entries: all but the last so many, those before an index, or those from an index on. Give one.

        Indexes dropped at the start are not used again; those dropped at the end are.
        """
        self._require_readable()
        if sum(each is not None for each in (keep_last, before_index, from_index)) != 1:
            raise TypeError("trim takes exactly one of keep_last, before_index and from_index")
        if from_index is not None:
            self._drop_from(self._checked_end(from_index))
        elif before_index is not None:
            self._drop_before(self._checked_end(before_index))
        else:
            assert keep_last is not None
            if keep_last < 0:
                raise ValueError("keep_last is below 0")
            self._drop_before(self.next_index - keep_last)

    def _read(self, position: int) -> Any:
        index = self._first + position
        if index not in self._held:
            stored = self._entries[position]
            assert stored is not None
            self._held[index] = values.decode(stored, f"logs.{self.name}[{position}]")
        return self._held[index]

    def _checked(self, position: int) -> int:
        found = position + len(self._entries) if position < 0 else position
        if not 0 <= found < len(self._entries):
            raise IndexError(f"logs.{self.name} has {len(self._entries)} entries, no position {position}")
        return found

    def _checked_index(self, index: int) -> int:
        if not self._first <= index < self.next_index:
            raise IndexError(f"logs.{self.name} holds indexes {self._first} to {self.next_index - 1}, not {index}")
        return index - self._first

    def _checked_end(self, index: int) -> int:
        if not 0 <= index <= self.next_index:
            raise IndexError(f"logs.{self.name} ends at index {self.next_index}, before {index}")
        return index

    def _require_readable(self) -> None:
        if not self._readable:
            raise ValueError(f"log {self.name!r} was left out of this partial state; it can only be appended to")

    def _drop_from(self, index: int) -> None:
        if index < self._first:
            index = self._first = index if self._tail else self._first
        del self._entries[index - self._first :]
        self._cut = min(self._cut, index)
        self._trim_before = min(self._trim_before, self._cut)
        self._held = {at: value for at, value in self._held.items() if at < index}

    def _drop_before(self, index: int) -> None:
        if index > self._first:
            # New entries have no index of their own yet: they move up to where the stored ones end.
            shift = max(index - self._cut, 0)
            del self._entries[: index - self._first]
            self._held = {at - shift: value for at, value in self._held.items() if at >= index}
            self._first = self._trim_before = index - shift
        elif self._tail:
            self._trim_before = max(self._trim_before, index)

    def _needs_numbers(self) -> bool:
        """Whether a save would name indexes that this log only guesses."""
        changes_stored = self._cut < self._stored_next or self._trim_before or any(at < self._cut for at in self._held)
        return not self._numbered and self._stored_next > self._stored_first and bool(changes_stored)

    def _renumber(self, stored_next: int) -> None:
        """Moves all indexes so that the stored entries end at `stored_next`."""
        shift = stored_next - self._stored_next
        self._held = {at + shift: value for at, value in self._held.items()}
        self._trim_before += shift if self._trim_before else 0
        self._first += shift
        self._stored_first += shift
        self._stored_next += shift
        self._cut += shift
        self._numbered = True

    def _collect(self, collected: Collected) -> None:
        edits, name = collected.diff.edits, self.name
        entries: dict[int, state_pb2.Value] = {}
        if self._replaces:
            edits.add().delete_log.log = name
        for index in sorted(self._held):
            position = index - self._first
            stored, encoded = self._entries[position], values.encode(self._held[index], f"logs.{name}[{position}]")
            if stored is None:
                entries[index] = encoded
            elif not values.is_unchanged(encoded, stored):
                entries[index] = encoded
                edits.append(_edit(replace_entry=diff_pb2.ReplaceEntry(log=name, index=index, value=encoded)))
        if self._cut < self._stored_next:
            edits.append(_edit(trim_log=diff_pb2.TrimLog(log=name, from_index=self._cut)))
        if self._trim_before:
            edits.append(_edit(trim_log=diff_pb2.TrimLog(log=name, before_index=self._trim_before)))
        added = [entries[index] for index in range(self._cut, self.next_index)]
        if added:
            edits.append(_edit(append=diff_pb2.Append(log=name, entries=added)))
        collected.logs[name] = CollectedLog(self, self.next_index, entries)

    def _collect_whole(self, collected: CollectedLog) -> state_pb2.Log:
        entries = state_pb2.Log().entries
        for index in range(self._first, collected.next_index):
            stored = self._entries[index - self._first]
            entries.append(collected.entries[index] if stored is None else collected.entries.get(index, stored))
        return state_pb2.Log(entries=entries)

    def _rebase(self, collected: CollectedLog) -> None:
        for index, encoded in collected.entries.items():
            self._entries[index - self._first] = encoded
        self._stored_first, self._stored_next, self._cut = self._first, collected.next_index, collected.next_index
        self._trim_before, self._replaces = 0, False
        _release(self._held, [index for index in self._held if index < self._cut])


class Logs(Mapping[str, Log]):
    """Named logs. A missing name gives an empty log, which is stored once something is appended to it."""

    def __init__(self, stored: dict[str, Log] | None = None, *, partial: bool = False, numbered: bool = True) -> None:
        self._logs = stored or {}
        self._stored = set(self._logs)
        self._partial = partial
        self._numbered = numbered  # whether a log made from here on begins at index 0 for sure

    def __getitem__(self, name: str) -> Log:
        if name not in self._logs:
            self._logs[name] = Log(name, numbered=self._numbered, readable=not self._partial)
        return self._logs[name]

    def __setitem__(self, name: str, entries: Iterable[Any]) -> None:
        """Replaces all entries of a log."""
        log = self[name]
        if entries is not log:  # `logs[name] += …` ends up here with the log itself
            new = list(entries)
            log.clear()
            log.extend(new)

    def __delitem__(self, name: str) -> None:
        """Removes a log. One of the same name made later continues its indexes."""
        if name not in self:
            raise KeyError(name)
        gone = self._logs.pop(name)
        if name in self._stored:
            heir = Log(name, first_index=gone._stored_next, numbered=gone._numbered)
            heir._replaces = True
            self._logs[name] = heir

    def __contains__(self, name: object) -> bool:
        log = self._logs.get(name) if isinstance(name, str) else None
        return log is not None and (len(log) > 0 or (name in self._stored and not log._replaces))

    def __iter__(self) -> Iterator[str]:
        return iter([name for name in self._logs if name in self])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"Logs({', '.join(f'{name}: {len(self[name])}' for name in self)})"

    def _rebase(self, collected: Collected) -> None:
        for each in collected.logs.values():
            deleted = each.log._replaces and each.next_index == each.log.first_index
            each.log._rebase(each)
            if deleted:
                self._stored.discard(each.log.name)
            elif each.log.name in self._stored or each.next_index > each.log.first_index:
                self._stored.add(each.log.name)
        self._numbered = False  # a log deleted by an earlier version is not seen from here


class State:
    """The state of a thread at one version, to be read, changed and saved.

    `version` 0 is the empty state of a thread (or branch) that does not exist yet. `partial` states were hydrated in
    part; what they leave out is not touched by a save.
    """

    def __init__(
        self,
        *,
        slots: dict[str, state_pb2.Value] | None = None,
        logs: dict[str, Log] | None = None,
        checkpoint: Checkpoint | None = None,
        partial: bool = False,
        origin: Origin | None = None,
        pinned: bool = False,
    ) -> None:
        """Users get states from `hydrate`; `State()` is an empty one for a thread that does not exist yet."""
        self.slots = Slots(slots, partial=partial)
        self.logs = Logs(logs, partial=partial, numbered=checkpoint is None)
        self.checkpoint = checkpoint
        self.partial = partial
        self.origin = origin
        self.pinned = pinned
        """True where a version was asked for, which need not be the head of its branch."""
        self.saving = False
        """True while a save of this state is under way."""

    @property
    def version(self) -> int:
        """The version this state continues from; 0 = none yet."""
        return self.checkpoint.version if self.checkpoint else 0

    @property
    def digest(self) -> bytes:
        """History digest of that version; empty = none yet."""
        return self.checkpoint.digest if self.checkpoint else b""

    def __repr__(self) -> str:
        return f"State(version={self.version}, {self.slots!r}, {self.logs!r})"

    def collect(self) -> Collected:
        """What changed since `version`. Changes nothing; TypeError or ValueError names what cannot be stored."""
        collected = Collected(diff_pb2.Diff())
        self.slots._collect(collected)
        for name in sorted(self.logs._logs):
            self.logs._logs[name]._collect(collected)
        return collected

    def whole(self, collected: Collected) -> state_pb2.State:
        """The whole state, as `collected`; ValueError for a partial one, which would delete what it leaves out."""
        if self.partial:
            raise ValueError("overwrite needs the whole state, and this one is partial")
        slots = {name: collected.slots.get(name) or self.slots._stored[name] for name in self.slots}
        logs = {name: each.log._collect_whole(each) for name, each in collected.logs.items() if name in self.logs}
        return state_pb2.State(slots=slots, logs=logs)

    def logs_without_numbers(self) -> list[Log]:
        """Logs whose indexes must be learnt from the daemon before the changes can be said."""
        return [log for log in self.logs._logs.values() if log._needs_numbers()]

    def rebase(self, collected: Collected, checkpoint: Checkpoint, origin: Origin, *, whole: bool) -> None:
        """Moves onto the version that was made from `collected`; what was changed since then stays a change."""
        self.slots._rebase(collected)
        self.logs._rebase(collected)
        if whole:  # the stored logs may have begun elsewhere
            for log in self.logs._logs.values():
                log._numbered = False
        self.checkpoint, self.origin, self.pinned = checkpoint, origin, False


def _edit(**edit: Any) -> diff_pb2.Edit:
    return diff_pb2.Edit(**edit)


def _replace_slot(name: str, stored: state_pb2.Value, encoded: state_pb2.Value) -> diff_pb2.Edit:
    """SetSlot, or SpliceSlot where that takes at most half the bytes."""
    old, new = stored.data, encoded.data
    if stored.media_type == encoded.media_type and min(len(old), len(new)) >= SPLICE_MIN_BYTES:
        prefix = _common_prefix(old, new)
        suffix = _common_prefix(old[prefix:][::-1], new[prefix:][::-1])
        insert = new[prefix : len(new) - suffix]
        if len(insert) <= len(new) // 2:
            splice = diff_pb2.Splice(offset=prefix, delete=len(old) - prefix - suffix, insert=insert)
            base = sha256(old).digest()
            return _edit(splice_slot=diff_pb2.SpliceSlot(slot=name, base_sha256=base, splices=[splice]))
    return _edit(set_slot=diff_pb2.SetSlot(slot=name, value=encoded))


def _common_prefix(a: bytes, b: bytes) -> int:
    """Length of the common prefix, by bisection: each step compares at memcmp's speed, and all steps together the
    whole length about once."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _references(holder: Any, key: Any) -> int:
    value = holder[key]
    return sys.getrefcount(value)


# What `_references` says of an object that only its holder refers to: differs between versions of the interpreter.
_UNSHARED_REFERENCES = _references({0: list(range(0))}, 0)
_COUNTS_REFERENCES = sys.implementation.name == "cpython" and getattr(sys, "_is_gil_enabled", lambda: True)()


def _is_shared(holder: Any, key: Any) -> bool:
    """Whether somebody besides `holder` can still reach, and so edit, the object or a part of it."""
    if values.is_atom(holder[key]):
        return False
    if _references(holder, key) > _UNSHARED_REFERENCES:
        return True
    kind = type(holder[key])
    if kind is dict:
        return any(_is_shared(holder[key], each) for each in holder[key])
    if kind is list:
        return any(_is_shared(holder[key], each) for each in range(len(holder[key])))
    return True


def _release(held: dict[Any, Any], keys: Iterable[Any] | None = None) -> None:
    """Forgets saved objects that decode to the same again and that nobody else holds.

    Without this, every entry ever appended would be encoded again by each save of a long run. An object that somebody
    still refers to stays held, so that an edit of it after the save is found by the next one.
    """
    for key in list(held if keys is None else keys):
        if values.is_atom(held[key]) or (_COUNTS_REFERENCES and not _is_shared(held, key)):
            del held[key]
