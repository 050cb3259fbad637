"""Walks through values of any depth without recursion, which Python ends after some hundred levels.

A walk is a generator. Where a function would call itself, it yields the walk of a part, and gets its result:

    def count(value: Any) -> Walk[int]:
        found = 1
        for each in value if isinstance(value, list) else ():
            found += yield count(each)
        return found

    run(count([1, [2]]))

A part that contains nothing is best looked at without a walk of its own, which takes several times as long.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

T = TypeVar("T")
Walk = Generator[Any, Any, T]
"""What a walk yields is a walk, too."""

LEVELS_MAX = 1000
"""How deep a walk goes. Python's `json` ends before; and it ends the walk of a value that contains itself."""
ATOMS = frozenset({str, int, float, bool, type(None)})
"""The types of nearly all values that contain nothing."""


def run(walk: Walk[T]) -> T:
    """Returns the result of a walk. Raises RecursionError if it is deeper than LEVELS_MAX levels."""
    around, found = list[Walk[Any]](), None
    while True:
        try:
            inner = walk.send(found)
        except StopIteration as over:
            if not around:
                return over.value  # type: ignore[no-any-return]
            walk, found = around.pop(), over.value
        else:
            if len(around) == LEVELS_MAX:
                raise RecursionError(f"nested more than {LEVELS_MAX:,} levels deep")
            around.append(walk)
            walk, found = inner, None
