"""What an archive costs: an ARCHIVED save beside the bare write it comes down to, a COMMITTED one with and without.

The bucket is SeaweedFS, a real S3 server, on the same machine: its writes are fast, so overheads show.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.bench.field import Field
from tests.bench.payload import SIZES, Payload
from tests.bench.peers.stateward import STUB, Stub
from tests.bench.relay import longer_way
from tests.bench.report import Section
from tests.bench.rounds import p50_ms, p99_ms, take_turns, timed
from tests.bench.sections import Effort
from tests.bucket.weed import WeedMissing, make_s3_bucket, running_weed, s3_environment

from stateward.testing import Daemon, run_daemon
from stateward.v1.admin_service_pb2 import ArchiveStats, GetStatsRequest
from stateward.v1.admin_service_pb2_grpc import AdminServiceStub
from stateward.v1.checkpoint_pb2 import DURABILITY_ARCHIVED
from stateward_sidecar.bucket.objectstore import ObjectStoreBucket

BUCKET = "bench"
HEAD_BYTES = 16 << 10
# The bucket here answers in two milliseconds; one across a data centre takes ten or more.
AWAY_S = 0.01
AWAY = f"10 KB, {AWAY_S * 1000:g} ms away"
PARTS = ("archived", "committed", "shipped", "cold")
BARE = "bare conditional PUT, as large as HEAD"
ARCHIVED, WITH, WITHOUT = f"{STUB}, ARCHIVED", f"{STUB}, COMMITTED, with archive", f"{STUB}, COMMITTED, without"
SHIPPED = f"{STUB}, one step a flush"


def measure(field: Field, payload: Payload, effort: Effort) -> Iterator[Section]:
    """Three tables, or none where there is no S3 server."""
    (field.work / "weed").mkdir()
    try:
        with running_weed(field.work / "weed") as url:
            make_s3_bucket(url, BUCKET)
            environment = s3_environment(url)
            host, port = url.removeprefix("http://").split(":")
            with longer_way((host, int(port)), AWAY_S) as (far_host, far_port):
                far = s3_environment(f"http://{far_host}:{far_port}")
                environments = {"10 KB": environment, "100 KB": environment, AWAY: far}
                yield _measure_archived(field, payload, effort, environments)
            with archived_daemon(field, "committed", environment) as daemon:
                yield _measure_committed(daemon, field.daemon, payload, effort)
            with archived_daemon(field, "shipped", environment) as daemon:
                yield _measure_cost(daemon, payload, effort)
            yield _measure_cold(field, payload, effort, environment)
    except WeedMissing as reason:
        field.skipped["SeaweedFS"] = str(reason)


@contextmanager
def archived_daemon(
    field: Field, prefix: str, environment: dict[str, str], *, name: str = "", key_file: Path | None = None
) -> Iterator[Daemon]:
    """A Stateward with an archive below this prefix of the bucket, to which the environment leads."""
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        directory = field.work / f"archive-{name or prefix}"
        with run_daemon(directory, key_file=key_file, archive=f"s3://{BUCKET}/{prefix}") as daemon:
            yield daemon
    finally:
        os.environ.clear()
        os.environ.update(before)


class ArchivedStub(Stub):
    """Each save waits until the bucket has it."""

    name = ARCHIVED

    def step(self, thread: str, message: bytes) -> Callable[[], object]:
        call = super().step(thread, message)
        call.args[0].options.durability = DURABILITY_ARCHIVED  # type: ignore[attr-defined]
        return call

    def stats(self) -> ArchiveStats:
        """What the archive has cost so far."""
        return AdminServiceStub(self.channel).GetStats(GetStatsRequest()).archive


def _measure_archived(
    field: Field, payload: Payload, effort: Effort, environments: dict[str, dict[str, str]]
) -> Section:
    section = Section("archived", "save of one message, answered when the bucket has it")
    for case, environment in environments.items():
        name = f"archived-{len(section.rows)}"
        with archived_daemon(field, name, environment) as daemon:
            _add_archived(section, case, daemon, payload, effort, environment)
    section.notes.append("a save is a commit on this disk, then one conditional PUT of HEAD")
    return section


def _add_archived(
    section: Section, case: str, daemon: Daemon, payload: Payload, effort: Effort, environment: dict[str, str]
) -> None:
    stub, appended = ArchivedStub(daemon.target), payload.appended()
    bucket = ObjectStoreBucket(f"s3://{BUCKET}/bare", environment)
    stub.fill("t", payload.state(SIZES[case.partition(",")[0]]))
    for _ in range(3):
        stub.step("t", next(appended))()
    begun, key = stub.stats(), os.urandom(8).hex()
    etag = [bucket.create(key, os.urandom(HEAD_BYTES))]

    def replace() -> None:
        etag[0] = bucket.replace(key, os.urandom(HEAD_BYTES), etag[0])

    times = take_turns({BARE: lambda: replace, ARCHIVED: lambda: stub.step("t", next(appended))}, effort.rounds)
    ended = stub.stats()
    average = (ended.head_bytes - begun.head_bytes) / max(ended.heads - begun.heads, 1)
    floor = p50_ms(times[BARE])
    for name, each in times.items():
        section.add(
            name, case, p50_ms=p50_ms(each), p99_ms=p99_ms(each), x_bare=p50_ms(each) / floor,
            head_bytes=average if name == ARCHIVED else float(HEAD_BYTES),
        )  # fmt: skip
    bucket.close()
    stub.close()


def _measure_committed(archived: Daemon, plain: Daemon, payload: Payload, effort: Effort) -> Section:
    section = Section("committed", "save of one message, answered when this disk has it, in turn")
    stubs = {WITH: Stub(archived.target), WITHOUT: Stub(plain.target)}
    appended = payload.appended()
    for case, size in SIZES.items():
        for stub in stubs.values():
            stub.fill(f"committed-{case}", payload.state(size))
        prepare = {
            name: partial(lambda stub, case: stub.step(f"committed-{case}", next(appended)), stub, case)
            for name, stub in stubs.items()
        }
        times = take_turns(prepare, effort.at_size(size) * (1 if effort.quick else 3))
        floor = p50_ms(times[WITHOUT])
        for name, each in times.items():
            section.add(name, case, p50_ms=p50_ms(each), p99_ms=p99_ms(each), x_without=p50_ms(each) / floor)
    for stub in stubs.values():
        stub.close()
    return section


def _measure_cold(field: Field, payload: Payload, effort: Effort, environment: dict[str, str]) -> Section:
    """A daemon on an empty disk, and its first hydrate; then the next ones, as many round trips as they take."""
    section = Section("cold", "from an empty disk: start to the first hydrated state, and further threads")
    key_file, sizes = field.work / "cold.key", {"in HEAD": 10_000, "1 MB": 1_000_000}
    names = {case: [f"cold-{case}-{number}" for number in range(5 if effort.quick else 20)] for case in sizes}
    with archived_daemon(field, "cold", environment, key_file=key_file) as daemon:
        stub = ArchivedStub(daemon.target)
        for case, size in sizes.items():
            for name in names[case]:
                stub.fill(name, payload.state(size)[-40 if size < 100_000 else 0 :])
        daemon.stop()
    for threads in (10, 40 if effort.quick else 10_000):
        _add_threads(environment, threads)
        begun = time.perf_counter()
        name = f"cold-{threads}"
        with archived_daemon(field, "cold", environment, name=name, key_file=key_file) as daemon:
            stub = ArchivedStub(daemon.target)
            stub.read(names["in HEAD"][0])()
            first_s = time.perf_counter() - begun
            for case in sizes:
                before = stub.stats().requests
                times = [timed(stub.read(thread)) for thread in names[case][1:]]
                requests = (stub.stats().requests - before) / len(times)
                section.add(
                    STUB, f"{case}, beside {threads:,} threads", first_hydrate_s=first_s, p50_ms=p50_ms(times),
                    requests=requests,
                )  # fmt: skip
            stub.close()
    section.notes.append("requests a hydrate: HEAD and key at the same time, then everything else at the same time")
    return section


def _add_threads(environment: dict[str, str], count: int) -> None:
    """As many other threads' objects; what is in them does not matter, as nobody lists or reads them."""
    bucket = ObjectStoreBucket(f"s3://{BUCKET}/cold", environment)
    place = f"v1/t/{os.urandom(16).hex()}"
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda _: bucket.put(f"{place}/{os.urandom(16).hex()}/HEAD", b"x" * 1000), range(count)))
    bucket.close()


def _measure_cost(daemon: Daemon, payload: Payload, effort: Effort) -> Section:
    """One step a flush, from an empty thread on."""
    section = Section("shipped", "what is written to the bucket")
    stub, appended = ArchivedStub(daemon.target), payload.appended()
    stub.version["cost"] = 0
    steps = 30 if effort.quick else 2000
    begun, largest = stub.stats(), 0.0
    before = begun
    for number in range(steps):
        stub.step("cost", next(appended))()
        if number % 20 == 0 or number > steps - 20:
            now = stub.stats()
            if now.heads > before.heads:
                largest = max(largest, (now.head_bytes - before.head_bytes) / (now.heads - before.heads))
            before = now
    ended = stub.stats()
    flushes = ended.heads - begun.heads
    puts = flushes + ended.objects - begun.objects
    new_bytes = ended.entry_bytes - begun.entry_bytes
    section.add(
        SHIPPED, f"{steps:,} steps", puts_a_flush=puts / max(flushes, 1), head_bytes=largest,
        x_new_entries=(ended.object_bytes - begun.object_bytes) / max(new_bytes, 1),
    )  # fmt: skip
    section.notes.append(
        "x new entries: bytes of packs and snapshots together, HEAD apart; a HEAD of 20 flushes on average"
    )
    stub.close()
    return section
