"""The danger: to compare two lines of a long thread, all of its history is read into memory at once."""

from __future__ import annotations

import os

import pytest
from tests.daemon.driven import Driven, append
from tests.daemon.town import Town

from stateward_sidecar.archive.objects import fetch
from stateward_sidecar.archive.objects.packs import is_pack
from stateward_sidecar.archive.ship import compact

COUNT, AT_ONCE = 20, 2


@pytest.mark.parametrize("common", [COUNT, COUNT // 2, 1, 0])
def test_lines_are_compared_from_their_end(driven: Town, monkeypatch: pytest.MonkeyPatch, common: int) -> None:
    """Packs are read a few at a time, and none below the newest entry that both lines have."""
    monkeypatch.setattr(compact, "OBJECTS_SOFT_MAX", 1000)
    monkeypatch.setattr(fetch, "HISTORY_AT_ONCE", AT_ONCE)
    machine = driven.machine("host")
    for _ in range(COUNT):
        machine.put(append(os.urandom(2000)))
        machine.ship_now()
    thread, state = machine.thread(), machine.archive.state
    hold = state.holds[thread.number]
    seen = fetch.Fetcher(state.wire).look(thread.identity.namespace_keys, hold.place, with_key=False)
    assert seen is not None
    packs = [ref for ref in seen.head.objects if is_pack(ref)]
    assert len(packs) == COUNT
    digest_at = state.outbox.digest_at

    def ours(identity: object, sequence: int) -> bytes:
        return digest_at(thread.identity, sequence) if sequence <= common else b"another line"

    monkeypatch.setattr(state.outbox, "digest_at", ours)
    most = watch_requests(machine, monkeypatch)
    assert machine.archive.reconciler._newest_shared(thread, hold.place, seen.head, 0, COUNT)[0] == common
    read = COUNT - common + 1 if common else COUNT
    assert sum(most) <= read + AT_ONCE - 1
    assert max(most) <= AT_ONCE


def watch_requests(machine: Driven, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many objects are asked for together, each time."""
    counts = list[int]()
    together = machine.wire.together

    def count(*calls: object) -> list[object]:
        counts.append(len(calls))
        return together(*calls)  # type: ignore[arg-type]

    monkeypatch.setattr(machine.wire, "together", count)
    return counts
