"""The danger: a large message whose deadline passes waits on for memory, or takes it for an answer nobody waits for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status
from tests.daemon.framed import ANSWER, ERROR, HEAD, REQUEST, FramedConnection
from tests.daemon.inside import WAIT_S, Inside, daemon_inside

from stateward.v1.checkpoint_service_pb2 import SaveRequest
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.service.local import connection

SAVE = "stateward.v1.CheckpointService.Save"
INFO = "stateward.v1.AdminService.GetServerInfo"


@contextmanager
def full(daemon: Inside) -> Iterator[None]:
    """All memory for requests is in use."""
    budget = daemon.parts.room.requests

    async def take() -> Any:
        return budget.grant(budget.total_bytes)

    async def close(share: Any) -> None:
        share.close()

    share = asyncio.run_coroutine_threadsafe(take(), daemon.loop).result(WAIT_S)
    try:
        yield
    finally:
        asyncio.run_coroutine_threadsafe(close(share), daemon.loop).result(WAIT_S)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Inside]:
    with daemon_inside(tmp_path) as inside:
        yield inside
        assert inside.parts.room.requests.used_bytes == 0


@pytest.fixture
def opened(daemon: Inside) -> Iterator[FramedConnection]:
    path = daemon.settings.listen[0].removeprefix("unix://") + "~"
    with FramedConnection(path) as made:
        yield made
        made.ask(INFO, b"", call=99)  # it goes on
        assert made.receive()[:2] == (ANSWER, 99)


def frame(opened: FramedConnection, timeout_ms: int) -> bytes:
    request = SaveRequest(thread="t", options=WriteOptions(request_id="large"), overwrite=True)
    request.state.slots["s"].data = bytes(300_000)
    body = request.SerializeToString()
    return HEAD.pack(len(body), 1, REQUEST, 0, opened.numbers[SAVE], timeout_ms) + body


def check_late(opened: FramedConnection) -> None:
    kind, call, body = opened.receive()
    status = Status.FromString(body)
    assert (kind, call) == (ERROR, 1)
    assert ErrorInfo.FromString(status.details[0].value).reason == "DEADLINE_EXCEEDED"
    assert "nothing was written" in status.message


def test_a_deadline_counts_while_a_message_waits_for_memory(daemon: Inside, opened: FramedConnection) -> None:
    """The connection goes on behind it, though there is no memory yet."""
    with full(daemon):
        opened.socket.sendall(frame(opened, 100)[:60_000])
        check_late(opened)
        opened.socket.sendall(frame(opened, 100)[60_000:])
        opened.ask(INFO, b"", call=2)
        assert opened.receive()[:2] == (ANSWER, 2)


def test_a_deadline_counts_while_a_message_comes(daemon: Inside, opened: FramedConnection) -> None:
    """Its memory is free at once."""
    opened.socket.sendall(frame(opened, 100)[:90_000])
    check_late(opened)
    assert daemon.parts.room.requests.used_bytes == 0
    opened.socket.sendall(frame(opened, 100)[90_000:])


def test_a_call_has_the_time_that_its_message_left(
    daemon: Inside, opened: FramedConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its deadline is that of its head."""
    given = list[float | None]()

    class Noted(connection.LocalCall):
        def __init__(self, peer: Any, timeout_s: float | None, *rest: Any) -> None:
            given.append(timeout_s)
            super().__init__(peer, timeout_s, *rest)

    monkeypatch.setattr(connection, "LocalCall", Noted)
    with full(daemon):
        opened.socket.sendall(frame(opened, 60_000)[:90_000])
        time.sleep(0.5)
    opened.socket.sendall(frame(opened, 60_000)[90_000:])
    assert opened.receive()[:2] == (ANSWER, 1)
    [timeout_s] = given
    assert timeout_s is not None
    assert timeout_s < 59.9
    opened.socket.sendall(frame(opened, 0))
    assert opened.receive()[:2] == (ANSWER, 1)
    assert given == [timeout_s, None]


def test_a_peer_that_goes_while_its_message_waits_is_noticed(daemon: Inside) -> None:
    """Its place is free long before there is memory."""
    with full(daemon):
        with FramedConnection(daemon.settings.listen[0].removeprefix("unix://") + "~") as made:
            made.socket.sendall(frame(made, 0)[:60_000])
        begun = time.monotonic()
        while daemon.parts.server.wires.frames_connections:
            assert time.monotonic() - begun < 15  # less than a call waits for memory
            time.sleep(0.02)
