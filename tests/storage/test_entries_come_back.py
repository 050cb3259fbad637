"""The danger: a pack that begins before a copy's tip brings back what a prune had removed from the disk for good."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from tests.storage.inside import MovedClock, findings, get, opened, save, save_many, settle
from tests.storage.test_revived_keys import archived
from tests.storage.test_slow_prunes import cut, entry

from stateward_sidecar.store.context import REQUEST_WINDOW_ENTRIES
from stateward_sidecar.store.install import Installer, is_entry
from stateward_sidecar.store.store import Store
from stateward_sidecar.store.thread import rows

LARGE = 1_200_000  # edits in pieces


def rows_of(store: Store) -> dict[bytes, int]:
    """The journal and the pieces of edits, as they are on the disk."""
    keys = get(store).identity.keys
    with store.context.engine.read() as txn:
        return {key: len(value) for tag in (b"J", b"P") for key, value in rows(txn, keys.all_of(tag))}


@pytest.mark.parametrize("new", [REQUEST_WINDOW_ENTRIES + 20, 3], ids=["removed", "husks"])
def test_what_was_pruned_here_does_not_come_back(tmp_path: Path, new: int) -> None:
    """Packs were merged elsewhere: the new entries come in a pack with old ones, as they were before the prune."""
    clock = MovedClock()
    with opened(tmp_path / "here", clock) as store:
        for number, size in enumerate((30, 30, LARGE, 30, 30)):
            save(store, f"{number}", diff=entry(os.urandom(size)).diff)
        save_many(store, (entry(os.urandom(30)) for _ in range(new)))
        old = archived(store)(store).rows
        clock.ahead_s = 7200
        cut(store, versions={"versions": [2, 3, 4]})
        settle(store)
    shutil.copytree(tmp_path / "here", tmp_path / "elsewhere")
    with opened(tmp_path / "elsewhere", clock) as other:
        save(other, "elsewhere")
        incoming = archived(other)
    with opened(tmp_path / "here", clock) as store:
        before, coming = rows_of(store), incoming(store)
        newest = [row for row in coming.rows if is_entry(row) and row.sequence > get(store).head.tip_sequence]
        coming.rows[:] = [*old, *newest]
        coming.have = get(store).head.tip_sequence
        Installer(store.context, store.threads).install(coming)
        after = rows_of(store)
        assert len(after.keys() ^ before.keys()) <= 1  # the block of the newest entry
        assert findings(store) == []
