"""How an event becomes JSON: as ADK writes it, with the numbers that JSON lacks."""

from __future__ import annotations

import re
from typing import Any

from google.adk.events.event import Event
from pydantic_core import PydanticSerializationError

from stateward._keeping import children_of, find_unwritable, keep_readable
from stateward._walking import ATOMS, Walk, run
from stateward.values import RawValue

_SURROGATE = re.compile("[\ud800-\udfff]")


def encode_event(event: Event) -> RawValue:
    """Returns the stored form of an event. Raises TypeError or ValueError for what JSON cannot hold, with its place."""
    try:
        place = run(_find_surrogate(event, "event"))
        plain = event.model_dump(mode="json", exclude_none=True) if place is None else None
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        raise TypeError(f"{find_unwritable(event, 'event')}: {error}") from error
    if place is not None:
        raise ValueError(f"{place}: a lone surrogate, which an event cannot hold")
    _put_numbers(plain, event)
    return keep_readable(plain, "event")


def _put_numbers(plain: Any, value: Any) -> None:
    """Puts NaN and infinities into the JSON form of a value, where pydantic has turned them to None."""
    pending = [(plain, value)]
    while pending:
        made, given = pending.pop()
        if isinstance(made, dict):
            parts = given if isinstance(given, dict) else getattr(given, "__dict__", {})
            named = {str(key): each for key, each in parts.items()}
            pairs = [(key, each, named.get(key)) for key, each in made.items()]
        elif isinstance(given, (list, tuple)) and len(made) == len(given):
            pairs = [(at, *pair) for at, pair in enumerate(zip(made, given, strict=True))]
        else:
            continue
        for place, each, part in pairs:
            if each is None and isinstance(part, float):
                made[place] = part
            elif isinstance(each, (dict, list)):
                pending.append((each, part))


def _find_surrogate(value: Any, path: str) -> Walk[str | None]:
    """Returns the innermost place of a lone surrogate; None = there is none."""
    if isinstance(value, str):
        return path if _SURROGATE.search(value) else None
    for part, child in children_of(value):
        if type(child) is str:
            if _SURROGATE.search(child):
                return path + part
        elif type(child) not in ATOMS and (found := (yield _find_surrogate(child, path + part))):
            return str(found)
    has_key = isinstance(value, dict) and any(isinstance(key, str) and _SURROGATE.search(key) for key in value)
    return path if has_key else None
