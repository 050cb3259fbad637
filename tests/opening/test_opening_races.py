"""The danger: two daemons, none, or a lost line, where many processes open the same data at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.opening.conftest import daemon_of
from tests.processes import sees_hidden

import stateward
from stateward.opening.places import find_place

RACING = Path(__file__).with_name("racing.py")
PATIENCE_S = 250.0


def race(data: Path, processes: int, *, rounds: int = 1, idle_exit_s: float = 60, dies_s: float = 0) -> list[str]:
    """Runs processes that open the data. Returns the lines that were answered. Ends although the daemon lives on: it
    has not inherited the pipes that are read here."""
    command = [sys.executable, str(RACING), str(data), *map(str, (processes, rounds, idle_exit_s, dies_s))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def stored(data: Path) -> list[str]:
    with stateward.open(data_dir=data, connect_timeout=PATIENCE_S) as client:
        return list(client.thread("race").hydrate().logs["lines"])


def starts(data: Path) -> int:
    """How many daemons have been ready."""
    lines = find_place(data).log_file.read_text().splitlines()
    return sum(json.loads(line)["event"] == "ready" for line in lines if line.startswith("{"))


def leads_to(descriptor: Path) -> str:
    """What a descriptor is of; empty if it was closed meanwhile."""
    try:
        return str(descriptor.readlink())
    except FileNotFoundError:
        return ""


def test_ten_open_at_once_and_one_daemon_starts(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a cold machine, on a path too long for a socket: one daemon, and each line is there. The daemon has nothing
    of the program that started it: no secret, no descriptor, no directory, no session."""
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy")
    data = home / ("d" * 100) / ("e" * 100)
    answered = race(data, 10)
    assert len(set(answered)) == 10
    assert sorted(stored(data)) == sorted(answered)
    assert starts(data) == 1
    assert "in use by another" not in find_place(data).log_file.read_text()  # nobody else has even tried
    pid = daemon_of(data / "LOCK")
    if sys.platform != "linux" or not sees_hidden():
        return
    variables = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    names = {each.partition("=")[0] for each in variables if each}
    allowed = {"HOME", "PATH", "LANG", "TZ", "TMPDIR", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH"}
    allowed |= {"SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"}
    others = {name for name in names if not name.startswith(("XDG_", "STATEWARD_")) and "proxy" not in name.lower()}
    assert others <= allowed
    assert "HTTPS_PROXY" in names
    streams = [str(Path(f"/proc/{pid}/fd/{number}").readlink()) for number in range(3)]
    log = str(find_place(data).log_file)
    assert streams == ["/dev/null", log, log]
    pipes = [each for each in Path(f"/proc/{pid}/fd").iterdir() if "pipe:" in leads_to(each)]
    assert pipes == []
    assert str(Path(f"/proc/{pid}/cwd").readlink()) == "/"
    status = Path(f"/proc/{pid}/status").read_text()
    assert "Umask:\t0077" in status
    assert pid is not None
    assert os.getsid(pid) not in (os.getsid(0), pid)


def test_openers_that_die_leave_nothing_behind(home: Path) -> None:
    """Each of ten processes is killed at some moment, also the one that starts the daemon: what was answered is there,
    and the next one opens."""
    data = home / "data"
    answered = race(data, 10, dies_s=1.5)
    assert set(answered) <= set(stored(data))
    assert starts(data) == 1


def test_idle_exits_meet_no_opener(home: Path) -> None:
    """A daemon ends as soon as nobody uses it, while others open: no call fails, and no line is lost."""
    data = home / "data"
    answered = race(data, 2, rounds=3, idle_exit_s=0.02)
    assert len(answered) == 6
    assert sorted(stored(data)) == sorted(answered)


@pytest.mark.soak
def test_fifty_open_at_once_twenty_times(home: Path) -> None:
    """One daemon each time, also where each process dies at some moment."""
    for number in range(20):
        data = home / f"data-{number}"
        answered = race(data, 50, dies_s=0 if number % 2 else 3.0)
        assert number % 2 == 0 or len(answered) == 50
        assert set(answered) <= set(stored(data))
        assert starts(data) == 1


@pytest.mark.soak
def test_two_hundred_idle_exits_meet_no_opener(home: Path) -> None:
    """The daemon ends some two hundred times while processes open it: no call fails."""
    data = home / "data"
    answered: list[str] = []
    end = time.monotonic() + 3000
    data.mkdir()
    while (data / "data.mdb").exists() is False or (starts(data) < 200 and time.monotonic() < end):
        answered += race(data, 4, rounds=10, idle_exit_s=0.02)
    assert starts(data) >= 200
    assert sorted(stored(data)) == sorted(answered)
