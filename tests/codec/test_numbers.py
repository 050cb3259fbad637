"""The danger: a count that is lost, or a stored edit that says something else when it is replayed."""

from __future__ import annotations

import json
from hashlib import sha256

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.codec.edit_model import Conflict, Model, edit_of, edits, history
from tests.codec.test_state import slot_values, trees

from stateward.cli.files.exporting import edit_from_json, edit_to_json, value_from_json, value_to_json
from stateward.v1.diff_pb2 import Diff, Edit
from stateward.v1.state_pb2 import BlobRef, Value
from stateward_sidecar.codec.diff import shrink
from stateward_sidecar.codec.edits import apply_edits
from stateward_sidecar.codec.state import EMPTY, StateTree
from stateward_sidecar.errors import EditConflict

MOST = (1 << 63) - 1


def added(slot: str, delta: int) -> Diff:
    """A diff that counts."""
    return edit_of("add_number", slot=slot, delta=delta)


def number(tree: StateTree, slot: str) -> int:
    """The number in a slot."""
    value = Value.FromString(tree.slots[slot])
    assert value.HasField("number")
    return value.number


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(-9, 9)), max_size=12), st.randoms())
def test_counts_add_up_in_any_order(counts: list[tuple[str, int]], order: object) -> None:
    """Whatever the order in which increments arrive, and however they are bundled, the state is the same."""
    shuffled = list(counts)
    order.shuffle(shuffled)  # type: ignore[attr-defined]
    one_by_one = history(*(added(*each) for each in shuffled))
    together = apply_edits(EMPTY, Diff(edits=[edit for each in counts for edit in added(*each).edits]), 1)
    assert one_by_one == together
    assert {slot: number(together, slot) for slot in together.slots} == {
        slot: sum(delta for name, delta in counts if name == slot) for slot, _ in counts
    }


@pytest.mark.parametrize(("start", "delta"), [(MOST, 1), (-MOST - 1, -1), (MOST, MOST), (-1, -MOST - 1)])
def test_no_count_wraps(start: int, delta: int) -> None:
    """A sum that leaves 64 bits is refused and leaves the number; one that just fits is taken."""
    tree = history(added("n", start))
    with pytest.raises(EditConflict, match="int64") as caught:
        apply_edits(tree, added("n", delta), 2)
    assert (caught.value.field, number(tree, "n")) == ("diff.edits[0].add_number.delta", start)
    assert number(apply_edits(tree, added("n", -1 if start > 0 else 1), 2), "n") in (MOST - 1, -MOST, 0)


@settings(max_examples=60)
@given(trees(), st.data())
def test_what_is_stored_replays_to_the_same(tree: StateTree, data: st.DataObject) -> None:
    """A diff as it is stored gives what it gave when it was saved, without asking what it expected again."""
    model, diff = Model.of(tree), Diff()
    for _ in range(data.draw(st.integers(1, 6))):
        edit = data.draw(edits(model))
        try:
            model.apply(edit, 7)
        except Conflict:
            continue
        diff.edits.append(edit)
    sent = diff.SerializeToString()
    stored = shrink(tree, diff)
    assert apply_edits(tree, Diff.FromString(stored.SerializeToString()), 7) == apply_edits(tree, diff, 7)
    assert diff.SerializeToString() == sent, "the request is made anew where its base moved: it must stay as it is"
    assert not any(edit.set_slot.HasField("expected_sha256") for edit in stored.edits)
    counted = [edit for edit in diff.edits if edit.HasField("add_number")]
    assert [edit for edit in stored.edits if edit.HasField("add_number")] == counted


def test_expected_of_what_holds_no_bytes() -> None:
    """A number is expected by its digits, a blob by the SHA-256 that names it."""
    blob = BlobRef(sha256=b"b" * 32, size_bytes=9)
    tree = history(added("n", -12), edit_of("set_slot", slot="b", value=Value(blob=blob)))
    for slot, digest in (("n", sha256(b"-12").digest()), ("b", blob.sha256)):
        fitting = edit_of("set_slot", slot=slot, value=Value(data=b"x"), expected_sha256=digest)
        assert Value.FromString(apply_edits(tree, fitting, 3).slots[slot]).data == b"x"
        with pytest.raises(EditConflict):
            apply_edits(apply_edits(tree, fitting, 3), fitting, 4)


@given(slot_values, st.sampled_from(["set", "add"]), st.integers(-MOST - 1, MOST))
def test_an_export_carries_numbers(value: Value, kind: str, delta: int) -> None:
    """Values and edits come back from their JSON as they were."""
    edit = Edit()
    if kind == "set":
        edit.set_slot.slot = "s"
        edit.set_slot.value.CopyFrom(value)
    else:
        edit.add_number.slot, edit.add_number.delta = "s", delta
    read = Edit()
    edit_from_json(json.loads(json.dumps(edit_to_json(edit))), read)
    assert read == edit
    assert value_from_json(json.loads(json.dumps(value_to_json(value)))) == value
