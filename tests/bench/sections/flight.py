"""64 saves in flight, each on a thread of its own: how many are made durable in a second."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import statistics
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass

import grpc.aio
from tests.bench.echo import METHOD
from tests.bench.field import NO_LIBRARY, Field
from tests.bench.payload import Payload
from tests.bench.peers.sqlite import open_sqlite
from tests.bench.peers.stateward import ECHO, OPTIONS, STUB, append_request
from tests.bench.processes import cpu_s
from tests.bench.report import Section
from tests.bench.sections import Effort

from stateward.v1.checkpoint_service_pb2_grpc import CheckpointServiceStub

IN_FLIGHT = 64
REPETITIONS = 5
Save = Callable[[str, int, bytes], Awaitable[object]]
"""Appends a message to a thread at a version."""
OpenSave = Callable[[Field, AsyncExitStack], Awaitable[Save]]


def measure(field: Field, payload: Payload, effort: Effort) -> Iterator[Section]:
    """Several short flights of each in turn; the median counts."""
    messages, numbers = payload.appended(), itertools.count()
    calls = max(effort.rounds * 5 // IN_FLIGHT, 2)
    flights: dict[str, OpenSave] = {ECHO: _echo, STUB: save_to_stateward}
    if field.with_peers:
        flights |= {"PostgreSQL, a row per message": _postgres, "Redis, list of messages": _redis}
        flights |= {"etcd, a key per message": _etcd}
    rates: dict[str, list[Flight]] = {}
    for _ in range(2 if effort.quick else REPETITIONS):
        for name, open_save in flights.items():
            try:
                pid = _server_pid(field, name)
                flight = asyncio.run(fly(open_save, field, pid, calls, messages, f"flight-{next(numbers)}"))
                rates.setdefault(name, []).append(flight)
            except KeyError:
                rates.pop(name, None)  # its server does not run, which has been said
            except ModuleNotFoundError as missing:
                rates.pop(name, None)
                field.skipped[str(missing.name)] = NO_LIBRARY.format(missing.name)
        if field.with_peers:
            rate = _sqlite_flight(field, calls, messages, f"flight-{next(numbers)}")
            rates.setdefault("SQLite, a row per message, one connection", []).append(Flight(rate))
    section = Section("flight", f"{IN_FLIGHT} in flight, each synced before its answer")
    floor = statistics.median(each.calls_per_s for each in rates[ECHO])
    for name, each in rates.items():
        rate = statistics.median(flight.calls_per_s for flight in each)
        cpu = statistics.median(flight.cpu_us for flight in each)
        section.add(name, calls_per_s=rate, x_echo=rate / floor, server_cpu_us=cpu or None)
    section.notes += [
        "small states; asyncio clients, one connection for gRPC and 64 for PostgreSQL and Redis",
        "server cpu: by call, all its processes; counted in steps of 10 ms, too coarse for PostgreSQL's many",
    ]
    yield section


@dataclass(frozen=True)
class Flight:
    """What one flight showed."""

    calls_per_s: float
    cpu_us: float = 0.0
    """CPU of the server by call; 0 = not known."""


async def fly(
    open_save: OpenSave, field: Field, server_pid: int, calls: int, messages: Iterator[bytes], marker: str
) -> Flight:
    """Makes so many calls on each of 64 threads at once."""
    async with AsyncExitStack() as stack:
        save = await open_save(field, stack)

        async def work(thread: str, count: int) -> None:
            for version in range(count):
                await save(thread, version, next(messages))

        await asyncio.gather(*(work(f"{marker}-warm-{number}", 1) for number in range(IN_FLIGHT)))
        start, start_cpu = time.perf_counter(), cpu_s(server_pid)
        await asyncio.gather(*(work(f"{marker}-{number}", calls) for number in range(IN_FLIGHT)))
        seconds, cpu = time.perf_counter() - start, cpu_s(server_pid) - start_cpu
        return Flight(calls * IN_FLIGHT / seconds, cpu / (calls * IN_FLIGHT) * 1e6)


def _server_pid(field: Field, name: str) -> int:
    """The first process of a contender's server. Raises KeyError if it does not run."""
    ours = {ECHO: field.echo.pid, STUB: field.daemon.pid}
    return ours[name] if name in ours else field.servers[name.partition(",")[0]].pid


async def _echo(field: Field, stack: AsyncExitStack) -> Save:
    channel = await stack.enter_async_context(grpc.aio.insecure_channel(field.echo.address, options=OPTIONS))
    echo = channel.unary_unary(METHOD)
    return lambda thread, version, message: echo(append_request(thread, version, [message]).SerializeToString())


async def save_to_stateward(field: Field, stack: AsyncExitStack) -> Save:
    channel = await stack.enter_async_context(grpc.aio.insecure_channel(field.daemon.target, options=OPTIONS))
    save = CheckpointServiceStub(channel).Save
    return lambda thread, version, message: save(append_request(thread, version, [message]))


async def _etcd(field: Field, stack: AsyncExitStack) -> Save:
    from tests.bench.peers.etcd import PUT, put_request

    address = field.servers["etcd"].address
    put = (await stack.enter_async_context(grpc.aio.insecure_channel(address, options=OPTIONS))).unary_unary(PUT)
    return lambda thread, version, message: put(put_request(f"{thread}/{version}", message))


async def _postgres(field: Field, stack: AsyncExitStack) -> Save:
    address = field.servers["PostgreSQL"].address
    import psycopg

    columns = "thread text, place bigint, message bytea, PRIMARY KEY (thread, place)"
    connect = psycopg.AsyncConnection.connect
    free: asyncio.Queue = asyncio.Queue()
    for number in range(IN_FLIGHT):
        connection = await connect(address, autocommit=True, prepare_threshold=0)
        await stack.enter_async_context(connection)
        if number == 0:
            await connection.execute(f"CREATE TABLE IF NOT EXISTS flights ({columns})")
        free.put_nowait(connection)

    async def save(thread: str, version: int, message: bytes) -> None:
        connection = await free.get()
        await connection.execute("INSERT INTO flights VALUES (%s, %s, %s)", (thread, version, message))
        free.put_nowait(connection)

    return save


async def _redis(field: Field, stack: AsyncExitStack) -> Save:
    address = field.servers["Redis"].address
    import redis.asyncio

    client = redis.asyncio.Redis(unix_socket_path=address, max_connections=IN_FLIGHT)
    stack.push_async_callback(client.aclose)
    return lambda thread, version, message: client.rpush(f"flight:{thread}", message)


def _sqlite_flight(field: Field, calls: int, messages: Iterator[bytes], marker: str) -> float:
    """64 threads on one connection with a lock, as LangGraph's saver does it; many connections wait for each other."""
    connection, lock = open_sqlite(field.work / "flight.sqlite"), threading.Lock()
    connection.execute("CREATE TABLE IF NOT EXISTS flights (thread TEXT, place INTEGER, message BLOB)")

    def work(number: int) -> None:
        for version in range(calls):
            with lock:
                _insert(connection, f"{marker}-{number}", version, next(messages))

    with ThreadPoolExecutor(IN_FLIGHT) as pool:
        start = time.perf_counter()
        list(pool.map(work, range(IN_FLIGHT)))
        rate = calls * IN_FLIGHT / (time.perf_counter() - start)
    connection.close()
    return rate


def _insert(connection: sqlite3.Connection, thread: str, version: int, message: bytes) -> None:
    connection.execute("INSERT INTO flights VALUES (?, ?, ?)", (thread, version, message))
