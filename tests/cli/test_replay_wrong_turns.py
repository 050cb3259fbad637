"""The danger: a walk through a run that shows what was not, and a branch that begins elsewhere than was said."""

from __future__ import annotations

import json
import re

import pytest
from tests.cli.conftest import run_on_terminal


@pytest.fixture
def line(client):
    """Five steps, 10 to 50, on main."""
    thread = client.thread("t")
    state = thread.hydrate()
    for number in range(1, 6):
        state.slots["goal"], state.slots["n"] = {"city": "Paris"}, number
        state.logs["messages"].append(f"m{number}")
        thread.save(state, step=number * 10)
    return thread


def test_branch_with_edited_slots(stateward, line):
    """One command makes a branch from a step with other slots; the line it comes from stays as it is."""
    answer = stateward("branch", "t", "cheap", "--at", "step:30", "--set", 'goal={"city": "Rome"}', "--set", "word=hi",
                       "--unset", "n")  # fmt: skip
    assert answer.out == "branch cheap of t begins with version 6, made from version 3, with goal, n, word edited\n"
    state = line.branch("cheap").hydrate()
    assert dict(state.slots) == {"goal": {"city": "Rome"}, "word": "hi"}
    assert (state.checkpoint.step, list(state.logs["messages"])) == (30, ["m1", "m2", "m3"])
    assert line.hydrate().slots["goal"] == {"city": "Paris"}
    assert stateward("branch", "t", "again", "--from", "cheap", "--json").json["parent_version"] == 6


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["cheap"], "branch 'cheap' already"),
        (["new", "--at", "step:31"], "step 31"),
        (["new", "--at", "step:x"], "whole numbers"),
        (["new", "--at", "branch:none"], "it has: main, cheap"),
        (["new", "--at", "none"], "no tag 'none'"),
        (["new", "--unset", "none"], "no slot 'none'"),
        (["new", "--set", "none"], "SLOT=VALUE"),
        (["new", "--set", "n=Infinity"], "--set n: Infinity is not a number"),
        (["new", "--set", "n=1e999"], "--set n: the value: inf"),
        (["", "--at", "3"], "NAME: it is empty"),
    ],
)
def test_branch_refused(stateward, line, arguments, says):
    """What cannot be made is refused in one line, and nothing is made."""
    assert stateward("branch", "t", "cheap").code == 0
    answer = stateward("branch", "t", *arguments)
    assert answer.code != 0
    assert says in answer.error.replace("cheap, main", "main, cheap")
    assert len(line.info().branches) == 2


def test_two_branches_compared(stateward, line):
    """`diff A..B` takes names of branches; a tag of the same name comes first, `branch:` says which."""
    stateward("branch", "t", "cheap", "--at", "3", "--set", "n=9")
    found = stateward("diff", "t", "cheap..main", "--json").json
    assert (found["from"], found["to"], found["slots"]["n"]["old"], found["slots"]["n"]["new"]) == (6, 5, 9, 5)
    assert found["logs"]["messages"]["appended"][-1]["value"] == "m5"
    assert "version 6 on cheap, step 30" in stateward("diff", "t", "cheap", "main").out
    line.tags.set("cheap", 1)
    assert stateward("diff", "t", "cheap..main", "--json").json["from"] == 1
    assert stateward("diff", "t", "branch:cheap..step:40", "--json").json["from"] == 6
    assert stateward("show", "t", "--at", "step:20", "--json").json["checkpoint"]["version"] == 2


def test_all_steps_in_a_pipe(stateward, line):
    """Every step is told with its change and its slots, also those before a branch began."""
    stateward("branch", "t", "cheap", "--at", "3", "--set", "n=9")
    heads = [each for each in stateward("replay", "t").out.splitlines() if each.startswith("==")]
    assert [each.split(",")[0] for each in heads] == [f"== version {number}" for number in range(1, 6)]
    out = stateward("replay", "t", "-b", "cheap", "--from", "3").out
    assert [each.split("  ")[0] for each in out.splitlines() if each.startswith("==")] == [
        "== version 3, step 30",
        "== version 6 on cheap, step 30",
    ]
    assert "slot n\n  - 3\n  + 9\nstate\n" in out
    lines = list(map(json.loads, stateward("replay", "t", "--from", "2", "--to", "3", "--json").out.splitlines()))
    assert [each["checkpoint"]["version"] for each in lines] == [2, 3]
    assert (lines[0]["slots"]["n"], lines[0]["logs"]) == (2, {"messages": 2})
    assert {"change": "set_slot", "slot": "n", "value": 3} in lines[1]["changes"]
    line.prune(versions=[2])
    assert "== version 2" not in stateward("replay", "t").out


def test_walk_by_hand(daemon, namespace, line):
    """On a terminal Enter goes on, b back, a number there, and q ends it."""
    code, shown = run_on_terminal(
        "--target", daemon.target, "-n", namespace, "replay", "t", typed="\nb\n4\n\nq\n", TERM="dumb"
    )
    assert code == 0
    assert re.findall(r"== version (\d)", shown) == ["1", "2", "1", "4", "5"]
