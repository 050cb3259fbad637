"""The tables, one file each: `measure(field, payload, effort)` gives a Section (or several)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Effort:
    """How much is done. `quick` shrinks what rounds do not: threads, steps, the recorded run. `long` adds what takes
    many minutes."""

    rounds: int
    quick: bool = False
    long: bool = False

    def at_size(self, size_bytes: int) -> int:
        """Rounds at a size: a megabyte takes some contenders a tenth of a second."""
        return max(self.rounds // 3, 2) if size_bytes >= 1_000_000 else self.rounds
