"""Finds the splices that lead from the bytes of one value to those of another.

Most values change in one place, so the bytes between their common beginning and their common end are one splice. A
value may also change in several places, such as a list in MessagePack that grows: the count at its front changes too,
and nothing has the place that it had. So a piece of the old bytes is looked for in the new ones. Where it is found, it
is extended to both sides, and what lies before it and behind it is compared in the same way.
"""

from __future__ import annotations

from stateward.v1.diff_pb2 import Splice

# A piece that is looked for. Every match has at least this many bytes, and so saves more than a splice's own fields.
_PIECE_BYTES = 48
# Below this size of an insertion, nothing is looked for in it.
_SMALL_BYTES = 128
# Pieces in the middle, and at the quarters. If none of them is found, the bytes count as different.
_QUARTERS = (2, 1, 3)
# How often a range is divided, so there are at most 64 splices.
_DEPTH = 6


def find_splices(a: bytes, b: bytes) -> list[Splice]:
    """Returns the splices from ``a`` to ``b``, ascending. They need not be the smallest ones. Equal bytes have one."""
    prefix = common_prefix(a, b)
    suffix = common_suffix(a[prefix:], b[prefix:])
    found: list[Splice] = []
    _compare(a, prefix, len(a) - suffix, b, prefix, len(b) - suffix, _DEPTH, found)
    return found or [Splice(offset=prefix)]


def _compare(
    a: bytes, a_start: int, a_end: int, b: bytes, b_start: int, b_end: int, depth: int, found: list[Splice]
) -> None:
    """Adds the splices from one range to the other. The ranges begin and end with different bytes."""
    if depth and a_end - a_start >= _PIECE_BYTES and b_end - b_start >= _SMALL_BYTES:
        for quarter in _QUARTERS:
            at = a_start + (a_end - a_start - _PIECE_BYTES) * quarter // 4
            place = b.find(a[at : at + _PIECE_BYTES], b_start, b_end)
            if place >= 0:
                before = common_suffix(a[a_start:at], b[b_start:place])
                length = _PIECE_BYTES + common_prefix(a[at + _PIECE_BYTES : a_end], b[place + _PIECE_BYTES : b_end])
                _compare(a, a_start, at - before, b, b_start, place - before, depth - 1, found)
                _compare(a, at + length, a_end, b, place + length, b_end, depth - 1, found)
                return
    if a_end > a_start or b_end > b_start:
        found.append(Splice(offset=a_start, delete=a_end - a_start, insert=b[b_start:b_end]))


def common_prefix(a: bytes, b: bytes) -> int:
    """Counts the bytes that both begin with. Halves the range and compares slices, because that is memcmp."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    # Equal up to `low`; the first difference is before `high`.
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low


def common_suffix(a: bytes, b: bytes) -> int:
    """Counts the bytes that both end with."""
    low, high = 0, min(len(a), len(b))
    if a[len(a) - high :] == b[len(b) - high :]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if a[len(a) - middle : len(a) - low] == b[len(b) - middle : len(b) - low]:
            low = middle
        else:
            high = middle
    return low
