"""The danger: a daemon that ends while somebody uses it, or that nobody uses and that stays for ever."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from tests.warm import COLD

from stateward._version import VERSION
from stateward.testing import Daemon, run_daemon
from stateward_sidecar.service.serving.shutdown import Idle
from stateward_sidecar.storage.files import UsersLock

PERIOD_S = 0.02


class Calls:
    """What the watcher asks of a server."""

    open_calls = 0
    begun_calls = 0


class Door:
    """What it asks of the users' lock."""

    def __init__(self, *answers: bool) -> None:
        self.answers = list(answers)
        self.told: list[str] = []
        self.on_closed = lambda: None

    def close_door(self) -> bool:
        answer = self.answers.pop(0) if self.answers else True
        self.told.append("closed" if answer else "kept open")
        if answer:
            self.on_closed()
        return answer

    def open_door(self) -> None:
        self.told.append("opened")


async def ends(calls: Calls, door: Door, dirty: list[int] | None = None, within_s: float = 20.0) -> bool:
    """Whether the daemon would end in time. `dirty`: how many threads wait for the archive at each look."""

    async def count_dirty() -> int:
        return dirty.pop(0) if dirty else 0

    idle = Idle(PERIOD_S, calls, door, count_dirty)
    try:
        async with asyncio.timeout(within_s):
            await idle.wait()
    except TimeoutError:
        return False
    return True


async def test_a_call_that_runs_keeps_it() -> None:
    """A watch that is open for longer than the period is use; the lock is not even tried."""
    calls, door = Calls(), Door()
    calls.open_calls = 1
    assert not await ends(calls, door, within_s=10 * PERIOD_S)
    assert door.told == []


async def test_what_waits_for_the_archive_keeps_it() -> None:
    """A daemon whose bucket is away does not leave with what only its disk has."""
    door, dirty = Door(), [3, 1]
    assert await ends(Calls(), door, dirty)
    assert dirty == []
    assert door.told == ["closed"]


async def test_a_client_that_lives_keeps_it() -> None:
    """It tries again, for as long as a client holds the lock."""
    door = Door(False, False)
    assert await ends(Calls(), door)
    assert door.told == ["kept open", "kept open", "closed"]


async def test_a_call_at_the_last_moment_keeps_it() -> None:
    """A client without the lock called while the lock was taken: it is given back, and the period begins again."""
    calls, door = Calls(), Door()

    def call() -> None:
        calls.begun_calls += len(door.told) < 2

    door.on_closed = call
    assert await ends(calls, door)
    assert door.told == ["closed", "opened", "closed"]


def test_the_daemon_tells_where_it_is_and_leaves_when_nobody_uses_it(short: Path) -> None:
    """`daemon.json` is there while the daemon is ready, for its user only. A client's lock keeps an idle daemon;
    without it the daemon removes file and socket and ends with 0."""
    data = short / "data"
    data.mkdir(mode=0o700)
    with (data / "users.lock").open("w") as user:
        fcntl.flock(user, fcntl.LOCK_SH)
        with run_daemon(data, idle_exit="50ms") as daemon:
            path = data / "daemon.json"
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            told = json.loads(path.read_text())
            found = data.stat()
            assert told.pop("start_time").startswith("20")
            assert told == {
                "pid": daemon.pid, "target": daemon.target, "version": VERSION, "idle_exit_s": 0.05,
                "archive": "", "directory": f"{found.st_dev}:{found.st_ino}",
            }  # fmt: skip
            process = daemon._process
            assert process is not None
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.5)
            user.close()
            assert process.wait(20) == 0
            assert not path.exists()
            assert not daemon.socket.exists()


def test_a_killed_daemon_leaves_its_file_and_a_stopped_one_does_not(short: Path) -> None:
    """After kill -9 the old file is there, and the next start replaces it."""
    data = short / "data"
    with run_daemon(data) as daemon:
        first = json.loads((data / "daemon.json").read_text())
        daemon.kill()
        assert json.loads((data / "daemon.json").read_text()) == first
        daemon.start()
        assert json.loads((data / "daemon.json").read_text())["pid"] == daemon.pid != first["pid"]
        assert daemon.stop() == 0
        assert not (data / "daemon.json").exists()


def test_a_lock_whose_file_was_replaced_is_none(tmp_path: Path) -> None:
    """Somebody removed `users.lock` while clients hold it: the daemon does not take the new file for the lock."""
    lock = UsersLock(tmp_path)
    assert lock.close_door()
    lock.open_door()
    opened = os.open

    def replaced(path: Path, flags: int, mode: int = 0o777) -> int:
        descriptor = opened(path, flags, mode)
        Path(path).unlink()
        os.close(opened(path, flags, mode))
        return descriptor

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", replaced)
        assert not lock.close_door()
    assert lock.close_door()


def begin(daemon: Daemon, *flags: str) -> tuple[str, int]:
    """Starts another daemon on the same data. Returns the line that it tells its starter, and its exit code."""
    reading, writing = os.pipe()
    command = [sys.executable, "-m", "stateward_sidecar", "--data-dir", str(daemon.data_dir), *flags]
    command += ["--key-file", str(daemon.key_file), "--ready-fd", str(writing)]
    process = subprocess.Popen(command, pass_fds=[writing], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        line = pipe.read()
    return line, process.wait(20)


def test_the_starter_is_told(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line for whoever waits: ready, or the exit code and why; 75 says that another daemon has the data."""
    monkeypatch.delenv(COLD, raising=False)
    with run_daemon(short / "data") as daemon:
        line, code = begin(daemon, "--listen", f"unix://{short}/other.sock")
        assert code == 75
        assert line.startswith("failed 75 the data directory ")
        assert str(daemon.pid) in line
        daemon.stop()
        line, code = begin(daemon, "--listen", f"unix://{short}/other.sock", "--idle-exit", "20ms", "--detach")
        assert (line, code) == (f"ready unix://{short}/other.sock\n", 0)  # and the code is that of the parent
        with (short / "data/LOCK").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # it has ended by itself


ROTATES = """
import sys
from pathlib import Path
from stateward_sidecar import telemetry
telemetry.LOG_BYTES_MAX = 4000
telemetry.configure_logging("info", "auto", Path(sys.argv[1]))
for number in range(100):
    telemetry.log.info("a line", number=number)
    print("printed", number, flush=True)
"""


def test_a_log_file_and_its_predecessor_have_a_limit(tmp_path: Path) -> None:
    """Lines of the log, and what is printed, go to the file; an older half goes to one predecessor, and no more is
    kept."""
    path = tmp_path / "daemon.log"
    done = subprocess.run([sys.executable, "-c", ROTATES, str(path)], capture_output=True, check=True, text=True)
    assert (done.stdout, done.stderr) == ("", "")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["daemon.log", "daemon.log.1"]
    assert all(each.stat().st_size < 5000 for each in tmp_path.iterdir())
    assert '"number": 99' in path.read_text()
    assert "printed 99" in path.read_text()
