"""The danger: a count, an entry or a kept fold that is lost, told twice, or refused because somebody else wrote."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from stateward import ABSENT, Client, EditConflict, Number, RawValue
from stateward._operations.steps import Call
from stateward.changes import AddNumber, Append, SetSlot
from stateward.errors import InvalidField
from stateward.testing import Daemon
from stateward.v1 import checkpoint_service_pb2 as checkpoints
from stateward.v1 import diff_pb2
from stateward.v1.write_pb2 import WriteOptions
from stateward.values import JSON

# -- numbers -----------------------------------------------------------------------------------------------------------


def test_increments_add_up(thread: Any) -> None:
    """A counter begins with 0, and counts in both directions."""
    assert [thread.increment("hits", delta) for delta in (1, 5, -2, 1)] == [1, 6, 4, 5]
    found = thread.hydrate().slots["hits"]
    assert (found, type(found), found + 1, type(found + 1)) == (5, Number, 6, int)
    assert thread.diff(3, 4) == [SetSlot("hits", Number(5))]


def test_a_state_keeps_a_number_a_number(thread: Any) -> None:
    """What counts in a state does not turn into JSON unawares, which nobody could increment any more."""
    state = thread.hydrate()
    state.slots["hits"] = Number(1)
    state.slots["hits"] += 1  # before it was ever saved
    state.slots["plain"] = 3
    thread.save(state)
    state.slots["hits"] += 40  # in the state that saved it
    thread.save(state)
    again = thread.hydrate()
    again.slots["hits"] = 84  # in one that never looked at it
    thread.save(again)
    thread.increment("hits")
    found = thread.hydrate()
    assert (found.slots["hits"], found.slots.raw("hits")) == (85, RawValue("", b"85"))
    assert found.slots.raw("plain") == RawValue(JSON, b"3")
    with pytest.raises(EditConflict) as caught:
        thread.increment("plain")
    assert (caught.value.edit, caught.value.field) == (0, "diff.edits[0].add_number.slot")


def test_looking_at_a_number_writes_nothing(thread: Any) -> None:
    """A number that was read and left alone is no change; setting it to what it is neither."""
    thread.increment("hits", 3)
    state = thread.hydrate()
    assert state.slots["hits"] == 3
    assert not state._collect().diff.edits
    state.slots["hits"] = 3
    assert not state._collect().diff.edits
    state.slots["hits"] = RawValue(JSON, b"3")
    assert len(state._collect().diff.edits) == 1


def test_a_number_elsewhere_is_json(thread: Any) -> None:
    """In a log, in metadata and inside other values a number is an int like any other."""
    number = Number(7)
    state = thread.hydrate()
    state.logs["seen"].append(number)
    state.slots["both"] = {"count": number, "list": [number]}
    thread.save(state, metadata=number)
    found = thread.hydrate()
    assert (found.logs["seen"][0], found.slots["both"]) == (7, {"count": 7, "list": [7]})
    assert (found.checkpoint.metadata, f"{number} {number!r}") == (7, "7 Number(7)")


def test_a_number_too_large_is_refused(thread: Any) -> None:
    """A number has 64 bits: what does not fit is refused before it is sent, and by the daemon where a sum leaves it."""
    state = thread.hydrate()
    state.slots["n"] = Number(1 << 63)
    with pytest.raises(ValueError, match=r"slots\.n"):
        thread.save(state)
    with pytest.raises(ValueError, match="delta"):
        thread.increment("n", 1 << 63)
    thread.increment("n", (1 << 63) - 1)
    with pytest.raises(EditConflict, match="int64"):
        thread.increment("n")


@pytest.mark.parametrize("delta", ["1", 1.5, None])
def test_what_is_no_whole_number_is_named(thread: Any, board: Any, delta: Any) -> None:
    """A delta of another type is refused by its name, before anything is sent."""
    for count in (thread.increment, board.increment):
        with pytest.raises(TypeError, match=r"delta: .* is no whole number"):
            count("n", delta)
    assert thread.hydrate().version == 0


def test_a_full_state_carries_numbers(thread: Any, client: Any, name: str) -> None:
    """Overwriting, forking and an older version keep a number what it is."""
    thread.increment("hits", 2)
    state = thread.hydrate()
    state.slots["new"] = 1
    thread.save(state, overwrite=True)
    thread.increment("hits", 5)
    assert (thread.hydrate(at=2).slots["hits"], thread.hydrate().slots["hits"]) == (2, 7)
    copy = thread.fork(f"{name}-copy")
    copy.increment("hits")
    assert client.thread(f"{name}-copy").hydrate().slots["hits"] == 8


def test_counts_of_many_threads_and_a_retry(server: Daemon, name: str) -> None:
    """Eight writers at once lose nothing, and the same request again counts once."""
    with Client(server.target) as client:
        thread = client.thread(name)

        sums: list[int] = []

        def count() -> None:
            for number in range(20):
                sums.append(thread.increment("hits"))
                thread.append("log", number)

        workers = [threading.Thread(target=count) for _ in range(8)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert sorted(sums) == [*range(1, 161)]
        first = thread.increment("hits", 40, request_id="the same")
        again = thread.increment("hits", 40, request_id="the same")
        state = thread.hydrate()
        assert (first, again, state.version) == (200, 200, 321)
        assert (state.slots["hits"], len(state.logs["log"])) == (200, 160)


# -- expected values ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "other"),
    [
        ({"a": [1, "ü"]}, {"a": [2, "ü"]}),
        (b"bytes", b"other"),
        (Number(-3), Number(3)),
        (None, False),
        ("x" * 5000, "x"),
    ],
)
def test_an_expected_value_decides(thread: Any, old: Any, other: Any) -> None:
    """A slot is set if it holds the value that is expected, and left alone where it holds another one."""
    thread.set_slot("s", old, expected=ABSENT)
    for wrong in (other, ABSENT):
        with pytest.raises(EditConflict) as caught:
            thread.set_slot("s", "new", expected=wrong)
        assert (caught.value.edit, caught.value.field) == (0, "diff.edits[0].set_slot.expected_sha256")
    assert thread.hydrate().slots["s"] == old
    first = thread.set_slot("s", "new", expected=old, request_id="the same")
    again = thread.set_slot("s", "new", expected=old, request_id="the same")  # as after a lost answer
    assert (again.version, again.replayed) == (first.version, True)
    with pytest.raises(EditConflict):
        thread.set_slot("missing", "new", expected=old)
    thread.set_slot("s", "newer")
    assert dict(thread.hydrate().slots) == {"s": "newer"}


def test_an_expected_value_may_be_a_blob(server: Daemon, open_client: Callable[..., Any], name: str) -> None:
    """A value that became a blob because of its size is expected like any other."""
    thread = open_client(server.target, blob_threshold=1000).thread(name)
    large = {"text": "x" * 2000}
    thread.set_slot("s", large)
    with pytest.raises(EditConflict):
        thread.set_slot("s", 1, expected={"text": "y" * 2000})
    assert thread.hydrate().slots["s"] == large
    thread.set_slot("s", 1, expected=large)


def test_what_was_expected_is_not_told_again(thread: Any) -> None:
    """Reading the history replays what was stored: of a slot that was set only if, that it was set."""
    thread.set_slot("s", "a" * 600, expected=ABSENT)
    thread.set_slot("s", "a" * 599 + "b", expected="a" * 600)
    thread.increment("n", 4)
    assert [type(change).__name__ for entry in thread.history() for change in entry.changes] == [
        "SpliceSlot",
        "AddNumber",
    ]
    assert thread.hydrate(at=2).slots["s"] == "a" * 599 + "b"


# -- boards ------------------------------------------------------------------------------------------------------------


def test_areas_do_not_meet(board: Any, client: Any, name: str) -> None:
    """The same names in the shared area and in those of two agents are three things."""
    other = client.board(name, agent="bob")
    for place, value in ((board, "shared"), (board.private, "ada's"), (other.private, "bob's")):
        place.post("plan", value)
        place.append("notes", value)
        place.increment("count", len(value))
    assert board.read() == other.read() == {"plan": "shared", "count": 6}
    assert board.private.read() == {"plan": "ada's", "count": 5}
    assert other.private.read("plan", "none") == {"plan": "bob's"}
    assert [*board.read("plan", "count")] == [*reversed(board.read("count", "plan"))] == ["plan", "count"]
    assert [entry.value for entry in board.private.log("notes").read()] == ["ada's"]
    assert board.thread.hydrate(slots=["agents/bob/plan"]).slots["agents/bob/plan"] == "bob's"
    assert other.private.log("notes").replay(lambda seen, note: [*seen, note], [], projection="p") == ["bob's"]
    assert board.private.log("notes").replay(lambda seen, note: [*seen, note], [], projection="p") == ["ada's"]


def test_areas_are_named_with_care(board: Any, client: Any, name: str) -> None:
    """Nobody reaches into a private area by its name, and an area without an agent is an error in the program."""
    with pytest.raises(ValueError, match=r"board\.private"):
        board.post("agents/bob/plan", "mine")
    with pytest.raises(ValueError, match="agent="):
        _ = client.board(name).private
    with pytest.raises(ValueError, match='must not contain "/"'):
        _ = client.board(name, agent="a/b").private
    with pytest.raises(ValueError, match="names of slots or logs"):
        board.private.watch()


def test_a_board_is_watched_by_name(board: Any) -> None:
    """A watch tells the changes of what was chosen and nothing of the rest."""
    board.post("price", 1)
    with board.watch(slots=["price"], logs=["bids"]) as events:
        board.increment("noise")
        board.append("bids", "ten")
        board.private.post("price", "of mine")
        board.post("price", 2)
        board.increment("noise")
        found = [change for _ in range(2) for change in next(events).changes]
    assert found == [Append("bids", ("ten",), None), SetSlot("price", 2)]
    with board.private.watch(slots=["n"]) as events:
        board.increment("n")
        board.private.increment("n", 3)
        assert list(next(events).changes) == [AddNumber("agents/ada/n", 3)]


def test_a_post_needs_what_it_expects(board: Any) -> None:
    """Of two agents that want the same task one gets it."""
    board.post("task-1", {"taken by": "ada"}, expected=ABSENT)
    with pytest.raises(EditConflict):
        board.post("task-1", {"taken by": "bob"}, expected=ABSENT)
    board.post("task-1", {"done": True}, expected={"taken by": "ada"})
    assert board.read("task-1") == {"task-1": {"done": True}}
    board.post("task-1", {"a": 1, "b": 2})
    with pytest.raises(EditConflict):  # equal, but stored in other bytes, as its docstring says
        board.post("task-1", "new", expected={"b": 2, "a": 1})


def test_a_number_in_a_log_is_refused_by_the_daemon(server: Daemon, name: str) -> None:
    """Other clients cannot put one where it cannot be counted."""
    with Client(server.target) as client:

        def save() -> Any:
            edit = diff_pb2.Edit(append=diff_pb2.Append(log="l", entries=[{"number": 1}]))
            diff = diff_pb2.Diff(edits=[edit])
            yield Call("Save", checkpoints.SaveRequest(thread=name, options=WriteOptions(request_id="r"), diff=diff))

        with pytest.raises(InvalidField, match="only in a slot"):
            client._session.run(save())
