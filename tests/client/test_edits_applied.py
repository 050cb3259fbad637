"""The danger: edits of a program's own that are lost, or applied to another version, or refused without a place."""

import pytest

from stateward import Number, Status, Text, VersionMismatch
from stateward.changes import (
    AddNumber,
    Append,
    DeleteLog,
    DeleteSlot,
    ReplaceEntry,
    SetSlot,
    SpliceSlot,
    TrimLog,
)
from stateward.errors import EditConflict, InvalidField

LARGE = "0123456789" * 1000


@pytest.fixture
def daemon(real_daemon):
    if isinstance(real_daemon, str):
        pytest.skip(real_daemon)
    return real_daemon


@pytest.fixture
def client(daemon, open_client, name):
    return open_client(daemon.target, namespace=name)


def contents(state):
    return dict(state.slots), {name: list(log) for name, log in state.logs.items()}


def test_every_kind_of_edit(client):
    """Edits of every kind make a version; without a parent those that only add go on top of whatever is the head."""
    thread = client.thread("t")
    first = thread.apply(
        [
            SetSlot("goal", {"city": "Paris"}),
            SetSlot("gone", 1),
            SetSlot("n", Number(1)),
            SetSlot("text", Text(LARGE)),
            Append("log", (1, 2, 3, 4)),
            Append("gone", ("x",)),
        ],
        step=7,
    )
    assert (first.version, first.step) == (1, 7)
    edits = [
        DeleteSlot("gone"),
        AddNumber("n", 41),
        SpliceSlot("text", ((0, 1, b"Z"), (9999, 1, b"!"))),
        ReplaceEntry("log", 2, {"three": True}),
        TrimLog("log", before_index=1),
        Append("log", (5,), at_index=4),
        DeleteLog("gone"),
    ]
    second = thread.apply(edits, parent=first)
    text = Text("Z" + LARGE[1:-1] + "!")
    expected = {"goal": {"city": "Paris"}, "n": 42, "text": text}, {"log": [2, {"three": True}, 4, 5]}
    assert contents(thread.hydrate()) == expected
    assert thread.apply([], parent=second).version == 3
    assert thread.apply(iter([AddNumber("n", 1)])).version == 4
    assert contents(thread.hydrate(second.version)) == expected


def test_what_diff_returns_can_be_applied(client):
    """A diff between any two versions, applied to the first, gives the second."""
    thread, copy = client.thread("t"), client.thread("copy")
    state = thread.hydrate()
    state.slots.update({"a": [1, 2], "text": Text(LARGE), "n": Number(5)})
    state.logs["log"].extend(range(5))
    thread.save(state)
    state.slots["text"] = Text(LARGE[:5000] + "X" + LARGE[5000:])
    del state.slots["a"]
    state.logs["log"].trim(keep_last=2)
    state.logs["log"].append("end")
    thread.save(state)
    made = copy.apply(thread.diff(0, 1), parent=0)
    copy.apply(thread.diff(1, 2), parent=made)
    assert contents(copy.hydrate()) == contents(thread.hydrate())
    assert contents(copy.hydrate(1)) == contents(thread.hydrate(1))


def test_the_parent_is_compared(client):
    """A parent that is not the head is a VersionMismatch; on a new branch it is where the branch begins."""
    thread = client.thread("t")
    first = thread.apply([SetSlot("a", 1)], parent=0)
    thread.apply([SetSlot("a", 2)])
    with pytest.raises(VersionMismatch) as caught:
        thread.apply([SetSlot("a", 3)], parent=first)
    assert caught.value.current_version == 2
    branch = thread.branch("other", at=1)
    with pytest.raises(ValueError, match="does not make a branch"):
        branch.apply([SetSlot("b", 1)])
    branch.apply([SetSlot("b", 1)], parent=1)
    assert dict(thread.branch("other").hydrate().slots) == {"a": 1, "b": 1}


@pytest.mark.parametrize(
    ("edit", "error", "place"),
    [
        ("text", TypeError, r"edits\[1\]: 'text' is no change"),
        (SetSlot("a", object()), TypeError, r"edits\[1\].value"),
        (SetSlot("a", {"x": float("nan")}), ValueError, r"edits\[1\].value.x"),
        (SetSlot(5, 1), TypeError, r"edits\[1\]"),
        (AddNumber("n", 1 << 70), ValueError, r"edits\[1\]"),
        (Append("log", (1, object())), TypeError, r"edits\[1\].entries\[1\]"),
        (TrimLog("log"), ValueError, r"edits\[1\]: give exactly one"),
    ],
)
def test_the_client_names_the_place(client, edit, error, place):
    """What cannot be sent is refused before anything is sent, with the index of the edit."""
    with pytest.raises(error, match=place):
        client.thread("t").apply([SetSlot("a", 1), edit], parent=0)


def test_the_daemon_names_the_field(client, daemon, open_client, name):
    """An edit that needs a parent, or does not fit, is named; an ephemeral slot is never sent."""
    thread = client.thread("t")
    thread.apply([SetSlot("a", 1)])
    with pytest.raises(InvalidField) as refused:
        thread.apply([SetSlot("a", 2), ReplaceEntry("log", 0, 1)])
    assert refused.value.field == "diff.edits[1]"
    with pytest.raises(InvalidField) as refused:
        thread.apply([SetSlot("", 2)], parent=1)
    assert refused.value.field == "diff.edits[0].set_slot.slot"
    with pytest.raises(EditConflict) as conflict:
        thread.apply([SetSlot("a", 2), DeleteSlot("missing")], parent=1)
    assert conflict.value.edit == 1
    kept = open_client(daemon.target, namespace=name, ephemeral=("scratch/",))
    with pytest.raises(ValueError, match=r"edits\[0\].slot: slot 'scratch/a' is ephemeral"):
        kept.thread("t").apply([SetSlot("scratch/a", 1)])


def test_a_diff_with_a_log_that_is_empty(client):
    """A log that was stored empty comes as an append without entries: it is left out, and the rest is applied."""
    thread, whole, copy = client.thread("t"), client.thread("whole"), client.thread("copy")
    state = thread.hydrate()
    state.logs["log"].append(1)
    thread.save(state)
    state.logs["log"].trim(keep_last=0)
    state.slots["a"] = 1
    thread.save(state)
    whole.save(thread.hydrate(), overwrite=True)
    edits = whole.diff(0)
    assert Append("log", ()) in edits
    copy.apply(edits, parent=0)
    assert contents(copy.hydrate()) == ({"a": 1}, {})
    with pytest.raises(EditConflict) as conflict:
        copy.apply([Append("log", ()), SetSlot("a", 2), Append("l", ()), DeleteSlot("x")], parent=1)
    assert conflict.value.edit == 3


def test_the_status_of_a_version_from_edits(client):
    """Without a parent a question stays open with its answer; with one it ends, and the answer waits for its `ack`."""
    thread = client.thread("t")
    asked = thread.hydrate()
    thread.ask(asked, "pay?")
    answer = thread.approve("yes")
    thread.apply([SetSlot("a", 1)])
    assert thread.hydrate().answer.id == answer.id
    thread.apply([SetSlot("a", 2)], parent=2)
    state = thread.hydrate()
    assert (state.checkpoint.status, state.answer) == (Status.RUNNING, None)
    assert [each.id for each in state.signals] == [answer.id]
