"""Large objects lie in the bucket in slices, each an object of its own.

    KEY               the first ``SLICE_BYTES``; put last, so that the object is there as a whole or not at all
    KEY.2, KEY.3 …    what follows

One request puts a slice, however large the object is. So a refused or broken request costs one slice, and a process
that dies leaves nothing that only the provider's own tools could find. An upload in parts, which is how object stores
take large objects, does leave that: parts that are billed, and that no list of objects shows.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

SLICE_BYTES = 5 << 20
_SLICE = re.compile(r"(.+\.[a-z]+)\.[0-9]+")


def slice_name(key: str, number: int) -> str:
    """Returns the name of the slice with this number; the first one is 1."""
    return key if number == 1 else f"{key}.{number}"


def slice_count(size_bytes: int) -> int:
    """Returns how many slices an object of this size has."""
    return max(-(-size_bytes // SLICE_BYTES), 1)


def slice_names(key: str, size_bytes: int) -> list[str]:
    """Returns the names of all slices of an object of this size."""
    return [slice_name(key, number) for number in range(1, slice_count(size_bytes) + 1)]


def whole_of(name: str) -> str:
    """Returns the name of the object that a slice is of; any other name as it is."""
    match = _SLICE.fullmatch(name)
    return match[1] if match is not None else name


def whole_sizes(listed: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Returns the size of each object, by name, from a list of what is in the bucket."""
    sizes: dict[str, int] = defaultdict(int)
    for name, size_bytes in listed:
        sizes[whole_of(name)] += size_bytes
    return dict(sizes)
