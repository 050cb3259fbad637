"""Values of frameworks: what the frameworks' own stores keep as JSON is kept, and anything else is an error.

These stores write what Python's `json` writes. It has NaN and infinities, which are stored as JSON5 here, and it turns
keys that are numbers, booleans or None into texts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from stateward import values
from stateward.values import Json5, RawValue


def keep(value: Any, path: str) -> RawValue:
    """Returns the stored form of a value. Raises TypeError or ValueError, with the place in `path`, for what cannot be
    kept."""
    try:
        return RawValue(values.JSON, values.encode_json(value, path))
    except (TypeError, ValueError):
        pass
    plain = _with_text_keys(value, path, frozenset())
    try:
        return RawValue(values.JSON, values.encode_json(plain, path))
    except ValueError:  # most likely NaN or an infinity; else this raises the same again
        return RawValue(values.JSON5, values.encode_json(plain, path, finite=False))


def kept(value: Any) -> Any:
    """Returns what was given to `keep`, from the value that a state gives for it."""
    return value.value if isinstance(value, Json5) else value


def find_place(value: Any, path: str, is_faulty: Callable[[Any], bool]) -> str:
    """Returns the innermost place of a faulty value: inside of containers, dataclasses and pydantic models."""
    for place, child in children_of(value, path):
        if is_faulty(child):
            return find_place(child, place, is_faulty)
    return path


def find_unwritable(value: Any, path: str) -> str:
    """Returns the innermost place of a value that pydantic cannot write as JSON. The caller has pydantic."""
    from pydantic_core import PydanticSerializationError, to_jsonable_python  # noqa: PLC0415  not every adapter has it

    def is_faulty(part: Any) -> bool:
        try:
            to_jsonable_python(part, bytes_mode="base64")
        except (PydanticSerializationError, ValueError, RecursionError):
            return True
        return False

    return find_place(value, path, is_faulty)


def children_of(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yields the parts of a value with their places."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield f"{path}.{key}", each
    elif isinstance(value, (list, tuple)):
        for index, each in enumerate(value):
            yield f"{path}[{index}]", each
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            if hasattr(value, field.name):
                yield f"{path}.{field.name}", getattr(value, field.name)
    elif hasattr(value, "model_dump"):
        for name, each in vars(value).items():
            yield f"{path}.{name}", each


def _with_text_keys(value: Any, path: str, above: frozenset[int]) -> Any:
    """Returns a value whose keys are texts. Raises TypeError for other keys, ValueError if two keys become one."""
    if id(value) in above or not isinstance(value, (dict, list, tuple)):
        return value  # the encoder names what contains itself
    above |= {id(value)}
    if not isinstance(value, dict):
        return [_with_text_keys(each, f"{path}[{index}]", above) for index, each in enumerate(value)]
    made: dict[str, Any] = {}
    for key, each in value.items():
        text = _text_of(key, path)
        if text in made:
            raise ValueError(f"{path}: two of its keys are {text!r} in JSON")
        made[text] = _with_text_keys(each, f"{path}.{text}", above)
    return made


def _text_of(key: Any, path: str) -> str:
    """Returns what Python's `json` makes of a key."""
    if isinstance(key, str):
        return key
    if key is None or isinstance(key, (bool, int, float)):
        return json.dumps(key)
    raise TypeError(f"{path}: the key {key!r} is no text, number, boolean or None, as JSON needs")
