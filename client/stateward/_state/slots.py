"""The slots of a state: named values, each replaced as a whole."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, MutableMapping
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from stateward import values
from stateward._frames import at_the_caller, hide_frames
from stateward._state.gate import Gate
from stateward._state.unsaved import Unsaved
from stateward.v1 import diff_pb2, state_pb2

NAMES_SHOWN = 12
SPLICE_MIN_BYTES = 4096
"""Smaller slots are sent whole: a splice carries a 32-byte digest and saves little."""


class MissingSlot(KeyError):
    """There is no slot of this name; the message names those that there are."""

    __module__ = "stateward.state"  # the name in a traceback; that of this module is private

    def __init__(self, name: str, there: Iterable[str] = ()) -> None:
        super().__init__(name)
        self._there = there  # listed when the message is printed, because `slots.get` catches the error

    def __str__(self) -> str:
        names = list(self._there)
        more = f" and {len(names) - NAMES_SHOWN:,} more" if len(names) > NAMES_SHOWN else ""
        there = f"the slots are {', '.join(names[:NAMES_SHOWN])}{more}" if names else "there are no slots"
        return f"{self.args[0]!r}; {there}"


def suggest(name: str) -> str:
    """Returns the expression for a slot that somebody wrote as an attribute."""
    return f'state.slots["{name}"]'


class Slots(MutableMapping[str, Any]):
    """Named values. Reading a missing name raises KeyError. `State` says how long a value may be edited in place."""

    def __init__(
        self,
        stored: dict[str, state_pb2.Value] | None = None,
        *,
        partial: bool = False,
        asked: Collection[str] = (),
        gate: Gate | None = None,
    ) -> None:
        self._stored = stored or {}
        self._watched: dict[str, Any] = {}  # values that were read or set since the last save
        self._deleted: set[str] = set()
        self._ephemeral: tuple[str, ...] = ()  # names, and prefixes that end in "/"
        self._partial = partial
        self._asked = asked  # a partial state's hydrate asked for these: one that is missing does not exist
        self._gate = gate or Gate()

    def __getitem__(self, name: str) -> Any:
        try:
            if name not in self._watched:
                if name in self._deleted or name not in self._stored:
                    if self._is_unread(name):
                        raise KeyError(f"{name} (this partial state was hydrated without it)")
                    raise MissingSlot(name, self)
                self._watched[name] = values.decode(self._stored[name], f"slots.{name}", self._gate.blobs)
            return self._watched[name]
        except Exception as error:
            hide_frames(error)
            raise

    def get(self, name: str, default: Any = None) -> Any:
        """Returns the value of a slot, or `default` if there is none."""
        try:
            if name in self._watched:
                return self._watched[name]
            if name not in self:  # an error would take as long as ten reads
                return default
            return self[name]
        except Exception as error:
            hide_frames(error)
            raise

    def __setitem__(self, name: str, value: Any) -> None:
        try:
            if not isinstance(name, str):
                raise TypeError(f"the name of a slot is a text, not {name!r:.100}")
            if type(value) is int and isinstance(self._watched.get(name), values.Number):
                value = values.Number(value)  # while it is not saved, no stored value tells that the slot has a number
            self._watched[name] = value
            self._deleted.discard(name)
        except Exception as error:
            hide_frames(error)
            raise

    if not TYPE_CHECKING:  # a type checker refuses the assignment itself, unless it sees this method

        def __setattr__(self, name: str, value: Any) -> None:
            try:
                if not name.startswith("_"):
                    raise AttributeError(
                        f"slots have no attribute {name!r}, and would not save it; use {suggest(name)}"
                    )
                super().__setattr__(name, value)
            except Exception as error:
                hide_frames(error)
                raise

    @at_the_caller
    def __delitem__(self, name: str) -> None:
        if name not in self:
            raise MissingSlot(name, self)
        self._gate.require_open()
        self._watched.pop(name, None)
        if name in self._stored:
            self._deleted.add(name)

    def __contains__(self, name: object) -> bool:
        return name in self._watched or (name in self._stored and name not in self._deleted)

    def __iter__(self) -> Iterator[str]:
        yield from [name for name in self._stored if name not in self._deleted]
        yield from [name for name in self._watched if name not in self._stored]

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"Slots({', '.join(self)})"

    @at_the_caller
    def raw(self, name: str) -> values.RawValue:
        """Returns the value as this version stores it, not decoded. A save does not compare it."""
        if name not in self._stored:
            raise MissingSlot(name, self._stored)
        return values.raw(self._stored[name], self._gate.blobs)

    def _is_unread(self, name: str) -> bool:
        """Whether the thread may have a slot of this name that the partial state was hydrated without."""
        return self._partial and name not in self and name not in self._deleted and name not in self._asked

    def _is_ephemeral(self, name: str) -> bool:
        return any(name.startswith(each) if each.endswith("/") else name == each for each in self._ephemeral)

    def _keep_out(self, ephemeral: tuple[str, ...]) -> None:
        self._ephemeral = ephemeral
        if ephemeral:
            self._stored = {name: value for name, value in self._stored.items() if not self._is_ephemeral(name)}

    def _collect(self, unsaved: Unsaved) -> None:
        edits = unsaved.diff.edits
        for name in sorted(self._deleted):
            edits.add().delete_slot.slot = name
            unsaved.deleted_slots.add(name)
        for name in sorted(self._watched):
            if self._is_ephemeral(name):
                continue
            value, stored = self._watched[name], self._stored.get(name)
            encoded = values.encode_slot(value, f"slots.{name}", stored)
            unsaved.watched_slots[name] = value
            if stored is not None and values.is_unchanged(encoded, stored):
                continue
            edit = edits.add()
            if stored is None or not _splice_slot(edit, name, stored, encoded):
                encoded = unsaved.take(encoded)
                edit.set_slot.slot = name
                edit.set_slot.value.CopyFrom(encoded)
            unsaved.slots[name] = encoded

    def _rebase(self, unsaved: Unsaved) -> None:
        for name in unsaved.deleted_slots:
            self._stored.pop(name, None)
        self._deleted -= unsaved.deleted_slots
        self._stored.update(unsaved.slots)
        for name, value in unsaved.watched_slots.items():
            if self._watched[name] is value:  # otherwise it was set again while the save was under way
                del self._watched[name]


def _splice_slot(edit: diff_pb2.Edit, name: str, stored: state_pb2.Value, encoded: state_pb2.Value) -> bool:
    """Makes `edit` a SpliceSlot and returns True if at least half the bytes are saved."""
    old, new = stored.data, encoded.data
    if stored.media_type == encoded.media_type and min(len(old), len(new)) >= SPLICE_MIN_BYTES:
        prefix = _common_prefix(old, new)
        suffix = _common_prefix(old[prefix:][::-1], new[prefix:][::-1])
        insert = new[prefix : len(new) - suffix]
        if len(insert) <= len(new) // 2:
            edit.splice_slot.slot, edit.splice_slot.base_sha256 = name, sha256(old).digest()
            edit.splice_slot.splices.add(offset=prefix, delete=len(old) - prefix - suffix, insert=insert)
            return True
    return False


def _common_prefix(a: bytes, b: bytes) -> int:
    """Length of the common prefix, by bisection. Each step compares at memcmp's speed; all steps together compare the
    whole length about once."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
