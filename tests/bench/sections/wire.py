"""Frames and gRPC, with one daemon, in turn: what the wire of the same host gains."""

from __future__ import annotations

import asyncio
import itertools
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace

import grpc
from tests.bench.echo import METHOD
from tests.bench.field import Field
from tests.bench.neighbours import BURST
from tests.bench.payload import Payload
from tests.bench.peers.stateward import OPTIONS, append_request
from tests.bench.processes import cpu_s
from tests.bench.report import Section
from tests.bench.rounds import Prepare, p50_ms, p99_ms, timed
from tests.bench.sections import Effort, waits
from tests.bench.wires import WIRES, connect, forced, name_of, raw_saves

from stateward import AsyncClient, Client
from stateward.v1.checkpoint_service_pb2 import SaveRequest

LONE, CLIENT, HYDRATE, FLIGHT, PROCESSES = (
    "lone save, raw", "Client.save", "hot hydrate", "64 in flight", "16 processes"
)  # fmt: skip
IN_FLIGHT, AGENTS, THREADS = 64, 16, 32
BLOCK, REPETITIONS, AGENTS_S = 20, 7, 3.0
QUICK_AGENTS = 2  # each is an interpreter that imports the client


def measure(field: Field, payload: Payload, effort: Effort) -> Iterator[Section]:
    """One table. Each row of frames has its ratio to gRPC's."""
    section = Section("wire", "frames beside gRPC, the same daemon, in turn")
    with field.own_daemon("wire") as daemon:
        own = replace(field, daemon=daemon)
        _one_at_a_time(section, own, payload.appended(), effort)
        _in_flight(section, own, payload.appended(), effort)
        _many_processes(section, own, effort)
        waits.add_beside_burst(section, own, payload.appended(), effort)
    waits.add_archived(section, field, payload.appended(), effort)
    section.notes += [
        "x gRPC: of p50, of calls a second, and of the daemon's CPU by call (counted in steps of 10 ms)",
        "one at a time: in blocks of 20 calls; x echo: against a gRPC echo of the same request",
        "64 in flight: asyncio, one connection, unary calls; 16 processes: a blocking client each, small saves",
        f"beside {BURST}: a caller with pauses; another process has so many saves in flight over the same wire",
        "ARCHIVED: in turn, each save is answered when SeaweedFS on this machine has it",
    ]
    yield section


def _one_at_a_time(section: Section, field: Field, messages: Iterator[bytes], effort: Effort) -> None:
    target, versions = field.daemon.target, dict[str, int]()
    with ExitStack() as stack:
        echo_channel = stack.enter_context(grpc.insecure_channel(field.echo.address, options=OPTIONS))
        echo, saves = echo_channel.unary_unary(METHOD), raw_saves(stack, target)
        clients = {wire: connect(stack, target, wire) for wire in WIRES}

        def raw(name: str, call: Callable[[SaveRequest], object]) -> Prepare:
            turn = itertools.cycle(range(THREADS))

            def prepare() -> Callable[[], object]:
                thread = f"{name}-{next(turn)}"
                version = versions.get(thread, 0)
                versions[thread] = version + 1
                request = append_request(thread, version, [next(messages)])
                return lambda: call(request)

            return prepare

        prepare = {
            f"echo {LONE}": raw("echo", lambda request: echo(request.SerializeToString())),
            **{f"{wire} {LONE}": raw(wire, saves[wire]) for wire in WIRES},
        }
        for wire, client in clients.items():
            prepare[f"{wire} {CLIENT}"] = _saving(client, messages)
            prepare[f"{wire} {HYDRATE}"] = _reading(client, messages)
        times = _in_blocks(prepare, effort.rounds)
    for case in (LONE, CLIENT, HYDRATE):
        by_grpc = p50_ms(times[f"gRPC {case}"])
        for wire in WIRES:
            each = times[f"{wire} {case}"]
            further = {"x_echo": p50_ms(each) / p50_ms(times[f"echo {LONE}"])} if case == LONE else {}
            section.add(
                name_of(wire), case, p50_ms=p50_ms(each), p99_ms=p99_ms(each), x_grpc=p50_ms(each) / by_grpc, **further
            )


def _in_blocks(prepare: dict[str, Prepare], rounds: int) -> dict[str, list[float]]:
    """Seconds of each call. Each has its turn for some calls one after the other, as an agent's step makes them."""
    dice, names = random.Random(5), list(prepare)
    times: dict[str, list[float]] = {name: [] for name in names}
    for number in range(-2, max(rounds // BLOCK, 1)):
        dice.shuffle(names)
        for name in names:
            block = [timed(prepare[name]()) for _ in range(BLOCK)]
            if number >= 0:
                times[name] += block
    return times


def _saving(client: Client, messages: Iterator[bytes]) -> Prepare:
    threads = [client.thread(f"saved-{number}") for number in range(THREADS)]
    states = [thread.hydrate() for thread in threads]
    turn = itertools.cycle(range(THREADS))

    def prepare() -> Callable[[], object]:
        number = next(turn)
        states[number].logs["messages"].append(next(messages))
        return lambda: threads[number].save(states[number])

    return prepare


def _reading(client: Client, messages: Iterator[bytes]) -> Prepare:
    thread = client.thread("read")
    for _ in range(5):
        thread.append("messages", next(messages))
    return lambda: thread.hydrate


def _in_flight(section: Section, field: Field, messages: Iterator[bytes], effort: Effort) -> None:
    calls, numbers = max(effort.rounds * 5 // IN_FLIGHT, 2), itertools.count()
    found: dict[str, list[tuple[float, float]]] = {wire: [] for wire in WIRES}
    dice, names = random.Random(7), list(WIRES)
    for _ in range(2 if effort.quick else REPETITIONS):
        dice.shuffle(names)
        for wire in names:
            with forced(wire):
                found[wire].append(asyncio.run(_fly(field, calls, messages, f"{wire}-{next(numbers)}")))
    _add_rates(section, FLIGHT, found)


def _add_rates(section: Section, case: str, found: dict[str, list[tuple[float, float]]]) -> None:
    medians = {wire: [statistics.median(each) for each in zip(*found[wire], strict=True)] for wire in WIRES}
    for wire, (rate, cpu_us) in medians.items():
        by_grpc, grpc_cpu_us = medians["gRPC"]
        cpu = {"server_cpu_us": cpu_us, "cpu_x_grpc": cpu_us / grpc_cpu_us} if cpu_us and grpc_cpu_us else {}
        section.add(name_of(wire), case, calls_per_s=rate, x_grpc=rate / by_grpc, **cpu)


async def _fly(field: Field, calls: int, messages: Iterator[bytes], mark: str) -> tuple[float, float]:
    """Calls a second, and the daemon's CPU by call, in microseconds."""
    async with AsyncClient(field.daemon.target) as client:
        client._session.settings = replace(client._session.settings, streams_beside=1 << 30)  # unary calls
        connection = client._session.connected()

        async def work(thread: str, count: int) -> None:
            for version in range(count):
                await connection.call("Save", append_request(thread, version, [next(messages)]), None)

        await asyncio.gather(*(work(f"{mark}-warm-{number}", 1) for number in range(IN_FLIGHT)))
        start, start_cpu = time.perf_counter(), cpu_s(field.daemon.pid)
        await asyncio.gather(*(work(f"{mark}-{number}", calls) for number in range(IN_FLIGHT)))
        count = calls * IN_FLIGHT
        return count / (time.perf_counter() - start), (cpu_s(field.daemon.pid) - start_cpu) / count * 1e6


AGENT = """
import sys, time
from stateward import Client
with Client(sys.argv[1]) as client:
    thread = client.thread(sys.argv[2])
    state = thread.hydrate()
    thread.save(state)
    print("ready", flush=True)
    sys.stdin.readline()
    count, end = 0, time.monotonic() + float(sys.argv[3])
    while time.monotonic() < end:
        state.logs["messages"].append("x" * 300)
        thread.save(state)
        count += 1
    print(count, flush=True)
"""


def _many_processes(section: Section, field: Field, effort: Effort) -> None:
    found: dict[str, list[tuple[float, float]]] = {wire: [] for wire in WIRES}
    agents, seconds = (QUICK_AGENTS, 0.5) if effort.quick else (AGENTS, AGENTS_S)
    numbers = itertools.count()
    for _ in range(1 if effort.quick else 3):
        for wire in WIRES:
            with forced(wire):
                found[wire].append(_run_agents(field, f"{wire}-{next(numbers)}", seconds, agents))
    _add_rates(section, PROCESSES, found)


def _run_agents(field: Field, mark: str, seconds: float, count_of_agents: int) -> tuple[float, float]:
    commands = (
        [sys.executable, "-c", AGENT, field.daemon.target, f"{mark}-{number}", str(seconds)]
        for number in range(count_of_agents)
    )
    with ExitStack() as stack:
        agents = [
            stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            for command in commands
        ]
        for each in agents:
            assert each.stdout is not None
            assert each.stdout.readline() == "ready\n"
        start_cpu = cpu_s(field.daemon.pid)
        for each in agents:
            assert each.stdin is not None
            each.stdin.write("\n")
            each.stdin.flush()
        count = sum(int(each.communicate()[0]) for each in agents)
    return count / seconds, (cpu_s(field.daemon.pid) - start_cpu) / max(count, 1) * 1e6
