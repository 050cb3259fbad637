"""The danger: a command that hides what was asked for, says it twice, or takes what it does not understand."""

import io
import json
import sys

import pytest
from tests.cli.conftest import make_run, run

from stateward.cli.commands.replay import _Walk

TEXT = "\n".join(f"line {number} " + "word " * 20 for number in range(30)) + "\nthe \x1b[31mend"


@pytest.fixture
def line(client):
    """A thread of three versions, and a branch beside the last two."""
    thread = client.thread("t")
    for text in ("one", TEXT, "three"):
        thread.append("messages", {"role": "tool", "content": text, "call": {"id": 7}})
    branch = thread.branch("side", at=1)
    state = branch.hydrate()
    state.slots["plan"] = {"steps": ["a " * 200, 2]}
    branch.save(state)
    return thread


def test_show_full(stateward, line):
    """--full prints entries and slots to their end, on lines, with nothing that a terminal would obey."""
    assert "the \\x1b[31mend" not in stateward("show", "t").out
    full = stateward("show", "t", "--full").out
    for number in range(30):
        assert f"    line {number} " in full
    assert "    the \\x1b[31mend\n" in full
    assert '"id": 7' in full
    side = stateward("show", "t", "-b", "side", "--full").out
    assert "a " * 200 in side
    for wrong in ("--json", "--raw"):
        assert stateward("show", "t", "--full", wrong).code == 2


def test_replay_of_two_lines(stateward, line):
    """Versions of which one was not made from the other are named by their option, and not by a field."""
    for options in (("--from", "3", "--to", "2"), ("--from", "2", "-b", "side")):
        answer = stateward("replay", "t", *options)
        assert answer.code == 1
        assert answer.error.startswith("--from: version ")
        assert "oldest" not in answer.err
        assert "check the names" not in answer.err


def test_replay_from_before_pruned_versions(stateward, client):
    """A walk begins after what was pruned, and one that shall begin before it is told why it cannot."""
    thread = client.thread("pruned")
    for number in range(5):
        thread.append("l", number)
    thread.tags.set("kept", 1)
    thread.prune(versions=[2, 3])
    shown = stateward("replay", "pruned", "--json").out.splitlines()
    assert [json.loads(line)["checkpoint"]["version"] for line in shown] == [4, 5]
    answer = stateward("replay", "pruned", "--from", "kept")
    assert (answer.code, answer.error.partition(";")[0]) == (
        1,
        "--from: version 3, an ancestor of version 5, was pruned",
    )


def test_replay_answers_what_it_does_not_understand(monkeypatch, capsys):
    """On a terminal a word or number that means nothing is said to, and asked for again."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("what\n9\n0\n3\n"))
    assert _Walk._ask(0, 3) == 2
    shown = capsys.readouterr().out
    assert shown.count("is none of Enter, b, q, and a number from 1 to 4") == 3
    for typed, place in (("b\n", 0), ("\n", 2), ("q\n", None), ("", None)):
        monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
        assert _Walk._ask(1, 3) == place


def test_resumed_import_tells_what_it_did(stateward, write):
    """An import of runs that are there prints no line for each of them: the summary counts them."""
    path = write("runs.jsonl", *(make_run(f"r{number}", 2) for number in range(5)))
    assert stateward("import", path).out.count("2 steps saved") == 5
    write("runs.jsonl", *(make_run(f"r{number}", 2 + (number == 3)) for number in range(5)))
    lines = stateward("import", path).out.splitlines()
    assert [each for each in lines if each.startswith("runs/")] == [
        next(each for each in lines if "1 step saved after the 2 that were already saved" in each)
    ]
    assert any(each.split() == ["runs", "5,", "4", "were", "there", "already"] for each in lines)


def test_advice_is_given_once(stateward):
    """A command that needs an archive says once how to have one."""
    answer = stateward("archive", "list")
    assert answer.error.count("start it with") == 1
    assert answer.error.endswith("stateward-sidecar --archive URL")


def test_lengths_of_nothing(pair):
    """Garbage of any age is collected with 0s; where no time makes no sense, the error does not contradict it."""
    assert run("--target", pair.first.target, "archive", "gc", "--older-than", "0s").code == 0
    answer = run("--target", pair.first.target, "drain", "--grace", "0s")
    assert (answer.code, "give more than 0" in answer.err) == (2, True)
    assert "more than ten years" in run("--target", pair.first.target, "archive", "gc", "--older-than", "4000d").err
