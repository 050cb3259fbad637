"""Times a committed save and a hydrate against a bare gRPC echo on the same machine, at the same time.

    python -m tests.bench [--rounds N] [--section save|flight|hydrate|steps]

Every round measures echo and Stateward alternately, so that a noisy machine hits both; ratios travel, times do not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import grpc
import grpc.aio
from tests.bench.echo import METHOD

from stateward.testing import run_daemon
from stateward.v1 import checkpoint_service_pb2 as pb
from stateward.v1.checkpoint_service_pb2_grpc import CheckpointServiceStub

OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
SIZES = {"10 KB": 10_000, "100 KB": 100_000, "1 MB": 1_000_000}
MESSAGE_BYTES = 500


def main() -> None:
    """Runs the chosen sections and prints their tables."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=600, help="calls of each kind (default: 600)")
    parser.add_argument("--section", choices=("save", "flight", "hydrate", "steps"), help="only this one")
    options = parser.parse_args()
    sections = {"save": bench_save, "steps": bench_steps, "hydrate": bench_hydrate, "flight": bench_flight}
    with run_echo() as echo_target, run_daemon() as daemon:
        for name, section in sections.items():
            if options.section in (None, name):
                section(echo_target, daemon.target, options.rounds)


def bench_save(echo_target: str, target: str, rounds: int) -> None:
    """One message appended to states of three sizes, one call at a time."""
    echo, save = open_echo(echo_target), Saver(target)
    print("\ncommitted save of one message, one at a time          p50      p99   x echo")
    payload = save.request("floor", 0).SerializeToString()
    for name, size in SIZES.items():
        thread = f"save-{size}"
        save.fill(thread, size)
        floor, ours = alternate(rounds, lambda: echo(payload), lambda thread=thread: save.append(thread))
        print_row(f"  echo of the same request ({name})", floor, floor)
        print_row(f"  state of {name}", ours, floor)


def bench_steps(echo_target: str, target: str, rounds: int) -> None:
    """The cost of a step early and late in one thread."""
    save = Saver(target)
    print("\ncommitted save by step of one thread                    p50      p99   x step 10")
    early = [timed(lambda: save.append("steps")) for _ in range(210)][10:]
    while save.version["steps"] < 10_000:
        save.append("steps", count=1)
    late = [timed(lambda: save.append("steps")) for _ in range(200)]
    print_row("  step 10 to 210", early, early)
    print_row("  step 10,000 to 10,200", late, early)


def bench_hydrate(echo_target: str, target: str, rounds: int) -> None:
    """Reading a state back, hot, against an echo that returns as much."""
    echo, save = open_echo(echo_target), Saver(target)
    print("\nhydrate, hot                                            p50      p99   x echo")
    for name, size in SIZES.items():
        thread = f"hydrate-{size}"
        save.fill(thread, size)
        request = pb.HydrateRequest(thread=thread, max_bytes=64 << 20)
        payload = save.stub.Hydrate(request).SerializeToString()
        hydrate = save.channel.unary_unary(
            "/stateward.v1.CheckpointService/Hydrate", pb.HydrateRequest.SerializeToString
        )
        floor, ours = alternate(max(rounds // 4, 50), partial(echo, payload), partial(hydrate, request))
        print_row(f"  echo of {name}", floor, floor)
        print_row(f"  state of {name}", ours, floor)


def bench_flight(echo_target: str, target: str, rounds: int) -> None:
    """64 calls in flight, each on a thread of its own."""
    print("\n64 in flight                                     calls/s      x echo")
    floor, ours = [], []
    for _ in range(3):
        floor.append(asyncio.run(fly(echo_target, rounds * 5, echo=True)))
        ours.append(asyncio.run(fly(target, rounds * 5, echo=False)))
    print(f"  echo                                          {statistics.median(floor):8.0f}        1.00")
    ratio = statistics.median(ours) / statistics.median(floor)
    print(f"  committed save, 64 threads                    {statistics.median(ours):8.0f}      {ratio:6.2f}")


async def fly(target: str, calls: int, *, echo: bool) -> float:
    """Calls per second with 64 in flight."""
    async with grpc.aio.insecure_channel(target, options=OPTIONS) as channel:
        stub = CheckpointServiceStub(channel)
        call = channel.unary_unary(METHOD)
        marker = f"flight-{random.random()}"

        async def work(number: int) -> None:
            version = 0
            for _ in range(calls // 64):
                request = append_request(f"{marker}-{number}", version)
                if echo:
                    await call(request.SerializeToString())
                else:
                    version = (await stub.Save(request)).version

        await asyncio.gather(*(work(number) for number in range(4)))
        start = time.perf_counter()
        await asyncio.gather(*(work(number) for number in range(100, 164)))
        return (calls // 64) * 64 / (time.perf_counter() - start)


class Saver:
    """Appends messages to threads through the bare stub."""

    def __init__(self, target: str) -> None:
        self.channel = grpc.insecure_channel(target, options=OPTIONS)
        self.stub = CheckpointServiceStub(self.channel)
        self.version: dict[str, int] = {}

    def request(self, thread: str, version: int, count: int = 1) -> pb.SaveRequest:
        """A save of so many messages."""
        return append_request(thread, version, count)

    def append(self, thread: str, count: int = 1) -> None:
        """Saves."""
        answer = self.stub.Save(self.request(thread, self.version.get(thread, 0), count))
        self.version[thread] = answer.version

    def fill(self, thread: str, size_bytes: int) -> None:
        """Brings a thread to about a size."""
        if thread not in self.version:
            for _ in range(20):
                self.append(thread, count=max(size_bytes // MESSAGE_BYTES // 20, 1))


_WORDS = [f"{random.Random(seed).getrandbits(40):x}" for seed in range(2000)]
_random = random.Random(7)


def append_request(thread: str, version: int, count: int = 1) -> pb.SaveRequest:
    """A save that appends messages of about 500 bytes, which compress about as recorded ones do."""
    request = pb.SaveRequest(
        thread=thread, expected_version=version, step=version + 1, request_id=f"{_random.getrandbits(120):x}"
    )
    edit = request.diff.edits.add().append
    edit.log = "messages"
    for _ in range(count):
        text = " ".join(_random.choices(_WORDS, k=MESSAGE_BYTES // 11))
        data = json.dumps({"role": "assistant", "content": text}).encode()
        edit.entries.add(media_type="application/json", data=data)
    return request


def timed(call: Callable[[], object]) -> float:
    """Seconds a call took."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def alternate(rounds: int, one: Callable[[], object], other: Callable[[], object]) -> tuple[list[float], list[float]]:
    """Times two calls in turn."""
    for _ in range(20):
        one()
        other()
    pairs = [(timed(one), timed(other)) for _ in range(rounds)]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def print_row(name: str, times: list[float], base: list[float]) -> None:
    """One line of a table."""
    p50, p99 = statistics.median(times), statistics.quantiles(times, n=100)[98]
    print(f"{name:48} {p50 * 1000:7.2f}ms {p99 * 1000:7.2f}ms {p50 / statistics.median(base):6.2f}")


def open_echo(target: str) -> Callable[[bytes], bytes]:
    """The echo as a function."""
    return grpc.insecure_channel(target, options=OPTIONS).unary_unary(METHOD)


@contextmanager
def run_echo() -> Iterator[str]:
    """Runs the echo server."""
    with tempfile.TemporaryDirectory() as directory:
        target = f"unix://{Path(directory) / 'e.sock'}"
        command = [sys.executable, "-m", "tests.bench.echo", target]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            process.stdout.readline()
            try:
                yield target
            finally:
                process.kill()


if __name__ == "__main__":
    main()
