"""The writer's promises under faults: deadlines, a full queue, a failing sync. Only the faults are made up."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lmdb
import pytest

from stateward_sidecar.errors import DeadlineExceeded, DiskFull, InvalidField, OutcomeUnknown, QueueFull, ShuttingDown
from stateward_sidecar.storage.engine import Engine
from stateward_sidecar.storage.writer import QUEUE_WRITES_MAX, Batch, Write, Writer

WAIT_S = 10.0


class Rig:
    """A writer on a real environment."""

    def __init__(self, directory: Path) -> None:
        self.engine = Engine(directory, 64 << 20)
        self.fatal: list[BaseException] = []
        self.ended = threading.Event()
        self.writer = Writer(self.engine, lambda writes: None, self._on_fatal)

    def _on_fatal(self, error: BaseException) -> None:
        self.fatal.append(error)
        self.ended.set()

    def write(self, run: Callable[[lmdb.Transaction, Batch], Any], **fields: Any) -> Write:
        return self.writer.submit(Write(run=run, **fields), wait=True)

    def put(self, key: bytes, **fields: Any) -> Write:
        return self.write(lambda txn, batch: txn.put(key, b"x"), **fields)

    def stored(self) -> list[bytes]:
        with self.engine.env.begin() as txn:
            return [key for key in txn.cursor().iternext(values=False) if not key.startswith(b"M")]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.writer.stop()
    made.engine.close()


def test_a_write_whose_deadline_has_passed_is_never_run(rig: Rig) -> None:
    """Looked at once, when it is taken: a write that waited too long, or was cancelled, leaves nothing."""
    late, cancelled, good = rig.put(b"late", deadline=0.0), rig.put(b"cancelled"), rig.put(b"good")
    cancelled.cancelled = True
    rig.writer.start()
    assert good.wait()
    for write in (late, cancelled):
        with pytest.raises(DeadlineExceeded):
            write.wait()
    assert rig.stored() == [b"good"]


def test_a_write_that_fails_takes_nobody_with_it(rig: Rig) -> None:
    """What it had put is gone, whatever it raised; the writes of the same batch are kept."""

    def fail(error: Exception) -> Callable[[lmdb.Transaction, Batch], None]:
        def run(txn: lmdb.Transaction, batch: Batch) -> None:
            txn.put(b"half", b"x")
            raise error

        return run

    before, typed, untyped, after = (
        rig.put(b"1"), rig.write(fail(InvalidField("f", "is wrong"))), rig.write(fail(KeyError("?"))), rig.put(b"2"),
    )  # fmt: skip
    rig.writer.start()
    assert before.wait()
    assert after.wait()
    with pytest.raises(InvalidField):
        typed.wait()
    with pytest.raises(KeyError):
        untyped.wait()
    assert rig.stored() == [b"1", b"2"]
    assert rig.writer.commits == 1


def test_a_full_queue_refuses_and_deletions_still_get_in(rig: Rig) -> None:
    """Beyond the limit of waiting writes QUEUE_FULL is said at once, and space can still be freed."""
    queued = [rig.put(b"%d" % number) for number in range(QUEUE_WRITES_MAX)]
    with pytest.raises(QueueFull):
        rig.put(b"more")
    freeing = rig.put(b"freeing", frees_space=True)
    rig.writer.start()
    assert freeing.wait()
    assert all(write.wait() for write in queued)
    assert b"more" not in rig.stored()


def test_after_a_stop_nothing_is_taken_and_what_was_taken_is_done(rig: Rig) -> None:
    """`stop` finishes the queue, then refuses."""
    queued = [rig.put(b"%d" % number) for number in range(100)]
    rig.writer.start()
    rig.writer.stop()
    assert all(write.wait() for write in queued)
    with pytest.raises(ShuttingDown):
        rig.put(b"late")


class LateLock:
    """A lock that whoever waits for it gets a moment later than whoever only tries."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.waits, self.may_enter = threading.Event(), threading.Event()

    def __enter__(self) -> None:
        self.waits.set()
        assert self.may_enter.wait(WAIT_S)
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lock, name)


def test_nothing_goes_before_what_was_taken(rig: Rig) -> None:
    """The thread has taken a batch and not yet its turn, the queue looks empty: a caller's own batch must wait."""
    lock = rig.writer._turn = LateLock()  # type: ignore[assignment]
    rig.writer.start()
    first = rig.put(b"first")
    assert lock.waits.wait(WAIT_S)
    assert rig.writer.queued == 0
    assert not rig.writer.is_free
    assert not rig.writer.run_now([Write(run=lambda txn, batch: txn.put(b"second", b"x"))])
    lock.may_enter.set()
    assert first.wait()
    assert rig.stored() == [b"first"]
    for _ in range(100):
        if rig.writer.is_free:
            break
        threading.Event().wait(0.01)
    assert rig.writer.run_now([Write(run=lambda txn, batch: txn.put(b"second", b"x"))])
    assert rig.stored() == [b"first", b"second"]


class FailingCommit:
    """An environment whose next commit of a top transaction fails as a broken disk does."""

    def __init__(self, env: Any) -> None:
        self._env = env

    def begin(self, **options: Any) -> Any:
        txn = self._env.begin(**options)
        return txn if options.get("parent") is not None or not options.get("write") else FailingTxn(txn)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)


class FailingTxn:
    def __init__(self, txn: Any) -> None:
        self._txn = txn

    def commit(self) -> None:
        self._txn.abort()
        raise lmdb.DiskError("mdb_txn_commit: Input/output error")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._txn, name)


def test_a_failing_sync_is_unknown_for_everybody_and_the_end(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk error at commit: nobody is told that it worked, or that it did not; no later write is taken."""
    begin_failing(rig, monkeypatch)
    first, second = rig.put(b"1"), rig.put(b"2", is_alone=True)
    rig.writer.start()
    for write in (first, second):
        with pytest.raises(OutcomeUnknown):
            write.wait()
    assert rig.ended.wait(WAIT_S)
    assert len(rig.fatal) == 1
    with pytest.raises(ShuttingDown):
        rig.put(b"3")


def test_a_commit_cut_short_by_a_full_disk_is_no_end(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """LMDB says EIO where the disk took a part of a page: DISK_FULL, and writes go on when there is room."""
    begin_failing(rig, monkeypatch)
    full = os.statvfs_result((4096, 4096, 1000, 0, 0, 0, 0, 0, 0, 255))
    write = rig.put(b"1")
    with monkeypatch.context() as disk:
        disk.setattr(rig.engine, "room_bytes", lambda: 1 << 20)
        disk.setattr(os, "statvfs", lambda path: full)
        rig.writer.start()
        with pytest.raises(DiskFull):
            write.wait()
    monkeypatch.undo()
    assert rig.put(b"2").wait()
    assert (rig.stored(), rig.fatal) == ([b"2"], [])


def begin_failing(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    real = rig.engine.env

    class Wrapped(FailingCommit):
        def begin(self, **options: Any) -> Any:
            parent = options.get("parent")
            if isinstance(parent, FailingTxn):
                options["parent"] = parent._txn
            return super().begin(**options)

    monkeypatch.setattr(rig.engine, "env", Wrapped(real))
