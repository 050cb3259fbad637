"""The danger: the edits between two states lead to a third one, or a small change is stored as a whole rewrite."""

from __future__ import annotations

import random
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.codec.test_state import NAMES, indexes, names, slot_values, trees, value_bytes

from stateward.v1.diff_pb2 import Diff, Edit, Splice, SpliceSlot
from stateward.v1.state_pb2 import State, Value
from stateward_sidecar.codec import diff as diff_module
from stateward_sidecar.codec import draft as draft_module
from stateward_sidecar.codec.diff import (
    common_prefix,
    common_suffix,
    diff_trees,
    find_changes,
    find_splices,
    read_state,
    shrink,
)
from stateward_sidecar.codec.draft import apply_changes, sent_bytes
from stateward_sidecar.codec.edits import apply_edits, check_diff, only_commutative
from stateward_sidecar.codec.entries import Entries
from stateward_sidecar.codec.state import EMPTY, LogState, StateTree, to_message
from stateward_sidecar.errors import InvalidField


def pack(data: bytes, media_type: str = "") -> bytes:
    """A serialized Value."""
    return Value(media_type=media_type, data=data).SerializeToString()


def tree_of(*entries: bytes, first_index: int = 0, **slots: bytes) -> StateTree:
    """A state with slots, and entries in log m."""
    packed = {name: pack(data) for name, data in slots.items()}
    return StateTree.of(packed, {"m": LogState(first_index, Entries.of(map(pack, entries)))}, {})


def diff_from_state(old: StateTree, new: State) -> Diff:
    """The edits that a full state is stored as."""
    return Diff.FromString(apply_changes(old, find_changes(old, *read_state(old, new)), 400)[1])


def kinds(diff: Diff) -> list[str | None]:
    """What the edits are."""
    return [edit.WhichOneof("edit") for edit in diff.edits]


@st.composite
def related_trees(draw: st.DrawFn, old: StateTree) -> StateTree:
    """A state that has much in common with another."""
    fresh = draw(trees())
    slots = {**draw(st.sampled_from([old.slots, {}])), **fresh.slots}
    for name, value in old.slots.items():
        start = Value.FromString(value)
        if name in slots and start.HasField("number"):
            slots[name] = draw(slot_values).SerializeToString()
        elif name in slots and draw(st.booleans()):
            cut = draw(st.integers(0, len(start.data)))
            start.data = start.data[:cut] + draw(st.binary(max_size=3)) + start.data[cut + draw(st.integers(0, 3)) :]
            slots[name] = start.SerializeToString()
    logs = dict(fresh.logs)
    for name in draw(st.sets(st.sampled_from(NAMES))) & old.logs.keys():
        items = list(old.logs[name].entries)
        start, stop = sorted((draw(st.integers(0, len(items))), draw(st.integers(0, len(items)))))
        kept = [*items[:start], *draw(st.lists(value_bytes.map(frame_of), max_size=2)), *items[stop:]]
        drop = draw(st.integers(0, len(kept)))
        first_index = old.logs[name].first_index + draw(st.sampled_from([0, drop]))
        kept = kept[first_index - old.logs[name].first_index :]
        logs[name] = LogState(first_index, Entries(kept, 0, len(kept), sum(map(len, kept))), draw(indexes))
    return StateTree.of(slots, logs, {})


def frame_of(value: bytes) -> bytes:
    """The frame of one serialized Value."""
    return Entries.of([value])[0]


def content(tree: StateTree) -> tuple[object, ...]:
    """What a diff must reproduce: all but the rewritten versions and retired names."""
    return tree.slots, {name: (log.first_index, log.entries) for name, log in tree.logs.items()}


@given(trees(), st.data())
def test_diff_trees_leads_there(old: StateTree, data: st.DataObject) -> None:
    """The edits between two states turn one into the other; indexes that cannot be reached again go on."""
    new = data.draw(related_trees(old))
    diff = diff_trees(old, new)
    reached = apply_edits(old, diff, 400)
    slots, logs = content(new)
    for name, log in new.logs.items():
        start = old.logs[name].first_index if name in old.logs else old.retired.get(name, 0)
        if log.first_index < start:
            logs[name] = (reached.logs[name].first_index, log.entries)
            assert reached.logs[name].first_index == (old.logs[name].next_index if name in old.logs else start)
    assert content(reached) == (slots, logs)
    assert diff == diff_trees(old, new)
    if all(edit.append.entries for edit in diff.edits if edit.WhichOneof("edit") == "append"):
        check_diff(diff)


@given(trees(), st.data())
def test_diff_from_state_leads_there(old: StateTree, data: st.DataObject) -> None:
    """The edits to a full state give that state, its logs starting as stored; tree and bytes are those of the edits."""
    message = to_message(data.draw(related_trees(old)))
    for name, log in message.logs.items():
        stored = old.logs[name].first_index if name in old.logs else old.retired.get(name, 0)
        if data.draw(st.booleans()):
            log.first_index = stored
        else:
            log.ClearField("first_index")
    slots, logs = read_state(old, message)
    tree, edits = apply_changes(old, find_changes(old, slots, logs), 400)
    diff = Diff.FromString(edits)
    assert diff.SerializeToString() == edits
    assert tree == apply_edits(old, diff, 400)
    assert sent_bytes(message, slots, logs) == message.ByteSize()
    reached = to_message(tree)
    reached.retired_logs.clear()
    message.retired_logs.clear()  # they were ignored
    for name, log in message.logs.items():
        log.first_index = old.logs[name].first_index if name in old.logs else old.retired.get(name, 0)
        log.rewritten_version = reached.logs[name].rewritten_version
    assert reached == message


@given(trees())
def test_no_difference(tree: StateTree) -> None:
    """Equal states have no edits between them."""
    assert diff_trees(tree, tree) == diff_trees(tree, StateTree.of(tree.slots, tree.logs, {})) == Diff()
    assert diff_from_state(tree, to_message(tree)) == Diff()


def test_order() -> None:
    """Deletions come first, and names ascend."""
    old = StateTree.of({"z": pack(b""), "b": pack(b"")}, {"y": LogState(0, Entries.of([pack(b"")]))}, {})
    new = StateTree.of({"c": pack(b""), "a": pack(b"")}, {"m": LogState(0, Entries.of([pack(b"")]))}, {})
    diff = diff_trees(old, new)
    assert kinds(diff) == ["delete_slot", "delete_slot", "delete_log", "set_slot", "set_slot", "append"]
    assert [edit.delete_slot.slot or edit.set_slot.slot for edit in diff.edits] == ["b", "z", "", "a", "c", ""]


LONG = [b"%d" % number * 300 for number in range(6)]


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        ([*LONG, b"x"], ["append"]),
        (LONG[:4], ["trim_log"]),
        ([], ["trim_log"]),
        ([LONG[0], b"x", *LONG[2:]], ["replace_entry"]),
        ([LONG[0], b"x", *LONG[2:4], b"y", *LONG[5:], b"z"], ["replace_entry", "replace_entry", "append"]),
        ([b"x", *LONG[1:4]], ["replace_entry", "trim_log"]),
        # All that follows moved by one: replacing each would send more edits with the same bytes.
        ([LONG[0], *LONG[2:], b"new"], ["trim_log", "append"]),
        ([LONG[0], b"x", *LONG[1:]], ["trim_log", "append"]),
    ],
)
def test_cheapest_edits_of_a_log(new: list[bytes], expected: list[str]) -> None:
    """A log is appended, replaced entry by entry or rewritten from the first difference, as it takes fewer bytes."""
    old, after = tree_of(*LONG), tree_of(*new)
    diff = diff_trees(old, after)
    assert kinds(diff) == expected
    assert content(apply_edits(old, diff, 2)) == content(after)
    assert kinds(diff_from_state(old, to_message(after))) == expected


def test_window_moves() -> None:
    """A log of which the start was trimmed is trimmed, not rewritten."""
    diff = diff_trees(tree_of(*LONG), tree_of(*LONG[2:], b"x", first_index=2))
    assert kinds(diff) == ["trim_log", "append"]
    assert diff.edits[0].trim_log.before_index == 2


def test_window_moved_past_the_end() -> None:
    """Indexes that lie ahead are reached with entries that are trimmed again, if they are not too many."""
    old, new = tree_of(b"a"), tree_of(b"x", first_index=9)
    assert content(apply_edits(old, diff_trees(old, new), 2)) == content(new)
    assert content(apply_edits(EMPTY, diff_trees(EMPTY, new), 2)) == content(new)
    assert kinds(diff_trees(EMPTY, tree_of(first_index=9))) == ["append", "trim_log"]
    far = diff_trees(old, tree_of(b"x", first_index=9 + diff_module.MAX_PADDING_ENTRIES))
    assert kinds(far) == ["delete_log", "append"]
    assert apply_edits(old, far, 2).logs["m"].first_index == 1


def test_empty_log_is_made() -> None:
    """A log without entries in a full state is kept as one."""
    diff = diff_from_state(EMPTY, State(logs={"m": {}}))
    assert apply_edits(EMPTY, diff, 1).logs["m"].entries == Entries.of([])


def test_first_index_must_be_as_stored() -> None:
    """A full state with another first index is refused, and the error says what to do."""
    old = StateTree.of({}, {"m": LogState(3, Entries.of([pack(b"x")]))}, {"gone": 7})
    for name, stored in (("m", 3), ("gone", 7), ("new", 0)):
        state = State()
        state.logs[name].first_index = stored
        diff_from_state(old, state)
        state.logs[name].first_index = stored + 1
        with pytest.raises(InvalidField, match="TrimLog") as caught:
            diff_from_state(old, state)
        assert caught.value.field == f"state.logs[{name}].first_index"


def test_large_slot_is_spliced() -> None:
    """A small change in a large slot is a splice: with its base for clients, without it for storage."""
    data = bytes(range(250)) * 40
    old, new = tree_of(s=data), tree_of(s=data[:5000] + b"new" + data[5003:])
    for diff, base_bytes in ((diff_trees(old, new), 32), (diff_from_state(old, to_message(new)), 0)):
        [edit] = diff.edits
        assert len(edit.splice_slot.base_sha256) == base_bytes
        [splice] = edit.splice_slot.splices
        assert (splice.offset, splice.delete, splice.insert) == (5000, 3, b"new")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (pack(b"a" * 255), pack(b"a" * 254 + b"b")),
        (pack(b"a" * 900, "text/plain"), pack(b"a" * 899 + b"b", "text/html")),
        (pack(b"a" * 900), pack(b"a" * 400 + b"b" * 500)),
        (pack(b"a" * 900) + b"\x22\x01x", pack(b"a" * 901) + b"\x22\x01y"),
        (pack(b"a" * 900), Value(blob={"preview": b"a" * 900}).SerializeToString()),
    ],
)
def test_not_spliced(old: bytes, new: bytes) -> None:
    """Small values, other media types, large changes and what a splice would lose are set as a whole."""
    before, after = StateTree.of({"s": old}, {}, {}), StateTree.of({"s": new}, {}, {})
    assert kinds(diff_trees(before, after)) == ["set_slot"]
    assert apply_edits(before, diff_trees(before, after), 2).slots == {"s": new}


def set_slots(*pairs: tuple[str, bytes]) -> Diff:
    """A diff that sets slots."""
    diff = Diff()
    for name, data in pairs:
        diff.edits.add().set_slot.slot = name
        diff.edits[-1].set_slot.value.data = data
    return diff


def test_shrink_only_first_edits() -> None:
    """Only a slot's first edit is shrunk: the base of later ones is not the stored value."""
    tree = tree_of(s=b"a" * 900, t=b"b" * 900)
    diff = set_slots(("s", b"a" * 900 + b"x"), ("s", b"a" * 900 + b"y"), ("new", b"a" * 900), ("t", b"c" * 900))
    smaller = shrink(tree, diff)
    assert kinds(smaller) == ["splice_slot", "set_slot", "set_slot", "set_slot"]
    assert apply_edits(tree, smaller, 2) == apply_edits(tree, diff, 2)
    deleted = Diff()
    deleted.edits.add().delete_slot.slot = "s"
    deleted.edits.extend(set_slots(("s", b"a" * 901)).edits)
    assert shrink(tree, deleted) is deleted


def test_what_was_saved_is_applied_again_however_much_it_splices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client's splices are bounded. The daemon's own are not: the save that they stand for was answered."""
    monkeypatch.setattr(draft_module, "MAX_SPLICED_BYTES", 1500)
    tree = tree_of(s=b"a" * 900, t=b"b" * 900, u=b"c" * 900, v=b"d" * 900)
    bases = (sha256(b"x" * count + b"a" * 900).digest() for count in range(2))
    spliced = [SpliceSlot(slot="s", base_sha256=base, splices=[Splice(offset=0, insert=b"x")]) for base in bases]
    changed = set_slots(("t", b"b" * 901), ("u", b"c" * 901), ("v", b"d" * 901))
    for own, sent in ((changed.edits, ()), ((), changed.edits)):  # before and after those of the client
        diff = Diff(edits=[*own, *(Edit(splice_slot=edit) for edit in spliced), *sent])
        smaller = shrink(tree, diff)
        assert kinds(smaller) == ["splice_slot"] * 5
        assert apply_edits(tree, smaller, 2) == apply_edits(tree, diff, 2)
    wanted = apply_edits(tree, changed, 400)
    stored = diff_from_state(tree, to_message(wanted))
    assert kinds(stored) == ["splice_slot"] * 3
    assert apply_edits(tree, stored, 400) == wanted


@given(trees(), st.data())
def test_shrink_changes_nothing(tree: StateTree, data: st.DataObject) -> None:
    """A diff that was shrunk does the same and is not larger."""
    diff = diff_trees(tree, data.draw(related_trees(tree)))
    if only_commutative(diff) is None and data.draw(st.booleans()):
        diff.edits.add().set_slot.slot = data.draw(names)
        diff.edits[-1].set_slot.value.data = data.draw(st.binary(max_size=400))
    smaller = shrink(tree, diff)
    assert apply_edits(tree, smaller, 2) == apply_edits(tree, diff, 2)
    assert smaller is diff or smaller.ByteSize() < diff.ByteSize()


@given(st.binary(max_size=40), st.binary(max_size=5), st.binary(max_size=5), st.binary(max_size=40))
def test_common_ends(start: bytes, a: bytes, b: bytes, end: bytes) -> None:
    """Prefix and suffix are as long as a loop over bytes finds them."""
    for left, right in ((start + a, start + b), (start + a + end, start + b + end)):
        both = min(len(left), len(right))
        assert common_prefix(left, right) == next((i for i in range(both) if left[i] != right[i]), both)
        assert common_suffix(left, right) == next((i for i in range(both) if left[-1 - i] != right[-1 - i]), both)


@given(st.lists(st.binary(min_size=30, max_size=200), min_size=1, max_size=12), st.data())
def test_splices_lead_from_one_value_to_the_other(pieces: list[bytes], data: st.DataObject) -> None:
    """Whatever was moved, removed, repeated or added."""
    after = data.draw(st.lists(st.sampled_from(pieces) | st.binary(max_size=300), max_size=12))
    a, b = b"".join(pieces), b"".join(after)
    made, end = b"", 0
    for splice in find_splices(a, b):
        assert splice.offset >= end
        made += a[end : splice.offset] + splice.insert
        end = splice.offset + splice.delete
    assert made + a[end:] == b


def test_a_list_whose_header_grows_is_stored_as_what_was_added() -> None:
    """MessagePack counts at the front: a 16th element changes the beginning, the end and every place between them."""
    elements = [random.Random(number).randbytes(500) for number in range(16)]
    old, new = b"\x9f" + b"".join(elements[:15]), b"\xdc\x00\x10" + b"".join(elements)
    tree = tree_of(a=old)
    (edit,) = shrink(tree, Diff(edits=[Edit(set_slot={"slot": "a", "value": {"data": new}})])).edits
    assert [(each.offset, each.delete, len(each.insert)) for each in edit.splice_slot.splices] == [
        (0, 1, 3),
        (7501, 0, 500),
    ]
    assert apply_edits(tree, Diff(edits=[edit]), 2).slots["a"] == pack(new)
