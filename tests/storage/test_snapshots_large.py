"""The danger: memory for snapshots of large states comes on top of what large requests may take."""

from __future__ import annotations

import os
from pathlib import Path

from tests.daemon.store import get, opened, rest, save
from tests.daemon.wire import sets


def test_a_large_snapshot_has_its_share_until_it_is_there(tmp_path: Path) -> None:
    """It is counted from the moment when its save ends, so that the next large request waits; a small one is not."""
    with opened(tmp_path) as store:
        held: list[int] = []

        def reserve(size_bytes: int) -> object:
            held.append(size_bytes)
            return held.clear

        store.context.reserve = reserve  # type: ignore[assignment]
        for name, size in (("small", 1 << 20), ("large", 5 << 20)):
            text = os.urandom(size // 2).hex()
            save(store, name, name, diff=sets("page", text))
            store.snapshots.consider(get(store, name), "main")
            assert bool(held) == (name == "large")
            assert not held or held[0] > 2 * size
            rest(store)
            assert get(store, name).snapshots
        assert held == []
