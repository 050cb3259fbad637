"""The danger: a client that pings while it is idle is cut off, or a burst of one client's calls makes another's
fail."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack

import grpc
import pytest
from tests.service.conftest import Place
from tests.service.rawhttp2 import GOAWAY, PING, RawConnection

from stateward.testing import Daemon
from stateward.v1.checkpoint_service_pb2 import SaveRequest
from stateward.v1.checkpoint_service_pb2_grpc import CheckpointServiceStub as Stub

# More than the core lets wait by itself (1,000, and 3,000 at the most), and more on each connection than it may have.
BURST, CONNECTIONS = 3200, 2


@pytest.fixture
def connection(daemon: Daemon) -> Iterator[RawConnection]:
    opened = RawConnection(daemon.socket)
    yield opened
    opened.close()


def test_keepalive_of_an_idle_connection_is_answered(connection: RawConnection) -> None:
    """Pings without any call, as Go and Node send them, are answered one by one; nobody says "too many pings"."""
    seen = []
    for _ in range(5):
        connection.ping()
        seen += connection.frames(0.55)
    assert GOAWAY not in seen
    assert seen.count(PING) == 5


def test_a_flood_of_pings_ends_its_connection(connection: RawConnection) -> None:
    """The limit for pings is still there."""
    for _ in range(10):
        connection.ping()
        if GOAWAY in connection.frames(0.05):
            return
    pytest.fail("ten pings in half a second were taken")


async def test_a_burst_of_calls_waits_for_its_turn(place: Place) -> None:
    """Of thousands of saves at once each is answered OK, and so is every call of another client meanwhile."""
    calls: Counter[str] = Counter()
    own = [("grpc.use_local_subchannel_pool", 1)]  # a connection of its own
    async with AsyncExitStack() as stack:
        channels = [grpc.aio.insecure_channel(place.daemon.target, own) for _ in range(CONNECTIONS + 1)]
        other, *many = [Stub(await stack.enter_async_context(channel)) for channel in channels]

        async def save(number: int) -> None:
            request = _addition(place, f"thread-{number % 10}", f"burst-{number}")
            calls[await _outcome(many[number % CONNECTIONS], request)] += 1

        burst = asyncio.gather(*map(save, range(BURST)))
        theirs = Counter[str]()
        while not burst.done():
            theirs[await _outcome(other, _addition(place, "other", f"other-{theirs.total()}"))] += 1
        await burst
    assert calls == {"OK": BURST}
    assert set(theirs) == {"OK"}


def _addition(place: Place, thread: str, request_id: str) -> SaveRequest:
    return place.request(thread=thread, expected_version=None, request_id=request_id)


async def _outcome(stub: Stub, request: SaveRequest) -> str:
    try:
        await stub.Save(request, timeout=60)
    except grpc.aio.AioRpcError as error:
        return f"{error.code().name}: {error.details()}"
    return "OK"
