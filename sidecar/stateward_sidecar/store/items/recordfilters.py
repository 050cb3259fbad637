"""Compares the attributes of a record or a version with the conditions of a list."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from stateward.v1.checkpoint_pb2 import AttributeFilter, AttributeValue

EQUAL = (AttributeFilter.OPERATOR_UNSPECIFIED, AttributeFilter.OPERATOR_EQ, AttributeFilter.OPERATOR_NE)
_COMPARE: dict[int, Callable[[Any, Any], bool]] = {
    AttributeFilter.OPERATOR_GT: operator.gt,
    AttributeFilter.OPERATOR_GTE: operator.ge,
    AttributeFilter.OPERATOR_LT: operator.lt,
    AttributeFilter.OPERATOR_LTE: operator.le,
}


def matches(attributes: Mapping[str, AttributeValue], filters: Iterable[AttributeFilter]) -> bool:
    """Returns whether a record or version with these attributes meets all conditions."""
    return all(_meets(attributes, each) for each in filters)


def _meets(attributes: Mapping[str, AttributeValue], wanted: AttributeFilter) -> bool:
    # A look-up in a map of messages makes a missing item, so ask first.
    kind, value = _typed(attributes[wanted.key]) if wanted.key in attributes else ("", None)
    other_kind, other = _typed(wanted.value)
    is_comparable = kind == other_kind
    if wanted.operator in EQUAL:
        is_equal = is_comparable and value == other
        return is_equal != (wanted.operator == AttributeFilter.OPERATOR_NE)
    return is_comparable and _COMPARE[wanted.operator](value, other)


def _typed(value: AttributeValue) -> tuple[str, Any]:
    """Returns type and content. Whole numbers and fractions are of one type; texts compare as their bytes do."""
    kind = value.WhichOneof("value") or ""
    content = getattr(value, kind) if kind else None
    return ("number" if kind in ("int_value", "double_value") else kind), content
