"""The danger: what a framework's own store keeps as JSON is refused or changed by its adapter."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateward import values
from stateward._keeping import find_place, keep, kept
from stateward.v1 import state_pb2
from stateward.values import JSON, JSON5, Json5, RawValue

LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=5)
KEYS = st.text(st.characters(), max_size=3) | st.integers() | st.floats() | st.booleans() | st.none()
TREES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3))


def loses_keys(value: Any) -> bool:
    """Whether two keys of a dict are one in JSON."""
    if isinstance(value, dict):
        texts = {key if isinstance(key, str) else json.dumps(key) for key in value}
        return len(texts) < len(value) or any(map(loses_keys, value.values()))
    return isinstance(value, list) and any(map(loses_keys, value))


@given(TREES)
def test_a_value_comes_back_as_from_the_own_store(value: Any) -> None:
    """As Python's json gives it back; only a dict that would lose a key is refused."""
    if loses_keys(value):
        with pytest.raises(ValueError, match="two of its keys"):
            keep(value, "value")
        return
    encoded = keep(value, "value")
    stored = state_pb2.Value(media_type=encoded.media_type, data=encoded.data)
    read = values.decode(stored, "value")
    assert repr(kept(read)) == repr(json.loads(json.dumps(value)))
    assert isinstance(read, Json5) == (encoded.media_type == JSON5)
    assert values.is_unchanged(values.encode(read, ""), stored)  # a state that was read is saved as it is
    if encoded.media_type == JSON:
        json.loads(encoded.data, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"a": [1, {"b": b"x"}]}, "items.a[1].b"),
        ({"a": object(), "n": math.nan}, "items.a"),
        ({1: {2: {(1, 2): 3}}}, "items.1.2"),
        ([{1: "a", "1": "b"}], "items[0]"),
    ],
)
def test_an_error_names_the_place(value: Any, place: str) -> None:
    """Whatever else the value has that is kept."""
    with pytest.raises((TypeError, ValueError)) as refused:
        keep(value, "items")
    assert str(refused.value).startswith(f"{place}: ")


def test_other_json5_is_read_as_it_is_stored() -> None:
    """Comments and single quotes, which another client may write."""
    stored = state_pb2.Value(media_type=JSON5, data=b"{a: 1} // x")
    assert values.decode(stored, "x") == RawValue(JSON5, b"{a: 1} // x")


def nested(levels: int, value: Any) -> Any:
    """A value in lists and dicts in turn."""
    for level in range(levels):
        value = [value] if level % 2 else {level: value, "n": math.nan}
    return value


@pytest.mark.parametrize("levels", [90, 400, 900])
def test_deep_values_are_kept(levels: int) -> None:
    """With keys that are numbers, and NaN, at each level."""
    encoded = keep(nested(levels, {1: "end"}), "value")
    assert encoded.media_type == JSON5
    assert encoded.data.count(b'"n":NaN') == levels / 2
    assert b'{"1":"end"}' in encoded.data
    with pytest.raises(ValueError, match=r"^value.0.*\.0: two of its keys are '1' in JSON"):
        keep(nested(levels, {1: "a", "1": "b"}), "value")


@pytest.mark.parametrize("key", ["k", 1])
def test_what_has_no_end_is_refused_by_name(key: Any) -> None:
    """However deep it is; and of a circle the place where it closes, by whichever way."""
    value: Any = {key: "end"}
    for _ in range(100_000):
        value = {key: [value]}
    with pytest.raises(ValueError, match=rf"^value\.{key}\[0\]\.{key}.*: nested more than 200 levels deep"):
        keep(value, "value")
    inner: Any = {}
    inner |= {key: [inner, [inner]]}
    with pytest.raises((TypeError, ValueError), match=rf"^value\.{key}\[0\].*: (the value contains itself|the key 1)"):
        keep(inner, "value")


def test_the_place_of_a_fault_ends() -> None:
    """Also that of a value which contains itself, or is deeper than an error can say."""

    def is_faulty(part: Any) -> bool:
        return part != "good"

    inner: list[Any] = ["good"]
    inner.append({"k": inner})
    assert find_place(inner, "value", is_faulty) == "value[1].k"
    deep = nested(100_000, "bad")
    assert find_place(deep, "value", is_faulty).startswith("value[0].")
    assert len(find_place(deep, "value", is_faulty)) < 20_000
