"""The danger: the socket of frames is open to others, stands in the way of a start, or leads to another daemon."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stateward import Client
from stateward.testing import Daemon, run_daemon

pytestmark = pytest.mark.usefixtures("begun_warm")


def beside(daemon: Daemon) -> Path:
    return daemon.socket.with_name(daemon.socket.name + "~")


def wire_of(daemon: Daemon) -> str:
    with daemon.client() as client:
        return client.server_info().wire


def test_it_is_as_open_as_the_first() -> None:
    """Same mode, same owner; GetServerInfo says that there is one."""
    with run_daemon() as daemon:
        first, second = daemon.socket.stat(), beside(daemon).stat()
        assert stat.S_ISSOCK(second.st_mode)
        assert (first.st_mode, first.st_uid, first.st_gid) == (second.st_mode, second.st_uid, second.st_gid)
        assert stat.S_IMODE(second.st_mode) == 0o660
        with daemon.client() as client:
            info = client.server_info()
        assert (info.wire, "frames" in info.features) == ("frames", True)


def test_a_stop_removes_it() -> None:
    with run_daemon() as daemon:
        daemon.stop()
        assert not beside(daemon).exists()


def test_that_of_a_daemon_that_was_killed_is_replaced() -> None:
    """As the first socket."""
    with run_daemon() as daemon:
        daemon.kill()
        assert beside(daemon).exists()
        daemon.start()
        assert wire_of(daemon) == "frames"


def test_without_frames_there_is_none(tmp_path: Path) -> None:
    """Also none of a daemon that was killed before: clients speak gRPC."""
    with run_daemon(tmp_path / "data") as daemon:
        daemon.kill()
        daemon._flags["no_frames"] = True
        daemon.start()
        assert not beside(daemon).exists()
        with daemon.client() as client:
            info = client.server_info()
        assert (info.wire, "frames" in info.features) == ("grpc", False)


def test_a_file_of_that_name_stands_in_the_way(tmp_path: Path) -> None:
    """It may be somebody's: the daemon says what to do, and removes nothing."""
    daemon = Daemon(tmp_path)
    beside(daemon).write_text("precious")
    with pytest.raises(RuntimeError, match="is not a socket"):
        daemon.start()
    assert beside(daemon).read_text() == "precious"
    daemon._flags["no_frames"] = True
    try:
        daemon.start()
        assert wire_of(daemon) == "grpc"
    finally:
        daemon.kill()


def test_a_live_socket_of_that_name_stands_in_the_way(tmp_path: Path) -> None:
    """Clients would speak frames with another daemon than gRPC."""
    daemon = Daemon(tmp_path)
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(os.fspath(beside(daemon)))
        other.listen()
        with pytest.raises(RuntimeError, match="another daemon answers there"):
            daemon.start()


def test_a_path_that_leaves_no_room_has_none(tmp_path: Path) -> None:
    """The kernel takes 107 bytes. A daemon at such a path works, over gRPC."""
    directory = Path(os.fspath(tmp_path))
    name = "s" * (107 - len(os.fsencode(directory)) - 1)
    target = f"unix://{directory / name}"
    command = [sys.executable, "-m", "stateward_sidecar", "--data-dir", str(directory / "data"), "--listen", target]
    command += ["--key-file", str(directory / "key")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert "ready" in process.stdout.readline()
            assert not (directory / (name + "~")).exists()
        finally:
            process.kill()


def test_a_link_to_the_socket_leads_to_grpc(tmp_path: Path) -> None:
    """Where only the socket's own file is seen, as in a container into which it was mounted, there is no second one."""
    with run_daemon() as daemon:
        link = tmp_path / "one.sock"
        link.symlink_to(daemon.socket)
        with Client(f"unix://{link}") as client:
            assert client.server_info().wire == "grpc"


def first_socket(daemon: Daemon) -> tuple[int, int] | None:
    """Returns which file the first socket is; None = there is none."""
    try:
        found = daemon.socket.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_ctime_ns


def seen(daemon: Daemon, until: threading.Event) -> set[tuple[bool, bool]]:
    """Looks again and again which of the two sockets are there at one moment: the first, the second."""
    found = set[tuple[bool, bool]]()
    while not until.is_set():
        first = first_socket(daemon)
        second = beside(daemon).exists()
        if first_socket(daemon) == first:
            found.add((first is not None, second))
    return found


def test_it_is_there_whenever_the_first_is() -> None:
    """A client that finds the first alone takes gRPC, and programs that have used it can be forked less often."""
    with run_daemon() as daemon:
        is_over = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            looking = pool.submit(seen, daemon, is_over)
            for _ in range(3):
                daemon.stop()
                daemon.start()
            is_over.set()
            found = looking.result()
        assert (True, True) in found
        assert (True, False) not in found
