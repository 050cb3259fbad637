"""The danger: an import that is killed, and then repeats steps, loses some, or writes over what is not its own."""

import json
import re
import signal
import subprocess
import time

import pytest
from tests.cli.conftest import COMMAND, environment, make_run, run
from tests.warmcommand import Popen

COUNT = 800


@pytest.fixture
def start(own_daemon, write):
    """Starts an import of one long run that is under way when this returns."""
    path = write("long.jsonl", make_run("r", COUNT))
    processes = []

    def start_import():
        command = [*COMMAND, "--target", own_daemon.target, "import", str(path)]
        process = Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
        processes.append(process)
        with own_daemon.client() as client:
            before = client.thread("long/r").hydrate(logs=()).version
            while client.thread("long/r").hydrate(logs=()).version < before + 20:
                assert process.poll() is None, process.stderr.read()
        return process, path

    yield start_import
    for process in processes:
        process.kill()
        process.communicate()


def check_whole(daemon, path):
    """Every version is the recorded prefix."""
    messages = json.loads(path.read_text())["messages"]
    with daemon.client() as client:
        thread = client.thread("long/r")
        versions = sorted(each.version for each in thread.checkpoints.list(page_size=1000))
        assert versions == list(range(1, COUNT + 1))
        for version in (*range(1, COUNT, 97), COUNT):
            assert list(thread.hydrate(version).logs["messages"]) == messages[:version]


@pytest.mark.slow
def test_killed_importer(own_daemon, start):
    """After SIGKILL of the importer the same command saves the missing steps, and only those."""
    process, path = start()
    process.kill()
    process.wait()
    with own_daemon.client() as client:
        reached = client.thread("long/r").info().version
    assert 20 <= reached < COUNT
    answer = run("--target", own_daemon.target, "import", path)
    assert answer.code == 0, answer.err
    told = re.search(r"(\d+) steps saved after the (\d+) that were already saved", answer.out)
    assert told, answer.out
    saved, before = map(int, told.groups())
    assert before >= reached, "the daemon may have committed one more save after the kill"
    assert saved + before == COUNT
    check_whole(own_daemon, path)


@pytest.mark.slow
def test_killed_daemon(own_daemon, start):
    """An importer whose daemon is killed and comes back goes on by itself."""
    process, path = start()
    own_daemon.kill()
    own_daemon.start()
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert f"{COUNT:,} steps saved" in out
    check_whole(own_daemon, path)


@pytest.mark.slow
@pytest.mark.parametrize(("sign", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted(start, sign, code):
    """Ctrl-C and SIGTERM end an import soon, without a stack trace."""
    process, _ = start()
    process.send_signal(sign)
    started = time.monotonic()
    _, err = process.communicate(timeout=30)
    assert process.returncode == code, err
    assert "Traceback" not in err
    assert time.monotonic() - started < 10


@pytest.mark.slow
def test_interrupted_while_the_daemon_is_away(own_daemon, start):
    """Ctrl-C works too while the importer waits for a daemon that does not come back."""
    process, _ = start()
    own_daemon.kill()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err.count("\n")) == (130, 1), err


def test_grown_run(stateward, client, write):
    """A run that was recorded further since is continued after what was imported."""
    write("runs.jsonl", make_run("r", 3))
    stateward("import", path := write("runs.jsonl", make_run("r", 3)))
    write("runs.jsonl", make_run("r", 5))
    assert "2 steps saved after the 3 that were already saved" in stateward("import", path).out
    assert list(client.thread("runs/r").hydrate().logs["messages"]) == make_run("r", 5)["messages"]


@pytest.mark.parametrize(
    ("there", "told"),
    [
        (make_run("r", 3, model="other"), "holds another run"),
        ({"run_id": "r", "messages": [1, 2, 3]}, "holds other messages"),
        ({"run_id": "r", "messages": [{"n": 1}, {"n": 1.0}]}, "holds other messages"),
        (make_run("r", 9), "has 9 versions, but the run has only 5 steps"),
    ],
)
def test_other_run_of_the_name(stateward, client, write, there, told):
    """A thread of the name that is not the beginning of the run is left alone; the other runs are imported."""
    stateward("import", write("runs.jsonl", there))
    digest = client.thread("runs/r").info().digest
    first = make_run("r", 5) if "n" not in str(there["messages"][0]) else {"run_id": "r", "messages": [{"n": 1.0}] * 5}
    answer = stateward("import", write("runs.jsonl", first, make_run("other", 2)))
    assert answer.code == 1
    assert told in answer.err
    assert "--thread-prefix" in answer.err
    assert client.thread("runs/r").info().digest == digest
    assert client.thread("runs/other").info().version == 2


def test_thread_of_an_agent(stateward, client, write):
    """A thread that no import made is never continued."""
    client.thread("runs/r").append("messages", *make_run("r", 1)["messages"])
    answer = stateward("import", write("runs.jsonl", make_run("r", 5)))
    assert answer.code == 1
    assert "was not made by an import" in answer.err
    assert client.thread("runs/r").info().version == 1


def test_no_resume(stateward, write):
    """With --no-resume a thread that exists is refused, and the message says what to do."""
    path = write("runs.jsonl", make_run("r", 2))
    assert stateward("import", path, "--no-resume").code == 0
    answer = stateward("import", path, "--no-resume")
    assert answer.code == 1
    assert "already exists; omit --no-resume" in answer.err
