"""The danger: a copy gets entries that its tip does not know of, and watches tell of them twice."""

from __future__ import annotations

import os

import pytest
from tests.daemon.driven import Driven, append
from tests.daemon.town import Town

from stateward_sidecar.archive.objects.packs import is_pack
from stateward_sidecar.archive.ship import compact, ship
from stateward_sidecar.storage import layout
from stateward_sidecar.store.journal import requests
from stateward_sidecar.store.thread.thread import rows
from stateward_sidecar.store.versions import snapshots

OLD, READ, ALL = 6, 12, 24  # entries below the snapshot, those that the copy knows of, and those that are there at last


def told(machine: Driven) -> list[int]:
    """The thread's entries in the order in which a watch of the namespace tells of them."""
    number = machine.thread().number
    with machine.store.context.engine.read() as txn:
        feed = [layout.unpack_feed(value) for _, value in rows(txn, b"W")]
    return [sequence for each, sequence in feed if each == number]


def test_a_merged_pack_reaches_above_the_copy(driven: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who completes a copy for retries takes of each pack what is missing below, and nothing above its tip."""
    monkeypatch.setattr(ship, "TAIL_SOFT_BYTES", 0)  # a pack a save
    monkeypatch.setattr(compact, "OBJECTS_SOFT_MAX", 14)
    monkeypatch.setattr(compact, "MERGED_BYTES_MAX", 1 << 20)
    first, second = driven.machine("first"), driven.machine("second")
    for number in range(ALL):
        monkeypatch.setattr(snapshots, "WEIGHT_MIN_BYTES", 1 if number == OLD else 1 << 30)
        first.put(append(os.urandom(2000), request_id=f"request-{number}"))
        first.ship_now()
        if number == READ - 1:
            second.state()
    floor, tip = second.thread().floor_sequence, second.thread().head.tip_sequence
    assert (floor, tip) == (OLD, READ)
    packs = [ref for ref in first.archive.state.holds[first.thread().number].head.objects if is_pack(ref)]
    assert any(ref.first_sequence <= floor and ref.last_sequence > tip for ref in packs)
    monkeypatch.setattr(requests, "REQUEST_WINDOW_ENTRIES", ALL - 3)
    second.archive.attacher.window.complete(("default", "job"))
    assert second.thread().floor_sequence == 3
    assert second.thread().head.tip_sequence == tip
    assert sorted(told(second)) == list(range(4, tip + 1))
    second.archive.own("default", "job", take_over=True)
    second.archive.complete("default", "job")
    assert sorted(told(second)) == list(range(1, ALL + 1))
    assert second.state().checkpoint.version == ALL
