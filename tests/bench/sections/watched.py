"""What metrics and traces cost: the CPU of a save with them, beside that of a daemon without them.

Both daemons have 64 saves in flight at the same time, so that a noisy machine hits both.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import statistics
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from tests.bench.field import Field
from tests.bench.payload import Payload
from tests.bench.peers.stateward import STUB
from tests.bench.report import Section
from tests.bench.sections import Effort
from tests.bench.sections.flight import IN_FLIGHT, Flight, fly, save_to_stateward
from tests.bench.servers import free_port
from tests.tracing.collector import collecting

WITH, WITHOUT = f"{STUB}, metrics on", f"{STUB}, metrics off"
TRACED, SAMPLED, UNTRACED = (f"{STUB}, traces {how}" for how in ("on", "on for 1 %", "off"))
SAMPLER = {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.01"}
REPETITIONS = 15


def measure(field: Field, payload: Payload, effort: Effort) -> Iterator[Section]:
    """Pairs of flights; the medians, and the median of the pairs' ratios."""
    port, messages = free_port(), payload.appended()

    def scrape() -> None:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            answer.read()

    section = Section("watched", f"metrics on and off, {IN_FLIGHT} in flight on both daemons at once")
    _compare(section, field, messages, effort, (WITH, WITHOUT), {"metrics": f"127.0.0.1:{port}"}, then=scrape)
    section.notes.append("x off: CPU by save, the median of pairs; counted in steps of 10 ms")
    yield section
    section = Section("traced", f"traces on and off, {IN_FLIGHT} in flight on both daemons at once")
    with collecting() as collector:
        _compare(section, field, messages, effort, (TRACED, UNTRACED), {"traces": collector.url})
        _compare(section, field, messages, effort, (SAMPLED, UNTRACED), {"traces": collector.url}, SAMPLER)
    section.notes.append("x off: as with metrics; a save has three spans, and no caller decides what is recorded")
    yield section


def _compare(
    section: Section, field: Field, messages: Iterator[bytes], effort: Effort, names: tuple[str, str],
    flags: dict[str, str], environment: dict[str, str] | None = None, then: Callable[[], None] = lambda: None,
) -> None:  # fmt: skip
    """Adds the rows of a daemon with these flags and of one without them."""
    calls, numbers = max(effort.rounds * 5 // IN_FLIGHT, 2), itertools.count()
    mark = names[0].rpartition(", ")[2].replace(" ", "-").replace("%", "percent")
    found = list[tuple[Flight, Flight]]()
    with ExitStack() as stack:
        off = stack.enter_context(field.own_daemon(f"without-{mark}"))
        with _set(environment or {}):
            on = stack.enter_context(field.own_daemon(mark, **flags))
        for _ in range(2 if effort.quick else REPETITIONS):
            pair = (replace(field, daemon=each) for each in (on, off))
            found.append(asyncio.run(_fly_both(*pair, calls, messages, f"{mark}-{next(numbers)}")))
            then()
    ratios = [on.cpu_us / off.cpu_us for on, off in found if off.cpu_us]
    for name, flights in zip(names, zip(*found, strict=True), strict=True):
        rate = statistics.median(flight.calls_per_s for flight in flights)
        cpu_us = statistics.median(flight.cpu_us for flight in flights)
        further = {"x_off": statistics.median(ratios) if ratios else None} if name == names[0] else {}
        section.add(name, calls_per_s=rate, server_cpu_us=cpu_us, **further)


@contextmanager
def _set(environment: dict[str, str]) -> Iterator[None]:
    """What is started meanwhile has these variables."""
    os.environ.update(environment)
    try:
        yield
    finally:
        for name in environment:
            del os.environ[name]


async def _fly_both(on: Field, off: Field, calls: int, messages: Iterator[bytes], marker: str) -> tuple[Flight, Flight]:
    first, second = (fly(save_to_stateward, each, each.daemon.pid, calls, messages, marker) for each in (on, off))
    return await asyncio.gather(first, second)
