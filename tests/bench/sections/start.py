"""From the start of the daemon's process to its ready line, and to the first state that a client has back."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterator

import grpc.aio
from tests.bench.field import Field
from tests.bench.payload import Payload
from tests.bench.peers.stateward import OPTIONS, append_request
from tests.bench.report import Section
from tests.bench.sections import Effort

from stateward import Client
from stateward.testing import Daemon
from stateward.v1 import checkpoint_service_pb2 as pb
from stateward.v1.checkpoint_service_pb2_grpc import CheckpointServiceStub

THREADS, QUICK_THREADS = 10_000, 300
BATCH, BATCHES_IN_FLIGHT = 100, 4
REPETITIONS = 5


def measure(field: Field, payload: Payload, effort: Effort) -> Iterator[Section]:
    """With nothing on disk, and with many threads; medians of several starts."""
    threads = QUICK_THREADS if effort.quick else THREADS
    section = Section("start", "start of the daemon")
    with field.own_daemon("start") as daemon:
        _add(section, "stateward, empty", daemon, "nobody", effort)
        messages = payload.appended()
        asyncio.run(_fill(daemon.target, threads, messages))
        _add(section, f"stateward, {threads:,} threads on disk", daemon, f"thread-{threads // 2}", effort)
    section.notes.append("processes start anew, but the system has the files in memory: the page cache is warm")
    yield section


def _add(section: Section, name: str, daemon: Daemon, thread: str, effort: Effort) -> None:
    times = [_start(daemon, thread) for _ in range(1 if effort.quick else REPETITIONS)]
    ready, hydrated = (statistics.median(each) for each in zip(*times, strict=True))
    section.add(name, ready_s=ready, first_hydrate_s=hydrated)


def _start(daemon: Daemon, thread: str) -> tuple[float, float]:
    """Seconds to ready and to the first answer."""
    daemon.stop()
    begin = time.perf_counter()
    daemon.start()
    ready = time.perf_counter() - begin
    with Client(daemon.target) as client:
        state = client.thread(thread).hydrate()
    answered = time.perf_counter() - begin
    assert (state.version == 1) == thread.startswith("thread-")
    return ready, answered


async def _fill(target: str, threads: int, messages: Iterator[bytes]) -> None:
    """One small version in each thread."""
    async with grpc.aio.insecure_channel(target, options=OPTIONS) as channel:
        save = CheckpointServiceStub(channel).BatchSave
        batches = (range(at, min(at + BATCH, threads)) for at in range(0, threads, BATCH))

        async def work() -> None:
            for numbers in batches:
                await save(
                    pb.BatchSaveRequest(
                        saves=[append_request(f"thread-{number}", 0, [next(messages)]) for number in numbers]
                    )
                )

        await asyncio.gather(*(work() for _ in range(BATCHES_IN_FLIGHT)))
