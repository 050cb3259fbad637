"""A set of versions as ranges: small as long as what is pruned lies together."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator

from stateward.storage.v1.journal_pb2 import PrunedVersions


class Ranges:
    """Immutable, ascending, not touching."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self, pairs: Iterable[tuple[int, int]] = ()) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        for first, last in sorted(pairs):
            if self._lasts and first <= self._lasts[-1] + 1:
                self._lasts[-1] = max(self._lasts[-1], last)
            else:
                self._firsts.append(first)
                self._lasts.append(last)

    def __contains__(self, version: int) -> bool:
        at = bisect_right(self._firsts, version) - 1
        return at >= 0 and version <= self._lasts[at]

    def __iter__(self) -> Iterator[int]:
        for first, last in self.pairs():
            yield from range(first, last + 1)

    def __len__(self) -> int:
        """How many versions."""
        return sum(last - first + 1 for first, last in self.pairs())

    def pairs(self) -> list[tuple[int, int]]:
        """First and last of each range."""
        return list(zip(self._firsts, self._lasts, strict=True))

    def union(self, versions: Iterable[int]) -> Ranges:
        """With these versions as well."""
        return Ranges([*self.pairs(), *((version, version) for version in versions)])

    def to_message(self) -> PrunedVersions:
        """As it is stored."""
        message = PrunedVersions()
        for first, last in self.pairs():
            message.ranges.add(first=first, last=last)
        return message

    @classmethod
    def from_message(cls, message: PrunedVersions) -> Ranges:
        """The reverse of ``to_message``."""
        return cls((item.first, item.last) for item in message.ranges)
