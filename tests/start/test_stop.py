"""The danger: a stop loses a save that was answered, waits for watches that never end, or exits with an error that
restarts the pod."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.daemon.wire import Wire, appends
from tests.messages import to_write

from stateward.testing import run_daemon
from stateward.v1.checkpoint_pb2 import DURABILITY_ARCHIVED
from stateward.v1.checkpoint_service_pb2 import HydrateRequest, SaveRequest
from stateward.v1.thread_service_pb2 import WaitDurableRequest, WatchRequest
from stateward.v1.write_pb2 import Receipt

QUICK_S = 3.0
GRACE_S = 1.0
WRITERS = 8


def append(thread: str, number: int, **fields: Any) -> SaveRequest:
    return to_write(SaveRequest, thread=thread, diff=appends(f"{number}"), request_id=f"{thread} {number}", **fields)


@pytest.mark.usefixtures("begun_warm")
def test_every_answered_save_is_there_after_a_stop_in_full_run() -> None:
    """Writers at full speed while SIGTERM comes: exit 0, and each answered save is found after the next start."""
    with run_daemon() as daemon:
        wire, are_writing = Wire(daemon.target), threading.Event()

        def write(number: int) -> int:
            answered = 0
            while True:
                call = wire.checkpoints.Save.future(append(f"t{number}", answered), timeout=10)
                if call.code() != grpc.StatusCode.OK:
                    assert call.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED), call.details()
                    return answered
                answered += 1
                if answered > 1:
                    are_writing.set()

        with ThreadPoolExecutor(WRITERS) as pool:
            running = [pool.submit(write, number) for number in range(WRITERS)]
            assert are_writing.wait(60)
            threading.Event().wait(0.3)
            assert daemon.stop() == 0
            answered = [each.result() for each in running]
        wire.close()
        assert max(answered) > 1
        daemon.start()
        wire = Wire(daemon.target)
        for number, count in enumerate(answered):
            entries = wire.hydrate(HydrateRequest(thread=f"t{number}")).logs["messages"].entries
            # One more may have been committed whose answer was lost with the connection.
            assert [int(entry.data) for entry in entries][:count] == list(range(count))
            assert len(entries) <= count + 1
        assert wire.findings() == []
        wire.close()


@pytest.mark.usefixtures("begun_warm")
@pytest.mark.parametrize("thread", ["t", "-"])
def test_an_open_watch_does_not_hold_up_the_stop(thread: str) -> None:
    """With a watch open the daemon is gone in moments, not after its grace time; the watch ends UNAVAILABLE."""
    with run_daemon(grace=30) as daemon:
        wire = Wire(daemon.target)
        wire.save(append("t", 0))
        stream = wire.threads.Watch(WatchRequest(thread=thread), timeout=60)
        next(stream)
        begun = time.monotonic()
        os.kill(daemon.pid, signal.SIGTERM)
        with pytest.raises(grpc.RpcError) as caught:
            next(stream)
        took = time.monotonic() - begun
        assert daemon.stop() == 0
        assert took < QUICK_S
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        wire.close()


@contextmanager
def hanging_bucket(directory: Path) -> Iterator[None]:
    """Every write to a bucket in a directory waits meanwhile."""
    with ExitStack() as stack:
        for lock in [path / ".lock" for path in (directory, *directory.rglob("*")) if path.is_dir()]:
            file = stack.enter_context(lock.open("w"))
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.mark.usefixtures("begun_warm")
def test_a_bucket_that_hangs_does_not_hold_up_the_stop(tmp_path: Path) -> None:
    """It ends with its grace time and exit code 0, says what is not archived, and the next start archives that."""
    bucket = tmp_path / "bucket"
    with run_daemon(grace=GRACE_S, archive=bucket.as_uri(), archive_interval=60) as daemon:
        wire = Wire(daemon.target)
        for thread in ("idle", "waited for"):
            wire.save(append(thread, 0, durability=DURABILITY_ARCHIVED))
        with hanging_bucket(bucket):
            wire.save(append("idle", 1))
            waiting = wire.checkpoints.Save.future(append("waited for", 1, durability=DURABILITY_ARCHIVED))
            wire.save(append("idle", 2))
            begun = time.monotonic()
            assert daemon.stop() == 0
            assert time.monotonic() - begun < GRACE_S + QUICK_S
            waiting.code()
        assert '"threads": 2' in daemon.stderr
        wire.close()
        daemon.start()
        wire = Wire(daemon.target)
        for thread, sequence in (("idle", 3), ("waited for", 2)):
            request = WaitDurableRequest(
                thread=thread, receipt=Receipt(sequence=sequence), durability=DURABILITY_ARCHIVED
            )
            assert wire.threads.WaitDurable(request, timeout=10).receipt.durability == DURABILITY_ARCHIVED
        wire.close()


def test_impatient_supervisors_get_a_good_exit_code() -> None:
    """SIGTERM again and again until the process is gone: it ends as if there had been one, also while Python ends."""
    with run_daemon() as daemon:
        process = daemon._process
        assert process is not None
        while process.poll() is None:
            process.send_signal(signal.SIGTERM)
            time.sleep(0.005)
        assert process.returncode == 0


BUSY = """
import sys, threading, grpc
from stateward.v1 import admin_service_pb2 as admin, admin_service_pb2_grpc as services

def work():
    stub = services.AdminServiceStub(grpc.insecure_channel(sys.argv[1], [("grpc.use_local_subchannel_pool", 1)]))
    is_there = True
    while is_there:
        try:
            stub.GetServerInfo(admin.GetServerInfoRequest())
            at_work.set()
        except grpc.RpcError as error:
            is_there = "the daemon is stopping" in error.details()

at_work = threading.Event()
for _ in range(8):
    threading.Thread(target=work).start()
at_work.wait()
print("at work", flush=True)
"""


@pytest.mark.usefixtures("begun_warm")
def test_a_stop_writes_nothing_to_its_clients() -> None:
    """A Python program that is at work as the daemon stops finds no line of gRPC's on its stderr."""
    with run_daemon() as daemon:
        command = [sys.executable, "-c", BUSY, daemon.target]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as client:
            assert client.stdout is not None
            assert client.stdout.readline() == "at work\n"
            assert daemon.stop() == 0
            _, said = client.communicate(timeout=30)
    assert said == ""


def test_an_idle_daemon_stops_at_once() -> None:
    """Without calls in flight, with a connection open, SIGTERM and SIGINT end it within moments."""
    for number in (signal.SIGTERM, signal.SIGINT):
        with run_daemon(grace=30) as daemon:
            wire = Wire(daemon.target)
            wire.save(append("t", 0))
            begun = time.monotonic()
            os.kill(daemon.pid, number)
            assert daemon.stop() == 0
            assert time.monotonic() - begun < QUICK_S
            assert "Traceback" not in daemon.stderr
            wire.close()
