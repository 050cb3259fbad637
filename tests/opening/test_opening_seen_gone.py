"""The danger: the connection by which `open` saw its daemon leads nowhere at the first call: the daemon was killed
since, the process was forked, the connection is a stranger's, or two calls take it."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest

import stateward
from stateward._io import local
from stateward.opening import keeper, record
from stateward.opening.places import find_place
from stateward.opening.record import read_record

PATIENCE_S = 60.0
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the kernel does not name who listens")


@pytest.fixture
def data(home: Path) -> Path:
    """A data directory whose daemon runs."""
    with stateward.open(data_dir=home / "data", connect_timeout=PATIENCE_S) as client:
        client.thread("t").append("lines", "first")
    return home / "data"


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Who connects to a daemon."""
    found: list[str] = []

    def connect(self: socket.socket, path: str) -> None:
        found.append("frames")
        socket.socket.connect(self, path)

    def is_live(told: record.DaemonRecord) -> bool:
        found.append("looked")
        return record.is_live(told)

    monkeypatch.setattr(local.Socket, "connect", connect, raising=False)
    monkeypatch.setattr(keeper, "is_live", is_live)
    return found


def opened(data: Path) -> stateward.Client:
    return stateward.open(data_dir=data, connect_timeout=PATIENCE_S, retry_timeout=PATIENCE_S)


def kill(data: Path) -> None:
    found = read_record(find_place(data))
    assert found is not None
    os.kill(found.pid, signal.SIGKILL)


def test_one_connection_shows_the_daemon_and_carries_the_calls(data: Path, connected: list[str]) -> None:
    with opened(data) as client:
        assert client.thread("t").hydrate().version == 1
        assert client.thread("t").hydrate().version == 1
    assert connected == ["frames"]


async def test_one_connection_of_asyncio_does_the_same(data: Path, connected: list[str]) -> None:
    async with stateward.open_async(data_dir=data) as client:
        versions = await asyncio.gather(*(client.thread("t").hydrate() for _ in range(3)))
    assert [each.version for each in versions] == [1, 1, 1]
    assert connected == ["frames"]


def test_over_grpc_it_is_looked_as_ever(data: Path, connected: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATEWARD_WIRE", "grpc")
    with opened(data) as client:
        assert client.thread("t").hydrate().version == 1
    assert connected == ["looked"]


def test_a_daemon_that_was_killed_since_is_started_again(data: Path) -> None:
    with opened(data) as client:
        kill(data)
        client.thread("t").append("lines", "second")
        assert list(client.thread("t").hydrate().logs["lines"]) == ["first", "second"]


async def test_an_asyncio_client_starts_it_again_too(data: Path) -> None:
    async with stateward.open_async(data_dir=data, connect_timeout=PATIENCE_S, retry_timeout=PATIENCE_S) as client:
        kill(data)
        await client.thread("t").append("lines", "second")
        assert list((await client.thread("t").hydrate()).logs["lines"]) == ["first", "second"]


def test_a_fork_before_the_first_call(data: Path, connected: list[str]) -> None:
    """The child has a connection of its own; the parent's goes on."""
    with opened(data) as client:
        child = os.fork()
        if not child:
            try:
                is_right = client.thread("t").hydrate().version == 1 and connected == ["frames", "frames"]
                os._exit(0 if is_right else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert client.thread("t").hydrate().version == 1
    assert connected == ["frames"]


def test_a_client_that_never_calls_leaves_no_connection(data: Path) -> None:
    client = opened(data)
    kept = client._session.settings.keeper
    assert isinstance(kept, keeper.Keeper)
    ((ahead, _),) = kept._ahead
    client.close()
    assert ahead.fileno() < 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del ahead, kept, client
        gc.collect()


def test_a_stranger_at_the_second_socket_is_greeted_by_nobody(short: Path) -> None:
    """Its process is not the one that daemon.json names: it gets no byte."""
    with socket.socket(socket.AF_UNIX) as first, socket.socket(socket.AF_UNIX) as second:
        first.bind(str(short / "s"))
        second.bind(str(short / "s~"))
        second.listen()
        assert local.connect_ahead(f"unix://{short}/s", lambda pid: pid != os.getpid()) is None
        with second.accept()[0] as came:
            assert came.recv(1) == b""
        right = local.connect_ahead(f"unix://{short}/s", lambda pid: pid == os.getpid())
        assert right is not None
        with right, second.accept()[0] as came:
            assert came.recv(1 << 10) == local.hello()
            assert right.gettimeout() is None


def test_nobody_waits_for_a_crowd(short: Path) -> None:
    """As many connections wait as the kernel keeps: `open` looks in another way, and at once."""
    with socket.socket(socket.AF_UNIX) as second:
        second.bind(str(short / "s~"))
        second.listen(0)
        crowd = []
        while (one := local.connect_ahead(f"unix://{short}/s", lambda _pid: True)) is not None:
            crowd.append(one)
            assert len(crowd) < 100
        for each in crowd:
            each.close()


def test_a_program_that_became_another_user(data: Path, connected: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon sees who calls, and not who opened."""
    with opened(data) as client:
        monkeypatch.setattr(keeper, "os", SimpleNamespace(geteuid=lambda: os.geteuid() + 1, getpid=os.getpid))
        assert client.thread("t").hydrate().version == 1
    assert connected == ["frames", "frames"]
