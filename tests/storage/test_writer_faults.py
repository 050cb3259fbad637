"""The danger: a write past its deadline, of a failed batch or a failing sync counts as written. Only the faults are
made up."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import lmdb
import pytest
from tests.daemon.store import WAIT_S, apply_together

from stateward_sidecar.errors import DeadlineExceeded, DiskFull, InvalidField, OutcomeUnknown, QueueFull, ShuttingDown
from stateward_sidecar.storage import queue as queue_module
from stateward_sidecar.storage.engine import Engine
from stateward_sidecar.storage.queue import JOIN_BYTES_MAX, QUEUE_WRITES_MAX, Batch, Write
from stateward_sidecar.storage.writer import Writer


class LoneWriter:
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
def rig(tmp_path: Path) -> Iterator[LoneWriter]:
    made = LoneWriter(tmp_path)
    yield made
    made.writer.stop()
    made.engine.close()


def test_a_write_whose_deadline_has_passed_is_never_run(rig: LoneWriter) -> None:
    """Looked at once, when it is taken: a write that waited too long, or was cancelled, leaves nothing."""
    late, cancelled, good = rig.put(b"late", deadline=0.0), rig.put(b"cancelled"), rig.put(b"good")
    cancelled.cancelled = True
    rig.writer.start()
    assert good.wait()
    for write in (late, cancelled):
        with pytest.raises(DeadlineExceeded):
            write.wait()
    assert rig.stored() == [b"good"]


def test_what_was_written_is_let_go_of(rig: LoneWriter) -> None:
    """A write holds its request and the state made of it, perhaps hundreds of megabytes: an idle writer keeps none."""
    freed = threading.Event()

    class Held:
        def put(self, txn: lmdb.Transaction, batch: Batch) -> bool:
            return txn.put(b"held", b"x")

    held = Held()
    weakref.finalize(held, freed.set)
    rig.writer.start()
    write = rig.write(held.put)
    assert write.wait()
    del held, write
    assert freed.wait(WAIT_S)


def test_a_write_that_fails_takes_nobody_with_it(rig: LoneWriter) -> None:
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


def test_a_full_queue_refuses_and_deletions_still_get_in(rig: LoneWriter) -> None:
    """Beyond the limit of waiting writes QUEUE_FULL is said at once, and space can still be freed."""
    queued = [rig.put(b"%d" % number) for number in range(QUEUE_WRITES_MAX)]
    with pytest.raises(QueueFull):
        rig.put(b"more")
    freeing = rig.put(b"freeing", frees_space=True)
    rig.writer.start()
    assert freeing.wait()
    assert all(write.wait() for write in queued)
    assert b"more" not in rig.stored()


def test_after_a_stop_nothing_is_taken_and_what_was_taken_is_done(rig: LoneWriter) -> None:
    """`stop` finishes the queue, then refuses."""
    queued = [rig.put(b"%d" % number) for number in range(100)]
    rig.writer.start()
    rig.writer.stop()
    assert all(write.wait() for write in queued)
    with pytest.raises(ShuttingDown):
        rig.put(b"late")


def applied(rig: LoneWriter, run: Callable[[lmdb.Transaction, Batch], Any]) -> Write:
    """A write that this thread runs once the writer is free; only its commit is the writer's."""
    write = Write(run=run)
    apply_together(rig.writer, [write])
    return write


def test_a_small_background_write_is_committed_with_others(rig: LoneWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a queue or of a caller's own batch; never with a write that must be alone, and never if it is large."""
    monkeypatch.setattr(queue_module, "JOIN_S", WAIT_S)
    rig.writer.start()
    waiting = rig.put(b"1", background=True, has_time=True)
    assert applied(rig, lambda txn, batch: txn.put(b"2", b"x")).wait()
    assert waiting.wait()
    assert rig.writer.commits == 1
    waiting = rig.put(b"3", background=True, has_time=True)
    assert rig.put(b"4", is_alone=True).wait()
    assert waiting.result is None
    assert rig.put(b"5").wait()
    assert waiting.wait()
    assert rig.writer.commits == 3


def test_a_background_write_that_has_not_said_so_is_committed_alone(rig: LoneWriter) -> None:
    """It may destroy a key before the commit, or take long: neither must happen in a batch with saves."""
    batches = list[Batch]()

    def look(txn: lmdb.Transaction, batch: Batch) -> None:
        batches.append(batch)

    background = rig.write(look, background=True, frees_space=True)
    saves = [rig.write(look), rig.write(look)]
    rig.writer.start()
    for write in (background, *saves):
        write.wait()
    assert batches[0] is batches[1]
    assert batches[1] is not batches[2]


@pytest.mark.parametrize(
    "fields", [{}, {"has_time": True, "size_bytes": JOIN_BYTES_MAX + 1}], ids=["waited for", "large"]
)
def test_a_background_write_that_has_no_time_is_committed_at_once(
    rig: LoneWriter, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]
) -> None:
    """Somebody waits for it, or no batch would take it. Those before it need not wait any longer."""
    monkeypatch.setattr(queue_module, "JOIN_S", 10 * WAIT_S)
    rig.writer.start()
    waiting = rig.put(b"1", background=True, has_time=True)
    started = time.monotonic()
    assert rig.put(b"2", background=True, **fields).wait()
    assert waiting.wait()
    assert time.monotonic() - started < WAIT_S


def test_a_background_write_does_not_wait_for_long(rig: LoneWriter) -> None:
    """Without other writes it is committed by itself, also at the end; one that fails takes nobody with it."""
    rig.writer.start()
    assert rig.put(b"1", background=True, has_time=True).wait()

    def fail(txn: lmdb.Transaction, batch: Batch) -> None:
        txn.put(b"half", b"x")
        raise InvalidField("f", "is wrong")

    failing = rig.write(fail, background=True, has_time=True)
    assert rig.put(b"2").wait()
    with pytest.raises(InvalidField):
        failing.wait()
    last = rig.put(b"3", background=True, has_time=True)
    rig.writer.stop()
    assert last.wait()
    assert rig.stored() == [b"1", b"2", b"3"]


def test_nothing_goes_before_what_was_taken(rig: LoneWriter) -> None:
    """The thread has taken a batch and the queue looks empty: a caller's own batch must wait, and is told when to."""
    begun, go_on, free = threading.Event(), threading.Event(), threading.Event()

    def hold(txn: lmdb.Transaction, batch: Batch) -> None:
        begun.set()
        assert go_on.wait(WAIT_S)
        txn.put(b"1", b"x")

    rig.writer.start()
    first = rig.write(hold)
    assert begun.wait(WAIT_S)
    assert rig.writer.queued == 0
    assert not rig.writer.is_free
    assert not rig.writer.apply([Write(run=lambda txn, batch: txn.put(b"2", b"x"))])
    assert rig.writer.call_when_free(free.set)
    assert not free.is_set()
    go_on.set()
    first.wait()
    assert free.wait(WAIT_S)
    order: list[bytes | None] = []

    def look(txn: lmdb.Transaction, batch: Batch) -> None:
        order.append(txn.get(b"1") and bytes(txn.get(b"1")))
        txn.put(b"2", b"x")

    applied(rig, look).wait()
    assert order == [b"x"]
    assert rig.stored() == [b"1", b"2"]


def test_a_callers_batch_is_seen_by_nobody_before_its_commit(rig: LoneWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its puts are done, its sync takes long: readers see the old state, nobody is told, and the next write waits."""
    slow = SlowSync(rig, monkeypatch)
    rig.writer.start()
    with slow:
        first = applied(rig, lambda txn, batch: txn.put(b"1", b"x"))
        assert slow.begun.wait(WAIT_S)
        assert not first._done.is_set()  # type: ignore[union-attr]
        assert rig.stored() == []
        assert not rig.writer.apply([Write(run=lambda txn, batch: txn.put(b"2", b"x"))])
        second = rig.put(b"3")
    assert first.wait()
    assert second.wait()
    assert rig.stored() == [b"1", b"3"]


def test_a_callers_batch_shares_the_fate_of_its_commit(rig: LoneWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk error under a batch that was run elsewhere: OUTCOME_UNKNOWN, and nothing is taken any more."""
    begin_failing(rig, monkeypatch)
    rig.writer.start()
    write = applied(rig, lambda txn, batch: txn.put(b"1", b"x"))
    with pytest.raises(OutcomeUnknown):
        write.wait()
    assert rig.ended.wait(WAIT_S)
    assert not rig.writer.apply([Write(run=lambda txn, batch: txn.put(b"2", b"x"))])
    assert not rig.writer.call_when_free(lambda: None)


def test_a_callers_batch_of_failures_leaves_nothing(rig: LoneWriter) -> None:
    """Where every write of it fails, nothing is committed, and the next batch begins afresh."""

    def fail(txn: lmdb.Transaction, batch: Batch) -> None:
        txn.put(b"half", b"x")
        raise InvalidField("f", "is wrong")

    rig.writer.start()
    with pytest.raises(InvalidField):
        applied(rig, fail).wait()
    applied(rig, lambda txn, batch: txn.put(b"1", b"x")).wait()
    assert (rig.stored(), rig.writer.commits) == ([b"1"], 1)


def test_an_idle_writer_leaves_the_file_to_who_copies_it(rig: LoneWriter, tmp_path: Path) -> None:
    """The transaction that was begun ahead is given back: a copy of the live store is made, and writes go on."""
    rig.writer.start()
    assert rig.put(b"1").wait()
    copying = "import lmdb, sys; lmdb.open(sys.argv[1], lock=True).copy(sys.argv[2])"
    (tmp_path / "copy").mkdir()
    subprocess.run([sys.executable, "-c", copying, rig.engine.directory, tmp_path / "copy"], check=True, timeout=WAIT_S)
    applied(rig, lambda txn, batch: txn.put(b"2", b"x")).wait()
    assert rig.stored() == [b"1", b"2"]


class FailingCommit:
    """An environment whose commits of top transactions fail as a broken disk does, until it is mended."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self.is_broken = True

    def begin(self, **options: Any) -> Any:
        txn = self._env.begin(**options)
        return txn if options.get("parent") is not None or not options.get("write") else FailingTxn(txn, self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)


class FailingTxn:
    def __init__(self, txn: Any, env: FailingCommit) -> None:
        self._txn = txn
        self._env = env

    def commit(self) -> None:
        if not self._env.is_broken:
            self._txn.commit()
            return
        self._txn.abort()
        raise lmdb.DiskError("mdb_txn_commit: Input/output error")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._txn, name)


def test_a_failing_sync_is_unknown_for_everybody_and_the_end(rig: LoneWriter, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_commit_cut_short_by_a_full_disk_is_no_end(rig: LoneWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    """LMDB says EIO where the disk took a part of a page: DISK_FULL, and writes go on when there is room."""
    env = begin_failing(rig, monkeypatch)
    full = os.statvfs_result((4096, 4096, 1000, 0, 0, 0, 0, 0, 0, 255))
    write = rig.put(b"1")
    with monkeypatch.context() as disk:
        disk.setattr(rig.engine, "room_bytes", lambda: 1 << 20)
        disk.setattr(os, "statvfs", lambda path: full)
        rig.writer.start()
        with pytest.raises(DiskFull):
            write.wait()
    env.is_broken = False
    assert rig.put(b"2").wait()
    assert (rig.stored(), rig.fatal) == ([b"2"], [])


class SlowSync:
    """The commit of a top transaction waits as long as this is entered."""

    def __init__(self, rig: LoneWriter, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self._over = threading.Event(), threading.Event()
        real = rig.writer._commit

        def commit(applied: Any) -> bool:
            self.begun.set()
            assert self._over.wait(WAIT_S)
            return real(applied)

        monkeypatch.setattr(rig.writer, "_commit", commit)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()


def begin_failing(rig: LoneWriter, monkeypatch: pytest.MonkeyPatch) -> FailingCommit:
    real = rig.engine.env

    class Wrapped(FailingCommit):
        def begin(self, **options: Any) -> Any:
            parent = options.get("parent")
            if isinstance(parent, FailingTxn):
                options["parent"] = parent._txn
            return super().begin(**options)

    env = Wrapped(real)
    monkeypatch.setattr(rig.engine._opened, "env", env)
    return env
