"""The danger: an edit is applied to the wrong place, half applied before it is refused, or skipped because nobody knows
it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.codec.edit_model import Conflict, Model, edit_of, edits, history, to_tree
from tests.codec.test_state import count_bytes, trees

from stateward.v1.diff_pb2 import (
    Append,
    Diff,
    Edit,
    Splice,
)
from stateward.v1.state_pb2 import State, Value
from stateward_sidecar.codec import draft as draft_module
from stateward_sidecar.codec.edits import (
    apply_edits,
    check_diff,
    check_name,
    check_state,
    check_value,
    only_commutative,
)
from stateward_sidecar.codec.entries import Entries
from stateward_sidecar.codec.state import EMPTY, LogState, StateTree
from stateward_sidecar.errors import EditConflict, InvalidField


@given(trees(), st.data())
def test_apply_agrees_with_the_model(tree: StateTree, data: st.DataObject) -> None:
    """Edits give what the model gives, in one diff or one by one; what it refuses is refused, and leaves no trace."""
    model, before, fitting = Model.of(tree), copy.deepcopy(tree), Diff()
    stepwise = tree
    for _ in range(data.draw(st.integers(0, 12))):
        edit = data.draw(edits(model))
        tried = copy.deepcopy(model)
        try:
            tried.apply(edit, 7)
        except Conflict:
            with pytest.raises(EditConflict) as caught:
                apply_edits(tree, Diff(edits=[*fitting.edits, edit]), 7)
            assert caught.value.edit_index == len(fitting.edits)
            assert caught.value.field.startswith(f"diff.edits[{len(fitting.edits)}].{edit.WhichOneof('edit')}.")
            continue
        model = tried
        fitting.edits.append(edit)
        stepwise = apply_edits(stepwise, Diff(edits=[edit]), 7)
    together = apply_edits(tree, fitting, 7)
    assert together == stepwise == to_tree(model)
    assert together.size_bytes == stepwise.size_bytes == count_bytes(together)
    assert tree == before
    if not any(edit.WhichOneof("edit") == "splice_slot" and not edit.splice_slot.base_sha256 for edit in fitting.edits):
        check_diff(fitting)


def test_append_shares_everything_else() -> None:
    """One more entry leaves every other dict and list where it is."""
    tree = StateTree.of({"s": b"\x12\x00"}, {"m": LogState(0, Entries.of([b"\x12\x00"] * 3))}, {})
    grown = apply_edits(tree, Diff(edits=[Edit(append=Append(log="m", entries=[Value(data=b"x")]))]), 1)
    assert grown.slots is tree.slots
    assert grown.retired is tree.retired
    assert grown.logs["m"].entries._items is tree.logs["m"].entries._items
    assert (len(tree.logs["m"].entries), len(grown.logs["m"].entries)) == (3, 4)


def appended(count: int) -> Diff:
    """Adds so many entries to log m."""
    return edit_of("append", log="m", entries=[Value(data=b"x")] * count)


@pytest.mark.parametrize(
    ("trim", "first_index", "next_index", "rewritten_version"),
    [
        ({"keep_last": 2}, 3, 5, 2),
        ({"keep_last": 9}, 0, 5, 0),
        ({"before_index": 5}, 5, 5, 2),
        ({"before_index": 0}, 0, 5, 0),
        ({"from_index": 2}, 0, 2, 2),
        ({"from_index": 5}, 0, 5, 0),
        ({"from_index": 0}, 0, 0, 2),
    ],
)
def test_trim(trim: dict[str, int], first_index: int, next_index: int, rewritten_version: int) -> None:
    """Only what is cut from the end is numbered again, and only a trim that drops something rewrites."""
    log = history(appended(5), edit_of("trim_log", log="m", **trim)).logs["m"]
    assert (log.first_index, log.next_index, log.rewritten_version) == (first_index, next_index, rewritten_version)


def test_index_below_the_start_is_never_reached() -> None:
    """Cutting from an index that was trimmed at the start empties the log and gives no trimmed index out again."""
    trims = edit_of("trim_log", log="m", before_index=3), edit_of("trim_log", log="m", from_index=1)
    assert history(appended(5), *trims).logs["m"].first_index == 3


def test_deleted_log_continues() -> None:
    """A log made under a deleted one's name goes on with its indexes, and tells readers to start again."""
    tree = history(appended(5), edit_of("delete_log", log="m"))
    assert (tree.logs, tree.retired) == ({}, {"m": 5})
    log = apply_edits(tree, appended(1), 3).logs["m"]
    assert (log.first_index, log.rewritten_version) == (5, 3)


def test_log_deleted_in_the_diff_that_made_it() -> None:
    """A log that one diff makes, deletes and makes again is counted once."""
    diff = Diff(edits=[*appended(2).edits, *edit_of("delete_log", log="m").edits, *appended(1).edits])
    tree = apply_edits(EMPTY, diff, 1)
    assert (tree.logs["m"].first_index, tree.retired) == (2, {})
    assert tree.size_bytes == count_bytes(tree)


def test_edits_the_daemon_makes() -> None:
    """A splice without base and an append without entries are applied, and refused from clients."""
    tree = apply_edits(EMPTY, edit_of("set_slot", slot="s", value=Value(data=b"abc")), 1)
    spliced = edit_of("splice_slot", slot="s", splices=[Splice(offset=1, delete=1, insert=b"--")])
    assert Value.FromString(apply_edits(tree, spliced, 2).slots["s"]).data == b"a--c"
    assert len(apply_edits(tree, edit_of("append", log="m"), 2).logs["m"].entries) == 0
    for diff in (spliced, edit_of("append", log="m")):
        with pytest.raises(InvalidField):
            check_diff(diff)


def test_splice_keeps_unknown_fields() -> None:
    """A field of a value that this server does not know survives a splice."""
    tree = StateTree.of({"s": Value(media_type="m", data=b"abc").SerializeToString() + b"\x22\x01x"}, {}, {})
    spliced = apply_edits(tree, edit_of("splice_slot", slot="s", splices=[Splice(offset=3, insert=b"d")]), 2)
    assert spliced.slots["s"] == Value(media_type="m", data=b"abcd").SerializeToString() + b"\x22\x01x"


def test_splices_have_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Splices that copy a large slot over and over are refused, the first never."""
    monkeypatch.setattr(draft_module, "MAX_SPLICED_BYTES", 100)
    tree = apply_edits(EMPTY, edit_of("set_slot", slot="s", value=Value(data=bytes(500))), 1)
    bases = (sha256(b"x" * count + bytes(500)).digest() for count in range(2))
    first, second = (
        edit_of("splice_slot", slot="s", base_sha256=base, splices=[Splice(offset=0, insert=b"x")]).edits
        for base in bases
    )
    apply_edits(tree, Diff(edits=first), 2)
    with pytest.raises(EditConflict, match="set the slot"):
        apply_edits(tree, Diff(edits=[*first, *second]), 2)
    # Without a base, as only a backup may have them: the first of a slot is the daemon's own, and is not counted.
    one = edit_of("splice_slot", slot="s", splices=[Splice(offset=0, insert=b"x")])
    with pytest.raises(EditConflict, match="set the slot"):
        apply_edits(tree, Diff(edits=[*one.edits, *one.edits, *one.edits]), 2)


def test_unknown_edit_is_not_skipped() -> None:
    """An edit that is unset, or of a kind from the future, is refused by check and by apply."""
    for diff in (Diff(edits=[Edit()]), Diff.FromString(b"\x0a\x04\xfa\x07\x01x")):
        with pytest.raises(InvalidField, match=r"diff\.edits\[0\]"):
            check_diff(diff)
        with pytest.raises(EditConflict):
            apply_edits(EMPTY, diff, 1)


OK, BASE, NAME = Value(data=b""), bytes(32), "n" * 1025


@pytest.mark.parametrize(
    ("kind", "fields", "path"),
    [
        ("set_slot", {"slot": "", "value": OK}, "slot"),
        ("set_slot", {"slot": NAME, "value": OK}, "slot"),
        ("set_slot", {"slot": "s"}, "value"),
        ("set_slot", {"slot": "s", "value": Value(media_type="ü" * 128, data=b"")}, "value.media_type"),
        ("set_slot", {"slot": "s", "value": Value(media_type="m", number=1)}, "value.media_type"),
        ("set_slot", {"slot": "s", "value": OK, "expected_sha256": BASE[1:]}, "expected_sha256"),
        ("add_number", {"slot": "a\x7f", "delta": 1}, "slot"),
        ("delete_slot", {"slot": "a\x7f"}, "slot"),
        ("splice_slot", {"slot": "\x00", "base_sha256": BASE, "splices": [Splice()]}, "slot"),
        ("splice_slot", {"slot": "s", "base_sha256": BASE[1:], "splices": [Splice()]}, "base_sha256"),
        ("splice_slot", {"slot": "s", "base_sha256": BASE}, "splices"),
        ("splice_slot", {"slot": "s", "base_sha256": BASE, "splices": [Splice(offset=-1)]}, "splices[0].offset"),
        ("splice_slot", {"slot": "s", "base_sha256": BASE, "splices": [Splice(delete=-1)]}, "splices[0].delete"),
        (
            "splice_slot",
            {"slot": "s", "base_sha256": BASE, "splices": [Splice(offset=1, delete=2), Splice(offset=2)]},
            "splices[1].offset",
        ),
        ("append", {"log": "", "entries": [OK]}, "log"),
        ("append", {"log": "m"}, "entries"),
        ("append", {"log": "m", "entries": [OK, Value()]}, "entries[1]"),
        ("append", {"log": "m", "entries": [OK, Value(number=1)]}, "entries[1].number"),
        ("append", {"log": "m", "entries": [OK], "at_index": -1}, "at_index"),
        ("replace_entry", {"log": "", "value": OK}, "log"),
        ("replace_entry", {"log": "m", "index": -1, "value": OK}, "index"),
        ("replace_entry", {"log": "m"}, "value"),
        ("replace_entry", {"log": "m", "value": Value(number=1)}, "value.number"),
        ("trim_log", {"log": "", "keep_last": 1}, "log"),
        ("trim_log", {"log": "m"}, ""),
        ("trim_log", {"log": "m", "keep_last": -1}, "keep_last"),
        ("trim_log", {"log": "m", "before_index": -1}, "before_index"),
        ("trim_log", {"log": "m", "from_index": -1}, "from_index"),
        ("delete_log", {"log": "a\x85"}, "log"),
    ],
)
def test_check_diff_names_the_field(kind: str, fields: dict[str, object], path: str) -> None:
    """What is wrong without any state is refused, with the path of the field."""
    diff = Diff(edits=[*appended(1).edits, *edit_of(kind, **fields).edits])
    with pytest.raises(InvalidField) as caught:
        check_diff(diff, "saves[2].diff")
    assert caught.value.field == f"saves[2].diff.edits[1].{kind}" + (f".{path}" if path else "")


def test_check_diff_counts() -> None:
    """100,000 edits are allowed, one more is not."""
    diff = Diff(edits=[edit_of("delete_slot", slot="s").edits[0]] * 100_000)
    check_diff(diff)
    diff.edits.append(diff.edits[0])
    with pytest.raises(InvalidField, match="100,001"):
        check_diff(diff)


def state_with(change: Callable[[State], object]) -> State:
    """A good state, changed."""
    state = State()
    state.slots["s"].data = b"x"
    state.logs["m"].entries.add(data=b"x")
    change(state)
    return state


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (lambda state: setattr(state, "partial", True), "state.partial"),
        (lambda state: state.slots[""].CopyFrom(OK), "state.slots"),
        (lambda state: state.slots["s"].ClearField("data"), "state.slots[s]"),
        (lambda state: state.slots["s"].blob.SetInParent(), "state.slots[s].blob.sha256"),
        (lambda state: state.logs["m\n"].SetInParent(), "state.logs"),
        (lambda state: setattr(state.logs["m"], "first_index", -1), "state.logs[m].first_index"),
        (lambda state: state.logs["m"].entries.add(), "state.logs[m].entries[1]"),
        (lambda state: state.logs["m"].entries.add(number=0), "state.logs[m].entries[1].number"),
    ],
)
def test_check_state_names_the_field(change: Callable[[State], object], path: str) -> None:
    """A full state is checked like edits are."""
    check_state(state_with(lambda state: None))
    with pytest.raises(InvalidField) as caught:
        check_state(state_with(change))
    assert caught.value.field == path


@given(st.text(min_size=1, max_size=20))
def test_check_name(name: str) -> None:
    """A name is refused exactly for its control characters."""
    control = any(ord(one) < 32 or 127 <= ord(one) < 160 for one in name)
    if control:
        with pytest.raises(InvalidField):
            check_name(name, "x")
    else:
        check_name(name, "x")


def test_limits_are_inclusive() -> None:
    """The longest name and media type are allowed, in bytes."""
    check_name("ü" * 512, "x")
    check_value(Value(media_type="ü" * 127 + "m", data=b""), "x")
    for name in ("ü" * 512 + "a", ""):
        with pytest.raises(InvalidField):
            check_name(name, "x")


def test_only_commutative() -> None:
    """The first edit that needs its base is found."""
    free = [
        *edit_of("set_slot", slot="s", value=OK).edits,
        *edit_of("delete_slot", slot="s").edits,
        *edit_of("add_number", slot="n").edits,
        *appended(1).edits,
    ]
    assert only_commutative(Diff(edits=free)) is None
    for kind in ("splice_slot", "replace_entry", "trim_log", "delete_log"):
        assert only_commutative(Diff(edits=[*free, *edit_of(kind).edits])) == len(free)


@pytest.mark.parametrize(
    ("diff", "path", "facts"),
    [
        (edit_of("delete_slot", slot="none"), "delete_slot.slot", "'none'"),
        (edit_of("set_slot", slot="s", value=OK, expected_sha256=BASE), "set_slot.expected_sha256", "found"),
        (edit_of("set_slot", slot="s", value=OK, expected_sha256=b""), "set_slot.expected_sha256", "not to exist"),
        (edit_of("set_slot", slot="none", value=OK, expected_sha256=BASE), "set_slot.expected_sha256", "no slot"),
        (edit_of("add_number", slot="s", delta=1), "add_number.slot", "no number"),
        (edit_of("splice_slot", slot="s", base_sha256=BASE), "splice_slot.base_sha256", "found"),
        (edit_of("splice_slot", slot="s", splices=[Splice(offset=9)]), "splice_slot.splices[0]", "9 of 3"),
        (edit_of("append", log="m", at_index=5), "append.at_index", "ends at 2"),
        (edit_of("append", log="none", at_index=5), "append.at_index", "ends at 0"),
        (edit_of("replace_entry", log="m", index=2, value=OK), "replace_entry.index", "expected an entry 2"),
        (edit_of("trim_log", log="m", before_index=3), "trim_log.before_index", "beyond the end"),
        (edit_of("trim_log", log="none", keep_last=3), "trim_log.log", "'none'"),
        (edit_of("delete_log", log="none"), "delete_log.log", "'none'"),
    ],
)
def test_conflict_states_the_facts(diff: Diff, path: str, facts: str) -> None:
    """A conflict names edit and field, and says what was found."""
    tree = history(edit_of("set_slot", slot="s", value=Value(data=b"abc")), appended(2))
    with pytest.raises(EditConflict) as caught:
        apply_edits(tree, diff, 3)
    assert caught.value.metadata == {"edit": "0", "field": f"diff.edits[0].{path}"}
    assert facts in caught.value.message
