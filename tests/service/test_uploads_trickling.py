"""The danger: uploads that bring a byte now and then take all places of WriteBlob, and nobody else can write a blob."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import pytest
from tests.daemon.inside import WAIT_S, daemon_inside

from stateward import Client
from stateward.v1.blob_service_pb2 import BlobBegin, WriteBlobRequest
from stateward.v1.thread_pb2 import ThreadOptions
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.errors import QueueFull
from stateward_sidecar.service.admission import streams
from stateward_sidecar.service.admission.streams import LEAST_BYTES_PER_S, SLOW_FROM_S, Places
from stateward_sidecar.service.api import blobs


def test_a_save_with_a_blob_passes_uploads_that_trickle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All places are taken by uploads of a byte now and then. The slowest one is refused, and the save goes on."""
    monkeypatch.setattr(streams, "SLOW_FROM_S", 0.1)
    over = threading.Event()

    def trickle(number: int) -> Iterator[WriteBlobRequest]:
        sha256 = hashlib.sha256(bytes([number])).digest()
        begin = BlobBegin(
            thread=f"slow-{number}", sha256=sha256, size_bytes=10_000_000, options=WriteOptions(create=ThreadOptions())
        )
        yield WriteBlobRequest(begin=begin)
        while not over.wait(0.2):
            yield WriteBlobRequest(data=b"x")

    with daemon_inside(tmp_path) as daemon:
        held = [daemon.wire.blobs.WriteBlob.future(trickle(number)) for number in range(blobs.WRITES_MAX)]
        end = time.monotonic() + WAIT_S
        while daemon.parts.server.open_calls < len(held) and time.monotonic() < end:
            time.sleep(0.05)
        with Client(daemon.wire.target, retry_timeout=WAIT_S) as client:
            for name in ("first", "second"):
                thread = client.thread(name)
                state = thread.hydrate()
                state.slots["file"] = os.urandom(2_000_000)
                assert thread.save(state).version == 1
        over.set()
        codes = [upload.exception().code() for upload in held]
        assert set(codes) <= {grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INVALID_ARGUMENT}
        assert grpc.StatusCode.RESOURCE_EXHAUSTED in codes


class Bytes:
    """An upload of which each message takes a time of a clock that the test owns."""

    def __init__(self, seconds: float, size: int) -> None:
        self.now, self._seconds, self._size = 0.0, seconds, size

    async def __aiter__(self) -> AsyncIterator[WriteBlobRequest]:
        for _ in range(20):
            self.now += self._seconds
            yield WriteBlobRequest(data=bytes(self._size))


@pytest.mark.parametrize(("size", "gives_way"), [(1, True), (LEAST_BYTES_PER_S, False)])
async def test_only_slow_uploads_give_way(size: int, gives_way: bool) -> None:
    """An upload that brings enough bytes a second keeps its place, however long it takes."""
    bytes_ = Bytes(SLOW_FROM_S / 4, size)
    places = Places(1, "tests run", lambda: bytes_.now)
    refused = False
    with places.enter() as place:
        waiting = place.watch(aiter(bytes_))
        for _ in range(8):
            await anext(waiting)
        place._since_s = bytes_.now  # it waits for more
        place._task = None
        try:
            with places.enter():
                refused = place._is_refused
        except QueueFull:
            refused = False
    assert refused == gives_way


async def test_an_upload_that_the_daemon_works_on_is_not_slow() -> None:
    """The time that the daemon takes for its disk does not count."""
    now = 0.0
    places = Places(1, "tests run", lambda: now)
    with places.enter():
        now = 1000.0
        with pytest.raises(QueueFull), places.enter():
            """Not reached."""
