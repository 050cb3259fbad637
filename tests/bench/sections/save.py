"""One message appended to states of three sizes, one call at a time: Stateward alone, then everybody in turn."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from tests.bench.field import Field
from tests.bench.payload import SIZES, Payload
from tests.bench.peers.base import Contender
from tests.bench.peers.file import SyncedFile
from tests.bench.peers.stateward import ECHO, Echo, PythonClient, Stub
from tests.bench.report import Section
from tests.bench.rounds import Prepare, p50_ms, p99_ms, take_turns
from tests.bench.sections import Effort

# Steps go round many small threads, so that a state of 10 KB still is one after hundreds of messages.
THREADS = {"10 KB": 32, "100 KB": 4, "1 MB": 1}


def measure(field: Field, payload: Payload, effort: Effort) -> Iterator[Section]:
    """Two tables: the floors without peers at work, and before they have anything to clear up; then the comparison."""
    yield measure_alone(field, payload, effort)
    section = Section("save", "save of one message, one at a time, synced before the answer")
    with field.contenders("save") as contenders:
        for case, size in SIZES.items():
            threads = 2 if effort.quick else THREADS[case]
            prepare = {each.name: prepared(each, "save", case, payload, threads) for each in contenders}
            add_rows(section, case, take_turns(prepare, effort.at_size(size)))
    section.notes += [
        "p50 and p99; x echo: p50 against a gRPC echo of Stateward's request, in Python, in the same rounds",
        "databases are given bytes (Redis by RPUSH and SET, etcd by PUT); clients and LangGraph's savers encode them",
    ]
    yield section


def measure_alone(field: Field, payload: Payload, effort: Effort) -> Section:
    """Sizes in turn as well, so that their ratio holds."""
    section = Section("alone", "save of one message, without peers at work, sizes in turn")
    contenders = [Echo(field.echo.address), SyncedFile(field.work / "alone-files")]
    contenders += [Stub(field.daemon.target), PythonClient(field.daemon.target)]
    threads = {case: 2 if effort.quick else THREADS[case] for case in SIZES}
    prepare = {
        (case, each.name): prepared(each, "alone", case, payload, threads[case])
        for case in SIZES
        for each in contenders
    }
    times = take_turns(prepare, effort.rounds)
    for case in SIZES:
        add_rows(section, case, {name: each for (of, name), each in times.items() if of == case})
    for contender in contenders:
        contender.close()
    return section


def prepared(contender: Contender, prefix: str, case: str, payload: Payload, threads: int) -> Prepare:
    """Fills threads of a size; gives what makes the next step ready, going round them."""
    messages, appended = payload.state(SIZES[case]), payload.appended()
    names = [f"{prefix}-{contender.name}-{case}-{number}" for number in range(threads)]
    for name in names:
        contender.fill(name, messages)
    turn = itertools.cycle(names)
    return lambda: contender.step(next(turn), next(appended))


def add_rows(section: Section, case: str, times: dict[str, list[float]]) -> None:
    """p50, p99 and the ratio to the echo."""
    floor = p50_ms(times[ECHO])
    for name, each in times.items():
        section.add(name, case, p50_ms=p50_ms(each), p99_ms=p99_ms(each), x_echo=p50_ms(each) / floor)
