"""How the items of a LangGraph store lie in records: their keys, the attributes that filters use, and their vectors.

The key of an item's record is `i/`, each label of its namespace with a dot behind it, and the item's key. Labels have
no dots, and dots of the key are escaped, as control characters and `%` are, so the last dot ends the namespace. If a
record cannot have such a long key, `%#` and the SHA-256 stand for the item's key, and the attribute WHOLE has it. The
vectors of an item are in a record with `v/` in place of `i/`.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from hashlib import sha256
from operator import ge, gt, le, lt, mul
from typing import Any

import orjson
from langgraph.store.base import InvalidNamespaceError, Item, MatchCondition, SearchItem

from stateward import values
from stateward._keeping import keep, kept
from stateward._naming import escape, unescape
from stateward._walking import ATOMS, LEVELS_MAX, Walk, run
from stateward.attributes import INT_MAX, INT_MIN, Attribute
from stateward.records import Record
from stateward.values import JSON, RawValue

ITEM, VECTORS = "i/", "v/"
# Fields of a value that become attributes: so many, with keys and texts of so many bytes. An item with other fields has
# the attribute REST, so that a filter on attributes looks at it in any case.
FIELDS_MAX, KEY_BYTES_MAX, TEXT_BYTES_MAX = 32, 63, 256
REST, WHOLE = "…", "…key"
DIGEST = "%#"
RECORD_KEY_BYTES_MAX = 1024
LONG_PREFIX_BYTES_MAX = RECORD_KEY_BYTES_MAX - len(DIGEST) - 64
LONG_KEY_BYTES_MAX = 5000
"""Of an escaped key that stands in an attribute: all attributes have 16 KiB, and fields take up to 10 KiB."""
OPERATORS = {"$eq": "==", "$ne": "!=", "$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}
_ORDERS: dict[str, Callable[[Any, Any], Any]] = {"$gt": gt, "$gte": ge, "$lt": lt, "$lte": le}
_PUSHED = ("$eq", "$gt", "$gte", "$lt", "$lte")

Condition = tuple[str, str, Attribute]


# -- keys -------------------------------------------------------------------------------------------------------------


def prefix_of(labels: Sequence[Any], kind: str = ITEM) -> str:
    """Returns what the keys of all items in and below a namespace begin with. Raises InvalidNamespaceError."""
    for label in labels:
        if not label or not isinstance(label, str) or "." in label:
            names = tuple(labels)
            raise InvalidNamespaceError(f"a label of a namespace is a text without dots, not {label!r}: {names!r}")
    return kind + "".join(f"{escape(label)}." for label in labels)


def key_of(labels: Sequence[Any], key: Any, kind: str = ITEM) -> str:
    """Returns the key of an item's record."""
    prefix, name = prefix_of(labels, kind), escape(str(key), ".")
    if len(f"{prefix}{name}".encode()) <= RECORD_KEY_BYTES_MAX:
        return prefix + name
    return f"{prefix}{DIGEST}{sha256(str(key).encode()).hexdigest()}"


def whole_key(labels: Sequence[Any], key: Any) -> dict[str, Attribute]:
    """Returns the attribute of an item whose record has only the digest of its key."""
    return {WHOLE: escape(str(key))} if DIGEST in key_of(labels, key) else {}


def vectors_key(item_key: str) -> str:
    """Returns the key of the vectors beside the record of an item."""
    return VECTORS + item_key.removeprefix(ITEM)


def namespace_of(prefix: str) -> tuple[str, ...]:
    """Returns the namespace that a key or a prefix of keys names."""
    path, _, _ = prefix.removeprefix(ITEM).rpartition(".")
    return tuple(map(unescape, path.split("."))) if path else ()


def item_of(record: Record) -> Item:
    """Returns a record as an item."""
    return Item(**_parts(record))


def search_item_of(record: Record, score: float | None = None) -> SearchItem:
    """Returns a record as a search result."""
    return SearchItem(**_parts(record), score=score)


def _parts(record: Record) -> dict[str, Any]:
    return {
        "value": kept(record.value),
        "key": unescape(str(record.attributes.get(WHOLE) or record.key.removeprefix(ITEM).rpartition(".")[2])),
        "namespace": namespace_of(record.key),
        "created_at": record.create_time,
        "updated_at": record.update_time,
    }


# -- namespaces -------------------------------------------------------------------------------------------------------


def known_begin(conditions: Iterable[MatchCondition]) -> tuple[str, ...]:
    """Returns labels that the namespaces of all conditions begin with."""
    found: tuple[str, ...] = ()
    for condition in conditions:
        if condition.match_type == "prefix":
            path = list(condition.path)
            fixed = tuple(path[: path.index("*")] if "*" in path else path)
            found = max(found, fixed, key=len)
    return found


def does_match(condition: MatchCondition, namespace: tuple[str, ...]) -> bool:
    """Returns whether a namespace meets a condition."""
    path, kind = condition.path, condition.match_type
    if len(namespace) < len(path):
        return False
    part = namespace[: len(path)] if kind == "prefix" else namespace[len(namespace) - len(path) :]
    return all(wanted in ("*", label) for wanted, label in zip(path, part, strict=True))


# -- values -----------------------------------------------------------------------------------------------------------


def encode_value(value: Mapping[str, Any], path: str) -> tuple[dict[str, Any], RawValue]:
    """Returns the value of an item as JSON has it, and as it is stored. Raises TypeError or ValueError, with its place.

    LangGraph's own stores write JSON with orjson, which also takes times, UUIDs, enumerations and dataclasses.
    """
    plain = dict(value)
    try:
        return plain, RawValue(JSON, values.encode_json(plain, path))
    except (TypeError, ValueError):
        plain = run(_reduce(plain, set()))
        values.encode_json(plain, path, finite=False)  # keys must be texts: `keep` takes others
        return plain, keep(plain, path)


def _reduce(value: Any, above: set[int]) -> Walk[Any]:
    """Returns a value with what orjson takes besides JSON in the form that orjson gives it."""
    if id(value) in above or len(above) == LEVELS_MAX:
        return value  # the encoder names what contains itself, or is too deep
    above.add(id(value))
    try:
        if isinstance(value, dict):
            return (yield from _reduce_dict(value.items(), above))
        if isinstance(value, (list, tuple)):
            items = []
            for each in value:  # a comprehension cannot yield
                items.append(each if type(each) in ATOMS else (yield _reduce(each, above)))  # noqa: PERF401
            return items
        if is_dataclass(value) and not isinstance(value, type):
            parts = ((each.name, getattr(value, each.name)) for each in fields(value))
            return (yield from _reduce_dict(parts, above))
    finally:
        above.discard(id(value))
    if value is None or isinstance(value, (str, int, float)):
        return value
    try:
        return orjson.loads(orjson.dumps(value))
    except TypeError:
        return value  # the encoder names it


def _reduce_dict(parts: Iterable[tuple[Any, Any]], above: set[int]) -> Walk[dict[Any, Any]]:
    made = {}
    for key, each in parts:
        made[key] = each if type(each) in ATOMS else (yield _reduce(each, above))
    return made


# -- filters ----------------------------------------------------------------------------------------------------------


def attributes_of(value: Mapping[str, Any]) -> dict[str, Attribute]:
    """Returns the fields of a value that filters in the daemon can use."""
    found: dict[str, Attribute] = {}
    for key, field in value.items():
        if _is_scalar(field):
            if len(found) < FIELDS_MAX and _is_name(key) and _is_attribute(field):
                found[key] = field
            else:
                found[REST] = True
    return found


def pushed(wanted: Mapping[str, Any] | None) -> list[Condition]:
    """Returns conditions for the daemon that every match meets, if it has all its fields as attributes."""
    made: list[Condition] = []
    for key, condition in (wanted or {}).items():
        if not _is_name(key):
            continue
        for name, value in operators_of(condition).items():
            if name in _PUSHED and _is_attribute(value) and (name == "$eq" or not isinstance(value, bool)):
                made.append((key, OPERATORS[name], value))
    return made


def matches(value: Any, wanted: Mapping[str, Any] | None) -> bool:
    """Returns whether a value meets a filter, as JSON is compared: numbers as numbers, texts as texts; a boolean is no
    number, and values of different kinds have no order."""
    return all(
        _is_met(value.get(key), name, each) if type(each) in ATOMS else run(_compare(value.get(key), name, each))
        for key, condition in (wanted or {}).items()
        for name, each in operators_of(condition).items()
    )


def operators_of(condition: Any) -> Mapping[str, Any]:
    """Returns the operators of a condition of a filter, with their values."""
    if type(condition) not in ATOMS and isinstance(condition, Mapping):
        for key in condition:
            if str(key).startswith("$"):
                return condition
    return {"$eq": condition}


def _meets(found: Any, condition: Any) -> Walk[bool]:
    for name, value in operators_of(condition).items():
        if not (_is_met(found, name, value) if type(value) in ATOMS else (yield from _compare(found, name, value))):
            return False
    return True


def _compare(found: Any, name: str, value: Any) -> Walk[bool]:
    if name in ("$eq", "$ne"):
        return (yield from _is_equal(found, value)) == (name == "$eq")
    return _is_met(found, name, value)


def _is_met(found: Any, name: str, value: Any) -> bool:
    """Does the same for a value that contains no other."""
    if name in ("$eq", "$ne"):
        return _is_same(found, value) == (name == "$eq")
    both_numbers = _is_number(found) and _is_number(value)
    if not both_numbers and not (isinstance(found, str) and isinstance(value, str)):
        return False
    return bool(_ORDERS[name](found, value))


def _is_equal(found: Any, value: Any) -> Walk[bool]:
    if isinstance(value, Mapping):  # a nested filter names some of the fields
        if not isinstance(found, Mapping):
            return False
        for key, each in value.items():
            part = found.get(key)
            if not (_is_same(part, each) if type(each) in ATOMS else (yield _meets(part, each))):
                return False
        return True
    if isinstance(value, list | tuple):
        if not isinstance(found, list | tuple) or len(found) != len(value):
            return False
        for part, each in zip(found, value, strict=True):
            if not (_is_same(part, each) if type(each) in ATOMS else (yield _is_equal(part, each))):
                return False
        return True
    return _is_same(found, value)


def _is_same(found: Any, value: Any) -> bool:
    if isinstance(found, bool) or isinstance(value, bool):
        return found is value
    return bool(found == value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_scalar(value: Any) -> bool:
    return isinstance(value, str | int | float)


def _is_name(key: Any) -> bool:
    return (
        isinstance(key, str)
        and key.isprintable()
        and 0 < len(key.encode()) <= KEY_BYTES_MAX
        and key not in (REST, WHOLE)
    )


def _is_attribute(value: Any) -> bool:
    if isinstance(value, str):
        return len(value.encode(errors="replace")) <= TEXT_BYTES_MAX and value.isprintable()
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and INT_MIN <= value <= INT_MAX


# -- vectors ----------------------------------------------------------------------------------------------------------


def pack_vectors(vectors: Iterable[Sequence[float]], dims: int) -> bytes:
    """Returns unit vectors as bytes: 32-bit floats, one vector after the other. Raises ValueError for another size."""
    packed = array("f")
    for vector in vectors:
        if len(vector) != dims:
            raise ValueError(f"the embedding has {len(vector)} numbers; the index has {dims} dims")
        length = math.sqrt(sum(map(mul, vector, vector)))
        packed.extend(number / length if length else 0.0 for number in vector)
    return packed.tobytes()


def best_score(query: bytes, stored: bytes) -> float | None:
    """Returns the highest cosine similarity of a query to stored vectors; None if there are none of its size."""
    wanted, found = array("f", query), array("f", stored)
    dims = len(wanted)
    if not found or len(found) % dims:
        return None
    scores = (sum(map(mul, wanted, found[at : at + dims])) for at in range(0, len(found), dims))
    return float(max(scores))
