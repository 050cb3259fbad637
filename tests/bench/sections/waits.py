"""A caller on either wire who waits for something else: for the bucket, or for a burst of others on the same wire."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial

from tests.bench import neighbours
from tests.bench.field import Field
from tests.bench.peers.stateward import append_request
from tests.bench.report import Section
from tests.bench.rounds import p50_ms, p99_ms, take_turns
from tests.bench.sections import Effort, archive
from tests.bench.wires import WIRES, Save, forced, name_of, raw_saves
from tests.bucket.weed import WeedMissing, make_s3_bucket, running_weed, s3_environment

from stateward.v1.checkpoint_pb2 import DURABILITY_ARCHIVED

ARCHIVED, BESIDE = "ARCHIVED save, raw", f"lone save, beside {neighbours.BURST} in flight"
PAUSE_S, CALLED_S, REPETITIONS = 0.005, 3.0, 5


def add_archived(section: Section, field: Field, messages: Iterator[bytes], effort: Effort) -> None:
    """Saves that are answered when a real S3 server on this machine has them; each thread has one."""
    place = field.work / "weed-wire"
    place.mkdir()
    try:
        with running_weed(place) as url, ExitStack() as stack:
            make_s3_bucket(url, archive.BUCKET)
            daemon = stack.enter_context(archive.archived_daemon(field, "wire", s3_environment(url)))
            saves, versions = raw_saves(stack, daemon.target), dict.fromkeys(WIRES, 0)

            def prepare(wire: str) -> Callable[[], object]:
                request = append_request(f"archived-{wire}", versions[wire], [next(messages)])
                request.options.durability = DURABILITY_ARCHIVED
                versions[wire] += 1
                return lambda: saves[wire](request)

            times = take_turns({wire: partial(prepare, wire) for wire in WIRES}, effort.rounds)
    except WeedMissing as reason:
        field.skipped["SeaweedFS"] = str(reason)
        return
    for wire, each in times.items():
        ratio = p50_ms(each) / p50_ms(times["gRPC"])
        section.add(name_of(wire), ARCHIVED, p50_ms=p50_ms(each), p99_ms=p99_ms(each), x_grpc=ratio)


def add_beside_burst(section: Section, field: Field, messages: Iterator[bytes], effort: Effort) -> None:
    """Who calls now and then waits for 256 others, over the wire that these use, too. Of all rounds together."""
    target, numbers = field.daemon.target, itertools.count()
    times: dict[str, list[float]] = {wire: [] for wire in WIRES}
    rates: dict[str, list[float]] = {wire: [] for wire in WIRES}
    with ExitStack() as stack:
        saves = raw_saves(stack, target)
        for _ in range(1 if effort.quick else REPETITIONS):
            for wire in WIRES:
                with forced(wire), neighbours.running(neighbours.BURSTS, target, 1.0) as burst:
                    seconds = CALLED_S / 10 if effort.quick else CALLED_S
                    times[wire] += _call(saves[wire], f"beside-{next(numbers)}", messages, seconds)
                rates[wire].append(burst.times_a_second * neighbours.BURST)
    for wire, each in times.items():
        ratio = p99_ms(each) / p99_ms(times["gRPC"])
        section.add(
            name_of(wire), BESIDE, p50_ms=p50_ms(each), p99_ms=p99_ms(each), p99_x_grpc=ratio,
            neighbour_per_s=statistics.median(rates[wire]),
        )  # fmt: skip


def _call(save: Save, thread: str, messages: Iterator[bytes], seconds: float) -> list[float]:
    """Seconds of each save. They pause between, as an agent does."""
    times, end = list[float](), time.perf_counter() + seconds
    for version in itertools.count():
        request = append_request(thread, version, [next(messages)])
        begun = time.perf_counter()
        save(request)
        times.append((over := time.perf_counter()) - begun)
        if over > end:
            return times
        time.sleep(PAUSE_S)
    raise AssertionError
