"""The danger: a target that leads to something else: then a wait for what never comes, and advice that does not fit."""

from __future__ import annotations

import socketserver
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from stateward import ServerUnavailable, WrongTarget
from stateward._io.blocking.driving import drive
from stateward._io.target import advice, find_fault, resolve_target

Opener = Callable[..., Any]


@contextmanager
def serving(server: socketserver.BaseServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def answering(data: bytes) -> type[socketserver.BaseRequestHandler]:
    """A server that says this, whatever it is asked."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(100)
            self.request.sendall(data)

    return Handler


def refused(client: Any) -> str:
    """What the first call says; it must say it at once, with seconds left to wait for a daemon."""
    started = time.monotonic()
    with pytest.raises(WrongTarget) as found:
        client.server_info()
    assert time.monotonic() - started < 5
    assert not found.value.retryable
    assert "start one with" not in found.value.message
    return found.value.message


def test_other_servers_are_told_apart(open_client: Opener, tmp_path: Path) -> None:
    """A web server, one with TLS, and one that speaks something else, on a port or a socket."""
    web, path = HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler), f"{tmp_path}/ssh.sock"
    tls = socketserver.TCPServer(("127.0.0.1", 0), answering(b"\x15\x03\x01\x00\x02\x02\x46" + bytes(20)))
    with serving(web), serving(tls), serving(socketserver.UnixStreamServer(path, answering(b"SSH-2.0-OpenSSH\r\n"))):
        for target, told in (
            (f"127.0.0.1:{web.server_port}", "is a web server"),
            (f"127.0.0.1:{tls.server_address[1]}", "speaks TLS"),
            (path, "does not speak gRPC"),
        ):
            assert told in refused(open_client(target, connect_timeout=20))


def test_paths_without_socket(open_client: Opener, tmp_path: Path) -> None:
    """A directory and a file are named as such; a path where nothing is may still become a daemon's."""
    file = tmp_path / "file"
    file.touch()
    assert f"{tmp_path} is a directory" in refused(open_client(str(tmp_path), connect_timeout=20))
    assert f"{file} is a file" in refused(open_client(str(file), connect_timeout=20))
    with pytest.raises(ServerUnavailable, match="start one with: stateward-sidecar") as found:
        open_client(str(tmp_path / "none.sock"), connect_timeout=0.1).server_info()
    assert not isinstance(found.value, WrongTarget)


def test_a_missing_socket_is_told_at_once(open_client: Opener, tmp_path: Path) -> None:
    """Nobody waits for a socket that does not exist, unless the program says how long."""
    path = tmp_path / "none.sock"
    client, patient = open_client(str(path)), open_client(str(path), connect_timeout=10)
    assert client._session.patience_s() == 0.0
    assert patient._session.patience_s() == 10.0
    with pytest.raises(ServerUnavailable, match=r"no such socket.*stateward\.open\(\)"):
        client.server_info()
    path.touch()
    assert client._session.patience_s() == 10.0


def test_an_error_ends_at_the_users_code(open_client: Opener, tmp_path: Path) -> None:
    """The traceback has nothing of the library and nothing of gRPC; a function of the user's that the library called
    stays in it."""
    client = open_client(str(tmp_path / "none.sock"))
    for call in (client.server_info, client.thread("t").hydrate, lambda: list(client.threads())):
        with pytest.raises(ServerUnavailable) as found:
            call()
        text = "".join(traceback.format_exception(found.value))
        assert text.count("Traceback") == 1
        assert "/grpc/" not in text
        assert "/client/stateward/" not in text
    with pytest.raises(ServerUnavailable) as found:
        drive(_calling(lambda: client.thread("t").hydrate()), lambda step: step)
    names = [frame.name for frame in traceback.extract_tb(found.value.__traceback__)]
    assert names.index("drive") < len(names) - 1
    assert "<lambda>" in names


def _calling(function: Callable[[], Any]) -> Generator[Any, Any, Any]:
    yield None
    return function()


def test_socket_of_somebody_else(tmp_path: Path) -> None:
    """A socket that this user may not use names its owner, group and mode."""
    path = tmp_path / "s.sock"
    with serving(socketserver.UnixStreamServer(str(path), answering(b""))):
        path.chmod(0o660)
        said = "connect failed: addr: unix:/s.sock error: Permission denied"
        fault = find_fault(f"unix://{path}", said)
    owner = path.stat() if path.exists() else tmp_path.stat()
    assert f"may not use {path}: it belongs to user {owner.st_uid} and group" in fault
    assert "(mode 0660)" in fault


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("http://127.0.0.1:4000", "web address; give 127.0.0.1:4000"),
        ("https://agents.example/x", "web address; give unix:///path or host:port"),
        ("localhost", "has no port"),
        (":99", "has no port"),
        ("foo:1:2", "several colons"),
        ("::1:7700", "in brackets"),
        ("localhost:99999", "ports are 1 to 65535"),
    ],
)
def test_no_target_at_all(open_client: Opener, target: str, told: str) -> None:
    """A URL and an address without port are refused before anything is dialled."""
    with pytest.raises(ValueError, match=told):
        resolve_target(target, {})
    with pytest.raises(ValueError, match=told):
        open_client(target)


def test_advice_fits() -> None:
    """To start a daemon is said only where one would listen, and where nothing listens yet."""
    assert "--listen 127.0.0.1:5" in advice("127.0.0.1:5", "Connection refused")
    assert "--listen unix:///s" in advice("unix:///s", "No such file or directory")
    assert advice("far.example:5", "Domain name not found") == ""
    assert "start one" not in advice("127.0.0.1:5", "connection attempt timed out before receiving SETTINGS frame")


def test_settings_of_open_are_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that clients started is started by clients again: `stateward-sidecar` would not know its archive."""
    other, default = tmp_path / "other", tmp_path / "share/stateward"
    for data in (other, default):
        (data / "run").mkdir(parents=True)
        (data / "daemon.toml").write_text('archive = "s3://b/a"\nlisten = "unix:///near/s.sock"\n')
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    monkeypatch.delenv("STATEWARD_DATA_DIR", raising=False)
    said = "No such file or directory"
    beside, near = advice(f"unix://{other}/run/stateward.sock", said), advice("unix:///near/s.sock", said)
    assert f"with STATEWARD_DATA_DIR={other}," in beside
    assert near.startswith("; stateward.open() and commands without --target start it, with its settings in ")
    assert near.endswith(f" {default}/daemon.toml")
    assert "stateward-sidecar" not in beside
    assert "stateward-sidecar" in advice("unix:///else/s.sock", said)
