"""The danger: a command that calls a wrong client right, leaves it running, or does not say what was wrong."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from tests import warmcommand

from stateward.conformance.scenarios import names

CLIENT = [sys.executable, "-m", "tests.conformance.with_client"]


def run(repository: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "stateward.cli", "conformance", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(repository)}
    return warmcommand.run(
        command, nested=True, cwd=repository, env=environment, capture_output=True, text=True, timeout=60
    )


def test_a_right_client_passes(repository: Path) -> None:
    """The command starts the client for each chosen scenario, and exits with 0."""
    done = run(repository, "-s", "advance/conflict*", "--", *CLIENT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^advance/conflict +passed$", done.stdout, re.MULTILINE)
    assert "2 scenarios: 2 passed" in done.stdout


def test_several_scenarios_in_one_process(repository: Path) -> None:
    """With --together the client is started once, with all names. One passes although another's connection was cut."""
    chosen = [name for name in names() if fnmatchcase(name, "advance/c*") or name.startswith("record/")]
    patterns = [word for name in chosen for word in ("-s", name)]
    done = run(repository, "--together", "--json", *patterns, "--", *CLIENT)
    found = json.loads(done.stdout)
    assert (done.returncode, found["passed"], found["failed"]) == (0, len(chosen), 0), found
    assert len(chosen) > 5


@pytest.mark.parametrize(
    ("program", "told"),
    [
        (
            "import sys; print('no idea'); sys.exit(3)",
            r"failed +.*exit code 3; expected next: Hydrate.*\n(.*\n)+no idea",
        ),
        ("pass", r"failed +.*exit code 0; expected next: Hydrate \(call 1 of 4\)"),
        ("import time; time.sleep(60)", r"failed +the client did not end in time; expected next: Hydrate"),
        ("import sys; sys.exit(77)", r"left out\n(.*\n)*1 scenario: 0 passed, 1 left out"),
    ],
)
def test_a_client_that_does_something_else(repository: Path, program: str, told: str) -> None:
    """The table says what came of a client that fails, does nothing, hangs, or lacks the procedure."""
    patience = "1" if "sleep" in program else "60"
    done = run(repository, "-s", "advance/conflict", "--timeout", patience, "--", sys.executable, "-c", program)
    assert re.search(told, done.stdout), done.stdout
    assert done.returncode == (0 if "77" in program else 1)


def test_a_client_that_fails_after_its_last_call(repository: Path) -> None:
    """A client that made every call and then exits with an error has not passed."""
    program = "import sys; from tests.conformance import with_client as c; c.run(None, sys.argv[-1]); sys.exit(5)"
    done = run(repository, "-s", "advance/new-thread", "--", sys.executable, "-c", program)
    assert re.search(r"failed +the client ended with exit code 5$", done.stdout, re.MULTILINE), done.stdout


def test_without_a_command_it_waits_for_clients(repository: Path, tmp_path: Path) -> None:
    """The scripted daemon names its address, and ends when the scenario is over."""
    socket = tmp_path / "s.sock"
    command = [sys.executable, "-m", "stateward.cli", "conformance", "-s", "count/*", "--listen", f"unix://{socket}"]
    waiting = warmcommand.Popen(command, cwd=repository, stdout=subprocess.PIPE, text=True)
    assert waiting.stdout is not None
    try:
        assert waiting.stdout.readline() == f"listening at unix://{socket}\n"
        environment = {**os.environ, "STATEWARD_TARGET": f"unix://{socket}"}
        warmcommand.run([*CLIENT, "count/large-sum"], cwd=repository, env=environment, check=True)
        assert "1 scenario: 1 passed" in waiting.communicate(timeout=10)[0]
        assert waiting.returncode == 0
    finally:
        waiting.kill()
        waiting.wait()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["-s", "advance/nothing"], "there is no scenario 'advance/nothing'"),
        (["--", "./no-such-client"], "./no-such-client: there is no such program"),
        (["--listen", "nowhere:70000", "--", "true"], "--listen nowhere:70000"),
    ],
)
def test_wrong_use(repository: Path, arguments: list[str], told: str) -> None:
    """A mistake on the command line is one line on stderr."""
    done = run(repository, *arguments)
    assert done.returncode == 1
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_lists_and_shows(repository: Path) -> None:
    """--list names every scenario, and --show prints its golden file."""
    listed = run(repository, "--list").stdout
    assert set(names()) <= set(listed.split())
    assert run(repository, "--show", "advance/busy").stdout.startswith('proves: "')


def test_children_of_a_client_end_with_it(repository: Path, tmp_path: Path) -> None:
    """A client that hangs is killed with the processes that it started."""
    note = tmp_path / "pid"
    script = f"sleep 60 & echo $! > {note}; wait"
    run(repository, "-s", "advance/conflict", "--timeout", "4", "--", "sh", "-c", script)
    pid = int(note.read_text())
    for _ in range(300):
        if not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().split()[2]:
            return
        time.sleep(0.1)
    raise AssertionError("the child lives on")
