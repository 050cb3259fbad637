"""The danger: a watch that misses what happens, or never ends."""

import json
import subprocess
import threading
import time

import pytest
from tests.cli.conftest import COMMAND, environment
from tests.warmcommand import Popen


def test_from_the_start(stateward, client):
    """A thread's events come in order, each kind in words and as JSON, and a cursor goes on after its event."""
    thread = client.thread("t")
    thread.append("l", 1, step=7)
    thread.append("l", 2, status="failed", status_detail="why")
    thread.tags.set("good", 1)
    thread.tags.delete("good")
    thread.update_options(agent="x")
    out = stateward("watch", "t", "--from-start", "--until", "5").out.splitlines()
    for line, told in zip(
        out,
        ["version 1  step 7  running", "version 2  failed (why)", "tag good is version 1", "tag good was", "settings"],
        strict=True,
    ):
        assert told in line
    answer = stateward("watch", "t", "--from-start", "--until", "2", "--json")
    events = [json.loads(line) for line in answer.out.splitlines()]
    assert [each["checkpoint"]["version"] for each in events] == [1, 2]
    after = stateward("watch", "t", "--after-cursor", events[0]["cursor"], "--until", "1", "--json").json
    assert after == events[1]


def test_it_ends_in_time(stateward, client):
    """--for ends a watch; with --until too few events are an error that says so."""
    client.thread("t").append("l", 1)
    started = time.monotonic()
    assert stateward("watch", "--for", "0.2").code == 0
    answer = stateward("watch", "t", "--from-start", "--until", "9", "--for", "0.2")
    assert answer.code == 1
    assert answer.error == "only 1 of 9 events came; after 0.2 s"
    assert time.monotonic() - started < 10


def test_a_deleted_thread_ends_it(stateward, daemon, client):
    """The watch of a thread ends with its deletion, which is an error only where more was asked for."""
    client.thread("t").append("l", 1)
    for arguments, code in ((["watch", "t"], 0), (["watch", "t", "--until", "2"], 1)):
        client.thread("t").update(lambda state: None)
        deleter = threading.Thread(target=delete_when_watched, args=(client, "t"))
        deleter.start()
        answer = stateward(*arguments)
        deleter.join()
        assert answer.code == code
        assert answer.out.endswith("thread was deleted (request)\n")


def delete_when_watched(client, name):
    deadline = time.monotonic() + 20
    while client.stats().watches < 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    client.thread(name).delete()


@pytest.mark.slow
def test_restart_of_the_daemon(own_daemon):
    """A watch goes on after the daemon was killed and came back, without gap or duplicate."""
    with own_daemon.client() as client:
        client.thread("t").append("l", 0)
        process = Popen(
            [*COMMAND, "--target", own_daemon.target, "watch", "t", "--from-start", "--until", "6", "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        try:
            first = process.stdout.readline()
            client.thread("t").append("l", 1)
            own_daemon.kill()
            own_daemon.start()
            for number in range(2, 6):
                client.thread("t").append("l", number)
            out, err = process.communicate(timeout=30)
        finally:
            process.kill()
            process.communicate()
    assert (process.returncode, err) == (0, "")
    assert [json.loads(line)["checkpoint"]["version"] for line in [first, *out.splitlines()]] == [1, 2, 3, 4, 5, 6]
