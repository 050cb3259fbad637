"""The danger: a state that is as its snapshot says is read from disk, opened and parsed for every read of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.daemon.store import get, opened, rest, save
from tests.daemon.wire import appends

from stateward.v1.checkpoint_service_pb2 import HydrateRequest
from stateward_sidecar.store.journal import replay


def test_a_snapshot_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a start, the first read keeps the state; the next ones, also of small pages, do not read the snapshot."""
    with opened(tmp_path) as store:
        save(store, "r", "t", diff=appends(os.urandom(1_000_000).hex()))
        store.snapshots.consider(get(store, "t"), "main")
        rest(store)
    read, seen = replay.read_snapshot, list[int]()

    def noting(*args: object) -> tuple[bytes, bytes]:
        seen.append(1)
        return read(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(replay, "read_snapshot", noting)
    with opened(tmp_path) as store:
        assert get(store, "t").snapshots
        pages = [
            store.read(store.reader.hydrate, HydrateRequest(namespace="default", thread="t", max_bytes=size))
            for size in (0, 1000, 0)
        ]
    assert pages[0] == pages[2]
    assert len(pages[1]) < 2000
    assert seen == [1]
