"""Which migrations lead from one schema to another: a graph without circles and without two equally short ways."""

from __future__ import annotations


class Paths:
    """Steps between schemas. Every refusal is made when a step is added, so that finding a way cannot fail later."""

    def __init__(self) -> None:
        self._ends: dict[int, set[int]] = {}

    def add(self, start: int, end: int) -> None:
        """Adds a step; ValueError, and nothing is added, where it makes the way unclear."""
        if end in self._ends.get(start, ()):
            raise ValueError(f"the migration from {start} to {end} is registered already")
        if start == end or self.find(end, start) is not None:
            raise ValueError(f"a migration from {start} to {end} makes a circle")
        self._ends.setdefault(start, set()).add(end)
        for origin in self._ends:
            if (unclear := self._first_unclear(origin)) is not None:
                self._ends[start].discard(end)
                raise ValueError(
                    f"with a migration from {start} to {end} two ways of the same length lead from {origin} to "
                    f"{unclear}: register a shorter one first, or leave one out"
                )

    def find(self, start: int, end: int) -> list[tuple[int, int]] | None:
        """The fewest steps; empty from a schema to itself, None where there is no way."""
        ways: dict[int, list[tuple[int, int]]] = {start: []}
        edge = [start]
        while edge and end not in ways:
            reached = {(at, further) for at in edge for further in self._ends.get(at, ()) if further not in ways}
            ways |= {further: [*ways[at], (at, further)] for at, further in reached}
            edge = [further for _, further in reached]
        return ways.get(end)

    def _first_unclear(self, start: int) -> int | None:
        """The lowest schema that more than one shortest way leads to; None = all are clear."""
        seen, edge = {start}, [start]
        while edge:
            reached = [further for at in edge for further in self._ends.get(at, ()) if further not in seen]
            doubled = [each for each in reached if reached.count(each) > 1]
            if doubled:
                return min(doubled)
            seen.update(reached)
            edge = reached
        return None
