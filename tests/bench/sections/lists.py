"""The first page of a list, and counts, among many threads.

The threads are made through the store in this process, in the order of a month's work, for a daemon would need minutes.
Lists are asked for over gRPC, by the stub. Rare statuses and steps are those of the oldest threads: the worst place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import grpc
from tests.bench.field import Field
from tests.bench.payload import Payload
from tests.bench.peers.stateward import OPTIONS, STUB
from tests.bench.report import Section
from tests.bench.rounds import p50_ms, p99_ms, timed
from tests.bench.sections import Effort
from tests.daemon.store import make_store

from stateward.testing import Daemon
from stateward.v1 import checkpoint_pb2 as pb
from stateward.v1.checkpoint_service_pb2 import SaveRequest
from stateward.v1.diff_pb2 import Append, Diff, Edit
from stateward.v1.state_pb2 import Value
from stateward.v1.thread_service_pb2 import CountThreadsRequest, ListThreadsRequest, ListThreadsResponse
from stateward.v1.thread_service_pb2_grpc import ThreadServiceStub
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.clock import Clock
from stateward_sidecar.storage.queue import Write
from stateward_sidecar.store.versions.save import SaveWrite

THREADS, QUICK_THREADS = 100_000, 500
MONTH_US = 30 * 86_400_000_000
RARE = 20
RARE_STEP = 1000
NAMESPACE = "default"
PENDING_MAX = 1000
USUAL = (pb.WORK_STATUS_COMPLETED,) * 6 + (pb.WORK_STATUS_RUNNING,) * 3 + (pb.WORK_STATUS_FAILED,)
COUNTS, READ_ALL = "counts by status", "all with a label, page by page"
NO_PAGES = (COUNTS, READ_ALL)


def measure(field: Field, payload: Payload, effort: Effort) -> Iterator[Section]:
    """Pages of 100 by what is asked, then counts."""
    threads = QUICK_THREADS if effort.quick else THREADS
    section = Section("list", f"first page of a list, {threads:,} threads")
    with field.own_daemon("list") as daemon:
        daemon.stop()
        newest_us = fill(daemon, threads, next(payload.appended()))
        daemon.start()
        with grpc.insecure_channel(daemon.target, options=OPTIONS) as channel:
            stub = ThreadServiceStub(channel)
            for name, request, least in _questions(newest_us, threads):
                answer: ListThreadsResponse = stub.ListThreads(request)
                assert len(answer.threads) >= least, f"{name}: {len(answer.threads)} threads"
                _add(section, name, lambda request=request: stub.ListThreads(request), effort)
            counts = stub.CountThreads(CountThreadsRequest()).counts
            assert sum(each.count for each in counts) == threads
            _add(section, COUNTS, lambda: stub.CountThreads(CountThreadsRequest()), effort)
            _add(section, READ_ALL, lambda: _read_all(stub), Effort(3))
    section.notes.append("what is rare belongs to the oldest threads; a step is asked of each thread's head")
    yield section


def fill(daemon: Daemon, threads: int, message: bytes) -> int:
    """Puts so many threads into the data of a daemon that does not run. Returns the time of the newest."""
    clock, key = _Calendar(), bytes.fromhex(daemon.key_file.read_text())
    store = make_store(daemon.data_dir, clock, map_bytes=4 << 30, key=key)
    first_us, pending = clock.time_us - MONTH_US, list[Write]()
    store.start()
    try:
        diff = Diff(edits=[Edit(append=Append(log="messages", entries=[Value(data=message)]))])
        for number in range(threads):
            if not number % PENDING_MAX:  # all writes of a batch may get the last one's time
                for write in pending:
                    write.wait()
                pending.clear()
            is_rare = number < RARE
            request = SaveRequest(
                namespace=NAMESPACE, thread=f"agent/run-{number}", options=WriteOptions(expected_version=0), diff=diff,
                step=RARE_STEP if is_rare else number % 40,
                status=pb.WORK_STATUS_PAUSED if is_rare else USUAL[number % len(USUAL)],
            )  # fmt: skip
            request.options.create.labels["rare" if is_rare else "usual"] = "yes"
            save = SaveWrite(store.context, store.threads, request)
            with store.context.engine.read() as txn:
                save.prepare(txn, None)
            at_us = first_us + number * MONTH_US // threads
            pending.append(store.context.writer.submit(Write(run=_at(clock, at_us, save.run)), wait=True))
        for write in pending:
            write.wait()
    finally:
        store.close()
    return clock.time_us


def _at(clock: _Calendar, time_us: int, run: Callable[..., object]) -> Callable[..., object]:
    """The write, made at a time."""

    def run_then(txn: object, batch: object) -> object:
        clock.time_us = time_us
        return run(txn, batch)

    return run_then


class _Calendar(Clock):
    """A wall clock that is set."""

    def __init__(self) -> None:
        self.time_us = super().now_us()

    def now_us(self) -> int:
        return self.time_us


def _questions(newest_us: int, threads: int) -> Iterator[tuple[str, ListThreadsRequest, int]]:
    """What is asked, and how many threads the first page must have at least."""
    rare = min(RARE, 100)
    yield "all", ListThreadsRequest(), 100
    yield "failed", ListThreadsRequest(statuses=[pb.WORK_STATUS_FAILED]), 40 if threads < THREADS else 100
    yield "paused (rare)", ListThreadsRequest(statuses=[pb.WORK_STATUS_PAUSED]), rare
    several = [pb.WORK_STATUS_PAUSED, pb.WORK_STATUS_FAILED, pb.WORK_STATUS_WAITING, pb.WORK_STATUS_RUNNING]
    yield "one of four statuses", ListThreadsRequest(statuses=several), 100
    week = ListThreadsRequest(statuses=[pb.WORK_STATUS_FAILED])
    week.updated_before.FromMicroseconds(newest_us - MONTH_US // 4)
    yield "failed, a week ago or before", week, 30 if threads < THREADS else 100
    yield "waiting (none)", ListThreadsRequest(statuses=[pb.WORK_STATUS_WAITING]), 0
    yield "at step 5 to 9", ListThreadsRequest(min_step=5, max_step=9), 10
    yield "at step 1,000 (rare)", ListThreadsRequest(min_step=RARE_STEP), 0
    yield "paused, at step 1,000", ListThreadsRequest(statuses=[pb.WORK_STATUS_PAUSED], min_step=RARE_STEP), rare
    yield "with a rare label", ListThreadsRequest(labels={"rare": "yes"}), rare


def _read_all(stub: ThreadServiceStub) -> None:
    request = ListThreadsRequest(labels={"rare": "yes"}, page_size=1000)
    found = 0
    while True:
        page: ListThreadsResponse = stub.ListThreads(request)
        found += len(page.threads)
        request.page_token = page.next_page_token
        if not page.next_page_token:
            assert found == RARE
            return


def _add(section: Section, name: str, call: Callable[[], object], effort: Effort) -> None:
    call()
    times = [timed(call) for _ in range(effort.rounds)]
    section.add(f"{STUB}: {name}", p50_ms=p50_ms(times), p99_ms=p99_ms(times))
