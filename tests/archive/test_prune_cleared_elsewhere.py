"""The danger: what was pruned stays for ever on a disk that fetched it for retries only, or in an orphan."""

from __future__ import annotations

import os

import pytest
from google.protobuf.empty_pb2 import Empty
from tests.archive.test_effects_gone_travel import fill, prune
from tests.daemon.driven import NAMESPACE, append
from tests.daemon.town import Town

from stateward._operations.threads import spans_of
from stateward.v1.checkpoint_service_pb2 import HydrateRequest
from stateward.v1.effect_service_pb2 import DeleteEffectsRequest
from stateward.v1.thread_pb2 import THREAD_ACCESS_ORPHAN
from stateward.v1.thread_service_pb2 import PruneThreadRequest
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.storage import layout
from stateward_sidecar.store.check import verify
from stateward_sidecar.store.clean import clear
from stateward_sidecar.store.journal import replay, requests
from stateward_sidecar.store.kinds.table import is_cut


def test_what_came_for_retries_is_cleared(driven: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader's copy has the newest part; the entries below it come when it takes the thread; they were pruned."""
    monkeypatch.setattr(requests, "REQUEST_WINDOW_ENTRIES", 16)
    first, reader = driven.machine("first"), driven.machine("reader")
    for number in range(24):
        first.put(append(os.urandom(800)))
        if number % 2:
            first.ship_now()
    reader.state()
    floor = reader.thread().floor_version
    prune(first, *range(9, floor))
    first.ship_now()
    reader.archive.own(NAMESPACE, "job", take_over=True)
    assert reader.thread().floor_sequence < floor
    reader.archive.complete(NAMESPACE, "job")
    reader.store.pruner.resume()
    thread = reader.thread()
    with reader.store.context.engine.read() as txn:
        found = list(replay.read_entries(txn, thread.identity, 1))
    assert [entry.header.version for entry in found if is_cut(thread.pruned, entry.header) and not entry.is_husk] == []
    assert reader.findings() == []


@pytest.mark.parametrize("is_archived", [True, False])
def test_an_orphan_is_cleared(driven: Town, monkeypatch: pytest.MonkeyPatch, is_archived: bool) -> None:
    """It was set aside after a prune, and before the sweep or start that clears what the prune left."""
    first, second = driven.machine("first"), driven.machine("second")
    fill(first, 4)
    state = first.state().state
    if not is_archived:
        fill(first, 2, after=4, is_shipped=False)
        state = first.state().state
    monkeypatch.setattr(first.store.pruner._clearer, "clear", lambda *_: None)
    request = PruneThreadRequest(namespace=NAMESPACE, thread="job", versions=spans_of(range(1, 8)))
    assert first.store.pruner.prune(request).pruned.spans
    second.archive.own(NAMESPACE, "job", take_over=True)
    fill(second, 1, after=6)
    first.ship_now()
    monkeypatch.undo()
    first.sweep()
    orphan = next(thread for thread in first.threads() if thread.access == THREAD_ACCESS_ORPHAN)
    with first.store.context.engine.read() as txn:
        found = list(replay.read_entries(txn, orphan.identity, 1))
        assert txn.get(layout.uncleared_key(orphan.number)) is None
    assert [entry.header.version for entry in found if is_cut(orphan.pruned, entry.header) and not entry.is_husk] == []
    asked = HydrateRequest(namespace=NAMESPACE, thread=orphan.name, max_bytes=1 << 20)
    assert first.hydrate(asked).state == state
    assert first.findings() == []


def test_an_orphan_keeps_what_is_nowhere_else(driven: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own entries are cut down to husks, however old: who wrote one still learns that it is no history."""
    for module in (clear, requests, verify):
        monkeypatch.setattr(module, "REQUEST_WINDOW_ENTRIES", 1)
        monkeypatch.setattr(module, "REQUEST_WINDOW_S", 0, raising=False)
    first, second = driven.machine("first"), driven.machine("second")
    fill(first, 2)
    common = first.thread().head.tip_sequence
    fill(first, 2, after=2, is_shipped=False)
    request = DeleteEffectsRequest(
        namespace=NAMESPACE, thread="job", anchor="c3", all=Empty(), options=WriteOptions(request_id="delete")
    )
    assert first.store.effect_deleter.delete(request).deleted == 2
    second.archive.own(NAMESPACE, "job", take_over=True)
    fill(second, 1, after=2)
    first.ship_now()
    first.sweep()
    orphan = next(thread for thread in first.threads() if thread.access == THREAD_ACCESS_ORPHAN)
    with first.store.context.engine.read() as txn:
        found = [entry for entry in replay.read_entries(txn, orphan.identity, 1) if entry.header.sequence > common]
    assert [entry.header.sequence for entry in found] == list(range(common + 1, orphan.head.tip_sequence + 1))
    assert all(entry.is_husk for entry in found if is_cut(orphan.pruned, entry.header))
    assert first.findings() == []
