"""The danger: another program of the same user reads keys in the daemon's memory, or a crash writes them to a disk."""

from __future__ import annotations

import json
import logging
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.opening.conftest import daemon_of, end

from stateward import Client
from stateward_sidecar import telemetry
from stateward_sidecar.app import warnings_of
from stateward_sidecar.settings import load_settings

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or (os.geteuid() == 0 and shutil.which("setpriv") is None),
    reason="needs Linux, and as root setpriv",
)
# A program of the same user, which root's powers do not help.
SAME_USER = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
READ = "import sys\nwith open(sys.argv[1], 'rb') as file:\n  file.read(64)"
SECRETS = ("environ", "maps", "auxv")
START_S = 120.0
OPEN = "import stateward, sys\nwith stateward.open(data_dir=sys.argv[1], connect_timeout=100): pass"


def can_read(pid: int, name: str) -> bool:
    """Whether a program of the daemon's user can read this about it."""
    command = [*SAME_USER, sys.executable, "-S", "-c", READ, f"/proc/{pid}/{name}"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def environment_of(home: Path, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """An environment without settings of this run."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("STATEWARD_", "XDG_"))}
    return {**kept, "HOME": str(home), "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **(more or {})}


def flags_of(home: Path) -> list[str]:
    """Where the daemon has its files."""
    places = {"--data-dir": home / "data", "--listen": f"unix://{home}/s.sock", "--key-file": home / "key"}
    return [str(part) for pair in places.items() for part in pair]


@contextmanager
def running(command: Sequence[str], home: Path, more: Mapping[str, str] | None = None) -> Iterator[int]:
    """A daemon that an operator starts. Yields its pid."""
    process = subprocess.Popen(
        [*SAME_USER, *command, *flags_of(home)], env=environment_of(home, more), cwd=home, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, umask=0o022,
    )  # fmt: skip
    try:
        with Client(f"unix://{home}/s.sock", connect_timeout=START_S) as client:
            client.server_info()
        yield process.pid
    finally:
        process.kill()
        process.wait()


@contextmanager
def opened(home: Path) -> Iterator[int]:
    """The daemon of a program that calls `stateward.open()`."""
    command = [*SAME_USER, sys.executable, "-c", OPEN, str(home / "data")]
    subprocess.run(command, env=environment_of(home), check=True, timeout=START_S)
    try:
        yield daemon_of(home / "data" / "LOCK") or 0
    finally:
        end(home / "data" / "LOCK")


def as_module(home: Path) -> list[str]:
    return [sys.executable, "-m", "stateward_sidecar"]


def as_command(home: Path) -> list[str]:
    """The console script, as pip writes it."""
    script = home / "stateward-sidecar"
    script.write_text(
        f"#!{sys.executable}\nimport sys\nfrom stateward_sidecar.__main__ import main\nsys.exit(main())\n"
    )
    script.chmod(0o755)
    return [str(script)]


WAYS: dict[str, Callable[[Path], contextmanager[int]]] = {  # type: ignore[type-arg]
    "python -m": lambda home: running(as_module(home), home),
    "console script": lambda home: running(as_command(home), home),
    "stateward.open()": opened,
}


@pytest.mark.parametrize("way", WAYS)
def test_the_daemon_is_hidden_however_it_starts(short: Path, way: str) -> None:
    """Its user's other programs read neither environment nor memory, no core can be written, and new files are its
    own."""
    assert can_read(os.getpid(), "status")
    with WAYS[way](short) as pid:
        assert pid
        assert {name for name in SECRETS if can_read(pid, name)} == set()
        limits = Path(f"/proc/{pid}/limits").read_text()
        assert next(line.split()[4:6] for line in limits.splitlines() if line.startswith("Max core")) == ["0", "0"]
        assert "Umask:\t0077" in Path(f"/proc/{pid}/status").read_text()


@pytest.mark.parametrize("given", ["flag", "variable"])
def test_a_daemon_that_is_debugged_says_so(short: Path, given: str) -> None:
    """With `--debuggable`, its user's programs may read it, and the operator is warned."""
    flags = ["--debuggable"] if given == "flag" else []
    more = {} if given == "flag" else {"STATEWARD_DEBUGGABLE": "yes"}
    with running([*as_module(short), *flags], short, more) as pid:
        assert {name for name in SECRETS if can_read(pid, name)} == set(SECRETS)
    for arguments, said in (([], False), (["--debuggable"], True)):
        settings, _ = load_settings([*flags_of(short), *arguments], {"HOME": str(short)})
        assert any("--debuggable" in each for each in warnings_of(settings)) is said


@pytest.mark.parametrize("flags", [[], ["--debuggable"]], ids=["hidden", "debuggable"])
def test_a_crash_writes_no_core(short: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str]) -> None:
    """The kernel says whether it has written one. It would: of a daemon that is debugged it does, where this system
    writes any."""
    if resource.getrlimit(resource.RLIMIT_CORE)[1] == 0:
        pytest.skip("this system writes no cores")
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (min(hard, 1 << 20) if hard > 0 else 1 << 20, hard))
    monkeypatch.chdir(short)  # where a core would be
    command = [*SAME_USER, *as_module(short), *flags_of(short), "--log-file", str(short / "log"), *flags]
    pid = os.posix_spawnp(command[0], command, environment_of(short))  # Popen does not tell whether a core was written
    try:
        with Client(f"unix://{short}/s.sock", connect_timeout=START_S) as client:
            client.server_info()
    finally:
        os.kill(pid, signal.SIGABRT)
        _, status = os.waitpid(pid, 0)
        resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    assert os.WTERMSIG(status) == signal.SIGABRT
    if flags:
        assert os.WCOREDUMP(status) or Path("/proc/sys/kernel/core_pattern").read_text().strip() != "core"
    else:
        assert not os.WCOREDUMP(status)


def test_what_reads_the_daemon_goes_on(short: Path) -> None:
    """Commands, clients and the metrics of the process work on a daemon whose files in /proc are not theirs."""
    command = [*as_module(short), "--metrics", "127.0.0.1:0", "--log-file", str(short / "log")]
    with running(command, short):
        ready = next(
            line for line in map(json.loads, (short / "log").read_text().splitlines()) if line.get("event") == "ready"
        )
        with urllib.request.urlopen(ready["metrics"]) as answer:
            shown = answer.read().decode()
        for name in ("process_resident_memory_bytes", "process_open_fds", "process_cpu_seconds_total"):
            assert f"\n{name} " in shown, name
        for words in (["status"], ["doctor"]):
            done = subprocess.run(
                [*SAME_USER, sys.executable, "-m", "stateward.cli", "--target", f"unix://{short}/s.sock", *words],
                env=environment_of(short), capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stdout + done.stderr


def test_agents_of_the_group_still_get_through(short: Path) -> None:
    """New directories above a socket let its group through, the socket keeps its mode; all else is its user's alone."""
    place = short / "a" / "b"
    command = [*as_module(short), "--listen", f"unix://{place}/s.sock", "--log-file", str(short / "log")]
    with running(command, short):
        assert [stat.S_IMODE(each.stat().st_mode) for each in (place.parent, place)] == [0o750, 0o750]
        for path in (place / "s.sock", place / "s.sock~"):
            assert stat.S_IMODE(path.stat().st_mode) == 0o660
        for path in (short / "key", short / "log", *(each for each in (short / "data").rglob("*") if each.is_file())):
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


def test_a_log_that_others_may_read_stays_so(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator has let a group read the log. When it is full, the next file lets the group read, too."""
    monkeypatch.setattr(telemetry._LogFile, "_lead_streams", lambda self: None)  # this process keeps its own
    path = short / "log"
    path.touch()
    path.chmod(0o640)
    handler = telemetry._LogFile(path)
    before = os.umask(0o077)
    try:
        handler.doRollover()
        handler.emit(logging.makeLogRecord({"msg": "a line"}))
    finally:
        os.umask(before)
        handler.close()
    assert (short / "log.1").exists()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
