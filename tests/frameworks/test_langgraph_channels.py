"""The danger: the edits between two checkpoints give another value than the one that the graph had."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateward.v1.diff_pb2 import Diff
from stateward.v1.state_pb2 import State
from stateward_sidecar.codec.edits import apply_edits
from stateward_sidecar.codec.state import EMPTY, StateTree, wire

pytest.importorskip("langgraph.checkpoint.base", reason="the extra langgraph is not installed")
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from stateward.langgraph._channels import Edits, Stored, common_prefix, read_channels

SERDE = JsonPlusSerializer()
SCALARS = st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=5) | st.binary(max_size=5)
# Few leaves: a list has twenty values, and to make a hundred leaves for each takes ten times as long as the test.
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner), max_leaves=8
)
LISTS = st.lists(VALUES, max_size=20)
CHANNELS = st.dictionaries(st.sampled_from("abc"), VALUES | LISTS, max_size=3)


class Kept:
    """A state, and what the saver remembers of it."""

    def __init__(self) -> None:
        self.tree: StateTree = EMPTY
        self.stored: dict[str, Stored] = {}
        self.version = 0

    def become(self, channels: dict[str, Any]) -> Diff:
        """Applies the edits to these channels as the daemon does, and compares what is there then."""
        edits = Edits(SERDE, self.stored, is_new=self.version == 0)
        for name, value in channels.items():
            edits.put(name, value)
        edits.finish()
        self.version += 1
        diff = Diff(edits=edits.edits)
        self.tree = apply_edits(self.tree, diff, self.version)
        state = State.FromString(wire(self.tree))
        read = read_channels(state.slots, state.logs)
        values = {name: SERDE.loads_typed((each.kind, each.data)) for name, each in read.items()}
        assert values.keys() == channels.keys()
        for name, value in channels.items():
            assert SERDE.dumps_typed(values[name]) == SERDE.dumps_typed(value)
            assert read[name].data == edits.channels[name].data
        is_known = all(each.first is not None for each in edits.channels.values())
        assert not is_known or edits.channels == read
        self.stored = edits.channels if is_known else read
        return diff


@settings(max_examples=100, deadline=None)
@given(st.lists(CHANNELS, min_size=1, max_size=5))
def test_every_step_leads_to_the_values_of_the_graph(steps: list[dict[str, Any]]) -> None:
    """Any values in any order: lists that grow, shrink, change their kind or go, and come again."""
    kept = Kept()
    for channels in steps:
        kept.become(channels)


@given(st.binary(max_size=12), st.binary(max_size=12), st.integers(0, 3))
def test_the_common_prefix(a: bytes, b: bytes, start: int) -> None:
    """As a loop over the bytes finds it."""
    a, b = a.rjust(start), b.rjust(start)
    count = 0
    while count < min(len(a), len(b)) - start and a[start + count] == b[start + count]:
        count += 1
    assert common_prefix(a, start, b, start) == count


def test_a_new_message_is_all_that_is_sent() -> None:
    """Also of a long log of messages, and over the borders where the header of a list grows."""
    kept = Kept()
    messages = [HumanMessage(f"message {number}", id=str(number)) for number in range(14)]
    for number in range(14, 18):
        kept.become({"messages": list(messages)})
        messages.append(HumanMessage(f"message {number}", id=str(number)))
    diff = kept.become({"messages": list(messages)})
    (edit,) = diff.edits
    assert (len(edit.append.entries), edit.append.at_index) == (1, 17)


def test_a_message_that_was_changed_in_place_is_found() -> None:
    """The entries from it on are written again, those before it are not."""
    kept = Kept()
    messages = [{"text": "x" * 100_000, "n": number} for number in range(5)]
    kept.become({"messages": messages})
    messages[3]["n"] = 30
    diff = kept.become({"messages": messages})
    assert [edit.WhichOneof("edit") for edit in diff.edits] == ["trim_log", "append"]
    assert diff.edits[0].trim_log.from_index == 3
    assert len(diff.edits[1].append.entries) == 2
