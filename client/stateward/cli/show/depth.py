"""Values that are nested deeply: what agents store may be deeper than Python can recurse.

The commands recurse into a value only if it is not deep. They show a deep value as its bytes, and a backup holds it as
text. So no command ends in a RecursionError, and no line of an export is too deep to be read.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

DEPTH_MAX = 100
"""A value with more lists and objects inside each other is deep."""


def is_deep(value: Any, levels: int = DEPTH_MAX) -> bool:
    """Returns whether more than `levels` lists and objects are inside each other. Looks level by level."""
    level = [value]
    for _ in range(levels + 1):
        level = [each for each in level if isinstance(each, (dict, list, tuple))]
        if not level:
            return False
        level = [child for each in level for child in (each.values() if isinstance(each, dict) else each)]
    return True


class _Written(str):
    """A piece of text that is JSON already."""

    __slots__ = ()


def write_flatly(value: Any, plain: Callable[[Any], Any]) -> str:
    """Returns a value of any depth as JSON. `plain` converts what is neither a list nor an object."""
    pieces, left = list[str](), [value]
    while left:
        each = left.pop()
        if isinstance(each, _Written):
            pieces.append(each)
        elif isinstance(each, dict):
            inner = [part for key, child in each.items() for part in (_Written(f",{json.dumps(str(key))}:"), child)]
            left += _between("{", inner, "}")
        elif isinstance(each, (list, tuple)):
            left += _between("[", [part for child in each for part in (_Written(","), child)], "]")
        else:
            pieces.append(json.dumps(plain(each)))
    return "".join(pieces)


def _between(start: str, parts: list[Any], end: str) -> list[Any]:
    """Returns the parts between brackets, the last one first, without the first comma."""
    if parts:
        parts[0] = _Written(parts[0][1:])
    return [_Written(end), *reversed(parts), _Written(start)]
