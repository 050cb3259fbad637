"""The danger: one request to the bucket that hangs takes all workers, so no thread of the daemon is served."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from tests.daemon.inside import WAIT_S, Inside, daemon_inside
from tests.daemon.wire import appends
from tests.messages import to_write

from stateward.v1.checkpoint_pb2 import DURABILITY_ARCHIVED
from stateward.v1.checkpoint_service_pb2 import SaveRequest
from stateward.v1.signal_service_pb2 import SendSignalRequest
from stateward.v1.thread_service_pb2 import AttachRequest, DetachRequest
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.archive.requests.metered import PARALLEL, Wire
from stateward_sidecar.archive.requests.waiting import WORKERS
from stateward_sidecar.bucket.memory import MemoryBucket
from stateward_sidecar.clock import Clock

MANY = WORKERS + 4
# While something hangs for good, this is long for everything else.
LONG_S = 5.0


def save(thread: str, **fields: Any) -> SaveRequest:
    return to_write(SaveRequest, thread=thread, diff=appends("x"), request_id=f"{thread}-{fields}", **fields)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Inside]:
    with daemon_inside(tmp_path, archive=f"file://{tmp_path}/bucket", archive_interval="60") as inside:
        yield inside


@contextmanager
def hanging(daemon: Inside, kind: str, keys: Callable[[str], bool], count: int = 1) -> Iterator[threading.Event]:
    """Requests of a kind wait until the end. Yields what is set once so many are here."""
    arrived, over, seen = threading.Event(), threading.Event(), list[str]()

    def before(method: str, key: str) -> None:
        if method == kind and keys(key):
            seen.append(key)
            if len(seen) >= count:
                arrived.set()
            over.wait(WAIT_S)

    daemon.bucket.before = before
    try:
        yield arrived
    finally:
        daemon.bucket.before = lambda method, key: None
        over.set()


def others_go_on(daemon: Inside) -> None:
    """A thread that is there is saved and archived, and a new one is made."""
    daemon.wire.save(save("other", durability=DURABILITY_ARCHIVED, step=2), timeout=LONG_S)
    daemon.wire.save(save("new"), timeout=LONG_S)


def test_calls_for_one_thread_do_not_take_all_workers(daemon: Inside) -> None:
    """While one thread's HEAD hangs and more calls wait for it than there are workers, other threads are served."""
    written: list[str] = []
    daemon.bucket.before = lambda method, key: written.append(key)
    daemon.wire.save(save("stuck", durability=DURABILITY_ARCHIVED))
    head = next(key for key in reversed(written) if key.endswith("/HEAD"))
    daemon.wire.save(save("other", durability=DURABILITY_ARCHIVED))
    with ThreadPoolExecutor(MANY) as pool, hanging(daemon, "replace", head.__eq__) as arrived:
        waiting = pool.submit(daemon.wire.threads.Detach, DetachRequest(thread="stuck"))
        assert arrived.wait(WAIT_S)
        signals = [
            pool.submit(
                daemon.wire.signals.SendSignal,
                SendSignalRequest(thread="stuck", name="go", options=WriteOptions(request_id=str(number))),
            )
            for number in range(MANY)
        ]
        others_go_on(daemon)
    waiting.result(WAIT_S)
    for signal in signals:
        signal.result(WAIT_S)


def test_ships_that_hang_leave_workers_to_calls(daemon: Inside) -> None:
    """More HEADs hang than there are workers for ships: a new thread is made, which asks the bucket as well."""
    names = [f"stuck-{number}" for number in range(MANY)]
    for name in names:
        daemon.wire.save(save(name, durability=DURABILITY_ARCHIVED))
    with hanging(daemon, "replace", lambda key: key.endswith("/HEAD"), WORKERS) as arrived:
        calls = [
            daemon.wire.checkpoints.Save.future(save(name, durability=DURABILITY_ARCHIVED, step=2)) for name in names
        ]
        assert arrived.wait(WAIT_S)
        daemon.wire.save(save("new"), timeout=LONG_S)
    for call in calls:
        call.result(WAIT_S)


def test_who_waits_for_a_thread_to_be_free_takes_no_worker(tmp_path: Path, daemon: Inside) -> None:
    """More callers wait for a foreign thread than there are workers: others are served."""
    daemon.wire.save(save("other", durability=DURABILITY_ARCHIVED))
    archive = f"file://{tmp_path}/bucket"
    with daemon_inside(tmp_path, name="B", archive=archive) as owner:
        owner.wire.save(save("held", durability=DURABILITY_ARCHIVED))
        request = AttachRequest(thread="held", wait=Duration(seconds=60))
        calls = [daemon.wire.threads.Attach.future(request) for _ in range(MANY)]
        others_go_on(daemon)
        for call in calls:
            call.cancel()


def test_uploads_that_hang_do_not_stop_what_is_asked_together() -> None:
    """What is put off may hang on every thread of the wire: requests that belong together are made all the same."""
    over = threading.Event()
    wire = Wire(MemoryBucket(), Clock())
    arrived = threading.Semaphore(0)

    def hang() -> None:
        arrived.release()
        over.wait(WAIT_S)

    for _ in range(PARALLEL + 2):
        wire.later(hang)
    for _ in range(PARALLEL):
        assert arrived.acquire(timeout=WAIT_S)
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(wire.together, *(partial(int, number) for number in range(5)))
        try:
            assert asking.result(LONG_S) == list(range(5))
        finally:
            over.set()
    wire.close()
