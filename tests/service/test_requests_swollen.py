"""The danger: a request of a few kilobytes becomes gigabytes in memory when it is parsed, and ends the daemon."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import DecodeError, Message
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.daemon.wire import appends, refusal_of, refused, sets, state
from tests.service.conftest import Place

from stateward.v1.checkpoint_service_pb2 import BatchSaveRequest, HydrateRequest, SaveRequest
from stateward.v1.diff_pb2 import Diff
from stateward.v1.state_pb2 import Value
from stateward.v1.thread_service_pb2 import GetThreadRequest
from stateward_sidecar.errors import InvalidField
from stateward_sidecar.service.admission import weight
from stateward_sidecar.service.admission.weight import count_items

MIB = 1 << 20
CHECKPOINTS = "/stateward.v1.CheckpointService/"
# Fields of the contract, by number.
SAVES, DIFF, EDITS, APPEND, ENTRIES, METADATA, LABELS = 1, 9, 1, 4, 2, 15, 14


def field(number: int, *contents: bytes) -> bytes:
    """A field that holds a message, once for each content."""
    return b"".join(varint(number << 3 | 2) + varint(len(content)) + content for content in contents)


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def empty(number: int, count: int) -> bytes:
    return field(number, b"") * count


MANY = 3000
SWOLLEN: dict[str, tuple[type[Message], bytes, str]] = {
    "saves": (BatchSaveRequest, empty(SAVES, MANY), "saves"),
    "edits": (SaveRequest, field(DIFF, empty(EDITS, MANY)), "diff.edits"),
    "entries": (
        SaveRequest, field(DIFF, field(EDITS, field(APPEND, empty(ENTRIES, MANY)))), "diff.edits.append.entries",
    ),
    "labels": (SaveRequest, empty(LABELS, MANY), "labels"),
    # Each turn makes a new object and drops the one before, which stays in memory until the message is freed.
    "turns": (SaveRequest, field(METADATA, (field(3, b"") + field(2, b"")) * MANY), "metadata.blob"),
    "unknown": (SaveRequest, field(2000, b"") * MANY, "request"),
}  # fmt: skip


@pytest.mark.parametrize("kind", SWOLLEN)
def test_what_swells_is_named_by_its_field(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists, maps, values that change and fields that nobody knows: counting ends at a limit, with the field."""
    monkeypatch.setattr(weight, "ITEMS_MAX", 1000)
    monkeypatch.setattr(weight, "FIELDS_MAX", 2000)
    message, raw, expected = SWOLLEN[kind]
    with pytest.raises(InvalidField) as refusal:
        count_items(message.DESCRIPTOR, raw)
    assert refusal.value.field == expected


def test_a_request_of_a_million_empty_saves_is_refused_before_it_is_parsed(untouched: Place) -> None:
    """Two bytes on the wire would be 300 in memory; the error names the field, and the daemon does not grow."""
    before = anonymous_bytes(untouched.daemon.pid)
    call = untouched.wire.channel.unary_unary(CHECKPOINTS + "BatchSave", lambda data: data, lambda data: data)
    with pytest.raises(grpc.RpcError) as failed:
        call(empty(SAVES, MIB), timeout=60)
    found = refusal_of(failed.value)
    assert (found.reason, found.field) == ("INVALID_FIELD", "saves")
    assert anonymous_bytes(untouched.daemon.pid) - before < 64 * MIB


def anonymous_bytes(pid: int) -> int:
    """What a process has of its own."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) << 10


def test_a_method_that_needs_little_takes_little(untouched: Place) -> None:
    """Only what carries states, values or blobs may be larger than 1 MiB."""
    at = {"namespace": untouched.namespace, "thread": "x" * (2 * MIB)}
    found = refused(untouched.wire.threads.GetThread, GetThreadRequest(**at))
    assert (found.reason, found.metadata["limit_bytes"]) == ("STATE_TOO_LARGE", str(MIB))
    assert refused(untouched.wire.checkpoints.Hydrate, HydrateRequest(**at)).reason == "STATE_TOO_LARGE"


MESSAGES: list[Message] = [
    SaveRequest(thread="t", diff=appends("a", "b"), labels={"k": "v", "l": "w"}, ack_signals=["x", "y", "z"]),
    SaveRequest(thread="t", state=state("one", "two", goal="Paris"), metadata=Value(number=3), metrics={"m": 1.5}),
    BatchSaveRequest(saves=[SaveRequest(thread="a", diff=sets("s", "x" * 300)), SaveRequest(thread="b", diff=Diff())]),
]


def items(message: Message) -> int:
    """The same count of a parsed message."""
    found = 0
    for described, value in message.ListFields():
        if described.message_type is None:
            found += len(value) if described.is_repeated else 0
        elif not described.is_repeated:
            found += 1 + items(value)
        elif described.message_type.GetOptions().map_entry:
            inner = value.values() if described.message_type.fields_by_name["value"].message_type else ()
            found += len(value) + sum(1 + items(each) for each in inner)
        else:
            found += sum(1 + items(each) for each in value if not isinstance(each, Value)) + sum(
                isinstance(each, Value) for each in value
            )
    return found


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_counting_sees_what_parsing_makes(message: Message) -> None:
    """Each message and each repeated value is counted once."""
    assert count_items(message.DESCRIPTOR, message.SerializeToString()) == items(message)


@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_cut_or_changed_bytes_are_no_message_or_counted(data: st.DataObject) -> None:
    """Whatever bytes come, counting ends, and raises nothing but the two errors that the boundary knows."""
    raw = bytearray(data.draw(st.sampled_from(MESSAGES)).SerializeToString())
    for _ in range(data.draw(st.integers(0, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    del raw[data.draw(st.integers(0, len(raw))) :]
    for kind in (SaveRequest, BatchSaveRequest):
        try:
            assert count_items(kind.DESCRIPTOR, bytes(raw)) >= 0
        except (DecodeError, InvalidField):
            continue


def test_the_largest_legitimate_lists_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list at its limit is counted, one beyond is refused, and so is the sum of many lists."""
    monkeypatch.setattr(weight, "ITEMS_MAX", 1000)
    check: Callable[[bytes], Any] = lambda raw: count_items(SaveRequest.DESCRIPTOR, raw)  # noqa: E731
    assert check(field(DIFF, empty(EDITS, 999))) == 1000
    with pytest.raises(InvalidField, match="1,000 edits, entries"):
        check(field(DIFF, empty(EDITS, 1000)))
