"""The danger: a burst of saves on one connection keeps those of others waiting, or a save that waits is never made."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status
from tests.daemon.framed import ANSWER, CANCEL, ERROR, HEAD, REQUEST, FramedConnection

from stateward.testing import Daemon, run_daemon
from stateward.v1.checkpoint_pb2 import DURABILITY_ARCHIVED
from stateward.v1.checkpoint_service_pb2 import SaveRequest, SaveResponse
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.service.calls.localcall import LocalCall, Peer
from stateward_sidecar.service.local.eager import Eager
from stateward_sidecar.service.local.passing import PASS_MAX, Passing
from stateward_sidecar.service.local.running import LocalMethod, Running

SAVE = "stateward.v1.CheckpointService.Save"
numbers = itertools.count(1)


class Held:
    """Stands for the gatherer."""

    blocks = 0

    def __enter__(self) -> None:
        self.blocks += 1

    def __exit__(self, *error: object) -> None: ...


class Starter:
    """Stands for a connection: its calls wait for their commit, or for something else."""

    def __init__(self, begun: list[tuple[str, Running]], name: str, *, commits: bool = True) -> None:
        self.begun, self.name, self.commits = begun, name, commits

    def start(self, running: Running) -> None:
        self.begun.append((self.name, running))
        if self.commits:
            running.call.__enter__()


class Broken:
    """Stands for a connection whose call cannot begin."""

    def start(self, running: Running) -> None:
        raise RuntimeError(f"call {running.number}")


def call() -> Running:
    method = LocalMethod("Save", "SaveRequest", lambda *_: None, 1 << 20, False, False, False, True)
    return Running(next(numbers), method, LocalCall(Peer(), None), 100)


@pytest.fixture
async def passing() -> Passing:
    return Passing(asyncio.get_running_loop(), Held())  # type: ignore[arg-type]


async def test_connections_take_turns(passing: Passing) -> None:
    """A thousand calls of one connection, and then one call each of ten others: these are next."""
    begun: list[tuple[str, Running]] = []
    crowd = Starter(begun, "crowd")
    for _ in range(1000):
        passing.take(crowd, call())
    assert len(begun) == PASS_MAX
    others = [Starter(begun, f"other {number}") for number in range(10)]
    for each in others:
        passing.take(each, call())
    for _, running in begun[:20]:
        running.call.__exit__()
    await asyncio.sleep(0)
    names = [name for name, _ in begun[PASS_MAX:]]
    assert len(names) == 20
    assert names[:11] == ["crowd", *(each.name for each in others)]


async def test_every_call_is_begun_once(passing: Passing) -> None:
    begun: list[tuple[str, Running]] = []
    starters = [Starter(begun, str(number)) for number in range(3)]
    calls = [call() for _ in range(300)]
    for starter, each in zip(itertools.cycle(starters), calls, strict=False):
        passing.take(starter, each)
    ended = 0
    while ended < len(begun):
        for _, running in begun[ended:]:
            running.call.__exit__()
            ended += 1
        await asyncio.sleep(0)
    assert sorted(running.number for _, running in begun) == [each.number for each in calls]


async def test_who_waits_for_something_else_keeps_nobody_waiting(passing: Passing) -> None:
    """A bucket that hangs, a disk that reads."""
    begun: list[tuple[str, Running]] = []
    hanging, well = Starter(begun, "hanging", commits=False), Starter(begun, "well")
    for _ in range(500):
        passing.take(hanging, call())
    passing.take(well, call())
    assert len(begun) == 501


async def test_a_call_that_nobody_wants_is_forgotten(passing: Passing) -> None:
    begun: list[tuple[str, Running]] = []
    crowd = Starter(begun, "crowd")
    calls = [call() for _ in range(PASS_MAX + 3)]
    for each in calls:
        passing.take(crowd, each)
    for each in calls[PASS_MAX : PASS_MAX + 2]:
        passing.drop(crowd, each)
    for each in calls[:PASS_MAX]:
        each.call.__exit__()
    await asyncio.sleep(0)
    assert [running for _, running in begun[PASS_MAX:]] == [calls[-1]]


async def test_a_call_that_cannot_begin_keeps_nobody_waiting(passing: Passing) -> None:
    """An error of the daemon's own: the loop gets it, and the line goes on, though nothing waits for a commit."""
    begun: list[tuple[str, Running]] = []
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, told: errors.append(told))
    crowd, well = Starter(begun, "crowd"), Starter(begun, "well")
    for _ in range(PASS_MAX):
        passing.take(crowd, call())
    passing.take(Broken(), call())
    passing.take(well, call())
    for _, running in begun[:PASS_MAX]:
        running.call.__exit__()
    for _ in range(3):
        await asyncio.sleep(0)
    assert [name for name, _ in begun[PASS_MAX:]] == ["well"]
    assert len(errors) == 1


async def test_a_deadline_that_passes_in_the_line_says_that_nothing_was_written() -> None:
    """And one that passes when the call has begun, that nobody knows."""
    waits, runs, loop = call(), call(), asyncio.get_running_loop()
    waits.drop = lambda running: None

    def begin() -> None:
        runs.task = Eager(asyncio.sleep(10), loop)

    loop.call_soon(begin)
    await asyncio.sleep(0)
    messages = list[str]()
    for each in (waits, runs):
        each.be_late()
        kind, body = each.ended()
        assert kind == ERROR
        messages.append(Status.FromString(body).message)
    await asyncio.sleep(0)  # it ends
    assert "nothing was written" in messages[0]
    assert "its outcome is unknown" in messages[1]


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with run_daemon() as running:
        yield running


@pytest.fixture
def opened(daemon: Daemon) -> Iterator[FramedConnection]:
    with FramedConnection(f"{daemon.socket}~") as connection:
        yield connection


def saves(connection: FramedConnection, count: int, mark: str, **head: Any) -> bytes:
    """Frames of saves to threads of their own, numbered from 1."""
    frames = list[bytes]()
    for number in range(1, count + 1):
        request = SaveRequest(thread=f"{mark}-{number}", options=WriteOptions(request_id=f"{mark}-{number}"))
        request.diff.edits.add().append.log = "log"
        request.diff.edits[0].append.entries.add(media_type="text/plain", data=b"x" * 200)
        body = request.SerializeToString()
        head_bytes = HEAD.pack(len(body), number, REQUEST, 0, connection.numbers[SAVE], head.get("timeout_ms", 0))
        frames.append(head_bytes + body)
    return b"".join(frames)


def test_a_burst_is_answered_whole(opened: FramedConnection) -> None:
    """Two hundred saves in one write."""
    opened.socket.sendall(saves(opened, 200, "burst"))
    found = {call: (kind, body) for kind, call, body in (opened.receive() for _ in range(200))}
    assert set(found) == set(range(1, 201))
    assert {kind for kind, _ in found.values()} == {ANSWER}
    assert {SaveResponse.FromString(body).version for _, body in found.values()} == {1}


def test_calls_that_wait_can_be_cancelled(daemon: Daemon, opened: FramedConnection) -> None:
    """Those that were not begun are never made; the others are answered, and so is what comes later."""
    cancels = b"".join(HEAD.pack(0, number, CANCEL, 0, 0, 0) for number in range(101, 201))
    opened.socket.sendall(saves(opened, 200, "left") + cancels)
    for mark, count in (("left", 100), ("later", 50)):
        if mark == "later":
            opened.socket.sendall(saves(opened, count, mark))
        answered = set[int]()
        while len(answered) < count:  # one that is cancelled may have been answered before
            answered |= {opened.receive()[1]} & set(range(1, count + 1))


def test_calls_that_wait_have_their_deadline(daemon: Daemon, opened: FramedConnection) -> None:
    """In time, however long the line is."""
    opened.socket.sendall(saves(opened, 250, "late", timeout_ms=1))
    found = [opened.receive() for _ in range(250)]
    refused = [Status.FromString(body) for kind, _, body in found if kind == ERROR]
    reasons = {ErrorInfo.FromString(status.details[0].value).reason for status in refused}
    assert reasons <= {"DEADLINE_EXCEEDED"}
    assert len({call for _, call, _ in found}) == 250


def test_a_connection_that_is_closed_takes_its_waiting_calls_along(daemon: Daemon) -> None:
    """Others go on, and nothing of it is left."""
    for _ in range(5):
        with FramedConnection(f"{daemon.socket}~") as leaving:
            leaving.socket.sendall(saves(leaving, 250, "gone"))
    with FramedConnection(f"{daemon.socket}~") as neighbour:
        neighbour.socket.sendall(saves(neighbour, 60, "stays"))
        assert {neighbour.receive()[0] for _ in range(60)} == {ANSWER}
    until = time.monotonic() + 20
    with daemon.client() as client:
        while client.stats().queued_writes and time.monotonic() < until:
            time.sleep(0.05)
        assert client.stats().queued_writes == 0
        assert client.stats().background_failures == 0


def test_a_burst_that_waits_for_the_archive_is_answered_whole(tmp_path: Path) -> None:
    """Saves wait for the bucket after their commit, and keep nobody waiting meanwhile."""
    with (
        run_daemon(archive=f"file://{tmp_path}/b", default_durability="archived", archive_interval="0.2") as daemon,
        FramedConnection(f"{daemon.socket}~") as connection,
    ):
        connection.socket.sendall(saves(connection, 150, "archived"))
        found = [connection.receive() for _ in range(150)]
        assert {kind for kind, _, _ in found} == {ANSWER}
        levels = {SaveResponse.FromString(body).receipt.durability for _, _, body in found}
        assert levels == {DURABILITY_ARCHIVED}
