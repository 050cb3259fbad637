"""Checks arguments that a message takes only in a certain form, so that an error names the argument."""

from __future__ import annotations

import operator
from typing import Any

INT32_MAX, INT64_MAX = (1 << 31) - 1, (1 << 63) - 1


def text(value: Any, name: str) -> str:
    """Returns a text. Raises TypeError for anything else, and ValueError if UTF-8 cannot hold it. Both name `name`."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is a text, not {value!r:.100}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name} is {value!a:.100}; UTF-8 cannot hold a lone surrogate") from None
    return value


def whole_number(value: Any, name: str, *, most: int = INT64_MAX) -> int:
    """Returns a whole number. Raises TypeError for anything else, and ValueError if it is not between 0 and `most`."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} is a whole number, not {value!r:.100}")
    number = operator.index(value)
    if not 0 <= number <= most:
        raise ValueError(f"{name} is {number}; it must be 0 to {most:,}")
    return number
