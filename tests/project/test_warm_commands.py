"""The danger: commands of tests are other commands than those of users, because they begin as forks."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests import warm, warmcommand

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="commands begin warm on Linux only")

# What a process has inherited, or has by itself.
FACTS = """
import gc, json, os, signal, sys
status = dict(line.rstrip("\\n").split(":\\t", 1) for line in open("/proc/self/status"))
streams = [sys.stdin, sys.stdout, sys.stderr]
facts = {name: status[name] for name in ("SigBlk", "SigIgn", "Umask", "Groups", "Threads")} | {
    "handlers": [str(signal.getsignal(each)) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)],
    "opened": sorted(each for each in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{each}")),
    "limits": open("/proc/self/limits").read(), "directory": os.getcwd(), "environment": dict(os.environ),
    "leads": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()], "collects": gc.isenabled(),
    "streams": [[each.isatty(), each.encoding, each.errors, each.line_buffering] for each in streams],
    "arguments": sys.argv, "path": sys.path, "flags": str(sys.flags), "name": __name__,
    "names": sorted(name for name in globals() if not name.startswith("__")),
}
facts["environment"].pop("GRPC_ENABLE_FORK_SUPPORT", None)  # the client sets it
print(json.dumps(facts))
"""


@pytest.fixture(params=["-c", "script", "-m"])
def command(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    """The same program, started in each way that begins warm."""
    (tmp_path / "facts.py").write_text(FACTS)
    how = {"-c": ["-c", FACTS], "script": [str(tmp_path / "facts.py")], "-m": ["facts"]}[request.param]
    return [sys.executable, *(["-m"] if request.param == "-m" else []), *how, "one", "two words"]


@pytest.mark.parametrize("leads", [False, True])
def test_a_warm_command_is_as_a_cold_one(command: list[str], leads: bool, tmp_path: Path) -> None:
    """Signals, limits, streams, directory, path, arguments and threads are those of an interpreter of its own."""
    options = {
        "cwd": tmp_path, "env": {**os.environ, "OWN": "\udcff"}, "start_new_session": leads, "text": True,
        "stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE,
    }  # fmt: skip
    said = []
    for kind in (warmcommand.Popen, subprocess.Popen):
        with kind(command, **options) as process:
            out, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (0, "")
        assert (getattr(process, "_end", None) is not None) == (kind is warmcommand.Popen)
        said.append(json.loads(out))
    assert said[0] == said[1]


def test_a_terminal_is_one(tmp_path: Path) -> None:
    """The streams of a command on a terminal are opened as for a terminal."""
    terminal, inside = pty.openpty()
    try:
        code = "import sys; sys.exit(all(each.isatty() for each in (sys.stdin, sys.stdout, sys.stderr)) + 40)"
        options = dict.fromkeys(("stdin", "stdout", "stderr"), inside)
        with warmcommand.Popen([sys.executable, "-c", code], **options) as process:
            assert process.wait(60) == 41
    finally:
        os.close(terminal)
        os.close(inside)


def test_ends_are_told() -> None:
    """Exit codes, signals and errors are those of the process, and it is gone when it is told."""
    for code, told in (("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", -9), ("1 / 0", 1)):
        with warmcommand.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True) as process:
            _, err = process.communicate(timeout=60)
        assert process.returncode == told
        assert ("ZeroDivisionError" in err) == (told == 1)
        with pytest.raises(ProcessLookupError):
            os.kill(process.pid, 0)
    with warmcommand.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == -signal.SIGTERM


ENDS = """
import atexit, sys, threading
atexit.register(print, "last")
threading.Thread(target=lambda: (threading.main_thread().join(), print("thread"))).start()
print("first")
sys.exit({code})
"""


@pytest.mark.parametrize("code", ["5", "-1", "'said'", "True", ""])
def test_all_is_done_at_the_end(code: str) -> None:
    """Threads and functions that wait for the end have their turn, and what was printed is written."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    ends = []
    for kind in (warmcommand.Popen, subprocess.Popen):
        with kind([sys.executable, "-c", ENDS.format(code=code)], **options) as process:
            ends.append((*process.communicate(timeout=60), process.returncode))
    assert ends[0] == ends[1]
    assert ends[0][0] == "first\nthread\nlast\n"


def test_a_full_disk_is_told_at_the_end() -> None:
    """What could not be written at the end makes the exit code that it makes without a fork."""
    ends = []
    for kind in (warmcommand.Popen, subprocess.Popen):
        with Path("/dev/full").open("wb") as full:
            options = {"stdout": full, "stderr": subprocess.PIPE, "text": True}
            with kind([sys.executable, "-c", "print('much')"], **options) as process:
                ends.append((process.communicate(timeout=60)[1].splitlines()[-1:], process.wait()))
    assert ends[0] == ends[1]


NESTS = """
import os, subprocess, sys
code = "import os, time; print(os.getpgid(0), flush=True); time.sleep(float(os.environ['LASTS']))"
with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
    print(os.getpgid(0) == int(process.stdout.readline()), hasattr(process, "_end"), flush=True)
    process.wait()
"""


@pytest.mark.parametrize("lasts_s", [0, 60])
def test_a_nested_command_starts_warm_ones_in_its_group(lasts_s: int) -> None:
    """What it starts is in its group, so nothing of it is overlooked; with its group all of it is gone."""
    options = {"env": {**os.environ, "LASTS": str(lasts_s)}, "start_new_session": True, "stdout": subprocess.PIPE}
    with warmcommand.Popen([sys.executable, "-c", NESTS], nested=True, text=True, **options) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "True True\n"
        if lasts_s:
            os.killpg(process.pid, signal.SIGKILL)
        assert process.wait(60) == (-signal.SIGKILL if lasts_s else 0)
    deadline = time.monotonic() + warm.ANSWER_S
    while time.monotonic() < deadline:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.02)
    pytest.fail("a process of the group is still there")


def test_what_is_told_to_start_cold_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Options of Python, other programs and descriptors that are handed on make a process of its own."""
    cold: list[tuple[list[str], dict[str, object]]] = [
        ([sys.executable, "-W", "error", "-c", "pass"], {}),
        (["true"], {}),
        ([sys.executable, "-c", "pass"], {"pass_fds": [2]}),
    ]
    for command, options in cold:
        with warmcommand.Popen(command, **options) as process:
            assert process._end is None
            assert process.wait(60) == 0
    monkeypatch.setenv(warm.COLD, "1")
    with warmcommand.Popen([sys.executable, "-c", "pass"]) as process:
        assert process._end is None
