"""Bytes on disk and on the wire of one long run, saved step by step. Every step stays readable, as far as a store can.

On disk is what the data take when all is written: without PostgreSQL's and etcd's write-ahead logs, which have a fixed
size and are used again, and after SQLite's has been taken into its file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from tests.bench import servers
from tests.bench.field import NO_LIBRARY, Field
from tests.bench.payload import Payload, sum_of_states
from tests.bench.peers.base import Contender
from tests.bench.peers.sqlite import SqliteRows, SqliteWhole
from tests.bench.peers.stateward import CLIENT, WHOLE, PythonClient, Whole
from tests.bench.relay import Counter, count_bytes
from tests.bench.report import Section, format_bytes
from tests.bench.sections import Effort

FULL_BYTES, QUICK_FULL_BYTES = 100_000_000, 2_000_000
"""All states of the chosen run together: seven contenders write as much, each synced at every step."""
THREAD = "long run"


def measure(field: Field, payload: Payload, effort: Effort) -> Iterator[Section]:
    """One contender after the other, each on an empty store of its own."""
    run = payload.run_below(QUICK_FULL_BYTES if effort.quick else FULL_BYTES)
    new_bytes = sum(map(len, run))
    title = f"one run of {len(run)} steps, saved step by step: {format_bytes(new_bytes)} of messages"
    section = Section("bytes", f"{title}, {format_bytes(sum_of_states(run))} of whole states")
    recorder = _Recorder(section, run, new_bytes)
    for name, open_one in ((CLIENT, PythonClient), (WHOLE, Whole)):
        _stateward(field, recorder, name, open_one)
    if field.with_peers:
        recorder.local(SqliteRows, field.work / "bytes-rows.sqlite")
        recorder.local(SqliteWhole, field.work / "bytes-whole.sqlite")
        for others in (_langgraph_sqlite, _postgres, _redis, _etcd):
            try:
                others(field, recorder)
            except ModuleNotFoundError as missing:
                field.skipped[str(missing.name)] = NO_LIBRARY.format(missing.name)
    section.notes += [
        "on the wire: both directions with all framing; SQLite has no wire",
        "on disk without the write-ahead logs of PostgreSQL and etcd; a row per message keeps no versions",
    ]
    yield section


class _Recorder:
    """Walks a contender through the run and writes its row."""

    def __init__(self, section: Section, run: list[bytes], new_bytes: int) -> None:
        self.section, self.run, self.new_bytes = section, run, new_bytes

    def walk(self, contender: Contender) -> None:
        """Every step."""
        contender.fill(THREAD, [])
        for message in self.run:
            contender.step(THREAD, message)()
        contender.close()

    def add(self, name: str, disk_bytes: int, wire: Counter | None = None) -> None:
        """The row."""
        self.section.add(
            name,
            disk_bytes=disk_bytes,
            wire_bytes=wire.total_bytes if wire else None,
            x_messages=disk_bytes / self.new_bytes,
        )

    def local(self, open_one: Callable[[Path], Contender], file: Path) -> None:
        """A contender with a file of its own: closing the last connection takes the log into it."""
        contender = open_one(file)
        self.walk(contender)
        self.add(contender.name, used_bytes(file))


def _stateward(field: Field, recorder: _Recorder, name: str, open_one: Callable[[str], Contender]) -> None:
    with field.own_daemon(f"bytes-{open_one.__name__.lower()}") as daemon:
        relay = field.sockets / f"{open_one.__name__}.sock"
        with count_bytes(relay, str(daemon.socket)) as wire:
            recorder.walk(open_one(f"unix://{relay}"))
        daemon.stop()
        recorder.add(name, used_bytes(daemon.data_dir), wire)


def _langgraph_sqlite(field: Field, recorder: _Recorder) -> None:
    from tests.bench.peers.langgraph import open_langgraph_sqlite

    recorder.local(open_langgraph_sqlite, field.work / "bytes-langgraph.sqlite")


def _postgres(field: Field, recorder: _Recorder) -> None:
    if "PostgreSQL" not in field.servers:
        return
    from tests.bench.peers.postgres import PostgresRows, PostgresWhole, open_postgres

    address = field.servers["PostgreSQL"].address
    relay = field.sockets / "relay"
    relay.mkdir()
    with open_postgres(address) as admin:
        for name, open_one in {"rows": PostgresRows, "whole": PostgresWhole, "saver": _langgraph_postgres}.items():
            admin.execute(f"CREATE DATABASE bytes_{name}")
            door = relay / ".s.PGSQL.5432"
            door.unlink(missing_ok=True)
            with count_bytes(door, str(field.sockets / "postgres" / ".s.PGSQL.5432")) as wire:
                contender = open_one(f"host={relay} user=bench dbname=bytes_{name}")
                recorder.walk(contender)
            query = "SELECT pg_database_size(%s) - pg_database_size('template1')"
            (size,) = admin.execute(query, (f"bytes_{name}",)).fetchone()
            recorder.add(contender.name, size, wire)


def _langgraph_postgres(conninfo: str) -> Contender:
    from tests.bench.peers.langgraph import open_langgraph_postgres

    return open_langgraph_postgres(conninfo)


def _redis(field: Field, recorder: _Recorder) -> None:
    if "Redis" not in field.servers:
        return
    from tests.bench.peers.redis import RedisPush, RedisSet

    for open_one in (RedisPush, RedisSet):
        data, relay = field.work / f"bytes-{open_one.__name__}", field.sockets / f"relay-{open_one.__name__}.sock"
        with servers.run_redis(data, field.sockets) as server:
            with count_bytes(relay, server.address) as wire:
                recorder.walk(open_one(str(relay)))
            recorder.add(open_one.name, used_bytes(data), wire)


def _etcd(field: Field, recorder: _Recorder) -> None:
    if "etcd" not in field.servers:
        return
    from tests.bench.peers.etcd import Etcd

    data, relay = field.work / "bytes-etcd", field.sockets / "relay-etcd.sock"
    with servers.run_etcd(data, field.sockets) as server:
        host, port = server.address.split(":")
        with count_bytes(relay, (host, int(port))) as wire:
            recorder.walk(Etcd(f"unix://{relay}"))
    recorder.add(Etcd.name, used_bytes(data / "member" / "snap" / "db"), wire)


def used_bytes(path: Path) -> int:
    """What is allocated for a file, or for all files below a directory."""
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    return sum(each.stat().st_blocks * 512 for each in files)
