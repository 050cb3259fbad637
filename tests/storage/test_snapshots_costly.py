"""The danger: snapshots take more of the disk than the edits that they shorten, or a replay becomes long."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import pytest
from tests.daemon.store import get, opened, rest, save
from tests.daemon.wire import appends

from stateward_sidecar.store.journal import replay
from stateward_sidecar.store.versions import snapshots


def test_snapshots_cost_half_of_the_edits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them, but for the newest, take half of the weight of the edits. A replay reads little more than twice the
    snapshot before it."""
    least = 4000
    monkeypatch.setattr(snapshots, "WEIGHT_MIN_BYTES", least)
    with opened(tmp_path) as store:
        for number in range(200):
            save(store, f"{number}", diff=appends(os.urandom(300).hex()))
            store.snapshots.consider(get(store), "main")
            rest(store)
        thread = get(store)
        made = sorted(thread.snapshots)
        with store.context.engine.read() as txn:
            sizes = {each: replay.snapshot_stored_bytes(txn, thread.identity, each) for each in made}
            weights = [
                replay.entry_weight(replay.read_version(txn, thread, version).header.edit_stored_bytes)
                for version in range(1, 201)
            ]
    assert len(made) >= 3
    assert sum(sizes[each] for each in made[:-1]) <= sum(weights) / 2
    for before, after in pairwise(made):
        since = sum(weights[before:after])
        assert 2 * sizes[before] <= since <= max(2 * sizes[before], least) + 2 * max(weights)
