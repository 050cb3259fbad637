"""The danger: daemons of tests are other daemons than those of users, because they begin as forks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests import warm

from stateward.testing import Daemon, run_daemon

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="daemons begin warm on Linux only")


def facts(daemon: Daemon) -> dict[str, object]:
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
            assert facts(begun) == facts(started)
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
