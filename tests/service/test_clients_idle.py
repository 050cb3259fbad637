"""The danger: a client that was idle for long finds its connection ended, and its next call fails."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from tests.daemon.inside import daemon_inside
from tests.daemon.process import eventually
from tests.start import stranger

from stateward import AsyncClient, Client
from stateward_sidecar.service.serving import server

IDLE_MS = 100
PAUSES_S = [IDLE_MS / 1e3 + shift / 1e3 for shift in range(-10, 11)]


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Of a daemon that ends idle connections soon."""
    monkeypatch.setattr(server, "IDLE_MS", IDLE_MS)
    monkeypatch.setenv("STATEWARD_WIRE", "grpc")
    with daemon_inside(tmp_path) as daemon:
        yield daemon.settings.listen[0]


def test_a_call_after_a_pause_is_made(target: str) -> None:
    """Over a new connection, at once: the client makes no call again. It has seen the end of the former one."""
    with Client(target, retry_timeout=0) as client:
        for number in range(3):
            assert client.thread("t").append("m", number).version == number + 1
            channel = client._session.connected().over_grpc().channel.opened
            states = list[grpc.ChannelConnectivity]()
            note = states.append
            channel.subscribe(note)
            eventually(lambda states=states: states and states[-1] is not grpc.ChannelConnectivity.READY)
            channel.unsubscribe(note)


async def test_a_call_of_an_asyncio_client_after_a_pause_is_made(target: str) -> None:
    """The same."""
    async with AsyncClient(target, retry_timeout=0) as client:
        for number in range(3):
            assert (await client.thread("t").append("m", number)).version == number + 1
            channel = client._session.connected().over_grpc()._channel
            async with asyncio.timeout(60):
                while (state := channel.get_state()) is grpc.ChannelConnectivity.READY:
                    await channel.wait_for_state_change(state)


def test_a_call_while_the_connection_ends_is_made(target: str) -> None:
    """Once: a call that the daemon cannot have seen is made again."""
    with Client(target) as client:
        for number, pause_s in enumerate(PAUSES_S):
            assert client.thread("t").append("m", number).version == number + 1
            time.sleep(pause_s)


async def test_a_call_of_an_asyncio_client_while_the_connection_ends_is_made(target: str) -> None:
    """The same."""
    async with AsyncClient(target) as client:
        for number, pause_s in enumerate(PAUSES_S):
            assert (await client.thread("t").append("m", number)).version == number + 1
            await asyncio.sleep(pause_s)


@pytest.mark.parametrize("has_tokens", [True, False])
def test_a_stranger_without_calls_keeps_no_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_tokens: bool
) -> None:
    """It has greeted the daemon as a client does. Without tokens nobody is a stranger, and clients may be idle."""
    monkeypatch.setattr(server, "STRANGERS_IDLE_MS", IDLE_MS)
    tokens = tmp_path / "tokens"
    tokens.touch(mode=0o600)
    tokens.write_text("g" * 40)
    with daemon_inside(tmp_path, **({"token_file": str(tokens)} if has_tokens else {})) as daemon:
        connection = stranger.Connection(daemon.settings.listen[0].removeprefix("unix://"))
        end = time.monotonic() + (20 if has_tokens else 10 * IDLE_MS / 1e3)
        while connection.is_open and time.monotonic() < end:
            connection.receive(wait=False)
            time.sleep(0.01)
        connection.close()
        assert connection.is_open is not has_tokens


def test_all_listeners_together_leave_files_to_the_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of the files is for connections of gRPC, however many listeners share it."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    assert [server.connections_max(listeners) for listeners in (1, 2, 4)] == [256, 128, 64]
