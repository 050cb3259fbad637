"""The danger: a demo that leaves processes behind, or that claims what it did not check."""

import os
import signal
import subprocess
import sys
import time

import pytest
from tests.cli.conftest import COMMAND, environment, run_process

from stateward.cli.survey import add_to_findings, add_to_totals, make_plan, no_findings, no_totals, survey_file
from stateward.testing import missing_daemon, run_daemon

pytestmark = pytest.mark.skipif(bool(missing_daemon()), reason=missing_daemon() or "there is a daemon")

STEPS = 24


@pytest.mark.slow
def test_demo_holds_what_it_claims(tmp_path):
    """The demo passes its own checks, ends with its table, and the kept data are what it says."""
    keep = tmp_path / "kept"
    answer = run_process("demo", "--steps", str(STEPS), "--keep", keep, TMPDIR=str(tmp_path))
    assert (answer.code, answer.err) == (0, ""), answer.out
    assert "FAILED" not in answer.out
    assert answer.out.count("SIGKILL") == 2
    for row in ("steps", "sent by the agent", "on disk, data file", "save", "hydrate"):
        assert any(line.startswith(row) for line in answer.out.splitlines()), row
    assert "\x1b" not in answer.out
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    with run_daemon(keep / "data") as daemon, daemon.client() as client:
        assert client.thread("survey").get().version == STEPS + 1
        assert client.thread("survey-fork").get().version == 2
    again = run_process("demo", "--keep", keep)
    assert again.code == 1
    assert "not empty" in again.error


@pytest.mark.slow
def test_demo_can_fail():
    """A check that does not hold is named, and makes the exit code 1."""
    script = (
        "import sys, stateward.cli.review as review\n"
        "review.survey_all = lambda plan: ({}, {})\n"
        f"sys.argv = ['stateward', 'demo', '--steps', '{STEPS}']\n"
        "from stateward.cli import main\n"
        "main()\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment(), check=False, timeout=60
    )
    assert answer.returncode == 1
    assert "1 checks of the demo failed: the final facts equal" in answer.stderr


@pytest.mark.slow
@pytest.mark.parametrize("delay_s", [0, 0.2, 1])
@pytest.mark.parametrize(("sign", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_demo_leaves_nothing(tmp_path, sign, code, delay_s):
    """A demo that is interrupted takes its daemon, its agent and its directory with it."""
    process = subprocess.Popen(
        [*COMMAND, "demo"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(TMPDIR=str(tmp_path)),
        start_new_session=True,  # the daemon shares its group, by which it is found
    )
    assert any("ready" in line for line in process.stdout)
    time.sleep(delay_s)  # the agent is about to start, starts, or works
    if sign == signal.SIGINT:  # a terminal sends Ctrl-C to the whole group
        os.killpg(process.pid, sign)
    else:
        process.send_signal(sign)
    _, err = process.communicate(timeout=15)  # ends when nobody can write to it any more, the agent included
    assert (process.returncode, "Traceback" in err) == (code, False), err
    assert list(tmp_path.iterdir()) == []
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            break
    else:
        pytest.fail("a process of the demo is still there")


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
