"""The danger: a client that was idle for long finds its connection ended, and its next call fails."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.daemon.inside import daemon_inside

from stateward import AsyncClient, Client
from stateward_sidecar.service.serving import server

IDLE_MS = 100
PAUSES_S = [*(IDLE_MS / 1e3 + shift / 1e3 for shift in range(-10, 11)), 0.3]


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Of a daemon that ends idle connections soon."""
    monkeypatch.setattr(server, "IDLE_MS", IDLE_MS)
    monkeypatch.setenv("STATEWARD_WIRE", "grpc")
    with daemon_inside(tmp_path) as daemon:
        yield daemon.settings.listen[0]


def test_a_call_after_a_pause_is_made(target: str) -> None:
    """Also if the connection ends at the same moment. The client makes no call again."""
    with Client(target, retry_timeout=0) as client:
        for number, pause_s in enumerate(PAUSES_S):
            assert client.thread("t").append("m", number).version == number + 1
            time.sleep(pause_s)


async def test_a_call_of_an_asyncio_client_after_a_pause_is_made(target: str) -> None:
    """The same."""
    async with AsyncClient(target, retry_timeout=0) as client:
        for number, pause_s in enumerate(PAUSES_S):
            assert (await client.thread("t").append("m", number)).version == number + 1
            await asyncio.sleep(pause_s)
