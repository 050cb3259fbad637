"""How an event becomes JSON: as ADK writes it, with the numbers that JSON lacks."""

from __future__ import annotations

import re
from typing import Any

from google.adk.events.event import Event
from pydantic_core import PydanticSerializationError

from stateward._keeping import children_of, find_place, find_unwritable, keep
from stateward.values import RawValue

_SURROGATE = re.compile("[\ud800-\udfff]")


def encode_event(event: Event) -> RawValue:
    """Returns the stored form of an event. Raises TypeError or ValueError for what JSON cannot hold, with its place."""
    if _has_surrogates(event):
        raise ValueError(f"{find_place(event, 'event', _has_surrogates)}: a lone surrogate, which an event cannot hold")
    try:
        plain = event.model_dump(mode="json", exclude_none=True)
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        raise TypeError(f"{find_unwritable(event, 'event')}: {error}") from error
    return keep(_with_numbers(plain, event), "event")


def _with_numbers(plain: Any, value: Any) -> Any:
    """Returns the JSON form of a value with its NaN and infinities, which pydantic turns to None."""
    if plain is None and isinstance(value, float):
        return value
    if isinstance(plain, dict):
        parts = value if isinstance(value, dict) else getattr(value, "__dict__", {})
        named = {str(key): each for key, each in parts.items()}
        return {key: _with_numbers(each, named.get(key)) for key, each in plain.items()}
    if isinstance(plain, list) and isinstance(value, (list, tuple)):
        return [_with_numbers(*pair) for pair in zip(plain, value, strict=False)] if len(plain) == len(value) else plain
    return plain


def _has_surrogates(value: Any) -> bool:
    if isinstance(value, str):
        return _SURROGATE.search(value) is not None
    if isinstance(value, dict) and any(isinstance(key, str) and _SURROGATE.search(key) for key in value):
        return True
    return any(_has_surrogates(child) for _, child in children_of(value, ""))
