"""What metrics cost: the CPU of a save with them, beside that of a daemon without them.

Both daemons have 64 saves in flight at the same time, so that a noisy machine hits both.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import urllib.request
from collections.abc import Iterator
from dataclasses import replace

from tests.bench.field import Field
from tests.bench.payload import Payload
from tests.bench.peers.stateward import STUB
from tests.bench.report import Section
from tests.bench.sections import Effort
from tests.bench.sections.flight import IN_FLIGHT, Flight, fly, save_to_stateward
from tests.bench.servers import free_port

WITH, WITHOUT = f"{STUB}, metrics on", f"{STUB}, metrics off"
REPETITIONS = 15


def measure(field: Field, payload: Payload, effort: Effort) -> Iterator[Section]:
    """Pairs of flights; the medians, and the median of the pairs' ratios."""
    messages, numbers = payload.appended(), itertools.count()
    calls = max(effort.rounds * 5 // IN_FLIGHT, 2)
    port = free_port()
    found = list[tuple[Flight, Flight]]()
    with field.own_daemon("unwatched") as off, field.own_daemon("watched", metrics=f"127.0.0.1:{port}") as on:
        for _ in range(2 if effort.quick else REPETITIONS):
            pair = (replace(field, daemon=each) for each in (on, off))
            found.append(asyncio.run(_fly_both(*pair, calls, messages, f"watched-{next(numbers)}")))
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as scrape:
                scrape.read()
    section = Section("watched", f"metrics on and off, {IN_FLIGHT} in flight on both daemons at once")
    for name, flights in ((WITH, [each[0] for each in found]), (WITHOUT, [each[1] for each in found])):
        rate = statistics.median(flight.calls_per_s for flight in flights)
        section.add(name, calls_per_s=rate, server_cpu_us=statistics.median(flight.cpu_us for flight in flights))
    ratios = [on.cpu_us / off.cpu_us for on, off in found if off.cpu_us]
    section.rows[0].figures["x_off"] = statistics.median(ratios) if ratios else None
    section.notes.append("x off: CPU by save, the median of pairs; counted in steps of 10 ms")
    yield section


async def _fly_both(on: Field, off: Field, calls: int, messages: Iterator[bytes], marker: str) -> tuple[Flight, Flight]:
    first, second = (fly(save_to_stateward, each, each.daemon.pid, calls, messages, marker) for each in (on, off))
    return await asyncio.gather(first, second)
