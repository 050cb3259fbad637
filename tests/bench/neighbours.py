"""Callers that take much of a daemon, each in a process of its own.

    python -m tests.bench.neighbours KIND TARGET SIZE

A neighbour says `ready` when it has what it needs. On SIGTERM it ends, and says how often a second it began its work.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
from tests.bench.payload import load_payload
from tests.bench.peers.stateward import OPTIONS, Stub, Whole, append_request

from stateward import AsyncClient
from stateward.v1 import admin_service_pb2 as admin
from stateward.v1 import thread_service_pb2 as thread
from stateward.v1.admin_service_pb2_grpc import AdminServiceStub
from stateward.v1.thread_service_pb2_grpc import ThreadServiceStub

STATE_BYTES = 10_000_000
VERSIONS = 5000
PRUNED = 10
WATCHES = 8
BURSTS, BURST = "saves at once", 256
"""A neighbour beside a caller on either wire (`sections/waits.py`)."""
STATES_THREAD, PRUNED_THREAD, VERIFIED_THREAD = "states", "pruned", "verified"
Work = Callable[[], object]


def main(kind: str, target: str, size: float) -> None:
    """Works until SIGTERM."""
    work, times, begun = (KINDS | {BURSTS: burst})[kind](target, size), itertools.count(), time.perf_counter()

    def end(*_: object) -> None:
        print(next(times) / (time.perf_counter() - begun), flush=True)
        os._exit(0)  # whatever call is under way

    signal.signal(signal.SIGTERM, end)
    print("ready", flush=True)
    while True:
        next(times)
        work()


def send_states(target: str, size: float) -> Work:
    """Sends the whole of a state of 10 MB, one message longer each time."""
    payload, stub = load_payload(), Whole(target)
    messages, left = list[bytes](), STATE_BYTES * size
    for message in itertools.cycle(payload.state(STATE_BYTES)):
        if left <= 0:
            break
        messages.append(message)
        left -= len(message)
    stub.fill(STATES_THREAD, messages)
    appended = payload.appended()

    def work() -> None:
        stub.step(STATES_THREAD, next(appended))()

    return work


def prune(target: str, size: float) -> Work:
    """Adds ten versions to a thread of 5,000, and prunes the ten oldest ones."""
    stub, appended = Stub(target), load_payload().appended()
    keep = _write_versions(stub, PRUNED_THREAD, size)
    prune_thread = ThreadServiceStub(stub.channel).PruneThread

    def work() -> None:
        for _ in range(PRUNED):
            stub.step(PRUNED_THREAD, next(appended))()
        prune_thread(thread.PruneThreadRequest(thread=PRUNED_THREAD, keep_latest_per_branch=keep))

    return work


def verify(target: str, size: float) -> Work:
    """Verifies the whole store, a thread of 5,000 versions in it."""
    stub = Stub(target)
    _write_versions(stub, VERIFIED_THREAD, size)
    verify_store = AdminServiceStub(stub.channel).Verify
    return lambda: list(verify_store(admin.VerifyRequest()))


def watch(target: str, size: float) -> Work:
    """Watches every thread of the namespace, eight times, with what each version changed."""
    stub = ThreadServiceStub(grpc.insecure_channel(target, options=OPTIONS))
    request = thread.WatchRequest(thread="-", include_diff=True)
    watches = [iter(stub.Watch(request)) for _ in range(WATCHES)]
    return lambda: [next(each) for each in watches]


def burst(target: str, _: float) -> Work:
    """Has 256 small saves in flight, over one connection of the wire that STATEWARD_WIRE names."""
    loop, ended, appended = asyncio.new_event_loop(), asyncio.Semaphore(0), load_payload().appended()

    async def save_on(connection: Any, thread: str) -> None:
        for version in itertools.count():
            await connection.call("Save", append_request(thread, version, [next(appended)]), None)
            ended.release()

    async def begin() -> list[asyncio.Task[None]]:
        client = AsyncClient(target)
        client._session.settings = replace(client._session.settings, streams_beside=1 << 30)  # unary calls
        await client.server_info()
        connection, mark = client._session.connected(), os.urandom(4).hex()
        return [asyncio.create_task(save_on(connection, f"burst-{mark}-{number}")) for number in range(BURST)]

    async def take() -> None:
        for _ in range(BURST):
            await ended.acquire()
        for each in tasks:
            assert not each.done(), each

    tasks = loop.run_until_complete(begin())
    loop.run_until_complete(take())  # all of them are under way
    return lambda: loop.run_until_complete(take())


KINDS: dict[str, Callable[[str, float], Work]] = {
    "sends 10 MB states": send_states,
    "prunes": prune,
    "verifies": verify,
    "watches": watch,
}


def _write_versions(stub: Stub, name: str, size: float) -> int:
    """Fills a thread with versions, one after the other. Returns how many."""
    count, appended = int(VERSIONS * size), load_payload().appended()
    stub.version[name] = 0
    for _ in range(count):
        stub.step(name, next(appended))()
    return count


class Neighbour:
    """A running neighbour. `times_a_second` is known when it has ended."""

    times_a_second = 0.0


@contextmanager
def running(kind: str, target: str, size: float) -> Iterator[Neighbour]:
    """Runs a neighbour, from when it is ready to the end of the block."""
    command = [sys.executable, "-m", "tests.bench.neighbours", kind, target, str(size)]
    root = Path(__file__).resolve().parents[2]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root, start_new_session=True)
    assert process.stdout is not None
    neighbour = Neighbour()
    try:
        if process.stdout.readline() != "ready\n":
            raise RuntimeError(f"the neighbour that {kind} ended, with {process.wait()}")
        yield neighbour
        process.terminate()
        neighbour.times_a_second = float(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
