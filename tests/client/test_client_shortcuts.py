"""The danger: a fast path of the client gives another value, drops an option, or leaves out a codec that a user
registered."""

import json
from datetime import UTC
from types import SimpleNamespace

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from stateward import Blob, Log, RawValue, State, Text, values
from stateward._operations.saving import SaveOptions, bare_request
from stateward._operations.steps import Await, Call, Pause, ThreadRef, with_retries
from stateward.effects import Effect
from stateward.errors import Unavailable
from stateward.fromproto import read_time
from stateward.models import Durability, Status, Tree
from stateward.options import ThreadOptions
from stateward.signals import Question
from stateward.v1 import checkpoint_pb2, signal_pb2, state_pb2
from stateward.v1 import checkpoint_service_pb2 as checkpoints
from stateward.v1.workspace_pb2 import TREE_OBJECT_KIND_CHUNK, TreeObject, TreeRef
from stateward.v1.write_pb2 import WriteOptions
from stateward.workspaces import Snapshot

CHUNK = TreeObject(kind=TREE_OBJECT_KIND_CHUNK, digest=b"c" * 32, data=b"x")

ODD_JSON = [
    *(b'{"a":1,"a":2}', b"123456789012345678901234567890", b"9" * 5000, b"1.0", b"-0.0", b"1e400", b"-0", b"true"),
    *(b"NaN", b"[-Infinity]", b'"\\ud800"', b'"\xed\xa0\x80"', b'"\xff"', b'"\xc3\xa9"', b'"\x01"', b'"\x00"'),
    *(b"", b" ", b" 1", b"1 \n", b"1 2", b"1,2", b"[1", b"[1]]", b"[1,]", b"nul", b"{'a':1}", b"\xef\xbb\xbf[1]"),
    *('{"é":1}'.encode(encoding) for encoding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le")),
    *(text.encode("utf-16-le") for text in ("1", '"1"', "[]")),
    b"[" * 100_000,
]
JSON_LIKE = st.one_of(
    st.binary(max_size=8),
    st.text('[]{}",:0123456789.-eE truefalsn\\ud8\ufeff\x00', max_size=12).map(str.encode),
    st.tuples(
        st.recursive(st.none() | st.floats() | st.integers() | st.text(), st.lists).map(json.dumps),
        st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32-be"]),
    ).map(lambda drawn: drawn[0].encode(drawn[1])),
)


def outcome(media_type, data):
    """What a value is decoded as, down to types and signs, or the error's text."""
    try:
        return repr(values.decode(state_pb2.Value(media_type=media_type, data=data), "v"))
    except ValueError as error:
        return str(error).replace(media_type, "?")


@pytest.mark.parametrize("data", ODD_JSON, ids=lambda data: repr(data[:20]))
def test_odd_json(data):
    """Odd and broken JSON is decoded, or refused, in the same words as under a media type that has no shortcut."""
    assert outcome("application/json", data) == outcome("application/json;", data)


@given(JSON_LIKE)
def test_any_json(data):
    """So are any bytes that resemble JSON."""
    assert outcome("application/json", data) == outcome("application/json;", data)


def test_a_registered_codec_comes_first():
    """A codec registered for JSON and dict is used for both directions."""
    values.register_codec("application/json", dict, lambda value: b"[1]", lambda data: ("mine", data))
    try:
        stored = values.encode({"a": 1}, "v")
        found = values.decode(stored, "v")
    finally:
        values._encoders.clear()
        values._decoders.clear()
    assert found == ("mine", b"[1]")


def mixed_log():
    """JSON, JSON with spaces, broken JSON, text, bytes and a blob, from index 5 on."""
    blob = values.encode(Blob("application/json", b"1" * 32, 5), "v")
    data = {"application/json": [b'{"n":[0]}', b' { "n" : [1] } ', b'{"n":'], "text/plain": [b"{}"], "x/y": [b"1"]}
    entries = [state_pb2.Value(media_type=kind, data=each) for kind, found in data.items() for each in found]
    return Log("l", [*entries, blob, entries[0]], 5)


def test_broken_entry_in_a_log():
    """Iteration gives what stands before a broken entry, names that one, and the others can still be read."""
    log, seen = mixed_log(), []
    with pytest.raises(ValueError, match=r"logs\.l\[2\]: the stored bytes are not application/json"):
        seen.extend(each["n"] for each in log)
    assert seen == [[0], [1]]
    assert [next(iter(log)), log[1]] == [{"n": [0]}, {"n": [1]}]
    rest = [Text("{}"), RawValue("x/y", b"1"), Blob("application/json", b"1" * 32, 5), {"n": [0]}]
    assert log[3:] == rest
    assert list(map(type, log[3:])) == list(map(type, rest))
    assert log.raw(2) == RawValue("application/json", b'{"n":')


def test_edits_in_place_are_found():
    """An edit deep inside one of the entries that were read is all that a save sends."""
    log = mixed_log()
    state = State(logs={"l": log})
    assert log[:2] + log[3:]
    assert not state._collect().diff.edits
    log[6]["n"].append("new")
    [edit] = state._collect().diff.edits
    assert (edit.replace_entry.index, edit.replace_entry.value.data) == (11, b'{"n":[0,"new"]}')


def test_every_option_is_sent():
    """Each option of a save reaches its field of the request, in the form that the contract asks for."""
    given: SaveOptions = {
        "step": 0,
        "status": "waiting",
        "status_detail": "d",
        "checkpoint_id": "c",
        "labels": {"a": "b"},
        "attributes": {"n": 1},
        "metadata": {"m": 1},
        "metrics": {"x": 1.5},
        "schema_version": 3,
        "durability": "archived",
        "request_id": "r",
        "create": ThreadOptions(agent="z"),
        "overwrite": True,
        "wait_id": "w",
        "lease": SimpleNamespace(token=7),
        "effects": [Effect("k", "v")],
        "question": Question("sure?", {"type": "boolean"}),
        "ack": ["s1"],
        "guard": SimpleNamespace(thread="g", token=8),
        "on_mismatch": "fork",
        "fork_branch": "f",
        "workspace": Snapshot(Tree(b"d" * 32, 1, 2), 1, 2, 1, 2, (), (), (), None, "n", "t", (CHUNK,), lambda: None),
    }
    assert given.keys() == SaveOptions.__annotations__.keys()
    expected = checkpoints.SaveRequest(
        namespace="n",
        thread="t",
        branch="main",
        step=0,
        status=Status.WAITING,
        status_detail="d",
        checkpoint_id="c",
        labels={"a": "b"},
        attributes={"n": checkpoint_pb2.AttributeValue(int_value=1)},
        metadata=values.encode({"m": 1}, "metadata"),
        metrics={"x": 1.5},
        schema_version=3,
        options=WriteOptions(
            request_id="r", lease_token=7, durability=Durability.ARCHIVED, create=ThreadOptions(agent="z").to_proto()
        ),
        overwrite=True,
        wait_id="w",
        effects=[Effect("k", "v").to_proto()],
        question=signal_pb2.Question(prompt="sure?", answer_schema='{"type": "boolean"}'),
        ack_signals=["s1"],
        guard=checkpoints.LeaseGuard(thread="g", token=8),
        on_mismatch=checkpoints.ON_MISMATCH_FORK,
        fork_branch="f",
        workspace=TreeRef(digest=b"d" * 32, files=1, size_bytes=2),
        objects=[CHUNK],
    )
    assert bare_request(ThreadRef("n", "t", "main"), given) == expected
    nothing = bare_request(ThreadRef("n", "t", "main"), dict.fromkeys(given))
    assert len(nothing.options.request_id) == 32
    assert [field.name for field, _ in nothing.ListFields()] == ["namespace", "thread", "options", "branch"]
    with pytest.raises(TypeError, match="no option stpe"):
        bare_request(ThreadRef("n", "t", "main"), {"stpe": 1})


@given(st.datetimes(), st.integers(0, 999))
def test_times(time, nanos):
    """A time is read as protobuf's own reader reads it: in UTC, nanoseconds cut off."""
    stamp = Timestamp()
    stamp.FromDatetime(time.replace(tzinfo=UTC))
    stamp.nanos += nanos
    assert read_time(stamp) == stamp.ToDatetime(tzinfo=UTC) == time.replace(tzinfo=UTC)


def test_only_calls_are_repeated():
    """A call that fails is repeated after a pause until it succeeds; what the caller awaits is not repeated."""
    call, waiting, failure = Call("Save", checkpoints.SaveRequest()), Await(None), Unavailable("away")

    def operation():
        assert (yield call) == "saved"
        try:
            yield waiting
        except Unavailable as error:
            return error

    steps = with_retries(operation(), lambda: 60.0)
    assert next(steps) is call
    for _ in range(3):
        assert isinstance(steps.throw(failure), Pause)
        assert steps.send(None) is call
    assert steps.send("saved") is waiting
    with pytest.raises(StopIteration) as end:
        steps.throw(failure)
    assert end.value.value is failure
