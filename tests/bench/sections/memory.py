"""Resident memory: idle after the start, and after load."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

from tests.bench.field import Field
from tests.bench.payload import SIZES, Payload
from tests.bench.peers.stateward import Stub
from tests.bench.processes import HAS_PROC, family, resident_bytes
from tests.bench.report import Section
from tests.bench.sections import Effort
from tests.bench.sections.flight import IN_FLIGHT, fly, save_to_stateward


def measure(field: Field, payload: Payload, effort: Effort) -> Iterator[Section]:
    """Stateward in a process of its own; what else runs, as it is now."""
    section = Section("memory", "resident memory")
    if not HAS_PROC:
        section.notes.append("not measured: this system has no /proc")
        yield section
        return
    with field.own_daemon("memory") as daemon:
        with daemon.client() as client:
            client.server_info()  # one call, so that what is imported late is there
        idle = resident_bytes(daemon.pid)
        stub, messages = Stub(daemon.target), payload.appended()
        for case, size in SIZES.items():
            stub.fill(case, payload.state(size))
            for _ in range(min(effort.rounds, 100)):
                stub.step(case, next(messages))()
                stub.read(case)()
        stub.close()
        calls = max(effort.rounds * 5 // IN_FLIGHT, 2)
        asyncio.run(fly(save_to_stateward, replace(field, daemon=daemon), daemon.pid, calls, messages, "memory"))
        section.add("stateward", idle_bytes=idle, after_load_bytes=resident_bytes(daemon.pid))
    section.add("echo (Python and gRPC alone), now", after_load_bytes=resident_bytes(field.echo.pid))
    for name, server in field.servers.items():
        section.add(f"{name}, now", after_load_bytes=sum(map(resident_bytes, family(server.pid))))
    section.notes += [
        f"load: states of three sizes saved and read, then {IN_FLIGHT} saves in flight; peers after the sections above",
        "mapped data files count, Stateward's and etcd's; PostgreSQL is the sum of its processes, shared pages and all",
    ]
    yield section
