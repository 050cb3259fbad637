"""The danger: what a prune removed comes back with a pack, or stays for ever on a machine that did not prune itself."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from tests.daemon.clocks import MovedClock
from tests.daemon.store import findings, get, hydrate, opened, save, save_many, settle
from tests.storage.test_keys_revived import archived
from tests.storage.test_prune_slow import cut, entry

from stateward._operations.threads import spans_of
from stateward_sidecar.archive.objects.packs import snapshot_rows
from stateward_sidecar.store.store import Store
from stateward_sidecar.store.thread.context import REQUEST_WINDOW_ENTRIES
from stateward_sidecar.store.thread.thread import rows
from stateward_sidecar.store.travel.fetched import is_entry
from stateward_sidecar.store.travel.install import Installer
from stateward_sidecar.store.travel.outbox import Outbox

LARGE, PIECES = 1_200_000, 2  # edits in pieces


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
        cut(store, versions=spans_of([2, 3, 4]))
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


@pytest.mark.parametrize("is_here", [True, False], ids=["it was here", "it comes whole"])
def test_what_was_pruned_elsewhere_is_cleared_here_too(tmp_path: Path, is_here: bool) -> None:
    """As soon as this sidecar may change the thread: edits, pieces, labels. Nobody can read them."""
    clock = MovedClock()
    with opened(tmp_path / "elsewhere", clock) as other:
        save_many(other, (entry(os.urandom(30)) for _ in range(2)))
        shutil.copytree(tmp_path / "elsewhere", tmp_path / "before")
        save(other, "large", diff=entry(os.urandom(LARGE)).diff, labels={"name": "large"})
        save_many(other, (entry(os.urandom(30)) for _ in range(REQUEST_WINDOW_ENTRIES + 20)))
        shutil.copytree(tmp_path / "elsewhere", tmp_path / "after")
        old = archived(other)(other).rows
        clock.ahead_s = 7200
        cut(other, versions=spans_of([3]))
        save(other, "elsewhere")
        incoming, thread, outbox = archived(other), get(other), Outbox(other.context, other.threads)
        pieces = {version: outbox.snapshot(thread, version) for version in thread.snapshots}
        alone = [row for version, found in pieces.items() for row in snapshot_rows(version, found)]
    with opened(tmp_path / ("after" if is_here else "before"), clock) as store:
        coming = incoming(store)
        newest = [row for row in coming.rows if is_entry(row) and row.sequence > len(old) - PIECES]
        coming.rows[:] = [*old, *newest, *alone]
        coming.have = get(store).head.tip_sequence
        Installer(store.context, store.threads).install(coming)
        assert sum(key[5:6] == b"P" for key in rows_of(store)) == PIECES
        store.sweeper.sweep()
        settle(store)
        assert sum(key[5:6] == b"P" for key in rows_of(store)) == 0
        cut(store, versions=spans_of([4]))
        assert findings(store) == []
        assert hydrate(store).checkpoint.version == get(store).head.last_version
