"""The danger: the last answers of a slow reader are thrown away, or the calls of a peer that has gone go on."""

from __future__ import annotations

import hashlib
import os
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.daemon.framed import ANSWER, HEAD, LAST, REQUEST, FramedConnection
from tests.daemon.inside import Inside, daemon_inside

from stateward import Client
from stateward.v1.blob_service_pb2 import ReadBlobRequest
from stateward.v1.lease_service_pb2 import AcquireLeaseRequest
from stateward_sidecar.service.local import connection, outbox

READ_BLOB = "stateward.v1.BlobService.ReadBlob"
ACQUIRE = "stateward.v1.LeaseService.AcquireLease"


def frames_of(daemon: Inside) -> str:
    return daemon.settings.listen[0].removeprefix("unix://") + "~"


def wait_for_no_calls(daemon: Inside) -> None:
    until = time.monotonic() + 30
    while daemon.parts.server.open_calls and time.monotonic() < until:
        time.sleep(0.02)
    assert daemon.parts.server.open_calls == 0


def unread(stack: ExitStack, daemon: Inside) -> list[FramedConnection]:
    """Streams of which nobody takes anything. Of some the kernel takes all but the end."""
    opened = []
    with Client(daemon.settings.listen[0]) as client:
        thread = client.thread("t")
        thread.save(thread.hydrate())
        for size in range(180_000, 330_000, 4096):
            data = os.urandom(size)
            thread.blobs.write(data)
            request = ReadBlobRequest(thread="t")
            request.blob.sha256 = hashlib.sha256(data).digest()
            made = stack.enter_context(FramedConnection(frames_of(daemon)))
            made.ask(READ_BLOB, request.SerializeToString(), flags=LAST)
            opened.append(made)
    return opened


def test_a_slow_reader_gets_the_end_of_its_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it does something else first, within a minute."""
    monkeypatch.setattr(connection, "LINGER_S", 0.1)
    with daemon_inside(tmp_path) as daemon, ExitStack() as stack:
        opened = unread(stack, daemon)
        time.sleep(1)
        for made in opened:
            while made.receive()[0] != ANSWER:
                pass
        until = time.monotonic() + 30
        while daemon.parts.server.wires.frames_connections and time.monotonic() < until:
            time.sleep(0.02)
        assert daemon.parts.server.wires.frames_connections == 0


def test_who_never_reads_the_end_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When it has taken nothing for as long as any peer may. A stream that is not over may wait for its reader."""
    monkeypatch.setattr(connection, "LINGER_S", 0.1)
    monkeypatch.setattr(outbox, "OWED_S", 0.3)
    with daemon_inside(tmp_path) as daemon, ExitStack() as stack:
        opened = unread(stack, daemon)
        server = daemon.parts.server
        time.sleep(1)  # all have come to where they wait
        until = time.monotonic() + 60
        while server.wires.frames_connections != server.open_calls and time.monotonic() < until:
            time.sleep(0.02)
        assert server.wires.frames_connections == server.open_calls < len(opened)


def acquire(name: str, wait_s: int) -> bytes:
    request = AcquireLeaseRequest(thread="t")
    request.options.request_id = request.holder.name = request.holder.incarnation = name
    request.term.FromSeconds(600)
    request.wait.FromSeconds(wait_s)
    return request.SerializeToString()


@pytest.mark.parametrize("count", [255, 256, 300])
def test_a_peer_that_goes_with_all_its_calls_under_way_is_noticed(tmp_path: Path, count: int) -> None:
    """Though its connection is not read, as it has no room for further calls."""
    with daemon_inside(tmp_path) as daemon, FramedConnection(frames_of(daemon)) as holder:
        holder.ask(ACQUIRE, acquire("holder", 0))
        assert holder.receive()[0] == ANSWER
        with FramedConnection(frames_of(daemon)) as made:
            bodies = [acquire(f"{number}", 600) for number in range(count)]
            method = made.numbers[ACQUIRE]
            made.socket.sendall(b"".join(
                HEAD.pack(len(body), call, REQUEST, 0, method, 0) + body for call, body in enumerate(bodies, 1)
            ))  # fmt: skip
            until = time.monotonic() + 30
            while daemon.parts.server.open_calls < min(count, connection.CALLS_MAX) and time.monotonic() < until:
                time.sleep(0.02)
            assert daemon.parts.server.open_calls == min(count, connection.CALLS_MAX)
        wait_for_no_calls(daemon)
