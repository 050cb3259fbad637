"""A writer beside plain saves, at 10 KB with one message appended: one at a time, and many under way at once."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

from tests.bench.field import Field
from tests.bench.payload import SIZES, Payload
from tests.bench.report import Section
from tests.bench.rounds import Prepare, p50_ms, p99_ms, take_turns
from tests.bench.sections import Effort

from stateward import Client, State, Thread, Writer
from stateward.values import JSON, RawValue

UNARY, WRITER = "stateward, thread.save", "stateward, writer.save"
SENT, SENT_LATER = "stateward, writer.send, then flush", "stateward, thread.save, one after the other"
CASE = "10 KB"
THREADS = 8
ROUNDS_TIMES = 3
"""The two differ by little: the median of 400 calls each moves by 2 % from run to run."""
BURST, BURSTS = 200, 12
QUICK_BURST = 40


def measure(field: Field, payload: Payload, effort: Effort) -> Iterator[Section]:
    """Both through the Python client, in turn."""
    with ExitStack() as stack:
        client = stack.enter_context(Client(field.daemon.target))
        yield _measure_alone(client, stack, payload, effort)
        yield _measure_bursts(client, payload, effort)


def _measure_alone(client: Client, stack: ExitStack, payload: Payload, effort: Effort) -> Section:
    appended = payload.appended()
    prepare: dict[str, Prepare] = {}
    for name in (UNARY, WRITER):
        ready: list[tuple[State, Callable[[State], object]]] = []
        for number in range(2 if effort.quick else THREADS):
            thread = client.thread(f"{name} {number}")
            state = _filled(thread, payload)
            save = stack.enter_context(thread.writer()).save if name == WRITER else thread.save
            ready.append((state, save))
        prepare[name] = _prepared(itertools.cycle(ready), appended)
    times = take_turns(prepare, effort.rounds * (1 if effort.quick else ROUNDS_TIMES))
    section = Section("writer", f"save of one message at {CASE}, answered before the next one")
    for name, each in times.items():
        ratio = p50_ms(each) / p50_ms(times[UNARY])
        section.add(name, CASE, p50_ms=p50_ms(each), p99_ms=p99_ms(each), x_unary=ratio)
    return section


def _prepared(ready: Iterator[tuple[State, Callable[[State], object]]], appended: Iterator[bytes]) -> Prepare:
    def step() -> Callable[[], object]:
        state, save = next(ready)
        state.logs["messages"].append(RawValue(JSON, next(appended)))
        return lambda: save(state)

    return step


def _measure_bursts(client: Client, payload: Payload, effort: Effort) -> Section:
    """Bursts of both kinds in turn, each on a new thread; the median of the pairs' ratios counts."""
    appended, numbers = payload.appended(), itertools.count()
    rates: dict[str, list[float]] = {SENT_LATER: [], SENT: []}
    burst = QUICK_BURST if effort.quick else BURST
    for _ in range(2 if effort.quick else BURSTS):
        for name, kind_rates in rates.items():
            thread = client.thread(f"burst-{next(numbers)}")
            state = _filled(thread, payload)
            messages = [RawValue(JSON, next(appended)) for _ in range(burst)]
            if name == SENT:
                with thread.writer() as writer:
                    kind_rates.append(_rate(messages, state, writer.send, writer))
            else:
                kind_rates.append(_rate(messages, state, thread.save))
    section = Section("pipelined", f"saves of one message at {CASE}, {burst} one after the other")
    ratios = [sent / later for sent, later in zip(rates[SENT], rates[SENT_LATER], strict=True)]
    section.add(SENT_LATER, CASE, calls_per_s=statistics.median(rates[SENT_LATER]), x_unary=1.0)
    section.add(SENT, CASE, calls_per_s=statistics.median(rates[SENT]), x_unary=statistics.median(ratios))
    return section


def _rate(messages: list, state: State, save: Callable[[State], object], writer: Writer | None = None) -> float:
    start = time.perf_counter()
    for message in messages:
        state.logs["messages"].append(message)
        save(state)
    if writer is not None:
        writer.flush()
    return len(messages) / (time.perf_counter() - start)


def _filled(thread: Thread, payload: Payload) -> State:
    """A state of the size, made in several versions as a thread has them."""
    state = thread.hydrate()
    messages = payload.state(SIZES[CASE])
    part = max(len(messages) // 5, 1)
    for start in range(0, len(messages), part):
        state.logs["messages"].extend(RawValue(JSON, each) for each in messages[start : start + part])
        thread.save(state)
    return state
