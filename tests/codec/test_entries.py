"""The danger: a log whose older entries lie in segments loses, doubles or mixes entries, or reads segments in vain.

The logs are compared with plain lists.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from stateward.v1.state_pb2 import State, Value
from stateward_sidecar.codec.diff import diff_trees
from stateward_sidecar.codec.edits import apply_edits
from stateward_sidecar.codec.entries import (
    Entries,
    LooseRun,
    Run,
    Runs,
    SealedRun,
    Segment,
    differing,
    loose_run,
)
from stateward_sidecar.codec.pages import (
    EVERYTHING,
    HELD_SEGMENTS,
    Position,
    Selection,
    needs_segments,
    page,
    with_segments_at_hand,
)
from stateward_sidecar.codec.snapshot import from_snapshot, to_snapshot
from stateward_sidecar.codec.state import EMPTY, LogState, StateTree, resident_bytes, to_message
from stateward_sidecar.codec.varints import frame, split_frames


class Shelf:
    """Segments, and which of them were read."""

    def __init__(self) -> None:
        self.held = dict[bytes, list[bytes]]()
        self.reads = list[bytes]()
        self.ahead = list[list[bytes]]()

    def seal(self, items: Sequence[bytes]) -> SealedRun:
        digest = b"%d" % len(self.held)
        self.held[digest] = list(items)
        size_bytes = sum(map(len, items))
        return SealedRun(Segment(digest, len(items), size_bytes, (), self.read), 0, len(items), size_bytes)

    def read(self, segment: Segment, ahead: Sequence[Segment]) -> Sequence[bytes]:
        self.reads.append(segment.digest)
        self.ahead.append([each.digest for each in ahead])
        return self.held[segment.digest]


def item(number: int) -> bytes:
    return frame(Value(data=b"%d" % number).SerializeToString())


def log(disk: Shelf, *, runs: int, each: int, tail: int) -> tuple[Entries, list[bytes]]:
    """A log of some segments and a tail, and the same as a list."""
    items = [item(number) for number in range(runs * each + tail)]
    sealed = [disk.seal(items[at * each : (at + 1) * each]) for at in range(runs)]
    return Entries.of_frames(items[runs * each :], Runs(sealed)), items


def tree(entries: Entries, first_index: int = 0) -> StateTree:
    return StateTree.of({}, {"log": LogState(first_index, entries)}, {})


class Walk(RuleBasedStateMachine):
    """Edits a log that is sealed now and then, and keeps an old state beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = Shelf()
        self.entries, self.items, self.first = Entries([], 0, 0, 0), list[bytes](), 0
        self.old = (self.entries, list[bytes](), 0)
        self.number = 0

    @rule(count=st.integers(1, 6))
    def append(self, count: int) -> None:
        added = [item(self.number + at) for at in range(count)]
        self.number += count
        self.entries, self.items = self.entries.append_many(added), self.items + added

    @rule(data=st.data())
    def replace(self, data: st.DataObject) -> None:
        if self.items:
            at = data.draw(st.integers(0, len(self.items) - 1))
            new = item(data.draw(st.integers(0, 10**6)))
            self.entries = self.entries.replace(at, new)
            self.items = [*self.items[:at], new, *self.items[at + 1 :]]

    @rule(data=st.data())
    def drop_first(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(0, len(self.items)))
        self.entries, self.items = self.entries.drop_first(count), self.items[count:]
        self.first += count

    @rule(data=st.data())
    def keep_first(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(0, len(self.items)))
        self.entries, self.items = self.entries.keep_first(count), self.items[:count]

    @rule(size=st.integers(1, 4), data=st.data())
    def seal(self, size: int, data: st.DataObject) -> None:
        """Makes segments of all entries in memory but the newest."""
        tail, kept = self.entries.tail(), data.draw(st.integers(0, 3))
        runs = list[Run]()
        for run in self.entries.runs.each:
            runs.append(self.disk.seal(run.items) if isinstance(run, LooseRun) else run)
        while len(tail) - kept >= size:
            runs.append(self.disk.seal(tail[:size]))
            tail = tail[size:]
        self.entries = self.entries.with_runs(Runs(runs))

    @rule()
    def keep(self) -> None:
        self.old = self.entries, self.items, self.first

    @invariant()
    def is_the_list(self) -> None:
        assert self.entries[:] == self.items == list(self.entries)
        assert len(self.entries) == len(self.items)
        assert self.entries.size_bytes == sum(map(len, self.items))
        assert self.old[0][:] == self.old[1]
        both = min(len(self.old[1]), len(self.items))
        changed = [(at, self.items[at]) for at in range(both) if self.old[1][at] != self.items[at]]
        assert list(differing(self.old[0], self.entries, both)) == changed
        assert (self.old[0] == self.entries) == (self.old[1] == self.items)

    @invariant()
    def survives_a_snapshot(self) -> None:
        made = from_snapshot(to_snapshot(tree(self.entries, self.first)), self.disk.read).logs["log"]
        assert made.first_index == self.first
        assert made.entries[:] == self.items
        assert len(made.entries.runs.each) == len(self.entries.runs.each)
        assert made.entries.loose_bytes == self.entries.loose_bytes

    @invariant()
    def is_shown_in_pages(self) -> None:
        shown, position = list[bytes](), None
        while True:
            cut = page(tree(self.entries, self.first), EVERYTHING, position, 40)
            shown += [frame(v.SerializeToString()) for v in State.FromString(cut.state).logs["log"].entries]
            position = cut.next
            if position is None:
                break
        assert shown == self.items

    @invariant()
    def has_a_diff(self) -> None:
        old, new = tree(self.old[0], self.old[2]), tree(self.entries, self.first)
        again = apply_edits(old, diff_trees(old, new), 9)
        assert again.logs["log"].entries[:] == self.items


TestWalk = Walk.TestCase


def test_an_append_and_a_look_at_the_tail_read_no_segment() -> None:
    disk = Shelf()
    entries, items = log(disk, runs=5, each=10, tail=10)
    grown = entries.append_many([item(99)])
    state = tree(grown)
    assert not needs_segments(state, Selection(frozenset(), {"log": 11}))
    assert needs_segments(state, Selection(frozenset(), {"log": 12}))
    assert needs_segments(state, EVERYTHING)
    shown = State.FromString(page(state, Selection(frozenset(), {"log": 11}), None, 1 << 20).state).logs["log"]
    assert [value.data for value in shown.entries] == [b"%d" % at for at in (*range(50, 60), 99)]
    assert shown.first_index == 50
    assert list(differing(entries, grown, 60)) == []
    assert diff_trees(tree(entries), state).edits[0].append.log == "log"
    assert grown.drop_first(20)[30:] == [*items[50:], item(99)]
    assert disk.reads == []


def test_pages_of_segments_at_hand_are_those_of_the_whole_state() -> None:
    """Whatever is asked for, and wherever a page ends; and nothing is read."""
    disk = Shelf()
    entries, items = log(disk, runs=4, each=3, tail=2)
    sealed = entries.runs.each[-1]
    assert isinstance(sealed, SealedRun)
    loose, cut = loose_run([item(99)]), SealedRun(sealed.segment, 1, 1, len(items[10]))
    logs = [entries, Entries.of_frames(items[:2], Runs([*entries.runs.each[:3], cut, loose]))]
    for state in (tree(each, 7) for each in logs):
        for last in range(1, 20):
            selection = Selection(frozenset(), {"log": last, "other": 5})
            asked = list[bytes]()

            def at_hand(segment: Segment, asked: list[bytes] = asked) -> list[bytes]:
                asked.append(segment.digest)
                return disk.held[segment.digest]

            disk.reads.clear()
            held = with_segments_at_hand(state, selection, at_hand)
            assert disk.reads == []
            found = state.logs["log"].entries
            near = found.tail_count + sum(run.count for run in found.runs.each[-HELD_SEGMENTS:])
            assert (held is not None) == (last <= near)
            if held is None:
                continue
            assert len(asked) == len(set(asked)) <= HELD_SEGMENTS
            assert not needs_segments(held, selection)
            position: Position | None = None
            while True:
                expected, made = (page(each, selection, position, 30) for each in (state, held))
                assert made == expected
                position = expected.next
                if position is None:
                    break
    assert with_segments_at_hand(tree(entries), EVERYTHING, lambda each: disk.held[each.digest]) is None
    assert with_segments_at_hand(tree(entries), Selection(frozenset(), {"log": 5}), lambda _: None) is None


def test_segments_that_are_read_next_are_named() -> None:
    disk = Shelf()
    entries, _ = log(disk, runs=6, each=2, tail=1)
    assert len(entries[0:9]) == 9
    assert disk.ahead[0] == [b"1", b"2", b"3"]
    assert disk.ahead[3] == [b"4"]


def test_many_replaced_entries_of_one_segment_copy_it_once() -> None:
    disk = Shelf()
    entries, items = log(disk, runs=2, each=100, tail=1)
    old = tree(entries)
    new = Entries.of_frames([item(7) for _ in items])
    changed = apply_edits(old, diff_trees(old, tree(new)), 2)
    assert changed.logs["log"].entries == new
    assert entries[:] == items
    assert resident_bytes(changed) == changed.size_bytes


def test_a_trim_in_the_middle_of_a_segment() -> None:
    disk = Shelf()
    entries, items = log(disk, runs=3, each=10, tail=5)
    cut = entries.drop_first(15)
    assert cut[:] == items[15:]
    assert cut.loose_bytes == sum(map(len, items[30:]))
    assert cut.keep_first(10)[:] == items[15:25]


def test_equal_segments_of_two_readings_are_shared() -> None:
    disk = Shelf()
    entries, _ = log(disk, runs=3, each=4, tail=2)
    data = to_snapshot(tree(entries))
    one, two = (from_snapshot(data, disk.read).logs["log"].entries for _ in range(2))
    disk.reads.clear()
    assert list(differing(one, two, 12)) == []
    assert disk.reads == []
    assert to_message(tree(one)) == to_message(tree(two))


@given(st.lists(st.binary(max_size=300)))
def test_frames_are_split(values: list[bytes]) -> None:
    frames = [frame(value) for value in values]
    assert split_frames(b"salt" + b"".join(frames), 4) == frames


@pytest.mark.parametrize("data", [b"\x12", b"\x12\x02a", b"\x0a\x00", b"\x12\x01ab"])
def test_other_bytes_are_no_frames(data: bytes) -> None:
    with pytest.raises(ValueError, match="frame"):
        split_frames(data)


def test_loose_runs_keep_their_place_in_a_snapshot() -> None:
    disk = Shelf()
    entries, items = log(disk, runs=3, each=4, tail=2)
    changed = entries.replace(5, item(500))
    assert isinstance(changed.runs.each[1], LooseRun)
    again = from_snapshot(to_snapshot(tree(changed)), disk.read).logs["log"].entries
    assert again[:] == [*items[:5], item(500), *items[6:]]
    assert loose_run(again.runs.each[1].frames()[:]).count == 4  # type: ignore[arg-type]
    assert EMPTY.size_bytes == 0
