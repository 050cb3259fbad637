"""The danger: a connection of frames breaks, or a signal comes, in the middle of a call: it is lost or made twice, or
its answer goes to the next one."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from stateward import Client
from stateward._io import local as common
from stateward._io.blocking import local
from stateward.testing import Daemon

pytestmark = pytest.mark.usefixtures("chosen_wire")


class Relay:
    """Stands between a client and a daemon's second socket. Its next connection breaks after so many bytes."""

    def __init__(self, directory: Path, daemon: Daemon) -> None:
        self.target, self._daemon = f"unix://{directory}/r", f"{daemon.socket}~"
        self.breaks = list[tuple[str, int]]()
        """Of the connections to come: which way, and after how many bytes."""
        self.broken = 0
        (directory / "r").symlink_to(daemon.socket)  # gRPC has the call of a greeting that breaks
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(f"{directory}/r~")
        self._listening.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._daemon)
                which, after = self.breaks.pop(0) if self.breaks else ("", 0)
                for name, source, sink in (("asked", client, server), ("answered", server, client)):
                    limit = after if name == which else None
                    threading.Thread(target=self._pass_on, args=(source, sink, limit), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, limit: int | None) -> None:
        left = limit
        with suppress(OSError):
            while left is None or left > 0:
                data = source.recv(65536 if left is None else min(left, 65536))
                if not data:
                    break
                sink.sendall(data)
                left = None if left is None else left - len(data)
            else:
                self.broken += 1
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


@pytest.fixture
def relay(tmp_path: Path, real_daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> Iterator[Relay]:
    monkeypatch.setattr(common, "LOOK_S", 0.0)  # the next connection speaks frames again
    made = Relay(tmp_path, real_daemon)
    yield made
    made.close()


@pytest.mark.parametrize("after", [1, 17, 400])
@pytest.mark.parametrize("which", ["asked", "answered"])
def test_a_call_is_made_once_whenever_its_connection_breaks(
    relay: Relay, open_client: Any, name: str, which: str, after: int
) -> None:
    """In the greeting, in the request, in the answer: it is repeated with the same request id."""
    client = open_client(relay.target, namespace=name)
    for number in range(1, 6):
        for at in (after, 3000 + after, 4000 + after):
            relay.breaks.append((which, at))
        versions = [client.thread("t").append("log", entry).version for entry in range(number * 3 - 2, number * 3 + 1)]
        assert versions == [number * 3 - 2, number * 3 - 1, number * 3]
    relay.breaks.clear()
    assert list(client.thread("t").hydrate().logs["log"]) == list(range(1, 16))
    assert relay.broken > 0


@contextmanager
def interrupted(monkeypatch: pytest.MonkeyPatch, method: str, *, before: bool) -> Iterator[list[int]]:
    """Ctrl-C comes once, right before or after what a connection does."""
    real, times = getattr(local._Wire, method), list[int]()

    def once(self: Any, *arguments: Any) -> Any:
        times.append(1)
        if len(times) == 1 and before:
            os.kill(os.getpid(), signal.SIGINT)
        found = real(self, *arguments)
        if len(times) == 1 and not before:
            os.kill(os.getpid(), signal.SIGINT)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(local._Wire, method, once)
        yield times


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("method", ["connect", "sendall", "receive", "is_quiet"])
def test_a_signal_in_a_call_takes_no_other_call_along(
    real_daemon: Daemon, monkeypatch: pytest.MonkeyPatch, name: str, method: str, before: bool
) -> None:
    """KeyboardInterrupt reaches the program; the next call gets its own answer."""
    with Client(real_daemon.target, namespace=name) as client:
        if method == "is_quiet":
            client.server_info()  # so that there is a connection to look at
        with interrupted(monkeypatch, method, before=before), pytest.raises(KeyboardInterrupt):
            client.thread("t").append("log", 0)
        made = client.thread("t").hydrate().version
        for entry in range(1, 5):
            assert client.thread("u").append("log", entry).version == entry
        assert client.server_info().wire == "frames"
        assert client.thread("t").append("log", 9).version == made + 1


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("method", ["connect", "sendall", "receive_one"])
def test_a_signal_in_a_stream_ends_it_only(
    real_daemon: Daemon, monkeypatch: pytest.MonkeyPatch, name: str, method: str, before: bool
) -> None:
    with Client(real_daemon.target, namespace=name) as client:
        thread = client.thread("t")
        thread.append("log", 1)
        with interrupted(monkeypatch, method, before=before), pytest.raises(KeyboardInterrupt):
            list(thread.history())
        assert len(list(thread.history())) == 1
        with thread.writer() as writer:
            state = thread.hydrate()
            state.logs["log"].append(2)
            writer.save(state)
        assert list(thread.hydrate().logs["log"]) == [1, 2]
