"""What the operations and the settings of a LangGraph store must be, checked before anything is sent."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from langgraph.store.base import InvalidNamespaceError, MatchCondition, PutOp

from stateward.durations import SECONDS_MAX
from stateward.langgraph import _items as items

TTL_MIN, TTL_MAX = 1 / 60, SECONDS_MAX / 60


def check_namespace(labels: Any) -> None:
    """Raises InvalidNamespaceError for a namespace that is no tuple, or has a wrong label."""
    if not isinstance(labels, tuple | list):  # a text would be read as a label for each letter
        raise InvalidNamespaceError(f"a namespace is a tuple of texts, not {labels!r}")
    items.prefix_of(labels)


def check_key(labels: Any, key: Any) -> None:
    """Raises InvalidNamespaceError or ValueError."""
    check_namespace(labels)
    try:
        "".join((*labels, str(key))).encode()
    except UnicodeEncodeError:  # names the place in the joined text, not in the argument
        raise ValueError(f"namespace and key must be texts that UTF-8 can hold, not {(labels, key)!a}") from None
    if items.DIGEST in items.key_of(labels, key):
        size, most = len(items.prefix_of(labels).encode()), items.LONG_PREFIX_BYTES_MAX
        if size > most:
            raise ValueError(f"a namespace with this key may have {most} bytes, not {size}: {labels!r}, {key!r}")
        size, most = len(str(items.whole_key(labels, key)[items.WHOLE]).encode()), items.LONG_KEY_BYTES_MAX
        if size > most:
            raise ValueError(f"a key may have {most:,} bytes, not {size:,}: {labels!r}, {key!r}")


def check_put(op: PutOp) -> None:
    """Raises InvalidNamespaceError, TypeError or ValueError."""
    check_key(op.namespace, op.key)
    if op.value is not None and not isinstance(op.value, Mapping):
        raise TypeError(f"the value of an item is a dict, not {type(op.value).__name__}: key {op.key!r}")
    ttl_of(op.ttl)


def check_filter(wanted: Any) -> None:
    """Raises TypeError for a filter that is no dict, ValueError for an operator that does not exist."""
    if wanted is not None and not isinstance(wanted, Mapping):
        raise TypeError(f"filter is a dict, not {wanted!r}")
    for condition in (wanted or {}).values():
        for name in items.operators_of(condition):
            if name not in items.OPERATORS:
                raise ValueError(f"unknown operator {name!r}; use one of {', '.join(items.OPERATORS)}")


def check_page(limit: Any, offset: Any) -> None:
    """Raises TypeError or ValueError."""
    for name, number in (("limit", limit), ("offset", offset)):
        if not isinstance(number, int):
            raise TypeError(f"{name} is a whole number, not {number!r}")
        if number < 0:
            raise ValueError(f"{name} must not be negative: {number}")


def check_depth(max_depth: Any) -> None:
    """Raises TypeError or ValueError."""
    if max_depth is None:
        return
    if not isinstance(max_depth, int):
        raise TypeError(f"max_depth is a whole number, not {max_depth!r}")
    if max_depth < 0:
        raise ValueError(f"max_depth must not be negative: {max_depth}")


def check_condition(condition: MatchCondition) -> None:
    """Raises InvalidNamespaceError or ValueError."""
    if condition.match_type not in ("prefix", "suffix"):
        raise ValueError(f"match_type is prefix or suffix, not {condition.match_type!r}")
    check_namespace(condition.path)


def ttl_of(minutes: Any) -> timedelta | None:
    """Returns a TTL of LangGraph, which is in minutes. Raises TypeError or ValueError."""
    if minutes is None:
        return None
    if isinstance(minutes, bool) or not isinstance(minutes, int | float):
        raise TypeError(f"ttl takes minutes, not {minutes!r}")
    if not TTL_MIN <= minutes <= TTL_MAX:  # also for NaN
        raise ValueError(f"ttl is {minutes:.10g} minutes; it must be {TTL_MIN:.3f} (a second) to {TTL_MAX:,.0f}")
    return timedelta(minutes=minutes)


def check_settings(index: Any, ttl: Any) -> None:
    """Raises TypeError for an `index` or a `ttl` of a store that lacks what it needs, ValueError for a wrong number."""
    if index is not None:
        if not isinstance(index, Mapping) or not {"dims", "embed"} <= index.keys():
            raise TypeError(f'index is a dict with "dims" and "embed", not {index!r}')
        if isinstance(index["dims"], bool) or not isinstance(index["dims"], int) or index["dims"] < 1:
            raise ValueError(f"the dims of the index must be a whole number from 1 on, not {index['dims']!r}")
    if ttl is not None:
        if not isinstance(ttl, Mapping):
            raise TypeError(f'ttl is a dict, such as {{"default_ttl": 60}}, not {ttl!r}')
        ttl_of(ttl.get("default_ttl"))
