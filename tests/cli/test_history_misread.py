"""The danger: a history or a difference that does not say what happened."""

import pytest

from stateward import RawValue, Text
from stateward.cli.show.compare import MISSING, Difference, compare_values
from stateward.cli.show.graph import draw


@pytest.fixture
def forked(client):
    """main: 1, 2, 5; try: 3, 4 from 1."""
    thread = client.thread("t")
    state = thread.hydrate()
    state.slots["plan"] = {"city": "Paris", "items": [1, 2, 3], "gone": True}
    state.slots["note"], state.slots["bin"] = Text("one\ntwo\nthree"), b"\x00" * 2000
    state.logs["messages"].extend(["a", {"role": "user", "content": "b"}, "c"])
    thread.save(state, step=1, checkpoint_id="first")
    state.slots["plan"] = {"city": "Rome", "items": [1, 9, 2, 3], "new": None}
    state.slots["note"], state.slots["bin"] = Text("one\n2\nthree"), b"\x01" * 3000
    state.logs["messages"][1] = {"role": "user", "content": "B"}
    state.logs["messages"].append("d")
    state.logs["messages"].trim(before_index=1)
    thread.save(state, step=2, labels={"k": "v"})
    branch = thread.branch("try", at=1)
    other = branch.hydrate()
    for number in range(2):
        other.slots["n"] = number
        branch.save(other)
    state.slots["plan"] = "done"
    thread.save(state, status="completed")
    thread.tags.set("good", 2)
    return thread


def test_history_of_a_branch(stateward, forked):
    """A branch's versions are listed newest first, with tags and labels, and others are pointed at."""
    found = stateward("history", "t", "--json").json
    assert [each["version"] for each in found] == [5, 2, 1]
    assert [each["parent_version"] for each in found] == [2, 1, 0]
    assert found[1]["tags"] == ["good"]
    assert found[1]["labels"] == {"k": "v"}
    assert [each["version"] for each in stateward("history", "t", "-b", "try", "--json").json] == [4, 3]
    answer = stateward("history", "t", "--limit", "2")
    assert [line.split()[0] for line in answer.out.splitlines()] == ["VERSION", "5", "2"]
    assert "--limit 0" in answer.err
    assert "(try)" in answer.err


def test_forks_are_drawn(stateward, forked):
    """With --all every branch has a line of its own, which joins where it began."""
    answer = stateward("history", "t", "--all")
    assert answer.err == ""
    header, *rows = answer.out.splitlines()
    assert header.split()[:3] == ["VERSION", "PARENT", "BRANCH"]
    assert [row.split("  ")[0] for row in rows] == ["o", "│ o", "│ o", "o │", "o─┘"]
    assert [each["version"] for each in stateward("history", "t", "--all", "--json").json] == [5, 4, 3, 2, 1]


@pytest.mark.parametrize(
    ("versions", "drawn"),
    [
        ([], []),
        ([(3, 2), (2, 1), (1, 0)], ["o", "o", "o"]),
        ([(4, 1), (3, 1), (2, 1), (1, 0)], ["o", "│ o", "│ │ o", "o─┘─┘"]),
        ([(4, 2), (3, 1), (2, 1), (1, 0)], ["o", "│ o", "o │", "o─┘"]),
        ([(5, 2), (3, 1), (1, 0)], ["o", "│ o", "  o"]),  # 2 was pruned
        ([(5, 1), (4, 2), (3, 1), (2, 0), (1, 0)], ["o", "│ o", "│ │ o", "│ o │", "o───┘"]),
        ([(9, 8), (8, 7)], ["o", "o"]),  # the rest is not listed
    ],
)
def test_drawing(versions, drawn):
    """Every version has its node, and lines join at the version that branches were made from."""
    assert draw(versions) == drawn


def test_difference_of_two_versions(stateward, forked):
    """What changed is shown place by place, line by line, entry by entry, and binary values by their size."""
    out = stateward("diff", "t", "id:first", "good").out
    assert out.splitlines() == [
        "--- t version 1, step 1",
        "+++ t version 2, step 2",
        "slot bin",
        "  - 1.95 KiB of bytes",
        "  + 2.93 KiB of bytes",
        "slot note",
        "  @@ -1,3 +1,3 @@",
        "   one",
        "  -two",
        "  +2",
        "   three",
        "slot plan",
        '  - city: "Paris"',
        '  + city: "Rome"',
        "  + items[1]: 9",
        "  - gone: true",
        "  + new: null",
        "log messages",
        "  - 1 entry dropped at the start",
        '  - [1].content: "b"',
        '  + [1].content: "B"',
        '  + [3] "d"',
    ]


def test_difference_as_json(stateward, forked):
    """For scripts the difference has old and new values, and places only where a part of a value changed."""
    found = stateward("diff", "t", "1", "2", "--json").json
    assert (found["from"], found["to"], sorted(found["slots"])) == (1, 2, ["bin", "note", "plan"])
    assert {"path": "items[1]", "new": 9} in found["slots"]["plan"]["places"]
    assert found["slots"]["note"]["places"] == []
    assert found["slots"]["note"]["new"] == "one\n2\nthree"
    log = found["logs"]["messages"]
    assert (log["dropped_at_start"], log["cut_at_end"]) == (1, 0)
    assert [each["index"] for each in log["replaced"]] == [1]
    assert log["appended"] == [{"index": 3, "value": "d"}]
    back = stateward("diff", "t", "2", "1", "--json").json["logs"]["messages"]
    assert (back["dropped_at_start"], back["cut_at_end"]) == (0, 1)
    assert back["appended"] == []
    assert back["came_back_at_start"] == [{"index": 0, "value": "a"}]
    everything = stateward("diff", "t", "0", "1", "--json").json
    assert {each["change"] for each in everything["slots"].values()} == {"added"}
    assert len(everything["logs"]["messages"]["appended"]) == 3


def test_no_difference(stateward, forked):
    """A version differs in nothing from itself, and the newest one is the default."""
    assert "no difference" in stateward("diff", "t", "good", "2").out
    assert stateward("diff", "t", "5", "--json").json == {"from": 5, "to": 5, "slots": {}, "logs": {}}
    assert stateward("diff", "t", "1", "-b", "try", "--json").json["to"] == 4


def test_same_value_in_other_bytes(stateward, client):
    """Bytes that changed without a change of the value are said to be that."""
    client.thread("t").update(lambda state: state.slots.update(s=RawValue("application/json", b"[1]")))
    client.thread("t").update(lambda state: state.slots.update(s=RawValue("application/json", b"[2]")))
    client.thread("t").update(lambda state: state.slots.update(s=RawValue("text/json", b"[2]")))
    assert "  - [0]: 1\n  + [0]: 2\n" in stateward("diff", "t", "1", "2").out
    assert "text/json" in stateward("diff", "t", "2", "3").out


def test_values_are_compared_as_json():
    """1, 1.0 and true differ; lists are compared between their common ends; odd keys are quoted."""
    assert list(compare_values({"a": 1}, {"a": 1.0})) == [Difference("a", 1, 1.0)]
    assert list(compare_values([1], [True])) == [Difference("[0]", 1, True)]
    assert list(compare_values([1, 2, 3], [1, 3])) == [Difference("[1]", 2, MISSING)]
    assert list(compare_values({"a b": [{"x": 1}]}, {"a b": [{"x": 2}]})) == [Difference('["a b"][0].x', 1, 2)]
    assert list(compare_values({"a": None}, {})) == [Difference("a", None, MISSING)]
    assert list(compare_values({"a": [1, {"b": 2}]}, {"a": [1, {"b": 2}]})) == []


def test_raw_slot(stateward, forked, daemon, namespace, capfd):
    """--raw gives a slot's bytes and nothing else."""
    assert stateward("show", "t", "--slot", "bin", "--raw", "--at", "1").out == "\x00" * 2000
    assert stateward("show", "t", "--slot", "note", "--raw").out == "one\n2\nthree"
    assert stateward("show", "t", "--slot", "n", "--branch", "try", "--at", "3", "--json").json["slots"] == {"n": 0}
    assert stateward("show", "t", "--at", "tag:good", "--slot", "note", "--json").json["logs"] == {}


def test_large_values(stateward, client):
    """Values that are kept apart from the state, as they are large, are shown and compared like the others."""
    thread = client.thread("large")
    state = thread.hydrate()
    texts = [letter * (5 << 18) for letter in "ab"]
    for text in texts:
        state.slots["s"], state.slots["raw"] = text, text.encode()
        state.logs["l"].append({"text": text})
        thread.save(state)
    shown = stateward("show", "large", "--json").json
    assert shown["slots"]["s"] == texts[1]
    assert [each["text"] for each in shown["logs"]["l"]] == texts
    assert '"bbbb' in stateward("show", "large", "--log", "l", "--last", "1").out
    assert '"bbbb' in stateward("show", "large", "--slot", "s").out
    assert stateward("show", "large", "--slot", "raw", "--raw").out == texts[1]
    difference = stateward("diff", "large", "1", "2", "--json").json
    assert (difference["slots"]["s"]["old"], difference["slots"]["s"]["new"]) == tuple(texts)
    answer = stateward("diff", "large", "1")
    assert answer.code == 0
    assert '- "aaaa' in answer.out
    assert "+ [1]" in answer.out
