"""The danger: a large message that is encoded piece by piece has other bytes than protobuf's, so digests differ or
fields get lost."""

from __future__ import annotations

import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st
from tests.codec.test_state import trees
from tests.messages import to_write

from stateward.v1.checkpoint_service_pb2 import SaveRequest
from stateward.v1.diff_pb2 import Diff
from stateward.v1.state_pb2 import State, Value
from stateward.v1.thread_pb2 import ThreadOptions
from stateward_sidecar.codec import pieces
from stateward_sidecar.codec.diff import diff_trees
from stateward_sidecar.codec.pieces import count_bytes, encode, encode_pieces
from stateward_sidecar.codec.state import EMPTY, StateTree, to_message

# A number, a text, 4 and 8 bytes, in fields that no message has.
UNKNOWN = b"\xc0\x3e\x05\xc2\x3e\x03abc\xc5\x3e\x01\x02\x03\x04\xc1\x3e\x01\x02\x03\x04\x05\x06\x07\x08"


def plain(message: Message) -> bytes:
    data: bytes = message.SerializeToString(deterministic=True)
    return data


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that little is taken apart as much is."""
    monkeypatch.setattr(pieces, "_MANY_ENTRIES", 1)
    monkeypatch.setattr(pieces, "_PIECE_BYTES", 64)


def request(**content: Message) -> SaveRequest:
    return to_write(
        SaveRequest,
        thread="t", step=0, labels={"b": "1", "a": "2", "é": ""}, metrics={"z": 1.5, "a": 0}, ack_signals=["1", ""],
        metadata=Value(number=0), request_id="r", create=ThreadOptions(labels={"y": "1", "x": "2"}), **content,
    )  # fmt: skip


@given(trees())
def test_states(tree: StateTree) -> None:
    """Slots and logs come by name, whatever their order in memory."""
    sent = request(state=to_message(tree))
    assert encode(sent) == plain(sent)
    assert count_bytes(sent) == sent.ByteSize()


@given(trees(), st.booleans())
def test_edits(tree: StateTree, is_empty: bool) -> None:
    """Edits come in their order."""
    sent = request(diff=Diff() if is_empty else diff_trees(EMPTY, tree))
    assert encode(sent) == plain(sent)


def test_what_newer_clients_say_stays() -> None:
    """Fields that this daemon does not know come last, in each message, as protobuf has them."""
    sent = request(state=State(slots={"a": Value(data=b"x"), "b": Value()}, logs={"l": {"entries": [{"data": b"y"}]}}))
    for message in (sent, sent.state, sent.state.logs["l"], sent.state.logs["l"].entries[0], sent.state.slots["a"]):
        message.MergeFromString(UNKNOWN)
    assert encode(sent) == plain(sent)
    diff = Diff(edits=[{"append": {"log": "l", "at_index": 0, "entries": [{"data": b"x"}]}}, {}])
    for message in (diff.edits[0].append, diff.edits[0], diff.edits[1], diff):
        message.MergeFromString(UNKNOWN)
    assert encode(diff) == plain(diff)


def test_pieces_have_a_size() -> None:
    """Little things are put together, so that many of them are no list of little things."""
    sent = request(state=State(logs={"l": {"entries": [{"data": b"12345678"}] * 100}}))
    found = encode_pieces(sent)
    assert b"".join(found) == plain(sent)
    assert len(found) < 25
