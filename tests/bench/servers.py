"""Throw-away servers of the peers: data in a directory of the bench, synced as strictly as Stateward.

Each is a context manager that starts one and stops it at the end, also after Ctrl-C. `PeerAbsent` says why
one cannot be started.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

READY_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 30.0
UNPRIVILEGED_USERS = ("postgres", "nobody")
HOW_TO_INSTALL = "not installed: make bench-peers"


@dataclass(frozen=True)
class Server:
    """Where it listens, and its first process."""

    address: str
    pid: int
    version: str = ""


class PeerAbsent(Exception):
    """A peer cannot take part here; the message says why, and what to do."""


@contextmanager
def run_echo(sockets: Path) -> Iterator[Server]:
    """The floor, in a process of its own."""
    target = f"unix://{sockets / 'echo.sock'}"
    command = [sys.executable, "-m", "tests.bench.echo", target]
    root = Path(__file__).resolve().parents[2]
    with _running(command, sockets / "echo.log", cwd=root) as process:
        _wait_until((sockets / "echo.sock").exists, sockets / "echo.log")
        yield Server(target, process.pid)


@contextmanager
def run_postgres(data: Path, sockets: Path) -> Iterator[Server]:
    """A new cluster on a unix socket; its address is a connection string. It refuses to run as root, so it does not."""
    tools = find_postgres()
    user = unprivileged_user()
    for directory in (data, sockets):
        directory.mkdir(parents=True)
        if user:
            shutil.chown(directory, user, pwd.getpwnam(user).pw_gid)
    log = sockets / "postgres.log"
    as_user = {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []} if user else {}
    initdb = [tools / "initdb", "--pgdata", data, "--username", "bench", "--auth", "trust", "--encoding", "UTF8"]
    made = subprocess.run([*initdb, "--no-locale"], capture_output=True, text=True, check=False, cwd="/", **as_user)
    if made.returncode:
        raise PeerAbsent(f"initdb failed: {' '.join(made.stderr.split())[-300:]}")
    options = {"listen_addresses": "", "unix_socket_directories": str(sockets), "fsync": "on"}
    options |= {"synchronous_commit": "on", "max_connections": "100"}
    command = [str(tools / "postgres"), "-D", str(data), *(f"--{name}={value}" for name, value in options.items())]
    # SIGINT is PostgreSQL's fast shutdown; on SIGTERM it would wait for every connection to end.
    with _running(command, log, stop_signal=signal.SIGINT, cwd=Path("/"), **as_user) as process:
        _wait_until(lambda: _accepts(sockets / ".s.PGSQL.5432") and "ready to accept" in log.read_text(), log)
        yield Server(f"host={sockets} user=bench dbname=postgres", process.pid, _version(command[0]))


def find_postgres() -> Path:
    """The folder of initdb and postgres: Debian keeps it off the path."""
    on_path = shutil.which("initdb")
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if not found and not on_path:
        raise PeerAbsent(HOW_TO_INSTALL)
    return found[-1].parent if found else Path(on_path or "").resolve().parent


def unprivileged_user() -> str:
    """Whom to run as instead of root; empty where this process is not root."""
    if os.geteuid() != 0:
        return ""
    for name in UNPRIVILEGED_USERS:
        with suppress(KeyError):
            return pwd.getpwnam(name).pw_name
    raise PeerAbsent("no unprivileged user to run it as")


@contextmanager
def run_redis(data: Path, sockets: Path) -> Iterator[Server]:
    """A Redis that syncs every write before it answers; its address is a socket."""
    binary = find_binary("redis-server")
    data.mkdir(parents=True)
    path = sockets / f"{data.name}.sock"
    options = {"port": "0", "unixsocket": str(path), "dir": str(data), "save": "", "daemonize": "no"}
    options |= {"appendonly": "yes", "appendfsync": "always", "logfile": ""}
    command = [binary, *(part for name, value in options.items() for part in (f"--{name}", value))]
    log = sockets / f"{data.name}.log"
    with _running(command, log) as process:
        _wait_until(lambda: _accepts(path), log)
        yield Server(str(path), process.pid, _version(binary))


@contextmanager
def run_etcd(data: Path, sockets: Path) -> Iterator[Server]:
    """A single member with its defaults, which sync every write; its address is host:port."""
    binary = find_binary("etcd")
    client, peer = f"127.0.0.1:{free_port()}", f"http://127.0.0.1:{free_port()}"
    command = [binary, "--data-dir", str(data), "--name", "bench", "--logger", "zap", "--log-level", "error"]
    command += ["--listen-client-urls", f"http://{client}", "--advertise-client-urls", f"http://{client}"]
    command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"bench={peer}"]
    log = sockets / f"{data.name}.log"
    host, port = client.split(":")
    with _running(command, log, env={**os.environ, "ETCD_UNSUPPORTED_ARCH": _unsupported_arch()}) as process:
        _wait_until(lambda: _accepts((host, int(port))), log)
        yield Server(client, process.pid, _version(binary))


@contextmanager
def _running(
    command: list[str], log: Path, *, stop_signal: signal.Signals = signal.SIGTERM, **options: object
) -> Iterator[subprocess.Popen[bytes]]:
    """A process of its own session, so that Ctrl-C reaches the bench alone and servers end in order."""
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True, **options)
    try:
        yield process
    finally:
        process.send_signal(stop_signal)
        try:
            process.wait(STOP_TIMEOUT_S)
        except BaseException:  # a second Ctrl-C as well: nothing is left behind
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise


def _wait_until(ready: Callable[[], bool], log: Path) -> None:
    end = time.monotonic() + READY_TIMEOUT_S
    while not ready():
        if time.monotonic() > end:
            raise PeerAbsent(f"not ready after {READY_TIMEOUT_S:g} s: {' '.join(log.read_text().split())[-300:]}")
        time.sleep(0.02)


def _accepts(address: Path | tuple[str, int]) -> bool:
    family = socket.AF_UNIX if isinstance(address, Path) else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(str(address) if isinstance(address, Path) else address) == 0


def find_binary(name: str) -> str:
    """A server's program; some are where only root's path leads."""
    path = shutil.which(name) or shutil.which(name, path="/usr/local/bin:/usr/bin:/usr/sbin")
    if path is None:
        raise PeerAbsent(HOW_TO_INSTALL)
    return path


def _version(binary: str) -> str:
    """The first number with a dot that `--version` prints."""
    answer = subprocess.run([binary, "--version"], capture_output=True, text=True, check=False, cwd="/").stdout
    found = re.search(r"\d+\.[\d.]*\d", answer)
    return found[0] if found else "?"


def free_port() -> int:
    """A port of the loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _unsupported_arch() -> str:
    """The etcd of Debian 12 refuses arm64 unless it is told to run there."""
    return "arm64" if os.uname().machine == "aarch64" else ""
