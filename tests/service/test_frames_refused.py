"""The danger: many connects at once hold the calls of others up, fill the log, or take the places of other users."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest
from tests.daemon.framed import FramedConnection, FramesGone, FramesRefused
from tests.daemon.inside import WAIT_S, Inside, daemon_inside

from stateward_sidecar.service.calls.localcall import Peer
from stateward_sidecar.service.local import listener


def frames_of(daemon: Inside) -> str:
    return daemon.settings.listen[0].removeprefix("unix://") + "~"


def refused(path: str, times: int) -> int:
    count = 0
    for _ in range(times):
        try:
            FramedConnection(path).close()
        except (FramesRefused, FramesGone, ConnectionError):
            count += 1
    return count


def test_a_storm_of_connects_is_taken_a_few_at_a_time(tmp_path: Path) -> None:
    """Three hundred that have come together are accepted in many turns of the loop, and none is sent away."""
    with daemon_inside(tmp_path) as daemon, ExitStack() as stack:
        server = daemon.parts.server
        entered, is_over, may_go = list[int](), threading.Event(), threading.Event()

        async def watch() -> None:
            may_go.wait(WAIT_S)  # nothing is accepted meanwhile
            while not is_over.is_set():
                entered.append(server.wires.frames_connections)
                await asyncio.sleep(0)

        watching = asyncio.run_coroutine_threadsafe(watch(), daemon.loop)
        for _ in range(300):
            made = stack.enter_context(socket.socket(socket.AF_UNIX))
            made.setblocking(False)
            made.connect(frames_of(daemon))  # BlockingIOError if there is no room
        may_go.set()
        with FramedConnection(frames_of(daemon)):
            is_over.set()
        watching.result(WAIT_S)
        assert entered[-1] >= 300
        most = max(after - before for before, after in pairwise(entered))
        assert most <= listener.TURN_CONNECTIONS


def test_a_process_that_is_refused_is_logged_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often it tries; and again after a minute."""
    lines = list[dict[str, object]]()
    monkeypatch.setattr(listener.log, "warning", lambda what, **fields: lines.append(fields))
    monkeypatch.setattr(listener, "OF_ONE_PROCESS_MAX", 2)
    with daemon_inside(tmp_path) as daemon:
        lines.clear()
        path = frames_of(daemon)
        with FramedConnection(path), FramedConnection(path):
            assert refused(path, 20) == 20
            assert len(lines) == 1
            monkeypatch.setattr(listener, "LOGGED_S", 0.0)
            assert refused(path, 3) == 3
            assert len(lines) == 4
            assert lines[0]["connections"] == 2


def test_processes_of_other_containers_are_counted_by_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have no number here. So one user's many leave the places of another user alone."""
    user = 1000
    monkeypatch.setattr(listener, "peer_of", lambda made: Peer(0, user, 0))
    monkeypatch.setattr(listener, "OF_ONE_PROCESS_MAX", 2)
    with daemon_inside(tmp_path) as daemon:
        path = frames_of(daemon)
        with FramedConnection(path), FramedConnection(path):
            assert refused(path, 2) == 2
            user = 2000
            assert refused(path, 2) == 0
