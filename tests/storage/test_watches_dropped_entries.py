"""The danger: a watch goes on behind entries that pruning removed as if there had been none. The clock is moved by
hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.daemon.clocks import MovedClock
from tests.daemon.store import findings, opened, save, write

from stateward.v1.thread_service_pb2 import PruneThreadRequest, SetTagRequest, WatchRequest
from stateward_sidecar.errors import VersionMismatch, VersionPruned
from stateward_sidecar.store.store import Store
from stateward_sidecar.store.thread import blocks
from stateward_sidecar.store.thread.context import REQUEST_WINDOW_ENTRIES, REQUEST_WINDOW_S

OLD, TAGGED = 20, 10


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """No test changes it: a thread with pruned versions, whose entries have left the window of request ids."""
    clock = MovedClock()
    with opened(tmp_path_factory.mktemp("data"), clock) as made:
        for version in range(OLD):
            save(made, str(version), expected_version=version)
        tag = SetTagRequest(namespace="default", thread="t", tag="kept", version={"version": TAGGED})
        write(made, made.settings.set_tag(tag))
        prune = PruneThreadRequest(namespace="default", thread="t", keep_latest_per_branch=1)
        made.pruner.prune(prune)
        for version in range(OLD, OLD + REQUEST_WINDOW_ENTRIES + 10):
            save(made, str(version), expected_version=version)
        clock.ahead_s = REQUEST_WINDOW_S + 10
        prune.keep_latest_per_branch = 50
        made.pruner.prune(prune)
        yield made


def read_all(store: Store, **fields: Any) -> list[int]:
    watch = store.watcher.open(WatchRequest(namespace="default", thread="t", **fields))
    found: list[int] = []
    while events := store.watcher.read(watch):
        found += [event.sequence for event in events]
    return found


def test_a_watch_never_passes_over_removed_entries(store: Store) -> None:
    """After a place behind which one was removed: VERSION_PRUNED; from the beginning: all that is left."""
    with store.context.engine.read() as txn:
        thread = store.threads.get(txn, "default", "t")
        tip = thread.head.tip_sequence
        kept = {sequence for sequence, _ in blocks.entries(txn, thread.identity.keys, 1)}
    gone = set(range(1, tip + 1)) - kept
    assert len(gone) > OLD // 2
    for after in (min(gone) - 1, min(gone), max(gone) - 1):
        with pytest.raises(VersionPruned):
            read_all(store, after_sequence=after)
    assert read_all(store, after_sequence=0) == sorted(kept)  # the beginning is what is left of it
    assert read_all(store, after_sequence=max(gone)) == list(range(max(gone) + 1, tip + 1))


def test_a_hole_in_the_middle_ends_a_watch(store: Store) -> None:
    """An entry that stayed between removed ones is told, and then what is missing; nothing is passed over."""
    watch = store.watcher.open(WatchRequest(namespace="default", thread="t", after_sequence=TAGGED - 1))
    assert [event.sequence for event in store.watcher.read(watch)] == [TAGGED]
    with pytest.raises(VersionPruned):
        store.watcher.read(watch)


def test_verify_takes_removed_entries_for_what_they_are(store: Store) -> None:
    """What pruning removed is no finding."""
    assert findings(store) == []


def test_retries_inside_the_window_still_answer(store: Store) -> None:
    """A request id of the last 1,024 entries is answered again; one that left the window is judged anew."""
    again = OLD + REQUEST_WINDOW_ENTRIES
    assert save(store, str(again), expected_version=again).receipt.replayed
    with pytest.raises(VersionMismatch):
        save(store, "1", expected_version=1)
