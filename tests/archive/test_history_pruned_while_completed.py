"""The danger: a copy fetches older history while its owner prunes it, and is called damaged from then on."""

from __future__ import annotations

from typing import Any

import pytest
from tests.daemon.driven import NAMESPACE, Driven, append
from tests.daemon.town import Town

from stateward.v1.checkpoint_service_pb2 import HydrateRequest
from stateward.v1.thread_service_pb2 import PruneThreadRequest

PLACE = {"namespace": NAMESPACE, "thread": "job"}
BEGUN, KEPT, FIRST = 14, 11, 4  # saves, kept versions, and the first one that is kept


def ship(machine: Driven, times: int) -> None:
    for _ in range(times):
        machine.put(append(b"x" * 200))
        machine.ship_now()


def prune(machine: Driven, keep: int) -> None:
    machine.prune(PruneThreadRequest(**PLACE, keep_latest_per_branch=keep))
    machine.store.sweeper.sweep()
    ship(machine, 1)


def delete_oldest_snapshot(machine: Driven) -> None:
    """What the owner does with it some time after nothing leads to it any more."""
    snapshots = [key for key, _ in machine.wire.walk("") if key.endswith(".snap")]
    machine.wire.delete(min(snapshots, key=lambda key: int(key.removesuffix(".snap").rpartition("-")[2])))


def read(machine: Driven, version: int) -> int:
    return machine.hydrate(HydrateRequest(**PLACE, version={"version": version})).checkpoint.version


def test_a_copy_without_a_pruned_snapshot_is_sound(driven: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its look at HEAD and its other requests the owner prunes further. A copy that lacks what no version of
    its owner needs is sound, and learns it when it takes the thread over."""
    a, b = driven.machine("a"), driven.machine("b")
    ship(a, BEGUN)
    prune(a, KEPT)
    b.archive.know(NAMESPACE, "job")
    assert b.thread().floor_version > FIRST
    fetcher = b.archive.history._fetcher
    look = fetcher.look

    def late(*arguments: Any, **how: Any) -> Any:
        monkeypatch.setattr(fetcher, "look", look)
        seen = look(*arguments, **how)
        prune(a, 2)
        delete_oldest_snapshot(a)
        return seen

    monkeypatch.setattr(fetcher, "look", late)
    b.archive.complete(NAMESPACE, "job")
    assert not b.thread().floor_sequence
    assert FIRST not in b.thread().snapshots
    assert FIRST not in b.thread().pruned
    assert b.findings() == []
    b.archive.own(NAMESPACE, "job", take_over=True)
    assert b.findings() == []
    assert FIRST in b.thread().pruned
    newest = b.thread().head.last_version
    assert read(b, newest) == newest
