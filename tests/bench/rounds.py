"""Calls in turn: each round makes one call of every contender, in an order that is drawn anew, so that a noisy machine
and a neighbour's afterwork hit all of them alike."""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable, Iterable, Mapping

WARM_UP_ROUNDS = 10
Prepare = Callable[[], Callable[[], object]]
"""Makes the next call ready: what it returns is what is timed."""


def take_turns(prepare: Mapping[str, Prepare], rounds: int) -> dict[str, list[float]]:
    """Seconds of each call, by contender."""
    dice, names = random.Random(5), list(prepare)
    times: dict[str, list[float]] = {name: [] for name in names}
    gc.collect()
    gc.freeze()  # the messages that all of this shares are no garbage, and looking at them takes milliseconds
    try:
        for number in range(-min(WARM_UP_ROUNDS, rounds), rounds):
            dice.shuffle(names)
            for name in names:
                seconds = timed(prepare[name]())
                if number >= 0:
                    times[name].append(seconds)
    finally:
        gc.unfreeze()
    return times


def at_a_rate(prepare: Prepare, calls: int, calls_per_s: float) -> list[float]:
    """Seconds from when each call was due until it ended. A call begins at its time, or when the one before it ends."""
    times = list[float]()
    gc.collect()
    gc.freeze()
    try:
        start = time.perf_counter()
        for number in range(calls):
            call, due = prepare(), start + number / calls_per_s
            time.sleep(max(due - time.perf_counter(), 0))
            call()
            times.append(time.perf_counter() - due)
    finally:
        gc.unfreeze()
    return times


def timed(call: Callable[[], object]) -> float:
    """Seconds a call took."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def p50_ms(times: Iterable[float]) -> float:
    """The median in milliseconds."""
    return statistics.median(times) * 1000


def p99_ms(times: list[float]) -> float:
    """The 99th percentile in milliseconds; with fewer than a hundred calls the slowest."""
    return sorted(times)[min(int(len(times) * 0.99), len(times) - 1)] * 1000
