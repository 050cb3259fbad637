"""The danger: the memory of large frames is counted wrongly, and a daemon that is well refuses all large calls."""

from __future__ import annotations

import asyncio
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status
from tests.daemon.framed import ANSWER, END, ERROR, LAST, MESSAGE, METADATA, FramedConnection, FramesGone
from tests.daemon.inside import Inside, daemon_inside

from stateward.v1.checkpoint_service_pb2 import SaveRequest
from stateward.v1.thread_service_pb2 import WatchRequest
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.errors import QueueFull
from stateward_sidecar.service.admission.memory import Budget, Share
from stateward_sidecar.service.calls.localcall import LocalCall, Peer

SAVE = "stateward.v1.CheckpointService.Save"
WATCH = "stateward.v1.ThreadService.Watch"
WRITE_BLOB = "stateward.v1.BlobService.WriteBlob"
TRACE = b"traceparent:00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Inside]:
    with daemon_inside(tmp_path) as running:
        yield running


def save(size: int, name: str) -> bytes:
    request = SaveRequest(thread=name, options=WriteOptions(request_id=name), overwrite=True)
    request.state.slots["s"].data = os.urandom(size)
    return request.SerializeToString()


def path_of(daemon: Inside) -> str:
    return daemon.settings.listen[0].removeprefix("unix://") + "~"


def is_free(daemon: Inside) -> bool:
    end = time.monotonic() + 20
    while daemon.parts.room.requests.used_bytes:
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


@pytest.mark.parametrize("size", [30_000, 70_000, 2 << 20])
def test_a_large_save_may_have_a_token_or_a_trace(daemon: Inside, size: int) -> None:
    """Metadata stand before the message, in the buffer that the event loop still looks at. All memory comes back."""
    with FramedConnection(path_of(daemon)) as connection:
        body = struct.pack("<H", len(TRACE)) + TRACE + save(size, "t")
        connection.ask(SAVE, body, 1, flags=METADATA)
        kind, _, answer = connection.receive()
        assert kind == ANSWER, Status.FromString(answer)
    assert is_free(daemon)


def test_metadata_that_cannot_be_read_give_their_memory_back(daemon: Inside) -> None:
    with FramedConnection(path_of(daemon)) as connection:
        connection.ask(SAVE, struct.pack("<H", 60_000) + save(1 << 20, "t"), 1, flags=METADATA)
        kind, _, _ = connection.receive()
        assert kind == ERROR
    assert is_free(daemon)


async def test_slow_messages_that_are_refused_at_once_are_refused_once() -> None:
    """Each refusal closes its share within the loop that refuses, and so looks for room again."""
    budget, refused = Budget(100), list[int]()
    shares = [await budget.take(20) for _ in range(5)]

    def refuse(number: int) -> None:
        refused.append(number)
        shares[number].close()

    for number in range(5):
        shares[number].slow_down(20, lambda number=number: refuse(number))
    taken = await asyncio.wait_for(budget.take(50), 5)
    assert refused == [0, 1, 2]
    taken.close()
    for number in (3, 4):
        shares[number].close()
    assert budget.used_bytes == 0


async def test_messages_that_need_more_memory_do_not_wait_for_each_other_for_ever() -> None:
    """They hold all of it. One goes on without room, the next one when it has ended; newcomers come last."""
    budget, order = Budget(100), list[str]()
    held = [await budget.take(50) for _ in range(2)]

    async def go_on(name: str, share: Share) -> None:
        await budget.enlarge(share, 30)
        order.append(name)
        await asyncio.sleep(0)
        share.close()

    async def come() -> None:
        (await budget.take(90)).close()
        order.append("newcomer")

    async with asyncio.timeout(5):
        await asyncio.gather(go_on("first", held[0]), go_on("second", held[1]), come())
    assert order == ["first", "second", "newcomer"]
    assert budget.used_bytes == 0


async def test_who_waits_for_more_memory_is_refused_in_time() -> None:
    """Something else holds the memory, and does not end."""
    budget = Budget(100)
    other, share = await budget.take(60), await budget.take(40)
    with pytest.raises(QueueFull):
        await budget.enlarge(share, 30, 0.05)
    share.close()
    assert budget.used_bytes == other.size_bytes
    other.close()
    assert budget.used_bytes == 0


def test_a_stream_that_takes_no_messages_gets_none(daemon: Inside) -> None:
    """Else they would lie in the daemon for as long as the stream lives."""
    with FramedConnection(path_of(daemon)) as connection:
        connection.ask(WATCH, WatchRequest(namespace="n", thread="-").SerializeToString(), 1, flags=LAST)
        connection.send(MESSAGE, 1, b"")
        assert last_reason(connection) == "INVALID_FIELD"


def test_a_stream_takes_no_messages_behind_its_end(daemon: Inside) -> None:
    with FramedConnection(path_of(daemon)) as connection:
        connection.ask(WRITE_BLOB, b"", 1)
        connection.send(END, 1)
        connection.send(MESSAGE, 1, b"")
        assert last_reason(connection) == "INVALID_FIELD"


async def test_empty_messages_take_memory_too() -> None:
    call = LocalCall(Peer(), None)
    for _ in range(1000):
        call.put(b"")
    assert call.waiting_bytes > 64 << 10
    for _ in range(1000):
        await call.take()
    assert call.waiting_bytes == 0


def test_a_save_that_runs_twice_has_one_end() -> None:
    """A verb runs again when its thread was given up meanwhile; its turn ended with the first commit."""
    call, ended = LocalCall(Peer(), None), list[int]()
    call.on_committed = lambda: ended.append(1)
    for _ in range(2):
        with call:
            pass
    assert ended == [1]


def last_reason(connection: FramedConnection) -> str:
    reason = ""
    try:
        while True:
            kind, _, body = connection.receive()
            if kind == ERROR:
                infos = [each for each in Status.FromString(body).details if each.Is(ErrorInfo.DESCRIPTOR)]
                reason = ErrorInfo.FromString(infos[0].value).reason
    except (FramesGone, ConnectionError):
        return reason
