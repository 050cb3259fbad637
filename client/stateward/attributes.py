"""Attributes of versions: small typed facts that lists select by, and that no index holds."""

from __future__ import annotations

import math
from collections.abc import Mapping

from stateward.arguments import text
from stateward.v1.checkpoint_pb2 import AttributeValue

Attribute = str | int | float | bool
"""The value of an attribute. 1, 1.0 and True are three values: a filter that asks for one does not find the others."""

INT_MIN, INT_MAX = -(1 << 63), (1 << 63) - 1


def write_attributes(given: Mapping[str, Attribute]) -> dict[str, AttributeValue]:
    """Returns attributes for a request. Raises TypeError and ValueError, which name the attribute."""
    if not isinstance(given, Mapping):
        raise TypeError(f"attributes takes a dict, not {given!r:.100}")
    return {key: _write(key, value) for key, value in given.items()}


def read_attributes(found: Mapping[str, AttributeValue]) -> dict[str, Attribute]:
    """Returns the attributes of an answer. Leaves out those of a type that this client does not know."""
    return {key: getattr(value, kind) for key, value in found.items() if (kind := value.WhichOneof("value"))}


def _write(key: str, value: Attribute) -> AttributeValue:
    text(key, "the key of an attribute")
    if isinstance(value, str):
        return AttributeValue(string_value=text(value, f"attribute {key!r}"))
    if isinstance(value, bool):
        return AttributeValue(bool_value=value)
    if isinstance(value, int):
        if not INT_MIN <= value <= INT_MAX:
            raise ValueError(f"attribute {key!r} is {value}, which has more than 64 bits")
        return AttributeValue(int_value=value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"attribute {key!r} is {value}; it must be finite")
        return AttributeValue(double_value=value)
    raise TypeError(f"attribute {key!r} takes a text, a number or a bool, not {value!r:.100}")
