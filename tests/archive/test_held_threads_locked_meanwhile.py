"""The danger: a held thread is locked in the middle of a ship, a snapshot, a sweep, a deletion or a kill, and loses
something, or stays half open."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.daemon.process import FAST

from stateward import Client
from stateward.errors import Locked, StatewardError, ThreadNotFound, UidMismatch
from stateward.options import Retention, ThreadOptions
from stateward.testing import Daemon, run_daemon

KEY = bytes(range(32))
AT_ONCE = {"held_for": "0.01s", "sweep_interval": "0.05"}
WORK_S = 4.0


@pytest.fixture(params=["alone", "archived"])
def daemon(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Daemon]:
    """It locks a held thread as soon as it can."""
    flags = dict(AT_ONCE)
    if request.param == "archived":
        flags |= {**FAST, "archive": f"file://{tmp_path / 'bucket'}"}
    with run_daemon(tmp_path / "data", **flags) as running:
        yield running


def in_parallel(*works: Callable[[threading.Event], int]) -> list[int]:
    """Runs works until the time is over. Returns how often each did its part."""
    is_over = threading.Event()
    with ThreadPoolExecutor(len(works)) as pool:
        running = [pool.submit(work, is_over) for work in works]
        time.sleep(WORK_S)
        is_over.set()
        return [each.result() for each in running]


def is_in_order(daemon: Daemon, client: Client) -> None:
    assert [each.finding for each in client.verify() if each.finding] == []
    if "archive" in daemon._flags:
        assert [each.finding for each in client.archive.verify() if each.finding] == []
    assert client.stats().background_failures == 0
    assert "INTERNAL" not in daemon.stderr
    assert "Traceback" not in daemon.stderr


def test_work_goes_on(daemon: Daemon) -> None:
    """Whatever the daemon does beside the calls, each call finds what the last one left."""
    create = ThreadOptions(retention=Retention(keep_last=5))

    def work(name: str) -> Callable[[threading.Event], int]:
        def run(is_over: threading.Event) -> int:
            count = 0
            with daemon.client() as client:
                thread = client.thread(name, session_key=KEY)
                while not is_over.wait(random.choice((0, 0, 0.03))):
                    thread.append("m", f"{count} " + os.urandom(3000).hex(), create=create, request_id=str(count))
                    count += 1
                    if count % 7 == 0:
                        thread.records.put(f"k{count % 5}", count)
                        thread.blobs.write(os.urandom(2000))
                    if count % 5 == 0:
                        assert len(thread.hydrate().logs["m"]) == count
                    if count % 11 == 0:
                        thread.prune(keep_latest_per_branch=3)
                assert len(thread.hydrate().logs["m"]) == count
            return count

        return run

    counts = in_parallel(work("a"), work("b"))
    with daemon.client() as client:
        for name, count in zip("ab", counts, strict=True):
            log = client.thread(name, session_key=KEY).hydrate().logs["m"]
            assert [each.split()[0] for each in log] == [str(number) for number in range(count)]
        is_in_order(daemon, client)


def test_deletions_beside_calls_that_open(daemon: Daemon) -> None:
    """A call with the key and a deletion without it: one of them is first, and no answered save is lost to a deletion
    that came before it."""

    def work(is_over: threading.Event) -> int:
        count = 0
        with daemon.client() as client:
            while not is_over.is_set():
                thread = client.thread("d", session_key=KEY)
                try:
                    thread.append("m", str(count))
                    thread.append("m", str(count))
                    thread.hydrate()
                    count += 1
                except (ThreadNotFound, UidMismatch):
                    continue  # deleted in between
        return count

    def delete(is_over: threading.Event) -> int:
        count = 0
        with daemon.client() as client:
            while not is_over.wait(random.uniform(0, 0.05)):
                count += bool(client.thread("d").delete(missing_ok=True))
        return count

    worked, deleted = in_parallel(work, delete)
    assert worked
    assert deleted
    with daemon.client() as client:
        client.thread("d").delete(missing_ok=True)
        with pytest.raises(ThreadNotFound):
            client.thread("d", session_key=KEY).info()
        client.thread("d", session_key=KEY).append("m", "again")
        is_in_order(daemon, client)


def test_kills(daemon: Daemon) -> None:
    """Each save that was answered is there after a kill, with the key alone."""
    answered = 0
    for _ in range(4):
        is_over = threading.Event()

        def work(is_over: threading.Event = is_over) -> None:
            nonlocal answered
            with Client(daemon.target, retry_timeout=0.1) as client:
                thread = client.thread("k", session_key=KEY)
                while not is_over.is_set():
                    try:
                        thread.append("m", answered, request_id=str(answered))
                        answered += 1
                    except StatewardError:
                        return

        with ThreadPoolExecutor(1) as pool:
            working = pool.submit(work)
            time.sleep(random.uniform(0.2, 0.8))
            daemon.kill()
            is_over.set()
            working.result()
        daemon.start()
        with daemon.client() as client:
            with pytest.raises(Locked):
                client.thread("k").hydrate()
            found = list(client.thread("k", session_key=KEY).hydrate().logs["m"])
            assert len(found) >= answered  # the last one may have been on its way
            answered = len(found)
            assert found == list(range(answered))
            is_in_order(daemon, client)

