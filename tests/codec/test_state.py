"""The danger: an edit of one version shows in another that shares memory with it, or a state's bytes are not what
protobuf reads."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateward.storage.v1.snapshot_pb2 import NamedLog, NamedValue, RetiredLog, Snapshot
from stateward.v1.state_pb2 import State, Value
from stateward_sidecar.codec.entries import EMPTY_ENTRIES, Entries, EntriesDraft
from stateward_sidecar.codec.snapshot import from_snapshot, to_snapshot
from stateward_sidecar.codec.state import EMPTY, LogState, StateTree, find_data, from_message, to_message, wire
from stateward_sidecar.codec.varints import frame, unframe, varint
from stateward_sidecar.errors import Corrupt

NAMES = ["a", "a0", "b", "ü", "😀"]
names = st.sampled_from(NAMES)
# Sizes on both sides of a one-, two- and three-byte length.
contents = st.one_of(
    st.binary(max_size=6), st.builds(bytes.__mul__, st.binary(min_size=1, max_size=2), st.sampled_from([60, 125, 9000]))
)
values = st.builds(Value, media_type=st.sampled_from(["", "text/plain", "m" * 140]), data=contents)
value_bytes = values.map(lambda value: value.SerializeToString())
numbers = st.builds(Value, number=st.one_of(st.integers(-3, 3), st.integers(-(1 << 63), (1 << 63) - 1)))
slot_values = st.one_of(values, values, numbers)
indexes = st.integers(0, 300)
logs = st.builds(LogState, indexes, st.lists(value_bytes, max_size=6).map(Entries.of), indexes)


@st.composite
def trees(draw: st.DrawFn) -> StateTree:
    """Any state, with names retired that are not in use."""
    tree_logs = draw(st.dictionaries(names, logs, max_size=4))
    retired = {name: index for name, index in draw(st.dictionaries(names, indexes)).items() if name not in tree_logs}
    slots = st.dictionaries(names, slot_values.map(lambda value: value.SerializeToString()), max_size=4)
    return StateTree.of(draw(slots), tree_logs, retired)


def count_bytes(tree: StateTree) -> int:
    """The size of a tree, counted anew."""
    return StateTree.of(tree.slots, tree.logs, tree.retired).size_bytes


def as_snapshot(tree: StateTree) -> Snapshot:
    """The message that a snapshot is, built field by field."""
    snapshot = Snapshot()
    for name, value in sorted(tree.slots.items()):
        snapshot.slots.append(NamedValue(name=name, value=Value.FromString(value)))
    for name, log in sorted(tree.logs.items()):
        entries = [Value.FromString(unframe(item)) for item in log.entries]
        snapshot.logs.append(
            NamedLog(name=name, first_index=log.first_index, rewritten_version=log.rewritten_version, entries=entries)
        )
    for name, next_index in sorted(tree.retired.items()):
        snapshot.retired_logs.append(RetiredLog(name=name, next_index=next_index))
    return snapshot


@given(trees())
def test_snapshot_is_what_protobuf_writes(tree: StateTree) -> None:
    """A snapshot's hand-joined bytes are those of the serializer, and read back they give the same tree."""
    data = to_snapshot(tree)
    assert data == as_snapshot(tree).SerializeToString()
    assert from_snapshot(data) == tree


@given(trees())
def test_wire_is_what_protobuf_writes(tree: StateTree) -> None:
    """The hand-joined state parses to the message built field by field, and nothing of it is lost or unknown."""
    expected = State()
    for name, value in tree.slots.items():
        expected.slots[name].MergeFromString(value)
    for name, log in tree.logs.items():
        message = expected.logs[name]
        message.first_index = log.first_index
        message.rewritten_version = log.rewritten_version
        message.entries.extend(Value.FromString(unframe(item)) for item in log.entries)
    expected.retired_logs.update({name: index for name, index in tree.retired.items() if index})
    data = wire(tree)
    parsed = State.FromString(data)
    assert parsed == expected
    assert all(log.HasField("first_index") for log in parsed.logs.values())
    assert len(data) == expected.ByteSize()


@given(trees())
def test_message_and_back(tree: StateTree) -> None:
    """A message holds all of a tree but its retired names."""
    assert from_message(to_message(tree)) == StateTree.of(tree.slots, tree.logs, {})


@given(trees())
def test_bytes_do_not_depend_on_history(tree: StateTree) -> None:
    """Names are written ascending, in whichever order they came."""
    parts = (dict(reversed(part.items())) for part in (tree.slots, tree.logs, tree.retired))
    turned = StateTree.of(*parts)
    assert (wire(turned), to_snapshot(turned)) == (wire(tree), to_snapshot(tree))


def test_empty() -> None:
    """The empty state is no bytes."""
    assert wire(EMPTY) == to_snapshot(EMPTY) == b""
    assert from_snapshot(b"") == EMPTY


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a\x05a",
        Snapshot(slots=[NamedValue(name="a"), NamedValue(name="a")]).SerializeToString(),
        Snapshot(retired_logs=[RetiredLog(name="a"), RetiredLog(name="a")]).SerializeToString(),
    ],
)
def test_broken_snapshot(data: bytes) -> None:
    """Bytes that are no snapshot, or hold a name twice, are corrupt."""
    with pytest.raises(Corrupt):
        from_snapshot(data)


@given(st.integers(0, 2**63 - 1))
def test_varint(number: int) -> None:
    """A number is encoded as protobuf does."""
    assert RetiredLog.FromString(b"\x10" + varint(number)).next_index == number
    assert len(varint(number)) == max(1, (number.bit_length() + 6) // 7)


@given(values)
def test_find_data(value: Value) -> None:
    """The data and media type of a value are found in its bytes, also inside a frame, before unknown fields."""
    data = value.SerializeToString() + b"\x22\x01x"
    span = find_data(b"..." + data, 3)
    assert span is not None
    assert (b"..." + data)[span.start : span.stop] == value.data
    assert span.media_type == value.media_type
    assert unframe(frame(data)) == data


def test_find_no_data() -> None:
    """A reference to a blob has no data."""
    value = Value(media_type="text/plain")
    value.blob.size_bytes = 3
    assert find_data(value.SerializeToString()) is None


def items(count: int, mark: int = 0) -> list[bytes]:
    """Frames that tell who made them."""
    return [frame(b"%d:%d" % (mark, number)) for number in range(count)]


def test_append_shares() -> None:
    """Appending to the newest view copies nothing."""
    parent = Entries.of([b"x"] * 10)
    child = parent.append_many(items(2))
    assert child._items is parent._items
    assert (len(parent), len(child)) == (10, 12)


def test_branches_do_not_see_each_other() -> None:
    """Two views that grow from one parent hold each their own entries, and the parent neither's."""
    parent = Entries.of([b"x"])
    first, second = parent.append_many(items(3, 1)), parent.append_many(items(3, 2))
    assert (parent[:], first[1:], second[1:]) == ([frame(b"x")], items(3, 1), items(3, 2))


def test_nobody_grows_the_empty_view() -> None:
    """What is appended to nothing is not kept by the view that everybody shares."""
    EMPTY_ENTRIES.append_many(items(3))
    assert EMPTY_ENTRIES._items == []


def test_threads_append_to_one_parent() -> None:
    """Of two threads that append to one view, one finds the end taken, even if it looked before the other grew it."""
    others: list[Entries] = []

    class Interrupted(list[bytes]):
        """Lets the other thread run between the look at its length and what follows."""

        def __len__(self) -> int:
            length = super().__len__()
            if threading.current_thread() is not other and not other.ident:
                other.start()
                other.join(timeout=0.05)  # it cannot end while it has to wait for its turn
            return length

    parent = Entries(Interrupted([frame(b"x")]), 0, 1, 3)
    other = threading.Thread(target=lambda: others.append(parent.append_many(items(2, 1))))
    mine = parent.append_many(items(2, 2))
    other.join()
    assert (mine[1:], others[0][1:]) == (items(2, 2), items(2, 1))


def test_moving_window_forgets() -> None:
    """A window that moves along a log does not keep what it dropped."""
    view = Entries.of([b"x"] * 10)
    for number in range(2000):
        view = view.append_many(items(1, number)).drop_first(1)
    assert len(view._items) < 200
    assert view[:] == [items(1, number)[0] for number in range(1990, 2000)]


def test_draft_copies_once() -> None:
    """A draft that replaces many entries copies the pointers once, so that a diff of n edits is not quadratic."""
    draft = EntriesDraft(Entries.of([b"x"] * 10))
    draft.replace(0, frame(b"y"))
    own = draft._items
    for number in range(10):
        draft.keep_first(9)
        draft.append_many(items(1, number))
        draft.replace(0, frame(b"z"))
    assert draft._items is own
    assert draft.seal()[:] == [frame(b"z"), *[frame(b"x")] * 8, *items(1, 9)]


@given(st.data())
def test_entries_behave_like_lists(data: st.DataObject) -> None:
    """Whatever is done to any of many views of one list, each view still holds what a plain list would."""
    first = [frame(b"%d" % number) for number in range(data.draw(st.integers(0, 5)))]
    views = [(Entries(first[:], 0, len(first), sum(map(len, first))), first)]
    for step in range(data.draw(st.integers(1, 25))):
        view, plain = views[data.draw(st.integers(max(0, len(views) - 3), len(views) - 1))]
        what = data.draw(st.sampled_from(["append", "replace", "drop", "keep"]))
        if what == "append":
            added = items(data.draw(st.integers(0, 3)), step)
            views.append((view.append_many(added), plain + added))
        elif what == "replace" and plain:
            at = data.draw(st.integers(0, len(plain) - 1))
            views.append((view.replace(at, frame(b"r")), [*plain[:at], frame(b"r"), *plain[at + 1 :]]))
        elif what == "drop":
            count = data.draw(st.integers(0, len(plain)))
            views.append((view.drop_first(count), plain[count:]))
        elif what == "keep":
            count = data.draw(st.integers(0, len(plain)))
            views.append((view.keep_first(count), plain[:count]))
    for view, plain in views:
        assert (list(view), len(view), view.size_bytes) == (plain, len(plain), sum(map(len, plain)))
        assert view[1:-1] == plain[1:-1]
        assert view[3:1] == []
        if plain:
            assert (view[0], view[-1]) == (plain[0], plain[-1])
        with pytest.raises(IndexError):
            view[len(plain)]
