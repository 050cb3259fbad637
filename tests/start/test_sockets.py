"""The danger: a second daemon takes the socket of a living one, whose clients then talk to another store, or a dead
one's socket stops a start."""

from __future__ import annotations

import socket
import stat
from pathlib import Path

import pytest
from tests.start.launch import start

from stateward.testing import run_daemon
from stateward_sidecar.app import warnings_of
from stateward_sidecar.settings import load_settings


@pytest.mark.usefixtures("begun_warm")
def test_the_socket_of_a_living_daemon_is_refused(short: Path) -> None:
    """A second daemon on another directory does not take the first one's socket, and the first one still answers."""
    with run_daemon(short / "data") as daemon, daemon.client() as client:
        line = start(short, "--data-dir", str(short / "other"), "--listen", f"unix://{daemon.socket}").line
        assert "another daemon answers there" in line
        assert client.thread("t").hydrate().version == 0
    assert client is not None


@pytest.mark.usefixtures("begun_warm")
def test_the_port_of_a_living_daemon_is_refused(short: Path) -> None:
    """A TCP address in use is one line."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        line = start(short, "--listen", f"127.0.0.1:{taken.getsockname()[1]}", "--exposed-port").line
    assert "in use" in line


@pytest.mark.usefixtures("begun_warm")
def test_a_socket_whose_owner_is_busy_is_not_taken(short: Path) -> None:
    """A daemon that is too busy to accept is alive: only a refused connection means that nobody listens."""
    path = short / "busy.sock"
    with socket.socket(socket.AF_UNIX) as owner:
        owner.bind(str(path))
        owner.listen(0)
        waiting = []
        while True:
            caller = socket.socket(socket.AF_UNIX)
            waiting.append(caller)
            caller.setblocking(False)
            try:
                caller.connect(str(path))
            except BlockingIOError:
                break
        inode = path.stat().st_ino
        try:
            assert str(path) in start(short, "--listen", f"unix://{path}", timeout=10).line
            assert path.stat().st_ino == inode
        finally:
            for caller in waiting:
                caller.close()


@pytest.mark.usefixtures("begun_warm")
def test_something_else_in_the_way_is_not_removed(short: Path) -> None:
    """A file in the socket's place stays."""
    (short / "s.sock").write_text("mine")
    assert "not a socket" in start(short).line
    assert (short / "s.sock").read_text() == "mine"


def test_the_socket_is_for_owner_and_group_only(short: Path) -> None:
    """The socket has mode 0660, the data directory 0700 and its files 0600."""
    with run_daemon(short / "data") as daemon, daemon.client() as client:
        thread = client.thread("t")
        thread.save(thread.hydrate())
        assert stat.S_IMODE(daemon.socket.stat().st_mode) == 0o660
        assert stat.S_IMODE((short / "data").stat().st_mode) == 0o700
        for path in (short / "data").iterdir():
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_a_port_is_open_to_every_user(short: Path) -> None:
    """A TCP listener says so when it starts; a socket of the file system says nothing."""
    for listen, said in (("127.0.0.1:0", True), (f"unix://{short}/s.sock", False)):
        settings, _ = load_settings(["--data-dir", str(short / "data"), "--listen", listen], {"HOME": str(short)})
        assert any("every user" in warning and listen in warning for warning in warnings_of(settings)) is said
