"""The danger: a demo that leaves processes behind, or that claims what it did not check."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests import warmcommand
from tests.cli.conftest import COMMAND, environment, run_process
from tests.warmcommand import Popen

from stateward.cli.demo.survey import add_to_findings, add_to_totals, make_plan, no_findings, no_totals, survey_file
from stateward.testing import missing_daemon, run_daemon

pytestmark = pytest.mark.skipif(bool(missing_daemon()), reason=missing_daemon() or "there is a daemon")

STEPS = 24
END_TIMEOUT_S = 120
# The demo, which gets a signal from itself when it comes back from a function for the nth time, and the next signals at
# the next times. A 0 at the end swallows what the last of them raises.
INTERRUPTED = f"""
import importlib, os, sys
place, turn, *numbers = sys.argv[1:]
module, *path, name = place.split(".")
owner = importlib.import_module(module)
for each in path:
    owner = getattr(owner, each)
real, turns = getattr(owner, name), 0
numbers = list(map(int, numbers))

def interrupted(*arguments, **options):
    global turns
    result = real(*arguments, **options)
    turns += 1
    if turns >= int(turn) and numbers and numbers[0]:
        try:
            os.kill(os.getpid(), numbers.pop(0))
        except BaseException:
            if numbers != [0]:
                raise
    return result

setattr(owner, name, interrupted)
sys.argv = ["stateward", "demo", "--steps", "{STEPS}"]
from stateward.cli import main
main()
"""


def start(command: list[str], tmp_path: Path) -> subprocess.Popen[str]:
    return Popen(
        command,
        nested=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(TMPDIR=str(tmp_path)),
        start_new_session=True,  # the daemon shares its group, by which it is found
    )


def ends_with_nothing_left(process: subprocess.Popen[str], tmp_path: Path, code: int) -> None:
    try:
        _, err = process.communicate(timeout=END_TIMEOUT_S)  # until nobody can write to it any more, nor the agent
    finally:
        if process.poll() is None:  # a demo that goes on would disturb the tests after this one
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert (process.returncode, "Traceback" in err) == (code, False), err
    assert list(tmp_path.iterdir()) == []
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.01)
    pytest.fail("a process of the demo is still there")


@pytest.mark.slow
def test_demo_holds_what_it_claims(tmp_path):
    """The demo passes its own checks, ends with its table, and the kept data are what it says."""
    keep = tmp_path / "kept"
    answer = run_process("demo", "--steps", str(STEPS), "--keep", keep, TMPDIR=str(tmp_path))
    assert (answer.code, answer.err) == (0, ""), answer.out
    assert "FAILED" not in answer.out
    assert answer.out.count("SIGKILL") == 1
    for row in (
        "steps",
        "sent by the agent",
        "on disk, data file",
        "save on this disk",
        "save in the bucket",
        "hydrate",
    ):
        assert any(line.startswith(row) for line in answer.out.splitlines()), row
    assert "\x1b" not in answer.out
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert "is kept in a separate thread, survey@" in answer.out or "knows already that it was replaced" in answer.out
    with run_daemon(keep / "data", archive=(keep / "bucket").as_uri()) as daemon, daemon.client() as client:
        assert client.thread("survey").info().version == STEPS + 1
        assert client.thread("survey-fork").info().version == 2
    again = run_process("demo", "--keep", keep)
    assert again.code == 1
    assert "not empty" in again.error


@pytest.mark.slow
def test_demo_can_fail():
    """A check that does not hold is named, and makes the exit code 1."""
    script = (
        "import sys, stateward.cli.demo.review as review\n"
        "review.survey_all = lambda plan: ({}, {})\n"
        f"sys.argv = ['stateward', 'demo', '--steps', '{STEPS}']\n"
        "from stateward.cli import main\n"
        "main()\n"
    )
    answer = warmcommand.run(
        [sys.executable, "-c", script], nested=True, capture_output=True, text=True, env=environment(), timeout=60
    )
    assert answer.returncode == 1
    assert "1 checks of the demo failed: the final facts equal" in answer.stderr


@pytest.mark.slow
@pytest.mark.parametrize("delay_s", [0, 0.2, 1])
@pytest.mark.parametrize(("sign", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_demo_leaves_nothing(tmp_path, sign, code, delay_s):
    """A demo that is interrupted takes its daemon, its agent and its directory with it."""
    process = start([*COMMAND, "demo"], tmp_path)
    assert any("ready" in line for line in process.stdout)
    time.sleep(delay_s)  # the agent is about to start, starts, or works
    if sign == signal.SIGINT:  # a terminal sends Ctrl-C to the whole group
        os.killpg(process.pid, sign)
    else:
        process.send_signal(sign)
    ends_with_nothing_left(process, tmp_path, code)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "turn", "signs"),
    [
        ("tempfile.mkdtemp", 1, "SIGTERM"),  # there is a directory, and nobody knows of it yet
        ("subprocess.Popen.__init__", 1, "SIGTERM"),  # the same with the daemon
        ("subprocess.Popen.__init__", 2, "SIGINT"),  # and with the agent
        ("threading.Timer.start", 1, "SIGTERM"),  # a thread that the interpreter's end would wait for
        ("subprocess.Popen.send_signal", 1, "SIGTERM"),  # one of the two that are to be killed is
        ("subprocess.Popen.kill", 1, "SIGINT SIGINT SIGTERM"),  # several: the others come while it cleans up
        ("shutil.rmtree", 1, "SIGTERM"),  # the demo has come to its end
    ],
)
def test_interrupted_demo_leaves_nothing_at_the_worst_moment(tmp_path, place, turn, signs):
    """A signal right after a process, a thread or a directory was made or ended is heard, and nothing is left."""
    first, *_ = numbers = [getattr(signal, name) for name in signs.split()]
    process = start(
        [sys.executable, "-c", INTERRUPTED, place, str(turn), *(str(int(each)) for each in numbers)], tmp_path
    )
    ends_with_nothing_left(process, tmp_path, 130 if first == signal.SIGINT else 143)


@pytest.mark.slow
def test_swallowed_signal_is_heard_later(tmp_path):
    """A signal whose exception Python drops, as in a destructor, ends the demo all the same."""
    process = start([sys.executable, "-c", INTERRUPTED, "json.loads", "3", str(int(signal.SIGTERM)), "0"], tmp_path)
    ends_with_nothing_left(process, tmp_path, 143)


def test_survey_adds_up():
    """The totals are the sums over the files, and the longest function is found."""
    names = make_plan()[:5]
    facts = [survey_file(name) for name in names]
    totals, findings = no_totals(), no_findings()
    for each in facts:
        totals, findings = add_to_totals(totals, each), add_to_findings(findings, each)
    assert totals["files"] == len(names)
    assert totals["lines"] == sum(each["lines"] for each in facts)
    longest = max(each["longest_function"]["lines"] for each in facts if "longest_function" in each)
    assert findings["longest_functions"][0]["lines"] == longest
