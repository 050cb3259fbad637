"""The danger: a watch goes on behind entries that pruning removed as if there had been none. The clock is moved by
hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.service.wire import appends

from stateward.v1.admin_service_pb2 import VerifyRequest
from stateward.v1.checkpoint_service_pb2 import SaveRequest
from stateward.v1.thread_service_pb2 import PruneThreadRequest, SetTagRequest, WatchRequest
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.clock import Clock
from stateward_sidecar.errors import VersionMismatch, VersionPruned
from stateward_sidecar.storage.queue import Write
from stateward_sidecar.store.store import Store, StoreOptions
from stateward_sidecar.store.thread import blocks
from stateward_sidecar.store.thread.context import REQUEST_WINDOW_ENTRIES, REQUEST_WINDOW_S, Limits
from stateward_sidecar.store.versions.save import SaveWrite

OLD, TAGGED = 20, 10


class MovedClock(Clock):
    """The machine's clock, and as much later as a test says."""

    ahead_s = 0

    def now_us(self) -> int:
        return super().now_us() + self.ahead_s * 1_000_000


def write(store: Store, run: Any) -> Any:
    return store.context.writer.submit(Write(run=run), wait=True).wait()


def save(store: Store, version: int) -> Any:
    request = SaveRequest(
        namespace="default", thread="t", options=WriteOptions(request_id=f"{version}", expected_version=version),
        diff=appends(f"{version}")
    )
    prepared = SaveWrite(store.context, store.threads, request)
    with store.context.engine.read() as txn:
        prepared.prepare(txn, store.threads.find(txn, "default", "t"))
    return write(store, prepared.run)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """No test changes it: a thread with pruned versions, whose entries have left the window of request ids."""

    def fail(error: BaseException) -> None:
        raise error

    clock = MovedClock()
    made = Store(
        StoreOptions(tmp_path_factory.mktemp("data"), b"k" * 32, 1 << 30, 8 << 20, Limits()),
        lambda writes: None,
        fail,
        clock,
    )
    made.start()
    for version in range(OLD):
        save(made, version)
    write(
        made,
        made.settings.set_tag(SetTagRequest(namespace="default", thread="t", tag="kept", version={"version": TAGGED})),
    )
    prune = PruneThreadRequest(namespace="default", thread="t", keep_latest_per_branch=1)
    made.pruner.prune(prune)
    for version in range(OLD, OLD + REQUEST_WINDOW_ENTRIES + 10):
        save(made, version)
    clock.ahead_s = REQUEST_WINDOW_S + 10
    prune.keep_latest_per_branch = 50
    made.pruner.prune(prune)
    yield made
    made.close()


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
    assert [each.finding for each in store.verifier.verify(VerifyRequest()) if each.HasField("finding")] == []


def test_retries_inside_the_window_still_answer(store: Store) -> None:
    """A request id of the last 1,024 entries is answered again; one that left the window is judged anew."""
    assert save(store, OLD + REQUEST_WINDOW_ENTRIES).receipt.replayed
    with pytest.raises(VersionMismatch):
        save(store, 1)
