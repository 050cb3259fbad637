"""The danger: work that is sent to a daemon which cannot keep it, because its probe says that all is well."""

from __future__ import annotations

import asyncio
import secrets
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests import warm
from tests.daemon.process import eventually
from tests.faults.test_disk_full import tmpfs as tmpfs  # noqa: PLC0414  a fixture

from stateward import errors
from stateward.testing import Daemon, run_daemon
from stateward_sidecar.service.serving.readiness import Readiness

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
WITHIN_S = 60.0


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with run_daemon(tmp_path / "data", sweep_interval=0) as running:
        yield running


def status(daemon: Daemon, name: str = "readiness") -> int:
    with grpc.insecure_channel(daemon.target) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        return int(stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=5).status)


def probe(daemon: Daemon, *name: str) -> tuple[int, str]:
    """The command that probes run."""
    command = [sys.executable, "-m", "stateward_sidecar", "--listen", daemon.target, "--health", *name]
    done = warm.run(command, timeout=30)
    return done.returncode, done.stderr


def check_unready(daemon: Daemon, cause: str) -> None:
    """Not ready for this cause alone; the probe says so, and liveness and services stay as they are."""
    eventually(lambda: status(daemon) == NOT_SERVING, WITHIN_S)
    assert status(daemon, "") == NOT_SERVING
    assert status(daemon, "liveness") == status(daemon, "stateward.v1.CheckpointService") == SERVING
    assert probe(daemon, "liveness") == (0, "")
    code, said = probe(daemon)
    assert code == 1
    assert f"{cause}: " in said
    with daemon.client() as client:
        (why,) = client.server_info().not_ready
    assert why.startswith(f"{cause}: ")


def test_nobody_listens(tmp_path: Path) -> None:
    """Without a daemon the probe says so in one line, and names the address once."""
    command = [sys.executable, "-m", "stateward_sidecar", "--listen", f"unix://{tmp_path}/none.sock", "--health"]
    done = warm.run(command, timeout=30)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"not ready: no daemon answers at unix://{tmp_path}/none.sock (No such file or directory); ")
    assert line.count("none.sock") == 1


def check_ready(daemon: Daemon) -> None:
    eventually(lambda: status(daemon) == SERVING, WITHIN_S)
    assert probe(daemon) == (0, "")
    with daemon.client() as client:
        assert client.server_info().not_ready == ()


def fill(path: Path) -> None:
    with suppress(OSError), path.open("wb") as file:
        while True:
            file.write(bytes(1 << 14))
            file.flush()


def test_a_full_disk(tmpfs: Path) -> None:
    """Not ready while another program has taken the space, ready when it is back; reads are served all the time."""
    with run_daemon(tmpfs / "data", sweep_interval=0) as daemon, daemon.client(retry_timeout=0) as client:
        client.thread("job").append("messages", "first")
        check_ready(daemon)
        fill(tmpfs / "filler")
        check_unready(daemon, "disk")
        with pytest.raises(errors.DiskFull):
            client.thread("job").append("messages", "second")
        assert client.thread("job").hydrate().version == 1
        (tmpfs / "filler").unlink()
        check_ready(daemon)
        assert client.thread("job").append("messages", "second").version == 2


def test_a_full_map() -> None:
    """The same for the map: what is deleted makes it ready again."""
    with run_daemon(map_size="2MiB", sweep_interval=0) as daemon, daemon.client(retry_timeout=0) as client:
        is_full = False
        for number in range(200):
            try:
                client.thread(f"job-{number}").append("messages", secrets.token_hex(8000))
            except errors.DiskFull:
                is_full = True
                break
        assert is_full
        check_unready(daemon, "disk")
        for thread in list(client.threads()):
            client.thread(thread.name).delete()
        check_ready(daemon)


@pytest.mark.parametrize("kind", ["gone", "another"])
def test_the_key_is_missing(daemon: Daemon, kind: str) -> None:
    """Commits would be unreadable after the next start, so nobody is sent here until the key is back."""
    key = daemon.key_file.read_text()
    check_ready(daemon)
    if kind == "gone":
        daemon.key_file.unlink()
    else:
        daemon.key_file.write_text("00" * 32)
    check_unready(daemon, "key")
    daemon.key_file.write_text(key)
    daemon.key_file.chmod(0o600)
    check_ready(daemon)


@pytest.mark.parametrize("name", ["data.mdb", "keys"])
def test_the_data_are_gone_under_it(daemon: Daemon, name: str) -> None:
    """The process still writes to a file that no name leads to: everything it answers is lost with it."""
    check_ready(daemon)
    path = daemon.data_dir / name
    path.rename(daemon.data_dir / "elsewhere")
    check_unready(daemon, "data")
    (daemon.data_dir / "elsewhere").rename(path)
    check_ready(daemon)


def test_a_drain(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """A drained daemon gives the drain as its cause, also to a probe that is a command."""
    with daemon.client() as client:
        client.drain()
        check_unready(daemon, "draining")
        with monkeypatch.context() as patch:
            patch.setenv(warm.COLD, "1")
            code, said = probe(daemon)
            assert (code, "draining: " in said) == (1, True)
        client.drain(undo=True)
    check_ready(daemon)


async def test_a_file_system_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that never answers is a cause, holds one thread however long it takes, and is over when it answers."""
    monkeypatch.setattr("stateward_sidecar.service.serving.readiness.ANSWER_S", 1.0)
    answers, looked, shown = threading.Event(), list[int](), list[bool]()

    def check() -> str:
        looked.append(1)
        answers.wait(60)
        return ""

    async def show(is_ready: bool) -> None:
        shown.append(is_ready)

    readiness = Readiness({"data": check, "disk": lambda: ""}, show)
    for _ in range(3):
        await readiness.look()
    assert (looked, shown) == ([1], [False])
    assert readiness.list_reasons() == ["data: the file system has not answered for 1 s"]
    answers.set()
    async with asyncio.timeout(60):
        while not readiness.is_ready:
            await readiness.look()
    assert (shown, readiness.is_ready) == ([False, True], True)
