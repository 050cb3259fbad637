"""Rules that are checked before a migration saves anything: steps must be unambiguous, and results must fit the daemon.

The client knows some of the daemon's limits, so that a dry run reports what the daemon would refuse.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from stateward.v1 import diff_pb2

EDITS_MAX = 100_000
NAME_BYTES_MAX = 1024
_CONTROL_CHARACTER = re.compile("[\x00-\x1f\x7f-\x9f]")


class Paths:
    """The steps between schemas: a graph without circles, in which no two shortest ways have the same length.

    `add` refuses steps that break this, so that `find` never has to choose.
    """

    def __init__(self) -> None:
        self._ends: dict[int, set[int]] = {}

    def add(self, start: int, end: int) -> None:
        """Adds a step. Raises ValueError and adds nothing if the step makes a circle or a second shortest way."""
        if end in self._ends.get(start, ()):
            raise ValueError(f"the migration from {start} to {end} is registered already")
        if start == end or self.find(end, start) is not None:
            raise ValueError(f"a migration from {start} to {end} makes a circle")
        self._ends.setdefault(start, set()).add(end)
        for origin in self._ends:
            if (unclear := self._first_unclear(origin)) is not None:
                self._ends[start].discard(end)
                raise ValueError(
                    f"with a migration from {start} to {end}, two ways of the same length lead from {origin} to "
                    f"{unclear}: register a shorter way first, or leave one step out"
                )

    def find(self, start: int, end: int) -> list[tuple[int, int]] | None:
        """Returns the way with the fewest steps: empty from a schema to itself, None if there is no way."""
        ways: dict[int, list[tuple[int, int]]] = {start: []}
        edge = [start]
        while edge and end not in ways:
            reached = {(at, further) for at in edge for further in self._ends.get(at, ()) if further not in ways}
            ways |= {further: [*ways[at], (at, further)] for at, further in reached}
            edge = [further for _, further in reached]
        return ways.get(end)

    def _first_unclear(self, start: int) -> int | None:
        """Returns the lowest schema with more than one shortest way to it; None = there is no such schema."""
        seen, edge = {start}, [start]
        while edge:
            reached = [further for at in edge for further in self._ends.get(at, ()) if further not in seen]
            doubled = [each for each in reached if reached.count(each) > 1]
            if doubled:
                return min(doubled)
            seen.update(reached)
            edge = reached
        return None


def check_edits(diff: diff_pb2.Diff) -> None:
    """Raises ValueError for more edits than a version may have, and for a name that a slot or log must not have."""
    if len(diff.edits) > EDITS_MAX:
        raise ValueError(f"the state has {len(diff.edits):,} edits, but a version may have at most {EDITS_MAX:,}")
    for kind, name in _names(diff):
        size_bytes = len(name.encode())
        if not 1 <= size_bytes <= NAME_BYTES_MAX:
            shown = name if len(name) <= 40 else f"{name[:40]}…"
            raise ValueError(f"a {kind} has a name of 1 to {NAME_BYTES_MAX:,} bytes, and {shown!r} has {size_bytes:,}")
        if _CONTROL_CHARACTER.search(name):
            raise ValueError(f"the name of a {kind} must not contain control characters; {name!r} does")


def _names(diff: diff_pb2.Diff) -> Iterator[tuple[str, str]]:
    for each in diff.edits:
        edit = getattr(each, each.WhichOneof("edit") or "")
        for kind in ("slot", "log"):
            if hasattr(edit, kind):
                yield kind, getattr(edit, kind)
