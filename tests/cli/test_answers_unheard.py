"""The danger: an answer that is in the archive, or could be, and never reaches the agent."""

from __future__ import annotations

import shlex
import signal
import sys
import threading
from functools import partial

import pytest
from tests.cli.conftest import COMMAND, environment, run
from tests.daemon.process import archive_flags, eventually
from tests.warmcommand import Popen

from stateward.cli.commands import approve
from stateward.testing import run_daemon

# An agent that only does what it was told with an approval, and acknowledges just that.
AGENT = """
import os, sys
from stateward import Client
print("the agent runs", file=sys.stderr)
with Client(namespace=os.environ["STATEWARD_NAMESPACE"]) as client:
    thread = client.thread(os.environ["STATEWARD_THREAD"])
    state = thread.hydrate()
    approvals = [each for each in state.signals if each.name == "approve"]
    if approvals:
        state.logs["done"].extend(each.payload for each in approvals)
        thread.save(state, ack=approvals)
"""


@pytest.fixture
def watched(tmp_path):
    """Runs `stateward run` on a daemon with that agent; gives its stderr as far as it is written."""
    (tmp_path / "agent.py").write_text(AGENT)
    command = shlex.join([sys.executable, str(tmp_path / "agent.py")])
    log = tmp_path / "err"
    started = []

    def start(daemon, namespace, *options):
        arguments = ["--target", daemon.target, "-n", namespace, "run", "--on-signal", command, *options]
        with log.open("w") as err:
            started.append(Popen([*COMMAND, *arguments], env=environment(), stderr=err))
        return log.read_text

    yield start
    for process in started:
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def ask(client, name="t"):
    thread = client.thread(name)
    thread.ask(thread.hydrate(), "Book it?", durability="archived")
    return thread


@pytest.fixture
def there(pair, namespace, monkeypatch):
    """Options for the archive of the pair; the daemon of a command waits there for a second, not ten."""
    monkeypatch.setattr("stateward.testing.run_daemon", partial(run_daemon, archive_lease=1))
    return ["--archive", f"file://{pair.bucket}", "--key-file", pair.first.key_file, "--namespace", namespace]


def test_the_owner_is_dead(pair, namespace, there):
    """A question that a dead machine took along is waited for, and then gets its answer; who gave it is told why. What
    that machine worked on is left alone: nobody can know that it is dead."""
    with run_daemon(key_file=pair.first.key_file, **archive_flags(pair.bucket, "dead")) as dead:
        with dead.client(namespace=namespace) as client:
            client.thread("worked").append("l", 1, durability="archived")
            ask(client).archive.attach()
        dead.kill()
        answer = run("approve", "t", "--yes", *there)
        refused = run("signal", "worked", "cancel", *there)
    assert answer.code == 0, answer.err
    assert "owned by 'dead'" in answer.err
    assert "waiting" in answer.err
    assert refused.code == 1
    assert "attach --take-over" in refused.err
    with pair.second.client(namespace=namespace) as client:
        assert [each.name for each in client.thread("t").signals.list()] == ["approve"]


def test_the_owner_is_at_work(pair, namespace, there, monkeypatch):
    """What somebody goes on writing is left alone, and the refusal says where to send it, and what to do if that one
    is dead."""
    monkeypatch.setattr(approve, "FREE_MARGIN_S", 0.2)
    with pair.first.client(namespace=namespace) as client:
        thread, has_ended = client.thread("t"), threading.Event()
        thread.append("l", 1, durability="archived")

        def work():
            while not has_ended.wait(0.1):
                thread.append("l", 1)

        worker = threading.Thread(target=work)
        worker.start()
        try:
            refused = run("signal", "t", "cancel", *there)
        finally:
            has_ended.set()
            worker.join()
        assert refused.code == 1
        for said in ("'first'", "--target", "attach --take-over"):
            assert said in refused.err.splitlines()[-1]
        assert thread.signals.list() == []


@pytest.mark.parametrize(("command", "is_made"), [(["waiting"], False), (["approve", "t"], True)])
def test_no_archive_there(tmp_path, pair, command, is_made):
    """A wrong URL is refused as such by what only looks or answers, and nothing is made there."""
    place = tmp_path / "buckte"
    if is_made:
        place.mkdir()
    answer = run(*command, "--archive", place.as_uri(), "--key-file", pair.first.key_file)
    assert answer.code == 1
    assert f"there is no archive at {place.as_uri()}" in answer.error
    assert [each for each in tmp_path.rglob("*") if each != place] == []
    assert place.exists() == is_made


def test_a_machine_that_knows_nothing_of_the_thread(pair, namespace, watched):
    """It finds an answered thread in the archive, and starts the agent, without being told its name."""
    with pair.first.client(namespace=namespace) as first, pair.second.client(namespace=namespace) as second:
        ask(first)
        watched(pair.second, namespace, "--poll", "0.1")
        first.thread("t").approve("from afar", durability="archived")
        # Seen through the first one: a look through the second would make it known there.
        eventually(lambda: [each.thread.owner_id for each in first.archive.list()] == ["second"])
        eventually(lambda: list(second.thread("t").hydrate().logs["done"]) == ["from afar"])


def test_an_answer_during_the_pause(pair, namespace, watched):
    """A signal that the agent has not seen starts it at once, however long it is to pause for one it has seen."""
    with pair.first.client(namespace=namespace) as client:
        thread = ask(client)
        client.thread("t").signals.send("note")
        said = watched(pair.first, namespace, "--pause", "60")
        eventually(lambda: said().count("acknowledged nothing") == 1)
        client.thread("t").approve("fine")
        eventually(lambda: list(thread.hydrate().logs["done"]) == ["fine"])
        assert [each.name for each in thread.signals.list()] == ["note"]
        assert "again in 120 s" not in said()


def test_a_command_that_did_one_of_two_things(pair, namespace, watched):
    """That something was acknowledged is not denied because an older signal is left."""
    with pair.first.client(namespace=namespace) as client:
        thread = ask(client)
        client.thread("t").signals.send("note")
        client.thread("t").approve("fine")
        said = watched(pair.first, namespace, "--pause", "60")
        eventually(lambda: "again in" in said())
        # Told of the second one, which had the note only.
        assert said().splitlines()[:2] == ["the agent runs"] * 2
        assert said().count("acknowledged nothing") == 1
        assert list(thread.hydrate().logs["done"]) == ["fine"]
