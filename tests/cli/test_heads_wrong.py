"""The danger: the shell moves the head of another branch, deletes what it should not, or does not say what it did."""

from __future__ import annotations

import pytest


@pytest.fixture
def line(client):
    """Thread t: main has the versions 1 to 4, cheap has 5 and 6."""
    thread = client.thread("t")
    state = thread.hydrate()
    for number in range(1, 5):
        state.slots["n"] = number
        thread.save(state)
    handle = thread.branch("cheap", at=2)
    state = handle.hydrate()
    for number in (5, 6):
        state.slots["n"] = number
        handle.save(state)
    return thread


def test_all_branches(stateward, line):
    """With their heads, and where they began; a head that went back shows the newest version, too."""
    assert stateward("branch", "t").out.splitlines() == [
        "BRANCH  VERSION  MADE FROM",
        "main          4",
        "cheap         6          2",
    ]
    line.branches.move("main", 3)
    assert [each.split() for each in stateward("branch", "t").out.splitlines()] == [
        ["BRANCH", "VERSION", "MADE", "FROM", "NEWEST"],
        ["main", "3", "4"],
        ["cheap", "6", "2"],
    ]
    assert stateward("branch", "t", "--json").json[0] == {
        "branch": "main", "version": 3, "base_version": 0, "newest_version": 4,
        "digest": line.checkpoints.get(3).digest.hex(),
    }  # fmt: skip


def test_a_head_is_moved(stateward, line):
    """To a version of its branch, by any name of a version; only if the head is the expected one."""
    answer = stateward("branch", "t", "cheap", "--move-to", "5", "--expected", "6")
    assert answer.out == "the head of branch cheap of t is version 5; it was 6\n"
    assert line.branch("cheap").hydrate().slots["n"] == 5
    line.tags.set("good", 2)
    found = stateward("branch", "t", "main", "--move-to", "tag:good", "--yes", "--json").json
    assert found == {"branch": "main", "version": 2, "previous_version": 4}
    assert line.hydrate().slots["n"] == 2


def test_a_branch_is_deleted(stateward, line):
    """Its versions stay."""
    answer = stateward("branch", "t", "cheap", "--delete", "--expected", "6")
    assert answer.out == "branch cheap of t deleted; its head was version 6\n"
    assert [each.name for each in line.info().branches] == ["main"]
    assert line.hydrate(at=6).slots["n"] == 6


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--delete"], 2, "NAME"),
        (["--expected", "4"], 2, "NAME"),
        (["main", "--expected", "4"], 2, "--expected"),
        (["cheap", "--delete", "--move-to", "5"], 2, "NAME"),
        (["cheap", "--delete", "--at", "5"], 2, "NAME"),
        (["cheap", "--move-to", "5", "--set", "a=1"], 2, "NAME"),
        (["main", "--delete"], 1, "main"),
        (["none", "--delete"], 1, "no branch 'none'"),
        (["none", "--move-to", "1"], 1, "no branch 'none'"),
        (["cheap", "--delete"], 1, "give --expected VERSION, or --yes"),
        (["cheap", "--move-to", "5"], 1, "from version 6 to 5? There is no terminal"),
        (["cheap", "--move-to", "1", "--yes"], 1, "not saved to branch 'cheap'"),
        (["cheap", "--move-to", "step:x"], 1, "whole numbers"),
        (["cheap", "--move-to", "5", "--expected", "5"], 1, "version 6"),
        (["cheap", "--delete", "--expected", "5"], 1, "version 6"),
    ],
)
def test_refused(stateward, line, arguments, code, says):
    """In one line, with the exit code of wrong usage or of a failure, and nothing is changed."""
    before = line.info().sequence
    answer = stateward("branch", "t", *arguments)
    assert answer.code == code
    assert says in answer.error
    assert line.info().sequence == before


def test_the_help_names_all_that_it_does(stateward, line):
    """Who looks for a verb finds it."""
    shown = stateward("branch", "--help").out
    assert all(each in shown for each in ("--move-to", "--delete", "--expected", "--set"))


def test_heads_are_pruned_if_they_may_move(stateward, line):
    """Without --move-heads a head is refused; with it the branches move back or disappear."""
    assert "head of branch" in stateward("prune", "t", "--versions", "4", "--yes").error
    assert stateward("prune", "t", "--keep-latest", "1", "--move-heads").code == 2
    assert stateward("prune", "t", "--versions", "4-6", "--move-heads", "--yes").code == 0
    assert [(each.name, each.version) for each in line.info().branches] == [("main", 3)]
