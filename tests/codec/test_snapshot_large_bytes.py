"""The danger: nobody is served while a large snapshot is parsed; and what is taken apart by hand is read wrongly."""

from __future__ import annotations

import os
import tracemalloc
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.codec.test_state import as_snapshot, trees

from stateward.storage.v1.snapshot_pb2 import NamedLog, NamedValue, RetiredLog, Snapshot
from stateward.v1.state_pb2 import Value
from stateward_sidecar.codec import snapshot
from stateward_sidecar.codec.entries import Entries
from stateward_sidecar.codec.snapshot import from_snapshot, to_snapshot
from stateward_sidecar.codec.state import LogState, StateTree
from stateward_sidecar.errors import Corrupt

sizes = st.integers(1, 200)


@given(trees(), sizes, sizes)
def test_pieces_of_any_size_give_the_same_state(tree: StateTree, parsed: int, copied: int) -> None:
    """Slots, logs and entries are read as a whole or in pieces, wherever these end."""
    with patch.object(snapshot, "PARSED_BYTES", parsed), patch.object(snapshot, "COPIED_BYTES", copied):
        assert from_snapshot(to_snapshot(tree)) == tree


@given(trees(), sizes)
def test_fields_of_later_versions_are_passed_over(tree: StateTree, parsed: int) -> None:
    """Numbers of each kind, and bytes, of tags that this version does not know."""
    unknown = b"\xa0\x06\x96\x01" + b"\xa9\x06" + bytes(8) + b"\xb2\x06\x03abc" + b"\xbd\x06" + bytes(4)
    message = as_snapshot(tree)
    for each in (message, *message.slots, *message.logs):
        each.MergeFromString(unknown)
    with patch.object(snapshot, "PARSED_BYTES", parsed):
        assert from_snapshot(message.SerializeToString()) == tree


@pytest.mark.parametrize(
    "data",
    [
        Snapshot(slots=[NamedValue(name="a"), NamedValue(name="a")]).SerializeToString(),
        Snapshot(logs=[NamedLog(name="a"), NamedLog(name="a")]).SerializeToString(),
        Snapshot(retired_logs=[RetiredLog(name="a"), RetiredLog(name="a")]).SerializeToString(),
        Snapshot(slots=[NamedValue(name="a", value=Value(data=bytes(9)))]).SerializeToString()[:-1],
        b"\x0a\x05a", b"\x0a\x05\x12\x09abc", b"\x0a", b"\x0a\xff", b"\x0b\x00", b"\x09\x00", b"\x08\xff",
    ],
)  # fmt: skip
def test_broken_in_pieces(data: bytes) -> None:
    """Bytes that are no snapshot, or hold a name twice, are corrupt, wherever the pieces end."""
    for parsed in range(1, len(data) + 1):
        with patch.object(snapshot, "PARSED_BYTES", parsed), pytest.raises(Corrupt):
            from_snapshot(data)


def test_nothing_large_is_parsed() -> None:
    """Large values in a slot and in a log cost a copy, and a parser sees a piece of the rest at a time."""
    slots = {"large": Value(data=os.urandom(5 << 20)).SerializeToString()}
    slots |= {f"s{number}": Value(data=bytes(1000)).SerializeToString() for number in range(3000)}
    items = [Value(data=bytes(size)).SerializeToString() for size in (*[1000] * 3000, 3 << 20, 7)]
    tree = StateTree.of(slots, {"log": LogState(3, Entries.of(items), 2)}, {"gone": 5})
    seen: list[int] = []

    def watched(tag: int, start: int, content: int, stop: int) -> snapshot._Span:
        seen.append(stop - start if not tag else 0)
        return span_of(tag, start, content, stop)

    span_of = snapshot._Span
    with patch.object(snapshot, "_Span", watched):
        assert from_snapshot(to_snapshot(tree)) == tree
    assert len(seen) > 5
    assert max(seen) < snapshot.PARSED_BYTES + 2000


def test_a_large_value_is_copied_twice_at_most() -> None:
    """Reading a snapshot with a large value takes the memory of its slices and of the value that they are joined to."""
    size_bytes = 30 << 20
    data = to_snapshot(StateTree.of({"s": Value(data=os.urandom(size_bytes)).SerializeToString()}, {}, {}))
    tracemalloc.start()
    try:
        tree = from_snapshot(data)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert tree.slots["s"]
    assert peak_bytes < 2.1 * size_bytes
