"""The danger: trouble that the doctor does not see, or for which it has no advice. Each trouble is real."""

from __future__ import annotations

import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import run, run_on_terminal, run_process
from tests.daemon.store import opened
from tests.faults.test_disk_full import tmpfs as tmpfs  # noqa: PLC0414  a fixture

from stateward.cli.commands.doctor_checks import check_socket
from stateward.testing import Daemon, run_daemon
from stateward.v1.admin_service_pb2 import Diagnosis
from stateward_sidecar.app import OPEN_FILES
from stateward_sidecar.doctor import disk, examine, machine
from stateward_sidecar.measures import events
from stateward_sidecar.settings import load_settings
from stateward_sidecar.storage.queue import Write
from stateward_sidecar.store.thread.cache import control_groups, memory_limit_bytes
from stateward_sidecar.telemetry import failures


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with run_daemon() as running:
        yield running


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Daemon]:
    with run_daemon(tmp_path / "data", sweep_interval=0) as running:
        yield running


class Findings:
    """What the doctor said."""

    def __init__(self, code: int, out: str) -> None:
        self.code = code
        self.items: list[dict[str, Any]] = json.loads(out)["findings"]

    def of(self, check: str, verdict: str) -> dict[str, Any]:
        """The only finding of this kind; it has a summary, and advice if something is wrong."""
        (found,) = [item for item in self.items if (item["check"], item["verdict"]) == (check, verdict)]
        assert found["summary"]
        assert found["advice"] or verdict in ("ok", "skipped")
        return found

    def wrong(self) -> set[str]:
        return {item["check"] for item in self.items if item["verdict"] in ("failed", "warning")}


def examined(target: str, *flags: str | Path) -> Findings:
    answer = run("--target", target, "doctor", "--json", *flags)
    found = Findings(answer.code, answer.out)
    failed = [item for item in found.items if item["verdict"] == "failed"]
    assert (answer.code == 1) == bool(failed) or "--strict" in flags
    assert bool(answer.err) == bool(answer.code)
    return found


@contextmanager
def limited(kind: int, least: int) -> Iterator[None]:
    """What is started meanwhile has a lower limit."""
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (least, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, before)


def test_all_is_well(daemon: Daemon) -> None:
    """Nothing is wrong with a fresh daemon, and everything was looked at."""
    found = examined(daemon.target)
    assert found.code == 0
    assert found.wrong() == set()
    assert {item["check"] for item in found.items} >= {
        "socket", "daemon", "version", "package", "clock", "ready", "data", "key", "disk", "space", "limits", "memory",
        "readers", "failures", "bucket",
    }  # fmt: skip
    assert float(found.of("disk", "ok")["facts"]["sync_us"]) > 15
    assert not list(daemon.data_dir.glob(".doctor*"))


def test_nobody_answers(own: Daemon) -> None:
    """Without a daemon its own program examines the data that the flags name, and writes nothing."""
    own.stop()
    own.socket.unlink(missing_ok=True)
    before = sorted(path.name for path in own.data_dir.iterdir())
    flags = ("--data-dir", own.data_dir, "--key-file", own.key_file)
    found = examined(own.target, *flags)
    assert "stateward-sidecar --listen" in found.of("socket", "failed")["advice"]
    found.of("daemon", "skipped")  # one reason is one failure
    found.of("key", "ok")
    found.of("disk", "ok")
    own.key_file.unlink()
    found.of("data", "ok")
    assert "does not exist" in examined(own.target, *flags).of("key", "failed")["summary"]
    own.key_file.write_text("00" * 32)
    own.key_file.chmod(0o600)
    assert "does not open the data" in examined(own.target, *flags).of("key", "failed")["summary"]
    assert sorted(path.name for path in own.data_dir.iterdir()) == before


def test_the_settings_of_open(own: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without options the doctor looks at the key file that `daemon.toml` names, and says why the daemon cannot
    start."""
    own.stop()
    named = tmp_path / "named.key"
    (own.data_dir / "daemon.toml").write_text(f'key_file = "{named}"\nlisten = "{own.target}"\n')
    there = {"STATEWARD_DATA_DIR": str(own.data_dir), "STATEWARD_KEY_FILE": str(own.key_file)}
    answer = run("doctor", "--json", **there)
    assert f"{named} does not exist" in Findings(answer.code, answer.out).of("key", "failed")["summary"]
    shutil.copy(own.key_file, named)
    answer = run("doctor", "--json", **there)
    assert str(named) in Findings(answer.code, answer.out).of("key", "ok")["summary"]
    answer = run("doctor", "--json", "--data-dir", own.data_dir)
    assert str(named) in Findings(answer.code, answer.out).of("key", "ok")["summary"]


def test_settings_with_which_nothing_starts(own: Daemon, tmp_path: Path) -> None:
    """The doctor shows the line that the daemon would end with."""
    own.stop()
    wrong = tmp_path / "wrong.toml"
    wrong.write_text("map_size = 'much'")
    assert "map_size" in examined(own.target, "--config", wrong).of("settings", "failed")["summary"].replace("-", "_")


def test_what_is_at_the_socket(tmp_path: Path) -> None:
    """A file, and the socket of a process that has ended."""
    path = tmp_path / "s"
    path.write_text("")
    assert "no socket" in examined(f"unix://{path}").of("socket", "failed")["summary"]
    path.unlink()
    with socket.socket(socket.AF_UNIX) as ended:
        ended.bind(str(path))
    assert "nobody listens" in examined(f"unix://{path}").of("socket", "failed")["summary"]


def test_a_socket_for_everybody(own: Daemon) -> None:
    """A warning is no failure, unless --strict says so."""
    own.socket.chmod(0o666)
    found = examined(own.target)
    assert found.code == 0
    assert "chmod 660" in found.of("socket", "warning")["advice"]
    own.socket.parent.chmod(0o777)
    assert {each["facts"]["mode"] for each in examined(own.target).items if each["check"] == "socket"} == {"0666"}
    assert run("--target", own.target, "doctor", "--strict").code == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_socket_for_others(own: Daemon) -> None:
    """Another user is told whose socket it is, or that its directory is closed."""
    for mode, said in ((0o755, "may not use"), (0o700, "may not look into")):
        own.socket.parent.chmod(mode)
        groups = os.getgroups()
        os.setgroups([])
        os.setegid(65534)
        os.seteuid(65534)
        try:
            (found,) = check_socket(own.target)
        finally:
            os.seteuid(0)
            os.setegid(0)
            os.setgroups(groups)
        assert found.verdict == "failed"
        assert said in found.summary
        assert found.advice


def test_files_for_everybody(own: Daemon) -> None:
    """Modes of the data directory and of the key file: what others may look at, and what stops the next start."""
    own.data_dir.chmod(0o755)
    own.key_file.chmod(0o660)
    found = examined(own.target)
    assert "chmod go-rwx" in found.of("data", "warning")["advice"]
    assert "chmod g-w" in found.of("key", "warning")["advice"]
    own.data_dir.chmod(0o777)
    own.key_file.chmod(0o644)
    found = examined(own.target)
    assert "chmod o-w" in found.of("data", "failed")["advice"]
    assert "chmod o-rwx" in found.of("key", "failed")["advice"]


def test_a_lost_key(own: Daemon) -> None:
    """A missing key file, and one with another key."""
    key = own.key_file.read_text()
    own.key_file.unlink()
    assert "does not exist" in examined(own.target).of("key", "failed")["summary"]
    own.key_file.write_text("00" * 32)
    own.key_file.chmod(0o600)
    found = examined(own.target).of("key", "failed")
    assert found["facts"]["expected"] in found["advice"]
    own.key_file.write_text(key)


def test_a_disk_that_only_pretends(tmpfs: Path) -> None:
    """A RAM disk syncs faster than a disk can."""
    with run_daemon(tmpfs / "data", sweep_interval=0) as daemon:
        found = examined(daemon.target)
        assert "sync" in found.of("disk", "warning")["summary"]
        assert float(found.of("disk", "warning")["facts"]["sync_us"]) < 15
        assert "tmpfs" in found.of("settings", "warning")["summary"]


def test_a_slow_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Syncs of more than 10 ms; the measurement itself ends in time however slow they are."""
    monkeypatch.setattr(disk, "PATIENCE_S", 0.05)
    monkeypatch.setattr(os, "fdatasync", lambda fd: time.sleep(0.02))
    found = disk.check_disk(tmp_path)
    assert "slow" in found.summary
    assert found.advice


def test_a_full_disk(tmpfs: Path) -> None:
    """Not ready, and little space; the measurement is left out."""
    with run_daemon(tmpfs / "data", sweep_interval=0) as daemon:
        with suppress(OSError), (tmpfs / "filler").open("wb") as filler:
            while True:
                filler.write(bytes(1 << 14))
                filler.flush()
        with daemon.client() as client:
            end = time.monotonic() + 10
            while not client.server_info().not_ready and time.monotonic() < end:
                time.sleep(0.1)
        found = examined(daemon.target)
        assert "disk" in found.of("ready", "failed")["summary"]
        found.of("disk", "skipped")
        assert found.of("space", "warning")["facts"]["free_bytes"] == "0"


def test_no_more_files(tmp_path: Path) -> None:
    """A file system without an inode left: the measurement is left out, and the advice is about files, not bytes."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m,nr_inodes=16", "tmpfs", str(tmp_path)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("file systems cannot be mounted here")
    try:
        with suppress(OSError):
            for number in range(100):
                (tmp_path / str(number)).touch()
        assert disk.check_disk(tmp_path).verdict == Diagnosis.VERDICT_SKIPPED
        found = disk.check_space(tmp_path)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
    assert (found.verdict, found.facts["free_files"]) == (Diagnosis.VERDICT_WARNING, "0")
    assert "inodes" in found.advice


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="there is no /proc")
def test_a_place_that_keeps_no_files(tmp_path: Path) -> None:
    """A file system that tells no size is tried out, and --check fails with what happened."""
    command = [sys.executable, "-m", "stateward_sidecar", "--check", "--data-dir", "/proc/x"]
    environment = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    found = {item["check"]: item for item in map(json.loads, done.stdout.splitlines())}
    assert done.returncode == 1
    assert "cannot write to /proc" in found["disk"]["summary"]
    assert "--data-dir" in found["disk"]["advice"]
    assert found["space"]["verdict"] == "VERDICT_SKIPPED"


def test_an_address_where_no_daemon_can_be() -> None:
    """The advice for another machine's address is no --listen that the daemon would refuse."""
    found = examined("daemon.invalid:7700")
    assert "--listen" not in found.of("daemon", "failed")["advice"]
    answer = run("--target", "foo:1:2", "doctor")
    assert answer.code == 1
    assert "several colons" in answer.err


def test_a_control_group_that_was_stopped_and_killed(tmp_path: Path) -> None:
    """Kills for lack of memory and a withheld processor are warnings of the innermost group; the least limit counts."""
    own = tmp_path / "system.slice/stateward.service"
    own.mkdir(parents=True)
    (tmp_path / "self").write_text("0::/system.slice/stateward.service\n")
    settings, _ = load_settings([], {"HOME": str(tmp_path)})
    groups = control_groups(tmp_path, tmp_path / "self")
    assert groups == [own, own.parent, tmp_path]
    (fine,) = machine.check_memory(settings, groups)
    assert fine.verdict == Diagnosis.VERDICT_OK
    (own / "memory.events").write_text("low 0\noom 3\noom_kill 2\n")
    (own / "cpu.stat").write_text("usage_usec 5\nnr_periods 100\nnr_throttled 7\nthrottled_usec 9\n")
    (tmp_path / "memory.events").write_text("oom_kill 9\n")
    (own.parent / "memory.max").write_text(f"{512 << 20}\n")
    (own / "memory.max").write_text("max\n")
    killed, stopped = machine.check_memory(settings, groups)
    assert (killed.facts["oom_kills"], "memory" in killed.advice) == ("2", True)
    assert (stopped.check, "7 %" in stopped.summary, "CPU limit" in stopped.advice) == ("limits", True, True)
    assert memory_limit_bytes(groups) == 512 << 20
    (own / "cpu.stat").write_text("nr_periods 1000\nnr_throttled 7\n")
    (own / "memory.events").write_text("oom_kill 0\n")
    (fine,) = machine.check_memory(settings, groups)
    assert fine.facts["limit_bytes"] == str(512 << 20)


def test_a_control_group_of_a_container(tmp_path: Path) -> None:
    """In a container that sees its own group as the root, the path of the host leads nowhere."""
    (tmp_path / "self").write_text("0::/kubepods/pod1/abc\n")
    assert control_groups(tmp_path, tmp_path / "self") == [tmp_path]
    assert control_groups(tmp_path, tmp_path / "missing") == [tmp_path]


def test_a_directory_nobody_may_write(tmp_path: Path) -> None:
    """The daemon's program says so for a data directory that is no directory of its own."""
    (tmp_path / "data").touch()
    target = f"unix://{tmp_path / 's'}"
    found = examined(target, "--data-dir", tmp_path / "data", "--key-file", tmp_path / "key")
    assert found.wrong() >= {"socket", "data"}


def test_few_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """A low ulimit -n that the daemon may not raise, and a map that the process may not make."""
    monkeypatch.setenv("TESTS_START_COLD", "1")  # the limit is this process's
    with limited(resource.RLIMIT_NOFILE, 512), run_daemon() as daemon:
        most = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], OPEN_FILES)
        assert f"{most} open files" in examined(daemon.target).of("limits", "ok")["summary"]
    with monkeypatch.context() as patch:
        patch.setattr(resource, "getrlimit", lambda kind: (512, 512))
        warned = [each.advice for each in machine.check_limits(load_settings([], {"HOME": "/nowhere"})[0])]
    assert any("LimitNOFILE" in advice for advice in warned)
    with limited(resource.RLIMIT_FSIZE, 1 << 30), run_daemon() as daemon:
        assert "--map-size" in examined(daemon.target).of("limits", "failed")["advice"]


def test_memory() -> None:
    """Little of it, and more than the system grants."""
    with run_daemon(memory_limit="100MiB") as daemon:
        assert "little" in examined(daemon.target).of("memory", "warning")["summary"]
    with run_daemon(memory_limit="1TiB") as daemon:
        assert "--memory-limit" in examined(daemon.target).of("memory", "failed")["advice"]


def test_an_open_port() -> None:
    """What the daemon warns of at its start is said again."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with run_daemon() as daemon:
        daemon.stop()
        daemon._flags |= {"listen": f"127.0.0.1:{port}", "exposed_port": True}
        daemon.start()
        answer = run("--target", f"127.0.0.1:{port}", "doctor", "--json")
        assert "no token" in " ".join(item["summary"] for item in json.loads(answer.out)["findings"])


def test_tokens_that_everybody_can_read(tmp_path: Path) -> None:
    """The doctor sends the token, and says that it is one that others can use."""
    tokens = tmp_path / "tokens"
    tokens.write_text("t" * 20)
    tokens.chmod(0o644)
    with run_daemon(token_file=tokens, allow_exposed_secrets=True) as daemon:
        refused = run("--target", daemon.target, "doctor", "--json")
        assert "carries no token" in refused.out + refused.err
        answer = run("--target", daemon.target, "doctor", "--json", STATEWARD_TOKEN_FILE=str(tokens))
        found = [item for item in json.loads(answer.out)["findings"] if item["check"] == "tokens"]
        assert [item["verdict"] for item in found] == ["warning"]
        assert "mode 0644" in found[0]["summary"]
        assert "chmod o-rwx" in found[0]["advice"]


def test_a_file_of_principals_that_everybody_can_change(tmp_path: Path) -> None:
    """The doctor examines it, and does not say that calls need no token. `--check` says that the next start fails."""
    access, token = tmp_path / "access.toml", tmp_path / "token"
    token.write_text(run("token", "new", access, "me", "--grant", "admin */*").out)

    def found(check: str) -> dict[str, Any]:
        answer = run("--target", daemon.target, "doctor", "--json", STATEWARD_TOKEN_FILE=str(token))
        (item,) = [item for item in json.loads(answer.out)["findings"] if item["check"] == check]
        return dict(item)

    with run_daemon(access=access) as daemon:
        assert "1 identities" in found("access")["summary"]
        assert "access file" in found("tokens")["summary"]
        access.chmod(0o666)
        assert found("access")["verdict"] == "failed"
        assert "mode 0666" in found("access")["summary"]
        access.write_text("[[principal]]\nname = 3\n")
        assert found("access")["verdict"] == "failed"
        assert "name is required" in found("access")["summary"]


def test_a_daemon_that_asks_for_a_token(tmp_path: Path) -> None:
    """The doctor says so, and nothing of the settings of another daemon, such as that calls need no token. A principal
    that may not examine the daemon is told that, and the rest."""
    access, token = tmp_path / "access.toml", tmp_path / "token"
    token.write_text(run("token", "new", access, "me", "--grant", "read */*").out)
    with run_daemon(access=access) as daemon:
        answer = run("--target", daemon.target, "doctor", "--json")
        found = {item["check"]: item for item in json.loads(answer.out)["findings"]}
        assert answer.code == 1
        assert set(found) == {"socket", "daemon", "package"}
        assert "does not know this caller: the call carries no token" in found["daemon"]["summary"]
        assert "STATEWARD_TOKEN_FILE" in found["daemon"]["advice"]
        assert "more to callers with a token" in run("--target", daemon.target, "status").out
        answer = run("--target", daemon.target, "doctor", "--json", STATEWARD_TOKEN_FILE=str(token))
        found = {item["check"]: item for item in json.loads(answer.out)["findings"]}
        assert found["daemon"]["verdict"] == found["version"]["verdict"] == "ok"
        assert "this caller is me" in found["daemon"]["summary"]
        assert "me may not admin" in found["machine"]["summary"]
        assert "access" not in found


def test_another_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A newer daemon serves an older client, and the doctor says which of the two to upgrade."""
    (tmp_path / "sitecustomize.py").write_text("import stateward._version\nstateward._version.VERSION = '9.9.9'\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with run_daemon() as daemon:
        monkeypatch.undo()
        found = examined(daemon.target).of("version", "warning")
        assert found["facts"]["daemon"] == "9.9.9"
        assert "Upgrade the client" in found["advice"]


def test_a_bucket_that_is_gone(tmp_path: Path) -> None:
    """The probe fails with what the bucket says; --no-probe leaves it alone."""
    bucket = tmp_path / "bucket"
    with run_daemon(tmp_path / "data", archive=f"file://{bucket}") as daemon:
        found = examined(daemon.target)
        found.of("bucket", "ok")
        assert not [path for path in bucket.rglob("*") if "_probe" in str(path) and path.name.isalnum()]
        bucket.rename(tmp_path / "away")
        bucket.touch()
        found = examined(daemon.target)
        found.of("bucket", "failed")
        assert "bucket" not in {item["check"] for item in examined(daemon.target, "--no-probe").items}


def test_a_reader_that_never_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read transaction that others have overtaken is a warning, with how far it is behind."""
    monkeypatch.setattr(examine, "BEHIND_MAX", 3)
    with opened(tmp_path / "data") as store:
        with store.context.engine.read():
            for number in range(5):
                key = b"X%d" % number
                write = Write(run=lambda txn, batch, key=key: txn.put(key, b"x"))
                store.context.writer.submit(write, wait=True).wait()
            assert "behind" in examine._check_readers(store).summary
            assert examine._check_readers(store).advice
        assert not examine._check_readers(store).advice


def test_failures_of_the_past(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was counted since the start is said, with where to look."""
    monkeypatch.setattr(failures, "count", 2)
    monkeypatch.setattr(events, "unopened", 3)
    found = list(examine._check_events())
    assert ["log" in found[0].advice, "verify" in found[1].advice] == [True, True]


def test_colours_only_on_a_terminal(daemon: Daemon) -> None:
    """A pipe gets text without escapes, a terminal colours for what is wrong."""
    answer = run_process("--target", daemon.target, "doctor", "--no-probe")
    assert answer.code == 0
    assert "\x1b" not in answer.out
    assert answer.out.startswith("ok    socket")
    code, shown = run_on_terminal("--target", f"unix://{daemon.socket}.missing", "doctor")
    assert code == 1
    assert "\x1b[31m" in shown
