"""Compares two states: slots by name, logs by the index of their entries. Does no I/O.

Inside a slot, JSON values are compared path by path (`plan.items[2].done`) and texts line by line.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stateward.cli.show.depth import is_deep
from stateward.cli.show.describe import entry_of, plain, slot_of

if TYPE_CHECKING:
    from stateward import Log, State

# The time to compare two texts grows with the product of their line counts.
TEXT_LINES_MAX = 5000
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


class _Missing:
    """Stands for a missing value, because None is a value."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Any = _Missing()


@dataclass(frozen=True)
class Difference:
    """One place inside a slot. `old` is MISSING if it was added, `new` if it was removed."""

    path: str
    old: Any
    new: Any


@dataclass(frozen=True)
class SlotDifference:
    """A slot that was set, removed or changed."""

    name: str
    old: Any
    new: Any
    old_bytes: int = 0
    new_bytes: int = 0


@dataclass
class LogDifference:
    """How a log changed. Entries are (index, value)."""

    name: str
    appended: list[tuple[int, Any]] = field(default_factory=list)
    replaced: list[tuple[int, Any, Any]] = field(default_factory=list)
    returned: list[tuple[int, Any]] = field(default_factory=list)
    """Entries at the start of the new state's log that the old state's log had dropped."""
    dropped_at_start: int = 0
    cut_at_end: int = 0
    is_new: bool = False
    is_gone: bool = False


def compare_slots(a: State | None, b: State) -> list[SlotDifference]:
    """Returns the slots that differ in media type or bytes, sorted by name."""
    old_names, new_names = set(a.slots if a else ()), set(b.slots)
    found = []
    for name in sorted(old_names | new_names):
        old = a.slots.raw(name) if a is not None and name in old_names else None
        new = b.slots.raw(name) if name in new_names else None
        if old != new:
            assert a is not None or old is None
            found.append(
                SlotDifference(
                    name,
                    MISSING if a is None or old is None else slot_of(a, name),
                    MISSING if new is None else slot_of(b, name),
                    len(old.data) if old else 0,
                    len(new.data) if new else 0,
                )
            )
    return found


def compare_logs(a: State | None, b: State) -> list[LogDifference]:
    """Returns the logs that differ, sorted by name."""
    old_names, new_names = set(a.logs if a else ()), set(b.logs)
    found = []
    for name in sorted(old_names | new_names):
        old = a.logs[name] if a is not None and name in old_names else None
        new = b.logs[name] if name in new_names else None
        difference = _compare_log(name, old, new)
        if difference != LogDifference(name):
            found.append(difference)
    return found


def _compare_log(name: str, old: Log | None, new: Log | None) -> LogDifference:
    if new is None:
        return LogDifference(name, is_gone=True, cut_at_end=len(old) if old is not None else 0)
    first, end = new.first_index, new.next_index
    if old is None:
        appended = [(index, entry_of(new, index - first)) for index in range(first, end)]
        return LogDifference(name, appended, is_new=True)
    common = range(max(old.first_index, first), min(old.next_index, end))
    replaced = [
        (index, entry_of(old, index - old.first_index), entry_of(new, index - first))
        for index in common
        if old.raw(index - old.first_index) != new.raw(index - first)
    ]
    added_from = min(max(old.next_index, first), end)
    return LogDifference(
        name,
        [(index, entry_of(new, index - first)) for index in range(added_from, end)],
        replaced,
        [(index, entry_of(new, index - first)) for index in range(first, min(old.first_index, end))],
        dropped_at_start=max(min(first, old.next_index) - old.first_index, 0),
        cut_at_end=max(old.next_index - max(end, old.first_index), 0) if end < old.next_index else 0,
    )


def compare_values(old: Any, new: Any, path: str = "") -> Iterator[Difference]:
    """Yields the places in which two JSON values differ. Skips the items that two lists share at their start and
    end. Compares deep values only as a whole."""
    if not path and (is_deep(old) or is_deep(new)):
        if not _is_same(old, new):
            yield Difference(path, old, new)
    elif isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            yield from compare_values(old.get(key, MISSING), new.get(key, MISSING), _joined(path, key))
    elif isinstance(old, list) and isinstance(new, list):
        yield from _compare_lists(old, new, path)
    elif not _is_same(old, new):
        yield Difference(path, old, new)


def _compare_lists(old: list[Any], new: list[Any], path: str) -> Iterator[Difference]:
    shorter = min(len(old), len(new))
    start = 0
    while start < shorter and _is_same(old[start], new[start]):
        start += 1
    end = 0
    while end < shorter - start and _is_same(old[-1 - end], new[-1 - end]):
        end += 1
    left, right = old[start : len(old) - end], new[start : len(new) - end]
    for at in range(max(len(left), len(right))):
        was, now = left[at] if at < len(left) else MISSING, right[at] if at < len(right) else MISSING
        yield from compare_values(was, now, f"{path}[{start + at}]")


def _joined(path: str, key: str) -> str:
    if not _PLAIN_KEY.fullmatch(key):
        return f"{path}[{json.dumps(key, ensure_ascii=False)}]"
    return f"{path}.{key}" if path else key


def _is_same(old: Any, new: Any) -> bool:
    """True if both are equal as JSON: 1, 1.0 and true are three different values."""
    if old is MISSING or new is MISSING:
        return old is new
    if type(old) is type(new) and isinstance(old, (str, int, float, bytes, type(None))):
        return bool(old == new)
    return json.dumps(plain(old)) == json.dumps(plain(new))


def compare_texts(old: str, new: str) -> list[str] | None:
    """Returns a unified diff without its header, or None if a text has more than TEXT_LINES_MAX lines."""
    before, after = old.splitlines(), new.splitlines()
    if max(len(before), len(after)) > TEXT_LINES_MAX:
        return None
    return list(difflib.unified_diff(before, after, lineterm="", n=2))[2:]
