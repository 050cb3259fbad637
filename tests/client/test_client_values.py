"""The danger: a value comes back as another one, or one that cannot be stored is refused without saying where it is."""

import dataclasses
import datetime as dt
import math

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from stateward import values
from stateward._state.log import Log
from stateward.state import State
from stateward.v1 import state_pb2

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(JSON)
def test_json_round_trip(value):
    """Whatever JSON can say comes back as it was."""
    assert values.decode(values.encode(value, "v"), "v") == value


@pytest.mark.parametrize(
    "value",
    [b"\x00", values.Text("é"), values.RawValue("a/b", b"1"), Timestamp(seconds=5), values.Blob("x/y", b"1" * 32, 5)],
)
def test_other_round_trips(value):
    """Every other kind of value comes back as it was, too."""
    found = values.decode(values.encode(value, "v"), "v")
    assert (found, type(found)) == (value, type(value))


def test_lone_surrogates_survive():
    """A lone surrogate has no UTF-8, and is stored as an escape."""
    assert values.decode(values.encode({"a\ud800": "é\udfff"}, "v"), "v") == {"a\ud800": "é\udfff"}


def nested(levels, inner, wrap):
    """A value in so many others."""
    for _ in range(levels):
        inner = wrap(inner)
    return inner


@dataclasses.dataclass
class Holder:
    """A dataclass that holds one thing."""

    held: object


WRAPS = {"lists": lambda it: [it], "dicts": lambda it: {"k": it}, "dataclasses": Holder}


@pytest.mark.parametrize("name", WRAPS)
@pytest.mark.parametrize("levels", [201, 100_000])
def test_deep_values_are_refused_by_name(name, levels):
    """However deep: the interpreter's stack has nothing to do with it, and the place is in the message."""
    value = nested(levels, {1: "x"} if levels == 201 else None, WRAPS[name])
    with pytest.raises((TypeError, ValueError), match=r"^slots\.v[.\[]"):
        values.encode(value, "slots.v")


@pytest.mark.parametrize("name", WRAPS)
def test_a_value_that_contains_itself_twice(name):
    """By two ways, so that a walk without an end would also grow without an end."""
    inner = []
    inner += [WRAPS[name](inner), WRAPS[name](inner)]
    with pytest.raises(ValueError, match=r"slots\.v\[0\].*: the value contains itself"):
        values.encode([inner], "slots.v")


@pytest.mark.parametrize("name", WRAPS)
@pytest.mark.parametrize("levels", [0, 1, 90])
def test_a_key_that_is_no_string(name, levels):
    """Wherever it is."""
    value = nested(levels, [{1: "x"}], WRAPS[name])
    with pytest.raises(TypeError, match=r"slots\.v.*: the key 1 is no string"):
        values.encode(value, "slots.v")


class Dumped:
    """What pydantic calls a model, with a method of its own."""

    def __init__(self, dumped):
        self.dumped = dumped

    def model_dump(self, mode):
        """Returns what the test wants."""
        return self.dumped


def test_keys_of_models_are_checked():
    """A class may override `model_dump`, and return what JSON cannot hold."""
    with pytest.raises(TypeError, match=r"^v\[0\]: the key 1 is no string"):
        values.encode([Dumped({1: "x", "1": "y"})], "v")
    circle = []
    circle.append(circle)
    with pytest.raises(ValueError, match="contains itself"):
        values.encode([Dumped({"a": circle})], "v")


@dataclasses.dataclass
class Named(str):  # noqa: SLOT000  slots and fields do not go together
    """A text with a field, which may be anything."""

    field: object = None

    __hash__ = str.__hash__


def test_a_text_is_stored_as_a_text():
    """Whatever its class adds: JSON has nothing of it."""
    text = Named("x")
    text.field = text
    assert values.decode(values.encode({"a": text}, "v"), "v") == {"a": str(text)}
    text.field = {1: 2}
    assert values.decode(values.encode({"a": text}, "v"), "v") == {"a": str(text)}


def test_a_value_that_is_shared_is_no_fault():
    """The same object twice, side by side."""
    shared = {"a": [1]}
    assert values.decode(values.encode([shared, shared, {"b": shared}], "v"), "v")[2] == {"b": {"a": [1]}}
    with pytest.raises(ValueError, match=r"v\[2\]: nan has no form"):
        values.encode([shared, shared, math.nan], "v")


def test_models_become_json():
    """Dataclasses and pydantic models are stored as JSON."""
    pydantic = pytest.importorskip("pydantic")

    @dataclasses.dataclass
    class Point:
        x: int

    class Trip(pydantic.BaseModel):
        when: dt.date
        points: list[int]

    assert values.decode(values.encode([Point(1)], "v"), "v") == [{"x": 1}]
    trip = Trip(when=dt.date(2026, 1, 2), points=[1])
    assert values.decode(values.encode(trip, "v"), "v") == {"when": "2026-01-02", "points": [1]}


@pytest.mark.parametrize(
    ("value", "kind", "place"),
    [
        ({"when": dt.datetime(2026, 1, 1, tzinfo=dt.UTC)}, TypeError, "slots.goal.when"),
        ({"a": [1, {"b": math.nan}]}, ValueError, r"slots.goal.a\[1\].b"),
        ({"a": {1: 2}}, TypeError, "slots.goal.a: the key 1"),
        ({"a": {1, 2}}, TypeError, "slots.goal.a"),
        ({"a": b"x"}, TypeError, "slots.goal.a"),
        ([float("inf")], ValueError, r"slots.goal\[0\]"),
    ],
)
def test_refusals_name_the_place(value, kind, place):
    """What JSON cannot say is refused, with the place."""
    with pytest.raises(kind, match=place):
        values.encode(value, "slots.goal")


def test_a_value_that_contains_itself():
    """A cycle is an error, not a crash."""
    value = []
    value.append(value)
    with pytest.raises(ValueError, match="contains itself"):
        values.encode(value, "v")


def test_broken_bytes():
    """Bytes that are not what they claim raise by name, and listings show them raw."""
    broken = state_pb2.Value(media_type="application/json", data=b"{")
    with pytest.raises(ValueError, match=r"slots\.x"):
        values.decode(broken, "slots.x")
    assert values.decode_leniently(broken) == values.RawValue("application/json", b"{")
    unknown = state_pb2.Value(media_type="application/x-protobuf; type=no.Such", data=b"1")
    assert values.decode(unknown, "v") == values.RawValue(unknown.media_type, b"1")


def test_decoded_when_read(monkeypatch):
    """A state decodes a slot or an entry when it is first read, and keeps the object."""
    decoded = []
    monkeypatch.setitem(values._decoders, "test/lazy", lambda data: decoded.append(data) or [data])
    stored = [state_pb2.Value(media_type="test/lazy", data=bytes([each])) for each in range(3)]
    state = State(slots={"a": stored[0]}, logs={"l": Log("l", stored[1:])})
    log = state.logs["l"]
    assert (decoded, len(log), "a" in state.slots, repr(log)) == ([], 2, True, "Log('l', 2 entries from index 0)")
    assert log[1] is log[1]
    assert state.slots["a"] is state.slots["a"]
    assert decoded == [b"\2", b"\0"]


def test_registered_codec():
    """A registered type is stored by its codec, subclasses too."""
    values.register_codec(
        "application/x-date",
        dt.date,
        lambda d: d.isoformat().encode(),
        lambda b: dt.date.fromisoformat(b.decode()),
    )
    try:
        found = values.decode(values.encode(dt.date(2026, 1, 2), "v"), "v")
    finally:
        values._encoders.clear()
        values._decoders.clear()
    assert found == dt.date(2026, 1, 2)


def test_msgpack_round_trip():
    """A value marked as msgpack comes back with bytes that JSON could not hold, and is stored again as msgpack."""
    pytest.importorskip("msgpack")
    stored = values.encode(values.MsgPack({"a": [1, b"x"]}), "v")
    found = values.decode(stored, "v")

    assert stored.media_type == "application/msgpack"
    assert getattr(found, "value", found) == {"a": [1, b"x"]}
    assert values.encode(found, "v") == stored
