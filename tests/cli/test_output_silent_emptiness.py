"""The danger: a newcomer who learns nothing from an empty list, a misspelt word, a misread value, or a pipe."""

import subprocess
import sys

import pytest
from tests.cli.conftest import environment, run

from stateward import State


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("threads",), "no threads in namespace"),
        (("threads", "--status", "failed"), "match"),
        (("waiting",), "no thread waits"),
        (("tools",), "no tool calls"),
        (("failures",), "no failures"),
        (("effects", "t"), "has no effects"),
        (("records", "t"), "has no records"),
        (("tag", "t"), "has no tags"),
    ],
)
def test_an_empty_list_says_so(stateward, client, arguments, told):
    """On stderr, also in a pipe; stdout stays empty, and with --json it is an empty list."""
    if "t" in arguments:
        client.thread("t").save(State())
    answer = stateward(*arguments)
    assert (answer.code, answer.out) == (0, "")
    assert told in answer.error
    if arguments[0] != "tools":
        as_json = stateward(*arguments, "--json")
        assert (as_json.json, as_json.err) == ([], "")


def test_a_misspelt_command_is_guessed():
    """Of all commands, and of those of a group; nothing is guessed from a word that is like none."""
    assert run("thrads").error == "No such command 'thrads' (did you mean 'threads'?); see: stateward --help"
    assert "(did you mean 'list'?); see: stateward archive" in run("archive", "lst").error
    assert "did you mean" not in run("xyzzy").error


def test_a_value_that_was_meant_as_json_is_no_text(stateward, client):
    """A list or an object with a mistake fails; other text that is no JSON is text."""
    client.thread("t").save(State())
    assert "--set goal: this is not JSON" in stateward("branch", "t", "b", "--set", "goal={'city': 1}").error
    assert stateward("branch", "t", "b", "--set", "goal=Paris", "--set", "days=[1, 2]").code == 0
    assert dict(client.thread("t", branch="b").hydrate().slots) == {"goal": "Paris", "days": [1, 2]}


def test_a_missing_argument_has_a_name(stateward, client):
    """`diff` asks for FROM."""
    assert "Missing argument 'FROM'" in stateward("diff", "t").error


def test_watch_ends_with_its_reader(daemon, namespace, client):
    """`watch | head -1` ends with `head`, though nothing more happens."""
    client.thread("t").save(State())
    where = f"--target {daemon.target} -n {namespace}"
    command = f"{sys.executable} -m stateward.cli {where} watch t --from-start | head -1"
    answer = subprocess.run(
        command, shell=True, capture_output=True, text=True, env=environment(), timeout=200, check=False
    )
    assert (answer.stdout.count("\n"), answer.stderr) == (1, "")


def test_what_changes_something_tells_scripts(stateward, client):
    """`approve`, `reject`, `records put` and `records rm` have --json."""
    thread = client.thread("t")
    for name in ("approve", "reject"):
        thread.ask(thread.hydrate(), "Book?", wait_id=f"w-{name}")
        found = stateward(name, "t", "--yes", "--json").json
        assert (found["name"], found["wait_id"]) == (name, f"w-{name}")
        state = thread.hydrate()
        assert found["id"] == (state.answer.id if state.answer else "")
        thread.save(state)
    assert stateward("records", "put", "t", "k", "1", "--json").json ["key"] == "k"
    assert stateward("records", "rm", "t", "k", "--yes", "--json").json == {"deleted": 1, "not_deleted": []}
