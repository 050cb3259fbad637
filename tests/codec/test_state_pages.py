"""The danger: a state that is read in pages lacks an entry, has one twice, or has a page larger than a client
accepts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.codec.test_state import names, trees

from stateward.v1.checkpoint_service_pb2 import LogSelection, Projection
from stateward.v1.state_pb2 import State, Value
from stateward_sidecar.codec.entries import Entries
from stateward_sidecar.codec.pages import EVERYTHING, LOGS, SLOTS, Page, Position, Selection, page, selection_of
from stateward_sidecar.codec.state import EMPTY, LogState, StateTree, to_message, wire
from stateward_sidecar.errors import InvalidField

log_selections = st.builds(LogSelection, log=names, last=st.none() | st.integers(0, 7))
selections = st.none() | st.builds(
    Projection,
    slots=st.lists(names, max_size=3),
    logs=st.lists(log_selections, max_size=3, unique_by=lambda selection: selection.log),
)


def cut_pages(tree: StateTree, selection: Selection, max_bytes: int) -> Iterator[Page]:
    """All pages, positions travelling as bytes."""
    position = None
    while True:
        cut = page(tree, selection, position, max_bytes)
        yield cut
        if cut.next is None:
            return
        position = Position.unpack(cut.next.pack())


def join_pages(pages: list[Page]) -> State:
    """Puts pages together as a client does: maps and entries are joined, pieces of a value collected."""
    whole = State()
    piece = b""
    for cut in pages:
        state = State.FromString(cut.state)
        for name, value in state.slots.items():
            assert name not in whole.slots
            whole.slots[name].CopyFrom(value)
        for name, log in state.logs.items():
            assert log.HasField("first_index")
            if name not in whole.logs:
                whole.logs[name].CopyFrom(log)
            else:
                known = whole.logs[name]
                assert log.first_index == known.first_index + len(known.entries)
                assert log.rewritten_version == known.rewritten_version
                known.entries.extend(log.entries)
        if cut.chunk is not None:
            assert cut.chunk.offset == len(piece)
            piece += cut.chunk.data
            if len(piece) == cut.chunk.size_bytes:
                value = Value(media_type=cut.chunk.media_type, data=piece)
                piece = b""
                if cut.chunk.WhichOneof("place") == "slot":
                    assert cut.chunk.slot not in whole.slots
                    whole.slots[cut.chunk.slot].CopyFrom(value)
                else:
                    log = whole.logs[cut.chunk.log]
                    assert cut.chunk.index == log.first_index + len(log.entries)
                    log.entries.append(value)
        assert not whole.retired_logs.keys() & state.retired_logs.keys()
        whole.retired_logs.update(state.retired_logs)
        whole.partial = state.partial
        assert state.partial or cut.next is None
    assert piece == b""
    return whole


def select(tree: StateTree, projection: Projection | None) -> State:
    """What a projection leaves of a state, by the words of its comments."""
    state = to_message(tree)
    if projection is None:
        return state
    selected = State(partial=True)
    for name in projection.slots:
        if name in state.slots:
            selected.slots[name].CopyFrom(state.slots[name])
    for selection in projection.logs:
        if selection.log in state.logs:
            log = state.logs[selection.log]
            drop = max(0, len(log.entries) - selection.last) if selection.HasField("last") else 0
            del log.entries[:drop]
            log.first_index += drop
            selected.logs[selection.log].CopyFrom(log)
        if selection.log in state.retired_logs:
            selected.retired_logs[selection.log] = state.retired_logs[selection.log]
    return selected


@given(trees(), selections, st.sampled_from([40, 100, 130, 200, 1024, 9000, 20_000, 1 << 20]))
@example(EMPTY, None, 1)
@example(EMPTY, Projection(), 1)
def test_pages_join_to_the_state(tree: StateTree, projection: Projection | None, max_bytes: int) -> None:
    """Whatever is selected and however small the pages are, joining them gives it back, and none is much too large."""
    pages = list(cut_pages(tree, selection_of(projection), max_bytes))
    assert join_pages(pages) == select(tree, projection)
    for cut in pages:
        # The largest record that goes whole: a value that just fits, behind names and numbers.
        assert len(cut.state) <= max_bytes + 100
        if cut.chunk is not None:
            assert len(cut.chunk.data) <= max_bytes
            assert not State.FromString(cut.state).slots


@given(trees(), selections)
def test_order(tree: StateTree, projection: Projection | None) -> None:
    """Slots come before logs, and names ascend, across pages."""
    seen = []
    for cut in cut_pages(tree, selection_of(projection), 40):
        state = State.FromString(cut.state)
        # Within a page protobuf shows maps in no order.
        seen += [(SLOTS, name) for name in sorted(state.slots)] + [(LOGS, name) for name in sorted(state.logs)]
        if cut.chunk is not None and cut.chunk.slot:
            seen.append((SLOTS, cut.chunk.slot))
    assert seen == sorted(seen)


@given(st.integers(0, 1), st.text(max_size=5), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_position_survives_packing(section: int, name: str, entry: int, offset_bytes: int) -> None:
    """A position comes back from its bytes."""
    position = Position(section, name, entry, offset_bytes)
    assert Position.unpack(position.pack()) == position


def log_tree(*sizes: int) -> StateTree:
    """One log with entries of these sizes, the first at index 10."""
    entries = Entries.of([Value(data=b"x" * size).SerializeToString() for size in sizes])
    return StateTree.of({"s": Value(data=b"").SerializeToString()}, {"m": LogState(10, entries, 4)}, {})


def test_pages_are_filled() -> None:
    """Pages are as few as the sizes allow, to within one entry."""
    tree = log_tree(*[100] * 1000)
    pages = list(cut_pages(tree, Selection(), 10_000))
    assert len(pages) == 11
    assert all(len(cut.state) > 9_800 for cut in pages[:-1])


def test_whole_state_in_one_page() -> None:
    """What fits is one page with the bytes of the state, and is not partial."""
    tree = log_tree(1, 2, 3)
    assert page(tree, Selection(), None, 1000) == Page(wire(tree), None, None)


def test_large_entry_travels_alone() -> None:
    """What stands before a large entry is flushed, and its pieces show the log at the entry's index."""
    pages = list(cut_pages(log_tree(10, 250, 10), Selection(), 100))
    assert [cut.chunk and (cut.chunk.index, cut.chunk.offset, len(cut.chunk.data)) for cut in pages] == [
        None,
        (11, 0, 100),
        (11, 100, 100),
        (11, 200, 50),
        None,
    ]
    shown = [State.FromString(cut.state).logs["m"] for cut in pages]
    assert [(log.first_index, len(log.entries)) for log in shown] == [(10, 1), (11, 0), (11, 0), (11, 0), (12, 1)]
    assert [State.FromString(cut.state).partial for cut in pages] == [True] * 4 + [False]


def test_large_entry_ends_the_state() -> None:
    """No page follows the last piece of the last entry."""
    pages = list(cut_pages(log_tree(150), Selection(), 100))
    assert [cut.chunk and cut.chunk.offset for cut in pages] == [None, 0, 100]


def test_last_none() -> None:
    """The last 0 entries of a log show where it ends."""
    selection = selection_of(Projection(logs=[LogSelection(log="m", last=0)]))
    assert State.FromString(page(log_tree(1, 2), selection, None, 100).state).logs["m"].first_index == 12


@pytest.mark.parametrize("token", [b"", b"\x00" * 16, b"\x00" * 17 + b"\xff"])
def test_foreign_token(token: bytes) -> None:
    """Bytes that are no position are refused."""
    with pytest.raises(InvalidField, match="page_token"):
        Position.unpack(token)


@pytest.mark.parametrize(
    "position",
    [
        Position(9, "x", 1, 1),
        Position(LOGS, "m", 99, 0),
        Position(LOGS, "m", 2**64 - 1, 9),
        Position(SLOTS, "gone", 0, 7),
    ],
)
def test_position_of_another_state(position: Position) -> None:
    """A position that fits no place ends in a page, not in a crash."""
    assert page(log_tree(5, 5), Selection(), position, 100).next is None


def test_offset_beyond_the_value() -> None:
    """A byte beyond the end of a value is refused."""
    with pytest.raises(InvalidField, match="page_token"):
        page(log_tree(5), Selection(), Position(LOGS, "m", 0, 6), 100)


def test_negative_last() -> None:
    """A negative number of entries is refused, and the field named."""
    with pytest.raises(InvalidField) as caught:
        selection_of(Projection(logs=[LogSelection(log="m"), LogSelection(log="n", last=-1)]))
    assert caught.value.field == "projection.logs[1].last"


def test_deleted_logs_come_in_pages() -> None:
    """There may be as many as a state has room for."""
    tree = StateTree.of({}, {}, {f"log {number}": number for number in range(1, 200)})
    pages = list(cut_pages(tree, EVERYTHING, 200))
    assert join_pages(pages) == to_message(tree)
    assert max(len(page.state) for page in pages) <= 200
