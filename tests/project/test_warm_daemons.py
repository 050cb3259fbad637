"""The danger: daemons and commands of tests are others than those of users, because they begin as forks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests import warm

from stateward.testing import Daemon, run_daemon
from stateward_sidecar.store.store import BACKGROUND_WORKERS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="daemons begin warm on Linux only")


def facts(daemon: Daemon) -> dict[str, Any]:
    """What a process has inherited, or has by itself, as the system tells it."""
    process = Path(f"/proc/{daemon.pid}")
    status = dict(line.split(":\t", 1) for line in (process / "status").read_text().splitlines())
    mark = daemon.socket.parent.name
    opened = sorted(str(each.readlink()).partition("[")[0] for each in (process / "fd").iterdir() if each.is_symlink())
    return {
        **{name: status[name] for name in ("SigBlk", "SigIgn", "SigCgt", "Umask", "Groups", "NSsid", "NSpgid")},
        "threads": len(list((process / "task").iterdir())),
        "opened": [each.replace(mark, "") for each in opened],
        "directory": (process / "cwd").readlink().name == mark,
        "limits": (process / "limits").read_text(),
    }


def test_a_warm_daemon_is_as_a_cold_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signals, limits, descriptors, directory and threads are those of a daemon of a command; so are exit codes."""
    with run_daemon() as begun:
        assert isinstance(begun._process, warm.Warm)
        monkeypatch.setenv(warm.COLD, "1")
        with run_daemon() as started:
            assert isinstance(started._process, subprocess.Popen)
            ours, theirs = facts(begun), facts(started)
            # Workers start when there is something to do, which a sweep may have had in one of the two.
            assert abs(ours.pop("threads") - theirs.pop("threads")) <= BACKGROUND_WORKERS
            assert ours == theirs
        assert begun.stop() == 0


def test_the_environment_is_that_of_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that is set between two starts holds for the second one, and a wrong one is told on stderr."""
    with run_daemon() as daemon:
        daemon.stop()
        monkeypatch.setenv("STATEWARD_DEFAULT_DURABILITY", "nonsense")
        with pytest.raises(RuntimeError, match="nonsense"):
            daemon.start()
        monkeypatch.delenv("STATEWARD_DEFAULT_DURABILITY")
        daemon.start()


def test_what_is_read_early_has_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon whose Python is told something else waits nowhere with what others are told."""
    with run_daemon() as daemon, monkeypatch.context() as patch:
        known = dict(warm._waiting)
        patch.setenv("PYTHONHASHSEED", "7")
        daemon.stop()
        daemon.start()
        assert set(known) < set(warm._waiting)
    (added,) = set(warm._waiting) - set(known)
    control, process = warm._waiting.pop(added)
    control.close()
    assert process.wait(10) == 0


def test_a_killed_daemon_is_told_as_killed() -> None:
    """The exit code tells the signal, and the process is gone when it is told."""
    with run_daemon() as daemon:
        process = daemon._process
        assert isinstance(process, warm.Warm)
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait(10) == -signal.SIGKILL
        with pytest.raises(ProcessLookupError):
            os.kill(process.pid, 0)


SCRIPT = """
import gc, json, os, signal, sys, threading, stateward
space = sorted(set(globals()) & {"main", "popen", "run", "os", "__name__", "__file__", "Warm"})
handled = {name: str(signal.getsignal(getattr(signal, name))) for name in ("SIGINT", "SIGTERM", "SIGCHLD", "SIGPIPE")}
print(json.dumps([
    __name__, space, sys.argv, sys.path, os.getcwd(), dict(os.environ), handled, gc.isenabled(),
    signal.set_wakeup_fd(-1), sorted(os.listdir("/proc/self/fd"))[:3], len(os.listdir("/proc/self/fd")),
    threading.active_count(), sys.stdout.isatty(), sys.flags.dev_mode,
    sys.stdout.encoding,
]))
print("told", file=sys.stderr)
sys.exit(7)
"""


def test_a_warm_script_is_as_a_cold_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It has the names, arguments, paths, variables, signals and descriptors of a process of its own."""
    ended = []
    for cold in ("", "1"):
        monkeypatch.setenv(warm.COLD, cold)
        environment = {**os.environ, "SAID": "to both", warm.COLD: "x"}
        ended.append(warm.run([sys.executable, "-c", SCRIPT, "a", "b c"], env=environment, cwd=tmp_path))
    assert vars(ended[0]) == vars(ended[1])
    assert (ended[0].returncode, ended[0].stderr) == (7, "told\n")


def test_a_warm_command_is_as_a_cold_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """It writes what it writes otherwise, and ends with the same code."""
    ended = []
    for cold in ("", "1"):
        monkeypatch.setenv(warm.COLD, cold)
        for arguments in (("--help",), ("threads", "--nonsense")):
            done = warm.run([sys.executable, "-m", "stateward.cli", *arguments])
            ended.append((done.returncode, done.stdout, done.stderr))
    assert ended[:2] == ended[2:]
    assert [code for code, _, _ in ended] == [0, 2, 0, 2]
