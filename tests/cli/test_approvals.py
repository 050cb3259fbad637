"""The danger: a person's answer that does not reach the agent, reaches another question, or starts nobody."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys

import pytest
from tests.cli.conftest import COMMAND, environment, run
from tests.daemon.process import eventually
from tests.processes import running
from tests.warmcommand import Popen

from stateward import Status

# An agent that does what it was told and acknowledges it.
AGENT = """
import os, sys
from stateward import Client
with Client(namespace=os.environ["STATEWARD_NAMESPACE"]) as client:
    thread = client.thread(os.environ["STATEWARD_THREAD"])
    state = thread.hydrate()
    state.logs["done"].extend([each.name, each.payload] for each in state.signals)
    thread.save(state, ack=state.signals)
"""


@pytest.fixture
def agent(tmp_path):
    """The command that starts it."""
    (tmp_path / "agent.py").write_text(AGENT)
    return shlex.join([sys.executable, str(tmp_path / "agent.py")])


def ask(client, name="t", prompt="Book it?", schema=None, **options):
    thread = client.thread(name)
    return thread.ask(thread.hydrate(), prompt, schema, **options)


def test_who_waits_for_what(stateward, client):
    """The list has the prompt, the reason and the form of the answer, and says who was answered already."""
    wait_id = ask(client, "booking", "Book it\x1b[2J?", {"type": "boolean"}, reason="costs money")
    ask(client, "trip")
    client.thread("busy").append("l", 1)
    assert "answered" not in stateward("waiting").out
    client.thread("trip").approve()
    shown = stateward("waiting").out
    assert "costs money" in shown
    assert "Book it" in shown
    assert "\x1b" not in shown
    assert "busy" not in shown
    found = {each["thread"]: each for each in stateward("waiting", "--json").json}
    assert set(found) == {"booking", "trip"}
    assert found["booking"]["wait_id"] == wait_id
    assert found["booking"]["answer_schema"] == {"type": "boolean"}
    assert found["booking"]["reason"] == "costs money"
    assert [found[name]["signals"] for name in ("booking", "trip")] == [0, 1]


def test_each_way_to_answer(stateward, client):
    """approve, reject, answer and signal send what they say, in somebody's name, to what is asked now."""
    thread = client.thread("t")
    for arguments, name, payload in (
        (["approve", "t", "--yes", "--note", "fine"], "approve", "fine"),
        (["reject", "t", "-y", "--reason", "too dear"], "reject", "too dear"),
        (["answer", "t", "--yes", "the early one"], "answer", "the early one"),
        (["answer", "t", "--yes", "--json", '{"seat": 12}'], "answer", {"seat": 12}),
        (["signal", "t", "cancel"], "cancel", None),
        (["signal", "t", "price", "--json", "1350"], "price", 1350),
    ):
        wait_id = ask(client)
        answer = stateward(*arguments, "--as", "ana")
        assert (answer.code, answer.err) == (0, ""), arguments
        (sent,) = thread.signals.list()
        assert (sent.name, sent.payload, sent.sender) == (name, payload, "ana"), arguments
        assert sent.wait_id == ("" if arguments[0] == "signal" else wait_id)
        thread.save(thread.hydrate(), ack=[sent])


def test_a_stale_page(stateward, client):
    """--wait-id insists on the question that was shown; a second answer, and one to nobody, fail in one line."""
    old = ask(client)
    new = ask(client, prompt="Sure?")
    assert "does not wait for" in stateward("approve", "t", "--wait-id", old).error
    assert stateward("approve", "t", "--wait-id", new).code == 0
    for again in (stateward("approve", "t", "--yes"), stateward("approve", "t")):  # neither asks
        assert again.code == 1
        assert "answered already" in again.error
    client.thread("busy").append("l", 1)
    assert "does not wait" in stateward("reject", "busy").error
    assert "stateward threads" in stateward("approve", "nobody").error


def test_an_answer_of_the_wrong_form(stateward, client):
    """It is refused before it is sent, and the line says how to say it."""
    ask(client, schema={"type": "boolean"})
    refusal = stateward("answer", "t", "true", "--yes")
    assert refusal.code == 1
    assert "--json" in refusal.error
    assert stateward("answer", "t", "--json", "{").code == 1
    assert stateward("answer", "t").code == 2
    assert client.thread("t").signals.list() == []
    assert stateward("answer", "t", "--json", "true", "--yes").code == 0


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("NaN", "NaN is not a number"),
        ("[-Infinity]", "-Infinity is not a number"),
        ("1e999", "inf has no form in JSON"),
        ("[" * 100_000, "nested too deeply"),
        ("9" * 5000, "digits"),
    ],
)
def test_a_value_that_cannot_be_kept(stateward, client, value, says):
    """What Python takes for JSON and nobody else does is refused in one line that names the option."""
    ask(client)
    for command in (["answer", "t"], ["signal", "t", "price"]):
        refusal = stateward(*command, "--json", value)
        assert refusal.code == 1
        assert refusal.error.startswith("--json: ")
        assert says in refusal.error
    assert client.thread("t").signals.list() == []


def test_a_handoff_is_no_question(stateward, client):
    """The list says whom a handed thread waits for, and no answer is taken from others."""
    thread = client.thread("t")
    thread.append("l", 1)
    handoff = thread.hand_over("booker", "dates are fixed")
    assert "handoff to booker" in stateward("waiting").out
    for more in ([], ["--wait-id", handoff.id]):
        refusal = stateward("approve", "t", *more)
        assert refusal.code == 1
        assert "'booker'" in refusal.error
    assert thread.signals.list() == []
    assert client.take_handoff("t").handoff.summary == "dates are fixed"


def test_no_daemon_of_the_asker(pair, namespace):
    """With --archive and the key a daemon of the command's own does it, and gives the thread up."""
    there = ["--archive", f"file://{pair.bucket}", "--key-file", pair.first.key_file, "--namespace", namespace]
    with pair.first.client(namespace=namespace) as client:
        wait_id = ask(client, "asks", durability="archived")
        answer = run("answer", "asks", "yes", *there, "--as", "ana", "--wait-id", wait_id)
        assert (answer.code, answer.err) == (0, "")
    with pair.second.client(namespace=namespace) as client:
        thread = client.thread("asks")
        state = thread.hydrate()
        assert [(each.payload, each.sender, each.wait_id) for each in state.signals] == [("yes", "ana", wait_id)]
        assert thread.save(state, ack=state.signals).version == 2  # it was given up: nobody has to wait


def test_wrong_keys_and_places(pair, tmp_path):
    """What is missing is named before anything is started, and a wrong key is one line."""
    where = f"file://{pair.bucket}"
    assert "--key-file" in run("approve", "t", "--archive", where).error
    assert "no such file" in run("approve", "t", "--archive", where, "--key-file", tmp_path / "none").error
    assert run("waiting", "--archive", where, "--key-file", tmp_path, "--target", "x:1").code == 2


def test_an_agent_is_started_again(stateward, client, agent):
    """The command runs for a thread with signals, which it finds and acknowledges; --once ends then."""
    ask(client, "idle")
    ask(client)
    client.thread("t").approve("fine")
    assert stateward("run", "--on-signal", agent, "--once").code == 0
    thread = client.thread("t")
    assert list(thread.hydrate().logs["done"]) == [["approve", "fine"]]
    assert thread.info().status == Status.RUNNING
    assert client.thread("idle").info().version == 1


def test_a_command_that_does_not_help_is_tried_again(stateward, client, agent, tmp_path):
    """It ends without an acknowledgement twice, with a longer pause the second time, and does it the third time."""
    log = tmp_path / "log"
    ask(client)
    client.thread("t").approve()
    command = f"echo $STATEWARD_THREAD >> {log}; test $(wc -l < {log}) -ge 3 || exit 7; exec {agent}"
    answer = stateward("run", "--on-signal", command, "--once", "--thread", "t", "--pause", "0.05")
    assert answer.code == 0
    assert log.read_text().split() == ["t", "t", "t"]
    said = answer.err.splitlines()
    assert [line.split("; ")[-1] for line in said] == ["starts again in 0.05 s", "starts again in 0.1 s"]
    assert "ended with 7" in said[0]


def test_a_flood_of_signals_starts_few_commands(daemon, stateward, client, agent, tmp_path):
    """No more than --at-most commands run at a time, and every thread has its turn."""
    log = tmp_path / "log"
    for name in ("a", "b", "c"):
        client.thread(name).append("l", 1)
        client.thread(name).signals.send("go")
    command = (
        f"mkdir {tmp_path}/alone || exit 9; sleep 0.05; echo $STATEWARD_THREAD >> {log}; rmdir {tmp_path}/alone; exit 1"
    )
    arguments = ["--target", daemon.target, "-n", client.namespace, "run", "--on-signal", command, "--at-most", "1"]
    with running(
        [*COMMAND, *arguments, "--pause", "0.01"], begin=Popen, env=environment(), stderr=subprocess.PIPE, text=True
    ) as process:
        eventually(lambda: log.exists() and set(log.read_text().split()) == {"a", "b", "c"})
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        assert "ended with 9" not in process.stderr.read()


def test_an_answer_sent_elsewhere_is_noticed(pair, namespace, agent):
    """A watcher on another machine looks at the waiting threads it knows, and starts the agent there."""
    with pair.first.client(namespace=namespace) as first, pair.second.client(namespace=namespace) as second:
        ask(first, durability="archived")
        with second.archive.list(index=True) as listing:
            list(listing)
        first.thread("t").approve("from afar", durability="archived")
        answer = run(
            "--target", pair.second.target, "-n", namespace, "run", "--on-signal", agent, "--once", "--poll", "0.2"
        )
        assert answer.code == 0, answer.err
        thread = second.thread("t")
        assert list(thread.hydrate().logs["done"]) == [["approve", "from afar"]]
        assert thread.info().owner_id == "second"


def test_the_end_is_passed_on(daemon, namespace, client, tmp_path):
    """SIGTERM reaches what the commands started, one command a thread, and the exit code is 0 when they have ended."""
    log = tmp_path / "log"
    command = (
        f"trap 'echo ended $STATEWARD_THREAD >> {log}; exit' TERM; echo began $STATEWARD_THREAD >> {log}; "
        "while :; do sleep 0.02; done"
    )
    arguments = ["--target", daemon.target, "-n", namespace, "run", "--on-signal", command, "--label", "team=travel"]
    for name in ("one", "two", "other"):
        client.thread(name).append("l", 1)
        if name != "other":
            client.thread(name).update_options(labels={"team": "travel"})
        client.thread(name).signals.send("go")
    with running([*COMMAND, *arguments], begin=Popen, env=environment(), stderr=subprocess.PIPE, text=True) as process:

        def lines() -> list[str]:
            return sorted(log.read_text().splitlines()) if log.exists() else []

        eventually(lambda: len(lines()) >= 2)
        client.thread("one").signals.send("more")  # while its command runs
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        assert "stateward:" not in process.stderr.read()  # nothing failed, was tried again, or had to be killed
    assert lines() == ["began one", "began two", "ended one", "ended two"]


def test_a_watch_shows_signals(stateward, client):
    """`stateward watch` tells who sent what."""
    ask(client)
    client.thread("t").approve("fine", sender="ana")
    assert "signal approve from ana" in stateward("watch", "t", "--from-start", "--until", "2").out
    last = stateward("watch", "t", "--from-start", "--until", "2", "--json").out.splitlines()[-1]
    assert json.loads(last)["signal"]["payload"] == "fine"
