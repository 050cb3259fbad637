"""The danger: each watch of a deleted thread reads all deletions of a day, so many such watches stop the daemon; or one
damaged record hides the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.daemon.store import opened, save, write

from stateward.v1.thread_service_pb2 import DeleteThreadRequest, WatchRequest
from stateward_sidecar.storage import layout
from stateward_sidecar.store.journal.journal import next_place
from stateward_sidecar.store.read import watch
from stateward_sidecar.store.store import Store

THREADS = 30


def delete(store: Store, name: str) -> None:
    write(store, store.deleter.delete(DeleteThreadRequest(namespace="default", thread=name)))


def test_a_watch_finds_its_deletion_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks at the newest deletions first, and at older ones if it was away."""
    opens = [0]
    with opened(tmp_path) as store:
        watches = {}
        for number in range(THREADS):
            save(store, "x", thread=f"{number}")
            watches[number] = store.watcher.open(WatchRequest(namespace="default", thread=f"{number}"))
        real = watch.open_deletion

        def counted(*arguments: Any) -> Any:
            opens[0] += 1
            return real(*arguments)

        monkeypatch.setattr(watch, "open_deletion", counted)
        for number in range(THREADS):
            delete(store, f"{number}")
            if number:
                assert [event.WhichOneof("what") for event in store.watcher.read(watches[number])] == ["deleted"]
        assert opens[0] < 2 * THREADS
        assert [event.thread for event in store.watcher.read(watches[0])] == ["0"]
        assert all(each.is_over for each in watches.values())


def test_a_deletion_that_cannot_be_read_hides_no_other(tmp_path: Path) -> None:
    """The record of another thread is damaged: a watch is still told of the deletion of its own."""
    with opened(tmp_path) as store:
        for name in ("mine", "other"):
            save(store, "x", thread=name)
        mine = store.watcher.open(WatchRequest(namespace="default", thread="mine"))
        delete(store, "mine")
        delete(store, "other")

        def damage(txn: Any, batch: Any) -> None:
            del batch
            key = layout.deletion_key(next_place(txn) - 1)
            row = bytes(txn.get(key))
            txn.put(key, row[:-1] + bytes([row[-1] ^ 1]))

        write(store, damage)
        assert [event.WhichOneof("what") for event in store.watcher.read(mine)] == ["deleted"]
