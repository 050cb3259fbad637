"""Values of frameworks: what the frameworks' own stores keep as JSON is kept, and anything else is an error.

These stores write what Python's `json` writes. It has NaN and infinities, which are stored as JSON5 here, and it turns
keys that are numbers, booleans or None into texts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any, Literal

from stateward import values
from stateward._walking import ATOMS, LEVELS_MAX, Walk, run
from stateward.values import Json5, RawValue

_PARSED_LEVELS = 100
"""JSON of so many levels pydantic reads in any case, so it is not parsed to find out."""


def keep(value: Any, path: str) -> RawValue:
    """Returns the stored form of a value. Raises TypeError or ValueError, with the place in `path`, for what cannot be
    kept."""
    try:
        return RawValue(values.JSON, values.encode_json(value, path))
    except (TypeError, ValueError):
        pass
    plain = run(_with_text_keys(value, path, set()))
    try:
        return RawValue(values.JSON, values.encode_json(plain, path))
    except ValueError:  # most likely NaN or an infinity; else this raises the same again
        return RawValue(values.JSON5, values.encode_json(plain, path, finite=False))


def kept(value: Any) -> Any:
    """Returns what was given to `keep`, from the value that a state gives for it."""
    return value.value if isinstance(value, Json5) else value


def find_place(value: Any, path: str, is_faulty: Callable[[Any], bool]) -> str:
    """Returns the innermost place of a faulty value: inside of containers, dataclasses and pydantic models. Of a value
    that contains itself, this is where it does."""
    above = {id(value)}
    while len(above) <= LEVELS_MAX:
        part, value = next((each for each in children_of(value) if is_faulty(each[1])), ("", None))
        path += part
        if not part or id(value) in above:
            break
        above.add(id(value))
    return path


def find_unwritable(value: Any, path: str, bytes_mode: Literal["base64", "utf8"] = "base64") -> str:
    """Returns the innermost place of a value that pydantic cannot write as JSON. The caller has pydantic."""
    from pydantic_core import PydanticSerializationError, to_jsonable_python  # noqa: PLC0415  not every adapter has it

    def is_faulty(part: Any) -> bool:
        try:
            to_jsonable_python(part, bytes_mode=bytes_mode)
        except (PydanticSerializationError, ValueError, RecursionError):
            return True
        return False

    return find_place(value, path, is_faulty)


def keep_readable(value: Any, path: str, around: int = 0) -> RawValue:
    """Does what `keep` does for JSON that pydantic has written and will read, inside of so many lists. Raises
    ValueError, with the place, if it cannot: its parser goes less deep than its serializer. The caller has pydantic."""
    encoded = keep(value, path)
    levels_most = encoded.data.count(b"[") + encoded.data.count(b"{")
    if levels_most > _PARSED_LEVELS and not _is_readable(encoded.data, around):
        left: Any = value
        while left is not None:  # until the place that is too deep
            around += 1
            found = (each for each in children_of(left) if not _is_readable(json.dumps(each[1]).encode(), around))
            part, left = next(found, ("", None))
            path += part
        raise ValueError(f"{path}: nested too deep for pydantic to read it again")
    return encoded


def _is_readable(data: bytes, around: int) -> bool:
    from pydantic_core import from_json  # noqa: PLC0415  not every adapter has it

    try:
        from_json(b"[" * around + data + b"]" * around)
    except ValueError:
        return False
    return True


def children_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Yields the parts of a value with their places in it, such as `.key` and `[0]`."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield f".{key}", each
    elif isinstance(value, (list, tuple)):
        for index, each in enumerate(value):
            yield f"[{index}]", each
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            if hasattr(value, field.name):
                yield f".{field.name}", getattr(value, field.name)
    elif hasattr(value, "model_dump"):
        for name, each in vars(value).items():
            yield f".{name}", each


def _with_text_keys(value: Any, path: str, above: set[int]) -> Walk[Any]:
    """Returns a value whose keys are texts. Raises TypeError for other keys, ValueError if two keys become one."""
    if not isinstance(value, (dict, list, tuple)) or id(value) in above or len(above) == LEVELS_MAX:
        return value  # the encoder names what contains itself, or is too deep
    above.add(id(value))
    made: Any = {} if isinstance(value, dict) else []
    if isinstance(value, dict):
        for key, each in value.items():
            text = _text_of(key, path)
            if text in made:
                raise ValueError(f"{path}: two of its keys are {text!r} in JSON")
            made[text] = each if type(each) in ATOMS else (yield _with_text_keys(each, f"{path}.{text}", above))
    else:
        for index, each in enumerate(value):
            made.append(each if type(each) in ATOMS else (yield _with_text_keys(each, f"{path}[{index}]", above)))
    above.discard(id(value))
    return made


def _text_of(key: Any, path: str) -> str:
    """Returns what Python's `json` makes of a key."""
    if isinstance(key, str):
        return key
    if key is None or isinstance(key, (bool, int, float)):
        return json.dumps(key)
    raise TypeError(f"{path}: the key {key!r} is no text, number, boolean or None, as JSON needs")
