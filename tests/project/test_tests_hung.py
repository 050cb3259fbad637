"""The danger: a test that hangs the whole run, or leaves a process behind that disturbs the next one."""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.processes import marked

LEAVES = """
import subprocess, sys
def test_leaves_a_process():
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
"""
HANGS = """
import ctypes
def test_hangs():
    while True:
        ctypes.CDLL(None).sleep(60)
"""
INTERRUPTED = """
import signal, subprocess, sys
def test_a_child_hears_ctrl_c():
    child = subprocess.Popen([sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"], stdout=-1)
    child.stdout.readline()
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=20)
    assert child.returncode == -signal.SIGINT
"""


@pytest.fixture
def run_tests(repository: Path, tmp_path: Path):
    """Runs a file of tests with this project's conftest and settings."""

    def run(source: str, *options: str, before: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
        (tmp_path / "test_bad.py").write_text(source)
        command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", "-p", "no:xdist"]
        command += ["-c", str(repository / "pyproject.toml"), str(tmp_path), *options]
        command = [*before, *command]
        return subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=60, check=False)

    return run


def test_a_process_that_is_left_behind_fails_the_run(run_tests) -> None:
    """It is killed, and its command is named."""
    done = run_tests(LEAVES)
    assert done.returncode == 1
    assert "left processes behind" in done.stdout
    assert not [line for line in marked(os.environ["TESTS_OF_STATEWARD"]).values() if "time.sleep(60)" in line]


def test_a_test_that_hangs_outside_of_python_ends(run_tests) -> None:
    """Signals do not interrupt it; the watchdog ends its process and says where it was."""
    begun = time.monotonic()
    done = run_tests(HANGS, "-o", "faulthandler_timeout=1", "--timeout", "0")
    assert done.returncode == 1
    assert "test_hangs" in done.stderr
    assert time.monotonic() - begun < 30


def test_background_jobs_can_run_the_tests(run_tests) -> None:
    """A shell starts those with SIGINT ignored, and children inherit it; the tests set it right."""
    done = run_tests(INTERRUPTED, before=["sh", "-c", 'trap "" INT; exec "$@"', "sh"])
    assert done.returncode == 0, done.stdout
