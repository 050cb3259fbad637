"""A caller who saves little and at a steady rate, alone and beside one neighbour of each kind."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import nullcontext

from tests.bench import neighbours
from tests.bench.field import Field
from tests.bench.payload import SIZES, Payload
from tests.bench.peers.stateward import STUB, Stub
from tests.bench.report import Section
from tests.bench.rounds import at_a_rate, p50_ms, p99_ms
from tests.bench.sections import Effort

ALONE = "alone"
CASE = "10 KB"
CALLS_PER_S = 50
THREADS = 8
QUICK_SIZE = 0.05
"""How large states and threads of neighbours are in a shortened run."""


def measure(field: Field, payload: Payload, effort: Effort) -> Iterator[Section]:
    """All in one daemon, one neighbour after the other."""
    section = Section("neighbour", f"save of one message at {CASE}, {CALLS_PER_S} a second, beside a neighbour that …")
    size = QUICK_SIZE if effort.quick else 1.0
    alone_ms = 0.0
    with field.own_daemon("neighbour") as daemon:
        stub, appended = Stub(daemon.target), payload.appended()
        names = [f"caller-{number}" for number in range(THREADS)]
        for name in names:
            stub.fill(name, payload.state(SIZES[CASE]))
        turn = itertools.cycle(names)
        for kind in (ALONE, *neighbours.KINDS):
            beside = nullcontext() if kind == ALONE else neighbours.running(kind, daemon.target, size)
            with beside as neighbour:
                times = at_a_rate(lambda: stub.step(next(turn), next(appended)), effort.rounds, CALLS_PER_S)
            alone_ms = alone_ms or p99_ms(times)
            figures = {"p50_ms": p50_ms(times), "p99_ms": p99_ms(times), "x_alone": p99_ms(times) / alone_ms}
            if neighbour is not None:
                figures["neighbour_per_s"] = neighbour.times_a_second
            section.add(f"{STUB}, {kind}", **figures)
        stub.close()
    section.notes += [
        "from when a save is due until its answer: a save that waits for the one before it counts from its own time",
        f"x alone: p99; prunes {neighbours.PRUNED} of {int(neighbours.VERSIONS * size):,} versions, verifies as many",
        f"{neighbours.WATCHES} watches, of all threads; the neighbour takes CPU of this machine too",
    ]
    yield section
