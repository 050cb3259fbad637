"""The danger: one slow sync of the disk stops reads and health checks, so that a supervisor kills a daemon that
works."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.daemon.inside import WAIT_S, Inside, daemon_inside
from tests.daemon.wire import appends, sets
from tests.messages import to_write

from stateward.v1 import blob_service_pb2 as b
from stateward.v1.checkpoint_pb2 import DURABILITY_ARCHIVED
from stateward.v1.checkpoint_service_pb2 import HydrateRequest, SaveRequest
from stateward.v1.thread_service_pb2 import GetThreadRequest, ListThreadsRequest
from stateward_sidecar.store.store import DISK_WORKERS

# While a sync never ends, this is long for everything else.
LONG_S = 5.0


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Inside]:
    with daemon_inside(tmp_path) as inside:
        for thread in ("busy", "hot", "cold"):
            inside.wire.save(save(thread, 0))
        store = inside.parts.store
        store.threads.forget(store.threads.cached("default", "cold"))  # type: ignore[arg-type]
        yield inside


def save(thread: str, number: int, **fields: Any) -> SaveRequest:
    return to_write(SaveRequest, thread=thread, request_id=f"{thread}-{number}", **{"diff": appends("x"), **fields})


class Sync:
    """Takes the place of a sync, and does not end before the test lets it."""

    def __init__(self, real: Callable[..., Any]) -> None:
        self._real = real
        self.begun, self._over = threading.Semaphore(0), threading.Event()

    def __call__(self, *arguments: Any) -> Any:
        self.begun.release()
        assert self._over.wait(WAIT_S)
        return self._real(*arguments)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()


class SlowTxn:
    """A transaction whose commit is such a sync. Others, and child transactions, see the real one."""

    def __init__(self, txn: Any, sync: Sync) -> None:
        self.txn, self._sync = txn, sync

    def commit(self) -> None:
        self._sync(self.txn.commit)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.txn, name)


class SlowEnv:
    """An environment in which every commit takes long."""

    def __init__(self, env: Any, sync: Sync) -> None:
        self._env, self._sync = env, sync

    def begin(self, **options: Any) -> Any:
        parent = options.get("parent")
        if parent is not None:
            return self._env.begin(**{**options, "parent": getattr(parent, "txn", parent)})
        txn = self._env.begin(**options)
        return SlowTxn(txn, self._sync) if options.get("write") else txn

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)


def others_are_answered(daemon: Inside, busy_version: int = 1) -> None:
    """Health, what is in memory, what is not, and lists."""
    wire = daemon.wire
    health = health_pb2_grpc.HealthStub(wire.channel).Check(health_pb2.HealthCheckRequest(), timeout=LONG_S)
    assert health.status == health_pb2.HealthCheckResponse.SERVING
    for thread, version in (("hot", 1), ("cold", 1), ("busy", busy_version)):
        answer = wire.checkpoints.Hydrate(HydrateRequest(thread=thread), timeout=LONG_S)
        assert answer.checkpoint.version == version
        shown = wire.threads.GetThread(GetThreadRequest(thread=thread), timeout=LONG_S).thread
        assert shown.last_version == version
    assert len(wire.threads.ListThreads(ListThreadsRequest(), timeout=LONG_S).threads) == 3


@pytest.mark.parametrize("size", [1, 400_000])
def test_a_slow_commit_holds_up_no_read(daemon: Inside, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """While the commit of one save, small or large, waits for the disk, reads and health are answered."""
    writer = daemon.parts.store.context.writer
    while not writer.is_asleep:  # the next transaction is begun anew
        time.sleep(0.01)
    with Sync(lambda commit: commit()) as sync:
        monkeypatch.setattr(writer._engine._opened, "env", SlowEnv(writer._engine.env, sync))
        calls = [daemon.wire.checkpoints.Save.future(save("busy", 1, diff=sets("slot", "x" * size)))]
        assert sync.begun.acquire(timeout=WAIT_S)
        calls += [daemon.wire.checkpoints.Save.future(save("busy", number)) for number in range(2, 40)]
        others_are_answered(daemon)
        assert not any(call.done() for call in calls)
    assert sorted(call.result(WAIT_S).version for call in calls) == list(range(2, 41))


def test_a_slow_key_store_holds_up_no_read(daemon: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the key of a new thread is synced, reads and health are answered."""
    keystore = daemon.parts.store.context.keystore
    with Sync(keystore.sync) as sync:
        monkeypatch.setattr(keystore, "sync", sync)
        call = daemon.wire.checkpoints.Save.future(save("new", 0))
        assert sync.begun.acquire(timeout=WAIT_S)
        others_are_answered(daemon)
        assert not call.done()
    assert call.result(WAIT_S).version == 1


def test_slow_blobs_hold_up_no_read(daemon: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    """While more blobs are synced than there are threads for it, reads and health are answered."""
    blobs = daemon.wire.blobs

    def parts(number: int) -> Iterator[b.WriteBlobRequest]:
        yield b.WriteBlobRequest(begin=b.BlobBegin(thread="busy", media_type="text/plain"))
        yield b.WriteBlobRequest(data=b"%d" % number * 100_000)

    with Sync(os.fsync) as sync:
        monkeypatch.setattr("stateward_sidecar.storage.blobfiles.os.fsync", sync)
        calls = [blobs.WriteBlob.future(parts(number)) for number in range(DISK_WORKERS + 2)]
        for _ in range(DISK_WORKERS):
            assert sync.begun.acquire(timeout=WAIT_S)
        others_are_answered(daemon)
    for call in calls:
        assert call.result(WAIT_S).blob.size_bytes == 100_000


def test_a_thread_that_left_memory_is_looked_for_beside_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between a commit and the wait for its level, others push the thread out of memory, and the disk is slow."""
    with daemon_inside(tmp_path, archive=f"file://{tmp_path}/bucket", archive_interval="0.05") as daemon:
        for thread in ("busy", "hot", "cold"):
            daemon.wire.save(save(thread, 0))
        store = daemon.parts.store
        with Sync(store.lines.find) as find:
            monkeypatch.setattr(store.lines, "find", find)
            monkeypatch.setattr(store.threads, "cached", lambda *_: None)
            call = daemon.wire.checkpoints.Save.future(save("busy", 1, durability=DURABILITY_ARCHIVED))
            assert find.begun.acquire(timeout=WAIT_S)
            others_are_answered(daemon, busy_version=2)
            assert not call.done()
        assert call.result(WAIT_S).receipt.durability == DURABILITY_ARCHIVED
