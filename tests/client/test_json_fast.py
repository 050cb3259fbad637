"""The danger: a value reads differently with fast JSON than without it, or is written with other bytes, so two
installations see two states, or send what did not change."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from enum import Enum
from textwrap import dedent
from typing import Any, Self

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.bench.payload import DATA, load_all_runs

from stateward import values
from stateward.v1 import state_pb2

LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
TREES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=20
)
NUMBERS = st.from_regex(rb"\A[ \t\n]?-?[0-9]{1,30}(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,3})?[ \n]?\Z")
ODD = [
    b"", b"NaN", b"-Infinity", b"1E400", b"-0", b"-0.0", b"5e-324", b"9007199254740993.0", b"1" * 4301, b"01", b"1.",
    b'{"a":1,"a":2}', b'"\\ud800"', b'"\\ud83d\\ude00"', b'"\xff"', b'"\xed\xa0\x80"', b'"\t"', b"\xef\xbb\xbf1",
    '"é"'.encode("utf-16"), b"1 2", b" 1\n", b"[1,]", b"tru", b"[[" * 2000 + b"]]" * 2000,
]  # fmt: skip


@pytest.fixture(params=["fast", "plain"])
def decode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], str]:
    """Returns how a value decodes, as text that tells 1 from 1.0 and from True: or the error."""
    if request.param == "plain":
        monkeypatch.setattr(values, "_parse_json", values.parse_plainly)
    else:
        assert values._parse_json is not values.parse_plainly
    return seen


def seen(data: bytes) -> str:
    return outcome(lambda: values.decode(state_pb2.Value(media_type=values.JSON, data=data), "slots.x"))


def expected(data: bytes) -> str:
    return outcome(lambda: json.loads(data))


def outcome(call: Callable[[], Any]) -> str:
    try:
        return repr(call())
    except (ValueError, RecursionError):
        return "refused"


@pytest.mark.parametrize("data", ODD, ids=lambda data: repr(data[:12]))
def test_odd_texts(decode: Callable[[bytes], str], data: bytes) -> None:
    assert decode(data) == expected(data)


@settings(max_examples=300)
@given(tree=TREES, is_ascii=st.booleans(), at=st.integers(0, 400), put=st.binary(max_size=2))
def test_trees_and_damaged_trees(tree: Any, is_ascii: bool, at: int, put: bytes) -> None:
    """Whole, and with some bytes put in or changed."""
    data = json.dumps(tree, ensure_ascii=is_ascii).encode("utf-8", "surrogatepass")
    for each in (data, data[:at] + put + data[at + len(put) :]):
        assert seen(each) == expected(each)


@settings(max_examples=300)
@given(NUMBERS)
def test_numbers(data: bytes) -> None:
    """Whole numbers of any length are exact, all others are rounded alike."""
    assert seen(data) == expected(data)


def test_what_is_not_equal_is_refused_and_never_decoded() -> None:
    """What the fast decoder takes, it takes as Python does: nothing else makes the two agree."""
    for data in ODD:
        try:
            found = msgspec.json.decode(data)
        except (msgspec.MsgspecError, RecursionError, ValueError):
            continue
        assert repr(found) == expected(data)


@pytest.mark.skipif(not DATA.exists(), reason="the recorded runs lie beside the repository, and are not here")
def test_recorded_runs() -> None:
    """Every message of the first twenty recorded runs of each kind."""
    for runs in load_all_runs().values():
        for run in runs[:20]:
            for message in run:
                assert seen(message) == expected(message)


def test_without_the_extra() -> None:
    """The client decodes with Python's own library if msgspec is missing."""
    code = """
        import sys
        sys.modules["msgspec"] = None
        from stateward import values
        assert values._parse_json is values.parse_plainly
    """
    subprocess.run([sys.executable, "-c", dedent(code)], check=True, timeout=60)


class Label(str, Enum):  # noqa: UP042  (a StrEnum has its text as value)
    """A key whose value is not its text."""

    def __new__(cls, text: str, value: int) -> Self:
        found = str.__new__(cls, text)
        found._value_ = str(value)
        return found

    RED = "red", 1


class Ordered(dict[str, Any]):
    """A dict with methods of its own."""


ODD_VALUES: list[Any] = [
    {Label.RED: 1}, {"a": {Label.RED: Label.RED}}, Ordered(a=Ordered(b=(1, 2))), ("a", ("b",), []),
    {"\ud800": "\udfff"},
    '\u2028\x7f\x00"\\/<>&\U0001f600', 1 << 64, -(1 << 63) - 1, 10**400, 1e16, 1e-7, [0.1, 1], [1e400], float("nan"),
    {1: 2}, {None: 1}, {"a": b"x"}, [object()], values.Text("x"), [values.Text("x")], {values.Text("k"): 1},
]  # fmt: skip


def written(value: Any) -> tuple[str, bytes | str]:
    try:
        return "written", values.encode_json(value, "slots.x")
    except (TypeError, ValueError) as error:
        return type(error).__name__, str(error).partition(" at 0x")[0]


def written_plainly(value: Any) -> tuple[str, bytes | str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(values, "_encode_fast", None)
        return written(value)


@pytest.mark.parametrize("value", ODD_VALUES, ids=lambda value: type(value).__name__)
def test_odd_values_have_the_same_bytes(value: Any) -> None:
    assert written(value) == written_plainly(value)


@settings(max_examples=400)
@given(tree=TREES)
def test_trees_have_the_same_bytes(tree: Any) -> None:
    """Without floats, these come from the fast encoder."""
    assert values._encode_fast is not None
    assert written(tree) == written_plainly(tree)


@pytest.mark.parametrize("depth", [100, 900, 3000, 100_000])
def test_what_is_nested_deeply_is_refused_alike(depth: int) -> None:
    """And what contains itself."""
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    assert written(value)[0] == written_plainly(value)[0]
    around: list[Any] = []
    around.append(around)
    assert written(around)[0] == written_plainly(around)[0] == "ValueError"


def test_long_texts_are_encoded_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """A framework may hand over all messages at each step."""
    called = list[Any]()
    encode = values._encode_fast
    assert encode is not None
    monkeypatch.setattr(values, "_encode_fast", lambda value: (called.append(value), encode(value))[1])
    value = {"messages": ["é" * 100_000, {"role": "user", "n": 1, "done": True, "x": None}]}
    assert json.loads(values.encode_json(value, "")) == value
    assert called == [value]
