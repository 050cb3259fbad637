"""The danger: a compaction loses what was committed while it ran, takes the data away from a reader, or leaves bytes of
deleted threads in the data directory."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lmdb
import pytest
from tests.daemon.store import findings, hydrate, make_store, opened, save, settle, write

from stateward.v1.thread_service_pb2 import DeleteThreadRequest
from stateward_sidecar.errors import DiskFull, QueueFull
from stateward_sidecar.storage import compaction, layout
from stateward_sidecar.storage.files import place_of
from stateward_sidecar.store.store import Store

DELETED, KEPT = 40, 5
WAIT_S = 30.0


def delete(store: Store, name: str) -> None:
    write(store, store.deleter.delete(DeleteThreadRequest(namespace="default", thread=name)))


def fill(store: Store) -> None:
    """Threads that stay, and larger ones that are deleted."""
    for number in range(DELETED):
        save(store, os.urandom(30_000).hex(), thread=f"gone-{number}")
    for number in range(KEPT):
        save(store, f"kept {number}", thread=f"kept-{number}")
    for number in range(DELETED):
        delete(store, f"gone-{number}")
    settle(store)


def rows_of(store: Store) -> dict[bytes, bytes]:
    with store.context.engine.read() as txn:
        return {bytes(key): bytes(value) for key, value in txn.cursor()}


def leftovers(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir() if path.name.startswith((".fresh-", ".old-"))]


def test_the_file_becomes_small_and_has_every_row(tmp_path: Path) -> None:
    """Rows, Verify and the next start are as before; nothing else is left in the directory."""
    with opened(tmp_path) as store:
        fill(store)
        before = rows_of(store)
        done = store.compactor.compact()
        assert rows_of(store) == before
        assert done.is_removed
        assert done.after_bytes < done.before_bytes / 3
        assert done.after_bytes == (tmp_path / "data.mdb").stat().st_size
        assert store.context.engine.is_in_place()
        assert leftovers(tmp_path) == []
        save(store, "after", thread="kept-0")
        assert findings(store) == []
    with opened(tmp_path) as store:
        assert findings(store) == []
        assert "after" in str(hydrate(store, "kept-0"))


def test_what_is_committed_meanwhile_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Saves, new threads and deletions between the copy and the change: each is in the fresh file."""
    real = compaction.Compactor._open_copy
    with opened(tmp_path) as store:
        fill(store)

        def interrupted(self: Any, fresh: Path) -> lmdb.Environment:
            env = real(self, fresh)
            save(store, "late", thread="kept-1")
            save(store, "new", thread="new")
            delete(store, "kept-2")
            return env

        monkeypatch.setattr(compaction.Compactor, "_open_copy", interrupted)
        store.compactor.compact()
        assert "late" in str(hydrate(store, "kept-1"))
        assert "new" in str(hydrate(store, "new"))
        with store.context.engine.read() as txn:
            assert store.threads.find(txn, "default", "kept-2") is None
        assert findings(store) == []
    with opened(tmp_path) as store:
        assert findings(store) == []


def test_saves_of_many_go_on(tmp_path: Path) -> None:
    """Four writers save all the time while the file is rewritten five times: every answer is kept."""
    over, answered = threading.Event(), [0] * 4

    def work(number: int) -> None:
        while not over.is_set():
            save(store, f"{number}-{answered[number]}", thread=f"w{number}")
            answered[number] += 1

    with opened(tmp_path) as store:
        fill(store)
        with ThreadPoolExecutor(4) as pool:
            jobs = [pool.submit(work, number) for number in range(4)]
            try:
                for _ in range(5):
                    store.compactor.compact()
            finally:
                over.set()
            for job in jobs:
                job.result(WAIT_S)
    with opened(tmp_path) as store:
        for number in range(4):
            said = str(hydrate(store, f"w{number}"))
            assert all(f'{number}-{each}"' in said for each in range(answered[number]))
        assert findings(store) == []


def test_a_reader_keeps_the_old_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read that began before the change sees its rows to its end, and knows that it is older; then the file goes."""
    with opened(tmp_path) as store, ThreadPoolExecutor(1) as pool:
        fill(store)
        engine, switched = store.context.engine, threading.Event()
        real = engine.take_map

        def told(env: lmdb.Environment) -> Any:
            former = real(env)
            switched.set()
            return former

        monkeypatch.setattr(engine, "take_map", told)
        with engine.read() as txn:
            job = pool.submit(store.compactor.compact)
            assert switched.wait(WAIT_S)
            save(store, "later", thread="kept-0")
            assert sum(1 for _ in txn.cursor()) < len(rows_of(store))
            assert txn.id() < engine.last_commit()
            assert not job.done()
        assert job.result(WAIT_S).is_removed


def test_another_program_that_reads_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy that runs keeps its file as it is; the next compaction or start removes it."""
    monkeypatch.setattr(compaction, "READERS_S", 0.3)
    with opened(tmp_path) as store:
        fill(store)
        data = (tmp_path / "data.mdb").read_bytes()
        with (tmp_path / "data.mdb").open("rb") as copying:
            assert not store.compactor.compact().is_removed
            assert len(leftovers(tmp_path)) == 1
            assert copying.read() == data
        store.compactor.remove_rest()
        assert leftovers(tmp_path) == []
        assert findings(store) == []


def test_the_old_bytes_are_written_over(tmp_path: Path) -> None:
    """Whoever still has the old file open by another name than ours reads zeros."""
    old = tmp_path / "file"
    old.write_bytes(b"secret" * 1_000_000)
    assert compaction._overwrite(old)
    assert old.read_bytes() == bytes(6_000_000)


def test_a_second_name_of_the_live_file_is_only_a_name(tmp_path: Path) -> None:
    """A process that was killed just before the change left one: the start removes the name, and no byte."""
    with opened(tmp_path) as store:
        fill(store)
        before = rows_of(store)
    os.link(tmp_path / "data.mdb", tmp_path / ".old-0123")
    (tmp_path / ".fresh-0123").mkdir()
    with opened(tmp_path) as store:
        assert rows_of(store) == before
        assert leftovers(tmp_path) == []


def test_data_that_stayed_were_not_moved(tmp_path: Path) -> None:
    """The row that says where the file lies names the fresh file, so that the next start takes no lease for it."""
    with opened(tmp_path) as store:
        fill(store)
        row = place_of(tmp_path / "data.mdb") + bytes(16)
        write(store, lambda txn, batch: txn.put(layout.PLACE_KEY, row))
        store.compactor.compact()
        assert rows_of(store)[layout.PLACE_KEY] == place_of(tmp_path / "data.mdb") + bytes(16) != row


def test_a_full_disk_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it is known before, or found in the middle of the copy: DISK_FULL, and the old file stays."""
    with opened(tmp_path) as store:
        fill(store)
        before, number = rows_of(store), (tmp_path / "data.mdb").stat().st_ino
        with monkeypatch.context() as patch:
            patch.setattr(store.context.engine, "disk_room_bytes", lambda: 1 << 20)
            with pytest.raises(DiskFull):
                store.compactor.compact()
        with monkeypatch.context() as patch:
            patch.setattr(compaction.Compactor, "_put", _fail_full)
            with pytest.raises(DiskFull):
                store.compactor.compact()
        assert (rows_of(store), (tmp_path / "data.mdb").stat().st_ino) == (before, number)
        assert leftovers(tmp_path) == []
        assert store.context.writer.changed is None
        save(store, "well", thread="kept-0")


def _fail_full(*_: object) -> None:
    raise lmdb.Error("write: No space left on device")


def test_too_much_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compaction that cannot catch up gives up, and the pause of writes stays bounded."""
    monkeypatch.setattr(compaction, "LAST_KEYS", 3)
    with opened(tmp_path) as store:
        fill(store)
        put, copy = compaction.Compactor._put, compaction.Compactor._open_copy

        def busy(self: Any, env: lmdb.Environment, keys: Any) -> None:
            put(self, env, keys)
            save(store, os.urandom(8).hex(), thread="busy")

        def begin_busy(self: Any, fresh: Path) -> lmdb.Environment:
            save(store, "first", thread="busy")
            return copy(self, fresh)

        monkeypatch.setattr(compaction.Compactor, "_put", busy)
        monkeypatch.setattr(compaction.Compactor, "_open_copy", begin_busy)
        with pytest.raises(QueueFull):
            store.compactor.compact()
        assert leftovers(tmp_path) == []
        assert findings(store) == []


def test_a_daemon_that_ends_does_not_wait_for_it(tmp_path: Path) -> None:
    """A compaction that comes when the writer has stopped is refused, and leaves nothing."""
    store = make_store(tmp_path)
    store.start()
    save(store, "x")
    store.context.writer.stop()
    with pytest.raises(Exception, match="stopping"):
        store.compactor.compact()
    store.close()
    assert leftovers(tmp_path) == []
