"""The danger: a command that speaks of an empty store, or stops a stranger, because it looked in the wrong place."""

from __future__ import annotations

import json
import os
import plistlib
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import Answer
from tests.cli.conftest import run as run_command
from tests.opening.conftest import daemon_of

from stateward.cli.commands.service import launch_agent, quoted
from stateward.opening.places import find_place
from stateward.testing import run_daemon


def run(*arguments: str | Path, **more: str) -> Answer:
    """Runs the command with the variables of the test."""
    kept = {name: os.environ[name] for name in ("HOME", "PATH", "XDG_RUNTIME_DIR") if name in os.environ}
    return run_command(*arguments, **kept, **more)


def test_commands_find_the_daemon_of_the_data(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a target they use the daemon of the default data directory; they start it only where `open` has started
    it before, and never with --no-start. `status`, `stop` and `doctor` start none."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(home))
    place = find_place(None)
    assert run("status").code == 3
    assert not place.data_dir.exists()
    assert "no stateward daemon answers" in run("threads").error  # nothing is started on a machine that knows none
    assert not place.data_dir.exists()
    with run_daemon(place.data_dir, key_file=place.key_file) as daemon:
        found = run("status", "--json").json
        assert found["running"] is True
        assert (found["pid"], found["target"]) == (daemon.pid, daemon.target)
        assert f"pid {daemon.pid}" in run("status").out
        assert run("stats", "--json").json["target"] == daemon.target
        assert run("stop", "--json").json == {"stopped": True, "pid": daemon.pid, "in_use": False}
        process = daemon._process
        assert process is not None
        assert process.wait(20) == 0
    assert run("stop").out == "no daemon runs\n"
    assert "no stateward daemon answers" in run("threads").error  # of a server that is down: none is started
    (place.settings_file).write_text(f'key_file = "{place.key_file}"\nlisten = "unix://{home}/d.sock"\n')
    assert "none may be started" in run("--no-start", "threads").error
    status = run("status", "--json")
    assert status.code == 3
    assert f"unix://{home}/d.sock" in status.out
    doctor = run("doctor", "--no-probe")  # nothing is wrong: the next command starts it
    assert doctor.code == 0, doctor.out
    assert f"no daemon runs for {place.data_dir}; the next stateward.open() or command starts it" in doctor.out
    aside = run("--target", f"unix://{home}/d.sock", "threads").error
    assert f"with its settings in {place.settings_file}" in aside
    assert "stateward-sidecar" not in aside  # which would not read them
    assert daemon_of(place.data_dir / "LOCK") is None
    answer = run("stats", "--json").json
    assert answer["target"] == f"unix://{home}/d.sock"
    assert run("stats", "--json", STATEWARD_TARGET=f"unix://{home}/none.sock").code == 1
    pid = daemon_of(place.data_dir / "LOCK")
    assert run("stop").out == f"the daemon (pid {pid}) has ended\n"
    assert daemon_of(place.data_dir / "LOCK") is None


def test_no_other_data_stand_in_for_those_that_are_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon is at the default socket, and STATEWARD_DATA_DIR names other data: the command fails, and does not speak
    of the first daemon's threads."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(home))
    (home / "stateward").mkdir()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(home / "stateward/stateward.sock"))
        other.listen()
        named = {"STATEWARD_DATA_DIR": str(home / "other")}
        assert f"no daemon runs for {home}/other: there is no such directory" in run("threads", **named).error
        assert run("status", "--json", **named).out.count(f"unix://{home}/other/run/stateward.sock") == 1
        place = find_place(home / "other")
        place.data_dir.mkdir()
        assert f"no daemon runs for {home}/other" in run("rm", "t", "--yes", **named).error
        other.settimeout(0)
        with pytest.raises(BlockingIOError):
            other.accept()  # nobody has even asked it
    assert not (place.data_dir / "LOCK").exists()


def test_the_service_is_well_formed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The unit passes systemd's own check, and the agent for launchd is a property list; install writes the unit and
    tells the service manager, uninstall takes both back."""
    place = find_place(home / 'da "ta %h $x')
    place.data_dir.mkdir()
    text = run("service", "print", "--data-dir", place.data_dir).out
    assert not (place.data_dir / "data.mdb").exists()
    unit = home / "stateward.service"
    unit.write_text(text)
    if shutil.which("systemd-analyze") is not None:
        variables = {**os.environ, "XDG_RUNTIME_DIR": str(home)}
        verify = ["systemd-analyze", "--user", "verify", str(unit)]
        done = subprocess.run(verify, capture_output=True, text=True, env=variables, check=False)
        ours = [line for line in done.stderr.splitlines() if "stateward" in line]
        assert ours == [], done.stderr
    found = plistlib.loads(launch_agent(["/bin/python", "-m", "stateward_sidecar"], place).encode())
    assert found["ProgramArguments"][:3] == ["/bin/python", "-m", "stateward_sidecar"]
    assert found["KeepAlive"] == {"SuccessfulExit": False}
    assert [quoted(part) for part in ("plain", "a b", "50%", 'q"')] == ["plain", '"a b"', '"50%%"', '"q\\""']
    if sys.platform != "linux":
        return
    program = home / "bin/systemctl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" >> {home}/told\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    assert run("service", "install").code == 0
    installed = home / ".config/systemd/user/stateward.service"
    assert f"--data-dir {find_place(None).data_dir}" in installed.read_text()
    assert run("service", "uninstall").code == 0
    assert not installed.exists()
    told = (home / "told").read_text().splitlines()
    assert told == [
        "--user daemon-reload", "--user enable --now stateward.service", "--user disable --now stateward.service",
    ]  # fmt: skip
    facts = json.loads(run("service", "install", "--json", "--no-start").out)
    assert facts == {"path": str(installed), "data_dir": str(find_place(None).data_dir), "started": False}
    assert json.loads(run("service", "uninstall", "--json").out) == {"path": str(installed), "removed": True}
    assert json.loads(run("service", "uninstall", "--json").out) == {"path": str(installed), "removed": False}
    program.write_text("#!/bin/sh\necho no bus >&2; exit 1\n")
    answer = run("service", "install")
    assert answer.code == 0
    assert "no bus; run it in a session of your user: systemctl --user daemon-reload && " in answer.err
